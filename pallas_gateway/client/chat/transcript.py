"""Threads as documents, and as short lists. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from pallas_gateway.client.chat.chat_turns import Chat
from pallas_gateway.client.output import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pallas_gateway.client.chat.chat_turns import ChatExchange, ChatThread

RECALLED_TURNS = 3  # shown again when a thread is resumed
_FIRST_WORDS, _RECALLED, _REASON = 60, 400, 200  # characters; the reason of a failed turn can be a long list


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
