"""Agents without Python: a user who has agents.yaml, fastagent.config.yaml and texts, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.calling import EACH_VERSION, ask, health
from tests.support.downstreams import StatelessDownstream, stateless_downstream
from tests.support.gateway import Agent, Running, declare_project, record_calls, running, starts, write_project
from tests.support.guarded import STATIC_KEY, static_key
from tests.support.scripted_llm import LlmRequest, Script, ScriptedLlm, Turn, call_tools, say, scripted_llm
from tests.support.waiting import eventually
from tests.support.watching import speaker, watch

LEAD: Mapping[str, Any] = {
    "instruction": "You are lead.\nBe brief.",
    "model": "generic.small-model",
    "servers": ["tools"],
    "tools": ["tools__ec*"],
    "agents": ["helper"],
    "description": "Leads.",
}
HELPER: Mapping[str, Any] = {"instruction_file": "prompts/helper.md"}

MAIN_CARD = """---
name: main
default: true
agents: [critic]
servers: [tools, helper]
tools:
  tools: [add]
---
You are main. Today is {{currentDate}}.
"""
CRITIC_CARD = """---
name: critic
model: generic.critic-model
mcp_connect:
  - target: "{url}"
    name: own
---
You are critic.
"""


def tries(*names: str) -> Script:
    """`lead` uses all these tools at once, then tells what came back; everybody else answers at once."""

    def script(request: LlmRequest) -> Turn:
        if speaker(request) != "lead":
            return say(f"{speaker(request)} heard {request.last_user_text}")
        if request.tool_results:
            return say(" | ".join(request.tool_results.values()))
        return call_tools([(name, {"text": "hi"} if "echo" in name else {"message": "hi"}) for name in names])

    return script


@asynccontextmanager
async def declared(
    path: Path, script: Script, agents: Mapping[str, Mapping[str, Any]], **project: Any
) -> AsyncGenerator[tuple[Running, ScriptedLlm, StatelessDownstream]]:
    async with scripted_llm(script) as llm, stateless_downstream() as tools:
        servers = {"tools": {"url": tools.url}}
        written = declare_project(path, agents, llm_url=llm.base_url, servers=servers, **project)
        (path / "prompts").mkdir()
        (path / "prompts" / "helper.md").write_text("You are helper. Costs ${NOTHING_SET}.\n")
        async with running(written) as served:
            yield served, llm, tools


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_a_declared_agent_uses_its_tools_and_its_sub_agent_and_nothing_else(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tries("tools__echo", "helper__send_message", "tools__fail", "fail", "helper__get_health", "helper__helper")
    auth = {"tokens": [static_key("run:agents:lead")]}
    agents = {"lead": LEAD, "helper": HELPER}
    async with declared(tmp_path, script, agents, gateway={"auth": auth}) as (served, llm, tools):
        calls = record_calls(served, "helper", monkeypatch)
        watched = await watch(served.url("lead"), version=version, bearer=STATIC_KEY)
        assert served.gateway.agents["lead"].runtime is not None
        assert served.gateway.agents["lead"].runtime.model.name == "small-model"

    assert not list(tmp_path.rglob("*.py"))
    asked = next(request for request in llm.requests if speaker(request) == "lead")
    assert (asked.model, asked.tools) == ("small-model", ["tools__echo", "helper__send_message"])
    assert "Be brief." in str(asked.messages[0]["content"])
    helper = next(request for request in llm.requests if speaker(request) == "helper")
    assert (helper.model, helper.tools) == ("test-model", [])
    assert "Costs ${NOTHING_SET}." in str(helper.messages[0]["content"])
    said = watched.text.split(" | ")
    assert said[:2] == ['{"result":"hi"}', "helper heard hi"]
    kept_from_it = ("tools__fail", "fail", "helper__get_health", "helper__helper")
    assert said[2:] == [f"Tool '{tool}' is not available." for tool in kept_from_it]
    assert [call.tool for call in tools.recorder.calls()] == ["echo"]
    assert "helper/send_message: helper step 1 (llm)" in watched.progress
    assert [one["via_agent"] for one in watched.payloads if "via_agent" in one] == [["helper"]]
    # The caller may run `lead` only; what lead calls on its behalf is the caller's all the same.
    assert [(call.caller.name, call.nesting) for call in calls] == [("ci", 1)]


async def test_no_tool_is_allowed_by_an_empty_list_and_every_one_by_none(tmp_path: Path) -> None:
    none: Mapping[str, Any] = {"instruction": "You are none.", "servers": ["tools"], "tools": []}
    every: Mapping[str, Any] = {"instruction": "You are every.", "servers": ["tools"], "agents": ["a__b"]}
    inner: Mapping[str, Any] = {"instruction": "You are inner."}
    agents = {"none": none, "every": every, "a__b": inner}
    async with declared(tmp_path, lambda _: say("done"), agents) as (served, llm, _):
        for name in ("none", "every"):
            assert (await ask(served.url(name))).text == "done"
        assert (await health(served.url("every")))["status"] == "ok"

    none_sees, every_sees = (request.tools for request in llm.requests)
    assert none_sees == []
    assert {"tools__add", "tools__echo", "tools__fail"} < set(every_sees)
    assert [tool for tool in every_sees if not tool.startswith("tools__")] == ["a__b__send_message"]


async def test_a_peer_a_module_depends_on_needs_no_server_and_a_server_of_that_name_wins(tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        if request.tool_results:
            return say(" | ".join(request.tool_results.values()))
        if speaker(request) == "lead":
            return call_tools([("peer__send_message", {"message": "hi"})])
        if speaker(request) == "elsewhere":
            return call_tools([("taken__echo", {"text": "other here"})])
        return say(f"{speaker(request)} here")

    agents = {
        "lead": Agent(["peer"], decorator='tools={"peer": ["send_*"]}', settings={"depends_on": ["peer"]}),
        "peer": Agent(),
        "elsewhere": Agent(["taken"], settings={"depends_on": ["taken"]}),
        "taken": Agent(),
    }
    async with scripted_llm(script) as llm, stateless_downstream() as other:
        servers = {"taken": {"url": other.url}}
        async with running(write_project(tmp_path, agents, llm_url=llm.base_url, servers=servers)) as served:
            assert (await ask(served.url("lead"))).text == "peer here"
            assert (await ask(served.url("elsewhere"))).text == '{"result":"other here"}'
            runtimes = [served.gateway.agents[name].runtime for name in ("lead", "elsewhere")]
            downstreams = [one for runtime in runtimes if runtime is not None for one in runtime.downstreams]
            assert [(one.name, one.peer) for one in downstreams] == [("peer", "peer"), ("taken", None)]
    assert [call.tool for call in other.recorder.calls()] == ["echo"]


async def test_a_folder_of_cards_is_an_agent_with_its_servers_and_the_history_they_bring(tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        if speaker(request) == "main" and not request.tool_results:
            return call_tools([("agent__critic", {"message": "well?"}), ("helper__send_message", {"message": "so?"})])
        if speaker(request) == "main":
            return say(" | ".join(request.tool_results.values()))
        return say(f"{speaker(request)} heard {request.last_user_text}")

    (tmp_path / "cards").mkdir()
    (tmp_path / "cards" / "main.md").write_text(MAIN_CARD.replace("agents:", "messages: talk.txt\nagents:"))
    (tmp_path / "cards" / "talk.txt").write_text("---USER\nwho goes?\n---ASSISTANT\nme\n")
    agents = {"desk": {"card": "cards", "agents": ["helper"]}, "helper": HELPER}
    async with stateless_downstream("own") as own:
        (tmp_path / "cards" / "critic.md").write_text(CRITIC_CARD.replace("{url}", own.url))
        async with declared(tmp_path, script, agents) as (served, llm, _):
            answer = await ask(served.url("desk"), history=[{"role": "user", "content": "and then?"}])
            state = await health(served.url("desk"))

    assert answer.text == "critic heard well? | helper heard so?"
    first = llm.requests[0]
    assert first.user_texts == ["who goes?", "and then?", "hello"]
    assert "{{currentDate}}" not in str(first.messages[0]["content"])
    assert {tool for tool in first.tools if tool.startswith("tools__")} == {"tools__add"}
    critic = next(request for request in llm.requests if speaker(request) == "critic")
    assert critic.model == "critic-model"
    assert "own__echo" in critic.tools
    assert (state["status"], {one["name"] for one in state["downstream"]}) == ("ok", {"tools", "helper", "own"})


async def test_a_changed_text_card_or_declaration_is_a_new_version_of_that_agent_alone(tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        return say(str(request.messages[0]["content"]).split(".")[0])

    cards = tmp_path / "cards"
    cards.mkdir()
    card = cards / "main.yaml"
    card.write_text("name: main\ninstruction: You are main 1.\n")
    agents: Mapping[str, Mapping[str, Any]] = {
        "helper": HELPER,
        "text": {"instruction": "You are text 1.", "agents": ["helper"]},
        "desk": {"card": "cards/main.yaml"},
        "folder": {"card": "cards"},
        "toned": {"instruction": "You are {{file:tone.md}}.", "watch": ["tone.md"]},
    }
    (tmp_path / "tone.md").write_text("toned 1")
    async with declared(tmp_path, script, agents) as (served, _, _):

        async def told() -> dict[str, str]:
            return {name: (await ask(served.url(name))).text for name in agents}

        async def changed_by_a_reload() -> set[str]:
            before = {name: runtime_of(served, name) for name in agents}
            await served.reload()
            return {name for name in agents if runtime_of(served, name) is not before[name]}

        assert await changed_by_a_reload() == set()
        (tmp_path / "prompts" / "helper.md").write_text("You are helper 2.")
        assert await changed_by_a_reload() == {"helper"}
        card.write_text("name: main\ninstruction: You are main 2.\n")
        assert await changed_by_a_reload() == {"desk", "folder"}
        served.project.edit(lambda document: document["agents"]["text"].update(instruction="You are text 2."))
        assert await changed_by_a_reload() == {"text"}
        (tmp_path / "tone.md").write_text("toned 2")
        assert await changed_by_a_reload() == {"toned"}
        assert await told() == {
            "helper": "You are helper 2",
            "text": "You are text 2",
            "desk": "You are main 2",
            "folder": "You are main 2",
            "toned": "You are toned 2",
        }
        (cards / "extra.yaml").write_text("name: extra\ninstruction: You are extra.\ndefault: true\n")
        assert await changed_by_a_reload() == {"folder"}
        assert (await ask(served.url("folder"))).text == "You are extra"
        card.unlink()
        (tmp_path / "prompts" / "helper.md").unlink()
        assert await changed_by_a_reload() == {"folder"}  # the others keep the version they have
        assert (await told())["desk"] == "You are main 2"
        assert served.metric("pallas_config_reloads_total", outcome="error") == 1


async def test_a_file_that_a_new_version_wants_is_waited_for(tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        return say(speaker(request))

    async with scripted_llm(script) as llm:
        agents = {"text": {"instruction": "You are text."}, "other": {"instruction": "You are other."}}
        project = declare_project(tmp_path, agents, llm_url=llm.base_url)
        async with running(project, watch=True) as served:
            text = {"instruction_file": "prompts/text.md"}
            (tmp_path / "prompts").mkdir()
            project.edit(lambda document: document["agents"].update(text=text))
            await eventually(lambda: served.metric("pallas_config_reloads_total", outcome="error"), what="a reload")
            assert (await ask(served.url("text"))).text == "text"
            other, before = runtime_of(served, "other"), runtime_of(served, "text")
            (tmp_path / "prompts" / "text.md").write_text("You are new.")
            await eventually(lambda: runtime_of(served, "text") is not before, 30, what="the new version")
            assert (await ask(served.url("text"))).text == "new"
            assert runtime_of(served, "other") is other


def runtime_of(served: Running, name: str) -> object:
    return served.gateway.agents[name].runtime


async def test_an_agent_whose_declaration_is_wrong_says_why_and_comes_up_once_it_is_mended(tmp_path: Path) -> None:
    agents: Mapping[str, Mapping[str, Any]] = {
        "well": {"instruction": "You are well."},
        "lost": {"instruction_file": "prompts/lost.md", "servers": ["toolz"]},
    }
    async with declared(tmp_path, lambda r: say(f"{speaker(r)} here"), agents) as (served, _, _):
        answer = await ask(served.url("lost"))
        assert answer.is_error
        assert "no such file" in answer.text
        assert "no server 'toolz' under mcp.servers of fastagent.config.yaml (did you mean 'tools'?)" in answer.text
        assert (await ask(served.url("well"))).text == "well here"
        before = starts(served, "well")
        (tmp_path / "prompts" / "lost.md").write_text("You are lost.")
        served.project.edit(lambda document: document["agents"]["lost"].update(servers=["tools"]))
        await served.reload()
        await eventually(lambda: runtime_of(served, "lost") is not None, 30, what="lost up")
        assert (await ask(served.url("lost"))).text == "lost here"
        assert starts(served, "well") == before
