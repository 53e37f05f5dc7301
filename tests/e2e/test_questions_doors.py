"""Questions at every address of a gateway, to every kind of client, and from downstreams that are programs."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mcp_types import CallToolResult, InputRequiredResult

from tests.support.askable_callers import DECLINE, EACH_ERA, Person, accept, client_of, told
from tests.support.asking import FORM, URL_MESSAGE, asking_downstream, stdio_settings
from tests.support.asking_gateways import gateway_of
from tests.support.certificates import TLS_FILES, write_certificate
from tests.support.clients import MODERN_VERSION, text_of
from tests.support.gateway import Agent
from tests.support.listener import reserved_port
from tests.support.pairs import pairs
from tests.support_programs import program

if TYPE_CHECKING:
    from mcp_types import InputResponses

    from tests.support.downstreams import Era

pytestmark = pytest.mark.usefixtures("patience")
ROOT = Path(__file__).parents[2]
OLDER_SDK = ROOT / "tests/older_sdk"


@pairs({"per_port": {"one port": False, "per port": True}, "tls": {"http": False, "https": True}})
async def test_a_question_reaches_the_client_at_every_address(per_port: bool, tls: bool, tmp_path: Path) -> None:
    with ExitStack() as ports:
        own, registry = (ports.enter_context(reserved_port()) for _ in range(2))
        trusting = write_certificate(tmp_path) if tls else None
        scheme = "https" if tls else "http"
        gateway: dict[str, Any] = {"host": "127.0.0.1", "port": registry, "per_port": per_port}
        gateway |= {"tls": TLS_FILES} if tls else {}
        paths = [f"{own}/mcp"] if per_port else [f"{registry}/agents/user/mcp", f"{registry}/mcp"]
        agent = Agent(["asking"], settings={"port": own})
        async with (
            asking_downstream("modern") as downstream,
            gateway_of(
                tmp_path,
                {"url": downstream.url},
                agent,
                gateway=gateway,
                deployment={"registry_port": registry, "host": "127.0.0.1"},
            ),
        ):
            for path in paths:
                tool = "agent-user" if path == f"{registry}/mcp" else "send_message"
                for mode in ("legacy", MODERN_VERSION):
                    person = Person(accept(name="Ada"))
                    async with client_of(f"{scheme}://127.0.0.1:{path}", person, mode, tls=trusting) as client:
                        assert "Ada" in await told(client, "name", tool)
                    assert [one.message for one in person.asked] == [f"asking: {FORM}"]


@EACH_ERA
async def test_a_program_asks_the_caller_as_well(era: Era, tmp_path: Path) -> None:
    person = Person(accept(name="Ada"), accept(name="Ada"))  # either may be asked first; a page has no content
    mode = MODERN_VERSION if era == "initialize" else "legacy"
    async with (
        gateway_of(tmp_path, stdio_settings(era)) as served,
        client_of(served.url("user"), person, mode) as client,
    ):
        answer = await told(client, "name pay")
    assert answer.count('"action": "accept"') == 2
    assert answer.count("Ada") == 1
    assert {one.message for one in person.asked} == {f"asking: {FORM}", f"asking: {URL_MESSAGE}"}


@pytest.mark.needs("python-sdk-1")
@pytest.mark.parametrize("mode", ["legacy", MODERN_VERSION])
async def test_a_server_of_release_1_of_the_sdk_asks_the_caller(mode: str, tmp_path: Path) -> None:
    server = {"command": program("python-sdk-1"), "args": [str(OLDER_SDK / "server.py")]}
    person = Person(accept(name="Ada", people=None), DECLINE)
    async with gateway_of(tmp_path, server) as served, client_of(served.url("user"), person, mode) as client:
        assert "accept: Details(name='Ada', people=None)" in await told(client, "name")
        assert "decline" in await told(client, "name")
    assert {one.message for one in person.asked} == {"asking: Who books?"}


async def test_a_client_may_repeat_its_call_itself_and_on_another_connection(tmp_path: Path) -> None:
    async with asking_downstream("modern") as downstream, gateway_of(tmp_path, {"url": downstream.url}) as served:
        asked = await one_request(served.url("user"))
        assert isinstance(asked, InputRequiredResult)
        answers: InputResponses = {id_: accept(name="Ada") for id_ in asked.input_requests or {}}
        answer = await one_request(served.url("user"), request_state=asked.request_state, input_responses=answers)
        assert isinstance(answer, CallToolResult)
        assert "Ada" in text_of(answer)


async def one_request(url: str, **more: Any) -> CallToolResult | InputRequiredResult:
    """Call by a new client of the SDK, which declares that it can be asked, and leaves questions to the test."""
    person = Person()
    async with client_of(url, person, MODERN_VERSION) as client:
        result: CallToolResult | InputRequiredResult = await client.session.call_tool(
            "send_message", {"message": "name"}, allow_input_required=True, **more
        )
    assert not person.asked
    return result
