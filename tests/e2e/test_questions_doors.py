"""Questions at every address, to every kind of client, and of programs, peers and inner agents of workflows."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any, override

import pytest
from mcp_types import ElicitRequestFormParams, ElicitRequestParams, ElicitResult

from pallas_gateway.calls.questions import ORIGIN_META_KEY
from tests.support.askable_callers import (
    CAN_BE_ASKED,
    DECLINE,
    EACH_ERA,
    INVALID_PARAMS,
    Person,
    accept,
    client_of,
    told,
)
from tests.support.asking import FORM, URL_MESSAGE, stdio_settings
from tests.support.asking_gateways import asking_gateway, gateway_of
from tests.support.calling import answer_of
from tests.support.certificates import TLS_FILES, write_certificate
from tests.support.clients import MODERN_VERSION, RawReply, raw_client, tool_params
from tests.support.downstreams import Era
from tests.support.gateway import Agent, Running, gateway_and_model
from tests.support.listener import reserved_port
from tests.support.pairs import pairs
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, say
from tests.support.watching import speaker
from tests.support_programs import program

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
        deployment = {"registry_port": registry, "host": "127.0.0.1"}
        async with asking_gateway(tmp_path, agent, gateway=gateway, deployment=deployment):
            for path in paths:
                tool = "agent-user" if path == f"{registry}/mcp" else "send_message"
                for mode in ("legacy", MODERN_VERSION):
                    person = Person(accept(name="Ada"))
                    async with client_of(f"{scheme}://127.0.0.1:{path}", person, mode, tls=trusting) as client:
                        assert "Ada" in await told(client, "name", tool)
                    assert [one.message for one in person.asked] == [f"asking: {FORM}"]


async def test_a_state_at_the_address_of_all_agents_is_sealed_and_of_its_caller_alone(tmp_path: Path) -> None:
    async with asking_gateway(tmp_path) as (served, _):
        url, params = f"{served.base_url}/mcp", tool_params("agent-user", {"message": "name"})

        async def called(bearer: str, **more: Any) -> RawReply:
            async with raw_client(url, protocol_version=MODERN_VERSION, bearer=bearer) as client:
                return await client.request("tools/call", {**params, **more}, meta=CAN_BE_ASKED)

        asked = (await called("mine")).result
        [call] = (await served.request("GET", "/api/v1/calls")).json()["calls"]
        answers = {"action": "accept", "content": {"name": "Ada"}}
        again = {
            "requestState": asked["requestState"],
            "inputResponses": dict.fromkeys(asked["inputRequests"], answers),
        }
        assert call["id"] not in asked["requestState"]
        assert (await called("other", **again)).error["code"] == INVALID_PARAMS
        assert "Ada" in answer_of(await called("mine", **again)).text


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


# --- questions of agents below the one that was called ----------------------------------------------------------------

# --- peers -----------------------------------------------------------------------------------------------------------

PEERS = ("ann", "bob", "cid", "dan")


def calls_four_peers(request: LlmRequest) -> Turn:
    """`top` calls `boss`, and that all peers at once; each asks, and answers with its name and what it was told."""
    name = speaker(request)
    if results := request.tool_results.values():
        return say(f"{name}[{' '.join(results)}]")
    if name == "top":
        return call_tools([("boss__send_message", {"message": "go"})])
    if name == "boss":
        return call_tools([(f"{peer}__send_message", {"message": "go"}) for peer in PEERS])
    return call_tools([("asking__name", {"message": f"Who is {name}?"})])


FOUR_PEERS = {
    "top": Agent(["boss"], settings={"depends_on": ["boss"]}),
    "boss": Agent(PEERS, settings={"depends_on": list(PEERS)}),
    **{peer: Agent(["asking"]) for peer in PEERS},
}


def asked_peer(message: str) -> str:
    """The peer in whose name a question comes and whose question it is."""
    found = re.fullmatch(r"asking, for (\w+): Who is (\w+)\?", message)
    assert found is not None, message
    assert found[1] == found[2]
    return found[1]


class AnswersTheLastFirst(Person):
    """Waits until all peers have asked, then answers the question that came last first."""

    def __init__(self) -> None:
        super().__init__()
        self.answered: list[str] = []

    @override
    async def __call__(self, context: object, params: ElicitRequestParams) -> ElicitResult:
        peer = asked_peer(params.message)
        self.asked.append(params)
        self.changes.announce()
        await self.wait_for(len(PEERS))
        later = [asked_peer(one.message) for one in self.asked[self.asked.index(params) + 1 :]]
        await self.changes.until(lambda: set(later) <= set(self.answered), 20, what=f"answers before that of {peer}")
        self.answered.append(peer)
        self.changes.announce()
        return accept(name=f"for-{peer}")


def assert_each_peer_got_its_answer(answer: str) -> None:
    assert answer.startswith("top[boss[")
    for peer in PEERS:
        assert f'{peer}[answer: {{"action": "accept", "content": {{"name": "for-{peer}"' in answer


async def test_peers_that_ask_in_parallel_are_answered_in_another_order(tmp_path: Path) -> None:
    person = AnswersTheLastFirst()
    async with (
        asking_gateway(tmp_path, agents=FOUR_PEERS, script=calls_four_peers) as (served, _),
        client_of(served.url("top"), person) as client,
    ):
        assert_each_peer_got_its_answer(await told(client, "go"))
        assert_all_answered(served)
    assert person.answered == [asked_peer(one.message) for one in reversed(person.asked)]


async def test_peers_that_ask_in_parallel_are_answered_one_request_after_the_other(tmp_path: Path) -> None:
    async with (
        asking_gateway(tmp_path, agents=FOUR_PEERS, script=calls_four_peers) as (served, _),
        raw_client(served.url("top"), protocol_version=MODERN_VERSION) as client,
    ):
        call = tool_params("send_message", {"message": "go"})

        async def go_on(state: str, **answers: Any) -> dict[str, Any]:
            more = {"requestState": state, "inputResponses": answers}
            return (await client.request("tools/call", {**call, **more}, meta=CAN_BE_ASKED)).result

        result = (await client.request("tools/call", call, meta=CAN_BE_ASKED)).result
        async with asyncio.timeout(20):
            while len(result["inputRequests"]) < len(PEERS):  # a repeated request without answers: what is open now
                result = await go_on(result["requestState"])
        for left in range(len(PEERS), 0, -1):
            open_now = result["inputRequests"]
            assert len(open_now) == left
            id_ = list(open_now)[-1]
            peer = asked_peer(open_now[id_]["params"]["message"])
            reply = {"action": "accept", "content": {"name": f"for-{peer}"}}
            result = await go_on(result["requestState"], **{id_: reply})
        assert_each_peer_got_its_answer("".join(block["text"] for block in result["content"]))
        assert_all_answered(served)


def assert_all_answered(served: Running) -> None:
    for peer in PEERS:
        assert served.metric("pallas_questions_total", agent=peer, kind="form", outcome="accepted") == 1
        assert served.metric("pallas_questions_open", agent=peer) == 0
    assert served.gateway.calls.waiting.count == 0


# --- workflows -------------------------------------------------------------------------------------------------------

MODULE = """
from fast_agent import FastAgent

