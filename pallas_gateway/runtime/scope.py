"""The context of a call, for code deep inside fast-agent and the providers' libraries.

One frozen object in one ContextVar, inherited by every task that the call starts. `StartedAgent.open` makes it; a tool
call works in a copy with its own fields added. `calls/current.py` has the part that changes of libraries read, with the
LLM turn. Ids and secrets for log records are in `telemetry/current_call.py`.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from pallas_gateway.calls.asking.asking import NO_QUESTIONS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence

    from fast_agent.mcp.mcp_aggregator import MCPAggregator
    from mcp_types import CallToolResult, InputRequiredResult

    from pallas_gateway.calls.asking.asking import Questions
    from pallas_gateway.calls.assistant_stream import PeerCall
    from pallas_gateway.calls.call import Credentials
    from pallas_gateway.calls.questions import Answer, Question
    from pallas_gateway.calls.spending import Spending
    from pallas_gateway.errors import TokenExchangeError
    from pallas_gateway.identity.token_exchange import TokenExchanger
    from pallas_gateway.runtime.protocols import Downstream, OnOperation

    class OnTrouble(Protocol):
        """Receives an error of a server."""

        def __call__(self, server: str, *, is_outdated: bool) -> object:
            """Handle it; see `Operations`."""

    class Turns(Protocol):
        """The `turn_meter.TurnMeter` of a call."""

        spending: Spending
        tool_failures: dict[str, str]

        @property
        def journal(self) -> object:
            """The `journal.Journal`, or None."""

        async def run(self, llm: Any, arguments: Sequence[Any], run: Callable[[], Awaitable[Any]]) -> Any:
            """Run a turn and count it."""

    type Connect = Callable[[MCPAggregator], Awaitable[None]]


OF_SERVER = "input "
"""Begins what a question of the server is about."""


@dataclass(frozen=True, slots=True)
class Presented:
    """The credentials of a call, and the downstreams that may receive them."""

    credentials: Credentials
    downstreams: Mapping[str, Downstream]
    exchanger: TokenExchanger
    failures: dict[str, TokenExchangeError] = field(default_factory=dict)  # of this call, by server
    refusals: dict[str, str] = field(default_factory=dict)  # sentences about servers without tools, by server


@dataclass(frozen=True, slots=True)
class Operations:
    """Receivers of reports about an agent's downstream operations.

    Attributes:
        on_operation: is called with each operation, cancelled ones included.
        servers: names of the servers that the agent is configured with.
        on_trouble: is called with a server that failed to answer or whose tool returned an error; `is_outdated` if an
            outdated listing may be the reason.
        on_refused: is called with a server that has refused the credential of the call (401, 403).
        misfits: when a server or one of its tools last had a result that did not fit; see `result_checks`.
        refresh_seconds: a server that reports a change during a call may take so long to list its tools again.
    """

    on_operation: OnOperation
    servers: Collection[str]
    on_trouble: OnTrouble = lambda server, *, is_outdated: None  # noqa: ARG005  names of the protocol
    on_refused: Callable[[str], object] = lambda _: None
    misfits: dict[tuple[str, str], float] = field(default_factory=dict)
    refresh_seconds: float = 5.0


@dataclass
class ToolRun:
    """A tool call that runs: its result, what its server requires, and its questions to the caller.

    Attributes:
        result: None until it ends.
        input_required: what its server requires before it goes on, in 2026-07-28.
        repeats: `input_required` was recorded by another process and takes the place of the first request.
        questions: ids of those that can be put again, by what they are about.
        answers: to these questions.
        asked_under: the policy by which its approval is asked for; None if it is not.
        texts: that another process had for the model, to be read in the result.
        is_refused: the gateway has not run it.
        has_begun: it works, or has worked; False while nothing of it runs.
    """

    result: CallToolResult | None = None
    input_required: InputRequiredResult | None = None
    repeats: bool = False
    questions: dict[str, str] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    asked_under: Sequence[str] | None = None
    texts: Sequence[str] = ()
    is_refused: bool = False
    has_begun: bool = False

    @property
    def can_be_repeated(self) -> bool:
        """Return whether the tool waits for questions that can be put again: then nothing of it runs meanwhile."""
        return bool(self.questions.keys() - self.answers.keys())

    def require(self, required: InputRequiredResult | None) -> None:
        """Take what the server requires now; the questions of its earlier answer are over."""
        self.input_required = required
        for about in [one for one in self.questions if one.startswith(OF_SERVER)]:
            del self.questions[about]
            self.answers.pop(about, None)

    async def ask(self, about: str, question: Question, questions: Questions) -> Answer:
        """Put a question of this tool call to the caller by `questions`, unless its answer was recorded."""
        if (known := self.answers.get(about)) is not None:
            return known
        id_ = self.questions.setdefault(about, question.id)
        self.has_begun = False
        self.answers[about] = answer = await questions.ask(replace(question, id=id_))
        return answer


@dataclass(frozen=True, slots=True)
class CallScope:
    """The context of a call; empty outside of calls.

    Attributes:
        connect: connects aggregators; None leaves it to fast-agent.
        models: fast-agent's parameters of the models that the agent declares.
        presented: the call's credentials.
        operations: receives reports of downstream operations.
        questions: of the call, for its caller.
        served: the name of the agent that was called, in its own module.
        servers: the names of all servers of the hosted agent.
        turns: of the call; None outside of calls.
        tool_run: the running tool call, if the journal records it.
        peer_call: the running tool call; notifications of a peer arrive in its context.
    """

    connect: Connect | None = None
    servers: Collection[str] = ()
    models: Mapping[str, Any] = field(default_factory=dict)
    # The call
    presented: Presented | None = None
    operations: Operations | None = None
    questions: Questions = NO_QUESTIONS
    served: str | None = None
    turns: Turns | None = None
    # One tool call
    tool_run: ToolRun | None = None
    peer_call: PeerCall | None = None

    @property
    def tool_failures(self) -> dict[str, str]:
        """Kinds of the errors of the call's tool calls, by their ids."""
        return self.turns.tool_failures if self.turns is not None else {}


async def connect_nothing(_: MCPAggregator) -> None:
    """The `connect` of aggregators that are made under locks, or whose servers are attached by name."""


current_scope: ContextVar[CallScope] = ContextVar("pallas_call_scope", default=CallScope())  # noqa: B039  frozen


@contextmanager
def entered(scope: CallScope) -> Iterator[None]:
    """Make `scope` the current one for the block."""
    token = current_scope.set(scope)
    try:
        yield
    finally:
        current_scope.reset(token)
