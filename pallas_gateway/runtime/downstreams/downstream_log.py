"""What is found out about the downstreams of one agent, at start as well as in calls, and logged on each change."""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from pallas_gateway.runtime.downstreams.outages import Outages
from pallas_gateway.runtime.failures import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pallas_gateway.runtime.downstreams.tool_filters import UnmatchedFilters
    from pallas_gateway.runtime.protocols import Downstream

CONNECT_SECONDS = 5.0
"""How long a downstream may take to accept a connection at the start of its agent."""

_log = logging.getLogger("pallas.runtime")


class DownstreamLog:
    """Logs changes only; one that flaps is logged once in `outage_seconds`. `filters` learn which tools there are."""

    def __init__(self, agent: str, filters: UnmatchedFilters | None = None, *, outage_seconds: float = 60.0) -> None:
        self._agent = agent
        self._filters = filters
        self._outages = Outages(outage_seconds)

    def went_down(self, name: str, why: str) -> None:
        """Log that `name` could not be connected to, unless that is known."""
        if (unsaid := self._outages.down(name, monotonic())) is not None:
            ids = {"agent": self._agent, "server": name, "error": why}
            extra = {**ids, "changes": unsaid} if unsaid else ids
            _log.warning("downstream unreachable, calls go on without its tools", extra=extra)

    def is_up(self, name: str) -> None:
        """Log that `name` is back, if its outage was logged."""
        if self._outages.up(name):
            _log.info("downstream is back", extra={"agent": self._agent, "server": name})

    def listed(self, name: str, tools: Iterable[str]) -> None:
        """Compare the tools that `name` offers with the agent's filters."""
        if self._filters is not None:
            self._filters.listed(name, tools)

    async def look_for(self, downstreams: Iterable[Downstream]) -> None:
        """Log those whose program is not installed or whose port takes no connection.

        For downstreams that are asked nothing before a call: a program is started for the call, and a request would
        have to carry the caller's token.
        """
        await asyncio.gather(*(self._look_for(downstream) for downstream in downstreams))

    async def _look_for(self, downstream: Downstream) -> None:
        if downstream.program is not None and not downstream.program.is_installed:
            self.went_down(downstream.name, f"command '{downstream.program.command}' not found")
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
    """True if requests go by a proxy of the environment, and then perhaps only that knows the host."""
    proxies = getproxies()
    return bool({url.scheme, "all"} & proxies.keys()) and not proxy_bypass(url.hostname or "")
