"""The values of one call: the request (`Call`) and its answer (`Reply`).

All are frozen. A `Call` holds everything that may influence the answer, except its `Credentials`: these exist only as
long as the call, and are in no store in which another call could find them.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from pallas_gateway.calls.parameters import NO_PARAMETERS, Parameters
from pallas_gateway.calls.spending import Spending
from pallas_gateway.identity.caller import ANONYMOUS, Caller

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_types import CallToolResult, ContentBlock

    from pallas_gateway.calls.questions import Answer
    from pallas_gateway.calls.recording import Recorder
    from pallas_gateway.identity.secret import Secret

GET_HEALTH = "get_health"
"""The tool of every agent that returns its health."""
CALL_META_KEY = "pallas/call"
"""In `_meta` of a result: the facts of its call."""
PARAMS_META_KEY = "pallas/params"
"""In `_meta` of a result: the parameters of its call that were ignored or changed."""
NESTING_META_KEY = "pallas/nesting"
"""In `_meta` of a `tools/call`: the number of calls above it, sent to all downstreams, of which some are gateways."""
PDF = "application/pdf"
Role = Literal["user", "assistant"]
type Stop = Literal["deadline", "repeat", "oscillation", "max_iterations", "budget", "limited"]
type Api = Literal["mcp", "openai", "threads", "console", "try"]
TRIES = "(try)"
"""Stands in metrics for the agents that are tried without being saved: their names must not pile up there."""


def new_call_id() -> str:
    """Return a random id: 16 hexadecimal digits."""
    return secrets.token_hex(8)


@dataclass(frozen=True, slots=True)
class Image:
    """One picture or PDF as it came over the wire: `data` is checked base64, `mime_type` is `image/…` or `PDF`.

    `name` is the name of a PDF's file, empty if it is unknown.
    """

    data: str = field(repr=False)
    mime_type: str
    name: str = ""

    def as_json(self) -> dict[str, str]:
        """Return it as callers send and get it."""
        name = {"name": self.name} if self.name else {}
        return {"data": self.data, "mime_type": self.mime_type, **name}


@dataclass(frozen=True, slots=True)
class Step:
    """A round of tools of an earlier answer: what the model asked for, and the results.

    `data` is JSON: `assistant` and `results` are messages of the runtime, `tools` the names of the tools as
    `server/tool` by the ids of their calls. Only the provider that made it can read all of it.
    """

    provider: str
    model: str
    data: str = field(repr=False)


@dataclass(slots=True)
class StepLog:
    """The steps of a running call, also of one that fails.

    `most_bytes` is the most of each result that is kept, and of the arguments of each call; `most_bytes_in_all` that of
    all steps together: those that come after are not kept.
    """

    most_bytes: int
    most_bytes_in_all: int = 4 * 1024 * 1024
    steps: list[Step] = field(default_factory=list)
    size: int = 0

    def add(self, step: Step) -> None:
        self.size += len(step.data)
        if self.size <= self.most_bytes_in_all:
            self.steps.append(step)


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation; `steps` led to it, if it is a stored answer."""

    role: Role
    text: str
    images: tuple[Image, ...] = ()
    steps: tuple[Step, ...] = ()


@dataclass(slots=True)
class ToolUse:
    """One tool call of a call: `name` is `server/tool`, `began` by the monotonic clock.

    `seconds` and `ok` are None until the tool has ended; `failure` is the kind of error of one that has failed.
    """

    name: str
    began: float
    seconds: float | None = None
    ok: bool | None = None
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A tool of one of the agent's downstreams, which a call runs without asking the model."""

    server: str
    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """The name as `server/tool`."""
        return f"{self.server}/{self.tool}"


