"""The example as `make serve` has it: without a key, a network or anything beside its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.watching import watch
from tests.support.gateway import Project, running

TEMPLATE = Path(__file__).parents[2] / "agents.example.yaml"


async def test_the_declared_agent_answers_by_the_agent_that_it_may_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PALLAS_EXAMPLE_MODEL", "ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(TEMPLATE.parent))
    (tmp_path / "agents.yaml").write_text(TEMPLATE.read_text(encoding="utf-8"))
    project = Project(tmp_path, "no_package")
    project.edit(lambda document: document.update(gateway={"port": 0}))
    async with running(project) as served:
        guided = await watch(served.url("guide"), "What is a peer?")

    assert guided.text.startswith("I asked research: “I asked library: “Peer: ")
    assert "research/send_message: library/search: completed" in guided.progress
