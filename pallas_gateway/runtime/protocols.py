"""The runtime as the rest of the gateway sees it: it starts agents and opens an instance for each call, which answers.

The packages above depend on these Protocols and are tested with an in-memory runtime. A contract test runs against that
runtime and the one on fast-agent.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pallas_gateway.calls.asking.asking import NO_QUESTIONS
from pallas_gateway.calls.call import PDF
from pallas_gateway.config.model.downstreams import ProcessSettings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from mcp_types import CallToolResult, Tool

    from pallas_gateway.calls.asking.asking import Asker, Questions
    from pallas_gateway.calls.call import Call, Credentials, Reply, ToolUse, TurnUsage
    from pallas_gateway.calls.events.events import EventSink
    from pallas_gateway.calls.events.progress import NotificationSender
    from pallas_gateway.calls.events.queue import StreamOptions
    from pallas_gateway.calls.recording import Journal
    from pallas_gateway.config.model.agents import ModelCapabilities
    from pallas_gateway.file_stamps import Files
    from pallas_gateway.identity.caller import Caller
    from pallas_gateway.identity.secret import Secret
    from pallas_gateway.identity.token_exchange import TokenExchange

type Api = Literal["anthropic", "openai", "google", "azure"]
"""The API by which preflight asks a provider."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The model that an agent uses: its `name` without the provider, and the types of images that it accepts.

    `documents` is true if it accepts PDFs.

    `is_known` is false if neither fast-agent nor the project describes the model; `meant` is then a known model with
    almost the same name, or None. `max_output_tokens` is the length of its longest answer, `context_window` that of a
    request and its answer in tokens, None if unknown.
    """

    name: str
    image_types: frozenset[str] = frozenset()
    is_known: bool = True
    max_output_tokens: int | None = None
    meant: str | None = None
    context_window: int | None = None
    documents: bool = False

    @property
    def attachment_types(self) -> frozenset[str]:
        """The types of images and documents that the model accepts."""
        return self.image_types | {PDF} if self.documents else self.image_types

    @property
    def vision(self) -> bool:
        """True if the model accepts images."""
        return bool(self.image_types)


@dataclass(frozen=True, slots=True)
class LlmProvider:
    """One provider of models, as the project has configured it.

    `name` is the part before the dot of a model's name (`openai`). `api` is its API, None if preflight cannot ask it.
    `url` is the base URL of the API. `key` is its key, None if there is none. `model` is the project's default model
    as the provider names it, which makes this the active provider; None for all others. `key_url` is the URL that
    checks the key, for a provider whose list of models requires no key. `api_version` is Azure's. `is_elsewhere`: true
    for a `base_url` that is not the provider's own, such as that of a model server which speaks its API.
    """

    name: str
    api: Api | None
    url: str | None = field(default=None, repr=False)
    key: Secret | None = None
    model: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    key_url: str | None = None
    api_version: str | None = None
    is_elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class StdioProgram:
    """The program of a stdio downstream; `environ` is its whole environment, `processes` how many run of it."""

    command: str
    arguments: tuple[str, ...] = field(default=(), repr=False)
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    directory: str | None = None
    processes: ProcessSettings = field(default_factory=ProcessSettings)

    @property
    def is_installed(self) -> bool:
        """True if an executable file of this name exists."""
        if os.sep in self.command:
            return os.access(Path(self.directory or "") / self.command, os.X_OK)
        return shutil.which(self.command, path=self.environ.get("PATH")) is not None


CANNOT_LIST = "its tools cannot be listed: "
"""Begins the reason why a server that is reachable is not used."""


@dataclass(frozen=True, slots=True)
class ProgramState:
    """State of a stdio downstream: the reason why its program fails, or the era that a running process has answered."""

    error: str | None = None
    protocol: str | None = None


@dataclass(frozen=True, slots=True)
class Downstream:
    """One MCP server that an agent calls, as configured and with peers resolved.

    `url` is None for a stdio server, which has a `program`; otherwise `transport` is `http` or `sse`. With
    `forwards_bearer` the server may receive the caller's token, with `token_exchange` only a token that was issued in
    exchange for it; it receives neither if `headers` hold credentials. `peer` is the hosted agent behind the URL, if it
    is one: it is called in the process, for at most `read_timeout_seconds`. A listing received with a caller's token is
    used for `listing_seconds` by later calls of that caller; 0 caches no listing at all. `program_state` returns what
    is known of a program without starting it. `list_again` requests the listing once more and waits for it; None where
    only calls can.
    """

    name: str
    url: str | None = field(repr=False)  # may hold a password
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    forwards_bearer: bool = False
    peer: str | None = None
    read_timeout_seconds: float | None = None
    transport: str = "http"
    token_exchange: TokenExchange | None = None
    program: StdioProgram | None = None
    listing_seconds: float = 60.0
    program_state: Callable[[], ProgramState | None] | None = field(default=None, compare=False)
    list_again: Callable[[], Awaitable[object]] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class ParentCall:
    """The call that makes a nested call, the sink and the options of its client, and its questions."""

    call: Call
    sink: EventSink
    options: StreamOptions
    questions: Questions = NO_QUESTIONS


@dataclass(frozen=True, slots=True)
class NestedRequest:
    """A tool call that a running call makes to another agent of this gateway.

    Attributes:
        parent: the running call.
        bearer: the token that the other agent may use.
        sender: takes the notifications of the other agent.
        asker: takes its questions.
    """

    parent: ParentCall
    bearer: Secret | None
    sender: NotificationSender
    asker: Asker = NO_QUESTIONS


class Peers(Protocol):
    """The agents of this gateway, as downstreams of each other."""

    def tools(self, peer: str, caller: Caller) -> Sequence[Tool] | None:
        """Return the tools of `peer` for an agent that works for `caller`; None if that caller may not use the peer."""

    async def call(self, peer: str, tool: str, arguments: dict[str, Any], nested: NestedRequest) -> CallToolResult:
        """Call a tool of `peer`, the name of an agent or `ALL_AGENTS`; `arguments` are not validated.

        Raises:
            AgentUnavailableError: the peer is no longer hosted.
            MCPError: the peer has no such tool.
        """


class OnOperation(Protocol):
    """Receives each downstream operation at its end, also if it failed or was cancelled."""

    def __call__(self, server: str, operation: str, *, ok: bool, seconds: float) -> None:
        """`server` is a configured name or `other`, `operation` one of `tool`, `prompt`, `resource`."""


def not_counted(server: str, operation: str, *, ok: bool, seconds: float) -> None:
    """The `OnOperation` of a runtime without metrics."""


class OnDownstream(Protocol):
    """Receives the state of a downstream when a call or the gateway's own connection finds it."""

    def __call__(self, server: str, error: str | None, *, refused: bool = False) -> object:
        """`error` is None if the server answers; `refused` if it answers and refuses the token of a caller."""


