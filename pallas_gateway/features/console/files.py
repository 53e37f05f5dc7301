"""The console's static files and their responses.

The pages (`/console/` and `/console/signed-in`) are revalidated at each visit. They name their scripts and styles below
a path with the version of all files (`/console/{version}/…`), so that these can be cached without limit.
Scripts are served without their documentation, which is a fifth of their compressed size.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse, Response

from pallas_gateway.config.model.values import authority
from pallas_gateway.doors.http import refusals
from pallas_gateway.doors.http.host_check import HostCheck
from pallas_gateway.doors.http.page_headers import page_headers
from pallas_gateway.urls import CONSOLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from pallas_gateway.config.loading.configuration import Configuration

STATIC = Path(__file__).parent / "static"
_PAGES = {"": "index.html", "signed-in": "signed_in.html"}
"""By their paths: the console, and the page that gets the authorization server's answer to a sign-in."""
_UNVERSIONED = "static/"
"""The folder of files in the page of the repository; the served page has the version in its place."""
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_YEAR_SECONDS = 365 * 24 * 3600
_DOCUMENTATION = re.compile(rb"^[ \t]*/\*\*(?:(?!\*/).)*\*/[ \t]*\n", re.DOTALL | re.MULTILINE)
"""A comment on lines of its own; licenses in vendored files begin with `/*!`, or are in files of their own."""


def security_headers(configuration: Configuration) -> dict[str, str]:
    """Return the headers of every response of the console."""
    connect = " ".join(["'self'", *_other_origins(configuration)])
    return page_headers(
        f"script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src {connect}",
        "require-trusted-types-for 'script'",
    )


def console(configuration: Configuration) -> ASGIApp:
    """Return the app of all paths below `/console`, with its guard."""
    headers = security_headers(configuration)
    guarded = HostCheck(_serve, configuration)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(headers)
            await send(message)

        await guarded(scope, receive, send_with_headers)

    return app


async def _serve(scope: Scope, receive: Receive, send: Send) -> None:
    await _response(scope)(scope, receive, send)


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    compressed: bytes
    media_type: str
    etag: str


@cache
def version() -> str:
    """Return the version of all files: a hash of their names and contents."""
    digest = hashlib.sha256()
    for name, file in _files().items():
        digest.update(f"{name}\0{file.etag}\0".encode())
    return digest.hexdigest()[:16]


@cache
def _files() -> Mapping[str, _File]:
    paths = (path for path in sorted(STATIC.rglob("*")) if path.suffix in _TYPES)
    return {path.relative_to(STATIC).as_posix(): _file(path.read_bytes(), path.suffix) for path in paths}


@cache
def _page(path: str) -> _File:
    content = _files()[_PAGES[path]].content.replace(f'"{_UNVERSIONED}'.encode(), f'"{version()}/'.encode())
    return _file(content, ".html")


def served_content(content: bytes, suffix: str) -> bytes:
    """Return what clients get of a file."""
    return _DOCUMENTATION.sub(b"", content) if suffix == ".js" else content


def _file(content: bytes, suffix: str) -> _File:
    content = served_content(content, suffix)
    etag = f'W/"{hashlib.sha256(content).hexdigest()[:32]}"'  # weak: of both encodings
    return _File(content, gzip.compress(content, mtime=0), _TYPES[suffix], etag)


def _response(scope: Scope) -> Response:
    path = scope["path"]
    if scope["method"] not in ("GET", "HEAD"):
        return JSONResponse({"error": "use GET"}, status_code=405, headers={"Allow": "GET, HEAD"})
    if not path.startswith(CONSOLE):
        return RedirectResponse(CONSOLE[1:])  # relative: a proxy may add a prefix
    name = path.removeprefix(CONSOLE)
    if name in _PAGES:
        return _unless_known(_page(name), Headers(scope=scope), "no-cache")
    folder, _, rest = name.partition("/")
    file = _files().get(rest) if folder == version() else None
    if file is None:
        return refusals.not_found(scope, refusals.NOTHING_HERE)
    return _unless_known(file, Headers(scope=scope), f"public, max-age={_YEAR_SECONDS}, immutable")


def _unless_known(file: _File, request: Headers, caching: str) -> Response:
    """Return the file, or 304 if the client has it (RFC 9110, weak comparison)."""
    headers = {"ETag": file.etag, "Cache-Control": caching, "Vary": "Accept-Encoding"}
    known = [tag.strip().removeprefix("W/") for tag in request.get("if-none-match", "").split(",")]
    if file.etag.removeprefix("W/") in known or "*" in known:
        return Response(status_code=304, headers=headers)
    if _accepts_gzip(request):
        return Response(file.compressed, media_type=file.media_type, headers=headers | {"Content-Encoding": "gzip"})
    return Response(file.content, media_type=file.media_type, headers=headers)


def _accepts_gzip(request: Headers) -> bool:
    # `gzip;q=0` refuses gzip; no client that asks for a page sends it.
    return "gzip" in [
        coding.partition(";")[0].strip().lower() for coding in request.get("accept-encoding", "").split(",")
    ]


def _other_origins(configuration: Configuration) -> list[str]:
    """Return the other origins of the page's requests: agents on ports of their own, other registries, sign-in."""
    agents = [configuration.agent_url(name) for name in configuration.hosted_agents] if configuration.per_port else []
    gateway = configuration.deployment.gateway
    issuers = [gateway.auth.jwt.issuer] if configuration.signs_in and gateway.auth and gateway.auth.jwt else []
    return list(dict.fromkeys(map(_origin, [*agents, *gateway.console_registries, *issuers])))


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return authority(parts.scheme, parts.hostname or "", parts.port)
