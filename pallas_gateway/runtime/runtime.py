"""The `Runtime` on fast-agent: starts agents, each with a harness of its own."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pallas_gateway.changes.registry import registry
from pallas_gateway.errors import AgentStartError
from pallas_gateway.identity.token_exchange import TokenExchanger
from pallas_gateway.limits import RuntimeLimits
from pallas_gateway.runtime import fast_agent_api, preparation
from pallas_gateway.runtime.downstreams.listings.listing_cache import ListingCache
from pallas_gateway.runtime.downstreams.programs.program_pool import Programs
from pallas_gateway.runtime.failures import is_about_the_model, start_reason
from pallas_gateway.runtime.llm.loading import load_providers
from pallas_gateway.runtime.loading.fingerprint import AgentFingerprint, SettingsDigests
from pallas_gateway.runtime.loading.make_agent import AgentFactory
from pallas_gateway.runtime.protocols import AgentSpec
from pallas_gateway.runtime.settings.declared_models import declared_models, limit_answers
from pallas_gateway.runtime.settings.hosting import (
    declare_peers,
    forget_unset_placeholders,
    prepare_servers,
    settings_for_hosting,
    settings_of,
)
from pallas_gateway.runtime.settings.model_names import in_settings
from pallas_gateway.runtime.settings.providers import llm_providers
from pallas_gateway.runtime.settings.review import blamed_settings, review
from pallas_gateway.runtime.started_agent import StartedAgent, server_names

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from fast_agent.config import Settings
    from fast_agent.core.fastagent import FastAgent
    from fast_agent.core.harness import AgentHarness

    from pallas_gateway.config.loading.error_messages import Location
    from pallas_gateway.runtime.protocols import Declared, Downstream, LlmProvider

_log = logging.getLogger("pallas.runtime")
START_SECONDS = 60.0
"""Longest start of an agent after its import."""


class FastAgentRuntime:
    """Starts fast-agent agents; an async context manager that is left after the last agent."""

    def __init__(
        self,
        *,
        config_file: Path | None,
        folder: Path | None = None,
        on_slow_import: Callable[[str, float], object] | None = None,
        limits: RuntimeLimits | None = None,
    ) -> None:
        """Prepare nothing yet.

        Args:
            config_file: fast-agent's settings; None for those of the working directory.
            folder: the folder of `agents.yaml`, where modules may be besides the working directory.
            on_slow_import: called with a module that is slow to import and its time limit in seconds; None logs it.
            limits: None for the defaults.
        """
        self._config_file = config_file
        self._limits = limits or RuntimeLimits()
        self._factory = AgentFactory(config_file, folder, on_slow_import, self._limits)
        self._settings = SettingsDigests()
        self._exchanger = TokenExchanger()
        self._listings = ListingCache(self._limits.listings)
        self._programs = Programs(self._limits.programs)
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Check and prepare fast-agent.

        Raises:
            PlatformError: the installed fast-agent does not fit.
        """
        preparation.prepare()
        await self._open.enter_async_context(self._exchanger)
        await self._open.enter_async_context(self._programs)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Delete all exchanged tokens, end all programs and fast-agent's process-wide parts."""
        self._factory.give_up()
        await self._open.aclose()
        await registry().close()

    def llm_providers(self) -> tuple[LlmProvider, ...]:
        """The providers that preflight asks; none if fast-agent's settings cannot be read, which is logged."""
        try:
            settings = fast_agent_api.read_settings(self._config_file)
            forget_unset_placeholders(settings)
            return llm_providers(settings)
        except Exception as error:  # noqa: BLE001  only a warning: agents with unusable settings fail with their own reason
            _log.warning("LLM providers not checked", extra={"why": start_reason(error)})
            return ()

    def review(self, written: Mapping[str, object]) -> list[tuple[str, str]]:
        """All problems of fast-agent's files, whose values are `written`: pairs of a dotted key and its problem."""
        return review(written, self._config_file)

    def wrong_values_left_out(self, known: Sequence[Location]) -> AbstractContextManager[Sequence[object]]:
        """Start the agents of the block as if wrong values of fast-agent's files, and those at `known`, were absent.

        Gives a list that is empty after settings were read if only those at `known` are wrong.
        """
        from pallas_gateway.runtime.settings.valid_settings import wrong_values_left_out  # noqa: PLC0415  for `check`

        return wrong_values_left_out(self._config_file, known)

    async def problems_of(self, declared: Declared) -> Sequence[tuple[str, str]]:
        try:
            await self._factory.make(AgentSpec("agent", None, 1, 0, 0, None, {}, declared=declared))
        except AgentStartError as error:
            of_settings = [("model", in_settings(place)) for place in error.settings]
            return [*error.places, *of_settings] or [("", str(error))]
        return ()

    @asynccontextmanager
    async def start(self, spec: AgentSpec, *, reread: bool = False) -> AsyncIterator[StartedAgent]:
        with self._factory.starting(spec):
            fast = await self._made(spec, reread=reread)
            harness = fast.harness()
            try:
                runtime = await self._started(fast, spec, harness)
                _say_which_are_peers(spec.name, runtime.downstreams)
                try:
                    yield runtime
                finally:
                    await runtime.close()
            finally:
                await harness.__aexit__(None, None, None)  # also if it was entered only in part, or has been left

    async def _made(self, spec: AgentSpec, *, reread: bool) -> FastAgent:
        try:
            return await self._factory.make(spec, reread=reread)
        except AgentStartError as error:
            error.settings = blamed_settings(error)
            raise

    async def _started(self, fast: FastAgent, spec: AgentSpec, harness: AgentHarness) -> StartedAgent:
        try:
            async with asyncio.timeout(START_SECONDS):
                return await self._enter(fast, spec, harness)
        except (Exception, SystemExit) as error:
            blamed = blamed_settings(error, settings_of(fast))
            why = _start_failure(spec, error, blamed)
            places = () if blamed else _blamed_keys(spec, error, why)
            failure = AgentStartError(why, places=places, settings=blamed)
            self._factory.start_failed(spec, failure)
            raise failure from error

    async def _enter(self, fast: FastAgent, spec: AgentSpec, harness: AgentHarness) -> StartedAgent:
        settings = settings_for_hosting(fast, config_file=self._config_file)
        declare_peers(settings, spec.peer_servers)
        fingerprint = self._fingerprint(fast, spec, settings)
        downstreams = prepare_servers(settings, spec.peers)
        models = declared_models(fast, settings, spec.model_capabilities, spec.models)
        limit_answers(fast, settings, spec.model_capabilities)
        await load_providers(fast, settings, spec.models)
        fast.args.no_home = True
        fast.args.quiet = True
        await harness.__aenter__()
        runtime = StartedAgent(
            fingerprint,
            harness,
            fast,
            downstreams,
            self._exchanger,
            cache=self._listings,
            programs=self._programs,
            limits=self._limits,
            models=models,
        )
        await runtime.rehearse()
        runtime.ask_downstreams()
        return runtime

    def _fingerprint(self, fast: FastAgent, spec: AgentSpec, settings: Settings) -> AgentFingerprint:
        config_file = Path(fast.config_path) if fast.config_path else self._config_file
        servers = server_names(fast)
        configured = settings.mcp.servers if settings.mcp else {}
        addresses = frozenset((configured[name].url or "").rstrip("/") for name in servers & configured.keys())
        return AgentFingerprint(
            spec,
            self._factory.files_behind(fast),
            config_file,
            servers,
            addresses,
            self._settings.of(config_file, servers),
            self._settings,
        )


def _say_which_are_peers(agent: str, downstreams: Iterable[Downstream]) -> None:
    for downstream in downstreams:
        if downstream.peer is not None:
            extra = {"agent": agent, "server": downstream.name, "peer": downstream.peer}
            # The server is an agent of this gateway; at each start of the agent.
            _log.info("peer found", extra=extra)


def _blamed_keys(spec: AgentSpec, error: BaseException, why: str) -> tuple[tuple[str, str], ...]:
    if isinstance(error, AgentStartError):
        return error.places
    has_model = spec.declared is not None and spec.declared.model is not None
    return (("model", why),) if has_model and is_about_the_model(error) else ()


def _start_failure(spec: AgentSpec, error: BaseException, blamed: Iterable[tuple[str, str]]) -> str:
    if isinstance(error, TimeoutError):
        return f"agent '{spec.name}' did not start within {START_SECONDS:.0f} s"
    if isinstance(error, AgentStartError):
        return str(error)
    why = "; ".join(map(in_settings, blamed)) or start_reason(error)
    return f"agent '{spec.name}' failed to start: {why}"
