"""One probe of one downstream: does an MCP server answer there?

Speaks just enough MCP to be answered: `initialize` (and `DELETE` of the session it opened), or `server/discover` for a
server of the 2026-07-28 era only. No tool is called and no caller's token is sent. A broken probe is a result, never
an exception.
"""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass
from http import HTTPStatus
from time import monotonic
from typing import TYPE_CHECKING, Any

import httpx

from pallas_gateway.health import http_errors
from pallas_gateway.health.greeting import DISCOVER, ID, INITIALIZE, MODERN, message
from pallas_gateway.health.program import LONGEST_LINE, ask_program

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import datetime

    from pallas_gateway.runtime.protocols import Downstream
    from pallas_gateway.tasks import TaskOwner

PROBE_SECONDS = 3.0
END_SECONDS = 3.0
"""How long a server may take to end a session; nobody waits for it."""
LONGEST_ANSWER = LONGEST_LINE
"""Bytes of one answer, or of all that a stream says before it; more is no answer to these questions."""
_MOST_REDIRECTS = 3
_ACCEPT = "application/json, text/event-stream"
_log = logging.getLogger("pallas.health")


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What one probe found.

    `error` is None when the server is reachable, `protocol` is the era that answered, `since` is when the server began
    to be reachable or not, which only somebody who remembers earlier probes knows.
    """

    server: str
    seconds: float
    error: str | None = None
    protocol: str | None = None
    since: datetime | None = None


async def probe(downstream: Downstream, client: httpx.AsyncClient, tasks: TaskOwner) -> ProbeResult:
    """Probe one downstream within `PROBE_SECONDS`; what was begun for it (program, session) is ended by `tasks`."""
    started = monotonic()
    protocol: str | None = None
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            error, protocol = await _ask(downstream, client, tasks)
    except TimeoutError:
        error = f"{'started, but ' if downstream.url is None else ''}no answer within {PROBE_SECONDS:g} s"
    except Exception as failure:  # noqa: BLE001  a broken probe is a result
        error = http_errors.sentence(failure)
        if error is None:
            _log.exception("probe failed in a way nobody foresaw", extra={"server": downstream.name})
            error = f"the probe failed: {type(failure).__name__}"
    return ProbeResult(downstream.name, monotonic() - started, error, protocol)


async def _ask(downstream: Downstream, client: httpx.AsyncClient, tasks: TaskOwner) -> tuple[str | None, str | None]:
    """What is wrong, if anything, and which era answered."""
    if downstream.url is None:
        return await ask_program(downstream.program, tasks)
    if downstream.transport == "sse":
        return await _ask_for_stream(downstream, client)
    return await _ask_over_http(downstream, client, tasks)


async def _ask_over_http(
    downstream: Downstream, client: httpx.AsyncClient, tasks: TaskOwner
) -> tuple[str | None, str | None]:
    status, body, session = await _post(client, downstream, INITIALIZE, {})
    if _wants_callers_token(status, downstream):
        return None, None
    if _is_success(status) and "result" in body:
        if session is not None:
            tasks.spawn(_end_session(downstream, session, client), name=f"end session {downstream.name}", report=True)
        return None, "initialize"
    if status in (400, 404, 405) or "error" in body:
        modern = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "server/discover"}
        modern_status, modern_body, _ = await _post(client, downstream, DISCOVER, modern)
        if _wants_callers_token(modern_status, downstream):
            return None, None
        if _is_success(modern_status) and "result" in modern_body:
            return None, MODERN
    return ("not an MCP answer" if _is_success(status) else f"HTTP {status}"), None


async def _end_session(downstream: Downstream, session: str, client: httpx.AsyncClient) -> None:
    """A courtesy: the server has answered, and how it takes this says nothing more about it."""
    headers = {**downstream.headers, "Mcp-Session-Id": session}
    try:
        async with (
            asyncio.timeout(END_SECONDS),
            client.stream("DELETE", str(downstream.url), headers=headers),
        ):
            pass
    except (httpx.HTTPError, ValueError, TimeoutError) as failure:  # ValueError: an id that cannot be sent back
        why = {"server": downstream.name, "error": type(failure).__name__}
        _log.debug("the session of a probe could not be ended", extra=why)


async def _ask_for_stream(downstream: Downstream, client: httpx.AsyncClient) -> tuple[str | None, str | None]:
    """The older SSE transport: reachable when it opens its event stream."""
    headers = {**downstream.headers, "Accept": "text/event-stream"}
    async with client.stream("GET", str(downstream.url), headers=headers) as response:
        if _is_success(response.status_code) or _wants_callers_token(response.status_code, downstream):
            return None, None
        return f"HTTP {response.status_code}", None


def _wants_callers_token(status: int, downstream: Downstream) -> bool:
    """Whether it refuses only because a probe brings no caller's token, which is a sign of life."""
    return downstream.forwards_bearer and status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


def _is_success(status: int) -> bool:
    return HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES


async def _post(
    client: httpx.AsyncClient, downstream: Downstream, request: dict[str, Any], extra: dict[str, str]
) -> tuple[int, dict[str, Any], str | None]:
    """Send one JSON-RPC request; returns status, its answer ({} if none), and a session id."""
    headers = {**downstream.headers, "Accept": _ACCEPT, **extra}
    url = httpx.URL(str(downstream.url))
    for _ in range(_MOST_REDIRECTS + 1):
        async with client.stream("POST", url, json=request, headers=headers) as response:
            target = url.join(response.headers.get("location", "")) if response.has_redirect_location else url
            if target == url or _origin(target) != _origin(url):  # elsewhere, headers have no business
                return response.status_code, await _answer(response), response.headers.get("mcp-session-id")
        url = target
    return HTTPStatus.LOOP_DETECTED, {}, None


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


async def _answer(response: httpx.Response) -> dict[str, Any]:
    """The answer; {} for what is none, or is longer than `LONGEST_ANSWER`."""
    try:
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            return message(b"".join([part async for part in _bounded(response)]))
        async for line in _lines(response):
            if line.startswith(b"data:") and (found := message(line.removeprefix(b"data:"))).get("id") == ID:
                return found
    except _TooLongError:
        _log.debug("a server's answer to a probe is too long", extra={"limit_bytes": LONGEST_ANSWER})
    return {}


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    rest = bytearray()
    async for part in _bounded(response):
        rest += part
        if b"\n" in part or b"\r" in part:
            *whole, rest = (bytearray(line) for line in re.split(rb"\r\n|\n|\r", bytes(rest)))
            for line in whole:
                yield bytes(line)
    yield bytes(rest)


async def _bounded(response: httpx.Response) -> AsyncIterator[bytes]:
    length = 0
    async for part in response.aiter_bytes():
        length += len(part)
        if length > LONGEST_ANSWER:
            raise _TooLongError
        yield part


class _TooLongError(Exception):
    """There is more of it than any answer has."""
