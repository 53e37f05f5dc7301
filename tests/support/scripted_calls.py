"""A gateway in the process, on a loop whose time the test moves, and the calls of its agents as a test scripts them.

`ScriptedCall` is a running call seen from inside: here alone stands how a call tells what it does, and how it asks.
Clients send requests to the ASGI app and read its responses; see `protocol_clients`.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, override

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from mcp_types import TextContent

from pallas_gateway.calls.asking.asking import NO_QUESTIONS, Questions
from pallas_gateway.calls.asking.pauses import PausableDeadline
from pallas_gateway.calls.call import Call, Credentials, Reply
from pallas_gateway.calls.events import queue
from pallas_gateway.calls.events.events import (
    Emitter,
    Event,
    EventSink,
    FromPeer,
    StepBegan,
    TextDelta,
    ToolCall,
    ToolEnded,
    ToolResult,
    ToolsEnded,
    ToolStarted,
    TurnEnded,
)
from pallas_gateway.calls.events.progress import ProgressCounter
from pallas_gateway.calls.events.queue import StreamOptions
from pallas_gateway.calls.questions import Answer, Question
from pallas_gateway.calls.recording import Recorder, Row
from pallas_gateway.composition.features import FEATURES
from pallas_gateway.core.feature import PortRoutes
from pallas_gateway.core.gateway import Gateway
from pallas_gateway.doors.http.app import create_app
from pallas_gateway.doors.mcp import notifications
from pallas_gateway.doors.mcp.mcp_servers import McpServers
from pallas_gateway.limits import GatewayLimits, QuestionLimits
from pallas_gateway.runtime.protocols import AgentSpec, NestedRequest, ParentCall
from pallas_gateway.urls import Addresses
from tests.support.asgi import AsgiApp
from tests.support.memory_hosting import configuration
from tests.support.memory_runtime import MemoryAgent, MemoryAgentRuntime, MemoryRuntime
from tests.support.virtual_time import VirtualLoop, virtual_loop

AGENT = "user"
PORT = 1
SERVER, TOOL = "files", "read"


@dataclass(frozen=True)
class Speaker:
    """An agent whose model speaks in a call: the served one, or one inside it."""

    name: str
    is_served: bool


SERVED, INNER = Speaker(AGENT, is_served=True), Speaker("inner", is_served=False)


@dataclass(frozen=True)
class Limits:
    """The limits of what waits for a client, small enough for a test to reach."""

    backlog: int
    live_characters: int
    kept: int

    def apply(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(queue, "MOST_EVENTS", self.backlog)
        patch.setattr(queue, "LONGEST_TEXT", self.live_characters)


DELTA_SECONDS, FLUSH_SECONDS = StreamOptions().text_seconds, notifications.FLUSH_SECONDS


class ScriptedCall:
    """A running call. Each method tells one thing that the call does."""

    def __init__(self, call: Call, sink: EventSink, options: StreamOptions, questions: Questions) -> None:
        self.call = call
        self._sink = sink
        self._options = options
        self.questions = questions
        self.reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.has_ended = False
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[Any]] = []

    # events

    def step(self, number: int) -> str:
        return self._progress(StepBegan(AGENT, number, "llm"))

    def tool_started(self, tool: str) -> str:
        return self._progress(ToolStarted(SERVER, tool))

    def tool_ended(self, tool: str, *, ok: bool) -> str:
        return self._progress(ToolEnded(SERVER, tool, ok))

    def _progress(self, event: Event) -> str:
        self._sink.put(event)
        counted = ProgressCounter().of(event)
        assert counted is not None
        return counted.message

    def live_text(self, speaker: Speaker, turn: int, text: str) -> None:
        self._sink.put(TextDelta(self._emitter(speaker), turn, text))

    def turn_ended(
        self, speaker: Speaker, turn: int, text: str, tools: Sequence[str] = (), stop_reason: str = "endTurn"
    ) -> None:
        calls = [self._tool_call(id_) for id_ in tools]
        self._sink.put(TurnEnded(self._emitter(speaker), turn, text, calls, stop_reason))

    def tools_ended(self, speaker: Speaker, turn: int, tools: Sequence[str], text: str = "") -> None:
        results = [ToolResult(self._tool_call(id_), is_error=False, text=text, duration_seconds=0.5) for id_ in tools]
        self._sink.put(ToolsEnded(self._emitter(speaker), turn, results))

    def relayed(self, payload: dict[str, Any]) -> None:
        self._sink.put(FromPeer(payload))

    def _emitter(self, speaker: Speaker) -> Emitter:
        return Emitter(speaker.name, self.call.conversation_id, speaker.is_served)

    def _tool_call(self, id_: str) -> ToolCall:
        return ToolCall(id_, SERVER, TOOL, {"path": id_})

    # questions

    def ask(self, question: Question) -> asyncio.Task[Answer]:
        return self._spawn(self.questions.ask(question))

    @property
    def open_elsewhere(self) -> list[str]:
        """The ids of the questions at which another process has left the call."""
        recorder = self.call.recorder
        if recorder is not None:
            return [row.tool_call for row in recorder.rows if row.kind == "waits"]
        return list(json.loads(self.call.checkpoint or "[]"))

    def call_peer(self, world: "World", peer: str) -> "ScriptedCall":
        """Call another agent of the gateway, as the connection to a peer does; return its call."""
        asker = Questions(peer, self.questions, tool_call_id="call-of-peer")
        nested = NestedRequest(ParentCall(self.call, self._sink, self._options, self.questions), None, _Silent(), asker)
        self._spawn(world.servers.peers.call(peer, "send_message", {"message": "help"}, nested))
        world.rest()
        return world.latest(peer)

    def _spawn[T](self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self._loop.create_task(work)
        self._tasks.append(task)
        return task

    # the end

    def end(self, *texts: str, failure: str | None = None, halted: Sequence[str] = ()) -> None:
        content = tuple(TextContent(type="text", text=text) for text in texts)
        stop_reason = failure or "endTurn"
        self.reply.set_result(Reply(content, stop_reason, 1, failure=failure, halted=tuple(halted)))

    async def run(self, timeout_seconds: float) -> Reply:
        """Wait for the end; questions that are open then are withdrawn."""
        try:
            async with asyncio.timeout(timeout_seconds) as deadline:
                with self.questions.pauses.including(PausableDeadline(deadline)):
                    return await self.reply
        except TimeoutError:
            text = TextContent(type="text", text="[Stopped: out of time.]")
            return Reply((text,), "endTurn", 1, halted=("deadline",))
        finally:
            self.has_ended = True
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)


class _Silent:
    """The `NotificationSender` of a nested call whose events nothing reads."""

    async def send_progress(self, event: object) -> None:
        del event

    async def send_payload(self, payload: object) -> None:
        del payload


class _ScriptedInstance:
    turns = ()
    tool_uses = ()
    iterations = 0

    def __init__(self, script: ScriptedCall, agent: "ScriptedAgent") -> None:
        self._script = script
        self._agent = agent

    @property
    def journal(self) -> "_ScriptedJournal | None":
        return _ScriptedJournal() if self._agent.can_be_resumed else None

    async def generate(self, call: Call, *, timeout_seconds: float) -> Reply:
        del call
        return await self._script.run(timeout_seconds)


class _ScriptedJournal:
    """The `Journal` of a call that has said nothing yet: its open questions are those of tools."""

    def checkpoint(self, open_questions: Set[str]) -> str | None:
        return json.dumps(sorted(open_questions))

    def record_by(self, recorder: Recorder) -> Sequence[Row]:
        del recorder
        return [Row("turn", 1, "", {})]

    def waiting(self, question: Question) -> Sequence[Row]:
        return [Row("waits", 1, question.id, {})]


@dataclass(eq=False)
class ScriptedAgent(MemoryAgentRuntime):
    """An agent whose calls a test scripts."""

    can_be_resumed: bool = True

    def __post_init__(self) -> None:
        self.calls: list[ScriptedCall] = []

    @property
    @override
    def keeps_journal(self) -> bool:
        return self.can_be_resumed

    @asynccontextmanager
    @override
    async def open(  # type: ignore[override]  # another instance
        self,
        call: Call,
        credentials: Credentials,
        sink: EventSink,
        options: StreamOptions,
        questions: Questions = NO_QUESTIONS,
    ) -> AsyncGenerator[_ScriptedInstance]:
        del credentials
        script = ScriptedCall(call, sink, options, questions)
        self.calls.append(script)
        with self._counted():
            yield _ScriptedInstance(script, self)


class _ScriptedRuntime(MemoryRuntime):
    def __init__(self, names: Sequence[str]) -> None:
        super().__init__({name: MemoryAgent() for name in names})
        self.scripted: dict[str, ScriptedAgent] = {}

    @asynccontextmanager
    @override
    async def start(self, spec: AgentSpec, *, reread: bool = False) -> AsyncGenerator[MemoryAgentRuntime]:
        async with super().start(spec, reread=reread):
            self.scripted[spec.name] = agent = ScriptedAgent(self.agents[spec.name], spec)
            yield agent


@dataclass
class World:
    loop: VirtualLoop
    gateway: Gateway
    servers: McpServers
    app: AsgiApp
    agents: Mapping[str, ScriptedAgent]
    is_at_rest: bool = True

    def note_rest(self) -> None:
        """Note what runs without calls."""
        self._at_rest = self._tasks(), self._timers()

    def latest(self, agent: str = AGENT) -> ScriptedCall:
        return self.agents[agent].calls[-1]

    @property
    def waiting_calls(self) -> int:
        """The number of calls that count as waiting for an answer of their clients."""
        return self.gateway.calls.waiting.count

    def asked(self, agent: str) -> tuple[int, Counter[str]]:
        """Return the number of open questions of an agent, and of ended ones by outcome, as its metrics have them."""
        metrics, outcomes = self.gateway.metrics, Counter[str]()
        for one in self._samples(metrics.questions, agent, "pallas_questions_total"):
            outcomes[one.labels["outcome"]] += int(one.value)
        return sum(int(one.value) for one in self._samples(metrics.questions_open, agent)), +outcomes

    @staticmethod
    def _samples(metric: Any, agent: str, name: str | None = None) -> list[Any]:
        samples = [one for family in metric.collect() for one in family.samples if one.labels["agent"] == agent]
        return [one for one in samples if name in (None, one.name)]

    def drain(self) -> None:
        self.do(self.gateway.calls.drain)

    def rest(self) -> None:
        """Run all that can happen now."""
        self.loop.advance()

    def advance(self, seconds: float) -> None:
        self.loop.advance(seconds)

    def finish[T](self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.finish(work)

    def do[T](self, action: Any, *arguments: Any, **options: Any) -> Any:
        """Call a function within the loop, and run all that follows from it."""

        async def work() -> Any:
            return action(*arguments, **options)

        result = self.loop.finish(work())
        self.rest()
        return result

    def assert_nothing_is_left(self) -> None:
        self.rest()
        sessions, calls = self.gateway.sessions, self.gateway.calls
        left = {
            "tasks": sorted(self._tasks() - self._at_rest[0]),
            "timers": self._timers()[len(self._at_rest[1]) :],
            "calls": len(calls.running()) + calls.started,
            "instances": sum(agent.instances_live for agent in self.agents.values()),
            "cancellations": len(sessions.cancellations),
            "waiting calls": calls.waiting.count,
            "open calls": len(sessions.waiting_calls),
            "expected answers": len(sessions.answers),
            "open questions": sum(len(agent.open_questions) for agent in self.gateway.agents.values()),
        }
        assert not any(left.values()), left
        self.is_at_rest = True

    def _timers(self) -> list[asyncio.TimerHandle]:
        return [timer for timer in self.loop._scheduled if not timer.cancelled()]

    def _tasks(self) -> set[str]:
        return {f"{id(task)} {task}" for task in asyncio.all_tasks(self.loop)}


@contextmanager
def _opened(
    loop: VirtualLoop, folder: Path, agents: Mapping[str, Any], limits: QuestionLimits, gateway: Mapping[str, Any]
) -> Iterator[World]:
    settings = configuration(folder, agents, gateway)
    runtime = _ScriptedRuntime([*agents])

    async def made() -> tuple[Gateway, McpServers]:
        one = Gateway(settings, Addresses(settings), runtime, limits=GatewayLimits(questions=limits), features=FEATURES)
        one.serve_by(servers := McpServers(one))
        return one, servers

    one, servers = loop.finish(made())
    closing, has_opened = asyncio.Event(), asyncio.Event()

    async def served() -> None:
        async with one, one.hosting(with_rounds=False):
            has_opened.set()
            await closing.wait()

    serving = loop.create_task(served(), name="gateway")
    loop.advance()
    assert has_opened.is_set()
    app = create_app(one, servers, {PORT: PortRoutes(agents_by_path=True, registry=True)})
    try:
        yield World(loop, one, servers, app, runtime.scripted)
    finally:
        closing.set()
        loop.finish(_ended(serving))


async def _ended(task: asyncio.Task[None]) -> None:
    await task


class Worlds:
    """The gateways of one test, which share a loop; a course that stops one leaves new ones for the next."""

    def __init__(
        self,
        folder: Path,
        agents: Mapping[str, Any] | None = None,
        *,
        processes: int = 1,
        limits: QuestionLimits | None = None,
        **gateway: Any,
    ) -> None:
        self._folder = folder
        self._agents = agents or {AGENT: {}}
        self._processes = processes
        self._limits = limits or QuestionLimits()
        self._gateway = gateway
        self._open = ExitStack()
        self._worlds: list[World] = []

    def take(self) -> list[World]:
        """Return the gateways, new ones if one was stopped or has something left of a failed course."""
        if any(one.gateway.calls.draining or not one.is_at_rest for one in self._worlds):
            self.__exit__()
        if not self._worlds:
            loop = self._open.enter_context(virtual_loop())
            for _ in range(self._processes):
                opened = _opened(loop, self._folder, self._agents, self._limits, self._gateway)
                self._worlds.append(self._open.enter_context(opened))
            for one in self._worlds:
                one.note_rest()
        for one in self._worlds:
            one.is_at_rest = False
        return self._worlds

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._worlds.clear()
        self._open.close()


def run_courses(machine: type[RuleBasedStateMachine], *, number: int, steps: int) -> None:
    """Run a state machine; a failure is shown by its shortest course."""
    phases = (Phase.generate, Phase.shrink)  # to explain a failure takes minutes
    run_state_machine_as_test(machine, settings=settings(max_examples=number, stateful_step_count=steps, phases=phases))
