"""Agents of fast-agent's home join every agent."""

from pathlib import Path

import pytest
from fast_agent.core.fastagent import FastAgent

from pallas_gateway.runtime import preparation


async def test_a_card_in_the_home_is_no_agent_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preparation.prepare()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fastagent.config.yaml").write_text("default_model: passthrough\n")
    cards = tmp_path / ".fast-agent" / "agent-cards"
    cards.mkdir(parents=True)
    (cards / "other.md").write_text("---\nname: other\n---\nYou are another agent.\n")
    fast = FastAgent("mine", parse_cli_args=False, quiet=True)
    fast.agent(name="mine", instruction="You are mine.")(nothing)
    async with fast.harness():
        assert list(fast.agents) == ["mine"]


async def nothing() -> None:
    """The function of a module's agent, which the gateway does not call."""
