"""Canaries everywhere a secret can stand, a long mixed run at DEBUG, and every output searched for every canary.

The outputs are the gateway's own: stdout, stderr, the log file, HTTP bodies and notifications. What a tool or a model
says is data, so here neither repeats a canary but in errors.
"""

from __future__ import annotations

import asyncio
import base64
import json
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx
import pytest
import yaml

from tests.cli.program import started
from tests.e2e.calling import EACH_VERSION
from tests.e2e.watching import speaker, watching_meta
from tests.support.asgi import read_body, respond, respond_json
from tests.support.clients import raw_client, tool_params
from tests.support.downstreams import Recorder, stateless_downstream
from tests.support.gateway import Agent, write_project
from tests.support.listener import reserved_port, serve_app
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, fail, hang, say, scripted_llm
from tests.support.waiting import Gate

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from tests.cli.program import Program
    from tests.support.asgi import AsgiApp, Receive, Scope, Send
    from tests.support.downstreams import StatelessDownstream
    from tests.support.gateway import Project
    from tests.support.scripted_llm import ScriptedLlm

# No recognisable shape, where the exact value has to be known; `PASSWORD` changes when it is percent-encoded.
CALLER = "canarycallersbearer"
AUTHORIZATION = "canaryauthorization"
ACCESS_TOKEN = "canaryaccesstoken"
OWN_HEADER = "canary0of1own2header"
PROVIDER_KEY = "canaryproviderkey"
VARIABLE = "canaryfromtheenvironment"
QUERY = "canaryinthequery"
PASSWORD = "canary p@ssword"
SHAPED = "sk-canary-written-in-a-module"
CANARIES = (CALLER, AUTHORIZATION, ACCESS_TOKEN, OWN_HEADER, PROVIDER_KEY, VARIABLE, QUERY, PASSWORD, SHAPED)

RAISING = "import os\nraise ValueError('no model takes the key ' + os.environ['CANARY_API_KEY'])\n"
RAISING_SHAPED = f"raise ValueError('no model takes the key {SHAPED}')\n"
TOOLS = ("echo", "add", "fail")  # each refuses in its own way: with a JSON-RPC error, a status, an error result


def forms(secret: str) -> set[str]:
    """How a secret may be written: as it is, percent-encoded, and in base64 wherever it begins in what is encoded."""
    found = {secret, quote(secret), quote(secret, safe=""), json.dumps(secret)[1:-1]}
    for offset in range(3):
        encoded = base64.b64encode(b"x" * offset + secret.encode()).decode().rstrip("=")
        found.add(encoded[(0, 2, 3)[offset] : -1])  # without the characters that its neighbours share
    return found


def test_the_search_finds_what_it_should() -> None:
    hidden = base64.b64encode(f"ann:{PASSWORD}".encode()).decode()
    assert leaks({"body": f"Authorization: Basic {hidden}"}) == {("body", PASSWORD)}
    assert leaks({"body": f"http://ann:{quote(PASSWORD)}@host"}) == {("body", PASSWORD)}
    assert leaks({"body": "canary"}) == set()


def leaks(outputs: dict[str, str]) -> set[tuple[str, str]]:
    """Which canary stands in which output."""
    return {
        (name, canary) for name, text in outputs.items() for canary in CANARIES if any(f in text for f in forms(canary))
    }


def script(request: LlmRequest) -> Turn:
    """What the model of each agent does: quotes the key, hangs, uses one tool for ever, or three and then answers."""
    who = speaker(request)
    if who == "keyless":
        return fail(401, {"error": {"message": f"Incorrect API key provided: {request.bearer}", "code": "bad_key"}})
    if who == "hanging":
        return hang(Gate())
    if who == "looping":
        return call_tools([("rude__fail", {"message": "again"})])
    if request.tool_results:
        return say("so be it")
    return call_tools([(f"{who}__{tool}", {"message": "please"}) for tool in TOOLS])