@dataclass(slots=True)
class Spent:
    """The tokens and tools that a call has used, also if it fails; empty until it has an instance."""

    turns: tuple[TurnUsage, ...] = ()
    iterations: int = 0
    tools: tuple[str, ...] = ()
    tools_failed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an agent: a message to its model, or the `tool` of a downstream to run in place of it.

    `history` is chronological and holds only well-formed turns, `history_skipped` is the number of others; `message` is
    the new user turn. `nesting` counts the calls above this one: those of this gateway, whose nearest is
    `parent_call_id`, and those that a client states.
    `parameters` are those of the caller, until the agent that answers completes them by its defaults. `checkpoint` is
    where another process has left off, for a call that is resumed; `given` are answers to questions that it puts again,
    by their ids, or an answer that the request brings along, by the kind of its question. `recorder` stores the course
    of a long call, and has that of its earlier runs; `may_become_task` is true for a call that may get one. `began` is
    when, by the monotonic clock. `spent` is what the call has used so far, the same object in every copy of the call,
    as is its `spending`, which has its budgets. `api` is the API of its request. `step_log` takes the steps of the
    call, if they are kept.
    """

    agent: str
    message: Message
    history: tuple[Message, ...] = ()
    history_skipped: int = 0
    conversation_id: str | None = None
    parameters: Parameters = NO_PARAMETERS
    caller: Caller = ANONYMOUS
    nesting: int = 0
    parent_call_id: str | None = None
    trace_id: str | None = None
    api: Api = "mcp"
    tool: ToolRequest | None = None
    step_log: StepLog | None = field(default=None, repr=False, compare=False)
    call_id: str = field(default_factory=new_call_id)
    checkpoint: str | None = field(default=None, repr=False)
    given: Mapping[str, Answer] = field(default_factory=dict, repr=False, compare=False)
    recorder: Recorder | None = field(default=None, repr=False, compare=False)
    may_become_task: bool = False
    began: float = field(default_factory=monotonic, repr=False, compare=False)
    spent: Spent = field(default_factory=Spent, repr=False, compare=False)
    spending: Spending = field(default_factory=Spending, repr=False, compare=False)

    @property
    def is_nested(self) -> bool:
        """True if a running call of this gateway made this one."""
        return self.parent_call_id is not None

    @property
    def counted_as(self) -> str:
        """The agent of the call in metrics and usage."""
        return TRIES if self.api == "try" else self.agent

    @property
    def is_continued(self) -> bool:
        """True if another process has begun it."""
        return self.recorder is not None and self.recorder.runs > 0


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call. `input`, `cache_read` and `cache_write` are disjoint; `output` includes `reasoning`.

    `estimated`: the provider sent no usage for a part of it.
    """

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    estimated: bool = False

    @property
    def total(self) -> int:
        """Input, cached input and output together."""
        return self.input + self.cache_read + self.cache_write + self.output

    def __add__(self, other: Usage) -> Usage:
        """Sum kind by kind."""
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
            self.reasoning + other.reasoning,
            self.estimated or other.estimated,
        )

    def by_kind(self) -> dict[str, int]:
        """The tokens by kind."""
        return {
            "input": self.input,
            "output": self.output,
            "cache_read": self.cache_read,
            "cache_write": self.cache_write,
            "reasoning": self.reasoning,
        }

    def as_dict(self) -> dict[str, int]:
        """The wire form used in `_meta["pallas/call"]`; `estimated` is there only if it is true."""
        return {**self.by_kind(), **({"estimated": True} if self.estimated else {})}


@dataclass(frozen=True, slots=True)
class TurnUsage:
    """Tokens of one LLM turn and the model that spent them, for the metrics.

    `caches_by_itself` is true of providers that cache without being asked. `provider` is its name in fast-agent's
    settings. `cost` is None for a model without a price.
    """

    model: str
    usage: Usage
    caches_by_itself: bool = False
    provider: str | None = None
    cost: float | None = None

    def by_kind(self) -> dict[str, int]:
        """The usage by the kinds of the metric: `cache_hit` repeats `cache_read` where the provider chose to cache."""
        kinds = self.usage.by_kind()
        return {**kinds, "cache_hit": self.usage.cache_read} if self.caches_by_itself else kinds


def usage_of(turns: Sequence[TurnUsage]) -> Usage:
    """Return the tokens over all turns."""
    return sum((turn.usage for turn in turns), Usage())


def with_nested(turns: Sequence[TurnUsage], nested: Sequence[TurnUsage]) -> dict[str, Any]:
    """Return usage and cost with those of nested calls, as `_meta["pallas/call"]` has them; empty without any."""
    cost = cost_of((*turns, *nested))
    both = {"usage_with_nested": usage_of((*turns, *nested)).as_dict(), "cost_with_nested": cost}
    return {name: value for name, value in both.items() if value is not None} if nested else {}


def cost_of(turns: Sequence[TurnUsage]) -> float | None:
    """Return the cost of the turns that have a price; None if none has."""
    costs = [turn.cost for turn in turns if turn.cost is not None]
    return round(sum(costs), 9) if costs else None


@dataclass(frozen=True, slots=True)
class Reply:
    """The outcome of a call that was started.

    `content` holds MCP content blocks, text first. `stop_reason` is fast-agent's word (`endTurn`, `maxIterations`, …),
    for a failed call its `failure` (`llm_error`, …), and `content` is then one sentence for the user. `halted` holds
    why loops were stopped (`repeat`, `oscillation`, `deadline`, `budget`, `limited`), those of agents that are used as
    tools included; `stopped` is why the answer is partial. `tools` has each use of a tool by `server/tool`. What was
    spent is known in every case. `ignored` names parameters that the model's provider did not get, `changed` those that
    were sent with another value than was asked for, and this one: a limit of the model, or `thinking` that is `off`
    because the model refuses a parameter while it thinks. `nested` are the LLM turns of other agents
    that the call has called. `tool_result` is that of a call that runs a tool, also if the tool reports an error;
    `content` is then its content.
    """

    content: tuple[ContentBlock, ...]
    stop_reason: str
    iterations: int = 0
    turns: tuple[TurnUsage, ...] = ()
    failure: str | None = None
    halted: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    changed: Mapping[str, Any] = field(default_factory=dict)
    stopped: Stop | None = None
    nested: tuple[TurnUsage, ...] = ()
    tool_result: CallToolResult | None = None

    @property
    def parameter_notes(self) -> dict[str, Any]:
        """The parameters that were `ignored` or `changed`, as answers have them; empty if there are none."""
        notes = {"ignored": list(self.ignored), "changed": dict(self.changed)}
        return {key: value for key, value in notes.items() if value}

    @property
    def usage(self) -> Usage:
        """Tokens over all turns."""
        return usage_of(self.turns)


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials that one call may present.

    The caller's `bearer` where a downstream opted in, and `llm_bearer` to LLM providers that pass a caller's token
    through.
    """

    bearer: Secret | None
    llm_bearer: Secret | None = None
