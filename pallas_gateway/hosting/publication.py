"""The time at which the registry says that the agents of files were updated: the same at every process.

Workers load a configuration one after the other, and replicas at their own times. The first process that loads it sets
the time, by a digest of the configuration; the database knows it for replicas, the parent for its workers.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from pallas_gateway.errors import GatewayError

if TYPE_CHECKING:
    from pallas_gateway.config.loading.configuration import Configuration

_PATIENCE_SECONDS = 3.0
_EPOCH = datetime.fromtimestamp(0, UTC)
_log = logging.getLogger("pallas.reload")


class LoadTimes(Protocol):
    """When configurations were loaded first."""

    async def first(self, digest: str, after: datetime | None) -> datetime:
        """Return the time at which the first process has loaded a configuration; now, if this one is the first.

        Args:
            digest: of the configuration.
            after: the time of the configuration that this process has used before, so that one that comes back is new.

        Raises:
            DatabaseUnavailableError: they are in a database that cannot be used.
        """


class KnownLoadTimes:
    """The times that one process knows."""

    def __init__(self) -> None:
        self._known: dict[str, datetime] = {}

    def note(self, digest: str, after: datetime | None) -> datetime:
        known = self._known.get(digest)
        if known is None or (after is not None and known <= after):
            known = self._known[digest] = datetime.now(UTC)
        return known

    async def first(self, digest: str, after: datetime | None) -> datetime:
        return self.note(digest, after)


@dataclass(frozen=True, slots=True)
class Publication:
    """The digest of a configuration, its time, and whether other processes know the same time."""

    digest: str = ""
    at: datetime = _EPOCH
    is_shared: bool = True


async def published(configuration: Configuration, times: LoadTimes, before: Publication) -> Publication:
    """Return the publication of a configuration that is loaded now; `before` is that of the earlier one."""
    digest = digest_of(configuration)
    after = before.at if before.digest not in {"", digest} else None
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            return Publication(digest, await times.first(digest, after))
    except (GatewayError, TimeoutError) as error:
        _log.warning("load time not shared", extra={"why": str(error) or "no answer in time"})
        return Publication(digest, datetime.now(UTC), is_shared=False)


def digest_of(configuration: Configuration) -> str:
    """Return a digest of the agents of files, and of the settings that the registry shows; without secrets."""
    deployment = configuration.deployment.model_copy(update={"agents": configuration.file_agents})
    shown = deployment.model_dump(mode="json", exclude={"gateway": {"database", "state_keys", "host", "port"}})
    fastagent = configuration.fastagent
    capabilities = fastagent.model_capabilities
    of_models = [fastagent.default_model, capabilities.model_dump(mode="json") if capabilities is not None else None]
    text = json.dumps([shown, of_models], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