fast = FastAgent("flow", parse_cli_args=False)


@fast.agent(name="scout", instruction="You are scout.", servers=["asking"], human_input=True)
async def scout() -> None: ...


@fast.agent(name="guide", instruction="You are guide.", servers=["asking"])
async def guide() -> None: ...


@fast.agent(name="editor", instruction="You are editor.")
async def editor() -> None: ...


@fast.WORKFLOW
async def flow() -> None: ...
"""
ONE, TWO = {"scout"}, {"scout", "guide"}
WORKFLOWS = {
    "chain": ('chain(name="flow", sequence=["scout", "guide"], default=True)', TWO),
    "parallel": ('parallel(name="flow", fan_out=["scout", "guide"], fan_in="editor", default=True)', TWO),
    "router": ('router(name="flow", agents=["scout", "guide"], default=True)', ONE),
    "agents as tools": (
        'agent(name="flow", instruction="You are flow.", agents=["scout", "guide"], default=True)',
        TWO,
    ),
}


def workflow_script(request: LlmRequest) -> Turn:
    if request.tool_results:
        return say(" ".join(request.tool_results.values()))
    if "asking__name" in request.tools:
        own_form = ("__human_input", {"message": FORM, "fields": [{"name": "name", "type": "text"}]})
        more = [own_form] if "__human_input" in request.tools else []
        return call_tools([("asking__name", {}), *more])
    if others := [tool for tool in request.tools if tool.startswith(("agent__", "flow__send"))]:
        return call_tools([(tool, {"message": "go"}) for tool in others])
    if "confidence" in json.dumps(request.body):
        return say(json.dumps({"agent": "scout", "confidence": "high", "reasoning": "it knows"}))
    return say(request.last_user_text)


class Clerk(Person):
    """Answers each question with the part of its message that names the asker."""

    @override
    async def __call__(self, context: object, params: ElicitRequestParams) -> ElicitResult:
        assert isinstance(params, ElicitRequestFormParams)
        self.asked.append(params)
        return accept(name=params.message.removesuffix(f": {FORM}"))


@pytest.mark.parametrize("workflow", WORKFLOWS)
async def test_a_question_in_a_workflow_comes_in_the_name_of_the_inner_agent_that_asks(
    workflow: str, tmp_path: Path
) -> None:
    decorator, asking = WORKFLOWS[workflow]
    agents = {
        "flow": Agent(source=MODULE.replace("WORKFLOW", decorator)),
        "top": Agent(["flow"], settings={"depends_on": ["flow"]}),
    }
    expected = sorted([*(f"asking, for {one}" for one in asking), "scout"])
    async with asking_gateway(tmp_path, agents=agents, script=workflow_script) as (served, _):
        for called, mode in (("flow", "legacy"), ("top", MODERN_VERSION)):
            clerk = Clerk()
            async with client_of(served.url(called), clerk, mode) as client:
                answer = await told(client, "go")
            assert sorted(one.message.removesuffix(f": {FORM}") for one in clerk.asked) == expected
            assert "accept" in answer
        accepted = served.metric("pallas_questions_total", agent="flow", kind="form", outcome="accepted")
        assert accepted == 2 * len(asking)


# --- an agent of another gateway -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["legacy", MODERN_VERSION])
async def test_an_approval_at_another_gateway_comes_as_a_form_of_that_server(mode: str, tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        results = list(request.tool_results.values())
        return say(results[0]) if results else call_tools([("far__send_message", {"message": "wipe"})])

    person = Person(accept(decision="deny"), accept(decision="once"))
    agent = Agent(["asking"], settings={"approve": ["asking/wipe"]})
    async with asking_gateway(tmp_path / "far", agent) as (far, downstream):
        servers = {"far": {"url": far.url("user")}}
        async with (
            gateway_and_model(tmp_path / "near", {"user": Agent(["far"])}, script, servers=servers) as (near, _),
            client_of(near.url("user"), person, mode) as client,
        ):
            assert "the caller did not give it" in await told(client, "go")
            assert await told(client, "go") == "wiped /"
        assert len(downstream.recorder.calls("wipe")) == 1
    for asked in person.asked:
        assert asked.message.startswith("far: user: May the tool asking/wipe run with these arguments?")
    if mode == "legacy":  # not what the other gateway marks: any server could write that
        origin = {"kind": "form", "agent": "user", "server": "far"}
        assert [dict(one.meta or {}) for one in person.asked] == [{ORIGIN_META_KEY: origin}] * 2
