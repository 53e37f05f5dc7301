"""The lives of agents: how each kind of broken one fails, alone; how it comes back; who starts after whom."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from pallas_gateway.core.agent_state import State
from tests.support.calling import EACH_VERSION, ask, health
from tests.support.commands import started
from tests.support.downstreams import stateless_downstream
from tests.support.gateway import (
    Agent,
    Limits,
    Project,
    Running,
    gateway_and_model,
    module_source,
    running,
    until_idle,
    write_project,
)
from tests.support.listener import reserved_port
from tests.support.scripted_llm import Turn, call_tools, garbage, say, scripted_llm
from tests.support.waiting import eventually

HEADER = 'from fast_agent import FastAgent\nfast = FastAgent("broken", parse_cli_args=False)\n'
TWO_AGENTS = f"""{HEADER}
@fast.agent(name="one")
async def one() -> None: ...

@fast.agent(name="two")
async def two() -> None: ...
"""
BROKEN: Mapping[str, tuple[Agent, str]] = {
    "raises": (Agent(source="\nraise ValueError('no such luck')"), "ValueError: no such luck"),
    "exits": (Agent(source="import sys\nsys.exit(3)"), "SystemExit: 3"),
    "interrupts": (Agent(source="raise KeyboardInterrupt"), "KeyboardInterrupt"),
    "cancels": (Agent(source="import asyncio\nraise asyncio.CancelledError"), "CancelledError"),
    "misspelt": (Agent(source="def ("), "SyntaxError"),
    "missing": (Agent(settings={"module": "no_such_package.agent"}), "no module 'no_such_package.agent'"),
    "importless": (Agent(source="import no_such_library"), "No module named 'no_such_library'"),
    "fastless": (Agent(source="slow = 1"), "has no FastAgent"),
    "otherwise": (Agent(source="fast = 1"), "has no FastAgent"),
    "empty": (Agent(source=HEADER), "defines no agent to serve"),
    "undecided": (Agent(source=TWO_AGENTS), "defines several agents (one and two)"),
    "serverless": (Agent(servers=["nowhere"]), "not defined in config: nowhere; define each under `mcp.servers`"),
    "keyless": (Agent(model="openai.gpt-4o"), "OpenAI API key is required"),
}
STATES = re.compile(r"^(\w+) +(ready|failed)", re.MULTILINE)
STARTED_BY_HAND = {name: agent for name, (agent, _) in BROKEN.items() if name not in {"missing", "keyless"}}


@pytest.fixture
def quick_retries(limits: Limits) -> None:
    limits.gateway.lives.first_retry_seconds = 0.01
    limits.gateway.lives.last_retry_seconds = 0.05


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_broken_agents_say_why_and_the_others_serve(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    broken = {name: agent for name, (agent, _) in BROKEN.items()}
    async with running(write_project(tmp_path, {"first": Agent(), **broken, "last": Agent()})) as served:
        for name in ("first", "last"):
            assert (await health(served.url(name), version=version))["status"] == "ok"
            assert (await ask(served.url(name), "still here", version=version)).text == "still here"
        for name, (_, why) in BROKEN.items():
            sick = await health(served.url(name), version=version)
            refused = await ask(served.url(name), version=version)
            assert (sick["status"], refused.is_error) == ("error", True)
            assert why in sick["message"]
            assert why in refused.text
            assert "Traceback" not in refused.text
            assert served.metric("pallas_agent_state", agent=name, state="failed") == 1
            assert served.metric("pallas_calls_refused_total", agent=name, reason="agent_unavailable") == 1
        async with httpx.AsyncClient(base_url=served.base_url) as http:
            assert (await http.get("/readyz")).json()["not_up"].keys() == BROKEN.keys()
            assert (await http.get("/readyz?strict=1")).status_code == 503
            listed = (await http.get("/.well-known/mcp/server.json")).json()["servers"]
        assert len(listed) == len(BROKEN) + 2


@pytest.mark.usefixtures("quick_retries")
async def test_mended_modules_make_their_agents_ready_without_a_restart(tmp_path: Path) -> None:
    async with running(write_project(tmp_path, STARTED_BY_HAND)) as served:
        for name in STARTED_BY_HAND:
            assert (await ask(served.url(name))).is_error
            served.project.write_module(name, module_source(name, Agent()))
        for name in STARTED_BY_HAND:
            await until_ready(served, name)
            assert (await ask(served.url(name), "well again")).text == "well again"
            assert (await health(served.url(name)))["status"] == "ok"


@pytest.mark.parametrize("helper", ["def broken(:", "answer = 41"])
async def test_mended_file_that_a_module_imports_makes_its_agent_ready_at_once(
    helper: str, tmp_path: Path, limits: Limits
) -> None:
    limits.gateway.lives.first_retry_seconds = 3600
    limits.gateway.lives.last_retry_seconds = 3600
    limits.gateway.lives.watch_seconds = 0.01
    needing = "from .helper import answer\nassert answer == 42\n" + module_source("sick", Agent())
    project = write_project(tmp_path, {"sick": Agent(source=needing), "well": Agent()})
    project.write_module("helper", helper)
    async with running(project) as served:
        assert (await ask(served.url("sick"))).is_error
        project.write_module("helper", "answer = 42")
        await until_ready(served, "sick")
        assert (await ask(served.url("well"))).text == "hello"


@pytest.mark.usefixtures("quick_retries")
async def test_module_that_appears_later_makes_its_agent_ready(tmp_path: Path) -> None:
    project = write_project(tmp_path, {"late": Agent()})
    (tmp_path / project.package / "late.py").unlink()
    async with running(project) as served:
        assert "no module" in (await ask(served.url("late"))).text
        project.write_module("late", module_source("late", Agent()))
        await until_ready(served, "late")

        assert (await ask(served.url("late"), "here I am")).text == "here I am"


@pytest.mark.usefixtures("quick_retries")
async def test_mended_fastagent_config_makes_its_agent_ready(tmp_path: Path) -> None:
    async with stateless_downstream() as tools:
        project = write_project(tmp_path, {"sick": Agent(servers=["tools"])})
        config = tmp_path / "fastagent.config.yaml"
        async with running(project) as served:
            assert "tools" in (await ask(served.url("sick"))).text
            servers = {"tools": {"transport": "http", "url": tools.url}}
            config.write_text(yaml.safe_dump({**yaml.safe_load(config.read_text()), "mcp": {"servers": servers}}))
            await until_ready(served, "sick")

            await ask(served.url("sick"), '***CALL_TOOL tools__echo {"text": "hi"}')
            assert [call.tool for call in tools.recorder.calls()] == ["echo"]


@pytest.mark.usefixtures("quick_retries")
async def test_failing_again_and_again_is_one_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    counting = "import pathlib\nwith pathlib.Path('tries').open('a') as tries: tries.write('x')\nraise ValueError('no')"
    project = write_project(tmp_path, {"sick": Agent(source=counting)})
    async with running(project):
        await eventually(lambda: len((tmp_path / "tries").read_text()) >= 4, what="four tries")

    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == ["agent failed"]


async def test_one_failed_call_is_not_logged_as_an_agent_that_is_down(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway_and_model(tmp_path, {"echo": Agent()}, lambda _: garbage()) as (served, _):
        assert (await ask(served.url("echo"))).is_error
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert errors == ["generation failed"]


async def test_import_that_hangs_holds_up_neither_the_others_nor_the_stop(tmp_path: Path, limits: Limits) -> None:
    limits.runtime.import_turn_seconds = 0.05
    with reserved_port() as port, held_import(tmp_path) as held:
        project = write_project(tmp_path, {"stuck": held.agent, "fine": Agent()}, gateway={"port": port})
        async with starting(project) as gateway:
            await gateway.until_ready("fine")
            assert (await ask(gateway.url("fine"), "not me")).text == "not me"
            sick = await health(gateway.url("stuck"))
            assert (sick["status"], sick["message"]) == ("error", "the agent is starting")
            async with asyncio.timeout(15):  # half of what agents get to leave in
                await gateway.stop()


async def test_import_that_hangs_for_too_long_is_a_failure(tmp_path: Path, limits: Limits) -> None:
    limits.runtime.import_turn_seconds = 0.05
    limits.runtime.import_seconds = 0.1
    with held_import(tmp_path) as held:
        async with running(write_project(tmp_path, {"stuck": held.agent})) as served:
            assert "still importing" in (await ask(served.url("stuck"))).text


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_listener_answers_while_agents_are_starting(version: str, tmp_path: Path) -> None:
    with reserved_port() as port, held_import(tmp_path) as held:
        project = write_project(tmp_path, {"slow": held.agent}, gateway={"port": port, "queue_seconds": 0.05})
        async with starting(project) as gateway, httpx.AsyncClient(base_url=gateway.base_url) as http:
            await gateway.until_live()
            assert (await http.get("/livez")).status_code == 200
            ready = await http.get("/readyz")
            assert (ready.status_code, ready.json()["status"]) == (503, "starting")
            assert ready.json()["not_up"]["slow"]["state"] == "starting"
            assert (await health(gateway.url("slow"), version=version))["status"] == "error"
            refused = await ask(gateway.url("slow"), version=version)
            assert refused.is_error
            assert "try again" in refused.text

            await eventually(held.release, 20, what="the import that waits")
            await gateway.until_ready("slow")
            assert (await http.get("/readyz")).status_code == 200
            assert (await ask(gateway.url("slow"), "at last", version=version)).text == "at last"


async def test_an_agent_that_a_reload_adds_is_no_reason_for_strict_readiness_to_fail_before_it_was_tried(
    tmp_path: Path,
) -> None:
    with held_import(tmp_path) as held:
        project = write_project(tmp_path, {"echo": Agent()})
        async with running(project) as served, httpx.AsyncClient(base_url=served.base_url) as http:
            project.write_module("slow", str(held.agent.source))
            project.edit(lambda document: document["agents"].update(slow={"module": f"{project.package}.slow"}))
            await served.reload()
            starting = await http.get("/readyz?strict=1")
            await eventually(held.release, what="the import that waits")
            await until_ready(served, "slow")
            afterwards = (await http.get("/readyz?strict=1")).json()
    assert (starting.status_code, [*starting.json()["not_up"]]) == (200, ["slow"])
    assert afterwards == {"status": "ready", "agents": 2, "not_up": {}}


async def test_a_changed_agent_answers_as_before_while_its_new_version_starts(tmp_path: Path) -> None:
    with held_import(tmp_path) as held:
        project = write_project(tmp_path, {"echo": Agent()})
        async with running(project) as served:
            project.write_module("echo", str(held.agent.source))
            reloading = asyncio.create_task(served.reload())
            await eventually(import_threads, what="the import of the new version")
            answer = await ask(served.url("echo"), "meanwhile")
            assert not reloading.done()
            await eventually(held.release, what="the import that waits")
            await reloading
    assert (answer.text, answer.is_error) == ("meanwhile", False)


async def test_agent_starts_after_those_it_depends_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="pallas.agents")
    agents = {
        "roof": Agent(settings={"depends_on": ["walls"]}),
        "walls": Agent(settings={"depends_on": ["ground"]}),
        "ground": Agent(),
    }
    async with running(write_project(tmp_path, agents)):
        pass

    assert [f"{agent} {state}" for agent, state in state_changes(caplog) if state != "stopping"] == [
        "ground starting",
        "ground ready",
        "walls starting",
        "walls ready",
        "roof starting",
        "roof ready",
    ]


async def test_dependant_is_held_back_until_its_dependency_is_ready(tmp_path: Path) -> None:
    with reserved_port() as port, held_import(tmp_path) as held:
        agents = {"above": Agent(settings={"depends_on": ["below"]}), "below": held.agent}
        async with starting(write_project(tmp_path, agents, gateway={"port": port})) as gateway:
            await gateway.until_live()
            assert (await health(gateway.url("above")))["message"] == "the agent is pending"
            await eventually(held.release, 20, what="the import that waits")
            await gateway.until_ready("above")
            assert (await ask(gateway.url("below"), "first")).text == "first"


async def test_dependency_that_takes_too_long_is_not_waited_for(tmp_path: Path, limits: Limits) -> None:
    limits.runtime.import_turn_seconds = 0.05
    limits.gateway.lives.dependency_seconds = 0.05
    with reserved_port() as port, held_import(tmp_path) as held:
        agents = {"above": Agent(settings={"depends_on": ["below"]}), "below": held.agent}
        async with starting(write_project(tmp_path, agents, gateway={"port": port})) as gateway:
            await gateway.until_ready("above")


async def test_failed_dependency_does_not_hold_its_dependant(tmp_path: Path) -> None:
    agents = {"above": Agent(settings={"depends_on": ["below"]}), "below": BROKEN["raises"][0]}
    async with asyncio.timeout(20), running(write_project(tmp_path, agents)) as served:
        assert served.gateway.agents["below"].status.state is State.FAILED
        assert (await ask(served.url("above"), "up")).text == "up"


async def test_stopping_does_not_wait_for_agents_that_wait_for_others(tmp_path: Path) -> None:
    with reserved_port() as port, held_import(tmp_path) as held:
        agents = {"below": held.agent, "above": Agent(settings={"depends_on": ["below"]})}
        async with starting(write_project(tmp_path, agents, gateway={"port": port})) as gateway:
            await gateway.until_live()
            async with asyncio.timeout(15):  # half of what agents get to leave in
                await gateway.stop()


async def test_calls_write_nothing_to_disk_and_nothing_to_stdout(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script: list[Turn] = [call_tools([("tools__fail", {"message": "no"})]), say("It failed."), say("Yes."), say("No.")]
    async with scripted_llm(script) as llm, stateless_downstream() as tools:
        servers = {"tools": {"transport": "http", "url": tools.url}}
        agents = {"busy": Agent(servers=["tools"]), "sick": BROKEN["raises"][0]}
        project = write_project(tmp_path, agents, llm_url=llm.base_url, servers=servers)
        before = files_below(tmp_path)
        async with running(project) as served:
            await ask(served.url("busy"), "one", version=EACH_VERSION[0])
            await ask(served.url("busy"), "two", history=[{"role": "user", "content": "earlier"}])
            await ask(served.url("busy"), "three", conversation_id="c-1")
            await ask(served.url("sick"))
            await until_idle(served)

    assert files_below(tmp_path) == before
    assert capfd.readouterr().out == ""


async def test_serve_keeps_stdout_and_arguments_to_itself(tmp_path: Path) -> None:
    """An agent that prints, and one that parses the process's arguments, as modules written for the terminal do."""
    project = write_project(
        tmp_path,
        {
            "chatty": Agent(source="print('noise')\n" + module_source("chatty", Agent())),
            "parsing": Agent(source=module_source("parsing", Agent()).replace(", parse_cli_args=False", "")),
            "exiting": BROKEN["exits"][0],
        },
    )
    with started(["serve", "--port", "0", "--host", "127.0.0.1"], project.path, is_real=True) as program:
        await asyncio.to_thread(program.wait_until, lambda: len(STATES.findall(program.out)) == 3, "three states")
        assert (await ask(f"{program.url}/agents/chatty/mcp", "quiet")).text == "quiet"
        assert (await ask(f"{program.url}/agents/parsing/mcp", "all mine")).text == "all mine"
        program.signal(signal.SIGTERM)
        printed = program.end()

    assert STATES.findall(printed.out) == [("chatty", "ready"), ("parsing", "ready"), ("exiting", "failed")]
    assert "noise" not in printed.out
    assert printed.code == 0
    assert not (tmp_path / ".fast-agent").exists()


