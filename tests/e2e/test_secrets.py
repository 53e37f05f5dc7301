"""Canaries everywhere a secret can stand, a long mixed run at DEBUG, and every output searched for every canary.

The outputs are the gateway's own: stdout, stderr, the log file, HTTP bodies and notifications. What a tool or a model
says is data, so here neither repeats a canary but in errors.
"""

from __future__ import annotations

import asyncio
import base64
import json
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from tests.e2e.canaries import SAID, TOOLS, Run, decoded_headers, leaks, rude
from tests.support.asgi import Receive, Scope, Send, read_body, respond_json
from tests.support.authorization_server import AuthorizationServer, authorization_server
from tests.support.calling import EACH_VERSION
from tests.support.commands import READY_SECONDS, started
from tests.support.downstreams import Recorder, StatelessDownstream, stateless_downstream
from tests.support.gateway import Agent, Project, write_project
from tests.support.guarded import static_key
from tests.support.listener import reserved_port, serve_app
from tests.support.scripted_llm import LlmRequest, ScriptedLlm, Turn, call_tools, fail, hang, say, scripted_llm
from tests.support.waiting import Gate
from tests.support.watching import speaker

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
KEY = "canarystatickey"
WRONG_KEY = "canarywrongkey"
BASIC_SECRET = "canaryclientsecretinaheader"
POSTED_SECRET = "canaryclientsecretinabody"
ISSUED = "canaryissuedtoken"
GUARDED = (KEY, WRONG_KEY, BASIC_SECRET, POSTED_SECRET, ISSUED)  # and the tokens of the authorization server

RAISING = "import os\nraise ValueError('no model takes the key ' + os.environ['CANARY_API_KEY'])\n"
RAISING_SHAPED = f"raise ValueError('no model takes the key {SHAPED}')\n"


def test_the_search_finds_what_it_should() -> None:
    hidden = base64.b64encode(f"ann:{PASSWORD}".encode()).decode()
    assert leaks({"body": f"Authorization: Basic {hidden}"}, CANARIES) == {("body", PASSWORD)}
    assert leaks({"body": f"http://ann:{quote(PASSWORD)}@host"}, CANARIES) == {("body", PASSWORD)}
    assert leaks({"body": "canary"}, CANARIES) == set()


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
    used = [tool for tool in request.tools if tool.rpartition("__")[2] in {*TOOLS, "send_message"}]
    return call_tools([(tool, {"message": "please"}) for tool in used])


async def refusing_and_quoting(scope: Scope, receive: Receive, send: Send) -> None:
    """A server that lets nobody in, and says with which header."""
    if scope["type"] == "http":
        got = str(decoded_headers(scope))
        await respond_json(send, 401, {"error": got}, {"www-authenticate": f'Bearer error="{AUTHORIZATION}"'})


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
        gateway = {"drain_seconds": 0.2, "openai_api": True, "database": "sqlite:///threads.db"}
        project = write_project(path, agents, llm_url=llm.base_url, servers=servers, gateway=gateway)
        secrets = {"generic": {"api_key": PROVIDER_KEY}}
        (path / "fastagent.secrets.yaml").write_text(yaml.safe_dump(secrets))
        yield project, llm, {"rude": first.recorder, "ruder": other.recorder, "closed": closed_recorder}


async def mixed_run(run: Run) -> None:
    """Calls that go well, fail, are refused, halted, left and cut off; and all else that one can ask."""
    agents = ("rude", "ruder", "keyless", "looping", "raising")
    older, version = EACH_VERSION
    await asyncio.gather(*(run.call(agent, one) for agent in agents for one in EACH_VERSION))
    await run.call("rude", version, message=["not", "text"])
    await run.leave("hanging", older)
    for agent in ("rude", "ruder", "keyless", "raising"):
        await run.other_doors(agent)
    for agent in ("rude", "ruder", "raising", "raising_shaped"):
        await run.health(agent, version)
    await run.look_around()
    last = asyncio.create_task(run.call("hanging", version))
    await run.llm.wait_for_requests(len(run.llm.requests) + 1)
    run.program.signal(signal.SIGTERM)  # while a call runs
    await last


