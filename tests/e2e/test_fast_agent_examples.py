"""fast-agent's own example programs and cards, read from the installed package and served as they are.

They are not changed: agents.yaml names them, their own fast-agent.yaml is in the project, and a secrets file directs
every provider to a scripted model. The programs behind their MCP servers (`npx`, `uvx`, `docker`) are not installed.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fast_agent
import pytest
import yaml

from tests.support.calling import EACH_VERSION, ask, health
from tests.support.dialects import Asked, PolyglotLlm, polyglot_llm
from tests.support.gateway import Agent, Project, Running, declare_project, running, write_project
from tests.support.pairs import pairs
from tests.support.scripted_llm import LlmRequest, ScriptedLlm, Turn, call_tools, say, scripted_llm

pytestmark = pytest.mark.usefixtures("no_programs")

EXAMPLES = Path(fast_agent.__file__).parent / "resources" / "examples"
CARDS = EXAMPLES / "hf-toad-cards"
CHOSEN = {"orchestrator": "orchestrate"}
"""Programs with several agents that no other one uses: here `author`, too."""
BOTH_CHILDREN = "summary of: default said, default said"
PROGRAMS: Mapping[str, Mapping[str, tuple[str, set[str]]]] = {
    "workflows": {
        "agents_as_tools_extended": (BOTH_CHILDREN, {"default"}),
        "agents_as_tools_simple": (BOTH_CHILDREN, {"default"}),
        "chaining": ("default said", {"default"}),
        "evaluator": ("gpt-5-nano said", {"gpt-5-nano", "o3-mini"}),
        "human_input": ("default said", {"default"}),
        "maker": ("claude-haiku said", {"claude-haiku"}),
        "orchestrator": ("claude-sonnet said", {"claude-sonnet", "gpt-4.1"}),
        "parallel": ("default said", {"default", "claude-sonnet"}),
        "router": ("claude-haiku said", {"claude-sonnet", "claude-haiku"}),
    },
    "researcher": {
        "researcher": ("default said", {"default"}),
        "researcher-eval": ("default said", {"default", "claude-sonnet"}),
        "researcher-imp": ("claude-sonnet said", {"default", "claude-sonnet"}),
    },
    "data-analysis": {
        "analysis": ("claude-sonnet said", {"claude-sonnet"}),
        "analysis-campaign": ("claude-sonnet said", {"claude-sonnet", "gpt-4.1"}),
    },
}
"""Part of each program's answer, and the models that its agents ask, without their versions."""
NOT_THERE = re.compile(r"command '(npx|uvx|docker)' not found")


