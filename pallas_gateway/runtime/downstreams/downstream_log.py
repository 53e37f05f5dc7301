"""Logs changes of the state of one agent's downstreams, seen by listings and calls."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from pallas_gateway.calls.tool_names import renamed_tools
from pallas_gateway.runtime.protocols import not_reported
from pallas_gateway.runtime.scope import current_scope

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pallas_gateway.runtime.downstreams.tool_filters import FilterReport
    from pallas_gateway.runtime.protocols import OnDownstream

_MOST_LISTED = 20
"""Tools in one log line."""
_MOST_SAID = 1000

_log = logging.getLogger("pallas.runtime")


class DownstreamLog:
    """Logs changes only, and a downstream that flaps once in `outage_seconds`.

    `filters` receive the listed tools, `report` each failure and the first success after it.
    """

    def __init__(
        self,
        agent: str,
        filters: FilterReport | None = None,
        *,
        outage_seconds: float = 60.0,
        report: OnDownstream = not_reported,
    ) -> None:
        self._agent = agent
        self._filters = filters
        self._outages = Outages(outage_seconds)
        self._report = report
        self._failed: set[str] = set()
        self._said: dict[str, set[str]] = {}

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
            # On the change only: calls go on without its tools. `its tools cannot be listed: …`: it can be reached.
            _log.warning("downstream unreachable", extra=extra)

    def is_up(self, name: str) -> None:
        """Log that `name` is back, if its outage was logged."""
        if name in self._failed:
            self._failed.remove(name)
            self._report(name, None)
        if self._outages.up(name):
            _log.info("downstream available again", extra={"agent": self._agent, "server": name})

    def on_listed(self, name: str, tools: Collection[str], faults: Iterable[str] = ()) -> None:
        """Compare the tools that `name` offers to callers like that of the current call with the agent's filters.

        Log each tool once that was left out (`faults`), and each that the model knows by another name.
        """
        scope = current_scope.get()
        if self._filters is not None:
            self._filters.on_listed(name, tools, scope.questions.modes)
        renamed = [f"{tool} as {shown}" for tool, shown in renamed_tools(name, tools, scope.servers).items()]
        ids = {"agent": self._agent, "server": name}
        if left_out := self._unsaid(name, faults):
            # See [lists](health.md#what-downstreams-are-asked); each once.
            _log.warning("downstream tools left out", extra={**ids, "problems": left_out})
        if renamed := self._unsaid(name, renamed):
            # Real names with the model's; each once.
            _log.info("downstream tools renamed", extra={**ids, "tools": renamed})

    def _unsaid(self, name: str, sentences: Iterable[str]) -> list[str]:
        """The first of `sentences` that were not logged; none after `_MOST_SAID`."""
        said = self._said.setdefault(name, set())
        if len(said) >= _MOST_SAID:
            return []
        unsaid = [one for one in sentences if one not in said][:_MOST_LISTED]
        said.update(unsaid)
        return unsaid


@dataclass(slots=True)
class _Server:
    is_down: bool = False
    is_said: bool = True  # that it is down
    said_at: float = float("-inf")
    unsaid: int = 0


class Outages:
    """The state of each server; decides which changes are logged, at most one pair a minute for each.

    Times are seconds of one monotonic clock.
    """

    def __init__(self, quiet_seconds: float = 60.0) -> None:
        """Of a server that flaps, one outage is logged in `quiet_seconds`."""
        self._quiet_seconds = quiet_seconds
        self._servers: dict[str, _Server] = {}

    def down(self, name: str, now: float) -> int | None:
        """Record an outage. Return None if it is not logged, else the number of changes before it that were not."""
        server = self._servers.setdefault(name, _Server())
        if not server.is_down:
            server.is_down, server.is_said = True, False
            server.unsaid += 1
        if server.is_said or now - server.said_at < self._quiet_seconds:
            return None
        before, server.unsaid = server.unsaid - 1, 0
        server.is_said, server.said_at = True, now
        return before

    def up(self, name: str) -> bool:
        """Record a connection. Return True if it is logged, which is so if the outage was."""
        server = self._servers.get(name)
        if server is None or not server.is_down:
            return False
        server.is_down = False
        server.unsaid += not server.is_said
        return server.is_said
