"""The loaded configuration and the addresses that follow from it; reading and checking files is the loader's work."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from glob import iglob
from pathlib import Path
from typing import Any

from pallas_gateway.config.loading import cross_checks
from pallas_gateway.config.loading.fastagent_file import FastAgentFile
from pallas_gateway.config.model.agents import AgentSettings, ModelCapabilities
from pallas_gateway.config.model.deployment import Deployment
from pallas_gateway.config.model.values import authority, is_loopback
from pallas_gateway.config.problems import Problem

LOCAL_ONLY = "127.0.0.1"
EVERYWHERE = "0.0.0.0"  # noqa: S104 - the documented default of per-port mode


@dataclass(frozen=True, slots=True)
class StoredIdentity:
    """Facts of an agent of the database besides its settings.

    Attributes:
        id: never used again, also if the name returns.
        version: of the definition.
        owner: the `Caller.owner` that the agent belongs to.
        refused: why it may not run; None if it may.
        created_at: the time of the first version of this id.
        updated_at: the time of this version.
        owner_name: the owner for people.
    """

    id: str
    version: int
    owner: str
    refused: str | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    owner_name: str = ""


@dataclass(frozen=True)
class Configuration:
    """Everything that was read for one start.

    Attributes:
        deployment: `agents.yaml`, with the command line's values applied.
        path: Where it was read.
        lines: 1-based line of every key in it by dotted path, such as `agents.research.module`.
        fastagent: What the gateway needs of fast-agent's own file.
        only_agent: The one agent to serve (`--agent`), else None.
        bound_port: The port that was really bound, once it is known.
        stored: The agents of the database among the agents, by name. One whose name a file has is not an agent here.
        claimed: The agents of the database whose name, or name in the registry, an agent of a file has.
    """

    deployment: Deployment
    path: Path
    lines: Mapping[str, int]
    fastagent: FastAgentFile
    only_agent: str | None = None
    bound_port: int | None = None
    stored: Mapping[str, StoredIdentity] = field(default_factory=dict)
    claimed: Mapping[str, StoredIdentity] = field(default_factory=dict)

    @property
    def refused(self) -> frozenset[str]:
        """The agents of the database that may not run."""
        return frozenset(name for name, one in self.stored.items() if one.refused is not None)

    def with_bound_port(self, port: int) -> "Configuration":
        """Return the configuration with the port that was bound, for `gateway.port: 0`."""
        return replace(self, bound_port=port)

    def with_gateway_value(self, key: str, value: object) -> "Configuration":
        """Return the configuration with another value under `gateway`, which is not checked."""
        gateway = self.deployment.gateway.model_copy(update={key: value})
        return replace(self, deployment=self.deployment.model_copy(update={"gateway": gateway}))

    def with_fastagent_of(self, other: "Configuration") -> "Configuration":
        """Return the configuration with the `fastagent_config` of another, and the contents of that file."""
        named = {"fastagent_config": other.deployment.fastagent_config}
        return replace(self, deployment=self.deployment.model_copy(update=named), fastagent=other.fastagent)

    @property
    def file_agents(self) -> Mapping[str, AgentSettings]:
        """The agents of `agents.yaml` itself."""
        return {name: one for name, one in self.deployment.agents.items() if name not in self.stored}

    @property
    def hosted_agents(self) -> Mapping[str, AgentSettings]:
        agents = self.deployment.agents
        return agents if self.only_agent is None else {self.only_agent: agents[self.only_agent]}

    @cached_property
    def stored_owners(self) -> Mapping[str, str]:
        """The owner of each agent of the database."""
        return {name: one.owner for name, one in self.stored.items()}

    @property
    def per_port(self) -> bool:
        """True if agents are served at `/mcp` on their own ports, as with `--agent`."""
        return self.deployment.gateway.per_port or self.only_agent is not None

    @property
    def scheme(self) -> str:
        """`https` with a certificate, else `http`."""
        return "https" if self.deployment.gateway.tls else "http"

    @property
    def tls_files(self) -> tuple[Path, Path] | None:
        """Certificate and key, relative to `agents.yaml`."""
        tls = self.deployment.gateway.tls
        return (self.path.parent / tls.certfile, self.path.parent / tls.keyfile) if tls else None

    @property
    def named_fastagent_file(self) -> Path | None:
        """fast-agent's file if `agents.yaml` names one, or if only the folder of `agents.yaml` has one.

        Otherwise fast-agent finds it in the working directory.
        """
        if named := self.deployment.fastagent_config:
            return self.path.parent / named
        read = self.fastagent.path
        return read if read is not None and read.absolute().parent != Path.cwd() else None

    @property
    def folder(self) -> Path:
        """The folder of `agents.yaml`; links are not resolved, because they may change."""
        return self.path.absolute().parent

    @property
    def declared_files(self) -> tuple[Path, ...]:
        """The instructions, cards and watched files of the hosted agents, whether they exist or not."""
        agents = self.hosted_agents.values()
        named = [name for agent in agents for name in (agent.instruction_file, agent.card) if name]
        watched = [path for agent in agents for path in self.watched_files(agent)]
        return (*(self.beside(name) for name in named), *watched)

    def watched_files(self, agent: AgentSettings) -> tuple[Path, ...]:
        """Return the files that an agent's `watch` matches now; a name that matches none is returned itself."""
        found: dict[Path, None] = {}
        for name in agent.watch:
            path = self.beside(name)
            matches = () if path.is_file() else iglob(name, root_dir=self.folder, recursive=True)  # noqa: PTH207  takes absolute ones
            files = [match for match in map(self.beside, sorted(matches)) if match.is_file()]
            found |= dict.fromkeys(files or [path])
        return tuple(found)

    def line_of(self, path: str) -> int | None:
        """Return the line of a key in `agents.yaml`, or of the nearest section around it."""
        while path and path not in self.lines:
            path = path.rpartition(".")[0]
        return self.lines.get(path)

    def problem(self, path: str, message: str) -> Problem:
        """Return a problem of the key at `path` in `agents.yaml`."""
        return Problem(str(self.path), self.line_of(path), path, message)

    def beside(self, name: str) -> Path:
        """Return the path of a file that `agents.yaml` names; links are not resolved, because they may change."""
        return self.folder / name

    @property
    def serves_console(self) -> bool:
        """True if the console is on; with one agent alone there is no registry, and no console."""
        enabled = self.deployment.gateway.console
        return self.only_agent is None and (is_loopback(self.bind_host) if enabled is None else enabled)

    @property
    def signs_in(self) -> bool:
        """True if people sign in at the authorization server."""
        auth = self.deployment.gateway.auth
        return auth is not None and auth.console_client_id is not None

    @property
    def bind_host(self) -> str:
        return self.deployment.gateway.host or (EVERYWHERE if self.per_port else LOCAL_ONLY)

    @property
    def gateway_port(self) -> int:
        """The port of the registry, and in single-port mode of everything; 0 until an ephemeral one is bound."""
        return self.configured_port if self.bound_port is None else self.bound_port

    @property
    def configured_port(self) -> int:
        port = self.deployment.gateway.port
        return self.deployment.registry_port if port is None or self.per_port else port

    @property
    def public_base_url(self) -> str:
        """The base of every URL for clients, without a trailing slash."""
        return self.deployment.gateway.public_url or self._address(self.gateway_port)

    def agent_url(self, name: str) -> str:
        """Return the URL of an agent for clients.

        Raises:
            KeyError: No agent has this name.
            ValueError: Per-port mode, and the agent has no port (only possible for agents that are not served).
        """
        port = self.deployment.agents[name].port
        if not self.per_port:
            return f"{self.public_base_url}/agents/{name}/mcp"
        if port is None:
            raise ValueError(f"agent '{name}' has no port")
        return f"{self._address(port)}/mcp"

    def capabilities_of(self, name: str) -> ModelCapabilities | None:
        """Return the declared capabilities of an agent's model: its own block, else the project's."""
        return self.deployment.agents[name].model_capabilities or self.fastagent.model_capabilities

    def registry_name(self, name: str) -> str:
        """Return `{namespace}/{slug}` of an agent."""
        return cross_checks.registry_name(self.deployment, name)

    def _address(self, port: int) -> str:
        return authority(self.scheme, self.deployment.host, port)


