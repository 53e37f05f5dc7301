"""Threads and turns as values, their rows in the database, and the errors of threads."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, unquote

from pallas_gateway.calls.call import Image, Message, Step
from pallas_gateway.core.long_calls.records import Held
from pallas_gateway.errors import GatewayError
from pallas_gateway.telemetry.redaction import quoted, storable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pallas_gateway.calls.call import Role
    from pallas_gateway.calls.questions import Question
    from pallas_gateway.core.long_calls.records import ClaimedTask
    from pallas_gateway.shared.database.tables import AnyRow


type Position = tuple[int, str] | tuple[int, str, int]
"""A place among threads: the time of the last change (milliseconds since 1970) and the id of the thread; of a search
that goes on within the thread, also the number of a turn."""
type TurnStatus = Literal["pending", "complete", "error"]
type Rating = Literal["good", "bad"]
_NAME = "; name="
ABANDONED = "abandoned"
ABANDONED_SENTENCE = "The gateway that was answering has gone away; send the message again."
GAVE_UP = "gave_up"
EXPIRED_SENTENCE = "Nobody could finish this turn in its time. Send the message again."
GAVE_UP_SENTENCE = "Each process that was answering has ended before the next step, so nobody goes on. Send it again."


@dataclass(frozen=True, slots=True)
class ThreadRecord:
    """One conversation of one owner with one agent; `turns` is the number of its latest turn, 0 if it has none.

    `agent_id` is that of an agent of the database, empty for one of a file. Another agent of the same name, with
    another id, does not have this thread.
    """

    id: str
    agent: str
    title: str | None
    created_at: datetime
    updated_at: datetime
    turns: int
    agent_id: str = ""

    @property
    def position(self) -> Position:
        """Its place among the threads of its owner."""
        return round(self.updated_at.timestamp() * 1000), self.id


@dataclass(frozen=True, slots=True)
class WantedThreads:
    """A page of threads: at most `limit`, behind `after`; with `search`, those that have this text.

    With `rated`, only those with a rated answer.

    A page of a search may have fewer threads although others follow.
    """

    limit: int
    after: Position | None = None
    search: str | None = None
    rated: bool = False


@dataclass(frozen=True, slots=True)
class ThreadPage:
    """Some threads; `behind` is where the next page begins, None on the last."""

    threads: tuple[ThreadRecord, ...]
    behind: Position | None


@dataclass(frozen=True, slots=True)
class ExchangeOutcome:
    """The end of a turn: the answer, or the reason and a sentence for a failed one.

    `model` is the one of its latest LLM turn, `params` are those of the message as the client gave them; both are None
    where they are not known.
    """

    answer: Message | None = None
    stop_reason: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    error_reason: str | None = None
    error: str | None = None
    model: str | None = None
    params: Mapping[str, Any] | None = None

    @property
    def status(self) -> TurnStatus:
        return "error" if self.answer is None else "complete"


CANCELLED = ExchangeOutcome(error_reason="cancelled", error="The call was cancelled.")


@dataclass(frozen=True, slots=True)
class Feedback:
    """What the owner of a thread thinks of an answer."""

    rating: Rating
    note: str
    rated_at: datetime
    for_owner: bool = False


@dataclass(frozen=True, slots=True)
class ExchangeRecord:
    """One message and its outcome; `number` counts from 1, without gaps.

    `asks` are the questions of a pending turn to the caller that have no answer. With `can_be_resumed` its process is
    gone, and another one may go on with it. `steps` are its rounds of tools, if they were asked for. `process` is the
    name of the process that runs the call of a pending turn; None where it is unknown. That process may have ended
    since it renewed its lease. `replaces` is the first of the turns whose place it takes, None if it takes none.
    """

    number: int
    status: TurnStatus
    question: Message
    outcome: ExchangeOutcome
    call_id: str
    created_at: datetime
    ended_at: datetime | None
    asks: tuple[Question, ...] = ()
    steps: tuple[Step, ...] = ()
    can_be_resumed: bool = False
    process: str | None = None
    feedback: Feedback | None = None
    replaces: int | None = None


@dataclass(frozen=True, slots=True)
class ExchangePage:
    """Some turns of a thread, in order; `has_more` if others follow."""

    turns: tuple[ExchangeRecord, ...]
    has_more: bool


@dataclass(frozen=True, slots=True)
class History:
    """The messages before a turn; `left_out` is the number of older answered turns that did not fit."""

    messages: tuple[Message, ...] = ()
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class NewThread:
    """A thread that is created with its first turn."""

    owner: str
    agent: str
    agent_id: str = ""
    id: str = field(default_factory=lambda: secrets.token_hex(16))


@dataclass(frozen=True, slots=True)
class ThreadLease:
    """The right to add to a thread; `holder` is unguessable and new for every turn, and for each run of its task."""

    thread_id: str
    turn: int
    holder: str
    task_id: str | None = None

    @property
    def task(self) -> Held | None:
        """The right to write the task of the turn, if it has one."""
        return Held(self.task_id, self.holder) if self.task_id is not None else None


@dataclass(frozen=True, slots=True)
class ClaimedExchange:
    """A turn with which this process goes on."""

    task: ClaimedTask

    @property
    def lease(self) -> ThreadLease:
        """The lease of its thread, which has the holder of the task."""
        return ThreadLease(self.task.thread_id, self.task.turn, self.task.held.holder, self.task.held.task_id)


class ThreadNotFoundError(GatewayError):
    """The thread does not exist, or belongs to another owner or agent: callers cannot tell which."""

    reason = "not_found"


class AgentDeletedError(GatewayError):
    """The agent of a new thread has been deleted; processes that have not noticed yet still host it."""

    reason = "not_found"


class ThreadBusyError(GatewayError):
    """Another call of the thread is still running; it may be tried again."""

    reason = "thread_busy"


class ThreadTooLargeError(GatewayError):
    """A part of a thread is too large to be copied."""

    reason = "thread_too_large"


class ThreadsFullError(GatewayError):
    """The owner's threads have reached their quota."""

    reason = "threads_full"


