"""Requests of clients that another process has received and forwarded; see `mcp_server/forward_to_owner.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp import MCPError

from pallas_gateway.calls.questions import Answer
from pallas_gateway.events.channel import StreamOptions
from pallas_gateway.mcp_server.forward_to_owner import error_document, result_document
from pallas_gateway.mcp_server.message_calls import ToolRequest
from pallas_gateway.mcp_server.rounds import Round, no_such_call

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from pallas_gateway.calls.assistant_stream import Payload
    from pallas_gateway.events.progress import ProgressEvent
    from pallas_gateway.hosting.gateway import Gateway
    from pallas_gateway.mcp_server.mcp_servers import McpServers
    from pallas_gateway.mcp_server.message_calls import MessageResult
    from pallas_gateway.questions.exchanges import Exchange
    from pallas_gateway.questions.open_calls import OpenCall


class ForwardedRequests:
    """Answers the requests that other processes forward."""

    def __init__(self, gateway: Gateway, servers: McpServers) -> None:
        self._gateway = gateway
        self._servers = servers

    def begin(self, exchange: Exchange) -> None:
        """Answer the request of an exchange in a task; the end of the exchange cancels it."""
        answering = self._gateway.answers.spawn(self._serve(exchange), name="request of another worker", report=True)
        exchange.on_end = answering.cancel

    async def _serve(self, exchange: Exchange) -> None:
        try:
            asked = await anext(exchange.documents())
            call = self._gateway.running.open_calls.find(asked["state"])
            if call is None and self._gateway.draining:  # the drain has ended it
                return
            await exchange.send({})  # from here on the call must not be resumed elsewhere
            await exchange.send(result_document(await self._answer(asked, call, exchange)))
        except MCPError as error:
            await exchange.send(error_document(error))
        finally:
            exchange.close()

    async def _answer(self, asked: Mapping[str, Any], call: OpenCall | None, exchange: Exchange) -> MessageResult:
        server = self._servers.by_agent.get(asked["agent"])
        if call is None or server is None:
            raise no_such_call()
        answers = {id_: Answer(*one) for id_, one in asked["answers"].items()}
        request = ToolRequest(
            call.call.caller,
            asked["headers"],
            _Sender(exchange),
            StreamOptions(**asked["options"]),
            round=Round(call.modes, asked["state"], answers, asked["ends"]),
        )
        return await server.answer({}, request)


class _Sender:
    """The `NotificationSender` of a forwarded request."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def send_progress(self, event: ProgressEvent) -> None:
        await self._exchange.send({"progress": [event.progress, event.total, event.message]})

    async def send_payload(self, payload: Payload) -> None:
        await self._exchange.send({"payload": payload})
