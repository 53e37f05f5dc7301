"""One probe of one downstream.

The probe sends `initialize` (and `DELETE` for the session it opened), or `server/discover` if the server speaks
2026-07-28 only. A stdio server's program is started for it, in the environment that it has in a call, and ended. It
calls no tool and sends no caller's token. Its errors are results, never exceptions.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from time import monotonic
from typing import TYPE_CHECKING, Any

import httpx
from mcp_types import DiscoverResult, InitializeResult
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ValidationError

from pallas_gateway import __version__, child_processes
from pallas_gateway.http_answers import AnswerError, decoded, limit, not_an_answer, refusal
from pallas_gateway.runtime.protocols import CANNOT_LIST
from pallas_gateway.telemetry.redaction import quoted, shortened

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from pallas_gateway.child_processes import ChildProcess
    from pallas_gateway.limits import HealthLimits
    from pallas_gateway.runtime.protocols import Downstream, StdioProgram
    from pallas_gateway.tasks import TaskOwner


_LARGEST_ANSWER = 4 * 2**20  # bytes of a message, or of a stream of them; a server's instructions may be long
_ID = 1
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
_HANDSHAKES: dict[str, tuple[type[BaseModel], str, frozenset[str]]] = {
    "initialize": (InitializeResult, "protocolVersion", frozenset(HANDSHAKE_PROTOCOL_VERSIONS)),
    "server/discover": (DiscoverResult, "supportedVersions", frozenset(MODERN_PROTOCOL_VERSIONS)),
}
"""The result of each handshake, and its member with the versions."""
_LONGEST_ERROR = 300  # characters of a library's message
_MOST_REDIRECTS = 3
_ACCEPT = "application/json, text/event-stream"
_log = logging.getLogger("pallas.health")


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of one probe.

    `error` is None if the server is reachable, `refuses` is why callers cannot use it all the same, `protocol` is the
    era that answered, `since` is the time of the last change of reachability, which `HealthChecker` adds.
    """

    server: str
    seconds: float
    error: str | None = None
    protocol: str | None = None
    since: datetime | None = None
    refuses: str | None = None

    @property
    def is_unlisted(self) -> bool:
        """True if the server is reachable, and its tools cannot be listed."""
        return self.error is not None and self.error.startswith(CANNOT_LIST)


async def probe(
    downstream: Downstream,
    client: httpx.AsyncClient,
    tasks: TaskOwner,
    limits: HealthLimits,
    *,
    stderr: int | None = None,
) -> ProbeResult:
    """Probe one downstream within `probe_seconds`; `tasks` end the program or session that the probe began.

    The stderr of a program goes to the file descriptor `stderr`, or to the configured file.
    """
    started = monotonic()
    protocol: str | None = None
    try:
        async with asyncio.timeout(limits.probe_seconds):
            if downstream.url is None:
                error, protocol = await _ask_program(downstream.program, tasks, limits.leave_seconds, stderr)
            else:
                error, protocol = await _ask(downstream, client, tasks, limits)
    except TimeoutError:
        error = f"{'started, but ' if downstream.url is None else ''}no answer within {limits.probe_seconds:g} s"
    except Exception as failure:  # noqa: BLE001  an error is a result
        error = http_error(failure)
        if error is None:
            _log.exception("unexpected error in probe", extra={"server": downstream.name})
            error = f"the probe failed: {type(failure).__name__}"
    return ProbeResult(downstream.name, monotonic() - started, error, protocol)


async def _ask(
    downstream: Downstream, client: httpx.AsyncClient, tasks: TaskOwner, limits: HealthLimits
) -> tuple[str | None, str | None]:
    """Return the error or None, and the era that answered."""
    if downstream.transport == "sse":
        return await _ask_for_stream(downstream, client)
    return await _ask_over_http(downstream, client, tasks, limits.end_seconds)


