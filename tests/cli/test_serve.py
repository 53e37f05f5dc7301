"""`serve` and `pallas` in processes of their own: what they print, when, and how they end."""

import asyncio
import contextlib
import io
import shlex
import signal
import socket
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.support.commands import PALLAS, PALLAS_MODULE, PATIENT_GATEWAY, Command, Program, started
from tests.support.gateway import Agent, module_source, write_project
from tests.support.listener import reserved_port
from tests.support.scripted_llm import Say, hang, scripted_llm
from tests.support.terminal import CTRL_C, at_terminal
from tests.support.waiting import Gate

NOISY = "print('noise from a module')\n" + module_source("echo", Agent())

MANY = 50
STOP_SECONDS = 20


def registered(base_url: str) -> list[str]:
    servers = httpx.get(f"{base_url}/.well-known/mcp/server.json").json()["servers"]
    return [entry["server"]["remotes"][0]["url"] for entry in servers]


def test_serve_prints_where_everything_is_and_nothing_else(gateway: Program) -> None:
    url, (reason,) = gateway.url, [line for line in gateway.out.splitlines() if line.startswith("broken: ")]
    assert gateway.out.splitlines() == [
        "AGENT           STATE    URL",
        f"echo            ready    {url}/agents/echo/mcp",
        f"tech_research   ready    {url}/agents/tech_research/mcp",
        f"broken          failed   {url}/agents/broken/mcp",
        "",
        reason,
        "",
        f"Registry:   {url}/.well-known/mcp/server.json",
        f"All agents: {url}/mcp",
        f"Console:    {url}/console/",
        f"Talk:       pallas-gateway chat echo --url {url}",
        f"Try:        pallas-gateway call echo 'Hello' --url {url}",
    ]
    assert "ValueError: no key" in reason
    gateway.wait_for("ERROR agent failed agent=broken")


def test_what_is_printed_to_try_works(asking: Command, gateway: Program) -> None:
    assert asking(*printed_command(gateway)).out == "Hello\n"


def printed_command(program: Program) -> list[str]:
    return shlex.split(program.out.splitlines()[-1].removeprefix("Try:        pallas-gateway "))


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_ctrl_c_says_that_a_second_one_stops_at_once_and_it_does(workers: str, tmp_path: Path) -> None:
    gate = Gate()
    async with scripted_llm(lambda request: Say(("never", "told"), gate=gate)) as llm:
        project = write_project(tmp_path / "project", {"slow": Agent()}, llm_url=llm.base_url)
        async with (
            at_terminal(["serve", "--workers", workers], project.path, {"PALLAS_LOG_FILE": ""}) as terminal,
            httpx.AsyncClient(timeout=30) as client,
        ):
            await terminal.shows("Registry:   ")
            url = await terminal.shows("/.well-known")
            await terminal.shows("Try:")
            body = tools_call("send_message", {"message": "hi"})
            calling = asyncio.create_task(client.post(f"{url}/agents/slow/mcp", **body))
            await gate.wait_for_entered(timeout_seconds=20)
            await terminal.press(CTRL_C)
            await terminal.shows("Stopping once running calls have ended. Press Ctrl-C again to stop at once.")
            assert not calling.done()
            await terminal.press(CTRL_C)
            assert await terminal.ends() == 1  # the drain alone would take longer than `ends` waits
            with pytest.raises(httpx.HTTPError):
                await calling


async def test_a_second_signal_ends_serve_at_once_while_a_call_hangs(tmp_path: Path) -> None:
    gate = Gate()
    async with scripted_llm(lambda request: Say(("never", "told"), gate=gate)) as llm:
        project = write_project(tmp_path / "project", {"slow": Agent()}, llm_url=llm.base_url)
        with started(["serve"], project.path) as program:
            await asyncio.to_thread(program.wait_for, "Try:")
            body = tools_call("send_message", {"message": "hi"})
            async with httpx.AsyncClient(timeout=30) as client:
                calling = asyncio.create_task(client.post(f"{program.url}/agents/slow/mcp", **body))
                await gate.wait_for_entered(timeout_seconds=20)
                program.signal(signal.SIGTERM)
                await asyncio.to_thread(program.wait_for, "stopping")
                program.signal(signal.SIGTERM)
                ran = await asyncio.to_thread(program.end, 5)  # the drain alone would take 30 s
                with pytest.raises(httpx.HTTPError):
                    await calling

    assert ran.code == 1
    assert ran.err.splitlines()[-1].endswith("process ended by a second signal")


