"""Questions that arise in a call, and the answers to them, as values."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from pallas_gateway.calls import forms
from pallas_gateway.telemetry.redaction import shortened

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pallas_gateway.limits import QuestionLimits

type Mode = Literal["form", "url"]
MODES: tuple[Mode, ...] = ("form", "url")
type Kind = Literal["form", "url", "approval", "human_input"]
type Action = Literal["accept", "decline", "cancel"]
type Outcome = Literal["accepted", "declined", "cancelled", "expired", "unaskable"]

ORIGIN_META_KEY, ORIGINS_META_KEY = "pallas/question", "pallas/questions"
"""In `_meta` of a request: the `origin` of its question; of a result: the origins of its questions, by their ids."""
LONGEST_QUOTE = 1_000
"""Characters of a question that a model reads when the caller could not be asked."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question to the caller of a call.

    Attributes:
        kind: the cause of the question.
        message: the text to show, as the server or the agent wrote it.
        server: the downstream that asks; None if an agent asks.
        schema: JSON Schema of the answer's content; None for a page to open.
        url: the page to open; None for a form.
        agent: the agent in whose work the question arose, as clients know it; None for the one that was called.
        tool: the tool under approval, as `server/tool`.
        call_path: ids of the tool calls that lead to that agent, the innermost first.
        id: unique.
    """

    kind: Kind
    message: str = field(repr=False)
    server: str | None = None
    schema: Mapping[str, Any] | None = field(default=None, repr=False)
    url: str | None = field(default=None, repr=False)
    agent: str | None = None
    tool: str | None = None
    call_path: tuple[str, ...] = ()
    id: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def mode(self) -> Mode:
        """Return the mode of elicitation."""
        return "form" if self.url is None else "url"

    @property
    def origin(self) -> dict[str, str]:
        """Return the facts that the gateway itself knows of it, and no text that asks."""
        facts = {"kind": self.kind, "agent": self.agent, "server": self.server, "tool": self.tool}
        return {key: value for key, value in facts.items() if value is not None}

    def text_for(self, called: str) -> str:
        """Return the message for the client that called the agent `called`: it begins with the name of the asker."""
        agent = self.agent or called
        asker = self.server or agent
        on_behalf = f", for {agent}" if self.server and agent != called else ""
        return f"{asker}{on_behalf}: {self.message}"

    def not_asked(self, why: str | None = None) -> str:
        """Return what the model reads when the question was not put to the caller: of a URL, the host alone.

        `why` is a clause; None if the caller cannot be asked.
        """
        asker = f"The server '{self.server}'" if self.server else "This tool"
        fields = ", ".join(forms.visible(list(forms.fields_of(self.schema or {}))))
        wanted = f" and to open a page at {_host_of(self.url)}" if self.url else ""
        wanted = f" (fields: {shortened(fields, LONGEST_QUOTE)})" if fields else wanted
        reason = f"The caller was not asked, because {why}" if why else "This caller cannot be asked"
        return (
            f"{asker} wanted to ask the caller: {shortened(self.message, LONGEST_QUOTE)!r}{wanted}. "
            f"{reason}, so the question was declined. Do not repeat this call: continue without "
            "the answer, or write in your answer what is needed."
        )

    def misfit(self, answer: Answer) -> str | None:
        """Return why an answer cannot be taken, as a clause; None if it can."""
        is_form = answer.outcome == "accepted" and self.url is None
        return forms.misfit(self.schema or {}, answer.content) if is_form else None

    def too_large(self, limits: QuestionLimits) -> str | None:
        """Return why the question is larger than clients should be sent, as a clause; None if it is not."""
        sizes = (
            ("message", len(self.message), limits.message_characters),
            ("address", len(self.url or ""), limits.url_characters),
            ("form", forms.size_of(self.schema or {}), limits.schema_characters),
        )
        return next((f"its {name} has more than {most} characters" for name, size, most in sizes if size > most), None)

    def with_visible_surrogates(self) -> Question:
        """Return the question as Unicode text: JSON may have halves of surrogate pairs, which no client can be sent."""
        texts = {name: forms.visible(getattr(self, name)) for name in ("message", "schema", "url", "tool")}
        return replace(self, **texts)


def _host_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a question.

    Attributes:
        outcome: the caller's decision, or the reason why there is none.
        content: the filled form of an accepted question.
        why: a clause, if the question was declined without asking a caller that can be asked.
    """

    outcome: Outcome
    content: Mapping[str, Any] | None = field(default=None, repr=False)
    why: str | None = None

    @property
    def action(self) -> Action:
        """Return the answer in the words of MCP."""
        if self.outcome == "accepted":
            return "accept"
        return "decline" if self.outcome in {"declined", "unaskable"} else "cancel"

    @property
    def was_asked_for(self) -> bool:
        """Return whether the question was put to the caller."""
        return self.outcome != "unaskable" and self.why is None

    def checked_for(self, question: Question) -> Answer:
        """Return the answer with a filled form if it accepts one, else without content; a denied approval declines."""
        content = dict(self.content or {}) if self.outcome == "accepted" and question.url is None else None
        if question.kind == "approval" and content is not None and content.get("decision") == "deny":
            return Answer("declined")
        return replace(self, content=content)


UNASKABLE = Answer("unaskable")
EXPIRED = Answer("expired")
