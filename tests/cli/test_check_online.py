"""`check --online` asks what the project uses: downstreams, their tools, keys and models."""

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from pallas_gateway.cli.check_project import inspect
from pallas_gateway.cli.project import make_ready, read_project
from pallas_gateway.config.loading.loader import Overrides
from pallas_gateway.limits import ProgramLimits, RuntimeLimits
from tests.support.commands import READY_SECONDS, Command, Ran, started
from tests.support.downstreams import refusing, stateless_downstream
from tests.support.gateway import Agent, Project, declare_project, write_project
from tests.support.imperfect_servers import imperfect_servers, listing, paged, settings_of, tool
from tests.support.listener import reserved_port
from tests.support.odd_server import Document, Raw
from tests.support.scripted_llm import scripted_llm

type Check = Callable[[Project], Awaitable[Ran]]

# Imports nothing: one that takes seconds to start on a busy machine does not answer a probe in time.
PROGRAM = """
import json, sys
server = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "l", "version": "1"}}
answers = {"initialize": server, "tools/list": {"tools": [{"name": "search", "inputSchema": {"type": "object"}}]}}
for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        method = request["method"]
        if method == "initialize" and "elicitation" in request["params"]["capabilities"]:
            answers["tools/list"]["tools"].append({"name": "confirm", "inputSchema": {"type": "object"}})
        answer = {"result": answers[method]} if method in answers else {"error": {"code": -32601, "message": "unknown"}}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)
"""
LIBRARY = {"command": sys.executable, "args": ["-S", "-c", PROGRAM]}
TALKS = {"instruction": "You talk."}


@pytest.fixture(autouse=True)
def _no_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "HF_TOKEN", "OPENAI_BASE_URL", "FAST_AGENT_MODEL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def checked(run: Command, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Runs `check --online` in this process, in a thread: the servers of the test answer meanwhile."""

    async def check(project: Project) -> Ran:
        monkeypatch.chdir(project.path)
        return await asyncio.to_thread(run, "check", "--online")

    return check


def line_of(project: Project, file: str, text: str) -> int:
    lines = (project.path / file).read_text().splitlines()
    return next(number for number, line in enumerate(lines, start=1) if line.strip().startswith(text))


def openai(base_url: str, **more: Any) -> Mapping[str, Any]:
    return {"default_model": "openai.gpt-4o", "openai": {"api_key": "not-a-key", "base_url": base_url}, **more}


async def test_a_project_whose_servers_and_models_are_there_is_fine(tmp_path: Path) -> None:
    def check() -> Ran:
        with started(["check", "--online"], project.path) as program:
            return program.end(READY_SECONDS)

    async with stateless_downstream() as tools, scripted_llm(models=["gpt-4o"]) as llm:
        agents = {"one": {**TALKS, "servers": ["tools", "library"], "tools": ["tools__add", "library__s*"]}}
        servers = {"tools": {"url": tools.url}, "library": LIBRARY}
        project = declare_project(tmp_path, agents, servers=servers, fastagent=openai(llm.base_url))
        ran = await asyncio.to_thread(check)
    assert (ran.code, ran.out, ran.err) == (0, "agents.yaml is fine: 1 agent (one)\n", "")
    assert llm.requests == []  # no completion


async def test_servers_that_do_not_answer_and_filters_that_match_nothing_are_problems_at_their_lines(
    tmp_path: Path, checked: Check
) -> None:
    async with stateless_downstream() as tools, refusing(503) as broken:
        with reserved_port() as port:
            uses = {**TALKS, "servers": ["tools", "library", "dead", "broken", "absent", "one-text"]}
            agents = {
                "one": {**uses, "tools": ["tools__ad", "tools__echo", "library__zzz", "library__confirm", "dead__x"]},
                "two": uses,
            }
            servers = {
                "tools": {"url": tools.url},
                "library": LIBRARY,
                "dead": {"url": f"http://127.0.0.1:{port}/mcp"},
                "broken": {"url": broken.url},
                "absent": {"command": "no-such-command"},
                "one-text": {"command": "no-such-command --with=arguments"},
            }
            project = declare_project(tmp_path, agents, servers=servers)
            ran = await checked(project)
    assert (ran.code, ran.out) == (2, "")

    def at(server: str) -> str:
        line = line_of(project, "fastagent.config.yaml", f"{server}:")
        return f"fastagent.config.yaml:{line}: mcp.servers.{server}: does not answer: "

    first, second = (line_of(project, "agents.yaml", f"- {tool}") for tool in ("tools__ad", "library__zzz"))
    assert sorted(ran.err.splitlines()) == sorted(
        [
            f"agents.yaml:{first}: agents.one.tools.0: warning: 'tools__ad' matches no tool of the server "
            "(did you mean 'add'?)",
            f"agents.yaml:{second}: agents.one.tools.2: warning: 'library__zzz' matches no tool of the server",
            at("absent") + "command 'no-such-command' not found",
            at("broken") + "HTTP 503 Service Unavailable",
            at("dead") + "connection refused",
            at("one-text") + "command 'no-such-command --with=arguments' not found (arguments belong in `args`)",
        ]
    )


