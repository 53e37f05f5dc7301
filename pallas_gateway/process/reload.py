"""Reloads the configuration while calls run: that of files on request, agents of the database when they change.

A file with problems changes nothing. Settings that require a restart are logged and keep their values. A change of the
database reads no file, and a reload of files keeps the agents of the database as they were read last.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from pallas_gateway.config.loading.configuration import applicable
from pallas_gateway.config.loading.environment import DOTENV
from pallas_gateway.config.loading.fastagent_file import settings_files
from pallas_gateway.config.problems import ConfigurationError
from pallas_gateway.core.feature import check
from pallas_gateway.doors.http.app import create_app
from pallas_gateway.errors import GatewayError
from pallas_gateway.file_stamps import stamps
from pallas_gateway.process import certificates
from pallas_gateway.process.file_watch import FileWatch
from pallas_gateway.process.sockets import check_ports
from pallas_gateway.tasks import TaskOwner
from pallas_gateway.telemetry.redaction import cleaned

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Receive, Scope, Send

    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.core.agent_set import Changes
    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.doors.mcp.mcp_servers import McpServers
    from pallas_gateway.file_stamps import Files
    from pallas_gateway.process.hypercorn_server import HypercornServer
    from pallas_gateway.process.service_manager import ServiceManager

TIDY_SECONDS = 60.0
"""After so long without changes of the database, and without a running call, the process tidies up after them."""
SERVES = "the configuration before"
_log = logging.getLogger("pallas.reload")


@dataclass(frozen=True, slots=True)
class Reloads:
    """Settings and signals of reloads.

    Attributes:
        read: returns the present configuration, or raises `ConfigurationError`.
        asked: set to request a reload.
        watch: request one when a file of the project changes.
        after: called after each reload that has changed agents; it may take a moment.
    """

    read: Callable[[], Configuration]
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    watch: bool = False
    after: Callable[[], None] = lambda: None


class SwappableApp:
    """The ASGI app of every port, which a reload replaces between two requests."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._latest = -inf

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request by the present app."""
        self._latest = monotonic()
        try:
            await self.app(scope, receive, send)
        finally:
            self._latest = monotonic()

    async def wait_for_silence(self, seconds: float) -> None:
        """Return once no request has begun or ended for so long, at the latest after twice that time."""
        end = monotonic() + 2 * seconds
        while (left := min(end, self._latest + seconds) - monotonic()) > 0:  # noqa: ASYNC110  no event for silence
            await asyncio.sleep(left)


class Reloader:
    """Reloads one gateway, one reload or change of the database after the other."""

    def __init__(  # noqa: PLR0913, PLR0917  the parts of a running server
        self,
        gateway: Gateway,
        servers: McpServers,
        reloads: Reloads,
        entrance: SwappableApp,
        listening: HypercornServer,
        service: ServiceManager,
        files: Configuration | None = None,
    ) -> None:
        """`entrance` is the app of the ports of `listening`; `files` is the configuration of files."""
        self._gateway = gateway
        self._source = gateway.agent_source
        self._of_files = files or gateway.configuration
        self._servers = servers
        self._reloads = reloads
        self._entrance, self._listening = entrance, listening
        self._service = service
        self._kept_back = False
        self._is_untidy = False
        self._awaited = stamps(gateway.configuration.declared_files)
        self._watch = FileWatch(self._files, suspects_modules=lambda: self._kept_back)
        gateway.when_outdated(reloads.asked.set)

    async def run(self) -> None:
        while True:
            await self._until_asked()
            if self._reloads.asked.is_set():
                await self._reload_files()
            elif self._source is not None and self._source.changed.is_set():
                self._is_untidy |= await self._source.apply(self._of_files)
            elif self._source is not None and self._source.retry_pause is not None:
                self._is_untidy |= await self._source.retry(self._of_files)
            elif not self._gateway.calls.started:  # it stops all calls for a moment
                self._reloads.after()
                self._is_untidy = False

    async def watch_files(self) -> None:
        """Request a reload whenever a file of the project changes, until cancelled."""
        await self._gateway.wait_until_tried()  # the files of agents are known only then
        async for _ in self._watch.changes():
            self._reloads.asked.set()

    async def _until_asked(self) -> None:
        """Return when a reload is requested, the database has changes, or something may be tried again."""
        events = [self._reloads.asked, *([self._source.changed] if self._source is not None else [])]
        pause = self._source.retry_pause if self._source is not None else None
        if pause is None and self._is_untidy:
            pause = TIDY_SECONDS
        async with TaskOwner(close_seconds=0) as waiting:
            asked = [waiting.spawn(event.wait(), name="asked to reload") for event in events]
            await asyncio.wait(asked, timeout=pause, return_when=asyncio.FIRST_COMPLETED)

    async def _reload_files(self) -> None:
        self._reloads.asked.clear()
        self._service.reloading()
        problems = await self._reload()
        self._gateway.note_reload(problems)
        if self._gateway.all_tried:  # else `ready` follows when they were
            self._service.ready()
        self._watch.look_again()

    async def _reload(self) -> list[str]:
        """Reload; return why something keeps its earlier version."""
        try:
            wanted = await asyncio.to_thread(self._reloads.read)  # some hundred agents take a second
            check(wanted, self._gateway.feature_types)
            files, fixed = applicable(self._of_files, wanted)
            for key in fixed:
                _log.warning("setting requires a restart", extra={"key": key})
            self._awaited = stamps(files.declared_files)
            check_ports(self._of_files, files)
            changes = await self._apply(files if self._source is None else self._source.beside(files))
        except ConfigurationError as error:
            problems = [str(problem) for problem in error.problems]
            for problem in problems:
                # One record for each.
                _log.error("configuration problem", extra={"problem": problem})
            _log.error("configuration not reloaded", extra={"problems": len(problems), "serves": SERVES})
            return problems
        except GatewayError as error:
            _log.error("configuration not reloaded", extra={"why": str(error), "serves": SERVES})
            return [str(error)]
        except Exception:  # noqa: BLE001  the gateway continues to serve
            _log.exception("unexpected error while reloading")
            return ["unexpected error while reloading; the log has its traceback"]
        self._of_files = files
        if self._source is not None:
            self._source.applied(changes)
            of_files = {name: why for name, why in changes.kept_back.items() if not self._gateway.agents[name].id}
            changes = replace(changes, kept_back=of_files)
        _log_changes(changes)
        if changes.added or changes.changed or changes.removed:
            self._reloads.after()
        self._kept_back = bool(changes.kept_back)
        return [f"agent '{agent}' was not replaced: {reason}" for agent, reason in changes.kept_back.items()]

    async def _apply(self, configuration: Configuration) -> Changes:
        use_certificate = self._listening.config.load_tls(configuration)  # first, because it may fail
        changes = await self._gateway.reload(configuration)
        # No `await` before the app is replaced as well.
        self._entrance.app = create_app(self._gateway, self._servers, self._listening.listeners.routes)
        use_certificate()
        certificates.measure_end(configuration, self._gateway.metrics)
        return changes

    def _files(self) -> Files:
        configuration = self._gateway.configuration
        files = [configuration.path, Path.cwd() / DOTENV, *settings_files(configuration.named_fastagent_file)]
        now = stamps((*files, *(configuration.tls_files or ())))
        declared = dict.fromkeys(configuration.declared_files)  # a file that a pattern matches since then is a change
        return {**declared, **self._awaited, **self._gateway.files_behind_agents(), **now}


def _log_changes(changes: Changes) -> None:
    for agent, reason in changes.kept_back.items():
        _log.error("agent not replaced", extra={"agent": agent, "reason": cleaned(str(reason))})
    by_kind = {"added": changes.added, "changed": changes.changed, "removed": changes.removed}
    named = {kind: ", ".join(agents) for kind, agents in by_kind.items() if agents}
    if changes.kept_back:
        # `kept`: agents that keep their earlier version; also `added`, `changed` and `removed`.
        _log.warning("configuration partly reloaded", extra={**named, "kept": ", ".join(changes.kept_back)})
    else:
        # By `added`, `changed` and `removed`.
        _log.info("configuration reloaded", extra=named)
