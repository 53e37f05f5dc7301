"""The example as `make serve` has it: without a key, a network or anything beside its file."""

from __future__ import annotations

import asyncio
import shlex
import signal
from pathlib import Path

import pytest

from tests.support.commands import READY_SECONDS, Ran, started
from tests.support.gateway import Project, running
from tests.support.scripted_llm import scripted_llm
from tests.support.terminal import at_terminal
from tests.support.watching import watch

README = Path(__file__).parents[2] / "README.md"
TEMPLATE = Path(__file__).parents[2] / "agents.example.yaml"


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    for name in ("PALLAS_EXAMPLE_MODEL", "ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(TEMPLATE.parent))
    (tmp_path / "agents.yaml").write_text(TEMPLATE.read_text(encoding="utf-8"))
    project = Project(tmp_path, "no_package")
    project.edit(lambda document: document.update(gateway={"port": 0}))
    return project


async def test_the_declared_agent_answers_by_the_agent_that_it_may_call(example: Project) -> None:
    async with running(example) as served:
        guided = await watch(served.url("guide"), "What is a peer?")

    assert guided.text.startswith("A peer is an agent ")
    assert guided.text.endswith("\n\nSource: library.")
    assert "research/send_message: library/search: completed" in guided.progress


async def test_the_command_of_the_readme_asks_for_a_form_and_an_approval_at_the_terminal(
    example: Project, tmp_path: Path
) -> None:
    (command,) = [line for line in README.read_text().splitlines() if line.startswith("$ pallas-gateway call desk")]
    _, _, *arguments = shlex.split(command)
    async with (
        running(example) as served,
        at_terminal([*arguments, "--url", served.base_url], tmp_path) as terminal,
    ):
        await terminal.shows("bookings: Who is the room for?")
        await terminal.shows("Name (who comes; 1 to 40 characters):")
        await terminal.enter("Ada")
        await terminal.shows("People (1 to 8) [2]:")
        await terminal.enter("9")
        await terminal.shows("(People must be at most 8)")
        await terminal.shows("People (1 to 8) [2]:")
        await terminal.enter("")
        await terminal.shows("1. garden [default]")
        await terminal.shows("Room (1-2) [1]:")
        await terminal.enter("2")
        await terminal.shows("desk: May the tool bookings/cancel run with these arguments?")
        await terminal.shows("Decision (1-3, y: once, n: deny):")
        await terminal.enter("once")
        await terminal.shows("The library room is booked for Ada (2 people).")
        await terminal.shows("Cancelled old bookings.")
        assert await terminal.ends() == 0


async def test_with_a_base_url_preflight_and_calls_ask_that_server_by_chat_completions(tmp_path: Path) -> None:
    def serve_and_call(base_url: str) -> Ran:
        environ = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": base_url, "PYTHONPATH": str(TEMPLATE.parent)}
        unset = {"ANTHROPIC_API_KEY": "", "PALLAS_EXAMPLE_MODEL": ""}
        with started(["serve", "--config", str(TEMPLATE), "--port", "0"], tmp_path, environ=environ | unset) as program:
            program.wait_for("Try:")
            with started(["call", "research", "Hello", "--url", program.url], tmp_path) as call:
                ran = call.end(READY_SECONDS)
            program.signal(signal.SIGTERM)
            program.end()
            return ran

    async with scripted_llm(models=["gpt-6.1-sol"]) as llm:
        ran = await asyncio.to_thread(serve_and_call, llm.base_url)

    assert (ran.code, ran.out) == (0, "heard: Hello\n")
    assert [request.model for request in llm.requests] == ["gpt-6.1-sol"]
    assert {headers["authorization"] for headers in llm.model_list_headers} == {"Bearer k"}
