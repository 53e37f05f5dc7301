"""The MCP SDK runs a session of its own for each stateless request of an older client, with its tasks and streams.

Requests of 2026-07-28 are answered by `serve_one`, without one.
"""

import asyncio
from typing import Any

import httpx
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import CallToolResult, TextContent

ACCEPT = {"Accept": "application/json, text/event-stream", "Host": "localhost"}
OLDER, NEWER = "2025-11-25", "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": NEWER,
    "io.modelcontextprotocol/clientInfo": {"name": "c", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


async def call_tool(context: Any, params: Any) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text="done")])


async def tasks_of_call(app: Any, version: str) -> int:
    """The number of tasks that a call makes."""
    made = 0

    def count(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        nonlocal made
        made += 1
        return asyncio.Task(coroutine, loop=loop, **options)

    params = {"name": "tool", "arguments": {}, **({"_meta": META} if version == NEWER else {})}
    headers = {**ACCEPT, "MCP-Protocol-Version": version, "Mcp-Method": "tools/call", "Mcp-Name": "tool"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        asyncio.get_running_loop().set_task_factory(count)
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        answer = await client.post("/mcp", headers=headers, json=body)
        asyncio.get_running_loop().set_task_factory(None)
    assert "done" in answer.text, answer.text
    return made


async def main() -> None:
    manager = StreamableHTTPSessionManager(Server("tools", on_call_tool=call_tool), stateless=True)
    async with manager.run():
        older, newer = [await tasks_of_call(manager.handle_request, version) for version in (OLDER, NEWER)]
    fault = older > newer
    print("fault" if fault else "no fault", f": a call makes {older} tasks in {OLDER} and {newer} in {NEWER}", sep="")


asyncio.run(main())
