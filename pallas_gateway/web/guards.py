"""Guards of all APIs: Host and Origin, CORS, and slow bodies.

The limit of bytes is in `web/bodies.py`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from fnmatch import fnmatchcase
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fastmcp.server.http import HostOriginGuardMiddleware
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from pallas_gateway.config.model.values import authority
from pallas_gateway.tasks import TaskOwner
from pallas_gateway.telemetry.redaction import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.limits import BodyLimits

_log = logging.getLogger("pallas.web")
_ORIGIN = ("origin", "allowed_origins")
_HOST = re.compile(r"(\[[0-9a-fA-F:.]*\]|[^:/@\[\]]*)(:[0-9]*)?")
_LONGEST_NAME = 200
_MOST_NAMES = 100  # refused names that are logged; a client can invent any number
_MCP_REQUEST_HEADERS = (
    "Authorization", "Content-Type", "Last-Event-ID", "MCP-Protocol-Version", "Mcp-Method", "Mcp-Name",
    "Mcp-Session-Id", "traceparent", "tracestate",
)  # fmt: skip
_OPENAI_REQUEST_HEADERS = tuple(
    f"X-Stainless-{name}"
    for name in (
        "Arch", "Helper-Method", "Lang", "OS", "Package-Version", "Retry-Count", "Runtime", "Runtime-Version",
        "Timeout",
    )
)  # fmt: skip
"""Sent by OpenAI's client for browsers."""
_OPENAI_RESPONSE_HEADERS = ("X-Request-Id", "X-Should-Retry")
_MCP_RESPONSE_HEADERS = ("MCP-Protocol-Version", "Mcp-Session-Id", "Retry-After", "WWW-Authenticate")


def host_and_origin_guard(
    app: ASGIApp, configuration: Configuration, *, body_of: Callable[[str, str], Mapping[str, str]] | None = None
) -> ASGIApp:
    """421 for a Host that is not this gateway's, 403 for a foreign Origin (DNS rebinding).

    `body_of` makes a refusal's body in the form of the API behind, from its reason (`wrong_host`, `wrong_origin`) and a
    sentence.
    """
    settings = configuration.deployment.gateway
    public = urlsplit(configuration.public_base_url)
    names = {configuration.deployment.host, public.hostname or "", configuration.bind_host} - {""}
    own = {f"{scheme}://{_host_pattern(name)}:*" for name in names | _LOOPBACK for scheme in ("http", "https")}

    guard = HostOriginGuardMiddleware(
        _accept,
        allowed_hosts=[*names, *settings.allowed_hosts],
        # A pattern with `:*` requires a port; browsers omit the default port, and the guard adds it.
        allowed_origins=[*own, *settings.allowed_origins],
        mode="strict",
    )
    schemes = {"http", "https"} | {origin.partition("://")[0].lower() for origin in settings.allowed_origins}
    return _ExplainedRefusal(app, guard, body_of or (lambda _, sentence: {"error": sentence}), schemes)


_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


def cross_origin(app: ASGIApp, configuration: Configuration) -> ASGIApp:
    """CORS for the configured origins; without origins, no header is added."""
    settings = configuration.deployment.gateway
    origins = [*settings.allowed_origins, *_console_origins(configuration)]
    if not origins:
        return app
    more, exposed = (_OPENAI_REQUEST_HEADERS, _OPENAI_RESPONSE_HEADERS) if settings.openai_api else ((), ())
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST", "PATCH", "DELETE"),
        allow_headers=(*_MCP_REQUEST_HEADERS, *more),
        expose_headers=(*_MCP_RESPONSE_HEADERS, *exposed),
    )


def _console_origins(configuration: Configuration) -> Iterator[str]:
    """The origins of the console where agents have other ports, and so other origins than it has."""
    if configuration.per_port and configuration.serves_console:
        hosts = dict.fromkeys((configuration.deployment.host, *sorted(_LOOPBACK)))
        yield from (authority(configuration.scheme, host, configuration.gateway_port) for host in hosts)
        public = urlsplit(configuration.public_base_url)
        yield authority(public.scheme, public.hostname or "", public.port)


async def _accept(_scope: Scope, _receive: Receive, _send: Send) -> None:
    """The app behind the guard, which sends nothing: only a refusal has a status."""


