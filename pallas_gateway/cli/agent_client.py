"""MCP client of one agent. It looks the agent up and connects for each turn, so the gateway may restart in between."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pallas_gateway.agent_server.client_notifications import STREAM_META_KEY
from pallas_gateway.agent_server.tools import GET_HEALTH, META_KEY, PARAMS_META_KEY
from pallas_gateway.cli.chat.turns import Window, window_of
from pallas_gateway.cli.live import stream_payload
from pallas_gateway.cli.parameters import offered_by
from pallas_gateway.cli.remote import connected, fetch_agents, find_agent, message_tool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from mcp.client import Client
    from mcp_types import CallToolResult, LoggingMessageNotificationParams

    from pallas_gateway.cli.chat.screen import Screen


@dataclass(frozen=True, slots=True)
class ChatCapabilities:
    """The agent's message tool, the parameters that callers may set, and its model's window."""

    tool: str
    parameters: dict[str, dict[str, Any]]
    window: Window | None


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a call.

    `others` are the types of content other than text; `meta` is `_meta["pallas/call"]`, `params` the parameters
    without effect or with another value (`_meta["pallas/params"]`).
    """

    text: str
    is_error: bool
    others: tuple[str, ...]
    meta: Mapping[str, Any]
    params: Mapping[str, Any]

    @classmethod
    def of(cls, result: CallToolResult) -> Answer:
        """The result in the chat's form."""
        text = "\n".join(block.text for block in result.content if block.type == "text")
        others = (str(getattr(one, "mime_type", None) or one.type) for one in result.content if one.type != "text")
        values = ((result.meta or {}).get(key) for key in (META_KEY, PARAMS_META_KEY))
        meta, params = (value if isinstance(value, dict) else {} for value in values)
        return cls(text, bool(result.is_error), tuple(others), meta, params)


@dataclass(frozen=True, slots=True)
class AgentClient:
    """One agent of one gateway, and the bearer token."""

    url: str
    agent: str
    bearer: str | None = field(default=None, repr=False)

    @asynccontextmanager
    async def connect(self, screen: Screen) -> AsyncIterator[Connection]:
        """A connection for one turn, whose notifications are shown on `screen`.

        Raises:
            UsageError: the gateway has no such agent.
            UnreachableError: the gateway does not answer, or disconnects.
            RefusedError: the gateway refuses the token, or takes no requests now.
        """
        agent = find_agent(await fetch_agents(self.url, self.bearer), self.agent)

        async def on_message(params: LoggingMessageNotificationParams) -> None:
            if (payload := stream_payload(params)) is not None:
                screen.payload(payload)

        async with connected(agent, bearer=self.bearer, on_message=on_message) as client:
            tool = await message_tool(client, self.agent)
            capabilities = ChatCapabilities(tool.name, offered_by(tool.input_schema), window_of(agent.document))
            yield Connection(client, capabilities, screen)


@dataclass(frozen=True, slots=True)
class Connection:
    """An open connection to an agent."""

    client: Client
    capabilities: ChatCapabilities
    _screen: Screen

    async def ask(self, arguments: dict[str, Any]) -> Answer:
        """One call of the message tool; its text is streamed if the screen is live."""

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            del progress, total
            if message:
                self._screen.progress(message)

        meta: Any = {STREAM_META_KEY: "delta"} if self._screen.is_live else {}
        tool = self.capabilities.tool
        return Answer.of(await self.client.call_tool(tool, arguments, progress_callback=on_progress, meta=meta))

    async def health(self) -> dict[str, Any]:
        """The document of `get_health`, or one with its error."""
        text = Answer.of(await self.client.call_tool(GET_HEALTH)).text
        try:
            document = json.loads(text)
        except ValueError:
            document = None
        return document if isinstance(document, dict) else {"status": "error", "message": text}
