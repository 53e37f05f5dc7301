"""A client of one agent. It looks the agent up and connects for each call, so the gateway may restart in between."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pallas_gateway.calls.assistant_stream import STREAM_META_KEY
from pallas_gateway.calls.call import CALL_META_KEY, GET_HEALTH, PARAMS_META_KEY
from pallas_gateway.client.call_settings import offered_by
from pallas_gateway.client.chat.chat_turns import room_of
from pallas_gateway.client.gateway_client import GatewayRefusedError, connected, fetch_agents, find_agent
from pallas_gateway.client.progress_view import View, stream_payload

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from mcp.client import Client
    from mcp_types import CallToolResult, InputRequiredResult, InputResponses, LoggingMessageNotificationParams, Tool

    from pallas_gateway.client.question_prompts import Person


@dataclass(frozen=True, slots=True)
class ChatCapabilities:
    """An agent's message tool, the parameters that callers may set, and the `room_of` its model."""

    tool: str
    parameters: dict[str, dict[str, Any]] = field(default_factory=dict)
    room: int | None = None


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a call.

    Attributes:
        text: its text blocks.
        is_error: the call failed; the text is the reason.
        others: types of the other blocks.
        meta: `_meta["pallas/call"]`.
        params: `_meta["pallas/params"]`: parameters that were ignored or changed.
    """

    text: str
    is_error: bool
    others: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, result: CallToolResult) -> CallResult:
        """Return the parts of an MCP result that the command line shows."""
        text = "\n".join(block.text for block in result.content if block.type == "text")
        others = (block for block in result.content if block.type != "text")
        types = tuple(str(getattr(block, "mime_type", None) or block.type) for block in others)
        found = ((result.meta or {}).get(key) for key in (CALL_META_KEY, PARAMS_META_KEY))
        return cls(text, bool(result.is_error), types, *(one if isinstance(one, dict) else {} for one in found))


@dataclass(frozen=True, slots=True)
class AgentClient:
    """One agent of one gateway, the token to send, and who answers the agent's questions."""

    url: str
    agent: str
    bearer: str | None = field(default=None, repr=False)
    person: Person | None = None

    @asynccontextmanager
    async def open(self, view: View | None = None) -> AsyncIterator[AgentConnection]:
        """Connect for one call, whose events `view` shows.

        Raises:
            UsageError: the gateway has no such agent.
            UnreachableError: no gateway answers, or the connection was lost.
            RefusedError: the gateway requires another token, or is unavailable.
        """
        agent = find_agent(await fetch_agents(self.url, self.bearer), self.agent)
        if self.person is not None and view is not None:
            self.person.pause = view.paused

        async def on_message(params: LoggingMessageNotificationParams) -> None:
            if view is not None and (payload := stream_payload(params)) is not None:
                view.payload(payload)

        async with connected(agent, bearer=self.bearer, on_message=on_message, on_question=self.person) as client:
            tool = await message_tool(client, self.agent)
            capabilities = ChatCapabilities(tool.name, offered_by(tool.input_schema), room_of(agent.document))
            yield AgentConnection(client, capabilities, view, self.person)


@dataclass(frozen=True, slots=True)
class AgentConnection:
    """A connected agent."""

    client: Client
    capabilities: ChatCapabilities
    _view: View | None
    _person: Person | None

    async def call(self, arguments: dict[str, Any], *, live: bool) -> CallToolResult:
        """Call the message tool, and answer its questions; with `live`, the text is streamed to the view.

        Raises:
            RefusedError: the result requires input that this client does not offer.
        """
        from mcp_types import CallToolResult, InputRequiredResult  # noqa: PLC0415  other commands need no MCP

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            if self._view is not None:
                self._view.progress(progress, total, message)

        meta: Any = {STREAM_META_KEY: "delta"} if live else {}

        async def call(
            input_responses: InputResponses | None = None, request_state: str | None = None
        ) -> CallToolResult | InputRequiredResult:
            return await self.client.session.call_tool(
                self.capabilities.tool,
                arguments,
                progress_callback=on_progress,
                meta=meta,
                allow_input_required=True,
                input_responses=input_responses,
                request_state=request_state,
            )

        # Not by the SDK's loop: it shows no `_meta` of a result that asks, and ends after ten of them.
        result = await call()
        while isinstance(result, InputRequiredResult) and self._person is not None:
            answers = await self._person.answers_to(result)
            result = await call(answers, result.request_state)
        if not isinstance(result, CallToolResult):
            raise GatewayRefusedError(
                "The agent asks a question, although this client declared that it cannot be asked."
            )
        return result


async def health_document(client: Client) -> dict[str, Any]:
    """Return the document of `get_health`, or one with the error that came in its place."""
    text = CallResult.of(await client.call_tool(GET_HEALTH, {})).text
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    return document if isinstance(document, dict) else {"status": "error", "message": text}


async def message_tool(client: Client, agent: str) -> Tool:
    """Return the message tool of an agent: its first, whatever `gateway.tool_names` calls it.

    Raises:
        RefusedError: it has no tools.
    """
    tools = (await client.list_tools()).tools
    if not tools:
        raise GatewayRefusedError(f"Agent '{agent}' offers no tools.")
    return tools[0]
