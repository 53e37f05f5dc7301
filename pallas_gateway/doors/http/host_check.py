"""Host and Origin of requests, and CORS.

A page that points its own name at the gateway (DNS rebinding) sends that name as Host; a page of another site sends its
Origin.
"""

from __future__ import annotations

import logging
import re
from fnmatch import fnmatchcase
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse

from pallas_gateway.config.model.values import authority
from pallas_gateway.doors.http.protected_resource import is_metadata_path
from pallas_gateway.telemetry.redaction import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from starlette.types import ASGIApp, Receive, Scope, Send

    from pallas_gateway.config.loading.configuration import Configuration

_log = logging.getLogger("pallas.web")
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]*\]|[^:/?#\\@\[\]\s]*)(:[0-9]*)?")
"""A host with or without a port, in lower case."""
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_STATUS = {"host": 421, "origin": 403}
_LONGEST_NAME = 200
_MOST_NAMES = 100  # refused names that are logged; a client can invent any number
_EXPOSED_HEADERS = (
    "MCP-Protocol-Version", "Mcp-Session-Id", "Retry-After", "WWW-Authenticate", "ETag", "Location", "X-Request-Id",
    "X-Should-Retry",
)  # fmt: skip


class HostCheck:
    """Refuses requests with a Host that is not the gateway's (421), or with a foreign Origin (403).

    The response and, once for each name, the log name the setting that would allow the request.

    Args:
        app: answers the other requests.
        configuration: has the gateway's names.
        body_of: makes a refusal's body in the form of the API behind, from its reason (`wrong_host`, `wrong_origin`)
            and a sentence.
    """

    def __init__(
        self,
        app: ASGIApp,
        configuration: Configuration,
        *,
        body_of: Callable[[str, str], Mapping[str, Any]] = lambda _, sentence: {"error": sentence},
    ) -> None:
        settings = configuration.deployment.gateway
        public = urlsplit(configuration.public_base_url).hostname or ""
        names = {configuration.deployment.host, public, configuration.bind_host} - {""}
        self._own = {name.lower() for name in names | _LOOPBACK}
        self._allowed_hosts = [*self._own, *map(_name_in, settings.allowed_hosts)]
        self._allowed_origins = [*map(_with_port, settings.allowed_origins)]
        self._schemes = {*_DEFAULT_PORTS, *(origin.partition("://")[0] for origin in self._allowed_origins)}
        self._app = app
        self._body_of = body_of
        self._logged: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wrong = self._wrong_header(scope)
        await (self._app if wrong is None else self._refusal(scope, wrong))(scope, receive, send)

    def _wrong_header(self, scope: Scope) -> Literal["host", "origin"] | None:
        headers = Headers(scope=scope)
        host, origin = headers.get("host", "").strip().lower(), headers.get("origin")
        name, address = _name_in(host), scope["server"][0] if scope.get("server") else None
        is_own = name == address or _is_one_of(name, self._allowed_hosts)
        if not _AUTHORITY.fullmatch(host) or not is_own:
            return "host"
        return "origin" if origin and not self._allows(_with_port(origin), host, scope["scheme"]) else None

    def _allows(self, origin: str, host: str, scheme_of_request: str) -> bool:
        scheme, _, address = origin.partition("://")
        if not _AUTHORITY.fullmatch(address) or (address and not _is_one_of(scheme, self._schemes)):
            return False
        name = _name_in(address)
        return (
            (scheme in _DEFAULT_PORTS and name in self._own)  # on any port
            or _is_one_of(origin, self._allowed_origins)
            or (_is_loopback(name) and _is_loopback(_name_in(host)))
            or origin == _with_port(f"{scheme_of_request}://{host}")
        )

    def _refusal(self, scope: Scope, header: Literal["host", "origin"]) -> JSONResponse:
        name, key = shortened(Headers(scope=scope).get(header, ""), _LONGEST_NAME), f"gateway.allowed_{header}s"
        what = f"{header.capitalize()} {name!r} is not one this gateway answers to"
        if name not in self._logged and len(self._logged) < _MOST_NAMES:
            self._logged.add(name)
            _log.warning("request refused", extra={"why": what, "setting": key})
        body = self._body_of(f"wrong_{header}", f"{what}; it can be added to {key}")
        return JSONResponse(body, status_code=_STATUS[header])


def _is_one_of(value: str, patterns: Collection[str]) -> bool:
    return any(fnmatchcase(value, pattern) for pattern in patterns)


def _name_in(host: str) -> str:
    """Return a host's name or address without its port and brackets; a pattern, or a bare IPv6 address, as it is."""
    parts = _AUTHORITY.fullmatch(host.strip().lower())
    return parts[1].strip("[]") if parts else host.strip().lower()


def _with_port(origin: str) -> str:
    """Return an origin, or a pattern of origins, in lower case and with the port that browsers omit."""
    origin = origin.strip().rstrip("/").lower()
    scheme, _, address = origin.partition("://")
    has_port = re.search(r":[^:\]]+$", address) is not None
    return origin if has_port or not address else f"{origin.removesuffix(':')}{_DEFAULT_PORTS.get(scheme, '')}"


def _is_loopback(name: str) -> bool:
    try:
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False


def cross_origin(app: ASGIApp, configuration: Configuration) -> ASGIApp:
    """Add CORS for the configured origins; without origins, no header is added."""
    origins = [*configuration.deployment.gateway.allowed_origins, *_console_origins(configuration)]
    if not origins:
        return app
    guarded = CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST", "PUT", "PATCH", "DELETE"),
        allow_headers=("*",),
        expose_headers=_EXPOSED_HEADERS,
    )

    async def entry(scope: Scope, receive: Receive, send: Send) -> None:
        """Serve metadata to pages of every origin, independent of `allowed_origins`."""
        is_open = scope["type"] == "http" and is_metadata_path(scope["path"])
        await (app if is_open else guarded)(scope, receive, send)

    return entry


def _console_origins(configuration: Configuration) -> Iterator[str]:
    """Yield the origins of the console if agents have other ports, and so other origins."""
    if configuration.per_port and configuration.serves_console:
        hosts = dict.fromkeys((configuration.deployment.host, *sorted(_LOOPBACK)))
        yield from (authority(configuration.scheme, host, configuration.gateway_port) for host in hosts)
        public = urlsplit(configuration.public_base_url)
        yield authority(public.scheme, public.hostname or "", public.port)