@pytest.mark.parametrize(
    ("drain_seconds", "is_answered", "says"),
    [
        (30, True, '"isError":false'),
        (0.5, False, "The gateway is stopping and could not wait for this call any longer."),
    ],
    ids=["answered in time", "hanging"],
)
async def test_fifty_running_calls_all_end_with_an_answer_and_serve_with_0(
    drain_seconds: float, is_answered: bool, says: str, tmp_path: Path
) -> None:
    gate = Gate()
    async with scripted_llm(lambda _: hang(gate)) as llm:
        project = write_project(
            tmp_path / "project", {"slow": Agent()}, llm_url=llm.base_url, gateway={"drain_seconds": drain_seconds}
        )
        with started(["serve"], project.path, command=PATIENT_GATEWAY) as program:
            await asyncio.to_thread(program.wait_for, "Try:")
            url = f"{program.url}/agents/slow/mcp"
            body = tools_call("send_message", {"message": "hi"})
            async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=None)) as client:
                calls = [asyncio.create_task(client.post(url, **body)) for _ in range(MANY)]
                await gate.wait_for_entered(MANY, timeout_seconds=40)
                program.signal(signal.SIGTERM)
                await asyncio.to_thread(program.wait_for, "stopping")
                refused = await client.post(url, **body)
                if is_answered:
                    gate.open()
                answers = await asyncio.wait_for(asyncio.gather(*calls), STOP_SECONDS)
            ran = await asyncio.to_thread(program.end, STOP_SECONDS)

    assert ran.code == 0
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert {answer.status_code for answer in answers} == {200}
    assert [answer.text for answer in answers if says not in answer.text] == []
    assert len(llm.requests) == MANY
    assert "Traceback" not in ran.err


def tools_call(name: str, arguments: dict[str, object]) -> dict[str, Any]:
    rpc = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
    return {"json": rpc, "headers": {"Accept": "application/json, text/event-stream"}}


@pytest.fixture
def ports() -> Generator[list[int]]:
    """Ports that are free, and stay so until somebody listens on them."""
    with contextlib.ExitStack() as reserved:
        yield [reserved.enter_context(reserved_port()) for _ in range(3)]


def test_pallas_serves_every_agent_on_its_own_port_and_ends_with_0_on_sigterm(
    run: Command, tmp_path: Path, ports: list[int]
) -> None:
    registry, *own = ports
    agents = {name: Agent(settings={"port": port}) for name, port in zip(("echo", "other"), own, strict=True)}
    deployment = {"registry_port": registry, "host": "pallas.invalid"}  # a name that this machine does not know
    project = write_project(tmp_path / "project", agents, deployment=deployment)
    with started([], project.path, command=PALLAS) as program:
        program.wait_for("Try:")
        urls = [f"http://pallas.invalid:{port}/mcp" for port in own]
        assert registered(f"http://127.0.0.1:{registry}") == urls
        assert run(*printed_command(program)).out == "Hello\n"
        assert httpx.post(f"http://127.0.0.1:{own[0]}/agents/echo/mcp").status_code == 404
        program.signal(signal.SIGTERM)
        ran = program.end()

    assert ran.code == 0
    assert [line.split()[-1] for line in ran.out.splitlines()[1:3]] == urls
    assert f"Registry:   http://pallas.invalid:{registry}/.well-known/mcp/server.json" in ran.out
    assert ran.err.count("LISTENING BEYOND THIS MACHINE WITHOUT AUTHENTICATION") == 1


