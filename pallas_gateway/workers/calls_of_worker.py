"""The calls of one worker in the ledger of the parent."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from pallas_gateway.calls.permit import CallEnd
from pallas_gateway.errors import CallLimitedError, GatewayError
from pallas_gateway.ledger.protocol import CallEntry, Decision
from pallas_gateway.workers.ledger_rows import (
    ADMITTED,
    ASK_USED,
    BEGIN,
    CHARGE,
    CHARGED,
    END,
    LIMITED,
    REFUSED,
    USED,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pallas_gateway.calls.permit import Permit
    from pallas_gateway.ledger.protocol import Ledger
    from pallas_gateway.tasks import TaskOwner
    from pallas_gateway.workers.ledger_rows import Row

WORKER_ENDED = "worker_ended"
"""Reason of the end of calls whose worker ended before them."""
_FAILED = [REFUSED, "The gateway could not decide on this call; try again later.", "internal_error"]


@dataclass(slots=True)
class _AdmittedCall:
    """A call between the request for its admission and its end; `end` is set if it ends before it is admitted."""

    begun_at: float
    permit: Permit | None = None
    tokens: int = 0
    end: CallEnd | None = None


class CallsOfWorker:
    """Takes the rows of one worker, and answers them.

    Args:
        ledger: of the gateway.
        send: sends the values of an answer to the worker.
        tasks: own what waits, such as for the disk.
    """

    def __init__(self, ledger: Ledger, send: Callable[..., object], tasks: TaskOwner) -> None:
        self._ledger = ledger
        self._send = send
        self._tasks = tasks
        self._calls: dict[int, _AdmittedCall] = {}

    def take(self, kind: str, *values: Any) -> None:
        """Take a row. What waits for nothing is carried out at once, without a task switch."""
        if kind == BEGIN:
            self._run(self._begin(*values))
        elif kind == END:
            self._end(*values)
        elif kind == CHARGE:
            self._run(self._charge(*values))
        elif kind == ASK_USED:
            self._run(self._used(*values))
        else:
            self._ledger.note(Decision(*values))

    def close(self) -> None:
        """End the calls that are left: the worker has ended."""
        now = monotonic()
        for number, call in [*self._calls.items()]:
            self._end(number, "error", WORKER_ENDED, round(now - call.begun_at, 3), call.tokens)

    def _run(self, work: Any) -> None:
        self._tasks.spawn(work, name="request to the ledger", report=True, is_eager=True)

    async def _begin(self, number: int, *entry: Any) -> None:
        call = self._calls[number] = _AdmittedCall(monotonic())
        try:
            call.permit = await self._ledger.begin(CallEntry(*entry))
        except CallLimitedError as refused:
            limits = (refused.rule, refused.retry_after_seconds, refused.limit, refused.unit)
            self._refuse(number, [LIMITED, str(refused), *limits])
        except GatewayError as refused:
            self._refuse(number, [REFUSED, str(refused), refused.reason])
        except BaseException:
            self._refuse(number, _FAILED)
            raise
        else:
            if call.end is None:
                self._send(number, ADMITTED, call.permit.is_charged)
            else:
                call.permit.end(call.end)

    def _refuse(self, number: int, answer: Sequence[Any]) -> None:
        self._calls.pop(number, None)
        self._send(number, *answer)

    async def _charge(self, number: int, admission: int, tokens: int) -> None:
        answer: Row = [number, CHARGED]
        try:
            if (call := self._calls.get(admission)) is not None and call.permit is not None:
                call.tokens += tokens
                if (excess := await call.permit.charge(tokens)) is not None:
                    answer += astuple(excess)
        finally:
            self._send(*answer)

    async def _used(self, number: int, *account: Any) -> None:
        answer: Row = [number, USED]
        try:
            answer += [[tuple(one) for one in await self._ledger.used(*account)]]
        finally:
            self._send(*answer)

    def _end(self, admission: int, *end: Any) -> None:
        call = self._calls.pop(admission, None)
        if call is None:  # it was refused
            return
        if call.permit is None:
            call.end = CallEnd(*end)
        else:
            call.permit.end(CallEnd(*end))
