"""Watching a call as a client does: a script per agent on one side, the whole story the client was told on the other.

Raw HTTP, so that the order of all notifications is seen, and that nothing comes after the result.
"""

import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from tests.support.clients import MODERN_VERSION, READ_SECONDS, RawCall, RawClient, RawReply, raw_client, tool_params
from tests.support.downstreams import Era, StatelessDownstream, stateless_downstream
from tests.support.gateway import Agent, Running, running, write_project
from tests.support.scripted_llm import (
    CallTools,
    LlmRequest,
    Say,
    Script,
    ScriptedLlm,
    Turn,
    call_tools,
    say,
    scripted_llm,
)

EACH_VERSION = ("2025-06-18", MODERN_VERSION)  # for pytest.mark.parametrize("version", EACH_VERSION)
TOKEN = "token-1"
LOGGER = "pallas.assistant_stream"
SOLO = {"solo": Agent(servers=["tools"])}

PIPELINE = """
from fast_agent import FastAgent

fast = FastAgent("pipeline", parse_cli_args=False)


@fast.agent(name="drafter", instruction="You are drafter.", servers=["tools"])
async def drafter() -> None: ...


@fast.agent(name="editor", instruction="You are editor.")
async def editor() -> None: ...


@fast.chain(name="chain", sequence=["drafter", "editor"], default=True)
async def chain() -> None: ...
"""
"""A module whose served agent is a workflow: what `drafter` (with the downstream `tools`) says goes to `editor`."""

DESK = """
from fast_agent import FastAgent

fast = FastAgent("desk", parse_cli_args=False)


@fast.agent(name="scout", instruction="You are scout.", servers=["tools"])
async def scout() -> None: ...


@fast.agent(name="desk", instruction="You are desk.", agents=["scout"], default=True)
async def desk() -> None: ...
"""
"""A module whose served agent has another one, `scout`, as its tool `agent__scout`."""


def speaker(request: LlmRequest) -> str:
    """Which agent asks: the modules of these tests instruct `You are <name>.`"""
    system = next(str(message["content"]) for message in request.messages if message["role"] == "system")
    return system.split("You are ")[1].split(".")[0]


def script_of(**turns: Sequence[Turn] | Script) -> Script:
    """What each agent's model says turn by turn (the last one again and again), or what a function makes of it."""

    def script(request: LlmRequest) -> Turn:
        own = turns[speaker(request)]
        if not isinstance(own, Sequence):
            return own(request)
        turn: Turn = own[min(turns_so_far(request), len(own) - 1)]
        return turn

    return script


def turns_so_far(request: LlmRequest) -> int:
    """How often the model has spoken in this conversation."""
    return sum(message["role"] == "assistant" for message in request.messages)


@dataclass(frozen=True)
class Stage:
    """A gateway whose agents ask a scripted model and have one downstream, `tools`."""

    served: Running
    llm: ScriptedLlm
    tools: StatelessDownstream

    def url(self, agent: str) -> str:
        return self.served.url(agent)


@asynccontextmanager
async def stage(
    path: Path,
    script: Script | Sequence[Turn],
    agents: Mapping[str, Agent] = SOLO,
    *,
    peers: Mapping[str, Mapping[str, Any]] | None = None,
    gateway: Mapping[str, Any] | None = None,
    era: Era = "both",
) -> AsyncGenerator[Stage]:
    """Serve `agents`; `peers` are more servers of fastagent.config.yaml, `gateway` that section of agents.yaml."""
    async with scripted_llm(script) as llm, stateless_downstream(era=era) as tools:
        servers = {"tools": {"transport": "http", "url": tools.url}, **(peers or {})}
        project = write_project(path, agents, llm_url=llm.base_url, servers=servers, gateway=gateway)
        async with running(project) as served:
            yield Stage(served, llm, tools)