async def until_ready(served: Running, name: str) -> None:
    agent = served.gateway.agents[name]
    await eventually(lambda: agent.status.state is State.READY, 10, what=f"{name} ready ({agent.status})")


async def fetched(url: str) -> httpx.Response | None:
    """What is at `url`; None if nobody listens there yet."""
    try:
        async with httpx.AsyncClient() as http:
            return await http.get(url)
    except httpx.ConnectError:
        return None


def state_changes(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    records = [record for record in caplog.records if record.name == "pallas.agents"]
    return [(vars(record)["agent"], record.getMessage().removeprefix("agent ")) for record in records]


def files_below(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if "__pycache__" not in file.parts)


class Held:
    """An agent whose import waits until somebody writes to a pipe."""

    def __init__(self, pipe: Path) -> None:
        self._pipe = pipe
        source = module_source("held", Agent())
        self.agent = Agent(source=f"import pathlib\npathlib.Path({str(pipe)!r}).read_text()\n{source}")

    def release(self) -> bool:
        """Let every import that waits go on; whether one did."""
        try:
            os.close(os.open(self._pipe, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            return False  # nobody is reading
        return True


@contextmanager
def held_import(tmp_path: Path) -> Iterator[Held]:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    held = Held(pipe)
    try:
        yield held
    finally:
        for thread in import_threads():
            while thread.is_alive():
                held.release()
                thread.join(0.05)


def import_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "agent-import"]


class Starting:
    """A gateway on a known port, from before its agents were tried."""

    def __init__(self, base_url: str, serving: asyncio.Task[None]) -> None:
        self.base_url = base_url
        self._serving = serving

    def url(self, agent: str) -> str:
        return f"{self.base_url}/agents/{agent}/mcp"

    async def until_live(self) -> None:
        await eventually(lambda: fetched(f"{self.base_url}/livez"), 20, what="the listener")

    async def until_ready(self, agent: str) -> None:
        await eventually(lambda: self._is_up(agent), 20, what=f"{agent} ready")

    async def _is_up(self, agent: str) -> bool:
        readiness = await fetched(f"{self.base_url}/readyz")
        return readiness is not None and agent not in readiness.json()["not_up"]

    async def stop(self) -> None:
        self._serving.cancel()
        await asyncio.wait({self._serving})
        if not self._serving.cancelled():
            self._serving.result()


@asynccontextmanager
async def starting(project: Project) -> AsyncIterator[Starting]:
    """Serve `project`, which names its port; the block begins at once."""
    port = yaml.safe_load((project.path / "agents.yaml").read_text())["gateway"]["port"]

    async def serve() -> None:
        async with running(project):
            await asyncio.Event().wait()

    gateway = Starting(f"http://127.0.0.1:{port}", asyncio.create_task(serve()))
    try:
        yield gateway
    finally:
        await gateway.stop()
