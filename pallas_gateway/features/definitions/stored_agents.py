"""Takes up agents of the database: adds them to the configuration of files, and has the gateway host what changed.

Neither files nor unchanged agents are looked at. A version that does not start leaves the earlier one in use; it is
tried again when a file behind the failure has changed, else ever less often.
"""

from __future__ import annotations

import logging
import math
from time import monotonic
from typing import TYPE_CHECKING, override

from pallas_gateway.core.offers import AgentSource
from pallas_gateway.core.supervisor import retry_seconds
from pallas_gateway.features.definitions.merging import Known, merged
from pallas_gateway.telemetry.redaction import cleaned

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.core.agent_set import Changes
    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.errors import AgentStartError
    from pallas_gateway.features.definitions.records import Snapshot
    from pallas_gateway.features.definitions.watch import AgentWatch
    from pallas_gateway.limits import LifeLimits

_log = logging.getLogger("pallas.reload")


class StoredAgents(AgentSource):
    """The agents of the database in one gateway."""

    def __init__(self, gateway: Gateway, watch: AgentWatch) -> None:
        self._gateway = gateway
        self._watch = watch
        self._retries = _Retries(gateway.limits.lives)
        self._taken: Snapshot | None = None
        self._known = Known()
        self._claimed: frozenset[str] = frozenset()
        self.changed = watch.changed

    async def load(self, files: Configuration) -> None:
        """Host the agents before the first ones are started. Without the database they follow when it is back."""
        await self._watch.look(self._gateway.limits.database.first_try_seconds)
        if self._watch.snapshot is not None:
            await self.apply(files)

    @property
    @override
    def is_loaded(self) -> bool:
        return self._watch.is_loaded

    @property
    @override
    def is_away(self) -> bool:
        return self._watch.is_away

    @override
    async def until_applied(self) -> bool:
        return await self._watch.until_applied()

    @property
    @override
    def retry_pause(self) -> float | None:
        return self._gateway.limits.lives.watch_seconds if self._retries.failures else None

    @override
    async def retry(self, files: Configuration) -> bool:
        return self._retries.are_due and await self.apply(files, self._retries.failures.keys())

    @override
    async def apply(self, files: Configuration, again: Collection[str] = ()) -> bool:
        """Host the agents of the database and those of `files`; return True if there were changes.

        `again` are started although they are the same.
        """
        try:
            changes = await self._gateway.apply(self.beside(files), again)
        except Exception:  # noqa: BLE001  the gateway continues to serve
            # The agents stay as they are.
            _log.exception("unexpected error while taking up agents of the database")
            self._count("error")
            self._note_applied()
            return False
        self.applied(changes)
        named = {"added": changes.added, "changed": changes.changed, "removed": changes.removed}
        if extra := {kind: ", ".join(agents) for kind, agents in named.items() if agents}:
            # By `added`, `changed` and `removed`.
            _log.info("agents of the database changed", extra=extra)
        if extra or (changes.kept_back and not again):  # a retry that fails again is no other change
            self._count("error" if changes.kept_back else "ok")
        return bool(extra)

    @override
    def beside(self, files: Configuration) -> Configuration:
        self._taken = self._watch.snapshot
        return merged(files, self._taken, self._known) if self._taken is not None else files

    @override
    def applied(self, changes: Changes) -> None:
        before, agents = self._retries.failures, self._gateway.agents
        kept_back = {name: error for name, error in changes.kept_back.items() if agents[name].id}
        still = {name: error for name, error in before.items() if name in agents and agents[name].kept_back is not None}
        for name, error in kept_back.items():
            if name not in before or str(before[name]) != str(error):  # a retry that fails again is worth no line
                _log.error("agent not replaced", extra={"agent": name, "reason": cleaned(str(error))})
        self._retries.note({**still, **kept_back})
        self._note_claimed()
        self._gateway.metrics.stored_agents_kept_back.set(len(self._retries.failures))
        self._note_applied()

    def _note_claimed(self) -> None:
        """Log each agent whose name an agent of a file has, once while that is so."""
        claimed = self._gateway.configuration.claimed
        for name in sorted(claimed.keys() - self._claimed):
            extra = {"agent": name, "reason": claimed[name].refused}
            # It is not served.
            _log.warning("agent of the database has the name of an agent of agents.yaml", extra=extra)
        self._claimed = frozenset(claimed)

    def _note_applied(self) -> None:
        if self._taken is not None:
            if self._watch.snapshot is self._taken:  # else there are newer ones
                self.changed.clear()
            self._watch.applied(self._taken.number)

    def _count(self, outcome: str) -> None:
        self._gateway.metrics.stored_agent_changes.labels(outcome).inc()


class _Retries:
    """Versions that did not start, and when to try them again."""

    def __init__(self, limits: LifeLimits) -> None:
        self._limits = limits
        self.failures: Mapping[str, AgentStartError] = {}
        self._count = 0
        self._next_at = math.inf

    def note(self, failures: Mapping[str, AgentStartError]) -> None:
        self._count = self._count + 1 if failures.keys() == self.failures.keys() else 1
        self.failures = failures
        self._next_at = monotonic() + retry_seconds(self._count, self._limits)

    @property
    def are_due(self) -> bool:
        is_mended = (error.may_be_mended() for error in self.failures.values())
        return bool(self.failures) and (monotonic() >= self._next_at or any(is_mended))
