"""Repeated requests of 2026-07-28 that reach another process than the one in which their call waits.

This process forwards the request to the owner of the call, and sends the documents of its response to the client: an
empty document when the owner has the request, then notifications, then the result or an error. The owner's side is
`mcp_server/serve_forwarded.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp import MCPError
from mcp_types import CallToolResult, InputRequiredResult

from pallas_gateway.events.progress import ProgressEvent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pallas_gateway.events.channel import NotificationSender
    from pallas_gateway.mcp_server.message_calls import MessageResult, ToolRequest
    from pallas_gateway.questions.exchanges import Exchanges

_TRACE_HEADERS = ("traceparent", "tracestate")


async def forward(exchanges: Exchanges, agent: str, request: ToolRequest) -> MessageResult | None:
    """Forward a request to the process of its call and return the result; None if that process has ended.

    Raises:
        MCPError: the call refuses the state or the answers.
        ConnectionResetError: the process of the call has ended after it had received the request.
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
    """Return the document with a result."""
    return {"result": result.model_dump(mode="json", by_alias=True, exclude_none=True)}


def error_document(error: MCPError) -> Mapping[str, Any]:
    """Return the document with an error."""
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
