"""An agent that stops takes logging and context away from all others."""

from pathlib import Path

import pytest
from fast_agent import context
from fast_agent.core.fastagent import FastAgent

from pallas_gateway.repairs.fast_agent import shared_context
from pallas_gateway.runtime import preparation


async def test_the_context_stays_as_long_as_the_gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preparation.prepare()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fastagent.config.yaml").write_text("default_model: passthrough\n")
    async with made("one").harness():
        async with made("two").harness():
            pass
        shared = context._global_context
        assert shared is not None
    assert context._global_context is shared
    await shared_context.close()
    assert context._global_context is None


def made(name: str) -> FastAgent:
    fast = FastAgent(name, parse_cli_args=False, quiet=True)
    fast.agent(name=name, instruction=f"You are {name}.")(nothing)
    return fast


async def nothing() -> None:
    """The function of a module's agent, which the gateway does not call."""
