"""One agent's MCP server: `tools/list`, `tools/call`, the empty history prompt.

Built on the SDK's low-level server: input is checked by the gateway row by row (one bad row of history must not
refuse a call), results carry `_meta`, and schemas are exact, none of which a framework's generated tools would allow.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, Any

from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp_types import (
    INVALID_PARAMS,
    CallToolResult,
    CancelledNotificationParams,
    EmptyResult,
    GetPromptResult,
    Icon,
    ListPromptsResult,
    ListToolsResult,
    Prompt,
    SetLevelRequestParams,
    TextContent,
)

from pallas_gateway.agent_server.outlet import ClientOutlet, wishes_of
from pallas_gateway.agent_server.tools import (
    GET_HEALTH,
    META_KEY,
    call_meta,
    conversation_id_of,
    error_result,
    health_tool,
    message_tool,
    parse_call,
    reply_result,
    with_params,
)
from pallas_gateway.agent_server.transport import Transport
from pallas_gateway.agents.call_log import records_of
from pallas_gateway.calls.call import Call, Message
from pallas_gateway.calls.cancellation import RequestKey, cut_off
from pallas_gateway.calls.credentials import NESTED_CALL_HEADER
from pallas_gateway.errors import CallRefusedError, GatewayError
from pallas_gateway.identity.caller import CALLER_KEY, Caller
from pallas_gateway.identity.grants import NOTHING
from pallas_gateway.identity.secret import bearer_of
from pallas_gateway.telemetry import traces

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from mcp.server.context import ServerRequestContext
    from mcp_types import CallToolRequestParams, GetPromptRequestParams, PaginatedRequestParams
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from pallas_gateway.agents.hosted_agent import HostedAgent
    from pallas_gateway.calls.call import Reply
    from pallas_gateway.calls.cancellation import Cancellations
    from pallas_gateway.calls.nesting import RunningCalls
    from pallas_gateway.health.verdict import Verdict
    from pallas_gateway.identity.secret import Secret

    type Context = ServerRequestContext[Any, Request]

_log = logging.getLogger("pallas.agent_server")
_NOBODY = Caller(grants=NOTHING)
SESSION_HEADER = "mcp-session-id"


@dataclass(frozen=True, slots=True)
class Face:
    """How an agent presents itself: its version, icons, and the names of its message tool (`{agent}` is its own)."""

    version: str
    icons: tuple[Icon, ...]
    tool_names: tuple[str, ...]


class AgentServer:
    """MCP over streamable HTTP for one hosted agent."""

    def __init__(
        self,
        agent: HostedAgent,
        *,
        face: Face,
        running: RunningCalls,
        check_health: Callable[[HostedAgent], Awaitable[Verdict]],
        max_body_bytes: int,
    ) -> None:
        self._agent = agent
        self._running = running
        self._check_health = check_health
        self._history_prompt = f"{agent.name}_history"
        self._show(face)
        self._transport = Transport(self._server(face), max_body_bytes)

    async def run(self) -> None:
        """Answer requests until `close`; those that come before this has begun wait for it."""
        await self._transport.run()

    def close(self) -> None:
        """Take no more requests, and cut off those that are being answered."""
        self._transport.close()

    async def wait_until_idle(self) -> None:
        """Return once no request is being answered."""
        await self._transport.wait_until_idle()

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        await self._transport.handle(scope, receive, send)

    def present(self, face: Face, max_body_bytes: int) -> None:
        """Show the agent by its present settings from the next request on; those being answered stay as they began."""
        self._show(face)
        self._transport.present(self._server(face), max_body_bytes)

    def _show(self, face: Face) -> None:
        agent = self._agent
        title = agent.settings.shown_title(agent.name)
        description = agent.settings.description or f"Send a message to {title} and get its answer."
        names = dict.fromkeys(name.replace("{agent}", agent.name) for name in face.tool_names)
        self._message_names = frozenset(names)
        message_tools = [message_tool(name, title=title, description=description) for name in names]
        self._tools_for_peers = [*message_tools, health_tool()]
        self._tools = with_params(self._tools_for_peers, agent.settings)
        self._schemas = {tool.name: tool.input_schema for tool in self._tools}

    def _server(self, face: Face) -> Server[Any]:
        server: Server[Any] = Server(
            self._agent.name,
            version=face.version,
            title=self._agent.settings.shown_title(self._agent.name),
            description=self._agent.settings.description,
            icons=list(face.icons) or None,
            get_tool_input_schema=self._schemas.get,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
        )
        # Registered by name: the constructor's parameter warns, because newer clients no longer send this request.
        server.add_request_handler("logging/setLevel", SetLevelRequestParams, _accept_level)
        server.add_notification_handler("notifications/cancelled", CancelledNotificationParams, self._on_cancelled)
        return server

    async def _list_tools(self, context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        del params
        is_nested = self._running.parent_of(_headers(context).get(NESTED_CALL_HEADER)) is not None
        return ListToolsResult(tools=self._tools_for_peers if is_nested else self._tools)

    async def _call_tool(self, context: Context, params: CallToolRequestParams) -> CallToolResult:
        if params.name in self._message_names:
            return await self._traced(context, params.arguments or {})
        if params.name == GET_HEALTH:
            return await self._get_health()
        known = ", ".join(self._schemas)
        raise MCPError(INVALID_PARAMS, f"Unknown tool '{params.name}'. Tools are: {known}.")

    async def _traced(self, context: Context, arguments: dict[str, Any]) -> CallToolResult:
        with traces.call(self._agent.name, _headers(context)) as span:
            result = await self._send_message(context, arguments)
            traces.tell_result(span, (result.meta or {}).get(META_KEY), failed=bool(result.is_error))
            return result

    async def _send_message(self, context: Context, arguments: dict[str, Any]) -> CallToolResult:
        asked = self._asked(context, arguments)
        with records_of(asked, _bearer(context)):
            try:
                self._refuse_without_grant(asked.caller)
                call = parse_call(asked, arguments, self._agent.settings)
            except GatewayError as refusal:
                self._agent.refuse(asked, refusal)
                return error_result(str(refusal), call_meta(asked, stop_reason=refusal.reason, seconds=0.0))
            return await self._result(context, call)

    async def _result(self, context: Context, call: Call) -> CallToolResult:
        started = monotonic()
        try:
            reply = await self._answer(context, call)
        except GatewayError as failure:
            meta = call_meta(call, stop_reason=failure.reason, seconds=monotonic() - started)
            return error_result(str(failure), meta)
        except Exception:  # noqa: BLE001  the last line before the client: it gets a sentence, the log the traceback
            _log.exception("call failed")
            meta = call_meta(call, stop_reason="internal_error", seconds=monotonic() - started)
            return error_result(f"The gateway failed to answer; its log has the reason under {call.call_id}.", meta)
        return reply_result(reply, call, seconds=monotonic() - started)

    async def _answer(self, context: Context, call: Call) -> Reply:
        """The agent's answer, with the client told what happens; all notifications are out when this returns.

        Raises:
            CallFailedError: `cancelled` by the client, or `stopped` because the gateway is stopping.
        """
        async with self._agent.channel(ClientOutlet(context), wishes_of(context)) as channel:
            work = self._agent.begin(call, channel)
            with self._running.cancellations.listening(self._key(context, context.request_id), call, work.cancel):
                try:
                    await asyncio.wait({work})
                except asyncio.CancelledError:
                    work.cancel()
                    raise
            if work.cancelled():
                raise cut_off(stopping=self._running.draining)
            return work.result()

    async def _on_cancelled(self, context: Context, params: CancelledNotificationParams) -> None:
        key = self._key(context, params.request_id)
        if key is not None:
            end_cancelled(self._running.cancellations, key)
            self._running.cancellations.hand_on(key)

    def _key(self, context: Context, request_id: str | int | None) -> RequestKey | None:
        headers = _headers(context)
        session = headers.get(SESSION_HEADER)
        if session is None or request_id is None:
            return None
        return RequestKey.of(self._agent.name, session, _bearer(context), request_id)

    def _asked(self, context: Context, arguments: Mapping[str, Any]) -> Call:
        """What is known of a call before its arguments are checked."""
        headers = _headers(context)
        parent = self._running.parent_of(headers.get(NESTED_CALL_HEADER))
        return Call(
            self._agent.name,
            Message("user", ""),
            conversation_id=conversation_id_of(arguments),
            caller=context.request.scope[CALLER_KEY] if context.request is not None else _NOBODY,
            nesting=parent.nesting + 1 if parent else 0,
            parent_call_id=parent.call_id if parent else None,
            trace_id=traces.trace_id(),
        )

    def _refuse_without_grant(self, caller: Caller) -> None:
        """The gate before this server has looked at the same request.

        This is the second lock: should the two ever read a request differently, the call is refused here.
        """
        if not caller.grants.may_run(self._agent.name):
            raise CallRefusedError(f"You may not call agent '{self._agent.name}'.", reason="insufficient_scope")

    async def _get_health(self) -> CallToolResult:
        verdict = await self._check_health(self._agent)
        text = json.dumps(verdict.document(datetime.now(UTC)))
        return CallToolResult(content=[TextContent(type="text", text=text)])

    async def _list_prompts(self, context: Context, params: PaginatedRequestParams | None) -> ListPromptsResult:
        del context, params
        description = "Always empty: the client keeps the conversation and sends it as `history`."
        return ListPromptsResult(prompts=[Prompt(name=self._history_prompt, description=description)])

    async def _get_prompt(self, context: Context, params: GetPromptRequestParams) -> GetPromptResult:
        del context
        if params.name != self._history_prompt:
            raise MCPError(INVALID_PARAMS, f"Unknown prompt '{params.name}'. The prompt is: {self._history_prompt}.")
        return GetPromptResult(messages=[])


def end_cancelled(cancellations: Cancellations, key: RequestKey) -> None:
    """End the calls of this process that a client has cancelled, here or in another process."""
    for call in cancellations.cancel(key):
        with records_of(call):
            _log.info("client cancelled a call")


def _headers(context: Context) -> Mapping[str, str]:
    return context.request.headers if context.request is not None else {}


def _bearer(context: Context) -> Secret | None:
    return bearer_of(_headers(context).get("authorization"))


async def _accept_level(context: Context, params: SetLevelRequestParams) -> EmptyResult:
    """Accept any level: without a session there is nothing to remember it in."""
    del context, params
    return EmptyResult()
