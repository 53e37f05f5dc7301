"""Questions that arise in a call, for the caller of that call and no one else.

The gateway answers no question for a person: a question that cannot be put to the caller is declined at once.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from pallas_gateway.telemetry.redaction import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

type Kind = Literal["form", "url", "approval", "human_input"]
type Action = Literal["accept", "decline", "cancel"]
type Outcome = Literal["accepted", "declined", "cancelled", "expired", "unaskable"]

LONGEST_QUOTE = 1_000
"""Characters of a question that a model reads when the caller could not be asked."""
_log = logging.getLogger("pallas.questions")


@dataclass(frozen=True, slots=True)
class Question:
    """A question to the caller of a call.

    Attributes:
        kind: the cause of the question.
        message: the text to show, as the server or the agent wrote it.
        server: the downstream that asks; None if an agent asks.
        schema: JSON Schema of the answer's content; None for a page to open.
        url: the page to open; None for a form.
    """

    kind: Kind
    message: str = field(repr=False)
    server: str | None = None
    schema: Mapping[str, Any] | None = field(default=None, repr=False)
    url: str | None = field(default=None, repr=False)

    def not_asked(self) -> str:
        """Return what the model reads when the caller could not be asked: of a URL, the host alone."""
        asker = f"The server '{self.server}'" if self.server else "This tool"
        fields = ", ".join((self.schema or {}).get("properties") or ())
        wanted = f" and to open a page at {urlsplit(self.url).hostname}" if self.url else ""
        wanted = f" (fields: {shortened(fields, LONGEST_QUOTE)})" if fields else wanted
        return (
            f"{asker} wanted to ask the caller: {shortened(self.message, LONGEST_QUOTE)!r}{wanted}. "
            "This caller cannot be asked, so the question was declined. Do not repeat this call: continue without "
            "the answer, or write in your answer what is needed."
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a question; `content` is the filled form of an accepted one."""

    outcome: Outcome
    content: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def action(self) -> Action:
        """Return the answer in the words of MCP."""
        if self.outcome == "accepted":
            return "accept"
        return "decline" if self.outcome in {"declined", "unaskable"} else "cancel"


UNASKABLE = Answer("unaskable")


class Questions:
    """The questions of one call.

    `count` is called with the kind and the outcome of each question.
    """

    def __init__(self, agent: str, count: Callable[[Kind, Outcome], object] = lambda *_: None) -> None:
        self._agent = agent
        self._count = count
        self._not_asked: dict[str, list[str]] = {}

    async def ask(self, question: Question) -> Answer:
        """Return the caller's answer."""
        answer = UNASKABLE
        self._count(question.kind, answer.outcome)
        ids = {"agent": self._agent, "server": question.server, "kind": question.kind, "outcome": answer.outcome}
        _log.info("question answered", extra=ids)
        return answer

    def tell_model(self, tool_call_id: str, text: str) -> None:
        """Have the model read `text` in the result of a tool call."""
        self._not_asked.setdefault(tool_call_id, []).append(text)

    def texts_for(self, tool_call_id: str) -> list[str]:
        """Return and forget the texts that the model has to read in the result of a tool call."""
        return self._not_asked.pop(tool_call_id, [])


_OUTSIDE_CALLS = Questions("")
_questions: ContextVar[Questions] = ContextVar("pallas_questions", default=_OUTSIDE_CALLS)


def questions_of_the_call() -> Questions:
    """Return the questions of the running call; outside calls, some that are all declined."""
    return _questions.get()


@contextmanager
def asked_by(questions: Questions) -> Iterator[None]:
    """Questions that arise in the block, and in tasks started in it, belong to this call."""
    token = _questions.set(questions)
    try:
        yield
    finally:
        _questions.reset(token)
