"""From a `tools/call` of an agent's message tool to its result, by whichever endpoint it came."""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import TYPE_CHECKING, Any

from pallas_gateway.agent_server.outlet import ClientOutlet, wishes_of
from pallas_gateway.agent_server.requests import caller_of, headers_of, key_of, request_bearer
from pallas_gateway.agent_server.tools import (
    META_KEY,
    call_meta,
    conversation_id_of,
    error_result,
    parse_call,
    reply_result,
)
from pallas_gateway.agents.call_log import records_of
from pallas_gateway.calls.call import Call, Message
from pallas_gateway.calls.cancellation import cut_off
from pallas_gateway.calls.credentials import NESTED_CALL_HEADER
from pallas_gateway.errors import CallRefusedError, GatewayError
from pallas_gateway.telemetry import traces

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_types import CallToolResult

    from pallas_gateway.agent_server.requests import Context
    from pallas_gateway.agents.hosted_agent import HostedAgent
    from pallas_gateway.calls.call import Reply
    from pallas_gateway.calls.nesting import RunningCalls
    from pallas_gateway.identity.caller import Caller

_log = logging.getLogger("pallas.agent_server")


class MessageCalls:
    """The calls of one agent."""

    def __init__(self, agent: HostedAgent, running: RunningCalls) -> None:
        self._agent = agent
        self._running = running

    async def answer(self, context: Context, arguments: dict[str, Any], *, endpoint: str) -> CallToolResult:
        """What the agent says, or the sentence why it says nothing; the client is told meanwhile what happens.

        Args:
            context: the request.
            arguments: of the tool, unchecked.
            endpoint: where the request came in; it is cancelled there.
        """
        with traces.call(self._agent.name, headers_of(context)) as span:
            result = await self._checked(context, arguments, endpoint)
            traces.tell_result(span, (result.meta or {}).get(META_KEY), failed=bool(result.is_error))
            return result

    async def _checked(self, context: Context, arguments: dict[str, Any], endpoint: str) -> CallToolResult:
        asked = self._asked(context, arguments)
        with records_of(asked, request_bearer(context)):
            try:
                self._refuse_without_grant(asked.caller)
                entries = self._agent.max_history_entries
                call = parse_call(asked, arguments, self._agent.settings, max_entries=entries)
            except GatewayError as refusal:
                self._agent.refuse(asked, refusal)
                return error_result(str(refusal), call_meta(asked, stop_reason=refusal.reason, seconds=0.0))
            return await self._result(context, call, endpoint)

    async def _result(self, context: Context, call: Call, endpoint: str) -> CallToolResult:
        started = monotonic()
        try:
            reply = await self._reply(context, call, endpoint)
        except GatewayError as failure:
            meta = call_meta(call, stop_reason=failure.reason, seconds=monotonic() - started)
            return error_result(str(failure), meta)
        except Exception:  # noqa: BLE001  the last line before the client: it gets a sentence, the log the traceback
            _log.exception("call failed")
            meta = call_meta(call, stop_reason="internal_error", seconds=monotonic() - started)
            return error_result(f"The gateway failed to answer; its log has the reason under {call.call_id}.", meta)
        return reply_result(reply, call, seconds=monotonic() - started)

    async def _reply(self, context: Context, call: Call, endpoint: str) -> Reply:
        """The agent's answer, with the client told what happens; all notifications are out when this returns.

        Raises:
            CallFailedError: `cancelled` by the client, or `stopped` because the gateway is stopping.
        """
        key = key_of(context, endpoint, context.request_id)
        async with self._agent.channel(ClientOutlet(context), wishes_of(context)) as channel:
            work = self._agent.begin(call, channel)
            with self._running.cancellations.listening(key, call, work.cancel):
                try:
                    await asyncio.wait({work})
                except asyncio.CancelledError:
                    work.cancel()
                    raise
            if work.cancelled():
                raise cut_off(stopping=self._running.draining)
            return work.result()

    def _asked(self, context: Context, arguments: Mapping[str, Any]) -> Call:
        """What is known of a call before its arguments are checked."""
        parent = self._running.parent_of(headers_of(context).get(NESTED_CALL_HEADER))
        return Call(
            self._agent.name,
            Message("user", ""),
            conversation_id=conversation_id_of(arguments),
            caller=caller_of(context),
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
