"""The queries and answers of calls."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from pydantic import Field

from pallas_gateway.doors.api.models import DIGITS, Count, Query, Time

MOST_RECENT = 1000


class Recent(Query):
    """The query of a list of calls."""

    recent: Annotated[int, Field(ge=1, le=MOST_RECENT), DIGITS] | None = None
    """The number of ended calls."""


class Call(TypedDict):
    """A running call."""

    id: str
    parent: Annotated[str | None, Field(description="The call that made this one.")]
    agent: str
    caller: Annotated[
        str, Field(description="`key:NAME`, `token:NAME` or `anonymous`; of a nested call the outermost caller.")
    ]
    api: Literal["mcp", "openai", "threads", "console", "try"]
    startedAt: Time
    step: Annotated[Count, Field(description="LLM turns begun.")]
    seconds: Annotated[float, Field(ge=0)]
    tokens: Annotated[Count, Field(description="Of its own LLM turns.")]
    estimated: NotRequired[Annotated[Literal[True], Field(description="For a part, the provider sent no usage.")]]
    waiting: Annotated[bool, Field(description="A question to its caller is open.")]
    worker: Annotated[int | None, Field(ge=1, description="null: none of this gateway runs it.")]


class OpenTask(Call):
    """A long call that no worker of this gateway runs."""

    status: Literal["working", "input_required"]
    statusMessage: str
    """The last stored step."""
    runs: Annotated[int, Field(ge=1)]
    atRest: bool
    """No process runs it; false: another replica does."""


class CalledTool(TypedDict):
    """A tool call of an ended call."""

    name: str
    start: float
    """Seconds from the begin of the call."""
    seconds: float
    ok: bool | None
    """null: it had not ended."""


class EndedCall(Call):
    """A call that has ended."""

    endedAt: Time
    outcome: Literal["ok", "error"]
    stopReason: str
    """Of a failed call, the reason."""
    tools: Annotated[list[CalledTool], Field(max_length=20)]
    toolsLeftOut: Count
    """The number of later tool calls."""


class Calls(TypedDict):
    """The calls of all workers, and the long calls that none of them runs."""

    calls: list[Call | OpenTask | EndedCall]
    missing: NotRequired[list[int]]
    """The workers that did not answer."""
    tasksMissing: NotRequired[Literal[True]]
    """The database cannot be read: only calls that run here are listed."""
