"""Many callers at once, with every kind of downstream: each request carries the token of its own caller, or none.

What a request may carry is known from the call that it belongs to: each call is a trace of its own, whose id the
gateway hands on with all its requests. That a request stands in the right trace is seen from the argument of tool
calls, from a session's requests belonging together, and from each call having caused exactly as many as any other.
"""

from __future__ import annotations

import asyncio
import random
import resource
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from operator import contains
from pathlib import Path

import httpx
import pytest

from tests.e2e.forwarding import (
    FORWARDS,
    OWN_TOKEN,
    Caller,
    Noting,
    World,
    callers,
    calls_named_in,
    moved,
    sessions_of,
    smuggled,
    told_the_model,
    use_everything,
    who_asked,
    world,
)
from tests.support.breaker import Breaker, breaker
from tests.support.calling import Answer, answer_of
from tests.support.clients import MODERN_VERSION, RawCall, raw_client, tool_params
from tests.support.crowds import crowd
from tests.support.downstreams import HttpRequest, Recorder, refusing
from tests.support.gateway import Agent, until_idle
from tests.support.listener import reserved_port
from tests.support.scripted_llm import LlmRequest, Turn, hang
from tests.support.waiting import Gate, eventually
from tests.support.watching import speaker

pytestmark = [
    pytest.mark.usefixtures("many_descriptors", "patience"),
    pytest.mark.crowd,
]
CALLERS = 100
SEED = 20260728
AT_MOST = 1500  # seconds; the 500 calls take two minutes of CPU time
SERVERS = {
    "reader": ("modern", "closed", "own"),
    "keeper": ("stateful", "initialize"),
    "mover": ("moved", "away"),
    "parent": ("peer",),
    "grandparent": ("parent",),
    "stranger": ("hushed",),
    "peer": ("beyond",),
}
CALLED = tuple(agent for agent in SERVERS if agent != "peer")
VIA_PEERS = {"parent", "grandparent", "stranger"}
CLIENTS = ((MODERN_VERSION, False), ("2025-06-18", False), ("2025-06-18", True))  # version, whether it shakes hands


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Both ends of every connection are in this process, and all calls are held open at once."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@dataclass(frozen=True)
class Asked:
    number: int
    caller: Caller
    agent: str

    @property
    def message(self) -> str:
        """What the call says; downstreams get to see it."""
        return f"{self.caller.name} via {self.agent}"

    @property
    def trace_id(self) -> str:
        """The trace that this call alone belongs to; zeros would be none."""
        return f"{self.number + 1:032x}"

    def brings_to(self, server: str) -> str | None:
        """The one token that this call's requests to `server` may and must carry."""
        if server == "own":
            return OWN_TOKEN
        return None if server == "closed" or self.agent == "stranger" else self.caller.bearer


def calls_by(everybody: Sequence[Caller], each: int) -> list[Asked]:
    """`each` calls by everybody, so that everybody calls another agent every time."""
    calls = [
        (caller, CALLED[(index + turn) % len(CALLED)]) for turn in range(each) for index, caller in enumerate(everybody)
    ]
    return [Asked(number, caller, agent) for number, (caller, agent) in enumerate(calls)]


class Held:
    """A model that holds the first turn of each call, so that many are under way when the first one goes on."""

    def __init__(self) -> None:
        self.gate = Gate()

    def __call__(self, request: LlmRequest) -> Turn:
        turn = use_everything(request)
        is_called_by_client = request.last_user_text.endswith(f" via {speaker(request)}")
        return hang(self.gate, turn) if is_called_by_client and not request.tool_results else turn


@dataclass(frozen=True)
class Everything:
    """A gateway with downstreams of all kinds; `recorders` by server name, `elsewhere` being where `away` redirects."""

    world: World
    downstreams: Mapping[str, Noting]
    recorders: Mapping[str, Recorder]
    held: Held
    breakers: Sequence[Breaker]