async def test_tools_that_are_left_out_or_renamed_and_lists_that_cannot_be_read_are_told(
    tmp_path: Path, checked: Check
) -> None:
    lists: dict[str, Document] = {
        "odd": (200, listing(tool("fine"), tool("a.b"), {"name": "empty", "inputSchema": {}})),
        "login": (200, Raw("<html>", "text/html")),
        "pages": paged(["1", "2"]),
    }
    with imperfect_servers(lists) as answers:
        uses = {**TALKS, "servers": list(lists)}
        agents = {"one": {**uses, "tools": ["odd__a.b", "login__*", "pages__tool_014*"]}, "two": uses}
        servers = settings_of(answers, {name: name for name in lists})
        ran = await checked(declare_project(tmp_path, agents, servers=servers))

    said = sorted(line.partition(": ")[2] for line in ran.err.splitlines())
    assert [re.sub("-[0-9a-f]{8}'", "-HASH'", line) for line in said] == [
        "mcp.servers.login: its tools cannot be listed: not an MCP answer: HTTP 200 with text/html",
        "mcp.servers.odd: warning: its tool 'a.b' has the name 'odd__a_b-HASH' at the model",
        "mcp.servers.odd: warning: tools[2] 'empty': inputSchema has no type",
    ]


async def test_a_filter_of_a_module_is_told_at_its_module(tmp_path: Path, checked: Check) -> None:
    async with stateless_downstream() as tools:
        agent = Agent(servers=["tools"], decorator="tools={'tools': ['zzz']}")
        project = write_project(tmp_path, {"one": agent}, servers={"tools": {"url": tools.url}})
        ran = await checked(project)
    line = line_of(project, "agents.yaml", "module:")
    assert (ran.code, ran.err) == (
        0,
        f"agents.yaml:{line}: agents.one.module: warning: 'tools__zzz' matches no tool of the server\n",
    )


async def test_policies_that_match_no_tool_of_their_server_are_warnings(tmp_path: Path, checked: Check) -> None:
    policies = {"approve": ["tools/ad", "tools/e*", "*/delete_*"], "tool_limits": {"tools/zzz": 3, "tools/add": 1}}
    async with stateless_downstream() as tools:
        agent = Agent(servers=["tools"], settings=policies)
        project = write_project(tmp_path, {"one": agent}, servers={"tools": {"url": tools.url}})
        ran = await checked(project)
    first, second = (line_of(project, "agents.yaml", text) for text in ("- tools/ad", "tools/zzz"))
    assert (ran.code, ran.err.splitlines()) == (
        0,
        [
            f"agents.yaml:{first}: agents.one.approve.0: warning: 'tools/ad' matches no tool of the server "
            "(did you mean 'tools/add'?)",
            f"agents.yaml:{second}: agents.one.tool_limits.tools/zzz: warning: 'tools/zzz' matches no tool of the "
            "server (did you mean 'tools/add'?)",
        ],
    )


async def test_a_server_that_lists_its_tools_for_callers_alone_is_a_warning(tmp_path: Path, checked: Check) -> None:
    async with refusing(401) as guarded:
        agents = {"one": {**TALKS, "servers": ["guarded"], "tools": ["guarded__zzz"]}}
        servers = {"guarded": {"url": guarded.url, "forward_inbound_auth": True}}
        project = declare_project(tmp_path, agents, servers=servers)
        ran = await checked(project)
    assert ran.code == 0
    assert ran.err.endswith(
        "mcp.servers.guarded: warning: the tools of 'guarded' are listed for callers with a token only, so filters are "
        "not checked\n"
    )


