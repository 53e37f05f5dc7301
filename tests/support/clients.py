"""Real MCP clients: the Python SDK's in each protocol era, and raw HTTP for what an SDK would never send.

Enter and leave the SDK clients in one task (in the test, not in a fixture): they hold anyio cancel scopes.
"""

import asyncio
import base64
import json
import re
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import httpx
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import (
    CallToolResult,
    GetPromptResult,
    Implementation,
    LoggingLevel,
    LoggingMessageNotificationParams,
    Prompt,
    RequestParamsMeta,
    TextContent,
    Tool,
)

from .protocol_messages import from_server
from .waiting import WAIT_SECONDS, Changes

MODERN_VERSION = "2026-07-28"
INITIALIZE_VERSIONS = ("2025-03-26", "2025-06-18", "2025-11-25")
CLIENT_INFO = {"name": "pallas-tests", "version": "1"}
READ_SECONDS = 30  # a silent call of 2026-07-28 sends no headers for 15
_NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"} | dict.fromkeys(
    ("tasks/get", "tasks/update", "tasks/cancel"), "taskId"
)


@dataclass(frozen=True)
class McpClient:
    """One SDK connection. `sdk` has everything this does not offer."""

    sdk: Client
    logs: list[LoggingMessageNotificationParams]
    """Log notifications so far."""

    @property
    def protocol_version(self) -> str:
        return self.sdk.protocol_version

    async def list_tools(self) -> list[Tool]:
        return (await self.sdk.list_tools()).tools

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        progress_callback: ProgressFnT | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> CallToolResult:
        return await self.sdk.call_tool(
            name,
            dict(arguments or {}),
            progress_callback=progress_callback,
            meta=cast("RequestParamsMeta | None", meta),
        )

    async def list_prompts(self) -> list[Prompt]:
        return (await self.sdk.list_prompts()).prompts

    async def get_prompt(self, name: str, arguments: dict[str, str] | None = None) -> GetPromptResult:
        return await self.sdk.get_prompt(name, arguments)


class ProgressLog:
    def __init__(self) -> None:
        self.events: list[tuple[float, float | None, str | None]] = []
        self._changes = Changes()

    @property
    def messages(self) -> list[str | None]:
        return [message for _, _, message in self.events]

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        self.events.append((progress, total, message))
        self._changes.announce()

    async def wait_for(self, count: int, timeout_seconds: float = WAIT_SECONDS) -> None:
        await self._changes.until(
            lambda: len(self.events) >= count, timeout_seconds, what=f"{count} progress events, {self.events} so far"
        )