def not_reported(server: str, error: str | None, *, refused: bool = False) -> None:
    """The `OnDownstream` of a runtime without health."""


@dataclass(frozen=True, slots=True)
class Declared:
    """An agent without a module: made from an instruction, a file with one, or a card of fast-agent's.

    Attributes:
        instruction: the text, or None.
        instruction_file: the file with the text, or None.
        card: a card, or a folder of cards that belong together; it defines all that follows.
        model: as fast-agent names it, None for the project's default.
        servers: names of MCP servers of the project.
        tools: patterns of the tools of `servers` that it may use, by the names that it sees; None for all.
        agents: the message tool of each sub-agent, by the sub-agent's name; these tools are always allowed.
        human_input: the model has a tool that asks the caller.
    """

    instruction: str | None = None
    instruction_file: Path | None = None
    card: Path | None = None
    model: str | None = None
    servers: tuple[str, ...] = ()
    tools: tuple[str, ...] | None = None
    agents: Mapping[str, str] = field(default_factory=dict)
    human_input: bool = False


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """The data that a runtime needs to start one agent.

    It has either a `module` or is `declared`; `agent` is the agent of the module to serve, None for the default one or
    the root. `peers` maps addresses of hosted agents to their names; `peer_calls` calls them, and is None where no
    agent is called, as in `check`. `peer_servers` are addresses of peers by name; each is a server of that name unless
    the project has such a server. `models` are those that callers may choose. `watch` are files that the agent may
    read: it is started again when one changes. `on_operation` receives its downstream operations.
    `approve` lists the tools that callers have to approve, `tool_limits` those whose calls are limited. `ask_caller` is
    false if callers are asked nothing. `file_agents` are the agents of the project's files, which policies may name.
    `on_downstream` receives changes of its downstreams' states.
    """

    name: str
    module: str | None
    max_iterations: int
    loop_repeat_threshold: int
    max_relay_depth: int
    model_capabilities: ModelCapabilities | None
    peers: Mapping[str, str]
    on_operation: OnOperation = field(default=not_counted, compare=False)
    peer_calls: Peers | None = None
    models: tuple[str, ...] = ()
    declared: Declared | None = None
    peer_servers: Mapping[str, str] = field(default_factory=dict)
    agent: str | None = None
    watch: tuple[Path, ...] = ()
    approve: tuple[str, ...] = ()
    tool_limits: tuple[str, ...] = ()
    ask_caller: bool = True
    file_agents: tuple[str, ...] = field(default=(), compare=False)
    on_downstream: OnDownstream = field(default=not_reported, compare=False)


