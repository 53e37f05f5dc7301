"""Answers of HTTP downstreams: their limits, their time-outs, and refusals that name their status.

The MCP SDK reads JSON answers of any length, refuses events that are larger than 1 MiB, and reports each refusal as
"Server returned an error response". All is done by response hooks of the HTTP clients.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, override

import httpx2
from mcp.client.streamable_http import MCP_SESSION_ID
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp_types import INTERNAL_ERROR, JSONRPCError, jsonrpc_message_adapter

from pallas_gateway.changes.change import Fault
from pallas_gateway.http_answers import (
    LARGEST_ANSWER_BYTES,
    MCP_STREAMS,
    AnswerError,
    decoded,
    limit,
    limited,
    not_an_answer,
    refusal,
)
from pallas_gateway.runtime.scope import current_scope

EVENT_BYTES = LARGEST_ANSWER_BYTES
"""Largest event of a stream; the SDK's own limit is smaller than an image."""
STATUS = "status"
"""Name of the status in the data of the errors that stand for refusals."""
_READ_SECONDS = 2.0
_READ_BYTES = 2**16
_RPC_ACCEPT = "text/event-stream"
_ANSWERS = ("application/json", "text/event-stream")


LIMITING = partial(limit, streams=MCP_STREAMS)
"""A response hook: limits an answer before it is read."""
FAULTS = (
    Fault(
        title="Refusals of HTTP servers have no status, and answers no limit",
        text="""\
Symptom: each refusal is "Server returned an error response". JSON answers of any length are read into memory.

Repair: answers have a limit, and a refusal becomes a JSON-RPC error with its status and reason, except for a 404.
""",
        library="mcp",
        gone_when="the SDK's error has the status and the reason of a refusal, and its client a limit for answers",
        test="tests/e2e/test_downstream_answers.py",
    ),
)


def with_limits(client: httpx2.AsyncClient) -> httpx2.AsyncClient:
    """Limit the answers to a client of one downstream, and have its refusals name their status."""
    limited(client, streams=MCP_STREAMS).event_hooks["response"].append(name_refusal)
    return client


async def name_refusal(response: httpx2.Response) -> None:
    """As a response hook: replace a refusal by a JSON-RPC error with its status and reason, unless it is one.

    404 stays: for the SDK it is an unknown method, or, without an error in its body, the end of a session.
    """
    status, asked = response.status_code, response.request
    is_request = _RPC_ACCEPT in asked.headers.get("Accept", "") and asked.method == "POST"
    if is_request and response.is_success and not _is_answer(response):
        _replace(response, not_an_answer(status, response.headers), decoded(asked.content))
    if not is_request or status < HTTPStatus.BAD_REQUEST:
        return
    if status == HTTPStatus.NOT_FOUND:
        if MCP_SESSION_ID in asked.headers:
            response.headers["Content-Type"] = "text/plain"  # which the SDK does not read
        return
    body = await _beginning(response)
    if _is_rpc_error(body):
        response.stream = _Replaced(response.stream, body)
    else:
        _replace(response, refusal(status, response.headers, body))


def _is_answer(response: httpx2.Response) -> bool:
    """Return True for the kinds of content that the SDK reads, and for 202: notifications have no answer."""
    kind = response.headers.get("Content-Type", "").lower()
    return kind.startswith(_ANSWERS) or response.status_code == HTTPStatus.ACCEPTED


def _replace(response: httpx2.Response, why: str, request: Any = None) -> None:
    """Replace an answer to `request` by an error; the SDK knows by itself to what request a refusal belongs."""
    error = {"code": INTERNAL_ERROR, "message": why, "data": {STATUS: response.status_code}}
    number = request.get("id") if isinstance(request, dict) else None
    body = json.dumps({"jsonrpc": "2.0", "id": number, "error": error}).encode()
    response.headers["Content-Type"] = "application/json"
    response.stream = _Replaced(response.stream, body)


async def _beginning(response: httpx2.Response) -> bytes:
    """Read a refusal, as far as it is short and comes soon."""
    body = b""
    try:
        async with asyncio.timeout(_READ_SECONDS):
            async for piece in response.stream:  # type: ignore[union-attr]  # the client is asynchronous
                body += piece
                if len(body) > _READ_BYTES:
                    break
    except (TimeoutError, AnswerError, httpx2.HTTPError):
        pass  # the status says enough
    return body[:_READ_BYTES]


def _is_rpc_error(body: bytes) -> bool:
    """Return True for an error that the SDK understands: of any other it tells neither the reason nor the status."""
    try:
        return isinstance(jsonrpc_message_adapter.validate_json(body, by_name=False), JSONRPCError)
    except ValueError:
        return False


async def allow_silence(request: httpx2.Request) -> None:
    """As a request hook: lengthen the read time-out by the time for which a question of the call can be open.

    A downstream of the initialize era asks while its tool call is under way. The time-out of a request that waits
    cannot be changed any more.
    """
    seconds: Mapping[str, float | None] = request.extensions.get("timeout", {})
    if (read := seconds.get("read")) is not None:
        request.extensions = {**request.extensions, "timeout": {**seconds, "read": longest_silence(read)}}


def longest_silence(seconds: float) -> float:
    """`seconds`, lengthened by the time for which a question of the call can be open."""
    return seconds + current_scope.get().questions.longest_wait


async def ask_for_gzip(request: httpx2.Request) -> None:
    """As a request hook: accept no other compression, because only that of gzip is limited."""
    request.headers["Accept-Encoding"] = "gzip"


def client_of_sse(**settings: Any) -> httpx2.AsyncClient:
    """An HTTP client for a connection by SSE, whose stream has no end."""
    return limited(create_mcp_http_client(**settings), streams=("GET",))


class _Replaced(httpx2.AsyncByteStream):
    """A body in the place of another one, with which the connection's stream is closed."""

    def __init__(self, stream: Any, body: bytes) -> None:
        self._stream = stream
        self._body = body

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._body

    @override
    async def aclose(self) -> None:
        """Close the connection's stream."""
        await self._stream.aclose()
