"""The events of a running call: one union of frozen values. Each API encodes them when it sends them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pallas_gateway.calls.assistant_stream import Payload
    from pallas_gateway.calls.questions import Action, Question


@dataclass(frozen=True, slots=True)
class Emitter:
    """The agent of an event, by the name that clients know, and the client's own conversation id.

    `is_served` distinguishes the agent that was called from those inside it, one of which may have the same name.
    """

    agent: str
    conversation_id: str | None
    is_served: bool = True


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call that an LLM requested; `server` is None for a tool of no downstream."""

    id: str
    server: str | None
    name: str
    arguments: Mapping[str, Any] = field(repr=False)

    @property
    def shown(self) -> str:
        """`server/tool`, or the tool alone."""
        return f"{self.server}/{self.name}" if self.server else self.name


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of one tool call."""

    call: ToolCall
    is_error: bool
    text: str = field(repr=False)
    duration_seconds: float


@dataclass(frozen=True, slots=True)
class Admitted:
    """The first event: the call runs, and is not refused any more."""


@dataclass(frozen=True, slots=True)
class StepBegan:
    """An agent calls its model, or runs the tools of its answer; `number` counts both from 1."""

    agent: str
    number: int
    kind: Literal["llm", "tool"]


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """A downstream tool call began."""

    server: str
    tool: str


@dataclass(frozen=True, slots=True)
class ToolReported:
    """Progress of a downstream tool call: the whole message for clients.

    `has_ended` if the message is of a peer and ends a sub-task of it.
    """

    message: str
    has_ended: bool = False


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """A downstream tool call ended."""

    server: str
    tool: str
    ok: bool


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the text of one turn, as its model produces it; only if the `StreamOptions` ask for it."""

    emitter: Emitter
    iteration: int
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """One LLM turn has ended; `iteration` counts those of the emitter from 1."""

    emitter: Emitter
    iteration: int
    text: str = field(repr=False)
    tool_calls: Sequence[ToolCall] = ()
    stop_reason: str | None = None


@dataclass(frozen=True, slots=True)
class ToolsEnded:
    """The tool calls of one LLM turn have ended."""

    emitter: Emitter
    iteration: int
    results: Sequence[ToolResult]


@dataclass(frozen=True, slots=True)
class FromPeer:
    """An event of a peer's assistant in the form in which the peer sent it; see `assistant_stream.relayed`."""

    data: Payload = field(repr=False)


@dataclass(frozen=True, slots=True)
class QuestionAsked:
    """The caller is asked; `message` begins with the name of the asker."""

    question: Question
    message: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class QuestionClosed:
    """The question of this id is answered or withdrawn."""

    id: str
    action: Action


type Event = (
    Admitted
    | StepBegan
    | ToolStarted
    | ToolReported
    | ToolEnded
    | TextDelta
    | TurnEnded
    | ToolsEnded
    | FromPeer
    | QuestionAsked
    | QuestionClosed
)
PROGRESS = (StepBegan, ToolStarted, ToolReported, ToolEnded)
"""The events that are progress of the call and nothing else."""


class EventSink(Protocol):
    """Receives the events of a call."""

    def put(self, event: Event) -> None:
        """Receive an event, without delaying the call."""
