"""Agents of the database in one gateway: what every API serves of them while they come, change and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from pallas_gateway.config.loading.loader import Overrides
from pallas_gateway.core.hosted_agent import HostedAgent
from pallas_gateway.process import reload
from tests.support.calling import ask
from tests.support.gateway import Agent, Running, running, starts
from tests.support.listener import reserved_port
from tests.support.scripted_llm import LlmRequest, Turn, hang, say, scripted_llm
from tests.support.stored_agents import ME, applied, definition, definitions_of, project_of, ready
from tests.support.stored_threads import agents_feature_of
from tests.support.waiting import Gate, eventually, tick


def saying(gate: Gate) -> Any:
    """A model that repeats the instruction; `hang` waits for the gate."""

    def script(request: LlmRequest) -> Turn:
        said = say(str(request.messages[0]["content"]))
        return hang(gate, said) if request.last_user_text == "hang" else said

    return script


@asynccontextmanager
async def serving(path: Path, gate: Gate | None = None, **gateway: Any) -> AsyncGenerator[Running]:
    async with (
        scripted_llm(saying(gate or Gate())) as llm,
        running(project_of(path, llm.base_url, **gateway)) as served,
    ):
        yield served


async def has_helper(served: Running) -> HostedAgent:
    await definitions_of(served).create("helper", definition("one"), ME)
    await applied(served)
    return await ready(served, "helper")


async def test_an_agent_is_served_from_its_creation_to_its_deletion(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        made = definitions_of(served)
        assert list(served.gateway.agents) == ["filed"]
        filed = served.gateway.agents["filed"].runtime
        first = await made.create("helper", definition("one", title="Helper One"), ME)
        await applied(served)
        agent = await ready(served, "helper")
        assert (agent.id, agent.identity and agent.identity.version) == (first.id, 1)
        assert "You say one." in (await ask(served.url("helper"), "hello")).text
        assert await titles(served) == ["Filed", "Helper One"]

        await made.patch("helper", {"instruction": "You say two."}, ME, expected=1)
        await applied(served)
        assert "You say two." in (await ask(served.url("helper"), "hello")).text
        assert agent.identity is not None
        assert agent.identity.version == 2

        await made.remove("helper", ME, expected=2)
        await applied(served)
        assert list(served.gateway.agents) == ["filed"]
        assert (await served.request("POST", "/agents/helper/mcp", json={})).status_code == 404
        assert served.gateway.agents["filed"].runtime is filed
        assert starts(served, "filed") == 2
        assert served.metric("pallas_stored_agent_changes_total", outcome="ok") == 3
        assert served.metric("pallas_config_reloads_total", outcome="ok") == 0


async def test_agents_are_there_from_the_start(tmp_path: Path) -> None:
    async with scripted_llm(saying(Gate())) as llm:
        project = project_of(tmp_path, llm.base_url)
        async with running(project) as served:
            await definitions_of(served).create("helper", definition("one"), ME)
        async with running(project) as served:  # the block begins when each agent was tried
            assert served.gateway.agents["helper"].runtime is not None
            assert "You say one." in (await ask(served.url("helper"), "hello")).text


async def test_a_version_that_does_not_start_leaves_the_one_before_it_in_use_and_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path, agents_may_use={"models": ["*"]}) as served:
        made = definitions_of(served)
        made.check = None  # so that a version may fail at its start
        agent = await has_helper(served)
        await made.patch("helper", {"model": "azure.gpt-5", "instruction": "You say two."}, ME, expected=1)
        await applied(served)
        assert agent.identity is not None
        assert agent.kept_back is not None
        assert (agent.identity.version, "azure" in agent.kept_back) == (1, True)
        assert "You say one." in (await ask(served.url("helper"), "hello")).text
        assert served.metric("pallas_stored_agents_kept_back") == 1
        assert served.metric("pallas_config_last_reload_successful") == 1
        await served.reload()
        assert served.metric("pallas_config_last_reload_successful") == 1
        assert served.gateway.reload_problems == ()
        assert len([one for one in caplog.records if one.message == "agent not replaced"]) == 1
        settings = {"base_url": "https://azure.example", "api_key": "k"}
        served.project.edit(lambda document: document.update(azure=settings), "fastagent.config.yaml")
        await eventually(lambda: agent.kept_back is None, 30, what="the second version")
        assert agent.identity.version == 2
        assert served.metric("pallas_stored_agents_kept_back") == 0


async def test_a_change_over_http_is_in_use_when_the_client_has_waited_for_it(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, agents_may_use={"models": ["*"]}) as served,
        httpx.AsyncClient(trust_env=False) as http,
    ):
        definitions_of(served).check = None  # so that a version may fail at its start
        url = f"{served.base_url}/api/v1/agents"
        made = await http.post(f"{url}?wait=true", json={"name": "helper", **definition("one")})
        assert {key: made.json()[key] for key in ("state", "version", "runningVersion")} == {
            "state": "ready",
            "version": 1,
            "runningVersion": 1,
        }
        tag = made.headers["ETag"]
        broken = {"model": "azure.gpt-5"}
        kept = await http.patch(f"{url}/helper?wait=true", json=broken, headers={"If-Match": tag})
        assert (kept.json()["version"], kept.json()["runningVersion"]) == (2, 1)
        assert "azure" in kept.json()["reason"]
        gone = await http.delete(f"{url}/helper?wait=true", headers={"If-Match": "*"})
        assert gone.status_code == 204
        assert (await http.post(served.url("helper"), json={})).status_code == 404


async def test_a_change_of_this_process_is_taken_up_without_waiting_for_the_next_second(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        watch = agents_feature_of(served.gateway).watch
        watch._seconds = 3600
        watch.look_soon()
        await definitions_of(served).create("helper", definition("one"), ME)
        await ready(served, "helper")


async def test_the_process_tidies_up_after_changes_when_no_call_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "TIDY_SECONDS", 0.01)
    tidied, gate = asyncio.Event(), Gate()
    async with serving(tmp_path, gate) as served:
        object.__setattr__(served.reloads, "after", tidied.set)
        call = asyncio.create_task(ask(served.url("filed"), "hang"))
        await gate.wait_for_entered()
        await definitions_of(served).create("helper", definition("one"), ME)
        await applied(served)
        for _ in range(5):
            await tick()
        assert not tidied.is_set()
        gate.open()
        await call
        await asyncio.wait_for(tidied.wait(), 20)


async def test_a_reload_of_files_and_a_change_at_once_lose_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        made = definitions_of(served)
        for number in range(1, 6):
            title = f"Filed {number}"
            served.project.edit(lambda document: document["agents"]["filed"].update(title=title))  # noqa: B023  called here
            served.reloads.asked.set()
            await made.create(f"helper{number}", definition(str(number)), ME)
            await served.reload()
            await applied(served)
            assert served.gateway.agents["filed"].settings.title == title
            assert {f"helper{one}" for one in range(1, number + 1)} <= served.gateway.agents.keys()


async def test_a_change_of_the_database_reads_no_file(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        filed = served.gateway.agents["filed"].runtime
        served.project.edit(lambda document: document["agents"]["filed"].update(title="Edited"))
        served.project.write_module("filed", "this is no Python")
        await has_helper(served)
        assert served.gateway.agents["filed"].settings.title is None
        assert served.gateway.agents["filed"].runtime is filed


async def test_floors_that_are_narrowed_refuse_the_calls_of_agents_that_no_longer_fit(tmp_path: Path) -> None:
    gate = Gate()
    async with serving(tmp_path, gate) as served:
        agent = await has_helper(served)
        running_call = asyncio.create_task(ask(served.url("helper"), "hang"))
        await gate.wait_for_entered()
        served.project.edit(lambda document: document["gateway"].update(agents_may_use={"models": ["openai.*"]}))
        await served.reload()
        assert agent.status.state == "failed"
        refused = await ask(served.url("helper"), "hello")
        assert refused.is_error
        assert "generic.test-model" in refused.text
        assert served.metric("pallas_config_last_reload_successful") == 1
        gate.open()
        assert not (await running_call).is_error
        served.project.edit(lambda document: document["gateway"].update(agents_may_use={"models": ["generic.*"]}))
        await served.reload()
        await ready(served, "helper")


async def test_a_file_that_claims_a_name_has_it_until_it_gives_it_back(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        made = definitions_of(served)
        stored = (await has_helper(served)).id
        claiming = {"instruction": "You say filed."}
        served.project.edit(lambda document: document["agents"].update(helper=claiming))
        await served.reload()
        assert "You say filed." in (await ask(served.url("helper"), "hello")).text
        assert served.gateway.agents["helper"].id == ""
        assert served.gateway.configuration.claimed["helper"].id == stored

        await made.patch("helper", {"instruction": "You say stored again."}, ME, expected=None)
        await applied(served)
        assert "You say filed." in (await ask(served.url("helper"), "hello")).text

        served.project.edit(lambda document: document["agents"].pop("helper"))
        await served.reload()
        assert "You say stored again." in (await ask(served.url("helper"), "hello")).text
        assert served.gateway.agents["helper"].id == stored


async def test_one_agent_alone_and_agents_on_ports_of_their_own_have_no_agents_of_the_database(tmp_path: Path) -> None:
    async with scripted_llm(saying(Gate())) as llm:
        project = project_of(tmp_path, llm.base_url, {"filed": Agent(settings={"port": 1})})
        async with running(project) as served:
            await definitions_of(served).create("helper", definition("one"), ME)
        for overrides in (Overrides(agent="filed"), Overrides(per_port=True)):
            with reserved_port() as port, reserved_port() as registry:

                def edit(document: dict[str, Any], port: int = port, registry: int = registry) -> None:
                    document["agents"]["filed"]["port"] = port
                    document["registry_port"] = registry

                project.edit(edit)
                async with running(project, overrides=overrides) as served:
                    assert list(served.gateway.agents) == ["filed"]
                    assert served.gateway.agent_source is None


async def titles(served: Running) -> list[str]:
    servers = (await served.request("GET", "/.well-known/mcp/server.json")).json()["servers"]
    return [entry["server"]["title"] for entry in servers]
