"""Shares one imported module between several entries of `agents.yaml`, and between versions of one entry."""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from fast_agent.core.core_app import Core

from pallas_gateway.errors import AgentStartError
from pallas_gateway.runtime.failures import start_reason
from pallas_gateway.runtime.loading.importer import in_thread
from pallas_gateway.runtime.loading.served import parts_of, served_agent

if TYPE_CHECKING:
    from argparse import Namespace

    from fast_agent.core.fastagent import FastAgent

    from pallas_gateway.runtime.protocols import AgentSpec


class SharedModules:
    """Gives each start of a module's `FastAgent` its own settings and context; the agents are those of the module.

    The first start uses the module's own object, so that the module's code has the started object.
    """

    def __init__(self) -> None:
        self._arguments: WeakKeyDictionary[FastAgent, Namespace] = WeakKeyDictionary()  # before their first start

    async def for_start(self, fast: FastAgent, spec: AgentSpec) -> FastAgent:
        """The object to start: `fast` itself, or a copy for which fast-agent's settings are read again.

        An entry that chooses an agent gets that agent and those that it uses, without the servers of the others.

        Raises:
            AgentStartError: `no_agent`, or `start_failed` for settings that cannot be read.
        """
        served = served_agent(fast, spec)
        is_started = fast in self._arguments
        arguments = self._arguments.setdefault(fast, copy(fast.args))
        if not is_started and spec.agent is None:
            return fast
        try:
            another = await in_thread(partial(_copy, fast, arguments))
        except (Exception, SystemExit) as error:  # fast-agent exits if the file is not YAML
            raise AgentStartError(f"agent '{spec.name}' failed to start: {start_reason(error)}") from error
        if spec.agent is not None:
            parts = parts_of(fast.agents, served)
            another.agents = {name: data for name, data in fast.agents.items() if name in parts}
        return another


def _copy(fast: FastAgent, arguments: Namespace) -> FastAgent:
    another = copy(fast)
    another.args = copy(arguments)
    another.agents = dict(fast.agents)
    another._settings = another._load_instance_settings()
    another.app = Core(name=fast.name, settings=another._settings)
    return another
