"""Where things are: the URLs clients see, and the addresses by which projects name agents of this gateway.

Known only after the listeners are bound (a port may be 0), hence apart from the configuration.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote, urljoin, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pallas_gateway.config.loading.configuration import Configuration

LOOPBACK = "127.0.0.1"
ALL_AGENTS = "*"
"""Stands for all agents at once where else the name of one does; no agent can be called that."""
_ALL_AGENTS_PATH = "/mcp"
WELL_KNOWN = "/.well-known/mcp/server.json"
"""The path of the registry."""
CONSOLE = "/console/"
"""The path of the console."""
AGENT_DETAILS = "/api/agents/"
"""The path of the console's endpoint for one agent, before its name."""
RIGHTS = "/api/rights"
"""The path of the console's endpoint for the rights of the caller that concern no agent."""
GATEWAY_STATE = "/api/gateway"
"""The path of the console's endpoint for the gateway."""
SIGN_IN = "/api/sign-in"
"""The path of the endpoint that tells clients how people sign in."""
_ANY = {"0.0.0.0", "::", ""}  # noqa: S104  compared with, never bound
LOOPBACK_NAMES = {LOOPBACK, "::1", "localhost"}
_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1", "0.0.0.0")  # noqa: S104  as projects write a peer's host


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of one running gateway.

    Attributes:
        configuration: with the port that was bound.
    """

    configuration: Configuration
    _peers: dict[tuple[str, ...], Mapping[str, str]] = field(default_factory=dict, init=False, compare=False)

    @property
    def registry_port(self) -> int:
        """The port of the registry, in single-port mode of everything."""
        return self.configuration.gateway_port

    def public(self, agent: str) -> str:
        """The URL at which clients reach an agent."""
        return self.configuration.agent_url(agent)

    @property
    def shared_base(self) -> str:
        """The beginning of all URLs that belong to no single agent; with one agent alone they are on its port."""
        alone = self.configuration.only_agent
        return self.public(alone).removesuffix("/mcp") if alone else self.configuration.public_base_url

    @property
    def all_agents(self) -> str | None:
        """The URL at which clients reach all agents at once; None where each has a port of its own."""
        return None if self.configuration.per_port else self.resource(ALL_AGENTS)

    def resource(self, agent: str) -> str:
        """The URL that names an agent (or all) as an OAuth resource, whether it is there or not."""
        return "".join(self.resource_parts(agent))

    def resource_parts(self, agent: str) -> tuple[str, str]:
        """The same URL in two parts: what all of its kind begin with, and the agent's own path."""
        if agent == ALL_AGENTS:
            return self.configuration.public_base_url, _ALL_AGENTS_PATH
        known = self.configuration.deployment.agents.get(agent)
        if not self.configuration.per_port or known is None or known.port is None:
            return self.configuration.public_base_url, f"/agents/{agent}/mcp"
        return self.configuration.agent_url(agent).removesuffix("/mcp"), "/mcp"

    def absolute(self, reference: str) -> str:
        """A URL relative to the public base, made absolute."""
        return urljoin(f"{self.configuration.public_base_url}/", reference)

    def peers(self, hosted: Iterable[str]) -> Mapping[str, str]:
        """Every way a project may write the address of a hosted agent → its name.

        So too the address of all agents at once, under the name `ALL_AGENTS`.
        """
        names = tuple(hosted)
        if names not in self._peers:  # each agent's start asks for the addresses of all
            found: dict[str, str] = {}
            if not self.configuration.per_port:  # first: an agent's documented address may be the same
                bases = [
                    *(f"{base}:{self.registry_port}" for base in self._local_bases),
                    self.configuration.public_base_url,
                ]
                found = dict.fromkeys((f"{base}{_ALL_AGENTS_PATH}" for base in bases), ALL_AGENTS)
            for name in names:
                found |= dict.fromkeys(self._written(name), name)
            self._peers[names] = found
        return self._peers[names]

    def absent(self) -> Mapping[str, str]:
        """The agents that URLs under `mcp.servers` name as ones of this gateway and no file has, by server."""
        if self.configuration.per_port:
            return {}
        local = {f"{base}:{self.registry_port}" for base in self._local_bases}
        here, also = {self.configuration.public_base_url, *local}, self.configuration.deployment.gateway.allowed_hosts
        found: dict[str, str] = {}
        for server in self.configuration.fastagent.servers.values():
            base, separator, name = (server.url or "").rstrip("/").removesuffix("/mcp").rpartition("/agents/")
            is_here = separator and (base.lower() in here or urlsplit(base).hostname in also)
            if is_here and unquote(name) not in self.configuration.file_agents:
                found[server.name] = unquote(name)
        return found

    def servers(self, agents: Iterable[str]) -> Mapping[str, str]:
        """The address of each of these agents as a server, by name; without those whose port is not known.

        With `--agent` the others run in processes of their own, at their documented addresses.
        """
        hosted, known = self.configuration.hosted_agents, self.configuration.deployment.agents
        here = {name: next(iter(self._written(name))) for name in agents if name in hosted}
        elsewhere = (name for name in agents if name in known and name not in hosted and known[name].port is not None)
        return {**here, **{name: self.public(name) for name in elsewhere}}

    def _written(self, name: str) -> Iterable[str]:
        """The documented port-per-agent addresses, and the single-port ones."""
        port = self.configuration.deployment.agents[name].port
        for base in self._local_bases:
            if not self.configuration.per_port:
                yield f"{base}:{self.registry_port}/agents/{name}/mcp"
            if port is not None:
                yield f"{base}:{port}/mcp"
        if port is not None or not self.configuration.per_port:
            yield self.public(name)

    @property
    def _local_bases(self) -> list[str]:
        """The beginnings of URLs of this machine, without a port; that of localhost is the first."""
        hosts = dict.fromkeys((*_LOCAL_NAMES, self.configuration.deployment.host, self.configuration.bind_host))
        return [f"{scheme}://{_bracketed(host)}" for host in hosts for scheme in ("http", "https")]


def is_console_api(path: str) -> bool:
    return path in (GATEWAY_STATE, RIGHTS) or path.startswith(AGENT_DETAILS)


def for_this_machine(configuration: Configuration) -> str:
    """The base URL at which a client on this machine reaches the gateway: localhost, if it listens without TLS."""
    if configuration.scheme == "http" and configuration.bind_host in LOOPBACK_NAMES | _ANY:
        host = "[::1]" if ":" in configuration.bind_host else "localhost"
        return f"http://{host}:{configuration.gateway_port}"
    return configuration.public_base_url


def bypass_proxies() -> None:
    """Have HTTP clients of this process reach its own machine directly, whatever `HTTP_PROXY` says."""
    present = [host for host in os.environ.get("NO_PROXY", os.environ.get("no_proxy", "")).split(",") if host]
    value = ",".join(dict.fromkeys([*present, *sorted(LOOPBACK_NAMES)]))
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = value


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
