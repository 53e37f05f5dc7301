"""The TypeScript SDK v1: its client is asked by an agent, and its server asks through one.

The client and the server know the initialize era alone. They run in the Node of `make programs`.
"""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.calling import ask
from tests.e2e.test_questions import Person, accept, client_of, gateway_of, told
from tests.support.asking import FORM, SCHEMA, URL, URL_MESSAGE, asking_downstream
from tests.support.clients import MODERN_VERSION
from tests.support_programs import require_program

from .conformance import PROGRAMS, find_node

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tests.support.downstreams import Era

HERE = Path(__file__).parent
MISSING = "needs Node >= 22 and the MCP TypeScript SDK v1: run `make programs`"
NODE_SECONDS = 60


def node() -> str:
    """The Node that runs the SDK; skips the test without one."""
    found = find_node() if (PROGRAMS / "@modelcontextprotocol" / "sdk").is_dir() else None
    return str(require_program(found, MISSING))


async def told_by_client(url: str, tool: str, message: str, *answers: dict[str, Any]) -> tuple[list[Any], str]:
    """Call a tool by the SDK's client, which gives these answers; return what it was asked, and the result."""
    arguments = (url, tool, json.dumps({"message": message}), json.dumps(answers))
    client = await asyncio.create_subprocess_exec(
        node(), str(HERE / "typescript_client.mjs"), *arguments, stdout=PIPE, stderr=PIPE
    )
    printed, complaint = await asyncio.wait_for(client.communicate(), NODE_SECONDS)
    assert client.returncode == 0, complaint.decode()
    result = json.loads(printed)
    return result["asked"], result["text"]


@asynccontextmanager
async def asking_server() -> AsyncGenerator[str]:
    """Serve the SDK's server; yields its URL."""
    server = await asyncio.create_subprocess_exec(node(), str(HERE / "typescript_server.mjs"), stdout=PIPE)
    try:
        assert server.stdout is not None
        yield (await asyncio.wait_for(server.stdout.readline(), NODE_SECONDS)).decode().strip()
    finally:
        server.kill()
        await server.wait()


@pytest.mark.parametrize("era", ["initialize", "modern"])
async def test_its_client_answers_forms_and_pages(era: Era, tmp_path: Path) -> None:
    node()
    ada, accepted = {"action": "accept", "content": {"name": "Ada"}}, {"action": "accept"}
    async with asking_downstream(era) as downstream, gateway_of(tmp_path, {"url": downstream.url}) as served:
        (form,), text = await told_by_client(served.url("user"), "send_message", "name", ada)
        assert '"Ada"' in text
        assert (form["message"], form["requestedSchema"]) == (f"asking: {FORM}", SCHEMA)
        (page,), _ = await told_by_client(f"{served.base_url}/mcp", "agent-user", "pay", accepted)
        assert (page["mode"], page["message"], page["url"]) == ("url", f"asking: {URL_MESSAGE}", URL)
        assert [one["action"] for one in downstream.answers] == ["accept", "accept"]


@pytest.mark.parametrize("mode", ["legacy", MODERN_VERSION])
async def test_its_server_asks_the_caller_and_reads_that_another_one_cannot_be_asked(mode: str, tmp_path: Path) -> None:
    person = Person(accept(name="Ada"), accept())
    async with asking_server() as url, gateway_of(tmp_path, {"url": url}) as served:
        async with client_of(served.url("user"), person, mode) as client:
            assert '"Ada"' in await told(client, "name")
            assert '"accept"' in await told(client, "pay")
        assert [one.message for one in person.asked] == [f"asking: {FORM}", f"asking: {URL_MESSAGE}"]
        refused = await ask(served.url("user"), "name pay")
        assert "cannot be asked" in refused.text
        assert "Client does not support url elicitation" in refused.text