async def test_no_output_ever_shows_a_secret(tmp_path: Path) -> None:
    log = tmp_path / "log"
    environ = {
        "CANARY_API_KEY": VARIABLE,
        "PALLAS_LOG_LEVEL": "DEBUG",
        "PALLAS_ROOT_LOG_LEVEL": "DEBUG",
        "PALLAS_LOG_STDERR": "human",
        "PALLAS_LOG_FILE": str(log),
        "OPENAI_LOG": "debug",
    }
    async with project_full_of_canaries(tmp_path / "project") as (project, llm, got):
        with started(["serve"], project.path, environ=environ, is_real=True) as program:
            await asyncio.to_thread(program.wait_for, "Registry:")
            run = Run(program, llm, CALLER)
            await mixed_run(run)
            ran = await asyncio.to_thread(program.end, READY_SECONDS)

    outputs = {"stdout": ran.out, "stderr": ran.err, "log": log.read_text(), "http": "\n".join(run.bodies)}
    kept = (project.path / "threads.db").read_bytes().decode("latin-1")
    assert leaks({**outputs, "threads": kept}, CANARIES) == set()
    # At DEBUG, fast-agent tells what a model is sent.
    ours = [line for line in outputs["log"].splitlines() if json.loads(line)["logger"] != "pallas.fast_agent"]
    assert leaks({"log": "\n".join(ours)}, [SAID]) == set()
    assert ran.code == 0
    assert "Incorrect API key provided: ****" in kept
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


# --- A gateway that wants tokens


@dataclass
class Exchange:
    """Token endpoints: `/issuing/token` hands out `ISSUED`, every other refuses; both say all that they were told."""

    told: list[str] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        got = f"{decoded_headers(scope)} {(await read_body(receive)).decode()}"
        self.told.append(got)
        if scope["path"] == "/issuing/token":
            issued = {"access_token": ISSUED, "token_type": "Bearer", "expires_in": 300, "for": got}
            await respond_json(send, 200, issued)
        else:
            refused = {"error": "invalid_grant", "error_description": got, "error_uri": got}
            await respond_json(send, 400, refused, {"www-authenticate": f'Bearer error="{POSTED_SECRET}"'})


@dataclass(frozen=True)
class Guarded:
    """A project with `gateway.auth`, and all that its gateway asks; `got` is by server."""

    project: Project
    llm: ScriptedLlm
    login: AuthorizationServer
    exchange: Exchange
    got: dict[str, Recorder]

    def token(self, **changes: Any) -> str:
        """A token that is good for everything, but for the changes."""
        return self.login.mint(**{"aud": AUDIENCE, "scope": "run:agents view:metrics", **changes})


AUDIENCE = "everything-here"