@pytest.mark.parametrize(
    ("place", "code", "said"),
    [
        ("default_model", 2, "LLM provider 'openai' with the model 'gpt-4o' cannot be used"),
        ("groq", 0, "warning: LLM provider 'groq' cannot be used"),
    ],
)
async def test_a_refused_key_is_one_problem_at_the_default_model_or_a_warning_if_no_agent_uses_it(
    place: str, code: int, said: str, tmp_path: Path, checked: Check
) -> None:
    async with refusing(401) as provider:
        unused = {"groq": {"api_key": "not-a-key", "base_url": provider.url}}
        fastagent = unused if place == "groq" else openai(provider.url)
        project = declare_project(tmp_path, {"one": TALKS, "two": TALKS}, fastagent=fastagent)
        ran = await checked(project)
    line = line_of(project, "fastagent.config.yaml", f"{place}:")
    told = f"fastagent.config.yaml:{line}: {place}: {said}: the key was refused (HTTP 401)\n"
    assert (ran.code, ran.err) == (code, told)


async def test_a_model_that_a_server_of_ones_own_does_not_list_is_a_warning_at_the_agent_that_names_it(
    tmp_path: Path, checked: Check
) -> None:
    async with scripted_llm(models=["gpt-4o"]) as llm:
        agents: dict[str, dict[str, Any]] = {
            "one": {**TALKS, "model": "openai.gpt-4.1"},
            "two": {**TALKS, "models": ["openai.gpt-4o", "openai.o3-mini"], "caller_params": ["model"]},
        }
        project = declare_project(tmp_path, agents, fastagent=openai(llm.base_url))
        ran = await checked(project)
    places = [line_of(project, "agents.yaml", text) for text in ("model: ", "- openai.o3-mini")]
    unlisted = (
        "warning: LLM provider 'openai' with the model '{0}' answers, but the server at base_url lists no model of "
        "this name; a call shows if it accepts it"
    )
    assert ran.code == 0
    assert ran.err.splitlines() == [
        f"agents.yaml:{places[0]}: agents.one.model: {unlisted.format('gpt-4.1')}",
        f"agents.yaml:{places[1]}: agents.two.models.1: {unlisted.format('o3-mini')}",
    ]


async def test_a_provider_that_cannot_be_asked_is_a_warning(tmp_path: Path, checked: Check) -> None:
    fastagent = {"default_model": "tensorzero.x", "tensorzero": {"api_key": "not-a-key"}}
    agents = {"one": {**TALKS, "model_capabilities": {"vision": False}}}
    project = declare_project(tmp_path, agents, fastagent=fastagent)
    ran = await checked(project)
    assert ran.code == 0
    assert ran.err.endswith("is not checked: there is no check for this provider\n")


async def test_other_problems_come_along(tmp_path: Path, checked: Check) -> None:
    with reserved_port() as port:
        agents = {"one": {**TALKS, "servers": ["dead"], "titel": "One"}}
        project = declare_project(tmp_path, agents, servers={"dead": {"url": f"http://127.0.0.1:{port}/mcp"}})
        ran = await checked(project)
    assert ran.code == 2
    assert [line.split(": ")[1] for line in ran.err.splitlines()] == ["agents.one.titel", "mcp.servers.dead"]
    assert yaml.safe_load((project.path / "agents.yaml").read_text())["agents"]["one"]["titel"] == "One"


async def test_the_end_of_what_a_dying_program_prints_to_stderr_is_shown_without_secrets(
    tmp_path: Path, checked: Check
) -> None:
    code = (
        "import os, sys; sys.stderr.write('x' * 100_000 + '\\n'); "
        "sys.exit('no module \\x1b[31mfastmcp, key ' + os.environ['SERVICE_API_KEY'])"
    )
    dying = {"command": sys.executable, "args": ["-S", "-c", code], "env": {"SERVICE_API_KEY": "hush-hush-1234"}}
    project = declare_project(tmp_path, {"one": {**TALKS, "servers": ["dying"]}}, servers={"dying": dying})
    ran = await checked(project)
    line = line_of(project, "fastagent.config.yaml", "dying:")
    first, *_, last = ran.err.splitlines()
    assert first == (
        f"fastagent.config.yaml:{line}: mcp.servers.dying: does not answer: its process ended with code 1; "
        "the end of its stderr:"
    )
    assert last == "    …no module [31mfastmcp, key ****"
    assert len(ran.err) < 3000


def test_a_program_may_take_as_long_to_start_as_for_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = {"command": sys.executable, "args": ["-S", "-c", "import time; time.sleep(600)"]}
    project = declare_project(tmp_path, {"one": {**TALKS, "servers": ["hanging"]}}, servers={"hanging": hanging})
    monkeypatch.chdir(project.path)
    configuration = read_project(None, Overrides()).configuration
    assert configuration is not None
    make_ready(configuration)
    limits = RuntimeLimits(programs=ProgramLimits(start_seconds=0.05))
    found = inspect(configuration, (), online=True, limits=limits)
    assert [one.message for one in found.problems] == ["does not answer: started, but no answer within 0.05 s"]
