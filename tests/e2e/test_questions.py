"""Questions that arise in a call: who is asked, what the model reads, and that the gateway itself answers none."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.calling import ask
from tests.support.asking import FORM, URL, URL_MESSAGE, asking_downstream, stdio_settings
from tests.support.gateway import Agent, running, until_idle, write_project
from tests.support.scripted_llm import call_tools, say, scripted_llm
from tests.support.terminal import CTRL_C, at_terminal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.downstreams import Era
    from tests.support.gateway import Project, Running
    from tests.support.scripted_llm import LlmRequest, ScriptedLlm, Turn

pytestmark = pytest.mark.usefixtures("no_trust_store")
ROOT = Path(__file__).parents[2]
EACH_ERA = pytest.mark.parametrize("era", ["initialize", "modern"])
HUMAN = ("__human_input", {"message": FORM, "fields": [{"name": "name", "type": "text", "required": True}]})


def calls_the_tool_it_is_told(request: LlmRequest) -> Turn:
    """Call the tools that the message names, then repeat what they brought."""
    if request.tool_results:
        return say(" | ".join(text for _, text in sorted(request.tool_results.items())))
    calls = [HUMAN if word == "human" else (f"asking__{word}", {}) for word in request.last_user_text.split()]
    return call_tools(calls)


def project_of(path: Path, llm: ScriptedLlm, server: dict[str, Any], agent: Agent | None = None) -> Project:
    agents = {"user": agent or Agent(["asking"])}
    return write_project(path, agents, llm_url=llm.base_url, servers={"asking": server})


@asynccontextmanager
async def gateway_of(path: Path, server: dict[str, Any], agent: Agent | None = None) -> AsyncIterator[Running]:
    async with scripted_llm(calls_the_tool_it_is_told) as llm, running(project_of(path, llm, server, agent)) as served:
        yield served
        await until_idle(served)


def questions(served: Running, kind: str, outcome: str) -> float:
    return served.metric("pallas_questions_total", agent="user", kind=kind, outcome=outcome)


# --- a caller that cannot be asked -----------------------------------------------------------------------------------


@EACH_ERA
async def test_a_question_to_a_caller_that_cannot_be_asked_is_declined_and_the_model_reads_it(
    era: Era, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with asking_downstream(era) as downstream, gateway_of(tmp_path, {"url": downstream.url}) as served:
        form = await ask(served.url("user"), "name")
        page = await ask(served.url("user"), "pay")
        assert downstream.answers == [{"action": "decline", "content": None}] * 2
        assert FORM in form.text
        assert "cannot be asked" in form.text
        assert URL_MESSAGE in page.text
        assert "pay.example" in page.text
        assert "url-secret" not in page.text
        assert questions(served, "form", "unaskable") == questions(served, "url", "unaskable") == 1
        assert not [one for one in downstream.recorder.requests if b'"elicitation":{' in one.body]
    assert not [one for one in caplog.records if FORM in str(vars(one)) or URL in str(vars(one))]


@EACH_ERA
async def test_a_program_as_downstream_is_declined_too(era: Era, tmp_path: Path) -> None:
    async with gateway_of(tmp_path, {**stdio_settings(era), "cwd": str(ROOT)}) as served:
        answer = await ask(served.url("user"), "name pay")
        assert answer.text.count('"action": "decline"') == 2
        assert "cannot be asked" in answer.text
        assert questions(served, "form", "unaskable") == questions(served, "url", "unaskable") == 1


@pytest.mark.parametrize("mode", ["forms", "auto-cancel", "none"])
@EACH_ERA
async def test_no_setting_of_fast_agents_makes_the_gateway_answer(era: Era, mode: str, tmp_path: Path) -> None:
    async with asking_downstream(era) as downstream:
        async with gateway_of(tmp_path, {"url": downstream.url, "elicitation": {"mode": mode}}) as served:
            await ask(served.url("user"), "name pay")
        assert "accept" not in {one["action"] for one in downstream.answers}


async def test_a_modules_own_handler_of_questions_is_not_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = """
from fast_agent import FastAgent
from fast_agent.mcp.elicitation_handlers import forms_elicitation_handler

fast = FastAgent("user", parse_cli_args=False)


@fast.agent(name="user", servers=["asking"], default=True, elicitation_handler=forms_elicitation_handler)
async def agent() -> None: ...
"""
    agent = Agent(source=source)
    async with (
        asking_downstream("modern") as downstream,
        gateway_of(tmp_path, {"url": downstream.url}, agent) as served,
    ):
        answer = await ask(served.url("user"), "pay")
        assert '"action": "decline"' in answer.text
    assert [one for one in caplog.records if one.getMessage() == "elicitation handler ignored"]


@pytest.mark.parametrize("servers", [["asking"], []], ids=["with servers", "without"])
async def test_an_agent_with_human_input_reads_that_its_caller_cannot_be_asked(
    servers: list[str], tmp_path: Path
) -> None:
    agent = Agent(servers, decorator="human_input=True")
    async with gateway_of(tmp_path, {"url": "http://127.0.0.1:9/mcp"}, agent) as served:
        answer = await ask(served.url("user"), "human")
        assert FORM in answer.text
        assert "cannot be asked" in answer.text
        assert questions(served, "human_input", "unaskable") == 1


async def test_a_gateway_at_a_terminal_prompts_nobody_there(tmp_path: Path) -> None:
    async with scripted_llm(calls_the_tool_it_is_told) as llm, asking_downstream("initialize") as downstream:
        agent = Agent(["asking"], decorator="human_input=True")
        project_of(tmp_path, llm, {"url": downstream.url, "sampling": {"model": "passthrough"}}, agent)
        environ = {"PALLAS_LOG_FILE": str(tmp_path / "log"), "PYTHONPATH": str(tmp_path)}
        async with at_terminal(["serve"], tmp_path, environ) as terminal:
            await terminal.shows("Registry: ")
            url = (await terminal.shows("/.well-known")).strip()
            answer = await ask(f"{url}/agents/user/mcp", "name pay human sample")
            assert "accept" not in answer.text
            assert answer.text.count("cannot be asked") == 3
            assert "sampled" in answer.text
            await terminal.press(CTRL_C)
            shown = await terminal.shows("stopping")
    assert FORM not in shown
    assert URL_MESSAGE not in shown
