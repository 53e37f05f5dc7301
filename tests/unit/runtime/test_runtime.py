"""The `Runtime` on fast-agent, as far as it starts no agent."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pallas_gateway.runtime.protocols import Declared
from pallas_gateway.runtime.runtime import FastAgentRuntime


@pytest.fixture
async def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FastAgentRuntime]:
    monkeypatch.chdir(tmp_path)
    for name in ("FAST_AGENT_MODEL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    write(tmp_path, default_model="passthrough", mcp={"servers": {"notes": {"url": "https://notes.example/mcp"}}})
    async with FastAgentRuntime(config_file=None) as running:
        yield running


def write(folder: Path, **settings: Any) -> None:
    (folder / "fastagent.config.yaml").write_text(yaml.safe_dump(settings))


@pytest.mark.parametrize(
    ("model", "servers", "places"),
    [
        (None, ("notes",), {}),
        ("playback", (), {}),
        ("no-such.model", ("notes", "nodes"), {"model": "no such model", "servers.1": "no server 'nodes'"}),
    ],
)
async def test_the_problems_of_a_declared_agent_are_known_without_a_start(
    runtime: FastAgentRuntime, model: str | None, servers: tuple[str, ...], places: dict[str, str]
) -> None:
    found = dict(await runtime.problems_of(Declared(instruction="-", model=model, servers=servers)))
    assert found.keys() == places.keys()
    assert all(says in found[path] for path, says in places.items())


async def test_a_default_model_that_cannot_be_used_is_a_problem_of_the_model(
    runtime: FastAgentRuntime, tmp_path: Path
) -> None:
    write(tmp_path, default_model="no-such.model")
    [(path, why)] = await runtime.problems_of(Declared(instruction="-"))
    assert path == "model"
    assert why.startswith("in default_model of fastagent.config.yaml, ")


async def test_settings_that_cannot_be_read_are_a_problem_of_no_key(runtime: FastAgentRuntime, tmp_path: Path) -> None:
    (tmp_path / "fastagent.config.yaml").write_text("a: [")
    [(path, why)] = await runtime.problems_of(Declared(instruction="-"))
    assert path == ""
    assert "failed to start" in why
