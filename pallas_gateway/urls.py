"""Where things are: the URLs clients see, and where the gateway itself reaches its own agents.

Known only after the listeners are bound (a port may be 0), hence apart from the configuration.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urljoin

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pallas_gateway.config.loading.configuration import Configuration

LOOPBACK = "127.0.0.1"
ALL_AGENTS = "*"
"""Stands for all agents at once where else the name of one does; no agent can be called that."""
_ALL_AGENTS_PATH = "/mcp"
WELL_KNOWN = "/.well-known/mcp/server.json"
"""The path of the registry."""
_ANY = {"0.0.0.0", "::", ""}  # noqa: S104  compared with, never bound
_LOOPBACK_NAMES = {LOOPBACK, "::1", "localhost"}
_LOCAL_NAMES = {"localhost", "127.0.0.1", "::1", "0.0.0.0"}  # noqa: S104  as projects write a peer's host


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of one running gateway.

    Attributes:
        configuration: with the port that was bound.
        nested_port: port of the plain loopback listener for nested calls, only with TLS: a certificate is made for
            the public name, not for the loopback address.
        bound_host: the address that was bound, as a number; `gateway.host` may be a name.
    """

    configuration: Configuration
    nested_port: int | None = None
    bound_host: str | None = None

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

    def peers(self, hosted: Iterable[str]) -> Mapping[str, tuple[str, str]]:
        """Every way a project may write the address of a hosted agent → (its name, where the gateway reaches it).

        So too the address of all agents at once, under the name `ALL_AGENTS`.
        """
        found: dict[str, tuple[str, str]] = {}
        if not self.configuration.per_port:  # first: an agent's documented address may be the same
            found = dict.fromkeys(self._written_of_all(), (ALL_AGENTS, f"{self._internal_base}{_ALL_AGENTS_PATH}"))
        for name in hosted:
            target = (name, self._internal(name))
            for address in self._written(name):
                found[address] = target
        return found

    def servers(self, agents: Iterable[str]) -> Mapping[str, str]:
        """Where each of these agents is reached as a server, by name; without those whose port nobody knows.

        With `--agent` the others run in processes of their own, at their documented addresses.
        """
        hosted, known = self.configuration.hosted_agents, self.configuration.deployment.agents
        here = {name: self._internal(name) for name in agents if name in hosted}
        elsewhere = (name for name in agents if name in known and name not in hosted and known[name].port is not None)
        return {**here, **{name: self.public(name) for name in elsewhere}}

    @property
    def internal_hosts(self) -> tuple[str, ...]:
        """The hosts under which the gateway reaches its own agents."""
        return (self._own_host, LOOPBACK, "localhost", "::1")

    @property
    def _own_host(self) -> str:
        bound = self.bound_host or self.configuration.bind_host
        return LOOPBACK if bound in _ANY else bound

    def _written(self, name: str) -> Iterable[str]:
        """The documented port-per-agent addresses, and the single-port ones."""
        deployment = self.configuration.deployment
        hosts = {_bracketed(host) for host in _LOCAL_NAMES | {deployment.host}}
        port = deployment.agents[name].port
        for host in hosts:
            for scheme in ("http", "https"):
                if port is not None:
                    yield f"{scheme}://{host}:{port}/mcp"
                if not self.configuration.per_port:
                    yield f"{scheme}://{host}:{self.registry_port}/agents/{name}/mcp"
        if port is not None or not self.configuration.per_port:
            yield self.public(name)
            yield self._internal(name)  # where another agent of the same module was led already

    def _written_of_all(self) -> Iterable[str]:
        hosts = {_bracketed(host) for host in _LOCAL_NAMES | {self.configuration.deployment.host}}
        bases = (f"{scheme}://{host}:{self.registry_port}" for host in hosts for scheme in ("http", "https"))
        for base in (*bases, self.configuration.public_base_url, self._internal_base):
            yield f"{base}{_ALL_AGENTS_PATH}"

    def _internal(self, name: str) -> str:
        if self.nested_port is None and self.configuration.per_port:
            return f"http://{_bracketed(self._own_host)}:{self.configuration.deployment.agents[name].port}/mcp"
        return f"{self._internal_base}/agents/{name}/mcp"

    @property
    def _internal_base(self) -> str:
        """Where the gateway reaches what it serves by path."""
        if self.nested_port is not None:
            return f"http://{LOOPBACK}:{self.nested_port}"
        return f"http://{_bracketed(self._own_host)}:{self.registry_port}"


def for_this_machine(configuration: Configuration) -> str:
    """The base URL at which a client on this machine reaches the gateway: loopback, if it listens there without TLS."""
    if configuration.scheme == "http" and configuration.bind_host in _LOOPBACK_NAMES | _ANY:
        host = "[::1]" if ":" in configuration.bind_host else LOOPBACK
        return f"http://{host}:{configuration.gateway_port}"
    return configuration.public_base_url


def bypass_proxies(hosts: Iterable[str]) -> None:
    """Have HTTP clients of this process reach these hosts directly, whatever `HTTP_PROXY` says.

    A proxy cannot reach this machine's loopback address, and it must not see nested-call tokens.
    """
    present = [host for host in os.environ.get("NO_PROXY", os.environ.get("no_proxy", "")).split(",") if host]
    value = ",".join(dict.fromkeys([*present, *hosts]))
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = value


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
