"""Conversations in the database, for clients without storage of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, override

from pallas_gateway.core.feature import Feature

if TYPE_CHECKING:
    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.core.gateway import Gateway


class ThreadsFeature(Feature):
    """The threads of one gateway.

    Attributes:
        threads: stored ones; a part of the database.
        live: turns whose calls run in this process; they outlive a reload.
    """

    settings = ("keep_tool_results", "thread_expire_days", "threads_max_bytes")
    needs_database = True

    def __init__(self, gateway: Gateway) -> None:
        from pallas_gateway.features.threads.http.live_turn import LiveExchanges  # noqa: PLC0415  imported only where needed
        from pallas_gateway.features.threads.service import Threads  # noqa: PLC0415  an extra

        super().__init__(gateway)
        stored = gateway.required_stored()
        self.threads = Threads(stored.database, stored.leases, stored.limits.threads, stored.long_calls)
        self.live = LiveExchanges(gateway.turns_and_nested)
        self.offers = (self.threads,)
        stored.database.add(self.threads)

    @classmethod
    @override
    def api(cls) -> Any:
        from pallas_gateway.features.threads.http.api import ThreadsApi  # noqa: PLC0415  as above

        return ThreadsApi

    @classmethod
    @override
    def why_off(cls, configuration: Configuration, path: str) -> str | None:
        if not f"{path}/".startswith("/api/v1/") or configuration.deployment.gateway.database is not None:
            return None
        setting = "`gateway.database` in agents.yaml, the URL of a database,"
        return f"threads and agents of the database are off; {setting} enables them"

    @override
    def apply(self, configuration: Configuration) -> None:
        gateway = configuration.deployment.gateway
        self.threads.quota.max_bytes = gateway.threads_max_bytes
        self.threads.expire_days = gateway.thread_expire_days
