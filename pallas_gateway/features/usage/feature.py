"""Who has used what: counted at the end of each call, and read at `/api/v1/usage`."""

from __future__ import annotations

from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, override

from pallas_gateway.calls.used import UsageKey
from pallas_gateway.core.feature import Feature
from pallas_gateway.features.usage.usage_table import UsageOfWorker, UsageTable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from pallas_gateway.calls.permit import CallEnd
    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.core.calls import Listener
    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.core.running_call import RunningCall
    from pallas_gateway.features.usage.stored_usage import StoredUsage


class UsageFeature(Feature):
    """Counts the calls of this process; of several workers, the parent has the sums.

    Attributes:
        stored: usage by day; None without a database.
    """

    settings = ("usage_days",)

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway)
        self.stored: StoredUsage | None = None
        if gateway.stored is not None:
            from pallas_gateway.features.usage.stored_usage import StoredUsage  # noqa: PLC0415  an extra

            database, self.stored = gateway.stored.database, StoredUsage(gateway.stored.database)
            database.regular_work.append(self.stored.write)
            database.add(self.stored)
        parent = gateway.parts.parent
        self._of_worker = UsageOfWorker(parent) if parent is not None else None
        self.source = self._of_worker or UsageTable()

    @asynccontextmanager
    @override
    async def opened(self) -> AsyncIterator[None]:
        async with self._of_worker.sending() if self._of_worker is not None else nullcontext():
            yield

    @classmethod
    @override
    def api(cls) -> Any:
        from pallas_gateway.features.usage.routes import UsageApi  # noqa: PLC0415  other commands need no web app

        return UsageApi

    @override
    def apply(self, configuration: Configuration) -> None:
        if self.stored is not None:
            self.stored.use(configuration.deployment.gateway)

    @property
    @override
    def listeners(self) -> Sequence[Listener]:
        return (self._count,)

    def _count(self, call: RunningCall, end: CallEnd) -> None:
        caller, agent = call.call.caller, call.call.counted_as  # of a nested call the outermost caller
        key = UsageKey.of(caller.principal, caller.account, agent)
        for model, used in call.used(end.outcome).items():
            self.source.add(key, used)
            if self.stored is not None:
                self.stored.add(caller, agent, model, "" if end.outcome == "ok" else end.reason, used)
