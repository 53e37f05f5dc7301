"""Threads and turns as values, and the part of a thread that is sent as the `history` of the next call. Pure.

Only the provider can count a model's tokens, so they are estimated: one token for every four bytes of UTF-8 text
(English has about four characters a token, Chinese one character of three bytes), and a fixed number for an image
(providers charge between 85 and 1,600). A part of the window is reserved for the agent's instruction and tools.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from pallas_gateway.client.gateway_client import PUBLISHER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

BYTES_PER_TOKEN = 4
TOKENS_PER_IMAGE = 1600
TOKENS_PER_MESSAGE = 4  # its role and delimiters
UNSEEN_SHARE = 10  # one tenth of the window is reserved for the instruction and the descriptions of tools
LONGEST_ANSWER_SHARE = 2  # at most half of the window is reserved for the answer
NO_TEXT = "(no text)"  # replaces an empty answer, which providers refuse in a history
NO_ANSWER = "the chat ended before the answer came, or still waits for it"
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
