"""An in-memory `Runtime`: agents are functions of a call, made to fail, wait or disappear as the test says.

It keeps the promises of `pallas_gateway.runtime.protocols`; one contract test runs against it and against fast-agent's.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from time import monotonic

from mcp_types import ContentBlock, TextContent

from pallas_gateway.calls.asking.asking import NO_QUESTIONS, Questions
from pallas_gateway.calls.assistant_stream import Payload
from pallas_gateway.calls.call import Call, Credentials, Message, Reply, ToolUse, TurnUsage, Usage
from pallas_gateway.calls.events.events import Emitter, EventSink, StepBegan, TurnEnded
from pallas_gateway.calls.events.progress import ProgressEvent
from pallas_gateway.calls.events.queue import EventQueue, StreamOptions
from pallas_gateway.errors import AgentStartError, CallRefusedError
from pallas_gateway.file_stamps import Files
from pallas_gateway.identity.caller import Caller
from pallas_gateway.runtime.protocols import AgentSpec, Declared, Downstream, LlmProvider, ModelFacts, ServerTools

from .waiting import WAIT_SECONDS, Changes, Gate

type Answer = Callable[[Call], Reply]
type Tell = Callable[[Call, EventSink], None]
MODEL = ModelFacts("memory-model")
NEVER = 3600.0
TURN = TurnUsage(MODEL.name, Usage(input=3, output=2))


def say(
    text: str, *, stop_reason: str = "endTurn", turns: Sequence[TurnUsage] = (TURN,), halted: Sequence[str] = ()
) -> Reply:
    content: tuple[ContentBlock, ...] = (TextContent(type="text", text=text),)
    return Reply(content, stop_reason, len(turns), tuple(turns), halted=tuple(halted))


def repeat(call: Call) -> Reply:
    """What the user said, like fast-agent's `passthrough`."""
    return say(call.message.text)


def fail(
    sentence: str = "The model could not answer: overloaded",
    *,
    reason: str = "llm_error",
    turns: Sequence[TurnUsage] = (),
) -> Answer:
    """An answer that never comes, after the LLM turns it took to find out."""
    failed = replace(say(sentence, stop_reason=reason, turns=turns), failure=reason)
    return lambda _: failed


def tell_a_turn(call: Call, sink: EventSink) -> None:
    """What fast-agent's `passthrough` tells of its one turn."""
    sink.put(StepBegan(call.agent, 1, "llm"))
    sink.put(TurnEnded(Emitter(call.agent, call.conversation_id), 1, call.message.text, stop_reason="endTurn"))


@dataclass
class RecordingOutlet:
    events: list[ProgressEvent] = field(default_factory=list)
    payloads: list[Payload] = field(default_factory=list)

    async def send_progress(self, event: ProgressEvent) -> None:
        self.events.append(event)

    async def send_payload(self, payload: Payload) -> None:
        self.payloads.append(payload)


def unread(options: StreamOptions | None = None) -> tuple[EventQueue, StreamOptions]:
    options = options or StreamOptions()
    return EventQueue(options), options


def a_spec(name: str, module: str | None = None) -> AgentSpec:
    """How to start `name`, with the defaults of `agents.yaml`."""
    return AgentSpec(name, module or f"agents.{name}", 15, 3, 3, None, {})


def text_of(reply: Reply) -> str:
    return "\n".join(block.text for block in reply.content if isinstance(block, TextContent))


def a_call(text: str = "hello", *, agent: str = "echo", history: Sequence[Message] = (), nesting: int = 0) -> Call:
    """A client's call of `agent`; with `nesting` one that a running call made."""
    return Call(
        agent, Message("user", text), tuple(history), nesting=nesting, parent_call_id="above" if nesting else None
    )


NOBODY = Credentials(None)


@dataclass
class MemoryAgent:
    """How one agent behaves, and what has happened to it. Everything may be changed while it runs.

    A call comes to the gate `answering` after what it `tells`, with `turns_so_far` and `tools_so_far`. `start_failures`
    are raised by the next starts, one each. A file behind it was `edited` until a start with `reread`.
    """

    answer: Answer = repeat
    tells: Tell = lambda call, sink: None
    model: ModelFacts = MODEL
    provider: LlmProvider | None = None
    downstreams: tuple[Downstream, ...] = ()
    turns_so_far: Sequence[TurnUsage] = ()
    tools_so_far: Sequence[str] = ()
    start_failures: list[Exception] = field(default_factory=list)
    edited: bool = False
    starting: Gate | None = None
    answering: Gate | None = None
    starts: int = 0
    leaves: int = 0
    opened: int = 0
    disposed: int = 0
    calls: list[Call] = field(default_factory=list)
    credentials: list[Credentials] = field(default_factory=list)
    changes: Changes = field(default_factory=Changes)

    async def until(self, predicate: Callable[["MemoryAgent"], object], timeout_seconds: float = WAIT_SECONDS) -> None:
        await self.changes.until(lambda: predicate(self), timeout_seconds, what=f"the agent (so far: {self})")


