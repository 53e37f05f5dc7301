"""What an agent of the database can do in a call: what the operator has released, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pallas_gateway.features.definitions.records import InvalidDefinitionError
from tests.support.askable_callers import Person, accept, client_of, told
from tests.support.asking import FORM
from tests.support.asking_gateways import HUMAN
from tests.support.calling import ask
from tests.support.downstreams import StatelessDownstream, stateless_downstream
from tests.support.gateway import Agent, Project, Running, running, write_project
from tests.support.scripted_llm import LlmRequest, ScriptedLlm, Turn, call_tools, say, scripted_llm
from tests.support.stored_agents import ME, applied, definition, definitions_of, ready
from tests.support.watching import speaker

RELEASED: dict[str, Any] = {"models": ["generic.*"], "servers": {"tools": ["ec*", "add"]}, "agents": ["filed"]}


def uses_all(request: LlmRequest) -> Turn:
    """Use the tools that the message names, then tell what came back."""
    if speaker(request) == "filed":
        return say("filed heard")
    if request.tool_results:
        return say(" | ".join(request.tool_results.values()))
    names = request.last_user_text.split()
    return call_tools([HUMAN if name == "human" else (name, _arguments(name)) for name in names])


def _arguments(tool: str) -> dict[str, str]:
    return {"text": "hi"} if tool.endswith("echo") else {"message": "hi"}


@asynccontextmanager
async def gateway_with(
    path: Path, **released: Any
) -> AsyncGenerator[tuple[Running, Project, ScriptedLlm, StatelessDownstream]]:
    async with scripted_llm(uses_all) as llm, stateless_downstream() as tools:
        gateway = {"database": f"sqlite:///{path}/pallas.db", "agents_may_use": {**RELEASED, **released}}
        servers = {"tools": {"url": tools.url}, "private": {"url": tools.url}}
        project = write_project(
            path / "project", {"filed": Agent()}, llm_url=llm.base_url, servers=servers, gateway=gateway
        )
        async with running(project) as served:
            yield served, project, llm, tools


async def made(served: Running, name: str, **keys: Any) -> None:
    keys = {"instruction": f"You are {name}.", **keys}
    await definitions_of(served).create(name, definition(name, **keys), ME)
    await applied(served, name)
    await ready(served, name)


def tools_of(llm: ScriptedLlm) -> list[str]:
    return next(request for request in reversed(llm.requests) if speaker(request) != "filed").tools


async def test_an_agent_without_a_list_of_tools_has_the_released_ones_and_no_others(tmp_path: Path) -> None:
    async with gateway_with(tmp_path) as (served, project, llm, tools):
        await made(served, "helper", servers=["tools"], agents=["filed"])
        answer = await ask(served.url("helper"), "tools__echo tools__fail private__echo filed__send_message")
        assert sorted(tools_of(llm)) == ["filed__send_message", "tools__add", "tools__echo"]
        assert {one.partition(".")[0] for one in answer.text.split(" | ")} == {
            '{"result":"hi"}',
            "Tool 'tools__fail' is not available",
            "Tool 'private__echo' is not available",
            "filed heard",
        }
        assert [call.tool for call in tools.recorder.calls()] == ["echo"]

        project.edit(lambda document: document["gateway"]["agents_may_use"].update(servers={"tools": ["add"]}))
        await served.reload()
        await ask(served.url("helper"), "tools__echo")
        assert sorted(tools_of(llm)) == ["filed__send_message", "tools__add"]
        assert [call.tool for call in tools.recorder.calls()] == ["echo"]


async def test_an_agent_without_servers_has_no_tools_at_all(tmp_path: Path) -> None:
    async with gateway_with(tmp_path) as (served, _, llm, __):
        await made(served, "helper")
        await ask(served.url("helper"), "read_text_file")
        assert tools_of(llm) == []


async def test_the_operators_approvals_apply_whatever_the_definition_says(tmp_path: Path) -> None:
    async with gateway_with(tmp_path, approve=["tools/ec*"]) as (served, _, __, tools):
        await made(served, "helper", servers=["tools"], approve=[])
        answer = await ask(served.url("helper"), "tools__echo")
        assert "approv" in answer.text
        assert tools.recorder.calls() == []


async def test_an_agent_with_human_input_asks_its_caller(tmp_path: Path) -> None:
    person = Person(accept(name="Ada"))
    async with gateway_with(tmp_path) as (served, _, __, ___):
        await made(served, "helper", humanInput=True)
        async with client_of(served.url("helper"), person) as client:
            assert await told(client, "human") == '{"name": "Ada"}'
    assert [one.message for one in person.asked] == [f"helper: {FORM}"]


async def test_a_model_that_the_runtime_cannot_use_is_a_problem_before_anything_is_stored(tmp_path: Path) -> None:
    async with gateway_with(tmp_path, models=["*"]) as (served, _, __, ___):
        for dry_run in (True, False):
            with pytest.raises(InvalidDefinitionError) as refused:
                await definitions_of(served).create(
                    "helper", definition("x", model="no-such.model"), ME, dry_run=dry_run
                )
            assert [one.path for one in refused.value.problems] == ["model"]
            assert "no such model" in str(refused.value)
        assert await definitions_of(served).number() == 0