@pytest.mark.parametrize("command", [PALLAS, PALLAS_MODULE])
def test_pallas_with_an_agent_serves_that_agent_alone_and_ends_with_0_on_sigint(
    tmp_path: Path, ports: list[int], command: tuple[str, ...]
) -> None:
    agents = {
        "echo": Agent(source=NOISY, settings={"port": ports[0], "depends_on": ["other"]}),
        "other": Agent(source="raise SystemExit('must not be imported')", settings={"port": ports[1]}),
    }
    project = write_project(tmp_path / "project", agents, deployment={"registry_port": ports[2]})
    with started(["--agent", "echo", "--host", "127.0.0.1"], project.path, command=command) as program:
        program.wait_for("ready   http")
        assert httpx.get(f"http://127.0.0.1:{ports[0]}/livez").status_code == 200
        assert httpx.get(f"http://127.0.0.1:{ports[0]}/.well-known/mcp/server.json").status_code == 404
        for port in ports[1:]:
            with pytest.raises(httpx.ConnectError):
                httpx.get(f"http://127.0.0.1:{port}/livez")
        program.signal(signal.SIGINT)
        ran = program.end()

    assert ran.code == 0
    assert ran.out == f"AGENT   STATE   URL\necho    ready   http://localhost:{ports[0]}/mcp\n"
    assert "noise from a module" in ran.err
    assert "must not be imported" not in ran.err


TALKATIVE = """
import os, subprocess, sys

from fast_agent import FastAgent
from fast_agent.ui import console

class Meanwhile(str):
    def __str__(self):
        print("a record of another thread", file=sys.stderr)
        return self

def talk(when):
    print("printed", Meanwhile(when))
    sys.stdout.write(f"written {when}\\n")
    os.write(1, f"past Python {when}\\n".encode())
    subprocess.run([sys.executable, "-c", f"print('by a child {when}')"])
    for one in (console.console, console.error_console, console.server_console):
        one.print("on a console", when)

talk("at import")
fast = FastAgent("echo", parse_cli_args=False)

def count(text: str) -> str:
    talk("in a call")
    return "counted"

@fast.agent(name="echo", instruction="You are echo.", default=True, function_tools=[count])
async def agent() -> None: ...
"""


