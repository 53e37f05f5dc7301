"""Callers with a bearer each, downstreams that tie every request to its caller, and what may have reached whom.

Every call says in its message who makes it (`caller-007 via reader`); the scripted model hands that text on as the
argument of each tool it calls. So a downstream sees on one request both who really asks and which token came with it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, override

from fastmcp import FastMCP

from tests.support.asgi import AsgiApp, Receive, Scope, Send, respond
from tests.support.calling import EACH_VERSION, ask
from tests.support.downstreams import Downstream, Era, HttpRequest, Recorder
from tests.support.gateway import Agent, Running, running, write_project
from tests.support.scripted_llm import CallTools, LlmRequest, Say, Script, ScriptedLlm, call_tools, say, scripted_llm

FORWARDS = {"forward_inbound_auth": True}
OWN_TOKEN = "the-servers-own"
OLD_PATH = "/old/mcp"  # fast-agent wants URLs that end in /mcp
# Three callers by what they say, and the token that each brings.
ANN, BOB = "caller-1 via user", "caller-2 via user"
NOBODY = "caller-3 via user"
TOKENS = {ANN: "token-of-ann", BOB: "token-of-bob", NOBODY: None}

KINDS: dict[str, dict[str, Any]] = {  # of downstreams: their protocol era, and whether they keep sessions
    "modern": {"era": "modern"},
    "initialize": {"era": "initialize"},
    "stateful": {"era": "initialize", "stateless": False},
}
_A_TOKEN = re.compile(r"token-of-[a-z0-9-]+")
_A_CALL = re.compile(r"caller-\d+ via \w+")


@dataclass(frozen=True)
class Caller:
    """Somebody who calls; `bearer` is None for who brings no token."""

    name: str
    bearer: str | None


def callers(count: int) -> list[Caller]:
    """`count` of them, every tenth anonymous."""
    names = [f"caller-{number:03}" for number in range(count)]
    return [Caller(name, None if number % 10 == 9 else f"token-of-{name}") for number, name in enumerate(names)]


# --- Downstreams


def noting(name: str, **options: Any) -> FastMCP:
    """A server with the one tool `note`, whose argument says who asks."""
    server = FastMCP(name, **options)

    @server.tool
    def note(who: str) -> str:
        """Note who asked."""
        return f"{name} noted {who}"

    return server


class Noting(Downstream):
    """A downstream with the tool `note`; `wrapped` puts something of the test's own before it.

    `path` and `settings` are what the gateway is told about it.
    """

    def __init__(
        self,
        name: str = "notes",
        *,
        era: Era = "both",
        stateless: bool = True,
        wrapped: Callable[[AsgiApp], AsgiApp] | None = None,
        path: str = "/mcp",
        settings: Mapping[str, Any] = FORWARDS,
        server: FastMCP | None = None,
    ) -> None:
        super().__init__(server or noting(name), stateless=stateless, era=era)
        self._wrapped = wrapped
        self._path = path
        self._settings = settings

    @property
    def entry(self) -> dict[str, Any]:
        """Its entry in `mcp.servers`."""
        return {"url": self.url.removesuffix("/mcp") + self._path, **self._settings}

    @override
    async def start(self) -> None:
        """Listen, with what was wrapped around the server."""
        await super().start()
        if self._wrapped is not None and self.recorder.app is not None:
            self.recorder.app = self._wrapped(self.recorder.app)


def moved(name: str, status: int, *, era: Era = "both", stateless: bool = True) -> Noting:
    """A `Noting` whose configured address answers every request with the way to its real one, in the same origin."""
    return Noting(
        name, era=era, stateless=stateless, wrapped=redirecting(OLD_PATH, status, lambda: "/mcp"), path=OLD_PATH
    )


def redirecting(path: str, status: int, location: Callable[[], str]) -> Callable[[AsgiApp], AsgiApp]:
    """Put before an app that `path` answers `status` and a `Location`."""

    def wrapped(app: AsgiApp) -> AsgiApp:
        async def redirected(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and scope["path"] == path:
                await respond(send, status, "", headers={"location": location()})
            else:
                await app(scope, receive, send)

        return redirected

    return wrapped


# --- A gateway with some of them


@dataclass(frozen=True)
class World:
    """A served gateway, and the model behind it."""

    served: Running
    llm: ScriptedLlm

    def url(self, agent: str = "user") -> str:
        """An agent's endpoint."""
        return self.served.url(agent)


