"""What a feature of the gateway is: a folder of features/ with one lifecycle. The core knows features by nothing else.

`composition/` lists them. Their order is that in which they open, admit calls and hear of their ends; they close in
reverse. A feature imports no other: it asks `Gateway.find` for an interface of `core/offers.py`.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pallas_gateway.config.problems import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.core.calls import Gate, Listener
    from pallas_gateway.core.gateway import Gateway

    type Endpoint = Callable[[Request], Awaitable[Response]]


CORE_SETTINGS = frozenset({
    "host", "port", "public_url", "per_port", "tls", "auth", "trusted_proxies", "allowed_hosts", "allowed_origins",
    "max_body_bytes", "max_message_bytes", "max_history_entries", "max_in_flight", "queue_seconds", "heartbeat_seconds",
    "ask_seconds", "max_open_questions", "state_keys", "health_seconds", "drain_seconds", "max_relay_depth",
    "max_nesting", "trace_url", "tool_names", "prices", "database", "upgrade_database", "threads_lease_seconds",
    "tasks",
})  # fmt: skip
"""The keys of `gateway` in agents.yaml that belong to no feature."""


@dataclass(frozen=True, slots=True)
class PortRoutes:
    """The routes of a listener: every agent by path, one agent at `/mcp`, or the registry."""

    agents_by_path: bool = False
    agent: str | None = None
    registry: bool = False

    def is_main(self, configuration: Configuration) -> bool:
        """Return True for the port of the registry, which has all agents, and for the port of a single agent."""
        return self.registry or (self.agent is not None and configuration.only_agent is not None)


@dataclass(frozen=True, slots=True)
class ListedRoute:
    """A route of the gateway's port, as `pallas-gateway routes` lists it.

    Attributes:
        method: in capitals.
        path: with `{name}` for what a client puts in.
        does: a sentence in Markdown.
        requires: who may use it where `gateway.auth` asks for tokens; empty for everybody.
        setting: the setting of agents.yaml that switches it on, in Markdown; empty for those that are always there.
    """

    method: str
    path: str
    does: str
    requires: str = ""
    setting: str = ""


class Route(NamedTuple):
    """An app with its guards, and the paths that it answers."""

    answers: Callable[[str], bool]
    app: ASGIApp


class Trouble(NamedTuple):
    """Something that works only in part now.

    Attributes:
        key: of the document of `/readyz`, with `value`.
        summary: the same in words.
        is_severe: `/readyz?strict=1` is 503.
    """

    key: str
    value: Mapping[str, str]
    summary: str
    is_severe: bool = False


@dataclass(frozen=True, slots=True)
class InParent:
    """What the parent of several workers runs for a feature. Workers call it through `ProcessParts.parent`.

    Attributes:
        service: its name.
        of_worker: returns what carries out the calls of one worker, until the worker has ended. It is given a function
            that reads the configuration again.
        use: uses a configuration that was read again.
    """

    service: str
    of_worker: Callable[[Callable[[], object]], AbstractContextManager[object]]
    use: Callable[[Configuration], object] = lambda _: None


class Feature:
    """A feature of one gateway. Each part has a default; a feature defines those that it has.

    Attributes:
        settings: its keys of `gateway` in agents.yaml; without the feature they are a problem.
        listed: its routes, but for those of `api`.
        needs: the features without which it is not there.
        needs_database: it is only there with `gateway.database`.
        offers: what others find by `Gateway.find`.
    """

    settings: ClassVar[Sequence[str]] = ()
    listed: ClassVar[Sequence[ListedRoute]] = ()
    needs: ClassVar[Sequence[type[Feature]]] = ()
    needs_database: ClassVar[bool] = False
    offers: Sequence[object] = ()

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    @classmethod
    def api(cls) -> Any:
        """Return the `Api` of its routes below `/api/v1/`, which is made with the gateway and the feature; or None."""
        return None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Work during the block: it begins before the first request, and ends after the last call."""
        yield

    def apply(self, configuration: Configuration) -> None:
        """Use a configuration, at the start and after each reload. It cannot fail: `check` has seen it before."""

    @property
    def gates(self) -> Sequence[Gate]:
        """What may refuse new calls, by the present configuration."""
        return ()

    @property
    def listeners(self) -> Sequence[Listener]:
        """What is called at the end of each call, by the present configuration."""
        return ()

    async def measure(self) -> None:
        """Set the gauges, before each scrape."""

    def troubles(self) -> Iterable[Trouble]:
        """Return what works only in part now."""
        return ()

    @classmethod
    def why_off(cls, configuration: Configuration, path: str) -> str | None:
        """Return a sentence about the setting that switches a path of it on; None for other paths, and if it is on."""
        del configuration, path
        return None

    def open_endpoints(self, port: PortRoutes) -> Mapping[str, Endpoint]:
        """Return the endpoints of a port for GET outside the Host guard, by path."""
        del port
        return {}

    def routes(self, port: PortRoutes) -> Iterable[Route]:
        """Return the other routes of a port, but for those of `api`."""
        del port
        return ()


def check(configuration: Configuration, features: Iterable[type[Feature]]) -> None:
    """Check that each setting that is given belongs to the core or to one of these features.

    Raises:
        ConfigurationError: a setting belongs to another feature.
    """
    known = CORE_SETTINGS.union(*(feature.settings for feature in features))
    given = configuration.deployment.gateway.model_fields_set
    if unknown := sorted(given - known):
        why = "this gateway was built without the feature that uses this key"
        raise ConfigurationError([configuration.problem(f"gateway.{name}", why) for name in unknown])
