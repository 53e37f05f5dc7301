"""Connections of a call to agents of this gateway, in the process and with the interface of a server's connection."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, cast

from fast_agent.mcp.mcp_aggregator import NamespacedTool
from mcp_types import ListToolsResult, ServerCapabilities, TextContent, ToolsCapability

from pallas_gateway.calls.asking.asking import Questions
from pallas_gateway.calls.asking.pauses import PausableDeadline
from pallas_gateway.calls.assistant_stream import LOGGER, relayed
from pallas_gateway.calls.conversation import is_text
from pallas_gateway.calls.events.events import FromPeer
from pallas_gateway.calls.tool_names import name_at_model
from pallas_gateway.errors import TokenExchangeError
from pallas_gateway.identity.caller import ANONYMOUS
from pallas_gateway.runtime.downstreams.credentials import bearer_for_peer
from pallas_gateway.runtime.downstreams.listings.server_listing import Listing
from pallas_gateway.runtime.protocols import NestedRequest
from pallas_gateway.runtime.scope import current_scope
from pallas_gateway.urls import ALL_AGENTS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from mcp.shared.dispatcher import ProgressFnT
    from mcp_types import CallToolResult, ContentBlock, Tool

    from pallas_gateway.calls.assistant_stream import Payload, PeerCall
    from pallas_gateway.calls.events.progress import ProgressEvent
    from pallas_gateway.identity.caller import Caller
    from pallas_gateway.runtime.downstreams.downstream_log import DownstreamLog
    from pallas_gateway.runtime.protocols import AgentSpec, Downstream, ParentCall, Peers


class PeerServers:
    """The peers of one hosted agent, by the names of their servers."""

    def __init__(self, spec: AgentSpec, downstreams: Mapping[str, Downstream], log: DownstreamLog) -> None:
        self.calls = cast("Peers", spec.peer_calls)  # None only if there are no peers
        self.max_relay_depth = spec.max_relay_depth
        self._peers = {name: one for name, one in downstreams.items() if spec.peer_calls and one.peer is not None}
        self._servers = tuple(downstreams)
        self._log = log
        self._listings: dict[str, tuple[Sequence[Tool], Listing]] = {}

    def ask(self) -> None:
        """Compare the peers' tools with the agent's filters before the first call."""
        for peer in self._peers.values():
            self.listing(peer, ANONYMOUS)

    def of_call(self, parent: ParentCall) -> dict[str, PeerConnection]:
        """Return the connections of one call."""
        return {name: PeerConnection(self, peer, parent) for name, peer in self._peers.items()}

    def listing(self, peer: Downstream, caller: Caller) -> Listing | None:
        """Return the tools of a peer; None if the peer is not there for this caller."""
        tools = self.calls.tools(str(peer.peer), caller)
        if tools is None:
            return None
        before, listing = self._listings.get(peer.name, (None, None))
        if listing is None or before is not tools:
            listing = Listing(tuple(_namespaced(peer.name, tool, self._servers) for tool in tools))
            self._listings[peer.name] = tools, listing
            if peer.peer != ALL_AGENTS or caller.grants.everything:  # other callers may see fewer tools
                self._log.on_listed(peer.name, [tool.name for tool in tools])
        return listing


def _namespaced(server: str, tool: Tool, servers: Collection[str]) -> NamespacedTool:
    name = name_at_model(server, tool.name, servers)
    return NamespacedTool(tool=tool, server_name=server, namespaced_tool_name=name)


class PeerConnection:
    """The connection of one call to one peer: a `ServerConnection` and its client, as far as fast-agent uses them."""

    server_capabilities = ServerCapabilities(tools=ToolsCapability())
    negotiation = None

    def __init__(self, servers: PeerServers, peer: Downstream, parent: ParentCall) -> None:
        self._callback_runtime: Any = None  # set by the manager; fast-agent marks it when it attaches a server
        self._servers = servers
        self._peer = peer
        self._parent = parent

    @property
    def client(self) -> Self:
        """The client."""
        return self

    @property
    def listing(self) -> Listing | None:
        """The tools of the peer; None if the peer is not there for the caller of this call."""
        return self._servers.listing(self._peer, self._parent.call.caller)

    async def list_tools(self, **_: Any) -> ListToolsResult:
        """List the tools, for a server that is attached during the call."""
        return ListToolsResult(tools=[one.tool for one in self.listing.tools] if self.listing else [])

    async def call_tool(
        self, name: str, arguments: dict[str, Any] | None, progress_callback: ProgressFnT, **_: Any
    ) -> CallToolResult:
        """Call a tool of the peer.

        Raises:
            RuntimeError: no token could be had; the observer adds the reason to the result.
            TimeoutError: no answer in the time that the server's entry allows.
        """
        try:
            bearer = await bearer_for_peer(self._peer)
        except TokenExchangeError as error:
            raise RuntimeError("it was not called") from error
        peer_call, seconds = current_scope.get().peer_call, self._peer.read_timeout_seconds
        sender = _ToParent(self._parent, peer_call, self._servers.max_relay_depth, progress_callback)
        tool_call_id = peer_call.tool_call_id if peer_call else None
        asker = Questions(self._peer.name, self._parent.questions, tool_call_id=tool_call_id)
        nested = NestedRequest(self._parent, bearer, sender, asker)
        waiting = asyncio.timeout(seconds)
        try:
            async with waiting:
                with asker.pauses.including(PausableDeadline(waiting)):
                    result = await self._servers.calls.call(str(self._peer.peer), name, arguments or {}, nested)
        except TimeoutError:
            if not waiting.expired():
                raise
            raise TimeoutError(f"no answer within {seconds} s") from None
        return result.model_copy(update={"content": [_whole(block) for block in result.content]})


def _whole(block: ContentBlock) -> ContentBlock:
    """Replace halves of surrogate pairs: a peer's model may write them, and providers refuse them."""
    if not isinstance(block, TextContent) or is_text(block.text):
        return block
    return block.model_copy(update={"text": block.text.encode("utf-8", "replace").decode()})


@dataclass(frozen=True, slots=True)
class _ToParent:
    """The `NotificationSender` of a nested call: relays to the client of the parent."""

    parent: ParentCall
    call: PeerCall | None
    max_depth: int
    on_progress: ProgressFnT

    async def send_progress(self, event: ProgressEvent) -> None:
        """Report progress of the tool call that the peer works for."""
        await self.on_progress(event.progress, event.total, event.message)

    async def send_payload(self, payload: Payload) -> None:
        """Relay a payload of the peer's assistant stream."""
        if (passed_on := relayed(LOGGER, payload, self.call, max_depth=self.max_depth)) is not None:
            self.parent.sink.put(FromPeer(passed_on))
