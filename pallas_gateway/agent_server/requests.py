"""What a request tells beside its parameters: its headers, who asks, and by what it can be cancelled."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from mcp_types import CancelledNotificationParams, EmptyResult, SetLevelRequestParams

from pallas_gateway.agents.answering import records_of
from pallas_gateway.calls.cancellation import RequestKey
from pallas_gateway.identity.caller import CALLER_KEY, Caller
from pallas_gateway.identity.grants import NOTHING
from pallas_gateway.identity.secret import bearer_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel import Server
    from starlette.requests import Request

    from pallas_gateway.calls.cancellation import Cancellations
    from pallas_gateway.identity.secret import Secret

    type Context = ServerRequestContext[Any, Request]

SESSION_HEADER = "mcp-session-id"
_NOBODY = Caller(grants=NOTHING)
_log = logging.getLogger("pallas.agent_server")


def headers_of(context: Context) -> Mapping[str, str]:
    """The request's HTTP headers."""
    return context.request.headers if context.request is not None else {}


def request_bearer(context: Context) -> Secret | None:
    """The token that the request brought."""
    return bearer_of(headers_of(context).get("authorization"))


def caller_of(context: Context) -> Caller:
    """Who the access gate found to be asking."""
    if context.request is None:
        return _NOBODY
    caller: Caller = context.request.scope[CALLER_KEY]
    return caller


def key_of(context: Context, endpoint: str, request_id: str | int | None) -> RequestKey | None:
    """By what a request to `endpoint` can be cancelled; None if it cannot be."""
    session = headers_of(context).get(SESSION_HEADER)
    if session is None or request_id is None:
        return None
    return RequestKey.of(endpoint, session, request_bearer(context), request_id)


def listen_to_the_initialize_era(server: Server[Any], endpoint: str, cancellations: Cancellations) -> None:
    """Have `server` take what only clients of that era send: log levels, and the cancelling of calls of `endpoint`."""

    async def on_cancelled(context: Context, params: CancelledNotificationParams) -> None:
        cancel_request(context, endpoint, params.request_id, cancellations)

    # Registered by name: the constructor's parameter warns, because newer clients no longer send this request.
    server.add_request_handler("logging/setLevel", SetLevelRequestParams, _accept_level)
    server.add_notification_handler("notifications/cancelled", CancelledNotificationParams, on_cancelled)


def cancel_request(context: Context, endpoint: str, request_id: str | int | None, cancellations: Cancellations) -> None:
    """End the calls of a request to `endpoint`, in whichever process they run, if its own client asks for that."""
    key = key_of(context, endpoint, request_id)
    if key is not None:
        end_cancelled(cancellations, key)
        cancellations.hand_on(key)


def end_cancelled(cancellations: Cancellations, key: RequestKey) -> None:
    """End the calls of this process that a client has cancelled, here or in another process."""
    for call in cancellations.cancel(key):
        with records_of(call):
            _log.info("client cancelled a call")


async def _accept_level(context: Context, params: SetLevelRequestParams) -> EmptyResult:
    """Accept any level: without a session there is nothing to remember it in."""
    del context, params
    return EmptyResult()