class LeaseLostError(GatewayError):
    """Another call has taken over the thread, so this call's answer is not stored."""

    reason = "lease_lost"


class ExchangeCancelledError(LeaseLostError):
    """A request to another process has cancelled the turn."""

    reason = "cancelled"


class NotLatestExchangeError(GatewayError):
    """A turn that is to be replaced has later ones, or does not exist."""

    reason = "turn_not_latest"


class NoAnswerError(GatewayError):
    """The turn has no answer that could be rated."""

    reason = "no_answer"


class QuestionNotOpenError(GatewayError):
    """The thread has no open question of that id: it was answered, has expired, or its call has ended."""

    reason = "question_not_open"

    def __init__(self, question_id: str) -> None:
        super().__init__(
            f"No question {quoted(question_id)} is open in this thread: it was answered or has expired, or its call "
            "has ended. Read the thread's messages."
        )


def columns_of(outcome: ExchangeOutcome) -> dict[str, Any]:
    answer = outcome.answer
    return {
        "status": outcome.status,
        "answer": storable(answer.text) if answer else None,
        "answer_images": images_as_json(answer) if answer else [],
        "stop_reason": outcome.stop_reason,
        "usage": dict(outcome.usage),
        "error_reason": outcome.error_reason,
        "error": storable(outcome.error) if outcome.error else None,
        "model": outcome.model,
        "params": dict(outcome.params) if outcome.params else None,
    }


def images_as_json(message: Message) -> list[dict[str, str]]:
    """Images and PDFs as they are stored; the name of a PDF's file is a parameter of its type.

    Gateways of older releases, which may run beside this one, know no other members.
    """
    return [{"data": one.data, "mime_type": f"{one.mime_type}{_name_parameter(one)}"} for one in message.images]


def _name_parameter(image: Image) -> str:
    return f"{_NAME}{quote(image.name)}" if image.name else ""


def _message(role: Role, text: str, images: list[dict[str, str]]) -> Message:
    return Message(role, text, tuple(_image(**image) for image in images))


def _image(data: str, mime_type: str) -> Image:
    kind, _, name = mime_type.partition(_NAME)
    return Image(data, kind, unquote(name))


def pair_of(row: AnyRow, steps: Sequence[Step] = ()) -> tuple[Message, Message]:
    answer = _message("assistant", row.answer, row.answer_images)
    return _message("user", row.question, row.question_images), replace(answer, steps=tuple(steps))


def step_of(row: AnyRow) -> Step:
    return Step(row.provider, row.model, row.step)


def thread_of(row: AnyRow) -> ThreadRecord:
    times = _time(row.created_at), _time(row.updated_at)
    return ThreadRecord(row.id, row.agent, row.title, *times, row.turns, row.agent_id)


def turn_of(row: AnyRow, asks: Sequence[Question] = (), steps: Sequence[Step] = ()) -> ExchangeRecord:
    """The turn of a row; its `is_over` is true for a pending turn whose lease has ended and that cannot be resumed.

    `asks` are its open questions.
    """
    question = _message("user", row.question, row.question_images)
    runs = row.status == "pending" and not row.is_over and not row.can_be_resumed
    return ExchangeRecord(
        row.number,
        "error" if row.is_over else row.status,
        question,
        _outcome(row),
        row.call_id,
        _time(row.created_at),
        _time(row.ended_at) if row.ended_at is not None else None,
        tuple(asks) if row.status == "pending" and not row.is_over else (),
        tuple(steps),
        row.can_be_resumed,
        row.lease_process if runs else None,
        feedback_of(row) if row.rating is not None else None,
        row.replaces,
    )


def feedback_of(row: AnyRow) -> Feedback:
    return Feedback(row.rating, row.note, _time(row.rated_at), bool(row.for_owner))


def _outcome(row: AnyRow) -> ExchangeOutcome:
    if row.is_over:
        return ExchangeOutcome(error_reason=ABANDONED, error=ABANDONED_SENTENCE)
    if row.status == "complete":
        answer = _message("assistant", row.answer, row.answer_images)
        return ExchangeOutcome(answer, row.stop_reason, row.usage, model=row.model, params=row.params)
    return ExchangeOutcome(None, row.stop_reason, row.usage, row.error_reason, row.error, row.model, row.params)


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
