"""What the gateway asks of a runtime: start an agent, open an instance for one call, let it answer.

Everything above this floor is written against these Protocols and tested with an in-memory runtime; one contract test
runs against both that one and fast-agent.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pallas_gateway.calls.questions import NO_QUESTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from mcp_types import CallToolResult, Tool

    from pallas_gateway.calls.call import Call, Reply, TurnUsage
    from pallas_gateway.calls.channel import EventSink
    from pallas_gateway.calls.credentials import Credentials
    from pallas_gateway.calls.nesting import NestedRequest
    from pallas_gateway.calls.questions import Questions
    from pallas_gateway.config.model.schema import ModelCapabilities
    from pallas_gateway.identity.caller import Caller
    from pallas_gateway.identity.secret import Secret
    from pallas_gateway.identity.token_exchange import TokenExchange
    from pallas_gateway.runtime.files import Files

type Api = Literal["anthropic", "openai", "google", "azure"]
"""The protocol in which preflight asks a provider."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The model an agent really uses: its `name` without the provider, and the types of images it takes, if any.

    `is_known` is false for a model that neither fast-agent nor the project says anything about; `meant` is then a known
    one with almost the same name, if there is one. `max_output_tokens` is the longest answer it can write, None if
    that is unknown.
    """

    name: str
    image_types: frozenset[str] = frozenset()
    is_known: bool = True
    max_output_tokens: int | None = None
    meant: str | None = None

    @property
    def vision(self) -> bool:
        """True if the model takes images at all."""
        return bool(self.image_types)


@dataclass(frozen=True, slots=True)
class LlmProvider:
    """One provider of models, as the project has set it up.

    `name` is the one before the dot of a model (`openai`). `api` is what it speaks, None for one that preflight cannot
    ask. `url` is where its API begins, `key` its key, None where there is none. `model` is the project's default model
    as it goes over the wire; it makes this the active provider, and is None for all others. `key_url` is what to ask
    to check the key, for a provider whose list of models needs none; `api_version` is Azure's.
    """

    name: str
    api: Api | None
    url: str | None = field(default=None, repr=False)
    key: Secret | None = None
    model: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    key_url: str | None = None
    api_version: str | None = None


@dataclass(frozen=True, slots=True)
class StdioProgram:
    """The program behind a stdio downstream; `environ` is all of its environment."""

    command: str
    arguments: tuple[str, ...] = field(default=(), repr=False)
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    directory: str | None = None

    @property
    def is_installed(self) -> bool:
        """True if there is an executable file of this name."""
        if os.sep in self.command:
            return os.access(Path(self.directory or "") / self.command, os.X_OK)
        return shutil.which(self.command, path=self.environ.get("PATH")) is not None


@dataclass(frozen=True, slots=True)
class Downstream:
    """One MCP server an agent calls, as configured and with peers resolved.

    `url` is None for a stdio server, which has a `program`; otherwise `transport` is `http` or `sse`. `forwards_bearer`
    says that the caller's token may go there, or with a `token_exchange` only what is issued for it; never where
    `headers` hold credentials. `peer` names the hosted agent behind the URL, if it is one: it is then
    called in the process, and waited for at most `read_timeout_seconds`.
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


class Peers(Protocol):
    """The agents of this gateway, as downstreams of each other."""

    def tools(self, peer: str, caller: Caller) -> Sequence[Tool] | None:
        """Return the tools of `peer` for an agent that works for `caller`; None if it is not there for that caller."""

    async def call(self, peer: str, tool: str, arguments: dict[str, Any], nested: NestedRequest) -> CallToolResult:
        """Call a tool of `peer`, the name of an agent or `ALL_AGENTS`; `arguments` are unchecked.

        Raises:
            AgentUnavailableError: the peer is not hosted any more.
            MCPError: it has no such tool.
        """


class OnOperation(Protocol):
    """Told of each operation that was asked of a downstream, when and however it ends."""

    def __call__(self, server: str, operation: str, *, ok: bool, seconds: float) -> None:
        """`server` is a configured name or `other`, `operation` one of `tool`, `prompt`, `resource`."""


def not_counted(server: str, operation: str, *, ok: bool, seconds: float) -> None:
    """The `OnOperation` of a runtime that nobody measures."""