def rude(app: AsgiApp) -> AsgiApp:
    """A downstream whose every refusal quotes the headers it got."""

    async def quoting(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await app(scope, receive, send)
            return
        body = await read_body(receive)
        message = json.loads(body)
        got = f"I do not like {scope['headers']} of {dict(_decoded(scope))}"
        tool = (message.get("params") or {}).get("name")
        if tool == "echo":
            error = {"code": -32000, "message": got, "data": {"headers": dict(_decoded(scope))}}
            await respond_json(send, 200, {"jsonrpc": "2.0", "id": message["id"], "error": error})
        elif tool == "add":
            await respond(send, 500, got, content_type="text/plain")
        elif tool == "fail":
            content = [{"type": "text", "text": got}]
            result = {"content": content, "isError": True, "resultType": "complete"}
            await respond_json(send, 200, {"jsonrpc": "2.0", "id": message["id"], "result": result})
        else:
            await app(scope, _replaying(body, receive), send)

    return quoting


def _decoded(scope: Scope) -> list[tuple[str, str]]:
    return [(name.decode(), value.decode()) for name, value in scope["headers"]]


def _replaying(body: bytes, receive: Receive) -> Receive:
    pending: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Any:
        return pending.pop() if pending else await receive()

    return replay


async def refusing_and_quoting(scope: Scope, receive: Receive, send: Send) -> None:
    """A server that lets nobody in, and says with which header."""
    if scope["type"] == "http":
        got = str(_decoded(scope))
        await respond_json(send, 401, {"error": got}, {"www-authenticate": f'Bearer error="{AUTHORIZATION}"'})


@dataclass
class Run:
    """A gateway in a process of its own, and all that it has said."""

    program: Program
    llm: ScriptedLlm
    bodies: list[str] = field(default_factory=list)

    async def call(self, agent: str, version: str, message: Any = "go") -> None:
        """Call an agent and watch it."""
        params = tool_params("send_message", {"message": message, "conversation_id": "talk"})
        async with (
            raw_client(self.url(agent), protocol_version=version, bearer=CALLER) as client,
            client.in_flight("tools/call", params, meta=watching_meta(version)) as call,
        ):
            self.bodies.append(json.dumps((await call.reply(timeout_seconds=60)).messages))

    async def leave(self, agent: str, version: str) -> None:
        """Call an agent and go away."""
        seen = len(self.llm.requests)
        async with (
            raw_client(self.url(agent), protocol_version=version, bearer=CALLER) as client,
            client.in_flight("tools/call", tool_params("send_message", {"message": "go"})),
        ):
            await self.llm.wait_for_requests(seen + 1)

    async def health(self, agent: str, version: str) -> str:
        """Ask an agent how it is."""
        async with raw_client(self.url(agent), protocol_version=version, bearer=CALLER) as client:
            reply = json.dumps((await client.call_tool("get_health")).messages)
        self.bodies.append(reply)
        return reply

    async def look_around(self) -> None:
        """Ask everything that is not an agent, and some things that are not there."""
        headers = {"Authorization": f"Bearer {CALLER}"}
        async with httpx.AsyncClient(base_url=self.base_url, headers=headers) as http:
            for path in ("/readyz", "/metrics", "/.well-known/mcp/server.json", "/v0.1/servers", "/nothing", "/mcp"):
                self.bodies.append((await http.get(path)).text)
            self.bodies.append((await http.post("/agents/rude/mcp", content=b"{not json")).text)
            self.bodies.append((await http.post("/agents/rude/mcp", headers={"Host": "evil.example"})).text)

    @property
    def base_url(self) -> str:
        return self.program.url.replace("localhost", "127.0.0.1")

    def url(self, agent: str) -> str:
        """An agent's MCP endpoint."""
        return f"{self.base_url}/agents/{agent}/mcp"


@asynccontextmanager
async def project_full_of_canaries(path: Path) -> AsyncGenerator[tuple[Project, ScriptedLlm, dict[str, Recorder]]]:
    async with AsyncExitStack() as stack:
        llm = await stack.enter_async_context(scripted_llm(script))
        first: StatelessDownstream = await stack.enter_async_context(stateless_downstream())
        other: StatelessDownstream = await stack.enter_async_context(stateless_downstream())
        for downstream in (first, other):
            assert downstream.recorder.app is not None
            downstream.recorder.app = rude(downstream.recorder.app)
        closed_recorder = Recorder(refusing_and_quoting)
        closed = await stack.enter_async_context(serve_app(closed_recorder))
        nowhere = stack.enter_context(reserved_port())
        with_password = f"http://ann:{quote(PASSWORD, safe='')}@127.0.0.1"
        servers: dict[str, dict[str, Any]] = {
            "rude": {
                "url": f"{first.url}?api_key={QUERY}",
                "headers": {"Authorization": f"Bearer {AUTHORIZATION}", "X-Own": OWN_HEADER},
            },
            "ruder": {"url": other.url, "forward_inbound_auth": True},
            "closed": {"url": f"{closed.base_url}/mcp?token={QUERY}", "access_token": ACCESS_TOKEN},
            "nowhere": {"url": f"{with_password}:{nowhere}/mcp"},
            "local": {"command": "no-such-program", "args": ["--token", QUERY], "env": {"LOCAL_TOKEN": VARIABLE}},
        }
        agents = {
            "rude": Agent(servers=["rude", "closed", "nowhere"]),
            "ruder": Agent(servers=["ruder", "local"]),
            "keyless": Agent(),
            "hanging": Agent(),
            "looping": Agent(servers=["rude"]),
            "raising": Agent(source=RAISING),
            "raising_shaped": Agent(source=RAISING_SHAPED),
        }
        for name in ("rude", "ruder", "closed", "nowhere"):
            servers[name]["transport"] = "http"
        gateway = {"drain_seconds": 0.2}
        project = write_project(path, agents, llm_url=llm.base_url, servers=servers, gateway=gateway)
        secrets = {"generic": {"api_key": PROVIDER_KEY}}
        (path / "fastagent.secrets.yaml").write_text(yaml.safe_dump(secrets))
        yield project, llm, {"rude": first.recorder, "ruder": other.recorder, "closed": closed_recorder}


async def mixed_run(run: Run, version: str) -> None:
    """Calls that go well, fail, are refused, halted, left and cut off; and all else that one can ask."""
    agents = ("rude", "ruder", "keyless", "looping", "raising")
    await asyncio.gather(*(run.call(agent, version) for agent in agents))
    await run.call("rude", version, message=["not", "text"])
    await run.leave("hanging", version)
    for agent in ("rude", "ruder", "raising", "raising_shaped"):
        await run.health(agent, version)
    await run.look_around()
    last = asyncio.create_task(run.call("hanging", version))
    await run.llm.wait_for_requests(len(run.llm.requests) + 1)
    run.program.signal(signal.SIGTERM)  # while a call runs
    await last


@pytest.mark.parametrize(("stderr", "version"), [("human", EACH_VERSION[0]), ("1", EACH_VERSION[1])])
async def test_no_output_ever_shows_a_secret(stderr: str, version: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    environ = {
        "CANARY_API_KEY": VARIABLE,
        "PALLAS_LOG_LEVEL": "DEBUG",
        "PALLAS_ROOT_LOG_LEVEL": "DEBUG",
        "PALLAS_LOG_STDERR": stderr,
        "PALLAS_LOG_FILE": str(log),
        "OPENAI_LOG": "debug",
    }
    async with project_full_of_canaries(tmp_path / "project") as (project, llm, got):
        with started(["serve"], project.path, environ=environ) as program:
            await asyncio.to_thread(program.wait_for, "Registry:")
            run = Run(program, llm)
            await mixed_run(run, version)
            ran = await asyncio.to_thread(program.end, 60)

    outputs = {"stdout": ran.out, "stderr": ran.err, "log": log.read_text(), "http": "\n".join(run.bodies)}
    assert leaks(outputs) == set()
    assert ran.code == 0
    _was_worth_something(outputs)
    assert {request.bearer for request in llm.requests} == {PROVIDER_KEY}
    bearers = {name: {request.bearer for request in recorder.requests} for name, recorder in got.items()}
    assert bearers == {"rude": {AUTHORIZATION}, "ruder": {CALLER, None}, "closed": {ACCESS_TOKEN}}
    assert {request.headers["x-own"] for request in got["rude"].requests} == {OWN_HEADER}


def _was_worth_something(outputs: dict[str, str]) -> None:
    """What hides the canaries is not silence."""
    records = [json.loads(line) for line in outputs["log"].splitlines()]
    said = {record["message"] for record in records}
    assert {"call ended", "call refused", "downstream operation failed", "loop halted", "agent failed"} <= said
    assert {record["level"] for record in records} >= {"DEBUG", "INFO", "WARNING", "ERROR"}
    reasons = {record.get("reason") for record in records if record["logger"] == "pallas.calls"}
    assert {"llm_error", "agent_unavailable", "bad_input", "cancelled", "stopped"} <= reasons
    assert "Incorrect API key provided: ****" in outputs["http"]
    assert "no model takes the key ****" in outputs["stdout"]
    assert "no model takes the key ****" in outputs["http"]
    assert "I do not like" in outputs["http"]
