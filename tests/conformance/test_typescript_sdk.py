"""The TypeScript SDK, v1 and v2: its client is asked by an agent, and its server asks through one.

v1 knows the initialize era alone. The client of v2 speaks both eras; in 2026-07-28 the SDK itself repeats the call with
the answers. The server of v2 is one of 2026-07-28. They run in the Node of `make programs`.
"""

import asyncio
import json
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.askable_callers import Person, accept, client_of, told
from tests.support.asking import FORM, SCHEMA, URL, URL_MESSAGE, asking_downstream
from tests.support.asking_gateways import gateway_of
from tests.support.calling import ask
from tests.support.clients import MODERN_VERSION
from tests.support.downstreams import Era
from tests.support.one_user import world
from tests.support.scripted_llm import Hang, LlmRequest, Turn, call_tools, hang, say
from tests.support.waiting import Gate
from tests.support_programs import program as installed

HERE = Path(__file__).parent
pytestmark = [pytest.mark.needs("typescript"), pytest.mark.whole]
NODE_SECONDS = 60
V1, V2 = "typescript", "typescript_2"
CLIENTS = {"v1": (V1, ""), "v2": (V2, ""), "v2, 2026-07-28": (V2, MODERN_VERSION)}


async def told_by_client(
    kind: tuple[str, str], url: str, tool: str, message: str, *answers: dict[str, Any]
) -> tuple[list[Any], str]:
    """Call a tool by a client of the SDK, which gives these answers; return what it was asked, and the result."""
    program, version = kind
    arguments = (url, tool, json.dumps({"message": message}), json.dumps(answers), version)
    client = await asyncio.create_subprocess_exec(
        installed("typescript"), str(HERE / f"{program}_client.mjs"), *arguments, stdout=PIPE, stderr=PIPE
    )
    printed, complaint = await asyncio.wait_for(client.communicate(), NODE_SECONDS)
    assert client.returncode == 0, complaint.decode()
    result = json.loads(printed)
    return result["asked"], result["text"]


@asynccontextmanager
async def asking_server(program: str, port: int = 0) -> AsyncGenerator[str]:
    arguments = (str(HERE / f"{program}_server.mjs"), str(port))
    server = await asyncio.create_subprocess_exec(installed("typescript"), *arguments, stdout=PIPE)
    try:
        assert server.stdout is not None
        yield (await asyncio.wait_for(server.stdout.readline(), NODE_SECONDS)).decode().strip()
    finally:
        server.kill()
        await server.wait()


@pytest.mark.parametrize(
    ("client", "era"),
    [("v1", "initialize"), ("v1", "modern"), ("v2", "modern"), ("v2, 2026-07-28", "initialize")],
)
async def test_its_client_answers_forms_and_pages(client: str, era: Era, tmp_path: Path) -> None:
    ada, accepted = {"action": "accept", "content": {"name": "Ada"}}, {"action": "accept"}
    async with asking_downstream(era) as downstream, gateway_of(tmp_path, {"url": downstream.url}) as served:
        (form,), text = await told_by_client(CLIENTS[client], served.url("user"), "send_message", "name", ada)
        assert '"Ada"' in text
        assert (form["message"], form["requestedSchema"]) == (f"asking: {FORM}", SCHEMA)
        (page,), _ = await told_by_client(CLIENTS[client], f"{served.base_url}/mcp", "agent-user", "pay", accepted)
        assert (page["mode"], page["message"], page["url"]) == ("url", f"asking: {URL_MESSAGE}", URL)
        assert [one["action"] for one in downstream.answers] == ["accept", "accept"]


REASON = {V1: "Client does not support url elicitation", V2: "Cannot request input"}


@pytest.mark.parametrize("mode", ["legacy", MODERN_VERSION])
@pytest.mark.parametrize("program", [V1, V2])
async def test_its_server_asks_the_caller_and_reads_that_another_one_cannot_be_asked(
    program: str, mode: str, tmp_path: Path
) -> None:
    person = Person(accept(name="Ada"), accept())
    async with asking_server(program) as url, gateway_of(tmp_path, {"url": url}) as served:
        async with client_of(served.url("user"), person, mode) as client:
            assert '"Ada"' in await told(client, "name")
            assert '"accept"' in await told(client, "pay")
        assert [one.message for one in person.asked] == [f"asking: {FORM}", f"asking: {URL_MESSAGE}"]
        refused = await ask(served.url("user"), "name pay")
        assert "cannot be asked" in refused.text
        assert REASON[program] in refused.text


async def test_its_server_that_is_restarted_within_a_call_goes_on_with_a_new_session(tmp_path: Path) -> None:
    gate = Gate()

    def script(request: LlmRequest) -> Turn | Hang:
        count = call_tools([("counter__count", {})])
        results = [*request.tool_results.values()]
        return (count, hang(gate, count), say(" | ".join(results)))[len(results)]

    async with AsyncExitStack() as stack:
        async with asking_server(V1) as url:
            it = await stack.enter_async_context(world(tmp_path, script, counter=url))
            asking = asyncio.create_task(ask(it.url))
            await gate.wait_for_entered()
        async with asking_server(V1, urlsplit(url).port or 0):
            gate.open()
            assert (await asking).text == "call 1 | call 1"
