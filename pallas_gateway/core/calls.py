"""The calls of this process: those that run, and the latest ones that have ended.

Limits, logs and metrics are not part of `HostedAgent.answer`; they are attached here. A *gate* may refuse a new call.
If it has taken something for the call, such as a lease, it adds a *closer* to the call, which gives it back at the end.
*Listeners* are called at the end of each call, and cannot change it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from pallas_gateway.calls.asking.asking import WaitingCount
from pallas_gateway.errors import AgentUnavailableError, CallFailedError, CallLimitedError, CallRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pallas_gateway.calls.permit import CallEnd, Outcome
    from pallas_gateway.core.running_call import ListedCall, RunningCall

    type Listener = Callable[[RunningCall, CallEnd], object]

MOST_ENDED = 1000
"""Ended calls that are kept for lists."""
_log = logging.getLogger("pallas.calls")


class Gate(Protocol):
    """Decides on each call before it waits for a slot."""

    async def admit(self, call: RunningCall) -> None:
        """Admit a call. What is acquired for it must be released by a function in `call.closers`.

        Raises:
            CallRefusedError: it is not admitted.
        """


class Calls:
    """The calls of this process; see the module.

    A call is here from its start, also while it waits in a queue. A call that was refused was not started, and is not
    kept.

    Attributes:
        gates: called for each new call, in this order.
        listeners: called at the end of each call, in this order.
        waiting: the number of calls that wait for an answer.
        draining: no new calls are accepted.
        started: the number of calls with an instance.
    """

    def __init__(self) -> None:
        self.gates: Sequence[Gate] = ()
        self.listeners: Sequence[Listener] = ()
        self.waiting = WaitingCount()
        self.draining = False
        self.started = 0
        self._at_drain: list[Callable[[], object]] = []
        self._running: dict[str, RunningCall] = {}
        self._ended: deque[ListedCall] = deque(maxlen=MOST_ENDED)

    # A call

    @contextmanager
    def living(self, call: RunningCall) -> Iterator[None]:
        """List a call while the block runs, and note its end; the block sets `call.reply` or raises.

        Raises:
            CallFailedError: `cancelled`, in place of the cancellation by a request to end the call.
        """
        self._running.setdefault(call.call.call_id, call)  # a refused request may name a call that runs
        outcome: Outcome = "error"
        reason = "internal_error"
        try:
            yield
            if (reply := call.reply) is not None:
                outcome, reason = ("ok", reply.stop_reason) if reply.failure is None else ("error", reply.failure)
        except (CallRefusedError, AgentUnavailableError) as refusal:
            outcome, reason, call.refusal = "refused", refusal.reason, str(refusal)
            call.refused_by = refusal.rule if isinstance(refusal, CallLimitedError) else None
            raise
        except asyncio.CancelledError as cancelled:
            reason = "stopped" if self.draining and call.ended_by is None else "cancelled"
            if call.ended_by is None:
                raise
            cancelled.__traceback__ = None  # its frames refer to the task, which keeps the error: a reference cycle
            raise CallFailedError(f"The call was ended by {call.ended_by}.", reason=reason) from None
        finally:
            self._end(call, call.end(outcome, reason))

    def _end(self, call: RunningCall, end: CallEnd) -> None:
        if self._running.get(call.call.call_id) is call:
            del self._running[call.call.call_id]
        for tell in (*reversed(call.closers), *self.listeners):
            try:
                tell(call, end)
            except Exception:  # noqa: BLE001  an error in a listener must not lose the answer
                # A fault of the gateway; the caller gets its answer.
                _log.exception("end of a call not noted")
        if call.outcome is not None:
            self._ended.append(call.listed())

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Count a call with an instance for as long as the block runs."""
        self.started += 1
        try:
            yield
        finally:
            self.started -= 1

    # Lists

    def running(self) -> list[ListedCall]:
        """Return the running calls, the oldest first."""
        return [call.listed() for call in self._running.values()]

    def recent(self) -> list[ListedCall]:
        """Return the ended calls that are kept, the latest first."""
        return [*reversed(self._ended)]

    def find(self, call_id: str) -> RunningCall | None:
        """Return a running call; None if there is none of this id."""
        return self._running.get(call_id)

    # A drain

    def drain(self) -> None:
        """Begin to drain: calls that wait for their clients end, and their clients continue them in another process."""
        self.draining = True
        for end in [*self._at_drain]:
            end()

    def when_draining(self, end: Callable[[], object]) -> None:
        """Call `end` when a drain begins."""
        self._at_drain.append(end)

    @contextmanager
    def ended_by_drain(self, end: Callable[[], object]) -> Iterator[None]:
        """Call `end` if a drain begins while the block runs, or has begun before."""
        if self.draining:
            end()
        self._at_drain.append(end)
        try:
            yield
        finally:
            self._at_drain.remove(end)
