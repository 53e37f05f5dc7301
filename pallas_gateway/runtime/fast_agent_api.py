"""fast-agent's functions that the gateway calls in other ways than fast-agent; `seams` checks their names."""

from __future__ import annotations

from contextlib import contextmanager
from copy import copy, deepcopy
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from weakref import proxy

import fast_agent.config
from fast_agent.core.fastagent import FastAgent
from fast_agent.llm import fastagent_llm
from mcp_types import LOG_LEVEL_META_KEY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from fast_agent.agents.llm_decorator import LlmDecorator
    from fast_agent.config import Settings
    from fast_agent.core.harness import HarnessSession


def read_settings(config_file: Path | None) -> Settings:
    """Read fast-agent's settings as an agent module would; the process-wide settings do not change.

    Raises:
        Exception: any that fast-agent raises for a file that it cannot use.
    """
    return _read(config_file, no_home=True)


def use_settings(config_file: Path) -> Settings:
    """Read the settings of a file and make them the process-wide ones."""
    settings = fast_agent.config._settings = _read(config_file, no_home=False)
    return settings


def _read(config_file: Path | None, *, no_home: bool) -> Settings:
    path = str(config_file) if config_file else None
    module: Any = SimpleNamespace(config_path=path, _home_override=None, args=SimpleNamespace(no_home=no_home))
    return FastAgent._load_config(module)


@contextmanager
def asking_for_logs(meta: Mapping[str, Any]) -> Iterator[None]:
    """Request log messages with each tool call of the block, as servers of the 2026-07-28 era require; send `meta`."""
    token = fastagent_llm._mcp_metadata_var.set({LOG_LEVEL_META_KEY: "info", **meta})
    try:
        yield
    finally:
        fastagent_llm._mcp_metadata_var.reset(token)


async def use_model(agent: LlmDecorator, spec: str) -> None:
    """Set an agent's model for one call, on a copy of its configuration, which all calls share."""
    agent.config = copy(agent.config)
    agent._default_request_params = agent.config.default_request_params = deepcopy(agent._default_request_params)
    await agent.set_model(spec)


def break_cycles(session: HarnessSession) -> None:
    """Break the reference cycles of an ended instance, so that its objects are freed without a garbage collection.

    A cycle that a next version of fast-agent adds only costs CPU; a test counts the objects that a call leaves.
    """
    app: Any = session.agent_app
    for name in vars(app):
        if name.endswith("_callback"):  # these refer to the app, and only fast-agent's own user interfaces call them
            setattr(app, name, None)
    agents: Iterable[Any] = app.registered_agents().values()
    for agent in agents:
        agent.__dict__.update(tool_runner_hooks=None, _agent_registry=None)
        if (search := getattr(agent, "_codex_web_search", None)) is not None:
            search.agent = proxy(agent)
    if (record := getattr(session, "_record", None)) is not None:
        record.session = None
