"""Threads and turns as values and documents, and the part of a thread that is sent as the `history` of a call. Pure.

Only the provider can count a model's tokens, so they are estimated: one token for every four bytes of UTF-8 text
(English has about four characters a token, Chinese one character of three bytes), and a fixed number for an image
(providers charge between 85 and 1,600). A part of the window is reserved for the agent's instruction and tools.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import TypeAdapter

from pallas_gateway.client.gateway_client import PUBLISHER
from pallas_gateway.client.output import one_line

BYTES_PER_TOKEN = 4
TOKENS_PER_IMAGE = 1600
TOKENS_PER_MESSAGE = 4  # its role and delimiters
UNSEEN_SHARE = 10  # one tenth of the window is reserved for the instruction and the descriptions of tools
LONGEST_ANSWER_SHARE = 2  # at most half of the window is reserved for the answer
NO_TEXT = "(no text)"  # replaces an empty answer, which providers refuse in a history
NO_ANSWER = "the chat ended before the answer came, or still waits for it"
RECALLED_TURNS = 3  # shown again when a thread is resumed
_FIRST_WORDS, _RECALLED, _REASON = 60, 400, 200  # characters; the reason of a failed turn can be a long list
_LOOPBACK = ("127.0.0.1", "::1")


def place_of(url: str, agent: str) -> tuple[str, str]:
    """A gateway and its agent; loopback addresses are equal, as are `a_b` and `a-b`.

    A thread belongs to one place: it must not be sent to another agent of that name.
    """
    parts = urlsplit(url.rstrip("/"))
    host = parts.hostname or ""
    name = "localhost" if host in _LOOPBACK else host
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{name}{port}{parts.path}", agent.replace("_", "-")


@dataclass(frozen=True, slots=True)
class ChatThread:
    """One conversation.

    Its id is what the gateway logs for its calls as `conversation_id`. The rest is known in lists only: the numbers of
    turns and of failed turns, the start of the last turn, the first message.
    """

    id: str
    name: str | None
    turns: int = 0
    last_at: str = ""
    failed: int = 0
    first: str = ""

    @property
    def label(self) -> str:
        """Its name, or else its id; both of them find it again."""
        return self.name or self.id


@dataclass(frozen=True, slots=True)
class ChatExchange:
    """A message and its answer.

    `answer` is set once the turn is complete; of an `error` it is the part that was shown. `params` were sent
    with the message, `tools` were used by the agent (`server/tool`). Times are ISO 8601 in UTC. Only the gateway has
    `pending` turns: on this machine a turn is an `error` until its answer is there.
    """

    number: int
    state: Literal["pending", "complete", "error"]
    message: str
    images: tuple[dict[str, str], ...] = ()
    answer: str | None = None
    error: str | None = None
    params: dict[str, Any] = field(default_factory=dict)
    tools: tuple[str, ...] = ()
    began_at: str = ""
    ended_at: str | None = None


@dataclass(frozen=True, slots=True)
class Chat:
    """A thread with its turns, as it is stored and exported. `thread` is its id."""

    gateway: str
    agent: str
    thread: str
    name: str | None
    turns: tuple[ChatExchange, ...] = ()
    format: Literal[1] = 1

    @property
    def summary(self) -> ChatThread:
        """The thread in a list."""
        last_at, first = (self.turns[-1].began_at, self.turns[0].message) if self.turns else ("", "")
        failed = sum(turn.state == "error" for turn in self.turns)
        return ChatThread(self.thread, self.name, len(self.turns), last_at, failed, first)


def room_of(entry: Mapping[str, Any]) -> int | None:
    """Tokens of the model's context window in a registry entry that history and message may take.

    None if the gateway declares no window.
    """
    published = (entry.get("_meta") or {}).get(PUBLISHER) or {}
    capabilities = entry.get("capabilities") or published.get("capabilities") or {}
    size, answer = capabilities.get("context_window"), capabilities.get("max_output_tokens")
    if not isinstance(size, int) or size <= 0:
        return None
    reserved = min(answer, size // LONGEST_ANSWER_SHARE) if isinstance(answer, int) and answer > 0 else 0
    return size - reserved - size // UNSEEN_SHARE


def trimmed(
    turns: Iterable[ChatExchange], room: int | None, message: str = "", images: int = 0
) -> tuple[list[ChatExchange], int]:
    """The newest complete turns that fit with the new message, and the number of older ones left out.

    Turns without an answer are never sent: the model would answer them again.
    """
    complete = [turn for turn in turns if turn.state == "complete"]
    if room is None:
        return complete, 0
    left = room - _tokens(message, images)
    dropped = len(complete)
    for turn in reversed(complete):
        left -= _tokens(turn.message, len(turn.images)) + _tokens(turn.answer or "", 0)
        if left < 0:
            break
        dropped -= 1
    return complete[dropped:], dropped


def rows_of(turns: Sequence[ChatExchange]) -> list[dict[str, Any]]:
    """Complete turns as the `history` argument."""
    rows: list[dict[str, Any]] = []
    for turn in turns:
        images = {"images": [dict(image) for image in turn.images]} if turn.images else {}
        rows.append({"role": "user", "content": turn.message, **images})
        rows.append({"role": "assistant", "content": turn.answer or NO_TEXT})
    return rows


def _tokens(text: str, images: int) -> int:
    length = len(text.encode("utf-8", "surrogatepass"))
    return -(-length // BYTES_PER_TOKEN) + images * TOKENS_PER_IMAGE + TOKENS_PER_MESSAGE


def as_json(chat: Chat) -> str:
    """The whole thread, with its images."""
    return json.dumps(asdict(chat), ensure_ascii=False, indent=2)


def from_json(document: bytes | str) -> Chat:
    """The thread of `as_json`.

    Raises:
        ValueError: the document is something else.
    """
    return _chats().validate_json(document)


@cache
def _chats() -> TypeAdapter[Chat]:
    return TypeAdapter(Chat)


def as_markdown(chat: Chat) -> str:
    """The thread to read, with the types of its images only."""
    lines = [f"# {chat.name or f'Thread {chat.thread}'}", "", f"With {chat.agent} at {chat.gateway}."]
    for turn in chat.turns:
        lines += ["", *_markdown_turn(turn, chat.agent)]
    return "\n".join(lines)


def _markdown_turn(turn: ChatExchange, agent: str) -> Iterator[str]:
    yield f"## {turn.number}. You, {turn.began_at[:16].replace('T', ' ')} UTC"
    yield f"\n{turn.message}"
    for image in turn.images:
        yield f"\n*[image: {image.get('mime_type')}]*"
    if turn.params:
        yield f"\n*With {json.dumps(turn.params, ensure_ascii=False)}*"
    yield f"\n### {agent}\n"
    if turn.tools:
        yield f"*Used {', '.join(turn.tools)}*\n"
    if turn.answer is not None:
        yield turn.answer
    if turn.state == "error":
        why = f"*No answer: {one_line(turn.error or '', _REASON)}*"
        yield f"\n{why}" if turn.answer else why
    if turn.state == "pending":
        yield "*Waits for its answer.*"


def recalled(turns: Sequence[ChatExchange], agent: str) -> list[str]:
    """The last turns in a few lines; marks those that are not sent again."""
    lines = []
    for turn in turns[-RECALLED_TURNS:]:
        lines.append(f"you> {one_line(turn.message, _RECALLED)}")
        if turn.state == "complete":
            lines.append(f"{agent}: {one_line(turn.answer or '', _RECALLED)}")
        elif turn.state == "error":
            lines.append(
                f"✗ turn {turn.number} has no answer and is not sent again: {one_line(turn.error or '', _REASON)}"
            )
        else:
            lines.append(f"… turn {turn.number} waits for its answer in another chat")
    return lines


def listed(threads: Sequence[ChatThread], current: ChatThread | None) -> list[tuple[str, str, str, str, str]]:
    """Rows of a table: `*` for the current thread, label, turns, time of the last turn, first words."""
    return [
        (
            "*" if current is not None and one.id == current.id else "",
            one.label,
            f"{one.turns}" + (f" ({one.failed} failed)" if one.failed else ""),
            one.last_at[:16].replace("T", " "),
            one_line(one.first, _FIRST_WORDS),
        )
        for one in threads
    ]