@asynccontextmanager
async def world(
    path: Path,
    agents: Mapping[str, Agent],
    servers: Mapping[str, Mapping[str, Any]],
    *,
    script: Script | None = None,
    **project: Any,
) -> AsyncIterator[World]:
    """Serve `agents`; `servers` are `mcp.servers` (http unless they say otherwise), `project` for `write_project`."""
    settings = {name: {"transport": "http", **server} for name, server in servers.items()}
    async with scripted_llm(script or use_everything) as llm:
        written = write_project(path, agents, llm_url=llm.base_url, servers=settings, **project)
        async with running(written) as served:
            yield World(served, llm)


@asynccontextmanager
async def one_user(path: Path, *downstreams: Noting, script: Script | None = None) -> AsyncIterator[World]:
    """Serve the agent `user` with `downstreams`.

    Once the gateway is gone: fail if a token was anywhere but in the `Authorization` of a downstream's request.
    """
    async with AsyncExitStack() as stack:
        for downstream in downstreams:
            await stack.enter_async_context(downstream.serve())
        servers = {downstream.server.name: downstream.entry for downstream in downstreams}
        agents = {"user": Agent(servers=list(servers))}
        async with world(path, agents, servers, script=script) as it:
            yield it
    assert told_the_model(it.llm) == []
    assert [found for downstream in downstreams for found in smuggled(downstream.recorder)] == []


def use_everything(request: LlmRequest) -> Say | CallTools:
    """A model that hands its message to every tool that takes one, at once, and then says what came back."""
    if request.tool_results:
        return say(" | ".join(request.tool_results.values()))
    message = request.last_user_text
    notes = [(tool, {"who": message}) for tool in request.tools if tool.endswith("__note")]
    peers = [(tool, {"message": message}) for tool in request.tools if tool.endswith("__send_message")]
    return call_tools([*notes, *peers]) if notes or peers else say("no tools")


async def ask_as(it: World, who: str, *, version: str = EACH_VERSION[0], agent: str = "user") -> str:
    """Call as `who` and return the answer, which holds nothing of anybody else's."""
    answer = await ask(it.url(agent), who, version=version, bearer=TOKENS[who])
    assert not answer.is_error
    assert calls_named_in(answer.text) <= {who}
    return answer.text


# --- What reached whom


def who_asked(request: HttpRequest) -> str:
    """Who makes the call that a `tools/call` belongs to, by its argument."""
    arguments: dict[str, str] = request.rpc["params"]["arguments"]
    return arguments["who"]


def calls_named_in(text: str) -> set[str]:
    """Every `caller-… via …` in a text."""
    return set(_A_CALL.findall(text))


def bearers(requests: Iterable[HttpRequest]) -> set[str | None]:
    """The tokens that came with `requests`; None if one came without."""
    return {request.bearer for request in requests}


def assert_tool_calls_are_their_callers(recorder: Recorder) -> None:
    """Fail if a tool call came with another token than that of the caller it names."""
    calls = recorder.calls("note")
    assert {who_asked(call): call.bearer for call in calls} == {
        who_asked(call): TOKENS[who_asked(call)] for call in calls
    }


def smuggled(recorder: Recorder) -> list[str]:
    """Callers' tokens outside `Authorization`."""
    found = []
    for request in recorder.requests:
        headers = {name: value for name, value in request.headers.items() if name != "authorization"}
        text = f"{request.path}?{request.query} {headers} {request.body.decode(errors='replace')}"
        found += [f"{request.method} {request.path}: {token}" for token in _A_TOKEN.findall(text)]
    return found


def told_the_model(llm: ScriptedLlm) -> list[str]:
    """Every caller's token that came to the model, in whatever part of a request."""
    texts = [f"{request.headers} {request.body}" for request in llm.requests]
    texts += [str(headers) for headers in llm.model_list_headers]
    return [found for text in texts for found in _A_TOKEN.findall(text)]


def sessions_of(recorder: Recorder) -> Mapping[str, Sequence[HttpRequest]]:
    """The requests of each MCP session."""
    sessions: dict[str, list[HttpRequest]] = {}
    for request in recorder.requests:
        if (session := request.headers.get("mcp-session-id")) is not None:
            sessions.setdefault(session, []).append(request)
    return sessions
