"""Running and recent calls, and the end of one."""

from __future__ import annotations

from typing import Any, override

from pallas_gateway.core.feature import Feature


class RunningCallsFeature(Feature):
    """The routes of running calls."""

    @classmethod
    @override
    def api(cls) -> Any:
        from pallas_gateway.features.running_calls.api import CallsApi  # noqa: PLC0415  other commands need no web app

        return CallsApi
