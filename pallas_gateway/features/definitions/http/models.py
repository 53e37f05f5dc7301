"""The queries, bodies and answers of agents. What a definition may hold is decided by `definition.py`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from pydantic import ConfigDict, Field, with_config

from pallas_gateway.doors.api.models import Count, Query, Switch, Text, Time

Positive = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(min_length=1)]


class Options(Query):
    """The query of a change."""

    dry_run: Switch = False
    """Check only; nothing is stored."""
    wait: Switch = False
    """Answer when this process uses the change, or at the latest after 30 seconds."""


class VersionOptions(Options):
    """The query of a change that makes a version."""

    why: Annotated[Text | None, Field(max_length=500)] = None
    """The reason, for the list of versions."""


class DeleteOptions(Options):
    """The query of a deletion."""

    threads: Literal["keep", "delete"] = "keep"
    """Delete the threads of all callers with it, too; requires `delete:agents`."""


class _Definition(TypedDict, total=False):
    icon: Annotated[str | None, Field(max_length=255)]
    instruction: Annotated[str, Field(min_length=1, max_length=100_000, description="The system prompt.")]
    model: Annotated[str | None, Field(max_length=300, description="Default: that of the gateway.")]
    servers: Annotated[list[str] | None, Field(max_length=100, description="MCP servers by their names.")]
    tools: Annotated[
        list[str] | None, Field(max_length=1000, description="The only tools of these, as `server__tool`.")
    ]
    agents: Annotated[list[str] | None, Field(max_length=100, description="Sub-agents.")]
    params: Annotated[dict[str, Any] | None, Field(description="Parameters of calls that do not set them.")]
    examples: Annotated[list[str] | None, Field(max_length=20, description="Messages that people may send.")]
    maxIterations: Positive | None
    loopRepeatThreshold: Count | None
    callTimeoutSeconds: Annotated[float, Field(gt=0)] | None
    maxInFlight: Positive | None
    approve: Annotated[list[str] | None, Field(max_length=200, description="Tools that the caller has to approve.")]
    toolLimits: Annotated[dict[str, Count] | None, Field(max_length=200)]
    maxTokensPerCall: Positive | None
    humanInput: Annotated[bool | None, Field(description="The model may ask the caller.")]


class Definition(_Definition, total=False):
    """The definition of an agent."""

    title: Annotated[str | None, Field(max_length=200)]
    description: Annotated[str | None, Field(max_length=2000)]


@with_config(
    ConfigDict(
        use_attribute_docstrings=True,
        json_schema_extra={"anyOf": [{"required": ["instruction"]}, {"required": ["copyOf"]}]},
    )
)
class NewAgent(Definition):
    """A new agent, or a copy of a declared one."""

    name: Annotated[str, Field(min_length=1, max_length=64, pattern="^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    copyOf: NotRequired[Annotated[str, Field(min_length=1)]]
    """A declared agent; other keys replace those of it."""


class TokenOwner(TypedDict):
    """An owner that signs in: the issuer and the subject of its tokens."""

    __pydantic_config__ = ConfigDict(extra="forbid", use_attribute_docstrings=True)  # type: ignore[misc]

    issuer: str
    subject: str


class _NewOwner(TypedDict, total=False):
    owner: Annotated[
        str | TokenOwner,
        Field(description="The new owner: `key:NAME`, `anonymous`, a caller's id, or issuer and subject of tokens."),
    ]


@with_config(ConfigDict(use_attribute_docstrings=True, json_schema_extra={"required": ["instruction"]}))
class ChangedAgent(Definition, _NewOwner):
    """A whole definition."""


class Agent(TypedDict):
    """An agent in a list."""

    name: str
    title: str
    description: str
    state: Literal["pending", "starting", "ready", "failed"]
    source: Literal["file", "database"]
    reason: NotRequired[Annotated[str, Field(description="Why it is not up, or cannot use its latest version.")]]
    owner: NotRequired[Annotated[str, Field(description="Of an agent of the database: the name of its owner.")]]
    version: NotRequired[Annotated[Positive, Field(description="Of an agent of the database: its latest version.")]]
    runningVersion: NotRequired[
        Annotated[
            Positive | None, Field(description="Of an agent of the database: the version that this process uses.")
        ]
    ]


class WholeAgent(_Definition, Agent):
    """An agent with its definition. `instruction` is shown to callers that may read it."""

    createdAt: NotRequired[Time]
    updatedAt: NotRequired[Time]
    paramsSchema: NotRequired[dict[str, Any] | None]
    """JSON Schema of a chat's `params`; answers of changes have none."""


class Agents(TypedDict):
    """The agents that the caller may see."""

    agents: list[Agent]
    incomplete: NotRequired[Literal[True]]
    """The database has been away since the start: its agents are not among them."""


class ReleasedTool(TypedDict):
    """A tool that definitions may use."""

    name: str
    description: NotRequired[str]


class ReleasedServer(TypedDict):
    """A server that definitions may use."""

    name: str
    globs: list[str]
    """Globs over its tools."""
    tools: list[ReleasedTool] | None
    """Those of its tools that are released, null if they are not known."""
    reason: NotRequired[str]
    """Why they are not known."""


class ReleasedAgent(TypedDict):
    """An agent that definitions may have as a sub-agent."""

    name: str
    title: str
    description: NotRequired[str]


class UpperBounds(TypedDict, total=False):
    """Upper bounds of definitions."""

    maxIterations: int
    callTimeoutSeconds: float
    maxTokensPerCall: int


class AgentsMayUse(TypedDict):
    """Models, servers and agents that definitions may use."""

    mayCreate: bool
    """The caller may create agents."""
    models: list[str]
    """Released models that are known by name."""
    modelPatterns: list[str]
    """Globs over models; all that match are released."""
    defaultModel: str | None
    """The model of definitions without one, if it is released."""
    servers: list[ReleasedServer]
    agents: list[ReleasedAgent]
    """Agents that the caller may have as sub-agents."""
    approve: list[str]
    """Added to `approve` of each agent."""
    most: UpperBounds


class Version(TypedDict):
    """A version of an agent."""

    version: Positive
    editor: str
    """The name of the caller that made it."""
    updatedAt: Time
    why: NotRequired[str]
    """The reason that it gave."""


class AgentVersions(TypedDict):
    """The versions of an agent."""

    versions: list[Version]


class AgentVersion(Definition, Version):
    """One version with its definition."""


class SeenCaller(TypedDict):
    """A person or a key."""

    id: str
    """As `owner` of a change takes it."""
    name: str
    kind: Literal["key", "token"]


class PossibleOwners(TypedDict):
    """Callers that have opened the console, the last one first."""

    callers: list[SeenCaller]


class RatedAnswer(TypedDict):
    """An answer with a note, whose writer lets the owner read them."""

    rating: Literal["good", "bad"]
    note: str
    ratedAt: Time
    question: str
    answer: str


class Ratings(TypedDict):
    """What callers think of an agent's answers."""

    good: Count
    bad: Count
    notes: list[RatedAnswer]
    """The latest 100."""
