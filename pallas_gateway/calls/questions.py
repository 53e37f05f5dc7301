"""Questions that arise in a call, for the caller of that call and no one else.

The gateway answers no question for a person: a question that cannot be put to the caller is declined at once. While a
question is open, its call holds no slot and its deadline is suspended.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol
from urllib.parse import urlsplit

from pallas_gateway.calls import forms
from pallas_gateway.calls.pauses import Pauses
from pallas_gateway.limits import QuestionLimits
from pallas_gateway.telemetry.redaction import shortened

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from pallas_gateway.calls.approvals import Approvals

type Mode = Literal["form", "url"]
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


class Asker(Protocol):
    """Puts questions to the caller of a call: an API, or the `Questions` of the call that made a nested one.

    An API receives messages that begin with the name of the asker.
    """

    @property
    def modes(self) -> Collection[Mode]:
        """Return the modes of questions that the caller takes; empty if it cannot be asked."""

    async def put(self, question: Question) -> Answer:
        """Return the caller's answer, however long it takes."""


class _CannotAsk:
    """The `Asker` of a caller that cannot be asked."""

    modes: Collection[Mode] = ()

    async def put(self, question: Question) -> Answer:
        del question
        return UNASKABLE


CANNOT_ASK: Asker = _CannotAsk()


class WaitingCalls:
    """The number of calls of this process that wait for answers of their clients."""

    def __init__(self) -> None:
        self.count = 0


@dataclass(frozen=True, slots=True)
class AskRules:
    """The limits of questions: seconds for an answer, the calls of this process that may wait for one, and sizes."""

    seconds: float = 300.0
    most_waiting: int = 256
    waiting: WaitingCalls = field(default_factory=WaitingCalls)
    limits: QuestionLimits = field(default_factory=QuestionLimits)


class QuestionWatch(Protocol):
    """Told of the questions of a call."""

    def asked(self, question: Question) -> None:
        """A question has arisen, and the caller can be asked."""

    def answered(self, question: Question, answer: Answer) -> None:
        """A question has its answer; one that was declined at once was not asked."""


class _Unwatched:
    def asked(self, question: Question) -> None:
        """Ignore it."""

    def answered(self, question: Question, answer: Answer) -> None:
        """Ignore it."""


class Questions:
    """The questions of one call of `agent`; itself the `Asker` of nested calls.

    `pauses` are what pauses while a question of this call, or of one nested in it, is open. `tool_call_id` is the tool
    call whose questions these are, if they are of one alone.
    """

    def __init__(
        self,
        agent: str,
        asker: Asker = CANNOT_ASK,
        rules: AskRules | None = None,
        watch: QuestionWatch | None = None,
        *,
        tool_call_id: str | None = None,
    ) -> None:
        self.agent = agent
        self._tool_call = (tool_call_id,) if tool_call_id else ()
        self.approvals: Approvals | None = None
        self.pauses = Pauses()
        self._asker = asker
        self._rules = rules or AskRules()
        self._watch = watch or _Unwatched()
        self._is_outermost = not isinstance(asker, Questions)  # its limits hold for the whole path
        self._put = 0
        self._not_asked: dict[str, list[str]] = {}

    @property
    def modes(self) -> Collection[Mode]:
        """Return the modes of questions that the caller takes."""
        return self._asker.modes

    @property
    def longest_wait(self) -> float:
        """Return the seconds that an answer can take: 0 if the caller cannot be asked."""
        return self._rules.seconds if self.modes else 0.0

    async def ask(self, question: Question) -> Answer:
        """Return the caller's answer to a question that has arisen in this call."""
        question = replace(question, agent=question.agent or self.agent)
        answer, refusal = Answer("cancelled"), self.refusal(question)
        if refusal is None:
            question = question.with_visible_surrogates()
            self._watch.asked(question)
        try:
            answer = refusal or (await self.put(question)).checked_for(question)
        finally:  # also when the call ends meanwhile
            self._watch.answered(question, answer)
        return answer

    def refusal(self, question: Question) -> Answer | None:
        """Return the answer to a question that is not put to the caller; None if it is."""
        if question.mode not in self.modes:
            return UNASKABLE
        if (why := self._limit_reached(question)) is not None:
            return Answer("declined", why=why)
        return self._asker.refusal(question) if isinstance(self._asker, Questions) else None

    def _limit_reached(self, question: Question) -> str | None:
        limits, waiting = self._rules.limits, self._rules.waiting
        if self.pauses.questions >= limits.at_once:
            return "too many questions of this call are open"
        if not self._is_outermost:
            return None
        if self._put >= limits.of_one_call:
            return f"this call has asked {self._put} questions already"
        if self.pauses.questions == 0 and waiting.count >= self._rules.most_waiting:
            return "too many calls wait for answers"
        return question.too_large(limits)

    async def put(self, question: Question) -> Answer:
        """Return the caller's answer to a question of this call, or of a nested one; there was no `refusal` of it."""
        self._put += 1
        with self._waiting(), self.pauses.paused():
            try:
                async with asyncio.timeout(self._rules.seconds if self._is_outermost else None):
                    return await self._asker.put(self._named(question))
            except TimeoutError:
                return EXPIRED

    def _named(self, question: Question) -> Question:
        """Return the question with its path, and with the name of the asker, which the outermost call adds."""
        question = replace(question, call_path=question.call_path + self._tool_call)
        return replace(question, message=question.text_for(self.agent)) if self._is_outermost else question

    def tell_model(self, tool_call_id: str, text: str) -> None:
        """Have the model read `text` in the result of a tool call."""
        self._not_asked.setdefault(tool_call_id, []).append(text)

    def texts_for(self, tool_call_id: str) -> list[str]:
        """Return and forget the texts that the model has to read in the result of a tool call."""
        return self._not_asked.pop(tool_call_id, [])

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Count a call as one that waits, from its first open question to its last."""
        self._rules.waiting.count += self._is_outermost and self.pauses.questions == 0
        try:
            yield
        finally:
            self._rules.waiting.count -= self._is_outermost and self.pauses.questions == 0


NO_QUESTIONS = Questions("")
"""Outside of calls: all are declined."""