def test_nothing_that_an_agent_prints_reaches_stdout(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project", {"echo": Agent(source=TALKATIVE)})
    with started(["serve"], project.path, command=PATIENT_GATEWAY) as program:
        program.wait_for("Try:")
        body = tools_call("send_message", {"message": '***CALL_TOOL count {"text": "x"}'})
        assert "counted" in httpx.post(f"{program.url}/agents/echo/mcp", **body, timeout=30).text
        program.signal(signal.SIGTERM)
        ran = program.end()

    firsts = [line.split()[0] for line in ran.out.splitlines() if line]
    assert firsts == ["AGENT", "echo", "Registry:", "All", "Console:", "Talk:", "Try:"]
    for when in ("at import", "in a call"):
        for how in ("printed", "written", "past Python", "by a child"):
            assert f"{how} {when}\n" in ran.err


# What keeps it from starting needs no process of its own.


def test_a_port_that_is_taken_ends_serve_with_1_and_says_which(run: Command, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        write_project(folder / "project", {"echo": Agent()})
        ran = run("serve", "--config", folder / "project" / "agents.yaml", "--port", port)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.splitlines()[-1] == (
        f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another with --port or gateway.port"
    )


def test_an_unset_variable_in_a_downstream_header_is_warned_about(
    run: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "__stderr__", stderr := io.StringIO())
    servers = {
        "tools": {"url": "http://127.0.0.1:9/${SOME_PATH}", "headers": {"Authorization": "Bearer ${SOME_TOKEN}"}}
    }
    with socket.create_server(("127.0.0.1", 0)) as taken:
        write_project(folder / "project", {"echo": Agent()}, servers=servers)
        monkeypatch.chdir(folder / "project")
        run("serve", "--port", taken.getsockname()[1])
    warnings = [line for line in stderr.getvalue().splitlines() if "WARNING" in line]
    assert [line.partition("not set ")[2].split() for line in warnings] == [
        ["variable=SOME_TOKEN", "key=mcp.servers.tools.headers.Authorization", "file=fastagent.config.yaml", "line=6"]
    ]


def test_names_that_are_not_known_are_warned_about(run: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "__stderr__", stderr := io.StringIO())
    gateway = {"limits": {"rules": [{"agent": "ecko", "calls_at_once": 1}]}, "audit_log": "nowhere/audit.log"}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        write_project(folder / "project", {"echo": Agent()}, gateway=gateway)
        monkeypatch.chdir(folder / "project")
        run("serve", "--port", taken.getsockname()[1])
    warnings = [line for line in stderr.getvalue().splitlines() if "name in the configuration is not known" in line]
    assert ["WARNING" in line and line.split("setting=")[1].split()[0] for line in warnings] == [
        "gateway.limits.rules.0.agent",
        "gateway.audit_log",
    ]
    assert "did you mean 'echo'?" in warnings[0]


def test_only_servers_that_get_the_callers_own_token_are_warned_about(
    run: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "__stderr__", stderr := io.StringIO())
    marked = {"url": "http://127.0.0.1:9/mcp", "forward_inbound_auth": True}
    servers = {
        "handed": marked,
        "own": {**marked, "access_token": "its-own"},
        "exchanged": {**marked, "token_exchange": {"token_endpoint": "http://127.0.0.1:9/token"}},
    }
    jwt = {"issuer": "https://login.example.com", "jwks_uri": "https://login.example.com/jwks", "audience": "here"}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        write_project(folder / "project", {"echo": Agent()}, servers=servers, gateway={"auth": {"jwt": jwt}})
        monkeypatch.chdir(folder / "project")
        run("serve", "--port", taken.getsockname()[1])
    warnings = [line for line in stderr.getvalue().splitlines() if "are forwarded to another server" in line]
    assert [line.rpartition("server=")[2] for line in warnings] == ["handed"]


@pytest.mark.parametrize(
    "environ",
    [{"PALLAS_LOG_LEVEL": "ERROR"}, {"PALLAS_LOG_LEVEL": "CRITICAL"}, {"PALLAS_LOG_STDERR": "0"}],
    ids=str,
)
def test_no_log_setting_hides_that_everybody_is_let_in(
    run: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with socket.create_server(("0.0.0.0", 0)) as taken:  # noqa: S104  so that serve ends at once
        write_project(folder / "project", {"echo": Agent()}, gateway={"host": "0.0.0.0"})  # noqa: S104
        monkeypatch.chdir(folder / "project")
        ran = run("serve", "--port", taken.getsockname()[1])
    first, *_ = ran.err.splitlines()
    assert first == (
        "LISTENING BEYOND THIS MACHINE WITHOUT AUTHENTICATION: anyone who reaches the port can call every agent; "
        "make a key with `pallas-gateway token new`, or bind 127.0.0.1"
    )


def test_a_bad_configuration_ends_serve_with_2_and_every_problem(run: Command, folder: Path) -> None:
    Path("agents.yaml").write_text("name: test\nagents:\n  echo:\n    modul: a.b\n    port: high\ngatway: {}\n")
    ran = run("serve")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines() == [
        "agents.yaml:3: agents.echo: requires a module, an instruction, an instruction_file or a card",
        "agents.yaml:4: agents.echo.modul: unknown key (did you mean 'module'?)",
        "agents.yaml:5: agents.echo.port: must be a whole number",
        "agents.yaml:6: gatway: unknown key (did you mean 'gateway'?)",
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--agent", "ecoh"], "--agent: no agent 'ecoh' (did you mean 'echo'?)"),
        (["--agent", "echo"], "agents.yaml:2: agents.echo.port: is required with --agent"),
        (["--per-port"], "agents.yaml:2: agents.echo.port: is required with --per-port, which `pallas` implies"),
        (["--port", "70000"], "--port: must be at most 65535"),
        (["--public-url", "agents.example.com"], "--public-url: must be an absolute http:// or https:// URL"),
    ],
)
def test_an_option_that_cannot_be_is_named(run: Command, folder: Path, arguments: list[str], says: str) -> None:
    Path("agents.yaml").write_text(yaml.safe_dump({"name": "test", "agents": {"echo": {"module": "a.b"}}}))
    ran = run("serve", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err


def test_an_option_nobody_knows_is_bad_usage(run: Command) -> None:
    ran = run("serve", "--prot", "1")
    assert (ran.code, ran.out) == (2, "")
    assert "--prot" in ran.err