async def _ask_over_http(
    downstream: Downstream, client: httpx.AsyncClient, tasks: TaskOwner, end_seconds: float
) -> tuple[str | None, str | None]:
    status, body, headers = await _post(client, downstream, _INITIALIZE, {})
    if _requires_callers_token(status, downstream):
        return None, None
    why = None
    if _is_success(status) and "result" in body:
        if (session := headers.get("mcp-session-id")) is not None:
            ending = _end_session(downstream, session, client, end_seconds)
            tasks.spawn(ending, name=f"end session {downstream.name}", report=True)
        if (why := _why_unusable(_INITIALIZE["method"], body["result"])) is None:
            return None, "initialize"
    if status in (400, 404, 405) or "error" in body or why is not None:
        modern = {"MCP-Protocol-Version": _MODERN, "Mcp-Method": "server/discover"}
        modern_status, modern_body, _ = await _post(client, downstream, _DISCOVER, modern)
        if _requires_callers_token(modern_status, downstream):
            return None, None
        if _is_success(modern_status) and "result" in modern_body:
            return _why_unusable(_DISCOVER["method"], modern_body["result"]), _MODERN
    return why or (not_an_answer(status, headers) if _is_success(status) else refusal(status, headers)), None


async def _end_session(downstream: Downstream, session: str, client: httpx.AsyncClient, seconds: float) -> None:
    headers = {**downstream.headers, "Mcp-Session-Id": session}
    try:
        async with (
            asyncio.timeout(seconds),
            client.stream("DELETE", str(downstream.url), headers=headers),
        ):
            pass
    except (httpx.HTTPError, ValueError, TimeoutError) as failure:  # ValueError: the id is not a valid header
        why = {"server": downstream.name, "error": type(failure).__name__}
        _log.debug("probe session not ended", extra=why)


async def _ask_for_stream(downstream: Downstream, client: httpx.AsyncClient) -> tuple[str | None, str | None]:
    """The older SSE transport: reachable when it opens its event stream."""
    headers = {**downstream.headers, "Accept": "text/event-stream"}
    async with client.stream("GET", str(downstream.url), headers=headers) as response:
        if _is_success(response.status_code) or _requires_callers_token(response.status_code, downstream):
            return None, None
        return refusal(response.status_code, response.headers), None


def _requires_callers_token(status: int, downstream: Downstream) -> bool:
    """Return true if the server is reachable and refuses the probe because it has no caller's token."""
    return downstream.forwards_bearer and status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


def _is_success(status: int) -> bool:
    return HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES


async def _post(
    client: httpx.AsyncClient, downstream: Downstream, request: dict[str, Any], extra: dict[str, str]
) -> tuple[int, dict[str, Any], httpx.Headers]:
    """Send one JSON-RPC request and return the status, the answer ({} if there is none) and the headers."""
    headers = {**downstream.headers, "Accept": _ACCEPT, **extra}
    url = httpx.URL(str(downstream.url))
    for _ in range(_MOST_REDIRECTS + 1):
        async with client.stream("POST", url, json=request, headers=headers) as response:
            target = url.join(response.headers.get("location", "")) if response.has_redirect_location else url
            if target == url or _origin(target) != _origin(url):  # headers go to one origin only
                return response.status_code, await _answer(response), response.headers
        url = target
    return HTTPStatus.LOOP_DETECTED, {}, httpx.Headers()


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


async def _answer(response: httpx.Response) -> dict[str, Any]:
    """The JSON-RPC answer; {} if there is none."""
    await limit(response, most_bytes=_LARGEST_ANSWER)
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        return _message(await response.aread())
    rest = bytearray()
    async for part in response.aiter_bytes():
        rest += part
        if b"\n" in part or b"\r" in part:
            *lines, rest = rest.splitlines(keepends=True)
            if found := _answer_in(lines):
                return found
    return _answer_in([rest])


