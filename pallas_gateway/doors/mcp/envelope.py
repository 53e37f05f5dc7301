"""MCP requests over HTTP: the body with its JSON-RPC envelope, the caller, and the key by which a call is cancelled."""

from __future__ import annotations

import json
import logging
from functools import cached_property, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import pydantic_core
from mcp_types import CancelledNotificationParams, EmptyResult, JSONRPCRequest, SetLevelRequestParams
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from pallas_gateway.calls.call import GET_HEALTH
from pallas_gateway.calls.cancellation import RequestKey
from pallas_gateway.core.call_request import records_of
from pallas_gateway.identity.caller import CALLER_KEY, Caller
from pallas_gateway.identity.grants import NOTHING
from pallas_gateway.identity.secret import bearer_of
from pallas_gateway.json_size import has_too_many_values
from pallas_gateway.limits import QuestionLimits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel import Server
    from starlette.requests import Request
    from starlette.types import Message

    from pallas_gateway.calls.asking.client_answers import KeyOf
    from pallas_gateway.calls.cancellation import Cancellations
    from pallas_gateway.core.parts import Sessions
    from pallas_gateway.identity.secret import Secret

    type Context = ServerRequestContext[Any, Request]

SESSION_HEADER = "mcp-session-id"
VERSION_HEADER = "mcp-protocol-version"
LONGEST_ANSWER = QuestionLimits().answer_characters
"""Bytes of a client's answer to a question; a longer one is refused."""
UNREADABLE = ""
"""In place of a tool's name that cannot be read."""
_LONGEST_SEARCHED = 64 * 1024
_TOO_DEEP = object()
_NOBODY = Caller(grants=NOTHING)
_log = logging.getLogger("pallas.agent_server")


class McpRequest:
    """A POST whose body has been read. The JSON-RPC envelope is parsed once, and only if needed.

    Attributes:
        http: the request; its `receive` returns the messages after the body.
        body: the body, within the limit of bytes.
        read_at: when the body had been read, by `perf_counter`.
        has_too_many_values: the body must not be parsed, because it would take too much memory.
    """

    def __init__(self, http: Request, body: bytes) -> None:
        self.http = http
        self.body = body
        self.read_at = perf_counter()
        self.has_too_many_values = has_too_many_values(body)
        self._unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive(self) -> Message:
        """Return the body as one message, then the later messages; for an ASGI app that reads the request itself."""
        return self._unread.pop() if self._unread else await self.http.receive()

    @property
    def initializes(self) -> bool:
        """True for an `initialize` request."""
        return self._has_method("initialize")

    @property
    def capabilities(self) -> object:
        """The capabilities that the client of an `initialize` request declares, not validated."""
        params = self._envelope.get("params")
        return params.get("capabilities") if isinstance(params, dict) else None

    @property
    def client_answer(self) -> Mapping[str, Any] | None:
        """The JSON-RPC response with which a client answers a question; None for any other body.

        It may be longer than `LONGEST_ANSWER`.
        """
        if len(self.body) > LONGEST_ANSWER and b'"method"' in self.body:  # neither parsed nor searched to its end
            return None
        if b'"result"' not in self.body and b'"error"' not in self.body:
            return None
        message = self._envelope
        if not isinstance(message, dict) or "method" in message or not isinstance(message.get("id"), str | int):
            return None
        return message if "result" in message or "error" in message else None

    @property
    def call(self) -> JSONRPCRequest | None:
        """A well-formed `tools/call`, as the SDK reads one of this protocol version; None for any other body."""
        is_modern = self.http.headers.get(VERSION_HEADER) in MODERN_PROTOCOL_VERSIONS
        if not is_modern and not self._has_method("tools/call"):
            return None
        envelope = self._lenient_envelope if is_modern else self._envelope
        try:
            return (
                JSONRPCRequest.model_validate(envelope, by_name=False) if _method_of(envelope) == "tools/call" else None
            )
        except ValueError:
            return None

    @cached_property
    def tool(self) -> str | None:
        """The tool of a call, well-formed or not; `UNREADABLE` without a readable name, None if the request is no call.

        A body that is nested too deeply to be parsed counts as a call.
        """
        if self.has_too_many_values:
            return UNREADABLE
        envelope = self._lenient_envelope
        if envelope is _TOO_DEEP:
            return UNREADABLE  # the SDK parses it on another stack, where the same depth may be within the limit
        if _method_of(envelope) != "tools/call":
            return None
        params = envelope.get("params")
        name = params.get("name") if isinstance(params, dict) else None
        return name if isinstance(name, str) else UNREADABLE

    @property
    def calls_agent(self) -> bool:
        """True for a call of any tool except `get_health`."""
        return self.tool not in (None, GET_HEALTH)

    def _has_method(self, method: str) -> bool:
        """Return True for a request of this method."""
        # A short body without the name is not parsed. A long body is a call in most cases: to search its images takes
        # as long as to parse it.
        if len(self.body) <= _LONGEST_SEARCHED and f'"{method}"'.encode() not in self.body:
            return False
        return bool(_method_of(self._envelope) == method)

    @cached_property
    def _lenient_envelope(self) -> Any:
        """The envelope, parsed as leniently as the SDK does in the 2026-07-28 era: UTF-16, half surrogate pairs."""
        if self._envelope is not None:
            return self._envelope
        try:
            return json.loads(self.body)
        except RecursionError:
            return _TOO_DEEP
        except ValueError:
            return None

    @cached_property
    def _envelope(self) -> Any:
        try:
            return pydantic_core.from_json(self.body)
        except ValueError:
            return None


