"""Who has used what: counted at the end of each call, and read at `/api/v1/usage`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, override

from pallas_gateway.core.feature import Feature
from pallas_gateway.features.usage.usage_table import UsageTable

if TYPE_CHECKING:
    from pallas_gateway.calls.permit import CallEnd
    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.core.running_call import RunningCall
    from pallas_gateway.features.usage.usage_table import UsageSource


class UsageFeature(Feature):
    """Counts the calls of this process; of several workers, the parent has the sums."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway)
        self.source: UsageSource = gateway.parts.carriers.get("usage") or UsageTable()
        self.listeners = (self._count,)

    @classmethod
    @override
    def api(cls) -> Any:
        from pallas_gateway.features.usage.routes import UsageApi  # noqa: PLC0415  other commands need no web app

        return UsageApi

    def _count(self, call: RunningCall, end: CallEnd) -> None:
        self.source.add(*call.used(end.outcome))
