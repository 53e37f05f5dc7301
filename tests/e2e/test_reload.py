"""Hot reload: agents, ports and certificates come, go and change while calls run; what nothing changed for stays."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from pallas_gateway.config.loading.configuration import Configuration
from pallas_gateway.config.loading.loader import Overrides
from tests.support.calling import EACH_VERSION, ask
from tests.support.certificates import TLS_FILES, write_certificate
from tests.support.crowds import crowd
from tests.support.gateway import (
    Agent,
    Project,
    Running,
    gateway_and_model,
    module_source,
    running,
    starts,
    until_idle,
    write_project,
)
from tests.support.listener import reserved_port
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, echo, hang, say
from tests.support.waiting import Gate, eventually


def saying(name: str, word: str, more: str = "") -> str:
    """A module whose agent answers `word`, by a tool of its own that the test model is told to call."""
    return f"""
from fast_agent import FastAgent
{more}
fast = FastAgent("{name}", parse_cli_args=False)

def word() -> str:
    return {word}

@fast.agent(name="{name}", instruction="You are {name}.", function_tools=[word], default=True)
async def agent() -> None: ...
"""


SAY_THE_WORD = "***CALL_TOOL word {}"


async def names(served: Running) -> list[str]:
    servers = (await served.request("GET", "/.well-known/mcp/server.json")).json()["servers"]
    return [entry["server"]["title"] for entry in servers]


async def test_agents_come_go_and_change_and_the_registry_shows_it_at_once(tmp_path: Path) -> None:
    agents = {name: Agent(source=saying(name, f"'{name} 1'")) for name in ("stays", "goes", "changes")}
    async with running(write_project(tmp_path, agents)) as served:
        served.project.write_module("changes", saying("changes", "'changes 2'"))
        served.project.write_module("comes", saying("comes", "'comes 1'"))

        def edit(document: dict[str, Any]) -> None:
            del document["agents"]["goes"]
            document["agents"]["stays"]["title"] = "Another title"
            document["agents"]["comes"] = {"module": f"{served.project.package}.comes"}

        served.project.edit(edit)
        await served.reload()

        assert await names(served) == ["Another title", "Changes", "Comes"]
        assert (await ask(served.url("stays"), SAY_THE_WORD)).text == "stays 1"
        assert (await ask(served.url("changes"), SAY_THE_WORD)).text == "changes 2"
        await eventually(lambda: served.gateway.agents["comes"].runtime is not None, what="the new agent up")
        assert (await ask(served.url("comes"), SAY_THE_WORD)).text == "comes 1"
        assert (await served.request("POST", "/agents/goes/mcp", json={})).status_code == 404
        assert served.metric("pallas_config_last_reload_successful") == 1
        assert served.metric("pallas_agent_info", agent="goes", port=str(served.gateway.addresses.registry_port)) == 0


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_calls_in_flight_end_on_the_version_they_began_with(version: str, tmp_path: Path) -> None:
    gates = {"changes": Gate(), "goes": Gate()}

    def script(request: LlmRequest) -> Turn:
        gate = gates.get(request.last_user_text)
        system = request.messages[0]["content"]
        return hang(gate, say(f"{system} ends")) if gate else say(f"{system} answers")

    async with gateway_and_model(tmp_path, {name: Agent() for name in gates}, script) as (served, _):
        calls = {name: asyncio.create_task(ask(served.url(name), name, version=version)) for name in gates}
        for gate in gates.values():
            await gate.wait_for_entered()
        earlier = weakref.ref(served.gateway.agents["changes"].runtime)
        source = module_source("changes", Agent()).replace("You are", "You became")
        served.project.write_module("changes", source)
        served.project.edit(lambda document: document["agents"].pop("goes"))
        await served.reload()

        assert "You became changes" in (await ask(served.url("changes"), "new", version=version)).text
        for gate in gates.values():
            gate.open()
        for name, call in calls.items():
            answer = await call
            assert (f"You are {name}" in answer.text, answer.is_error) == (True, False), answer.text
        await until_idle(served)
        await eventually(lambda: gc.collect() is None or earlier() is None, what="the end of the earlier version")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("agents.yaml", "agents: ["),
        ("agents.yaml", ""),
        ("agents.yaml", "agents: {echo: {modul: agents.echo}}"),
        ("fastagent.config.yaml", "mcp: ["),
    ],
)
async def test_a_broken_file_changes_nothing_and_says_what_is_wrong(
    file: str, text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(write_project(tmp_path, {"echo": Agent()})) as served:
        good = (tmp_path / file).read_text()
        loaded = served.metric("pallas_config_last_reload_timestamp_seconds")
        (tmp_path / file).write_text(text)
        await served.reload()
        assert served.metric("pallas_config_last_reload_successful") == 0
        assert served.metric("pallas_config_last_reload_timestamp_seconds") == loaded
        assert await names(served) == ["Echo"]
        assert (await ask(served.url("echo"))).text == "hello"
        said = [vars(record) for record in caplog.records if record.name == "pallas.reload"]
        assert any(str(one.get("problem", "")).startswith(file) for one in said)
        assert (said[-1]["msg"], said[-1]["serves"]) == ("configuration not reloaded", "the configuration before")

        (tmp_path / file).write_text(good)
        await served.reload()
        assert served.metric("pallas_config_last_reload_successful") == 1


async def test_an_agent_whose_new_version_does_not_start_keeps_the_one_it_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    project = write_project(tmp_path, {name: Agent(source=saying(name, "'one'")) for name in ("broken", "well")})
    async with running(project) as served:
        before = starts(served, "broken")
        project.write_module("broken", "raise ValueError('half an edit')")
        project.write_module("well", saying("well", "'two'"))
        await served.reload()
        assert (await ask(served.url("broken"), SAY_THE_WORD)).text == "one"
        assert (await ask(served.url("well"), SAY_THE_WORD)).text == "two"
        assert starts(served, "broken") == before
        assert served.metric("pallas_config_last_reload_successful") == 0
        kept = [vars(record) for record in caplog.records if record.msg == "agent not replaced"]
        assert [(one["agent"], "half an edit" in one["reason"]) for one in kept] == [("broken", True)]

        project.write_module("broken", saying("broken", "'two'"))
        await served.reload()
        assert (await ask(served.url("broken"), SAY_THE_WORD)).text == "two"
        assert served.metric("pallas_config_last_reload_successful") == 1


async def test_a_failed_agent_is_tried_again_at_once(tmp_path: Path) -> None:
    project = write_project(tmp_path, {"broken": Agent(source="raise ValueError('no key')"), "well": Agent()})
    async with running(project) as served:
        assert served.gateway.agents["broken"].runtime is None
        project.write_module("mended", saying("mended", "'up'"))
        project.edit(lambda document: document["agents"]["broken"].update(module=f"{project.package}.mended"))
        await served.reload()
        await eventually(lambda: served.gateway.agents["broken"].runtime is not None, what="the agent up")
        assert (await ask(served.url("broken"), SAY_THE_WORD)).text == "up"


async def test_a_changed_python_file_starts_all_agents_of_modules_again(tmp_path: Path) -> None:
    helped = "from .helper import WORD"
    late = "def late():\n    from .helper import WORD\n    return WORD"
    project = write_project(
        tmp_path,
        {
            "first": Agent(source=saying("first", "WORD", helped)),
            "helped": Agent(source=saying("helped", "WORD", helped)),
            "late": Agent(source=saying("late", "late()", late)),
            "other": Agent(source=saying("other", "'other'")),
        },
    )
    project.write_module("helper", "WORD = 'one'")
    project.edit(lambda document: document["agents"].update(declared={"instruction": "You are declared."}))
    async with running(project) as served:

        async def restarted() -> list[str]:
            before = {name: agent.runtime for name, agent in served.gateway.agents.items()}
            await served.reload()
            return [name for name, agent in served.gateway.agents.items() if agent.runtime is not before[name]]

        for name in ("first", "helped", "late"):
            assert (await ask(served.url(name), SAY_THE_WORD)).text == "one"
        (tmp_path / "notes.md").write_text("No agent names it.")
        assert await restarted() == []

        project.write_module("helper", "WORD = 'two'")
        assert await restarted() == ["first", "helped", "late", "other"]
        for name in ("first", "helped", "late"):
            assert (await ask(served.url(name), SAY_THE_WORD)).text == "two"
        assert await restarted() == []


READS = "from pathlib import Path\nWORD = Path(__file__).parent.parent.joinpath('prompts', 'tone.md').read_text()\n"


async def test_a_file_that_a_module_reads_counts_if_it_is_watched_and_only_then(tmp_path: Path) -> None:
    agents = {name: Agent(source=saying(name, "WORD", READS)) for name in ("watches", "waits")}
    project = write_project(tmp_path, agents)
    tone = tmp_path / "prompts" / "tone.md"
    tone.parent.mkdir()
    tone.write_text("soft")
    project.edit(lambda document: document["agents"]["watches"].update(watch=["prompts/*.md"]))
    async with running(project) as served:

        async def words() -> dict[str, str]:
            return {name: (await ask(served.url(name), SAY_THE_WORD)).text for name in agents}

        tone.write_text("loud")
        await served.reload()
        assert await words() == {"watches": "loud", "waits": "soft"}

        project.edit(lambda document: document["agents"]["waits"].update(watch=["prompts/tone.md"]))
        await served.reload()
        assert await words() == {"watches": "loud", "waits": "loud"}
        before = {name: served.gateway.agents[name].runtime for name in agents}
        await served.reload()
        assert {name: served.gateway.agents[name].runtime for name in agents} == before

        tone.unlink()
        await served.reload()
        assert await words() == {"watches": "loud", "waits": "loud"}
        assert served.metric("pallas_config_last_reload_successful") == 0
        tone.write_text("clear")
        await served.reload()
        assert await words() == {"watches": "clear", "waits": "clear"}


async def test_a_file_that_a_watched_pattern_matches_from_now_on_is_noticed(tmp_path: Path) -> None:
    listing = (
        "from pathlib import Path\nWORD = str(sorted(p.stem for p in Path(__file__).parents[1].glob('tones/*.md')))"
    )
    project = write_project(tmp_path, {"echo": Agent(source=saying("echo", "WORD", listing))})
    (tmp_path / "tones").mkdir()
    (tmp_path / "tones" / "soft.md").touch()
    project.edit(lambda document: document["agents"]["echo"].update(watch=["tones/*.md"]))
    async with running(project, watch=True) as served:

        async def stems(reloads: int) -> str:
            await eventually(
                lambda: served.metric("pallas_config_reloads_total", outcome="ok") == reloads, 30, what="a reload"
            )
            return (await ask(served.url("echo"), SAY_THE_WORD)).text

        (tmp_path / "tones" / "loud.md").touch()
        assert await stems(1) == "['loud', 'soft']"
        (tmp_path / "tones" / "loud.md").unlink()
        assert await stems(2) == "['soft']"


async def test_an_agent_that_watches_a_missing_file_says_so_and_comes_up_with_it(tmp_path: Path) -> None:
    project = write_project(tmp_path, {"reads": Agent(source=saying("reads", "WORD", READS)), "well": Agent()})
    project.edit(lambda document: document["agents"]["reads"].update(watch=["prompts/tone.md"]))
    async with running(project) as served:
        answer = await ask(served.url("reads"))
        assert answer.is_error
        assert f"no file to watch: {tmp_path / 'prompts' / 'tone.md'}" in answer.text
        assert (await ask(served.url("well"))).text == "hello"
        (tmp_path / "prompts").mkdir()
        (tmp_path / "prompts" / "tone.md").write_text("soft")
        await eventually(lambda: served.gateway.agents["reads"].runtime is not None, 30, what="the agent up")
        assert (await ask(served.url("reads"), SAY_THE_WORD)).text == "soft"


async def test_a_changed_server_changes_only_agents_that_use_it(tmp_path: Path) -> None:
    servers = {"used": {"url": "http://127.0.0.1:1/mcp"}}
    project = write_project(tmp_path, {"user": Agent(servers=["used"]), "other": Agent()}, servers=servers)
    async with running(project) as served:
        before = {name: agent.runtime for name, agent in served.gateway.agents.items()}
        project.edit(lambda file: file["mcp"]["servers"]["used"].update(url="http://127.0.0.1:2/mcp"), CONFIG)
        project.edit(lambda file: file["mcp"]["servers"].update(unused={"url": "http://127.0.0.1:3/mcp"}), CONFIG)
        await served.reload()
        user, other = (served.gateway.agents[name].runtime for name in ("user", "other"))
        assert other is before["other"]
        assert user is not None
        assert [one.url for one in user.downstreams] == ["http://127.0.0.1:2/mcp"]

        project.edit(lambda file: file["mcp"]["servers"]["used"].update(forward_inbound_auth=True), CONFIG)
        await served.reload()
        marked = served.gateway.agents["user"].runtime
        assert marked is not None
        assert [one.forwards_bearer for one in marked.downstreams] == [True]


CONFIG = "fastagent.config.yaml"


async def test_an_agent_reaches_a_peer_that_comes_also_when_it_has_come_back_itself(tmp_path: Path) -> None:
    servers = {"research": {"url": "http://localhost:24211/mcp"}}
    project = write_project(tmp_path, {"lead": Agent(servers=["research"]), "other": Agent()}, servers=servers)
    async with running(project) as served:

        async def reloaded(change: Callable[[dict[str, Any]], object]) -> None:
            project.edit(lambda document: change(document["agents"]))
            await served.reload()

        async def peers() -> list[str | None]:
            lead = await eventually(lambda: served.gateway.agents["lead"].runtime, what="the agent up")
            return [one.peer for one in lead.downstreams] if lead else []

        other = served.gateway.agents["other"].runtime
        project.write_module("research", module_source("research", Agent()))
        entry, entries = {"module": f"{project.package}.research", "port": 24211}, dict[str, Any]()
        await reloaded(lambda agents: agents.update(research=entry))
        assert await peers() == ["research"]
        await reloaded(lambda agents: entries.update(lead=agents.pop("lead")))
        await reloaded(lambda agents: agents.update(entries))
        assert await peers() == ["research"]
        assert served.gateway.agents["other"].runtime is other


async def test_what_the_gateway_allows_changes_with_the_next_request(tmp_path: Path) -> None:
    async with running(write_project(tmp_path, {"echo": Agent()})) as served:
        assert (await ask(served.url("echo"))).is_error is False
        served.project.edit(lambda document: document["gateway"].update(auth={"anonymous": ["view:agents"]}))
        await served.reload()
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.post(served.url("echo"), json=A_CALL, headers=JSON)).status_code == 401
            served.project.edit(lambda document: document["gateway"].pop("auth"))
            served.project.edit(lambda document: document["gateway"].update(allowed_hosts=["agents.example"]))
            foreign = {**JSON, "Host": "agents.example"}
            assert (await client.post(served.url("echo"), json=A_CALL, headers=foreign)).status_code == 421
            await served.reload()
            assert (await client.post(served.url("echo"), json=A_CALL, headers=foreign)).status_code == 200
            for limit, status in ((100, 413), (100_000, 200)):
                served.project.edit(lambda document: document["gateway"].update(max_body_bytes=limit))  # noqa: B023  called here
                await served.reload()
                assert (await client.post(served.url("echo"), json=A_CALL, headers=JSON)).status_code == status


JSON = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
A_CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "send_message", "arguments": {"message": "hello"}},
}


async def test_what_only_a_restart_changes_is_said_and_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(write_project(tmp_path, {"echo": Agent()})) as served:
        port = served.gateway.addresses.registry_port
        served.project.edit(lambda document: document["gateway"].update(port=1, host="0.0.0.0", per_port=False))  # noqa: S104
        await served.reload()
        assert served.gateway.addresses.registry_port == port
        assert (await ask(served.url("echo"))).text == "hello"
    said = {vars(one)["key"] for one in caplog.records if one.msg == "setting requires a restart"}
    assert said == {"gateway.port", "gateway.host"}


async def test_an_agent_kept_back_does_not_make_the_gateway_reload_again_and_again(tmp_path: Path) -> None:
    async with running(write_project(tmp_path, {"echo": Agent(source=saying("echo", "'one'"))}), watch=True) as served:
        served.project.write_module("echo", "from .missing import WORD\n" + saying("echo", "WORD"))
        await eventually(
            lambda: served.metric("pallas_config_reloads_total", outcome="error") == 1, 30, what="a reload"
        )
        (tmp_path / "pallas.log").write_text("ERROR agent not replaced")
        (tmp_path / served.project.package / "memory.sqlite").write_text("what an agent remembers")
        served.project.write_module("missing", "WORD = 'two'")
        await eventually(lambda: served.metric("pallas_config_reloads_total", outcome="ok") == 1, 30, what="the repair")
        assert (await ask(served.url("echo"), SAY_THE_WORD)).text == "two"
        assert served.metric("pallas_config_reloads_total", outcome="error") == 1


async def test_what_is_edited_while_agents_start_is_noticed(tmp_path: Path) -> None:
    second = saying("quick", "'two'")
    edits = (
        f"import pathlib\nquick, second = pathlib.Path(__file__).with_name('quick.py'), {second!r}\n"
        "if quick.read_text() != second:\n    quick.write_text(second)\n"
    )
    agents = {
        "quick": Agent(source=saying("quick", "'one'")),
        "slow": Agent(source=edits + saying("slow", "'up'"), settings={"depends_on": ["quick"]}),
    }
    async with running(write_project(tmp_path, agents), watch=True) as served:
        await eventually(lambda: served.metric("pallas_config_reloads_total", outcome="ok") >= 1, 30, what="a reload")
        assert (await ask(served.url("quick"), SAY_THE_WORD)).text == "two"


async def test_a_peer_may_change_while_it_answers_a_nested_call(tmp_path: Path) -> None:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        if "You are lead" in str(request.messages[0]["content"]):
            return (
                say("told") if request.tool_results else call_tools([("research__send_message", {"message": "look"})])
            )
        return hang(gate, say("found"))

    servers = {"research": {"url": "http://localhost:24211/mcp"}}
    agents = {"lead": Agent(servers=["research"]), "research": Agent(settings={"port": 24211})}
    async with gateway_and_model(tmp_path, agents, script, servers=servers) as (served, _):
        call = asyncio.create_task(ask(served.url("lead"), "go"))
        await gate.wait_for_entered()
        source = module_source("research", Agent()).replace("You are", "You became")
        served.project.write_module("research", source)
        await served.reload()
        gate.open()
        answer = await call
        assert (answer.text, answer.is_error) == ("told", False)
        assert served.metric("pallas_send_message_total", agent="research", outcome="ok") == 1
        await until_idle(served)


async def test_an_agent_alone_is_reloaded_and_what_is_wrong_with_its_name_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    agents = {"alone": Agent(source=saying("alone", "'one'")), "other": Agent()}
    project = write_project(tmp_path, agents, gateway={"host": "127.0.0.1"})
    with reserved_port() as port:
        project.edit(lambda document: document["agents"]["alone"].update(port=port))
        async with running(project, overrides=Overrides(agent="alone")) as served:
            project.write_module("alone", saying("alone", "'two'"))
            await served.reload()
            assert (await ask(f"http://127.0.0.1:{port}/mcp", SAY_THE_WORD)).text == "two"
            project.edit(lambda document: document["agents"].pop("alone"))
            await served.reload()
            assert (await ask(f"http://127.0.0.1:{port}/mcp", SAY_THE_WORD)).text == "two"
    assert any("--agent: no agent 'alone'" in str(vars(record).get("problem")) for record in caplog.records)


@crowd(10, 100)
async def test_running_calls_end_as_they_began_whatever_is_reloaded(size: int, tmp_path: Path) -> None:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        text = request.last_user_text
        return hang(gate, say(f"heard: {text}")) if text.startswith("held") else echo(request)

    def come(document: dict[str, Any]) -> None:
        document["agents"]["comes"] = {"module": document["agents"]["stays"]["module"]}

    names = ("stays", "goes", "changes", "breaks")
    sound = module_source("breaks", Agent())
    async with gateway_and_model(tmp_path, {name: Agent() for name in names}, script) as (served, _):
        calls = [
            asyncio.create_task(ask(served.url(names[n % 4]), f"held {n}", version=EACH_VERSION[n % 2]))
            for n in range(size)
        ]
        await gate.wait_for_entered(size, 60)
        served.project.edit(come)
        await served.reload()
        served.project.edit(lambda document: document["agents"].pop("goes"))
        await served.reload()
        served.project.write_module("changes", f"{module_source('changes', Agent())}\nNUMBER = 1\n")
        served.project.write_module("breaks", "half an edit (")
        await served.reload()
        assert served.metric("pallas_config_last_reload_successful") == 0
        (tmp_path / "agents.yaml").rename(tmp_path / "kept.yaml")
        await served.reload()
        (tmp_path / "kept.yaml").rename(tmp_path / "agents.yaml")
        served.project.write_module("breaks", sound)
        await served.reload()
        assert served.metric("pallas_config_last_reload_successful") == 1
        assert not any(call.done() for call in calls)
        for name in ("stays", "changes", "breaks", "comes"):
            assert (await ask(served.url(name), name)).text == f"heard: {name}"

        gate.open()
        answers = await asyncio.gather(*calls)
        assert [answer.text for answer in answers] == [f"heard: held {n}" for n in range(size)]
        assert not any(answer.is_error for answer in answers)
        await until_idle(served)


async def test_requests_are_answered_while_the_files_are_read(tmp_path: Path) -> None:
    reading, may_go_on, went_on = threading.Event(), threading.Event(), list[bool]()
    async with running(write_project(tmp_path, {"echo": Agent()})) as served:
        read = served.reloads.read

        def held() -> Configuration:
            reading.set()
            went_on.append(may_go_on.wait(20))
            return read()

        object.__setattr__(served.reloads, "read", held)  # the gateway has these already
        reloading = asyncio.create_task(served.reload())
        await eventually(reading.is_set, what="a reload")
        assert (await served.request("GET", "/livez")).status_code == 200
        may_go_on.set()
        await reloading
    assert went_on == [True]


# --- ports and certificates -------------------------------------------------------------------------------------------

PER_PORT = Overrides(per_port=True)
LOCAL = "127.0.0.1"


@pytest.fixture
def ports() -> Iterator[list[int]]:
    """Ports nobody listens on until the gateway does: the registry's and two agents'."""
    with ExitStack() as reserved:
        yield [reserved.enter_context(reserved_port()) for _ in range(3)]


def url(port: int) -> str:
    return f"http://{LOCAL}:{port}/mcp"


def with_ports(path: Path, ports: list[int], **of_agents: int) -> Project:
    agents = {name: Agent(settings={"port": port}) for name, port in of_agents.items()}
    deployment = {"registry_port": ports[0], "host": LOCAL}
    return write_project(path, agents, gateway={"host": LOCAL}, deployment=deployment)


@pytest.mark.parametrize("overrides", [PER_PORT, Overrides(agent="one")])
async def test_other_ports_need_a_restart(
    overrides: Overrides, ports: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, one, other = ports
    project = with_ports(tmp_path, ports, one=one)
    async with running(project, overrides=overrides) as served:
        project.edit(lambda document: document["agents"]["one"].update(port=other, title="Another"))
        await served.reload()
        assert served.metric("pallas_config_last_reload_successful") == 0
        why = [vars(record)["why"] for record in caplog.records if record.msg.startswith("configuration not reloaded")]
        assert why == ["ports change, which needs a restart"]
        project.edit(lambda document: document["agents"]["one"].update(port=one))
        await served.reload()
        assert served.metric("pallas_config_last_reload_successful") == 1
        assert served.gateway.agents["one"].settings.title == "Another"
        assert (await ask(url(one))).text == "hello"


async def test_a_renewed_certificate_is_shown_to_new_connections(tmp_path: Path) -> None:
    before = write_certificate(tmp_path)
    async with running(write_project(tmp_path, {"echo": Agent()}, gateway={"tls": TLS_FILES})) as served:
        https = served.url("echo").replace("http:", "https:")
        assert (await ask(https, tls=before)).text == "hello"

        end = served.metric("pallas_certificate_expires_seconds", setting="gateway.tls")
        renewed = write_certificate(tmp_path, days=200)
        (tmp_path / TLS_FILES["certfile"]).rename(tmp_path / "other.pem")
        await served.reload()  # half of a renewal: nothing changes
        assert served.metric("pallas_config_last_reload_successful") == 0
        assert (await ask(https, tls=before)).text == "hello"

        (tmp_path / "other.pem").rename(tmp_path / TLS_FILES["certfile"])
        await served.reload()
        assert served.metric("pallas_config_last_reload_successful") == 1
        assert (await ask(https, tls=renewed)).text == "hello"
        renewed_end = served.metric("pallas_certificate_expires_seconds", setting="gateway.tls")
        assert renewed_end == pytest.approx(end + 110 * 86400, abs=600)
        with pytest.raises(httpx.ConnectError) as refused:
            await ask(https, tls=before)
        assert "certificate" in str(refused.value).lower()


async def test_a_certificate_that_breaks_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trusted = write_certificate(tmp_path)
    async with running(write_project(tmp_path, {"echo": Agent()}, gateway={"tls": TLS_FILES})) as served:
        https = served.url("echo").replace("http:", "https:")
        before = served.gateway.configuration
        (tmp_path / TLS_FILES["certfile"]).write_text("half of it")
        served.project.edit(lambda document: document["agents"]["echo"].update(title="Another"))
        await served.reload()
        assert served.metric("pallas_config_last_reload_successful") == 0
        assert served.gateway.configuration is before
        assert served.gateway.agents["echo"].settings.title is None
        assert (await ask(https, tls=trusted)).text == "hello"
        assert [vars(record)["why"].partition(" (")[0] for record in caplog.records if "why" in vars(record)] == [
            f"gateway.tls: {TLS_FILES['certfile']} is no certificate that fits {TLS_FILES['keyfile']}"
        ]
