"""The entries of `mcp.servers` in fast-agent's files, as values; the gateway's own keys are checked."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from urllib.parse import urlsplit

from pydantic import ConfigDict

from pallas_gateway.config.model.downstreams import (
    Forwarding,
    ProcessSettings,
    TokenExchangeSettings,
    has_own_authorization,
    why_never_exchanged,
    why_without_processes,
)
from pallas_gateway.config.model.section import Section


@dataclass(frozen=True)
class DownstreamServer:
    """One MCP server that agents may call.

    Attributes:
        name: Its key under `mcp.servers`.
        transport: `http`, `sse` or `stdio`.
        url: The address fast-agent calls (with the `/mcp` it adds to one without), for `http` and `sse`.
        headers: Sent with each request, `access_token` included.
        command: The program to run, for `stdio`.
        args: Its arguments.
        forward_inbound_auth: The caller's bearer, or one exchanged for it, is sent to this server (also by
            fast-agent's `auth.forward`); False if it has credentials of its own.
        token_exchange: How the caller's bearer is exchanged; None sends it unchanged.
        line: Where it is declared.
    """

    name: str
    transport: str
    url: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    command: str | None = None
    args: tuple[str, ...] = field(default=(), repr=False)
    forward_inbound_auth: bool = False
    token_exchange: TokenExchangeSettings | None = None
    line: int | None = None


class _Auth(Section):
    model_config = ConfigDict(extra="ignore")

    forward: object = None


class ServerSection(Forwarding, ProcessSettings):
    """The keys of an entry that the gateway reads; others are ignored."""

    target: str | None = None
    transport: str | None = None
    url: str | None = None
    command: str | None = None
    args: tuple[str, ...] | None = None
    headers: dict[str, str] | None = None
    access_token: str | None = None
    auth: _Auth | None = None


def downstream_server(name: str, written: ServerSection, line: int | None) -> DownstreamServer:
    """Return the server that fast-agent would reach by this entry."""
    url = written.url or ""
    command = written.command or None
    args = written.args or ()
    if written.target and written.target.lower().startswith(("http://", "https://")):
        url = written.target
    elif written.target:
        command, *rest = written.target.split()
        args = tuple(rest)
    transport = written.transport or _transport_of(url)
    headers = _headers(written)
    marked = bool(written.forward_inbound_auth or (written.auth and written.auth.forward))
    return DownstreamServer(
        name=name,
        transport=transport,
        url=_called_url(url.strip(), transport) or None,
        headers=MappingProxyType(headers),
        command=None if url else command,
        args=() if url else args,
        forward_inbound_auth=marked and not has_own_authorization(headers, url),
        token_exchange=written.token_exchange,
        line=line,
    )


def keys_without_effect(written: ServerSection, server: DownstreamServer) -> Iterator[tuple[str, str]]:
    """Yield the path and the problem of keys that have no effect on this server."""
    path = f"mcp.servers.{server.name}"
    why = why_never_exchanged(
        written,
        url=server.url if server.transport != "stdio" else None,
        own_authorization=has_own_authorization(server.headers, server.url),
        sent_by_fast_agent=bool(written.auth and written.auth.forward),
    )
    if why is not None:
        yield f"{path}.token_exchange", why
    if (why := why_without_processes(written, server.transport)) is not None:
        yield path, why


def _transport_of(url: str) -> str:
    if not url.strip():
        return "stdio"
    return "sse" if url.strip().rstrip("/").endswith("/sse") else "http"


def _called_url(url: str, transport: str) -> str:
    """Complete a URL as fast-agent does: a streamable HTTP one without a query ends in `/mcp`."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    path = parts.path.rstrip("/")
    if transport != "http" or not parts.netloc or parts.query or path.endswith(("/mcp", "/sse")):
        return url
    return parts._replace(path=f"{path}/mcp").geturl()


def _headers(written: ServerSection) -> dict[str, str]:
    headers = dict(written.headers or {})
    token = (written.access_token or "").strip()
    if token and not any(name.lower() == "authorization" for name in headers):
        bare = token[len("bearer ") :].strip() if token.lower().startswith("bearer ") else token
        headers["Authorization"] = f"Bearer {bare}"
    return headers