@dataclass(frozen=True, slots=True)
class Declared:
    """An agent that is made without a module: of an instruction, of one in a file, or of a card of fast-agent's.

    Attributes:
        instruction: the text, or None.
        instruction_file: where the text is, or None.
        card: a card, or a folder of cards that belong together; it says all the rest itself.
        model: as fast-agent names it, None for the project's default.
        servers: names of MCP servers of the project.
        tools: the only tools of `servers` that it may use, as it sees them, with patterns; None for all.
        agents: the message tool of each sub-agent, by the sub-agent's name; it may be used in any case.
    """

    instruction: str | None = None
    instruction_file: Path | None = None
    card: Path | None = None
    model: str | None = None
    servers: tuple[str, ...] = ()
    tools: tuple[str, ...] | None = None
    agents: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """What a runtime needs to start one agent, and whom to tell of its downstream operations.

    It has either a `module` or is `declared`; `agent` is the one of its agents to serve, None for the default one or
    the root. `peers` maps addresses of hosted agents to their names; `peer_calls` calls them, and is None where no
    agent is called, as in `check`. `peer_servers` are addresses of peers by name, each a server of that name unless the
    project has one itself. `models` are those that callers may choose. `watch` are files that the agent may read: a
    change of one makes it another agent.
    """

    name: str
    module: str | None
    max_iterations: int
    loop_repeat_threshold: int
    max_relay_depth: int
    model_capabilities: ModelCapabilities | None
    peers: Mapping[str, str]
    on_operation: OnOperation = not_counted
    peer_calls: Peers | None = None
    models: tuple[str, ...] = ()
    declared: Declared | None = None
    peer_servers: Mapping[str, str] = field(default_factory=dict)
    agent: str | None = None
    watch: tuple[Path, ...] = ()


class Instance(Protocol):
    """fast-agent state of one call."""

    @property
    def turns(self) -> tuple[TurnUsage, ...]:
        """The LLM turns so far; they were paid for, whatever becomes of the call."""

    @property
    def iterations(self) -> int:
        """LLM turns begun so far, over all agents of a workflow; those that reported no usage as well."""

    @property
    def tools(self) -> tuple[str, ...]:
        """Each use of a tool so far, by `server/tool`."""

    async def generate(self, call: Call, *, timeout_seconds: float) -> Reply:
        """Answer the call; a failure of the model or the runtime is a `Reply` too, with `failure` saying which."""


class AgentRuntime(Protocol):
    """One started agent."""

    @property
    def model(self) -> ModelFacts:
        """The model the served agent uses."""

    def model_named(self, spec: str) -> ModelFacts:
        """One of the spec's `models`."""

    @property
    def downstreams(self) -> tuple[Downstream, ...]:
        """Every MCP server that the agent (or an agent inside it) uses."""

    @property
    def instances_live(self) -> int:
        """Instances made for calls and not yet disposed of."""

    @property
    def files(self) -> Files:
        """The project's files that it was made of, each as it was when it was read."""

    @property
    def problems(self) -> tuple[str, ...]:
        """What its downstreams show to be wrong with its definition, such as a filter that matches no tool."""

    def is_current(self, spec: AgentSpec) -> bool:
        """True if a start by `spec` would make the same agent: neither the spec nor a file behind it has changed."""

    def open(
        self, call: Call, credentials: Credentials, channel: EventSink, questions: Questions = NO_QUESTIONS
    ) -> AbstractAsyncContextManager[Instance]:
        """A fresh instance for `call` that tells `channel` what happens; disposed of after the block in any case.

        Questions that arise in the call go to `questions`.
        """


class Runtime(Protocol):
    """Starts agents."""

    def llm_providers(self) -> tuple[LlmProvider, ...]:
        """The active provider, if the project has a default model, and others that preflight can ask with a key."""

    def start(self, spec: AgentSpec, *, anew: bool = False) -> AbstractAsyncContextManager[AgentRuntime]:
        """Import and start one agent; it is left when the block ends.

        Args:
            spec: what to start.
            anew: read its files again though an earlier start of it is still in use, and leave that one alone.

        Raises:
            AgentStartError: `module_missing`, `import_failed`, `no_fast`, `no_agent`, `bad_declaration` or
                `start_failed`, with a sentence saying why.
        """
