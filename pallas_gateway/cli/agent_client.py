"""The way to the agent: found in the registry and connected to anew for each turn, so a gateway may restart between."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pallas_gateway.agent_server.client_notifications import STREAM_META_KEY
from pallas_gateway.agent_server.tools import GET_HEALTH, META_KEY, PARAMS_META_KEY
from pallas_gateway.cli.chat.trimming import Window, window_of
from pallas_gateway.cli.live import stream_payload
from pallas_gateway.cli.parameters import offered_by
from pallas_gateway.cli.remote import connected, fetch_agents, find_agent, message_tool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from mcp.client import Client
    from mcp_types import CallToolResult, LoggingMessageNotificationParams, Tool


class Hearer(Protocol):
    """Who is told what happens while the agent answers."""

    def progress(self, message: str) -> None:
        """One `notifications/progress`."""

    def payload(self, payload: dict[str, Any]) -> None:
        """One payload of the assistant stream."""


@dataclass(frozen=True, slots=True)
class ChatCapabilities:
    """What the agent offers now: its message tool, the parameters callers may set by name, what its model can read."""

    tool: str
    parameters: dict[str, dict[str, Any]] = field(default_factory=dict)
    window: Window | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a call.

    `others` are the types of what came beside the text; `meta` is `_meta["pallas/call"]`, `params` what became of
    parameters that did not take effect as they were (`_meta["pallas/params"]`).
    """

    text: str
    is_error: bool
    others: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AgentClient:
    """One agent of one gateway, and the token to show it."""

    url: str
    agent: str
    bearer: str | None = field(default=None, repr=False)

    @asynccontextmanager
    async def open(self, hearer: Hearer | None = None) -> AsyncIterator[Connection]:
        """A connection for one turn.

        Raises:
            UsageError: there is no such agent.
            UnreachableError: no gateway answers, or it went away.
            RefusedError: it wants another token, or answers nobody now.
        """
        agent = find_agent(await fetch_agents(self.url, self.bearer), self.agent)

        async def on_message(params: LoggingMessageNotificationParams) -> None:
            if hearer is not None and (payload := stream_payload(params)) is not None:
                hearer.payload(payload)

        async with connected(agent, bearer=self.bearer, on_message=on_message) as client:
            tool = await message_tool(client, self.agent)
            capabilities = ChatCapabilities(tool.name, offered_by(tool.input_schema), window_of(agent.document))
            yield Connection(client, capabilities, hearer)


@dataclass(frozen=True, slots=True)
class Connection:
    """An agent that can be asked."""

    _client: Client
    capabilities: ChatCapabilities
    _hearer: Hearer | None

    async def ask(self, arguments: dict[str, Any], *, live: bool) -> Answer:
        """One call; with `live` its text is told while it is written."""

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            del progress, total
            if self._hearer is not None and message:
                self._hearer.progress(message)

        meta: Any = {STREAM_META_KEY: "delta"} if live else {}
        result = await self._client.call_tool(
            self.capabilities.tool, arguments, progress_callback=on_progress, meta=meta
        )
        return _answer(result)

    async def tools(self) -> list[Tool]:
        """The agent's own tools, without those of its downstreams."""
        return list((await self._client.list_tools()).tools)

    async def health(self) -> dict[str, Any]:
        """The document of `get_health`, or one with its error."""
        text = _answer(await self._client.call_tool(GET_HEALTH)).text
        try:
            document = json.loads(text)
        except ValueError:
            document = None
        return document if isinstance(document, dict) else {"status": "error", "message": text}


def _answer(result: CallToolResult) -> Answer:
    text = "\n".join(block.text for block in result.content if block.type == "text")
    others = tuple(
        str(getattr(block, "mime_type", None) or block.type) for block in result.content if block.type != "text"
    )
    call, params = (_mapping((result.meta or {}).get(key)) for key in (META_KEY, PARAMS_META_KEY))
    return Answer(text, bool(result.is_error), others, call, params)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