@pytest.fixture
def no_programs(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the programs that the examples name is installed: they would load others from the internet."""
    monkeypatch.setenv("PATH", str(tmp_path_factory.mktemp("no-programs")))


def default_model(request: LlmRequest) -> Turn:
    """Use each agent that is offered as a tool once, then sum up the results."""
    if request.tool_results:
        return say(f"summary of: {', '.join(request.tool_results.values())}")
    children = [tool for tool in request.tools if tool.startswith("agent__")]
    return call_tools([(tool, {"message": "report"}) for tool in children]) if children else say("default said")


def named_model(asked: Asked) -> str:
    """Answer in the form that a workflow requires, else with the name of the model."""
    form = json.dumps([asked.body.get("output_config"), asked.body.get("text")])
    if '"rating"' in form:
        return json.dumps({"rating": "EXCELLENT", "feedback": "none", "needs_improvement": False, "focus_areas": []})
    if '"confidence"' in form:
        return json.dumps({"agent": "general_assistant", "confidence": "high", "reasoning": "it knows"})
    if '"is_complete"' in form:
        said = json.dumps(asked.body)
        worker = "finder" if "finder" in said else "context_researcher"
        step = {"description": "look", "tasks": [{"description": "look", "agent": worker}]}
        return json.dumps({**step, "is_complete": "gpt-4.1 said" in said})
    return f"{family(asked.body['model'])} said"


def family(model: str) -> str:
    """The name of a model without the version that fast-agent's aliases stand for."""
    found = re.match(r"claude-[a-z]+", model)
    return found[0] if found else model


@dataclass(frozen=True)
class World:
    served: Running
    default: ScriptedLlm
    named: PolyglotLlm

    def asked(self) -> set[str]:
        """The models that were asked since the last time."""
        models = {request.model for request in self.default.requests}
        models |= {family(asked.body["model"]) for asked in self.named.asked}
        self.default.requests.clear()
        self.named.asked.clear()
        return models


@asynccontextmanager
async def world(project: Project, folder: Path) -> AsyncGenerator[World]:
    """Serve a project with the settings of an example folder, and with providers in a secrets file."""
    (project.path / "fastagent.config.yaml").unlink()
    settings = {}
    if (file := folder / "fast-agent.yaml").exists():
        shutil.copy(file, project.path)
        settings = yaml.safe_load(file.read_text())
    async with scripted_llm(default_model) as default, polyglot_llm(named_model) as named:
        own = f"{named.base_url}/v1"
        urls = {"generic": default.base_url, "hf": own, "openai": own, "responses": own, "anthropic": named.base_url}
        secrets: dict[str, Any] = {name: {"api_key": "not-a-key", "base_url": url} for name, url in urls.items()}
        secrets["model_references"] = {"system": {"fast": "generic.default"}}
        if "default_model" not in settings:
            secrets["default_model"] = "generic.default"
        (project.path / "fast-agent.secrets.yaml").write_text(yaml.safe_dump(secrets))
        async with running(project) as served:
            yield World(served, default, named)


def programs(folder: str) -> dict[str, Agent]:
    """Every program of an example folder as an agent of its name."""
    files = sorted((EXAMPLES / folder).glob("*.py"))
    chosen = {file.stem: {"agent": CHOSEN[file.stem]} if file.stem in CHOSEN else {} for file in files}
    return {file.stem: Agent(source=file.read_text(), settings=chosen[file.stem]) for file in files}


@pairs({"folder": [*PROGRAMS], "version": EACH_VERSION})
async def test_every_example_program_is_served_as_it_is(folder: str, version: str, tmp_path: Path) -> None:
    agents = programs(folder)
    assert agents.keys() == PROGRAMS[folder].keys()
    async with world(write_project(tmp_path, agents), EXAMPLES / folder) as it:
        for name, (says, models) in PROGRAMS[folder].items():
            answer = await ask(it.served.url(name), "hello", version=version)
            assert (answer.is_error, it.asked()) == (False, models), name
            assert says in answer.text, name
            found = await health(it.served.url(name), version=version)
            servers = found.get("downstream", [])
            assert found["agent"]["state"] == "ready"
            assert all(NOT_THERE.fullmatch(server["error"]) for server in servers), name
            assert ("Unreachable" in found.get("message", "")) == bool(servers), name


async def test_a_program_whose_agent_is_not_clear_says_which_there_are_and_which_key_chooses(tmp_path: Path) -> None:
    source = (EXAMPLES / "workflows" / "orchestrator.py").read_text()
    async with world(write_project(tmp_path, {"planner": Agent(source=source)}), EXAMPLES / "workflows") as it:
        failed = await ask(it.served.url("planner"))
    assert failed.is_error
    assert "choose one with `agents.planner.agent` in agents.yaml (author or orchestrate)" in failed.text


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_every_example_card_is_served_as_it_is(version: str, tmp_path: Path) -> None:
    place = ".fast-agent"  # where its cards look for what they share
    cards = {
        "acp": {"card": f"{place}/agent-cards/acp-expert.md"},
        "mcp": {"card": f"{place}/agent-cards", "agent": "mcp-expert"},
        "search": {"card": f"{place}/tool-cards"},
    }
    project = declare_project(tmp_path, cards)
    shutil.copytree(CARDS, tmp_path / place)
    served = {"acp": "Agent Client Protocol", "mcp": "Model Context Protocol", "search": "Hugging Face"}
    assert {path.stem for path in CARDS.glob("*-cards/*.md")} == {
        "acp-expert",
        "mcp-expert",
        "hf-search",
        "ripgrep-search",  # a tool for other agents
    }
    async with world(project, CARDS) as it:
        for name, about in served.items():
            answer = await ask(it.served.url(name), "hello", version=version)
            assert (answer.is_error, answer.text) == (False, "openai/gpt-oss-120b:cerebras said"), answer.text
            assert about in it.named.asked[-1].instruction
