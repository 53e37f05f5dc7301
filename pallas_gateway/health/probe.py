"""One probe of one remote downstream: does an MCP server answer there?

Speaks just enough MCP to be answered: `initialize` (and `DELETE` of the session it opened), or `server/discover` for a
server of the 2026-07-28 era only. No tool is called and no caller's token is sent. A broken probe is a result, never
an exception.
"""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import dataclass
from http import HTTPStatus
from time import monotonic
from typing import TYPE_CHECKING, Any

import httpx

from pallas_gateway import __version__
from pallas_gateway.telemetry.redaction import cleaned

if TYPE_CHECKING:
    from pallas_gateway.runtime.ports import Downstream

PROBE_SECONDS = 3.0
_ID = 1
_MOST_REDIRECTS = 3
_ACCEPT = "application/json, text/event-stream"
_MODERN = "2026-07-28"
_CLIENT = {"name": "pallas-gateway-health", "version": __version__}
_INITIALIZE: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": _ID,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": _CLIENT},
}
_DISCOVER: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": _ID,
    "method": "server/discover",
    "params": {
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": _MODERN,
            "io.modelcontextprotocol/clientInfo": _CLIENT,
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    },
}


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What one probe found; `error` is None when the server is reachable, `protocol` is the era that answered."""

    server: str
    seconds: float
    error: str | None = None
    protocol: str | None = None


async def probe(downstream: Downstream, client: httpx.AsyncClient) -> ProbeResult:
    """Probe one remote downstream within `PROBE_SECONDS`."""
    started = monotonic()
    protocol: str | None = None
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            error, protocol = await _ask(downstream, client)
    except TimeoutError:
        error = f"no answer within {PROBE_SECONDS:g} s"
    except httpx.ConnectError as failure:
        error = _connect_error(failure)
    except (httpx.LocalProtocolError, UnicodeEncodeError):  # their text shows the header
        error = "a configured header holds a character that HTTP does not allow"
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as failure:
        error = cleaned(f"{type(failure).__name__}: {failure}".rstrip(": "))
    return ProbeResult(downstream.name, monotonic() - started, error, protocol)


def _connect_error(failure: httpx.ConnectError) -> str:
    text = str(failure)
    if "SSL" in text or "certificate" in text:
        return "TLS error"
    cause: BaseException | None = failure
    while cause is not None and not isinstance(cause, socket.gaierror):
        cause = cause.__cause__ or cause.__context__
    return "host name not found" if cause is not None else "connection refused"


async def _ask(downstream: Downstream, client: httpx.AsyncClient) -> tuple[str | None, str | None]:
    if downstream.transport == "sse":
        return await _ask_for_stream(downstream, client)
    status, body, session = await _post(client, downstream, _INITIALIZE, {})
    if status in (401, 403) and downstream.forwards_bearer:
        return None, None  # probed without a caller's token: refusing it is a sign of life
    if _is_success(status) and "result" in body:
        if session is not None:
            await client.delete(str(downstream.url), headers={**downstream.headers, "Mcp-Session-Id": session})
        return None, "initialize"
    if status in (400, 404, 405) or "error" in body:
        modern = {"MCP-Protocol-Version": _MODERN, "Mcp-Method": "server/discover"}
        modern_status, modern_body, _ = await _post(client, downstream, _DISCOVER, modern)
        if _is_success(modern_status) and "result" in modern_body:
            return None, _MODERN
    return ("not an MCP answer" if _is_success(status) else f"HTTP {status}"), None


async def _ask_for_stream(downstream: Downstream, client: httpx.AsyncClient) -> tuple[str | None, str | None]:
    """The older SSE transport: reachable when it opens its event stream."""
    headers = {**downstream.headers, "Accept": "text/event-stream"}
    async with client.stream("GET", str(downstream.url), headers=headers) as response:
        if _is_success(response.status_code) or (response.status_code in (401, 403) and downstream.forwards_bearer):
            return None, None
        return f"HTTP {response.status_code}", None


def _is_success(status: int) -> bool:
    return HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES


async def _post(
    client: httpx.AsyncClient, downstream: Downstream, message: dict[str, Any], extra: dict[str, str]
) -> tuple[int, dict[str, Any], str | None]:
    """Send one JSON-RPC request; returns status, its answer ({} if none), and a session id."""
    headers = {**downstream.headers, "Accept": _ACCEPT, **extra}
    url = httpx.URL(str(downstream.url))
    for _ in range(_MOST_REDIRECTS + 1):
        async with client.stream("POST", url, json=message, headers=headers) as response:
            target = url.join(response.headers.get("location", "")) if response.has_redirect_location else url
            if target == url or _origin(target) != _origin(url):  # elsewhere, headers have no business
                return response.status_code, await _answer(response), response.headers.get("mcp-session-id")
        url = target
    return HTTPStatus.LOOP_DETECTED, {}, None


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


async def _answer(response: httpx.Response) -> dict[str, Any]:
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        return _message(await response.aread())
    async for line in response.aiter_lines():
        if line.startswith("data:") and (message := _message(line.removeprefix("data:"))).get("id") == _ID:
            return message
    return {}


def _message(body: bytes | str) -> dict[str, Any]:
    try:
        message = json.loads(body)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}