def headers_of(context: Context) -> Mapping[str, str]:
    """Return the HTTP headers of a request."""
    return context.request.headers if context.request is not None else {}


def request_bearer(context: Context) -> Secret | None:
    """Return the token of a request."""
    return bearer_of(headers_of(context).get("authorization"))


def caller_of(context: Context) -> Caller:
    """Return the caller that `doors/http/access.py` has identified; outside of HTTP, a caller without grants."""
    if context.request is None:
        return _NOBODY
    caller: Caller = context.request.scope[CALLER_KEY]
    return caller


def key_of(context: Context, endpoint: str, request_id: str | int | None) -> RequestKey | None:
    """Return the key by which a request to `endpoint` can be cancelled; None for a request without a session."""
    session = headers_of(context).get(SESSION_HEADER)
    if session is None or request_id is None:
        return None
    return RequestKey.of(endpoint, session, request_bearer(context), request_id)


def key_of_answers(request: Request, endpoint: str) -> KeyOf | None:
    """Return a function that makes keys of the ids of a client's answers; None for a client without a session."""
    session = request.headers.get(SESSION_HEADER)
    if session is None:
        return None
    return partial(RequestKey.of, endpoint, session, bearer_of(request.headers.get("authorization")))


def listen_to_the_initialize_era(server: Server[Any], endpoint: str, sessions: Sessions) -> None:
    """Add the handlers of messages that only clients of that era send: log levels, and cancellations of calls."""

    async def on_cancelled(context: Context, params: CancelledNotificationParams) -> None:
        cancel_request(context, endpoint, params.request_id, sessions.cancellations)

    async def on_level(context: Context, params: SetLevelRequestParams) -> EmptyResult:
        sessions.log_levels.set(headers_of(context).get(SESSION_HEADER), params.level)
        return EmptyResult()

    # Registered by name: the constructor's parameter warns, because newer clients no longer send this request.
    server.add_request_handler("logging/setLevel", SetLevelRequestParams, on_level)
    server.add_notification_handler("notifications/cancelled", CancelledNotificationParams, on_cancelled)


def cancel_request(context: Context, endpoint: str, request_id: str | int | None, cancellations: Cancellations) -> None:
    """End the calls of a request to `endpoint`, in this or another process, if the same client asks for it."""
    key = key_of(context, endpoint, request_id)
    if key is not None:
        end_cancelled(cancellations, key)
        cancellations.hand_on(key)


def end_cancelled(cancellations: Cancellations, key: RequestKey) -> None:
    """End calls of this process that a client has cancelled, by a request to this or another process."""
    for call in cancellations.cancel(key):
        with records_of(call):
            _log.info("client cancelled a call")


def _method_of(envelope: Any) -> Any:
    return envelope.get("method") if isinstance(envelope, dict) else None
