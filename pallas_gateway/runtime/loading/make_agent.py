"""Makes the `FastAgent` of an agent: imports its module, or builds it from its declaration."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import contextmanager
from copy import copy
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from fast_agent.core.core_app import Core

from pallas_gateway.config.loading.fastagent_file import settings_files
from pallas_gateway.daemon_threads import begin
from pallas_gateway.errors import AgentStartError
from pallas_gateway.file_stamps import have_changed, stamps
from pallas_gateway.limits import RuntimeLimits
from pallas_gateway.runtime.failures import start_reason
from pallas_gateway.runtime.loading.agent_choice import parts_of, served_agent
from pallas_gateway.runtime.loading.declared import files_of, make, missing_files
from pallas_gateway.runtime.loading.importer import Imports

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fast_agent.core.fastagent import FastAgent

    from pallas_gateway.file_stamps import Files
    from pallas_gateway.runtime.protocols import AgentSpec, Declared


class AgentFactory:
    """Makes the agents of one project, and knows the files that each was made of."""

    def __init__(
        self,
        config_file: Path | None,
        folder: Path | None = None,
        on_slow_import: Callable[[str, float], object] | None = None,
        limits: RuntimeLimits | None = None,
    ) -> None:
        """The arguments are those of `FastAgentRuntime`."""
        self._config_file = config_file
        self._limits = limits or RuntimeLimits()
        self._imports = Imports(settings_files(config_file), folder, on_slow_import, self._limits)
        self._arguments: WeakKeyDictionary[FastAgent, Namespace] = WeakKeyDictionary()  # before their first start
        self._starts: Counter[str] = Counter()
        self._files: WeakKeyDictionary[FastAgent, Files] = WeakKeyDictionary()

    async def make(self, spec: AgentSpec, *, reread: bool = False) -> FastAgent:
        """Make the agent of `spec` without starting it; see `Runtime.start`.

        Raises:
            AgentStartError: its module or declaration is faulty.
        """
        if spec.declared is not None:
            return await self._make_declared(spec, spec.declared)
        watched = stamps(spec.watch)
        if missing := missing_files(spec):
            error = AgentStartError("; ".join(what for _, what in missing), reason="bad_declaration", places=missing)
            _watch(error, watched)
            raise error
        module = spec.module or ""
        imported = await self._imports.load_fast(module, spec.watch, reread=reread)
        try:
            fast = await self._for_start(imported, spec)
        except AgentStartError as error:
            self._imports.watch(module, error)
            raise
        self._files[fast] = {**self._imports.files_behind(imported), **watched}
        return fast

    @contextmanager
    def starting(self, spec: AgentSpec) -> Iterator[None]:
        """Count a start of a module as long as its agent exists."""
        module = spec.module or ""
        self._starts[module] += 1
        try:
            yield
        finally:
            self._starts[module] -= 1

    def start_failed(self, spec: AgentSpec, failure: AgentStartError) -> None:
        """Handle an agent that was made but failed to start: `failure` reports when a file of the agent changes."""
        if spec.declared is not None:
            _watch(failure, self._stamps(spec, spec.declared))
        elif self._starts[spec.module or ""] > 1:  # the other starts keep the loaded module
            self._imports.watch(spec.module or "", failure)
        else:
            self._imports.start_failed(spec.module or "", failure)

    def files_behind(self, fast: FastAgent) -> Files:
        """All files of the project that an agent was made of, with their stamps when they were read."""
        return self._files[fast]

    def give_up(self) -> None:
        """Stop waiting for agents that are still being made."""
        self._imports.give_up()

    async def _for_start(self, fast: FastAgent, spec: AgentSpec) -> FastAgent:
        """The object to start: the module's own, or a copy of it with settings and a context of its own.

        The first start uses the module's own object, so that the module's code has the started one. An entry that
        chooses an agent gets that agent and those that it uses, without the servers of the others.

        Raises:
            AgentStartError: `no_agent`, or `start_failed` for settings that cannot be read.
        """
        served = served_agent(fast, spec)
        is_started = fast in self._arguments
        arguments = self._arguments.setdefault(fast, copy(fast.args))
        if not is_started and spec.agent is None:
            return fast
        try:
            another = await begin(partial(_copy, fast, arguments), name="agent-copy")
        except (Exception, SystemExit) as error:  # fast-agent exits if the file is not YAML
            raise AgentStartError(f"agent '{spec.name}' failed to start: {start_reason(error)}") from error
        if spec.agent is not None:
            parts = parts_of(fast.agents, served)
            another.agents = {name: data for name, data in fast.agents.items() if name in parts}
        return another

    async def _make_declared(self, spec: AgentSpec, declared: Declared) -> FastAgent:
        before = stamps((*files_of(declared), *spec.watch))
        watched = self._stamps(spec, declared)
        work = begin(partial(make, spec, declared, self._config_file), name="agent-making")
        try:
            fast = await asyncio.wait_for(work, self._limits.making_seconds)
        except TimeoutError:
            message = f"agent '{spec.name}' is still being made after {self._limits.making_seconds:.0f} s"
            raise AgentStartError(message, reason="bad_declaration") from None
        except AgentStartError as error:
            _watch(error, watched)
            raise
        self._files[fast] = before
        return fast

    def _stamps(self, spec: AgentSpec, declared: Declared) -> Files:
        return stamps((*files_of(declared), *spec.watch, *settings_files(self._config_file)))


def _watch(error: AgentStartError, files: Files) -> None:
    error.may_be_mended = partial(have_changed, files)


def _copy(fast: FastAgent, arguments: Namespace) -> FastAgent:
    another = copy(fast)
    another.args = copy(arguments)
    another.agents = dict(fast.agents)
    another._settings = another._load_instance_settings()
    another.app = Core(name=fast.name, settings=another._settings)
    return another
