"""Messages between a worker and its parent: one JSON object per line, on a private socket.

Rows for the ledger are an array, see `ledger_rows`.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, get_args

from pallas_gateway.calls.cancellation import RequestKey
from pallas_gateway.workers.ledger_rows import LedgerRows
from pallas_gateway.workers.usage_rows import UsageAnswer, UsageAsked, UsageChanges

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping
    from typing import Any

LONGEST_LINE = 1 << 20
"""Bytes; the announcement has a line for each agent."""
LONGEST_TEXT = 80_000
"""Characters of a text for people, each of which takes 12 bytes at most; longer ones are cut."""
MOST_UNREAD = 256 * 1024
"""Bytes that may wait for a receiver that does not read, before messages that may be lost are dropped."""
_log = logging.getLogger("pallas.workers")


@dataclass(frozen=True, slots=True)
class Ready:
    """From a worker: every agent was tried; the text that `serve` prints."""

    announcement: str


@dataclass(frozen=True, slots=True)
class Alive:
    """From a worker, every few seconds: its event loop responds; its state in one line, and its drain time."""

    summary: str
    drain_seconds: float


@dataclass(frozen=True, slots=True)
class Failed:
    """From a worker: it cannot serve and ends, with the reason."""

    why: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """From the worker that received it, passed on to the others: a client has cancelled a request."""

    key: RequestKey


@dataclass(frozen=True, slots=True)
class LevelSet:
    """From the worker that received it, passed on to the others: the client of a session has set a log level."""

    session: str
    shows_info: bool


@dataclass(frozen=True, slots=True)
class Used:
    """From a worker: it uses the state with this ticket, which expires within so many seconds."""

    ticket: str
    seconds: float


@dataclass(frozen=True, slots=True)
class UsedBefore:
    """To a worker that uses a state: another request has used it, or none has."""

    ticket: str
    before: bool


@dataclass(frozen=True, slots=True)
class GivenBack:
    """From a worker: it returns a state that it did not use."""

    ticket: str


@dataclass(frozen=True, slots=True)
class NotReloaded:
    """To a worker: a reload failed in the parent, which has logged the problems, here one in a line.

    `was_before`: it failed before the worker was ready.
    """

    problems: str
    was_before: bool = False


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    """From a worker: its rules and audit log, as a hash, at its start and after a reload."""

    digest: str


@dataclass(frozen=True, slots=True)
class LedgerState:
    """To a worker, after each `Alive`: the used share of each rule and the fields of an `AuditState`, for metrics."""

    ratios: dict[str, float]
    audit: list[Any] | None = None


@dataclass(frozen=True, slots=True)
class Stopped:
    """From a worker: its calls have ended and its agents are closed; it refuses calls until it may close.

    `had_calls` if some ended until then, or shortly before.
    """

    had_calls: bool = False


@dataclass(frozen=True, slots=True)
class Close:
    """To a worker that has stopped: stop accepting connections, and end.

    `had_calls` if any worker had some: their clients may send requests to all.
    """

    had_calls: bool = False


@dataclass(frozen=True, slots=True)
class Closed:
    """From a worker: it accepts no more connections."""


type WorkerMessage = (
    Ready
    | Alive
    | Failed
    | Cancelled
    | LevelSet
    | Used
    | UsedBefore
    | GivenBack
    | NotReloaded
    | LedgerRows
    | LedgerSettings
    | UsageChanges
    | UsageAsked
    | UsageAnswer
    | LedgerState
    | Stopped
    | Close
    | Closed
)
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(WorkerMessage.__value__)}

_FOR_PEOPLE = (Ready, Alive, Failed, NotReloaded)
_MAY_BE_LOST = (Alive, LevelSet, NotReloaded, LedgerState)


def line_of(message: WorkerMessage) -> bytes:
    """Encode a message as one line of at most `LONGEST_LINE` bytes (rows as several); long texts for people are cut."""
    if isinstance(message, LedgerRows):
        return message.lines(LONGEST_LINE)
    fields = asdict(message)
    if isinstance(message, _FOR_PEOPLE):
        fields = {name: _cut(value) for name, value in fields.items()}
    return json.dumps({"is": type(message).__name__, **fields}).encode() + b"\n"


def message_of(line: bytes) -> WorkerMessage:
    """Decode a line.

    Raises:
        ValueError: it holds no message.
    """
    try:
        document = json.loads(line)
        if isinstance(document, list):
            return LedgerRows(document)
        if "key" in document:
            document["key"] = RequestKey(**document["key"])
        message: WorkerMessage = _KINDS[document.pop("is")](**document)
    except (AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"no message: {type(error).__name__}") from error
    return message


async def receive(reader: Any, take: Callable[[WorkerMessage], object]) -> None:
    """Take messages until the other side is gone. An incomplete line at the end is ignored.

    A line that is too long or no message, and a message that `take` fails on, are logged and skipped.
    """
    while True:
        try:
            line = await reader.readline()
            if not line.endswith(b"\n"):
                return
            message = message_of(line)
        except ConnectionError:  # also a broken pipe: an error of a write ends the reading as well
            return
        except ValueError as error:
            _log.error("worker message unreadable", extra={"why": str(error)})
            continue
        try:
            take(message)
        except Exception:  # noqa: BLE001  of any kind: the messages after it are those of other calls
            _log.exception("worker message failed", extra={"kind": type(message).__name__})


class WorkerSender:
    """Sends messages to the other side, without waiting for it to read them.

    Beyond `MOST_UNREAD` unread bytes, reports are dropped until the other side reads again, which is logged once.
    Messages that a call, a start or a stop requires are never dropped.
    """

    def __init__(self, writer: asyncio.StreamWriter, receiver: Mapping[str, object]) -> None:
        """`receiver` names the other side in the log."""
        self._writer = writer
        self._receiver = receiver
        self._drops = False

    def send(self, message: WorkerMessage) -> None:
        if self._writer.is_closing():
            return
        if not self.is_full or not isinstance(message, _MAY_BE_LOST):
            self._writer.write(line_of(message))
            self._drops = self._drops and self.unread > MOST_UNREAD // 2
        elif not self._drops:
            self._drops = True
            # It hangs or is very busy. Reports of states and failed reloads are lost, never what calls wait for. A
            # worker that leaves 128 MB unread is replaced.
            _log.warning("worker messages dropped", extra=dict(self._receiver))

    @property
    def is_full(self) -> bool:
        """True if messages that may be lost are dropped now."""
        return self.unread > MOST_UNREAD

    @property
    def unread(self) -> int:
        return self._writer.transport.get_write_buffer_size()


def _cut(value: Any) -> Any:
    return f"{value[: LONGEST_TEXT - 1]}…" if isinstance(value, str) and len(value) > LONGEST_TEXT else value