@asynccontextmanager
async def initialize_client(
    url: str,
    *,
    bearer: str | None = None,
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncGenerator[McpClient]:
    """Connect with the `initialize` handshake (the SDK offers 2025-11-25)."""
    async with _sdk_client(url, "legacy", _all_headers(bearer, headers), tls, None) as client:
        yield client


@asynccontextmanager
async def modern_client(
    url: str,
    *,
    bearer: str | None = None,
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
    log_level: LoggingLevel | None = None,
) -> AsyncGenerator[McpClient]:
    """Connect with `server/discover`, failing if the server does not speak 2026-07-28.

    `log_level` asks for log notifications on every request; without it none arrive in this era.
    """
    async with _sdk_client(url, "auto", _all_headers(bearer, headers), tls, log_level) as client:
        if client.protocol_version != MODERN_VERSION:
            raise AssertionError(f"{url} negotiated {client.protocol_version}, not {MODERN_VERSION}")
        yield client


type Connect = Callable[..., AbstractAsyncContextManager[McpClient]]
EACH_ERA: tuple[Connect, ...] = (initialize_client, modern_client)  # for pytest.mark.parametrize("connect", EACH_ERA)


@dataclass(frozen=True)
class RawReply:
    """A whole HTTP response: every JSON-RPC message of it in order, or `text` where there is no JSON."""

    status: int
    headers: httpx.Headers = field(repr=False)
    messages: tuple[dict[str, Any], ...]
    comments: int  # SSE comments, the pings
    text: str = field(repr=False)

    @property
    def notifications(self) -> list[dict[str, Any]]:
        return [message for message in self.messages if "method" in message]

    @property
    def result(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self._last_with("result"))

    @property
    def error(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self._last_with("error"))

    def _last_with(self, key: str) -> object:
        for message in reversed(self.messages):
            if key in message:
                return message[key]
        raise AssertionError(f"no {key} in HTTP {self.status}: {self.text[:500]}")


class RawCall:
    """A request in flight. `notifications` grows as they arrive."""

    def __init__(self, request_id: int | str | None, exchange: Callable[["RawCall"], Any]) -> None:
        """Start the exchange; use `RawClient.in_flight`, which owns it."""
        self.request_id = request_id
        self.messages: list[dict[str, Any]] = []
        self.comments = 0
        self.has_headers = False
        self._changes = Changes()
        self._task: asyncio.Task[RawReply] = asyncio.create_task(exchange(self))
        self._task.add_done_callback(lambda _: self._changes.announce())

    @property
    def notifications(self) -> list[dict[str, Any]]:
        return [message for message in self.messages if "method" in message]

    async def reply(self, timeout_seconds: float = READ_SECONDS) -> RawReply:
        return await asyncio.wait_for(asyncio.shield(self._task), timeout_seconds)

    async def wait_for_notifications(self, count: int, timeout_seconds: float = WAIT_SECONDS) -> list[dict[str, Any]]:
        await self._changes.until(
            lambda: len(self.notifications) >= count, timeout_seconds, what=f"{count} notifications of {self.messages}"
        )
        return self.notifications

    async def vanish(self) -> None:
        """Close the connection whatever state the call is in, as a client that dies does."""
        self._task.cancel()
        await asyncio.wait({self._task})

    def took_headers(self) -> None:
        self.has_headers = True
        self._changes.announce()

    def took(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self._changes.announce()


class RawClient:
    """JSON-RPC over plain HTTP in the manner of one protocol version; headers and `_meta` can be anything."""

    def __init__(
        self, http: httpx.AsyncClient, url: str, protocol_version: str, headers: Mapping[str, str] | None = None
    ) -> None:
        self.http = http
        self.url = url
        self.protocol_version = protocol_version
        self.session_id: str | None = None
        self._headers = dict(headers or {})
        self._next_id = 0
        self._is_initialized = False

    @property
    def is_modern(self) -> bool:
        return self.protocol_version >= MODERN_VERSION

    async def initialize(self) -> RawReply:
        """Shake hands: `initialize`, then `notifications/initialized`."""
        params = {"protocolVersion": self.protocol_version, "capabilities": {}, "clientInfo": CLIENT_INFO}
        reply = await self.request("initialize", params)
        self.session_id = reply.headers.get("mcp-session-id")
        self._is_initialized = True
        await self.notify("notifications/initialized")
        return reply

    async def discover(self) -> RawReply:
        return await self.request("server/discover")

    async def list_tools(self) -> list[dict[str, Any]]:
        return cast("list[dict[str, Any]]", (await self.request("tools/list")).result["tools"])

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        meta: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> RawReply:
        """Call a tool and wait for the answer. `meta={"progressToken": …}` asks for progress."""
        return await self.request("tools/call", tool_params(name, arguments), meta=meta, headers=headers)

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        meta: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> RawReply:
        async with self.in_flight(method, params, meta=meta, headers=headers) as call:
            return await call.reply()

    @asynccontextmanager
    async def in_flight(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        meta: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[RawCall]:
        """Send one request and look on while it runs; leaving the block before the reply is vanishing."""
        self._next_id += 1
        body = self.body_of(method, params, meta=meta, request_id=self._next_id)
        sent_headers = {**self.headers_of(method, params), **(headers or {})}
        call = RawCall(self._next_id, lambda running: self._exchange(running, body, sent_headers))
        try:
            yield call
        finally:
            await call.vanish()

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> httpx.Response:
        return await self.post(self.body_of(method, params, request_id=None), headers=self.headers_of(method, params))

    async def post(self, body: object, *, headers: Mapping[str, str] | None = None) -> httpx.Response:
        """POST anything at all: bytes as they are, all else as JSON. `headers` default to those of this version."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.http.post(
            self.url, content=content, headers=self.headers_of("") if headers is None else headers
        )

    def headers_of(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, str]:
        """Headers this protocol version demands for `method`, the client's own included."""
        headers = {
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
            **self._headers,
        }
        if self.session_id is not None:
            headers["mcp-session-id"] = self.session_id
        if self.is_modern:
            headers["mcp-protocol-version"] = self.protocol_version
            headers["mcp-method"] = method
            if (name := (params or {}).get(_NAMED_BY.get(method, ""))) is not None:
                headers["mcp-name"] = _header_safe(str(name))
        elif self._is_initialized and self.protocol_version != "2025-03-26":  # which had no such header yet
            headers["mcp-protocol-version"] = self.protocol_version
        return headers

    def body_of(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        meta: Mapping[str, Any] | None = None,
        request_id: int | str | None,
    ) -> dict[str, Any]:
        """The JSON-RPC message, with this version's `_meta`; no id makes it a notification."""
        whole_meta = {**self._envelope(), **(meta or {})} if request_id is not None else dict(meta or {})
        whole_params = {**(params or {}), **({"_meta": whole_meta} if whole_meta else {})}
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        if request_id is not None:
            message["id"] = request_id
        return {**message, "params": whole_params} if whole_params else message

    def _envelope(self) -> dict[str, Any]:
        if not self.is_modern:
            return {}
        prefix = "io.modelcontextprotocol/"
        return {
            f"{prefix}protocolVersion": self.protocol_version,
            f"{prefix}clientInfo": CLIENT_INFO,
            f"{prefix}clientCapabilities": {},
        }

    async def _exchange(self, call: RawCall, body: dict[str, Any], headers: dict[str, str]) -> RawReply:
        reply = await self._exchange_unchecked(call, body, headers)
        for message in reply.messages:
            from_server(message, body, headers)
        return reply

    async def _exchange_unchecked(self, call: RawCall, body: dict[str, Any], headers: dict[str, str]) -> RawReply:
        async with self.http.stream("POST", self.url, content=json.dumps(body).encode(), headers=headers) as response:
            call.took_headers()
            text = ""
            if response.headers.get("content-type", "").startswith("text/event-stream"):
                await _read_events(response, call)
            else:
                text = (await response.aread()).decode(errors="replace")
                for message in _messages_of(text):
                    call.took(message)
        return RawReply(response.status_code, response.headers, tuple(call.messages), call.comments, text)


@asynccontextmanager
async def raw_client(
    url: str,
    *,
    protocol_version: str = "2025-06-18",
    bearer: str | None = None,
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncGenerator[RawClient]:
    """Open a `RawClient`; it shakes no hands by itself."""
    async with httpx.AsyncClient(verify=tls or _no_trust(), trust_env=False, timeout=READ_SECONDS) as http:
        yield RawClient(http, url, protocol_version, _all_headers(bearer, headers))


def tool_params(name: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"name": name, "arguments": dict(arguments or {})}


def text_of(result: CallToolResult) -> str:
    return "".join(block.text for block in result.content if isinstance(block, TextContent))


@asynccontextmanager
async def _sdk_client(
    url: str, mode: str, headers: dict[str, str], tls: ssl.SSLContext | None, log_level: LoggingLevel | None
) -> AsyncGenerator[McpClient]:
    failure: BaseException | None = None
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(
            httpx2.AsyncClient(headers=headers, verify=tls or _no_trust(), trust_env=False, timeout=READ_SECONDS)
        )
        logs: list[LoggingMessageNotificationParams] = []

        async def keep(params: LoggingMessageNotificationParams) -> None:
            logs.append(params)

        sdk = Client(
            streamable_http_client(url, http_client=http),
            mode=mode,
            logging_callback=keep,
            log_level=log_level,
            client_info=Implementation.model_validate(CLIENT_INFO),
            cache=None,
        )
        try:
            await stack.enter_async_context(sdk)
        except BaseExceptionGroup as group:
            raise _only_leaf(group) from None
        try:
            yield McpClient(sdk, logs)
        except Exception as error:  # noqa: BLE001  (raised below, once the SDK's task groups have closed)
            failure = error
    if failure is not None:
        raise failure  # itself, not wrapped in the exception groups of the SDK


def _only_leaf(group: BaseExceptionGroup[BaseException]) -> BaseException:
    inner: BaseException = group
    while isinstance(inner, BaseExceptionGroup) and len(inner.exceptions) == 1:
        inner = inner.exceptions[0]
    return inner


async def _read_events(response: httpx.Response, call: RawCall) -> None:
    data: list[str] = []
    async for line in response.aiter_lines():
        if line.startswith("data:"):
            data.append(line.removeprefix("data:").removeprefix(" "))
        elif line.startswith(":"):
            call.comments += 1
        elif not line and data:
            for message in _messages_of("\n".join(data)):
                call.took(message)
            data.clear()


def _messages_of(text: str) -> list[dict[str, Any]]:
    try:
        value = json.loads(text)
    except ValueError:
        return []
    return [value] if isinstance(value, dict) else [message for message in value if isinstance(message, dict)]


def _all_headers(bearer: str | None, headers: Mapping[str, str] | None) -> dict[str, str]:
    return {**({"authorization": f"Bearer {bearer}"} if bearer is not None else {}), **(headers or {})}


def _header_safe(value: str) -> str:
    """The sentinel encoding of 2026-07-28 for what no header can carry as it is."""
    if re.fullmatch(r"[\x20-\x7e]*", value) and value == value.strip() and not value.startswith("=?base64?"):
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


def _no_trust() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # loading the trust store costs 20 ms and loopback needs none
