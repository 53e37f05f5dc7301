"""An MCP server on the SDK's low-level server whose tools the test changes, and which tells of that or does not."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ClientCapabilities,
    ElicitationCapability,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)

from tests.support.asgi import AsgiApp, Message, Receive, Scope, Send
from tests.support.downstreams import Downstream, Era
from tests.support.waiting import Gate


@dataclass
class ChangingTool:
    """A tool that answers `result`; with `output` as its schema, as structured content.

    One that `asks` is offered only to clients that declare elicitation. `only_reads` is its hint.
    """

    result: Mapping[str, Any] = field(default_factory=lambda: {"result": "done"})
    output: dict[str, Any] | None = None
    asks: bool = False
    only_reads: bool | None = None

    def listed(self, name: str) -> Tool:
        hint = ToolAnnotations(read_only_hint=self.only_reads) if self.only_reads is not None else None
        schema = {"type": "object", "properties": {}}
        return Tool(name=name, input_schema=schema, output_schema=self.output, annotations=hint)


class ChangingDownstream(Downstream):
    """`tools` are what it offers and may be changed at any time; `change` also tells of it, if it is one that tells.

    It reports a tool that it has not as an error of the protocol, or with `unknown_as_result` as a tool's result.
    `gates` hold requests by JSON-RPC method (`DELETE` and the like for those without). Every response sets a cookie.
    """

    def __init__(self, *names: str, tells: bool, stateless: bool, era: Era, instructions: str | None) -> None:
        self.tools = {name: ChangingTool() for name in names}
        self.gates: dict[str, Gate] = {}
        self.unknown_as_result = False
        self.bus = InMemorySubscriptionBus()
        listen = ListenHandler(self.bus) if tells else None
        server: Server[Any] = Server(
            "changing",
            instructions=instructions,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_subscriptions_listen=listen,
        )
        super().__init__(_Served(server, self.gates), stateless=stateless, era=era)  # type: ignore[arg-type]

    async def change(self, **tools: ChangingTool) -> None:
        """Offer other tools from now on."""
        self.tools = tools
        await self.bus.publish(ToolsListChanged())

    async def _list_tools(
        self, context: ServerRequestContext[Any], _: PaginatedRequestParams | None
    ) -> ListToolsResult:
        may_ask = context.session.check_client_capability(ClientCapabilities(elicitation=ElicitationCapability()))
        offered = {name: tool for name, tool in self.tools.items() if may_ask or not tool.asks}
        return ListToolsResult(tools=[tool.listed(name) for name, tool in offered.items()])

    async def _call_tool(self, _: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        if (tool := self.tools.get(params.name)) is None:
            if self.unknown_as_result:
                text = TextContent(type="text", text=f"Unknown tool: {params.name}")
                return CallToolResult(content=[text], is_error=True)
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {params.name}")
        structured = dict(tool.result) if tool.output is not None else None
        return CallToolResult(
            content=[TextContent(type="text", text=str(dict(tool.result)))], structured_content=structured
        )


@asynccontextmanager
async def changing_downstream(
    *names: str,
    tells: bool = False,
    stateless: bool = True,
    era: Era = "both",
    instructions: str | None = None,
    start: bool = True,
) -> AsyncIterator[ChangingDownstream]:
    downstream = ChangingDownstream(*names, tells=tells, stateless=stateless, era=era, instructions=instructions)
    async with downstream.serve(start=start):
        yield downstream


@dataclass
class _Served:
    """The part of a FastMCP server that `Downstream` needs."""

    server: Server[Any]
    gates: Mapping[str, Gate]

    def http_app(self, *, path: str, stateless_http: bool) -> AsgiApp:
        app: Any = self.server.streamable_http_app(streamable_http_path=path, stateless_http=stateless_http)

        async def gated(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            message = await receive()
            first: list[Message] = [message]

            async def again() -> Message:
                return first.pop() if first else await receive()

            async def with_cookie(message: Message) -> None:
                if message["type"] == "http.response.start":
                    message["headers"] = [*message["headers"], (b"set-cookie", b"visitor=1; Path=/")]
                await send(message)

            body = message.get("body", b"").decode()
            for method, gate in self.gates.items():
                if method == scope["method"] or f'"{method}"' in body:
                    await gate.enter(method)
            await app(scope, again, with_cookie)

        return gated