class _ExplainedRefusal:
    """Names the setting that would allow a refused request, in the response and, once for each name, in the log."""

    def __init__(
        self,
        app: ASGIApp,
        guard: ASGIApp,
        body_of: Callable[[str, str], Mapping[str, str]],
        schemes: Collection[str],
    ) -> None:
        self._app = app
        self._schemes = schemes
        self._guard = guard
        self._body_of = body_of
        self._logged: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on or refuse one request."""
        if (misnamed := _misnamed(scope, self._schemes)) is not None:
            await self._refusal(scope, misnamed)(scope, receive, send)
            return
        statuses: list[int] = []

        async def note_status(message: Message) -> None:
            statuses.extend([message["status"]] if "status" in message else [])

        await self._guard(scope, receive, note_status)
        await (self._refusal(scope, statuses[0]) if statuses else self._app)(scope, receive, send)

    def _refusal(self, scope: Scope, status: int) -> JSONResponse:
        header, key = ("host", "allowed_hosts") if status == HTTPStatus.MISDIRECTED_REQUEST else _ORIGIN
        name = shortened(Headers(scope=scope).get(header, ""), _LONGEST_NAME)
        what = f"{header.capitalize()} {name!r} is not one this gateway answers to"
        if name not in self._logged and len(self._logged) < _MOST_NAMES:
            self._logged.add(name)
            _log.warning("request refused", extra={"why": what, "setting": f"gateway.{key}"})
        body = self._body_of(f"wrong_{header}", f"{what}; it can be added to gateway.{key}")
        return JSONResponse(body, status_code=status)


def _misnamed(scope: Scope, schemes: Collection[str]) -> HTTPStatus | None:
    """The status for a name that is not a host with a port, such as `[::1].evil.example` and `localhost:evil.example`.

    The guard compares only the part before the first colon, or in brackets. It also accepts any scheme at a loopback
    address, but the pages of other programs have origins such as `tauri://localhost`.
    """
    headers = Headers(scope=scope)
    if not _HOST.fullmatch(headers.get("host", "").strip()):
        return HTTPStatus.MISDIRECTED_REQUEST
    scheme, _, host = headers.get("origin", "").strip().rstrip("/").partition("://")
    is_known = not host or any(fnmatchcase(scheme.lower(), known) for known in schemes)
    return None if is_known and _HOST.fullmatch(host) else HTTPStatus.FORBIDDEN


class AnswerAfterBody:
    """Limits the time for a request's body, and reads and discards the rest of it before the answer.

    Closing a connection with unread data resets it, and its client would not see a refusal.
    """

    def __init__(self, app: ASGIApp, limits: BodyLimits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on one request; 408 if its body is late."""
        body, tasks, has_begun = _Body(receive, self._limits), TaskOwner(), False

        async def late_send(message: Message) -> None:
            nonlocal has_begun
            if body.is_late and not has_begun:
                return
            if "status" in message:
                has_begun = True
                if body.is_unread:
                    reading = tasks.spawn(body.read_on(), name="rest of a body")
                    await asyncio.wait({reading}, timeout=self._limits.rest_seconds)
            await send(message)

        try:
            await self._app(scope, body.receive, late_send)
        except ClientDisconnect:
            pass  # before its request was complete
        finally:
            await tasks.cancel_all()
        if body.is_late and not has_begun:
            refusal = JSONResponse({"error": "The body of the request did not arrive in time."}, status_code=408)
            await refusal(scope, receive, send)


class _Body:
    """The body of one request; a client that sends it too slowly is treated as disconnected."""

    def __init__(self, receive: Receive, limits: BodyLimits) -> None:
        self.is_unread = True
        self.is_late = False
        self._receive = receive
        self._limits = limits
        self._latest = asyncio.get_running_loop().time() + limits.seconds

    async def receive(self) -> Message:
        """The next message of the request."""
        if self.is_late:
            return {"type": "http.disconnect"}
        if not self.is_unread:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._latest):
                message = await self._receive()
        except TimeoutError:
            self.is_late, self.is_unread = True, False
            return {"type": "http.disconnect"}
        self._latest += len(message.get("body", b"")) / self._limits.bytes_per_second
        self.is_unread = message.get("more_body", False)
        return message

    async def read_on(self) -> None:
        """Read and discard the rest."""
        while self.is_unread:
            await self.receive()


def _host_pattern(host: str) -> str:
    """The host in an Origin, as the guard's shell pattern, in which `[` begins a set of characters."""
    return f"[[]{host}]" if ":" in host else host
