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

if TYPE_CHECKING:
    from pallas_gateway.runtime.ports import Downstream

PROBE_SECONDS = 3.0
_ACCEPT = "application/json, text/event-stream"
_MODERN = "2026-07-28"
_CLIENT = {"name": "pallas-gateway-health", "version": __version__}
_INITIALIZE: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": _CLIENT},
}
_DISCOVER: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
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
        error = f"{type(failure).__name__}: {failure}".rstrip(": ")
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


def _is_success(status: int) -> bool:
    return HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES


async def _post(
    client: httpx.AsyncClient, downstream: Downstream, message: dict[str, Any], extra: dict[str, str]
) -> tuple[int, dict[str, Any], str | None]:
    """Send one JSON-RPC request; returns status, the first message of the answer ({} if none), and a session id."""
    headers = {**downstream.headers, "Accept": _ACCEPT, **extra}
    async with client.stream("POST", str(downstream.url), json=message, headers=headers) as response:
        session = response.headers.get("mcp-session-id")
        streamed = response.headers.get("content-type", "").startswith("text/event-stream")
        body = await (_first_event(response) if streamed else response.aread())
    return response.status_code, _message(body), session


async def _first_event(response: httpx.Response) -> bytes:
    async for line in response.aiter_lines():
        if line.startswith("data:") and (data := line.removeprefix("data:").strip()):
            return data.encode()
    return b""


def _message(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}