def _answer_in(lines: Sequence[bytearray]) -> dict[str, Any]:
    messages = (_message(bytes(line.removeprefix(b"data:"))) for line in lines if line.startswith(b"data:"))
    return next((one for one in messages if one.get("id") == _ID), {})


async def _ask_program(
    program: StdioProgram | None, tasks: TaskOwner, leave_seconds: float, stderr: int | None = None
) -> tuple[str | None, str | None]:
    """Return the error or None, and the era that answered; one of `tasks` ends the program.

    Its stderr goes to the file descriptor `stderr`, or to the configured file.
    """
    if program is None:
        return "no command is configured", None
    try:
        process = await child_processes.start(
            program.command,
            program.arguments,
            environ=program.environ,
            directory=program.directory,
            longest_line=_LARGEST_ANSWER,
            stderr=program.processes.stderr if stderr is None else stderr,
        )
    except (OSError, ValueError) as error:
        why = child_processes.why_not_started(program.command, program.directory, error, program.processes.stderr)
        return why, None
    try:
        return await _converse(process)
    finally:
        tasks.spawn(child_processes.end(process, leave_seconds), name=f"end {program.command}", report=True)


async def _converse(process: ChildProcess) -> tuple[str | None, str | None]:
    for request, era in ((_INITIALIZE, "initialize"), (_DISCOVER, _MODERN)):
        try:
            answer = await _exchange(process, request)
        except ValueError:  # a line longer than any message
            break
        if answer is None:
            return f"its process ended with code {await process.wait()}", None
        if "result" in answer:
            return _why_unusable(request["method"], answer["result"]), era
    return "not an MCP answer", None


async def _exchange(process: ChildProcess, request: dict[str, Any]) -> dict[str, Any] | None:
    """The answer to `request`, None if the program closed its pipes first; other lines are ignored."""
    with suppress(ConnectionError):  # the program has ended; its output is still read
        process.stdin.write(json.dumps(request).encode() + b"\n")
        await process.stdin.drain()
    while line := await process.stdout.readline():
        await asyncio.sleep(0)  # lines that have arrived already are read without a pause
        answer = _message(line)
        if answer.get("id") == _ID and ("result" in answer or "error" in answer):
            return answer
    return None


def _why_unusable(method: str, result: object) -> str | None:
    """Return why no call can use a server with this handshake; None if it can."""
    model, key, known = _HANDSHAKES[method]
    try:
        model.model_validate(result, by_name=False)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        return f"its handshake cannot be used: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    versions = result[key] if isinstance(result, dict) else ()
    if known.isdisjoint([versions] if isinstance(versions, str) else versions):
        return f"its handshake cannot be used: {key} is {quoted(str(versions))}"
    return None


def _message(body: bytes) -> dict[str, Any]:
    """A JSON-RPC message, {} if the body is not a JSON object."""
    document = decoded(body)
    return document if isinstance(document, dict) else {}


def http_error(failure: Exception) -> str | None:
    """The reason why a request got no answer; None if the exception is not an HTTP error."""
    if isinstance(failure, httpx.ConnectError):
        return _connect_error(failure)
    if isinstance(failure, (httpx.LocalProtocolError, UnicodeEncodeError)):  # their text shows the header
        return "a configured header holds a character that HTTP does not allow"
    if isinstance(failure, AnswerError):
        return str(failure)
    if isinstance(failure, (httpx.HTTPError, httpx.InvalidURL, ValueError)):
        return shortened(f"{type(failure).__name__}: {failure}".rstrip(": "), _LONGEST_ERROR)
    return None


def _connect_error(failure: httpx.ConnectError) -> str:
    text = str(failure)
    if "SSL" in text or "certificate" in text:
        return "TLS error"
    cause: BaseException | None = failure
    while cause is not None and not isinstance(cause, socket.gaierror):
        cause = cause.__cause__ or cause.__context__
    return "host name not found" if cause is not None else "connection refused"