class MemoryRuntime:
    """The `Runtime` of agents by name; a name it does not know is a missing module."""

    def __init__(self, agents: Mapping[str, MemoryAgent]) -> None:
        self.agents = agents
        self.specs: list[AgentSpec] = []
        self.providers: tuple[LlmProvider, ...] = ()

    def llm_providers(self) -> tuple[LlmProvider, ...]:
        return self.providers

    async def problems_of(self, declared: Declared) -> Sequence[tuple[str, str]]:
        """Problems of models and servers that have `unknown` in their names."""
        named = {"model": declared.model or "", **{f"servers.{at}": one for at, one in enumerate(declared.servers)}}
        return [(path, f"no '{name}'") for path, name in named.items() if "unknown" in name]

    @asynccontextmanager
    async def start(self, spec: AgentSpec, *, reread: bool = False) -> AsyncGenerator["MemoryAgentRuntime"]:
        self.specs.append(spec)
        agent = self.agents.get(spec.name)
        if agent is None:
            raise AgentStartError(f"no module '{spec.module}' on the import path", reason="module_missing")
        agent.starts += 1
        agent.edited = agent.edited and not reread
        agent.changes.announce()
        if agent.starting is not None:
            await agent.starting.enter(spec.name)
        if agent.start_failures:
            raise agent.start_failures.pop(0)
        try:
            yield MemoryAgentRuntime(agent, spec)
        finally:
            agent.leaves += 1
            agent.changes.announce()


@dataclass(eq=False)
class MemoryAgentRuntime:
    agent: MemoryAgent
    spec: AgentSpec | None = None
    instances_live: int = 0

    @property
    def files(self) -> Files:
        return {}

    def is_current(self, spec: AgentSpec) -> bool:
        """Whether the test has not said otherwise, and the plan is the same."""
        began = self.spec or spec
        return not self.agent.edited and replace(spec, on_operation=began.on_operation) == began

    @property
    def model(self) -> ModelFacts:
        return self.agent.model

    @property
    def keeps_journal(self) -> bool:
        """False: its calls cannot be resumed."""
        return False

    def model_named(self, spec: str) -> ModelFacts:
        return replace(self.agent.model, name=spec)

    @property
    def model_names(self) -> frozenset[str]:
        return frozenset({self.agent.model.name})

    @property
    def provider(self) -> LlmProvider | None:
        return self.agent.provider

    @property
    def downstreams(self) -> tuple[Downstream, ...]:
        return self.agent.downstreams

    @property
    def problems(self) -> tuple[str, ...]:
        return ()

    @property
    def instruction(self) -> str:
        return ""

    def server_tools(self, caller: Caller) -> tuple[ServerTools, ...]:
        return tuple(ServerTools(one.name, why_unknown="not known") for one in self.downstreams)

    @property
    def only_reads(self) -> bool:
        return False

    @asynccontextmanager
    async def open(
        self,
        call: Call,
        credentials: Credentials,
        sink: EventSink,
        options: StreamOptions,
        questions: Questions = NO_QUESTIONS,
    ) -> AsyncGenerator["MemoryInstance"]:
        self.agent.credentials.append(credentials)
        with self._counted():
            yield MemoryInstance(self.agent, sink)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self.instances_live += 1
        self.agent.opened += 1
        try:
            yield
        finally:
            self.instances_live -= 1
            self.agent.disposed += 1
            self.agent.changes.announce()


@dataclass
class MemoryInstance:
    agent: MemoryAgent
    sink: EventSink
    turns: tuple[TurnUsage, ...] = ()
    tools: tuple[str, ...] = ()

    @property
    def tool_uses(self) -> Sequence[ToolUse]:
        return [ToolUse(name, monotonic(), 0.0, ok=True) for name in self.tools]

    @property
    def iterations(self) -> int:
        return len(self.turns)

    @property
    def journal(self) -> None:
        """None: the call cannot be resumed."""

    def extend(self, seconds: float) -> None:
        """Do nothing: its deadline is not moved."""

    async def generate(self, call: Call, *, timeout_seconds: float) -> Reply:
        """Answer, after waiting at the agent's gate; at the deadline a success that says so."""
        self.agent.calls.append(call)
        self.agent.tells(call, self.sink)
        self.agent.changes.announce()
        self.turns, self.tools = tuple(self.agent.turns_so_far), tuple(self.agent.tools_so_far)
        if self.agent.answering is not None:
            try:
                async with asyncio.timeout(timeout_seconds):
                    await self.agent.answering.enter(call.message.text)
            except TimeoutError:
                return say("[Stopped: out of time. There is no answer yet.]", turns=self.turns, halted=("deadline",))
        reply = self.agent.answer(call)
        self.turns, self.tools = reply.turns, reply.tools
        return reply

    async def run_tool(self, call: Call, *, timeout_seconds: float) -> Reply:
        """Refuse the tool: the agent has none."""
        del timeout_seconds
        raise CallRefusedError(f"Agent '{call.agent}' has no tool.", reason="no_tool")
