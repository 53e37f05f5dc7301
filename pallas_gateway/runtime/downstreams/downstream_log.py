"""Logs changes of the state of one agent's downstreams, seen at its start and in calls."""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from pallas_gateway import child_processes
from pallas_gateway.runtime.downstreams.outages import Outages
from pallas_gateway.runtime.failures import one_line
from pallas_gateway.runtime.protocols import not_reported
from pallas_gateway.runtime.scope import current_scope

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pallas_gateway.runtime.downstreams.tool_filters import UnmatchedFilters
    from pallas_gateway.runtime.protocols import Downstream, OnDownstream

CONNECT_SECONDS = 5.0
"""Longest wait for a downstream to accept a connection at the start of its agent."""

_log = logging.getLogger("pallas.runtime")


class DownstreamLog:
    """Logs changes only, and a downstream that flaps once in `outage_seconds`.

    `filters` receive the listed tools, `report` each failure and the first success after it.
    """

    def __init__(
        self,
        agent: str,
        filters: UnmatchedFilters | None = None,
        *,
        outage_seconds: float = 60.0,
        report: OnDownstream = not_reported,
    ) -> None:
        self._agent = agent
        self._filters = filters
        self._outages = Outages(outage_seconds)
        self._report = report
        self._failed: set[str] = set()

    def went_down(self, name: str, why: str, *, of_caller: bool = False, for_others: str | None = None) -> None:
        """Log that `name` could not be reached, if that is new.

        `of_caller`: because it refused the caller's token. `for_others` is the reason that other callers may read, if
        that is not `why`.
        """
        self._failed.add(name)
        self._report(name, for_others or why, refused=of_caller)
        if (unsaid := self._outages.down(name, monotonic())) is not None:
            ids = {"agent": self._agent, "server": name, "error": why}
            extra = {**ids, "changes": unsaid} if unsaid else ids
            _log.warning("downstream unreachable", extra=extra)

    def is_up(self, name: str) -> None:
        """Log that `name` is back, if its outage was logged."""
        if name in self._failed:
            self._failed.remove(name)
            self._report(name, None)
        if self._outages.up(name):
            _log.info("downstream available again", extra={"agent": self._agent, "server": name})

    def listed(self, name: str, tools: Iterable[str]) -> None:
        """Compare the tools that `name` offers to callers like that of the current call with the agent's filters."""
        if self._filters is not None:
            self._filters.listed(name, tools, current_scope.get().questions.modes)

    async def look_for(self, downstreams: Iterable[Downstream]) -> None:
        """Log downstreams whose program is not installed or whose port accepts no connection.

        For downstreams that are not asked before a call: a program is started for the call, or requests require the
        caller's token.
        """
        await asyncio.gather(*(self._look_for(downstream) for downstream in downstreams))

    async def _look_for(self, downstream: Downstream) -> None:
        if downstream.program is not None and not downstream.program.is_installed:
            self.went_down(downstream.name, child_processes.not_found(downstream.program.command))
        if downstream.url is None or _is_behind_proxy(urlsplit(downstream.url)):
            return
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await _connect(urlsplit(downstream.url))
        except TimeoutError:
            self.went_down(downstream.name, f"no connection within {CONNECT_SECONDS:g} s")
        except (OSError, ValueError) as error:
            self.went_down(downstream.name, one_line(error))


async def _connect(url: SplitResult) -> None:
    port = url.port or (443 if url.scheme == "https" else 80)
    _, writer = await asyncio.open_connection(url.hostname, port)
    writer.close()


def _is_behind_proxy(url: SplitResult) -> bool:
    """True if requests use a proxy of the environment; the host may be known only to the proxy."""
    proxies = getproxies()
    return bool({url.scheme, "all"} & proxies.keys()) and not proxy_bypass(url.hostname or "")
