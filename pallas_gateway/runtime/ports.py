"""What the gateway asks of a runtime: start an agent, open an instance for one call, let it answer.

Everything above this floor is written against these Protocols and tested with an in-memory runtime; one contract test
runs against both that one and fast-agent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractAsyncContextManager

    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.calls.credentials import Credentials
    from pallas_gateway.config.schema import ModelCapabilities


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The model an agent really uses: `name` without its provider, and whether it takes images."""

    name: str
    vision: bool


@dataclass(frozen=True, slots=True)
class Downstream:
    """One MCP server an agent calls, as configured and with peers resolved.

    `url` is None for a stdio server. `forwards_bearer` says that the caller's token may go there; `peer` names the
    hosted agent behind the URL, if it is one.
    """

    name: str
    url: str | None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    forwards_bearer: bool = False
    peer: str | None = None


@dataclass(frozen=True, slots=True)
class AgentPlan:
    """What a runtime needs to start one agent. `peers` maps documented addresses to a peer's (name, real URL)."""

    name: str
    module: str
    max_iterations: int
    model_capabilities: ModelCapabilities | None
    peers: Mapping[str, tuple[str, str]]


class Instance(Protocol):
    """fast-agent state of one call."""

    async def generate(self, call: Call, *, timeout_seconds: float) -> Reply:
        """Answer the call.

        Raises:
            CallFailedError: the model or the runtime failed; the message is one sentence for the user.
        """


class AgentRuntime(Protocol):
    """One started agent."""

    @property
    def model(self) -> ModelFacts:
        """The model the served agent uses."""

    @property
    def downstreams(self) -> tuple[Downstream, ...]:
        """Every MCP server that the agent (or an agent inside it) uses."""

    @property
    def instances_live(self) -> int:
        """Instances made for calls and not yet disposed of."""

    def open(self, call: Call, credentials: Credentials) -> AbstractAsyncContextManager[Instance]:
        """A fresh instance for `call`; it is disposed of after the block, whatever happens in it."""


class Runtime(Protocol):
    """Starts agents."""

    def start(self, plan: AgentPlan) -> AbstractAsyncContextManager[AgentRuntime]:
        """Import and start one agent; it is left when the block ends.

        Raises:
            AgentStartError: `module_missing`, `import_failed`, `no_fast` or `start_failed`, with a sentence saying why.
        """
