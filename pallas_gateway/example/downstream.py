"""The downstream `library` of the example: an MCP server over stdio with two tools.

`python -m pallas_gateway.example.downstream` runs it, as fast-agent does by `fastagent.config.yaml`.
"""

import asyncio
from datetime import UTC, datetime
from typing import Any

from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
)

from pallas_gateway.example.notes import NOTES, find

TOOLS = [
    Tool(
        name="search",
        title="Search the library",
        description="Search short notes about MCP, fast-agent and Pallas Gateway. Returns the notes that fit best, or "
        "the subjects there are notes on. Use it before answering any question about these.",
        input_schema={
            "type": "object",
            "properties": {"query": {"type": "string", "minLength": 1, "description": "A few words or a question."}},
            "required": ["query"],
            "additionalProperties": False,
        },
    ),
    Tool(
        name="now",
        title="Date and time",
        description="The current date and time in UTC. Use it whenever an answer depends on today's date.",
        input_schema={"type": "object", "properties": {}, "additionalProperties": False},
    ),
]


def search(query: str) -> str:
    """The best notes as text, or the list of subjects."""
    found = find(query)
    if not found:
        return f"There is no note on that. Subjects: {', '.join(note.title for note in NOTES)}."
    return "\n".join(f"{note.title}: {note.text}" for note in found)


def now() -> str:
    """For example `Friday, 2026-01-02, 15:04 UTC`."""
    return datetime.now(UTC).strftime("%A, %Y-%m-%d, %H:%M UTC")


def answer(tool: str, arguments: dict[str, Any]) -> CallToolResult:
    """Run one tool call; for a wrong call the result tells the model what to do."""
    query = arguments.get("query")
    if tool == "now":
        return _result(now())
    if tool == "search" and isinstance(query, str) and query.strip():
        return _result(search(query))
    if tool == "search":
        return _result("Give a query: a few words or a question, as text.", is_error=True)
    return _result(f"There is no tool '{tool}'. Use search or now.", is_error=True)


def _result(text: str, *, is_error: bool = False) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=is_error)


async def _list_tools(_context: object, _params: PaginatedRequestParams | None) -> ListToolsResult:
    return ListToolsResult(tools=TOOLS)


async def _call_tool(_context: object, params: CallToolRequestParams) -> CallToolResult:
    return answer(params.name, params.arguments or {})


async def main() -> None:
    """Serve until stdin closes."""
    server = Server(
        "library",
        version="1.0.0",
        instructions="Notes about MCP, fast-agent and Pallas Gateway, and the time.",
        on_list_tools=_list_tools,
        on_call_tool=_call_tool,
    )
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(main())