def stored_changes(present: Configuration, wanted: Configuration) -> set[str]:
    """Return the agents of the database that differ, and those whose sub-agents appear, go or are other agents."""
    before, after = present.stored, wanted.stored
    differing = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    others = {name for name in differing if _id_of(before.get(name)) != _id_of(after.get(name))}
    return differing | {name for name in after if not others.isdisjoint(wanted.deployment.agents[name].agents)}


def _id_of(agent: StoredIdentity | None) -> str | None:
    return agent.id if agent is not None else None


def applicable(present: Configuration, wanted: Configuration) -> tuple[Configuration, tuple[str, ...]]:
    """Return `wanted` without the changes that require a restart, and the keys of those."""
    fixed = list(needing_a_restart(present, wanted))
    for _, name, value in fixed:
        wanted = wanted.with_gateway_value(name, value) if name else wanted.with_fastagent_of(present)
    if present.bound_port is not None:
        wanted = wanted.with_bound_port(present.bound_port)
    return wanted, tuple(key for key, _, _ in fixed)


def needing_a_restart(present: Configuration, wanted: Configuration) -> Iterator[tuple[str, str, Any]]:
    """Yield each changed setting that requires a restart: its key, its name under `gateway`, and its present value."""
    before, after = present.deployment.gateway, wanted.deployment.gateway
    if present.per_port != wanted.per_port:
        yield "gateway.per_port", "per_port", before.per_port
    if present.bind_host != wanted.bind_host:
        yield "gateway.host", "host", before.host
    if present.bound_port is not None and present.configured_port != wanted.configured_port:
        yield "gateway.port", "port", before.port
    if (before.tls is None) != (after.tls is None):
        yield "gateway.tls", "tls", before.tls
    for key in ("database", "threads_lease_seconds"):
        if getattr(before, key) != getattr(after, key):
            yield f"gateway.{key}", key, getattr(before, key)
    if present.named_fastagent_file != wanted.named_fastagent_file:
        yield "fastagent_config", "", None
