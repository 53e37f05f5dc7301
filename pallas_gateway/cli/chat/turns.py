"""A conversation as values: whose it is, its turns, and how those become the `history` of the next call. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

State = Literal["pending", "complete", "error"]
NO_TEXT = "(no text)"
"""Stands for an empty answer, which no provider takes back."""
_LOOPBACK = ("127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Place:
    """Whom a thread is with: an agent of one gateway. What was said to one must not be sent to another of its name."""

    gateway: str
    agent: str

    @classmethod
    def of(cls, url: str, agent: str) -> Place:
        """The agent of the gateway at `url`; a machine's names for itself are one, as are `a_b` and `a-b`."""
        parts = urlsplit(url.rstrip("/"))
        host = parts.hostname or ""
        name = "localhost" if host in _LOOPBACK else host
        port = f":{parts.port}" if parts.port else ""
        return cls(f"{parts.scheme}://{name}{port}{parts.path}", agent.replace("_", "-"))


@dataclass(frozen=True, slots=True)
class Thread:
    """One conversation. `conversation_id` is what the gateway logs for its calls."""

    id: int
    name: str | None
    conversation_id: str

    @property
    def label(self) -> str:
        """Its name, or its number as `#3`; either finds it again."""
        return self.name or f"#{self.id}"


@dataclass(frozen=True, slots=True)
class Turn:
    """What was said, and what came of it.

    `answer` is there once the turn is complete; of an `error` it is as much as was seen. `params` is what was sent
    beside the message, `tools` what the agent used (`server/tool`). Times are ISO 8601 in UTC.
    """

    number: int
    state: State
    message: str
    images: tuple[Mapping[str, str], ...] = ()
    answer: str | None = None
    error: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[str, ...] = ()
    began_at: str = ""
    ended_at: str | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """A thread in a list: how many turns, how many of them failed, when the last one began, the first message."""

    thread: Thread
    turns: int
    failed: int
    last_at: str
    first: str


def rows_of(turns: Iterable[Turn]) -> list[dict[str, Any]]:
    """The `history` argument: complete turns only, because a question without an answer would be answered again."""
    rows: list[dict[str, Any]] = []
    for turn in turns:
        if turn.state != "complete":
            continue
        user: dict[str, Any] = {"role": "user", "content": turn.message}
        if turn.images:
            user["images"] = [dict(image) for image in turn.images]
        rows += [user, {"role": "assistant", "content": turn.answer or NO_TEXT}]
    return rows
