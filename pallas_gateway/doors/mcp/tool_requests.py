"""One `tools/call`: who makes it, where its notifications and questions go, and what it becomes."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Self

from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from pallas_gateway.calls.asking.asking import CANNOT_ASK
from pallas_gateway.calls.call import NESTING_META_KEY
from pallas_gateway.calls.conversation import conversation_id_of
from pallas_gateway.core.call_request import requested
from pallas_gateway.doors.mcp.envelope import caller_of, headers_of, key_of
from pallas_gateway.doors.mcp.notifications import ClientNotifications, Notifications, stream_options_of
from pallas_gateway.doors.mcp.rounds import FIRST_ROUND, Round
from pallas_gateway.doors.mcp.stream_asking import StreamAsker
from pallas_gateway.doors.mcp.tools import parse_call
from pallas_gateway.tasks import in_parts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from mcp_types import CallToolRequestParams, CallToolResult, InputRequiredResult

    from pallas_gateway.calls.asking.asking import Asker
    from pallas_gateway.calls.call import Call
    from pallas_gateway.calls.cancellation import RequestKey
    from pallas_gateway.calls.events.progress import NotificationSender
    from pallas_gateway.calls.events.queue import EventQueue, StreamOptions
    from pallas_gateway.core.call_request import CallRequest
    from pallas_gateway.core.hosted_agent import HostedAgent
    from pallas_gateway.core.parts import LogLevels
    from pallas_gateway.doors.mcp.envelope import Context
    from pallas_gateway.identity.caller import Caller
    from pallas_gateway.runtime.protocols import ParentCall

_MOST_NESTING = 1_000_000

type MessageResult = CallToolResult | InputRequiredResult | dict[str, Any]
"""The last one is a `CreateTaskResult`."""


@dataclass(frozen=True, slots=True)
class McpToolRequest:
    """One `tools/call`, of a client over HTTP or of another agent of this gateway.

    Attributes:
        caller: makes the request.
        headers: of the HTTP request; for a nested call the headers that continue the trace.
        sender: sends the notifications.
        options: the notifications to send.
        asker: puts questions to the caller.
        key: by which another request of the client can cancel this one; None if it cannot.
        round: its part of a call that asks its client.
        parent: the call that makes the request; None for a client.
        nesting: the number of calls above it, as the client states it.
    """

    caller: Caller
    headers: Mapping[str, str]
    sender: NotificationSender
    options: StreamOptions
    asker: Asker = CANNOT_ASK
    key: RequestKey | None = None
    round: Round = FIRST_ROUND
    parent: ParentCall | None = None
    nesting: int = 0

    @classmethod
    def over_http(cls, context: Context, params: CallToolRequestParams, endpoint: str, levels: LogLevels) -> Self:
        """Return the request that came in at `endpoint`."""
        return cls(
            caller_of(context),
            headers_of(context),
            ClientNotifications(context),
            stream_options_of(context, levels),
            StreamAsker(context) if context.session.can_send_request else CANNOT_ASK,
            key_of(context, endpoint, context.request_id),
            Round.of(context, params) if context.protocol_version in MODERN_PROTOCOL_VERSIONS else FIRST_ROUND,
            nesting=stated_nesting((context.meta or {}).get(NESTING_META_KEY)),
        )

    def of(
        self, agent: HostedAgent, arguments: Mapping[str, Any], call_id: str | None = None
    ) -> AbstractContextManager[CallRequest]:
        """The request of a call of `agent`, for the block; `call_id` if it continues that call."""
        return requested(
            agent,
            self.caller,
            self.headers,
            conversation_id=conversation_id_of(arguments),
            call_id=call_id,
            mcp_method="tools/call",
            parent=self.parent,
            nesting=self.nesting,
        )

    def notifications(self, agent: HostedAgent, events: EventQueue) -> Notifications:
        """Return the notifications of the events of its call."""
        seconds, on_heartbeat = agent.shared.heartbeat_seconds, agent.count_heartbeat
        return Notifications(agent.name, events, self.sender, heartbeat_seconds=seconds, on_heartbeat=on_heartbeat)


async def parsed(asked: Call, arguments: Mapping[str, Any], agent: HostedAgent) -> Call:
    """Add the arguments to a call; see `tools.parse_call`."""
    return await in_parts(parse_call(asked, arguments, agent.settings, max_entries=agent.shared.max_history_entries))


def stated_nesting(value: object) -> int:
    """Return the number of calls above a call, as its client states it; 0 for other values.

    It is a lower bound: by a number a client reaches the limit earlier. It never counts as a call of this gateway.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < inf:
        return 0
    return int(min(value, _MOST_NESTING))