@dataclass(frozen=True, slots=True)
class ServerTools:
    """The tools of one downstream that an agent may use; None if they are not known, with the reason as a sentence."""

    name: str
    tools: Sequence[Tool] | None = None
    why_unknown: str | None = None


class Instance(Protocol):
    """The state of fast-agent for one call."""

    @property
    def turns(self) -> tuple[TurnUsage, ...]:
        """The LLM turns so far, which cost tokens even if the call fails."""

    @property
    def iterations(self) -> int:
        """The number of LLM turns begun so far by all agents of a workflow, with or without reported usage."""

    @property
    def tool_uses(self) -> Sequence[ToolUse]:
        """Each tool call so far."""

    @property
    def journal(self) -> Journal | None:
        """The course of the call so far; None for a call that cannot be resumed."""

    def extend(self, seconds: float) -> None:
        """Move the deadline of the running call: it ends in so many seconds, without the time of open questions."""

    async def generate(self, call: Call, *, timeout_seconds: float) -> Reply:
        """Answer the call; a failure of the model or the runtime is a `Reply` with the kind of `failure`."""

    async def run_tool(self, call: Call, *, timeout_seconds: float) -> Reply:
        """Run the tool of the call, without its model; a server that does not answer is a `Reply` with a `failure`.

        Raises:
            CallRefusedError: `no_tool`, the agent does not have it; `approval_required`.
        """


class AgentRuntime(Protocol):
    """One started agent."""

    @property
    def model(self) -> ModelFacts:
        """The model that the served agent uses."""

    @property
    def provider(self) -> LlmProvider | None:
        """The provider of that model; None for fast-agent's test models."""

    def model_named(self, spec: str) -> ModelFacts:
        """Facts of one of the spec's `models`."""

    @property
    def keeps_journal(self) -> bool:
        """True if another process can go on with its calls: it is a single loop, without agents of its own."""

    @property
    def model_names(self) -> frozenset[str]:
        """The names of all models that calls may use, as prices name them: with and without their providers'."""

    @property
    def downstreams(self) -> tuple[Downstream, ...]:
        """Every MCP server that the agent (or an agent inside it) uses."""

    @property
    def instruction(self) -> str:
        """The instruction of the served agent, before its placeholders are filled in for a call."""

    def server_tools(self, caller: Caller) -> tuple[ServerTools, ...]:
        """The tools of each downstream, without a request; never those that were listed with a caller's credential.

        Of a peer, those that `caller` may view.
        """

    @property
    def only_reads(self) -> bool:
        """True if all tools of the agent, but for its peers', are known and declare that they change nothing."""

    @property
    def instances_live(self) -> int:
        """The number of instances of calls that are not yet disposed of."""

    @property
    def files(self) -> Files:
        """The project's files that the agent was made of, each with its stamp when it was read."""

    @property
    def problems(self) -> tuple[str, ...]:
        """Faults of the agent's definition that its downstreams show, such as a filter that matches no tool."""

    def is_current(self, spec: AgentSpec) -> bool:
        """True if a start by `spec` would make the same agent: the spec and the agent's files are unchanged."""

    def open(
        self,
        call: Call,
        credentials: Credentials,
        sink: EventSink,
        options: StreamOptions,
        questions: Questions = NO_QUESTIONS,
    ) -> AbstractAsyncContextManager[Instance]:
        """Make an instance for `call`, which is disposed of after the block.

        Its events go to `sink`, with those that `options` ask for; the questions of the call go to `questions`.
        """


class Runtime(Protocol):
    """Starts agents."""

    def llm_providers(self) -> tuple[LlmProvider, ...]:
        """The provider of the default model, if there is one, and others that preflight can ask with a key."""

    async def problems_of(self, declared: Declared) -> Sequence[tuple[str, str]]:
        """Return the problems of a declared agent, without starting it: pairs of its key and what is wrong."""

    def start(self, spec: AgentSpec, *, reread: bool = False) -> AbstractAsyncContextManager[AgentRuntime]:
        """Import and start one agent; it stops when the block ends.

        Args:
            spec: what to start.
            reread: read its files again although an earlier start of it is in use, which keeps what it has.

        Raises:
            AgentStartError: `module_missing`, `import_failed`, `no_fast`, `no_agent`, `bad_declaration` or
                `start_failed`, with the reason as a sentence.
        """