@dataclass(frozen=True)
class Watched:
    """A finished call, as its client saw it."""

    reply: RawReply

    @property
    def story(self) -> list[str | dict[str, Any]]:
        """Progress as its message, payloads as they are but for `duration_seconds`, in order."""
        return [
            one["params"]["message"] if one["method"] == "notifications/progress" else untimed(one["params"]["data"])
            for one in self.reply.notifications
        ]

    @property
    def progress(self) -> list[str]:
        return [one for one in self.story if isinstance(one, str)]

    @property
    def payloads(self) -> list[dict[str, Any]]:
        return [one for one in self.story if isinstance(one, dict)]

    @property
    def text(self) -> str:
        return "".join(block["text"] for block in self.reply.result["content"] if block["type"] == "text")

    @property
    def is_error(self) -> bool:
        return bool(self.reply.result.get("isError"))

    @property
    def call(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self.reply.result["_meta"]["pallas/call"])


async def watch(url: str, message: str = "go", *, version: str = MODERN_VERSION, **options: Any) -> Watched:
    """Call an agent and look on; `options` are those of `calling`."""
    async with calling(url, message, version=version, **options) as (_, call):
        watched = Watched(await call.reply(timeout_seconds=90))
    check_order(watched.reply)
    return watched


@asynccontextmanager
async def calling(
    url: str,
    message: str = "go",
    *,
    tool: str = "send_message",
    version: str = MODERN_VERSION,
    bearer: str | None = None,
    meta: Mapping[str, Any] | None = None,
    read_seconds: float = READ_SECONDS,
    tls: ssl.SSLContext | None = None,
    **arguments: Any,
) -> AsyncGenerator[tuple[RawClient, RawCall]]:
    """A call under way, with progress and messages asked for unless `meta` says otherwise; leaving early vanishes.

    `read_seconds` is how long the client waits for the next byte.
    """
    async with raw_client(url, protocol_version=version, bearer=bearer, tls=tls) as client:
        client.http.timeout = read_seconds
        if not client.is_modern:
            await client.initialize()
        params = tool_params(tool, {"message": message, **arguments})
        whole_meta = watching_meta(version) if meta is None else meta
        async with client.in_flight("tools/call", params, meta=whole_meta) as call:
            yield client, call


def watching_meta(version: str, **more: Any) -> dict[str, Any]:
    levels = {"io.modelcontextprotocol/logLevel": "info"} if version >= MODERN_VERSION else {}
    return {"progressToken": TOKEN, **levels, **more}


def check_order(reply: RawReply) -> None:
    """What holds of every call: progress rises, `total` marks ends, and nothing comes after the result."""
    methods = [message.get("method") for message in reply.messages]
    assert methods[-1:] == [None], methods
    assert set(methods[:-1]) <= {"notifications/progress", "notifications/message"}
    events = [one["params"] for one in reply.notifications if one["method"] == "notifications/progress"]
    assert {event["progressToken"] for event in events} <= {TOKEN}
    assert all(earlier["progress"] < later["progress"] for earlier, later in pairwise(events))
    for event in events:
        ended = event["message"].endswith((": completed", ": failed"))
        assert event.get("total") == (event["progress"] if ended else None), event
    for message in (one["params"] for one in reply.notifications if one["method"] == "notifications/message"):
        assert (message["level"], message["logger"]) == ("info", LOGGER)


def untimed(payload: dict[str, Any]) -> dict[str, Any]:
    """The payload without the durations of its results, which must be there."""
    if "results" not in payload:
        return payload
    results = [dict(result) for result in payload["results"]]
    assert all(result.pop("duration_seconds") >= 0 for result in results)
    return {**payload, "results": results}


def relay(request: LlmRequest) -> Say | CallTools:
    """`parent` hands its message to `peer` and says what came back; every other agent answers by itself."""
    if speaker(request) != "parent":
        return say(f"{speaker(request)} heard {request.last_user_text}")
    if request.tool_results:
        return say("told: " + " | ".join(request.tool_results.values()))
    return call_tools([("peer__send_message", {"message": request.last_user_text})])
