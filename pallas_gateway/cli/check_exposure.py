"""Warnings about who can reach the gateway and who cannot: logged by `serve`, printed by `check`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from pallas_gateway.client.output import problem
from pallas_gateway.config.loading.configuration import Configuration
from pallas_gateway.config.model.values import is_loopback, is_wider_than_any_site
from pallas_gateway.config.problems import Problem
from pallas_gateway.identity.grants import Grants
from pallas_gateway.telemetry.log_outputs import StderrOutput
from pallas_gateway.urls import Addresses

_log = logging.getLogger("pallas.cli")
_TEXTS = {
    "open": (
        "LISTENING BEYOND THIS MACHINE WITHOUT AUTHENTICATION: anyone who reaches the port can call every agent; "
        "make a key with `pallas-gateway token new`, or bind 127.0.0.1"
    ),
    "open_to_anonymous": (
        "LISTENING BEYOND THIS MACHINE, AND CALLERS WITHOUT A TOKEN MAY RUN AGENTS: make a key with `pallas-gateway "
        "token new` in place of the anonymous grant, or bind 127.0.0.1"
    ),
    "believes_all": (
        "EVERY CLIENT IS TRUSTED AS A PROXY: anyone who reaches the port can set the client address; name the "
        "proxies' own addresses in gateway.trusted_proxies"
    ),
    "local_urls": "clients elsewhere are given localhost URLs, which they cannot reach; set gateway.public_url",
    "local_urls_per_port": (
        "clients elsewhere are given localhost URLs, which they cannot reach; set the top-level host"
    ),
    "own_urls": "clients of the proxy are given the gateway's own URLs, which bypass it; set gateway.public_url",
    "unbound_urls": (
        "clients are given URLs of a host on which nothing listens, as only this machine's loopback address is bound; "
        "set gateway.host (0.0.0.0 binds every address), or gateway.public_url where a proxy stands in front"
    ),
    "unbound_urls_per_port": (
        "clients are given URLs of a host on which nothing listens, as only this machine's loopback address is bound; "
        "set gateway.host (0.0.0.0 binds every address), or remove host"
    ),
    "plain_urls": (
        "agents on ports of their own are shown with http:// URLs, whatever gateway.public_url says; set gateway.tls, "
        "or serve all on one port"
    ),
    "closed": "no caller is accepted: gateway.auth names no tokens, no jwt and no anonymous grants",
    "expired_key": "a key has expired and is refused; remove it, or make a new one with `pallas-gateway token new`",
    "ending_key": "a key expires within 14 days; make a new one with `pallas-gateway token new`",
    "idle_key": "a key without grants opens nothing; give it some, such as run:agents",
    "not_forwarded": (
        "no caller has a token for this server: static keys (gateway.auth.tokens) are never forwarded; configure "
        "gateway.auth.jwt, or give the server an Authorization header of its own"
    ),
    "absent_agent": (
        "this server has the URL of an agent of this gateway that agents.yaml does not have; correct or remove it, as "
        "no agent of the database may take that name"
    ),
    "handed_on": "callers' tokens for this gateway are forwarded to another server; token_exchange avoids that",
}
ENDING = timedelta(days=14)
"""Time before the end of a key in which it is reported."""
_LOUD = ("open", "open_to_anonymous", "believes_all")


@dataclass(frozen=True, slots=True)
class ExposureWarning:
    """One warning: its kind (a key of `_TEXTS`), its place in the files, and the fields of its log record."""

    kind: str
    file: str
    line: int | None
    path: str
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def as_problem(self) -> Problem:
        return Problem(self.file, self.line, self.path, _TEXTS[self.kind])


def warn_of_exposure(configuration: Configuration) -> None:
    """Log each warning; those about open access are printed on stderr if the log does not show them."""
    shown = _log.isEnabledFor(logging.WARNING) and any(
        isinstance(handler, StderrOutput) for handler in logging.getLogger().handlers
    )
    for warning in exposure_warnings(configuration):
        _log.warning(_TEXTS[warning.kind], extra=warning.fields)
        if warning.kind in _LOUD and not shown:
            problem(_TEXTS[warning.kind])


def exposure_warnings(configuration: Configuration, now: datetime | None = None) -> Iterator[ExposureWarning]:
    """Yield each warning, as of `now`; None is the present."""
    if not is_loopback(configuration.bind_host):
        yield from _beyond_this_machine(configuration)
    elif not is_loopback(configuration.deployment.host):
        yield from _unbound(configuration)
    yield from _proxied(configuration)
    yield from _closed(configuration, now or datetime.now(UTC))
    yield from _handed_on(configuration)
    for server, agent in Addresses(configuration).absent().items():
        at = configuration.fastagent.servers[server]
        fields = {"server": server, "agent": agent}
        yield ExposureWarning(
            "absent_agent", str(configuration.fastagent.path), at.line, f"mcp.servers.{server}", fields
        )


def _beyond_this_machine(configuration: Configuration) -> Iterator[ExposureWarning]:
    gateway = configuration.deployment.gateway
    fields = {"host": configuration.bind_host}
    if gateway.auth is None:
        yield _warning(configuration, "open", "gateway.auth", at="gateway.host", **fields)
    elif any(map(Grants.of(gateway.auth.anonymous).may_run, _served(configuration))):
        yield _warning(configuration, "open_to_anonymous", "gateway.auth.anonymous", **fields)
    if not is_loopback(configuration.deployment.host):
        return
    if configuration.per_port:  # there `public_url` is only the registry's
        yield _warning(configuration, "local_urls_per_port", "host", **fields)
    elif gateway.public_url is None and not gateway.trusted_proxies:
        yield _warning(configuration, "local_urls", "gateway.public_url", at="gateway.host", **fields)


def _unbound(configuration: Configuration) -> Iterator[ExposureWarning]:
    """`host` is a name that other machines use, and only loopback is bound."""
    gateway = configuration.deployment.gateway
    fields = {"host": configuration.deployment.host, "bound": configuration.bind_host}
    if configuration.per_port:  # there `public_url` is only the registry's
        yield _warning(configuration, "unbound_urls_per_port", "host", **fields)
    elif gateway.public_url is None and not gateway.trusted_proxies:
        yield _warning(configuration, "unbound_urls", "host", **fields)


def _proxied(configuration: Configuration) -> Iterator[ExposureWarning]:
    gateway = configuration.deployment.gateway
    for index, network in enumerate(gateway.trusted_proxies):
        if is_wider_than_any_site(network):
            yield _warning(configuration, "believes_all", f"gateway.trusted_proxies.{index}", proxies=network)
    if not configuration.per_port and gateway.trusted_proxies and gateway.public_url is None:
        yield _warning(configuration, "own_urls", "gateway.public_url", at="gateway.trusted_proxies")
    if configuration.per_port and gateway.tls is None and (gateway.public_url or "").startswith("https:"):
        yield _warning(configuration, "plain_urls", "gateway.public_url")


def _closed(configuration: Configuration, now: datetime) -> Iterator[ExposureWarning]:
    auth = configuration.deployment.gateway.auth
    if auth is None:
        return
    if not (auth.tokens or auth.jwt or auth.anonymous):
        yield _warning(configuration, "closed", "gateway.auth")
    for index, key in enumerate(auth.tokens):
        path = f"gateway.auth.tokens.{index}"
        if not key.grants:
            yield _warning(configuration, "idle_key", path, holder=key.name)
        if key.not_after is not None and key.not_after - now <= ENDING:
            kind, until = "expired_key" if key.not_after < now else "ending_key", key.not_after.isoformat()
            yield _warning(configuration, kind, f"{path}.not_after", holder=key.name, until=until)


def _handed_on(configuration: Configuration) -> Iterator[ExposureWarning]:
    """Downstreams outside this gateway that receive the token that the gateway verified for itself, or never one."""
    auth = configuration.deployment.gateway.auth
    if auth is None:
        return
    kind = "not_forwarded" if auth.jwt is None else "handed_on"
    peers = Addresses(configuration).peers(_served(configuration))
    for server in configuration.fastagent.servers.values():
        is_handed = server.forward_inbound_auth and (auth.jwt is None or server.token_exchange is None)
        if is_handed and (server.url or "").rstrip("/") not in peers:
            file, path = str(configuration.fastagent.path), f"mcp.servers.{server.name}"
            yield ExposureWarning(kind, file, server.line, path, {"server": server.name})


def _served(configuration: Configuration) -> list[str]:
    only = configuration.only_agent
    return list(configuration.deployment.agents) if only is None else [only]


def _warning(
    configuration: Configuration, kind: str, path: str, *, at: str | None = None, **fields: str
) -> ExposureWarning:
    """Make a warning at the line of `at` (default: `path`) in `agents.yaml`, or of the nearest section around it."""
    line = configuration.line_of(at or path)
    return ExposureWarning(kind, str(configuration.path), line, path, {**fields, "setting": path})