@asynccontextmanager
async def everything(path: Path, *, broken: float = 0) -> AsyncIterator[Everything]:
    """Serve it all; `broken` is the share of the connections to downstreams that is cut somewhere."""
    downstreams: dict[str, Noting] = {
        "modern": Noting("modern", era="modern"),
        "initialize": Noting("initialize", era="initialize"),
        "stateful": Noting("stateful", era="initialize", stateless=False),
        "closed": Noting("closed", settings={}),
        "own": Noting("own", settings={**FORWARDS, "headers": {"authorization": f"Bearer {OWN_TOKEN}"}}),
        "moved": moved("moved", 307),
        "beyond": Noting("beyond"),
        "elsewhere": Noting("elsewhere"),
    }
    async with AsyncExitStack() as stack:
        for downstream in downstreams.values():
            await stack.enter_async_context(downstream.serve())
        away = await stack.enter_async_context(refusing(308, {"location": downstreams["elsewhere"].url}))
        ports = {agent: stack.enter_context(reserved_port()) for agent in ("parent", "peer")}
        servers = {name: downstream.entry for name, downstream in downstreams.items() if name != "elsewhere"}
        servers["away"] = {"url": away.url, **FORWARDS}
        breakers = []
        for seed, server in enumerate(servers.values(), SEED) if broken else ():
            relay = await stack.enter_async_context(broken_way_to(server["url"], broken, seed))
            server["url"] = str(httpx.URL(server["url"]).copy_with(port=relay.port))
            breakers.append(relay)
        servers |= {name: {"url": f"http://localhost:{port}/mcp", **FORWARDS} for name, port in ports.items()}
        servers["hushed"] = {"url": servers["peer"]["url"]}
        agents = {
            name: Agent(servers=used, settings={"call_timeout_seconds": AT_MOST, "port": ports.get(name)})
            for name, used in SERVERS.items()
        }
        held, gateway = Held(), {"max_in_flight": CALLERS, "queue_seconds": AT_MOST}
        recorders = {"away": away.recorder, **{name: d.recorder for name, d in downstreams.items()}}
        async with world(path, agents, servers, script=held, gateway=gateway) as it:
            yield Everything(it, downstreams, recorders, held, breakers)


def broken_way_to(url: str, share: float, seed: int) -> AbstractAsyncContextManager[Breaker]:
    port = httpx.URL(url).port
    assert port is not None
    return breaker(port, share=share, most_chunks=12, seed=seed)


@crowd(8, CALLERS)
async def test_every_request_of_a_crowd_carries_the_token_of_its_own_caller(size: int, tmp_path: Path) -> None:
    calls = calls_by(callers(size), 5 if size == CALLERS else 1)
    async with everything(tmp_path) as it:
        async with asyncio.TaskGroup() as group:
            answering = [group.create_task(answer(it.world, call)) for call in calls]
            await it.held.gate.wait_for_entered(size, AT_MOST)
            it.held.gate.open()
        await until_idle(it.world.served, 120)

    for call, task in zip(calls, answering, strict=True):
        assert_answered_alone(task.result(), call)
    assert told_the_model(it.world.llm) == []
    assert {request.bearer for request in it.world.llm.requests} == {"not-a-key"}
    for server, recorder in it.recorders.items():
        reaching = [call for call in calls if reaches(call, server)]
        assert smuggled(recorder) == []
        assert foreign(server, recorder, reaching) == []
        assert_every_call_caused_the_same(server, recorder, reaching)
    assert it.recorders["elsewhere"].requests == []


@crowd(15, CALLERS)
async def test_broken_connections_bring_no_token_to_anybody_else(size: int, tmp_path: Path) -> None:
    """Downstreams are cut off at random points and restarted, clients hang up: tools are lost, no token is gained."""
    calls = calls_by(callers(size), 1)
    chance = random.Random(SEED)  # noqa: S311  not a secret
    by_fate: dict[str, list[Asked]] = {"stays": [], "held": [], "working": []}
    for call in calls:
        by_fate[chance.choices(list(by_fate), weights=(8, 1, 1))[0]].append(call)
    async with everything(tmp_path, broken=0.4) as it:
        gate = it.held.gate
        async with asyncio.TaskGroup() as group:
            answering = {call: group.create_task(answer(it.world, call)) for call in by_fate["stays"]}
            leaving = [
                group.create_task(hang_up(it.world, call, once=lambda: len(gate.entered) == len(calls)))
                for call in by_fate["held"]
            ]
            for call in by_fate["working"]:
                group.create_task(hang_up(it.world, call, once=partial(contains, gate.passed, call.message)))
            await gate.wait_for_entered(len(calls), AT_MOST)
            await asyncio.wait(leaving)
            for name in ("stateful", "modern", "beyond"):  # its sessions are forgotten, its connections closed
                await it.downstreams[name].stop()
                await it.downstreams[name].start()
            gate.open()
        await until_idle(it.world.served, 120)

    for call, task in answering.items():
        assert not task.result().is_error
        assert calls_named_in(task.result().text) <= {call.message}
        assert "Traceback" not in task.result().text
    assert sum(relay.cuts for relay in it.breakers) > size / 5
    assert sum(" noted " in task.result().text for task in answering.values()) > size / 3
    assert told_the_model(it.world.llm) == []
    for server, recorder in it.recorders.items():
        reaching = [call for call in calls if reaches(call, server)]
        assert smuggled(recorder) == []
        assert foreign(server, recorder, reaching) == []
    assert it.recorders["elsewhere"].requests == []


