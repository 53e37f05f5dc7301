"""Running calls of this process, and the state that their requests share."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from pallas_gateway.calls.cancellation import Cancellations
from pallas_gateway.calls.log_levels import LogLevels
from pallas_gateway.calls.prices import NO_PRICES
from pallas_gateway.hosting.call_registry import CallRegistry
from pallas_gateway.hosting.waiting_calls import WaitingCalls
from pallas_gateway.ledger.own_ledger import OwnLedger
from pallas_gateway.ledger.usage import UsageTable
from pallas_gateway.questions.asking import WaitingCount
from pallas_gateway.questions.client_answers import ClientAnswers
from pallas_gateway.questions.elsewhere import Elsewhere

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pallas_gateway.ledger.protocol import Ledger
    from pallas_gateway.ledger.usage import UsageSource


class RunningCalls:
    """The running calls of this process, and the state that their requests share.

    Attributes:
        cancellations: calls that their clients can cancel.
        log_levels: set by clients.
        answers: of clients, in requests of their own.
        waiting: the number of calls that wait for an answer.
        waiting_calls: calls that wait for a repeated request; `state_key` seals their states unless the configuration
            has keys. Processes that share a port share `state_key`.
        elsewhere: the other processes of the gateway, and the name of this one.
        ledger: admits calls by the limits, and writes the audit log.
        asks_ledger: False without limits and without an audit log, when each call would be admitted.
        usage: of agents by callers, over all processes.
        calls: the running calls, and the latest ended ones.
        started_at: the start of the gateway, the same for all its workers.
        worker: the number of this process, from 1, of so many `workers`.
        prices: of models, by the configuration.
        draining: no new calls are accepted.
    """

    def __init__(
        self, state_key: bytes | None = None, elsewhere: Elsewhere | None = None, ledger: Ledger | None = None
    ) -> None:
        self.ledger: Ledger = ledger or OwnLedger()
        self.asks_ledger = True
        self.prices = NO_PRICES
        self.elsewhere = elsewhere or Elsewhere()
        self.usage: UsageSource = UsageTable()
        self.calls = CallRegistry()
        self.worker = self.workers = 1
        self.started_at = datetime.now(UTC)
        self.cancellations = Cancellations()
        self.log_levels = LogLevels()
        self.answers = ClientAnswers(state_key, self.elsewhere.process)
        self.waiting = WaitingCount()
        self.waiting_calls = WaitingCalls(state_key, self.elsewhere.process)
        self.draining = False
        self._count = 0
        self._latest_end, self._begin_of_drain = -inf, inf
        self._ends: list[Callable[[], object]] = []

    def __len__(self) -> int:
        """Return the number of calls with an instance."""
        return self._count

    def drain(self) -> None:
        """Begin to drain: calls that wait for their clients end, and their clients continue them in another process."""
        self.draining = True
        self._begin_of_drain = monotonic()
        self.waiting_calls.end()
        for end in [*self._ends]:
            end()

    def have_ended(self, seconds: float) -> bool:
        """Return True if a call has ended during the drain, or in these seconds before it."""
        return self._latest_end >= self._begin_of_drain - seconds

    @contextmanager
    def ended_by_drain(self, end: Callable[[], object]) -> Iterator[None]:
        """Call `end` if a drain begins while the block runs, or has begun before."""
        if self.draining:
            end()
        self._ends.append(end)
        try:
            yield
        finally:
            self._ends.remove(end)

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Count a call for as long as the block runs."""
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
            self._latest_end = monotonic()