@asynccontextmanager
async def guarded_project(path: Path) -> AsyncGenerator[Guarded]:
    async with AsyncExitStack() as stack:
        llm = await stack.enter_async_context(scripted_llm(script))
        login = await stack.enter_async_context(authorization_server())
        exchange = Exchange()
        endpoints = (await stack.enter_async_context(serve_app(exchange))).base_url
        own, exchanged = [await stack.enter_async_context(stateless_downstream()) for _ in range(2)]
        for downstream in (own, exchanged):
            assert downstream.recorder.app is not None
            downstream.recorder.app = rude(downstream.recorder.app)
        port = stack.enter_context(reserved_port())
        basic = {"token_endpoint": f"{endpoints}/issuing/token", "client_id": "pallas", "client_secret": BASIC_SECRET}
        posted = {
            "token_endpoint": f"{endpoints}/refusing/token",
            "client_id": "pallas",
            "client_secret": POSTED_SECRET,
            "client_auth": "post",
        }
        servers: dict[str, dict[str, Any]] = {
            "ruder": {"url": own.url},
            "exchanged": {"url": exchanged.url, "token_exchange": basic},
            "refused": {"url": exchanged.url, "token_exchange": posted},
            "peer": {"url": f"http://localhost:{port}/mcp"},
        }
        agents = {
            "ruder": Agent(servers=["ruder", "exchanged", "refused"]),
            "parent": Agent(servers=["peer"]),
            "peer": Agent(servers=["ruder", "exchanged", "refused"], settings={"port": port}),
        }
        project = write_project(
            path,
            agents,
            llm_url=llm.base_url,
            servers={name: {"forward_inbound_auth": True, **server} for name, server in servers.items()},
            gateway={
                "auth": {
                    "tokens": [static_key("run:agents", "view:metrics", key=KEY)],
                    "jwt": {"issuer": login.issuer, "jwks_uri": login.jwks_uri, "audience": AUDIENCE},
                }
            },
        )
        got = {"ruder": own.recorder, "exchanged": exchanged.recorder}
        yield Guarded(project, llm, login, exchange, got)


async def test_a_gateway_that_wants_tokens_shows_none_of_them(tmp_path: Path) -> None:
    log = tmp_path / "log"
    environ = {
        "PALLAS_LOG_LEVEL": "DEBUG",
        "PALLAS_ROOT_LOG_LEVEL": "DEBUG",
        "PALLAS_LOG_STDERR": "1",
        "PALLAS_LOG_FILE": str(log),
    }
    async with guarded_project(tmp_path / "project") as it:
        good = it.token()
        bad = [WRONG_KEY, it.token(exp=1), it.token(aud="elsewhere"), it.token(key=b"not the server's key, but long")]
        with started(["serve"], it.project.path, environ=environ) as program:
            await asyncio.to_thread(program.wait_for, "Registry:")
            run, refused = Run(program, it.llm, KEY), Run(program, it.llm, WRONG_KEY)
            with_key, with_token = EACH_VERSION
            await asyncio.gather(
                *(run.call("ruder", with_key, bearer=KEY), run.call("parent", with_key, bearer=KEY)),
                *(run.call("ruder", with_token, bearer=good), run.call("parent", with_token, bearer=good)),
                *(refused.call("ruder", version, bearer=token) for version in EACH_VERSION for token in bad),
            )
            await run.health("ruder", with_token)
            for token in (KEY, good, *bad):
                await run.look_around(bearer=token)
            program.signal(signal.SIGTERM)
            ran = await asyncio.to_thread(program.end, READY_SECONDS)

    outputs = {"stdout": ran.out, "stderr": ran.err, "log": log.read_text(), "http": "\n".join(run.bodies)}
    outputs["refusals"] = "\n".join(refused.bodies)
    parts = [part for token in (good, *bad[1:]) for part in token.split(".")[1:]]
    assert leaks(outputs, {*GUARDED, good, *bad, *parts}) == set()
    assert ran.code == 0
    said = [json.loads(line) for line in outputs["log"].splitlines()]
    messages = {record["message"] for record in said}
    assert {"call ended", "caller refused", "downstream operation failed"} <= messages
    assert "downstream unreachable" in messages
    assert [one.get("agent") for one in said if one["message"] == "call ended"].count("peer") == len(EACH_VERSION)
    assert "I do not like" in outputs["http"]
    assert all("invalid_token" in reply for reply in refused.bodies)
    assert {request.bearer for request in it.got["ruder"].requests} == {good, None}
    assert {request.bearer for request in it.got["exchanged"].requests} == {ISSUED, None}
    told = "\n".join(it.exchange.told)
    assert good in told
    assert POSTED_SECRET in told
    assert base64.b64encode(f"pallas:{BASIC_SECRET}".encode()).decode() in told
