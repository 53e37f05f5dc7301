"""What the gateway asks of fast-agent in a way of its own; `platform` checks the names at start."""

from __future__ import annotations

from contextlib import contextmanager
from copy import copy, deepcopy
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

import fast_agent.config
from fast_agent.llm import fastagent_llm
from mcp_types import LOG_LEVEL_META_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fast_agent.agents.llm_decorator import LlmDecorator
    from fast_agent.config import Settings
    from fast_agent.core.fastagent import FastAgent
    from fast_agent.core.harness import AgentHarness


def read_settings(config_file: Path | None) -> Settings:
    """fast-agent's settings as an agent module would find them now; its process-wide ones stay as they are.

    Raises:
        Exception: whatever fast-agent raises over a file it cannot use.
    """
    return get_settings_apart(str(config_file) if config_file else None, no_home=True)


def use_settings(config_file: Path) -> Settings:
    """The settings of a named file, which are the process-wide ones from here on."""
    settings = fast_agent.config._settings = get_settings_apart(str(config_file))
    return settings


def get_settings_apart(config_path: Any, **options: Any) -> Settings:
    """`get_settings` on a copy of its module's names: it clears the process-wide settings, which calls look at."""
    original = fast_agent.config.get_settings
    apart = FunctionType(original.__code__, {**vars(fast_agent.config), "_settings": None})
    apart.__defaults__, apart.__kwdefaults__ = original.__defaults__, original.__kwdefaults__
    return cast("Settings", apart(config_path, **options))


def keep_globals_when_leaving(fast: FastAgent) -> None:
    """Let this agent's harness be left without ending fast-agent's logging and context for all the others."""

    async def cleanup() -> None:
        """Nothing: `shut_down` does it once, for all."""

    # An instance attribute shadows the method; the harness calls `app.cleanup()` through the instance.
    fast.app.cleanup = cleanup


def load_no_other_cards(harness: AgentHarness) -> None:
    """Keep cards of fast-agent's home (`.fast-agent/agent-cards`) out: each harness would add them to its agents.

    A program that fast-agent runs itself does not get them either.
    """
    harness._load_environment_agent_cards = lambda: None  # type: ignore[method-assign]


@contextmanager
def asking_for_logs() -> Iterator[None]:
    """Tool calls made inside the block ask for log messages, as servers of the 2026-07-28 era want to be asked."""
    token = fastagent_llm._mcp_metadata_var.set({LOG_LEVEL_META_KEY: "info"})
    try:
        yield
    finally:
        fastagent_llm._mcp_metadata_var.reset(token)


async def use_model(agent: LlmDecorator, spec: str) -> None:
    """`set_model` writes into the agent's configuration, which all calls share: this one gets a copy of its own."""
    agent.config = copy(agent.config)
    agent._default_request_params = agent.config.default_request_params = deepcopy(agent._default_request_params)
    await agent.set_model(spec)