async def hang_up(it: World, call: Asked, *, once: Callable[[], bool]) -> None:
    """Make the call and leave as soon as `once` says so."""
    async with asking(it, call):
        await eventually(once, 300, what=f"the time to hang up on {call.message}")


async def answer(it: World, call: Asked) -> Answer:
    async with asking(it, call) as asked:
        return answer_of(await asked.reply(AT_MOST))


@asynccontextmanager
async def asking(it: World, call: Asked) -> AsyncIterator[RawCall]:
    """The call in flight; who leaves before its reply hangs up."""
    version, shakes_hands = CLIENTS[call.number // len(CALLED) % len(CLIENTS)]
    headers = {"traceparent": f"00-{call.trace_id}-{1:016x}-01"}
    url, bearer = it.url(call.agent), call.caller.bearer
    async with raw_client(url, protocol_version=version, bearer=bearer, headers=headers) as client:
        if shakes_hands:
            await client.initialize()
        params = tool_params("send_message", {"message": call.message})
        async with client.in_flight("tools/call", params) as asked:
            yield asked


def reaches(call: Asked, server: str) -> bool:
    return server in SERVERS[call.agent] or (server == "beyond" and call.agent in VIA_PEERS)


def assert_answered_alone(answer: Answer, call: Asked) -> None:
    """The tools were used for this very call, and nothing of another call is in the answer."""
    assert not answer.is_error
    assert calls_named_in(answer.text) == {call.message}
    assert answer.text.count(" noted ") == sum(reaches(call, server) for server in NOTING)


NOTING = ("modern", "closed", "own", "stateful", "initialize", "moved", "beyond")


def foreign(server: str, recorder: Recorder, reaching: Sequence[Asked]) -> list[str]:
    """Requests of no call that may reach `server`, with another token than their call's, or in another's place."""
    by_trace = {call.trace_id: call for call in reaching}
    of_session = {session: trace_id_of(requests[0]) for session, requests in sessions_of(recorder).items()}
    found = []
    for request in recorder.requests:
        call = by_trace.get(trace_id_of(request))
        session = of_session.get(request.headers.get("mcp-session-id", ""), trace_id_of(request))
        if call is None:
            if not is_asking(server, request):
                found.append(f"{server}: {kind_of(request)} of no call with {request.bearer}")
        elif request.bearer != call.brings_to(server):
            found.append(f"{server}: {kind_of(request)} of {call.message} with {request.bearer}")
        elif session != call.trace_id or (request.tool == "note" and who_asked(request) != call.message):
            found.append(f"{server}: {kind_of(request)} of {call.message} in another call's place")
    return found


ASKED_AHEAD = {"closed": None, "own": "the-servers-own"}
"""Downstreams that get nobody's token: what they offer is asked of them on nobody's behalf, and known to most calls."""


def is_asking(server: str, request: HttpRequest) -> bool:
    """Whether it asks what there is, with nobody's token."""
    return server in ASKED_AHEAD and request.bearer == ASKED_AHEAD[server] and request.rpc_method != "tools/call"


# Every call connects anew; how often a connection pings, or opens its session's stream, is up to the clock.
ONCE_A_CALL = {"server/discover", "initialize", "notifications/initialized", "tools/list", "tools/call"}


def assert_every_call_caused_the_same(server: str, recorder: Recorder, reaching: Sequence[Asked]) -> None:
    """Of each kind of request, every call caused as many as any other."""
    kinds: dict[str, Counter[str]] = {}
    for request in recorder.requests:
        if request.rpc_method in ONCE_A_CALL and not is_asking(server, request):
            kinds.setdefault(kind_of(request), Counter())[trace_id_of(request)] += 1
    for kind, requests in kinds.items():
        each = requests.total() // len(reaching)
        assert requests == Counter({call.trace_id: each for call in reaching}), f"{server}: {kind}"


def trace_id_of(request: HttpRequest) -> str:
    """The trace that a request names, "" if it names none."""
    return "".join(request.headers.get("traceparent", "").split("-")[1:2])


def kind_of(request: HttpRequest) -> str:
    return f"{request.method} {request.path} {request.rpc_method}"
