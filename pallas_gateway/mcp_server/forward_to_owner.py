"""Repeated requests of 2026-07-28 that reach another process than the one in which their call waits.

The process that received the request hands it to the one that has the call, and passes on to its client the documents
that come back: an empty one as soon as the other process has the request, then notifications, then the result or an
error. The other side is `mcp_server/serve_forwarded.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp import MCPError
from mcp_types import CallToolResult, InputRequiredResult

from pallas_gateway.calls.progress import ProgressEvent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pallas_gateway.calls.channel import NotificationSender
    from pallas_gateway.calls.exchanges import Exchanges
    from pallas_gateway.mcp_server.message_calls import MessageResult, ToolRequest

_TRACE_HEADERS = ("traceparent", "tracestate")


async def forward(exchanges: Exchanges, agent: str, request: ToolRequest) -> MessageResult | None:
    """Have the process that holds the call of a request go on with it; None if there is no such process any more.

    Raises:
        MCPError: the call refuses the state or the answers.
        ConnectionResetError: the other process has ended while it went on with the call.
    """
    state = request.round.state or ""
    is_taken = False
    with exchanges.beginning(state.partition(".")[0]) as exchange:
        await exchange.send(
            {
                "agent": agent,
                "ends": request.round.ends,
                "state": state,
                "answers": {id_: [one.outcome, one.content] for id_, one in request.round.answers.items()},
                "headers": {name: request.headers[name] for name in _TRACE_HEADERS if name in request.headers},
                "options": {"progress": request.options.progress, "deltas": request.options.deltas},
            }
        )
        async for document in exchange.documents():
            is_taken = True
            if "result" in document or "error" in document:
                return _end(document)
            await _notify(document, request.sender)
    if is_taken:
        raise ConnectionResetError("the process of the call has ended")
    return None


def result_document(result: MessageResult) -> Mapping[str, Any]:
    """Return the document that brings a result."""
    return {"result": _wire(result)}


def error_document(error: MCPError) -> Mapping[str, Any]:
    """Return the document that brings an error."""
    return {"error": [error.code, error.message, error.data]}


def _end(document: Mapping[str, Any]) -> MessageResult:
    if "error" in document:
        raise MCPError(*document["error"])
    result = document["result"]
    kind = InputRequiredResult if result.get("resultType") == "input_required" else CallToolResult
    return kind.model_validate(result)


async def _notify(document: Mapping[str, Any], sender: NotificationSender) -> None:
    if "progress" in document:
        await sender.send_progress(ProgressEvent(*document["progress"]))
    elif "payload" in document:
        await sender.send_payload(document["payload"])


def _wire(value: Any) -> Any:
    return value.model_dump(mode="json", by_alias=True, exclude_none=True)
