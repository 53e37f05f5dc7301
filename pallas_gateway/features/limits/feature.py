"""`gateway.limits`: what callers may use, over the processes of a gateway, or with a database over replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, override

from pallas_gateway.core.feature import Feature, Trouble
from pallas_gateway.core.offers import CallEntry
from pallas_gateway.features.limits.caller_limits import CallerLimits

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.core.calls import Gate
    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.core.running_call import RunningCall


class LimitsFeature(Feature):
    """The limits of callers, as a gate of calls."""

    settings = ("limits",)

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway)
        stored = gateway.stored.shared if gateway.stored is not None else None
        self._limits = CallerLimits(gateway.parts.shared, stored)
        self.offers = (self._limits,)

    @override
    def apply(self, configuration: Configuration) -> None:
        limits = configuration.deployment.gateway.limits
        self._limits.use(limits)
        self._gateway.metrics.expect_rules(limits.rule_names)

    @property
    @override
    def gates(self) -> Sequence[Gate]:
        return (self,) if self._limits.are_on else ()

    async def admit(self, call: RunningCall) -> None:
        """Admit a call, as a `Gate`."""
        call.permit = permit = await self._limits.begin(CallEntry.of(call.call))
        call.closers.append(lambda _, end: permit.end(end))

    @override
    async def measure(self) -> None:
        await self._limits.measure()
        self._gateway.metrics.show_limits(self._limits.ratios())

    @override
    def troubles(self) -> Iterable[Trouble]:
        limits, stored = self._gateway.configuration.deployment.gateway.limits, self._gateway.stored
        if limits.store is None or stored is None or stored.shared.counts:
            return
        away = limits.when_store_is_away
        yield Trouble("limits", {"database": "away", "calls": away}, f"limits without their database: {away}")
