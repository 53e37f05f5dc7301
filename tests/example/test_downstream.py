"""The bundled downstream over stdio, as fast-agent starts it, with the SDK's own client; and its search."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client
from mcp_types import TextContent

from pallas_gateway.example.downstream import MOST_FOUND, NOTES, find

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def library(directory: Path) -> AsyncIterator[Client]:
    command = ["-m", "pallas_gateway.example.downstream"]
    env = {"PYTHONPATH": str(ROOT)}
    server = StdioServerParameters(command=sys.executable, args=command, cwd=str(directory), env=env)
    async with Client(stdio_client(server)) as client:
        yield client


async def called(client: Client, tool: str, arguments: dict[str, object]) -> tuple[bool, str]:
    result = await client.call_tool(tool, arguments)
    (block,) = result.content
    assert isinstance(block, TextContent)
    return result.is_error, block.text


async def test_answers_over_stdio_from_any_directory_and_leaves_nothing_there(tmp_path: Path) -> None:
    async with library(tmp_path) as client:
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == ["search", "now"]
        assert all(tool.description for tool in tools)

        is_error, text = await called(client, "search", {"query": "what is a heartbeat?"})
        assert not is_error
        assert text.startswith("Heartbeat: ")

        is_error, text = await called(client, "now", {})
        assert not is_error
        shown = datetime.strptime(text, "%A, %Y-%m-%d, %H:%M UTC").replace(tzinfo=UTC)
        assert abs((datetime.now(UTC) - shown).total_seconds()) < 120
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("query", "titles"),
    [
        ("What is a peer?", ["Peer"]),
        ("And tell me about PEERS.", ["Peer"]),
        ("fast-agent", ["fast-agent"]),
        ("loop guard", ["Loop guard"]),
        ("zebras", []),
        ("what is the", []),
    ],
)
def test_search_finds_by_words_in_common(query: str, titles: list[str]) -> None:
    assert [note.title for note in find(query)] == titles


def test_every_note_is_found_by_its_title() -> None:
    for note in NOTES:
        found = find(note.title)
        assert found[0] is note
        assert len(found) <= MOST_FOUND
