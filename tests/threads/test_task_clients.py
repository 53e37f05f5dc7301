"""Clients of `io.modelcontextprotocol/tasks` as people use them: Claude Code, FastMCP and the TypeScript SDK."""

import asyncio
import json
import re
import signal
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.asgi import Receive, Scope, Send, end_body, http_only, read_body, send_part, start_response
from tests.support.claude_code import DOWN, ENTER, LOOK, POINTER, RIGHT, STOP, TOOL, ClaudeCode, claude_code
from tests.support.leases import let_leases_end
from tests.support.listener import serve_app
from tests.support.postgresql import PostgreSql
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, hang, say
from tests.support.task_worlds import APPROVES, DONE, EXTENSION, World, world
from tests.support.waiting import WAIT_SECONDS, Changes, Gate, eventually
from tests.support_programs import program

TESTS = Path(__file__).parents[1]
pytestmark = pytest.mark.whole(
    "threads/test_mcp_tasks.py::test_a_long_call_becomes_a_task_that_asks_and_has_the_whole_result"
)
POLLS = {"poll_seconds": 0.2}
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"


@dataclass
class Request:
    """A request of a client, the gateway that it went to, and the answer."""

    rpc: dict[str, Any]
    behind: str
    answer: bytes = b""

    @property
    def declares(self) -> bool:
        capabilities = self.rpc["params"].get("_meta", {}).get(CAPABILITIES, {})
        return EXTENSION in capabilities.get("extensions", {})


@dataclass
class Front:
    """What stands before gateways: notes the requests and hands each to the gateway that is `behind` it then."""

    http: httpx.AsyncClient
    behind: str
    requests: list[Request] = field(default_factory=list)
    url: str = ""
    changes: Changes = field(default_factory=Changes)

    def of(self, method: str) -> list[Request]:
        return [one for one in self.requests if one.rpc.get("method") == method]

    async def until(self, method: str, count: int) -> None:
        """Wait for the answers to so many requests."""
        await self.changes.until(
            lambda: sum(bool(one.answer) for one in self.of(method)) >= count, WAIT_SECONDS, what=f"{count} {method}"
        )

    @http_only
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        noted = Request(json.loads(body) if body else {}, self.behind)
        self.requests.append(noted)
        headers = [(name, value) for name, value in scope["headers"] if name.lower() != b"host"]
        asked = self.http.stream(scope["method"], self.behind + scope["path"], content=body, headers=headers)
        async with asked as response:
            given = response.headers
            await start_response(send, response.status_code, content_type=given.get("content-type", ""))
            async for part in response.aiter_bytes():
                noted.answer += part
                await send_part(send, part)
        await end_body(send)
        self.changes.announce()


@asynccontextmanager
async def front(behind: str) -> AsyncGenerator[Front]:
    async with httpx.AsyncClient(trust_env=False) as http:
        one = Front(http, behind)
        async with serve_app(one) as listener:
            one.url = f"{listener.base_url}/agents/solo/mcp"
            yield one


def calls_once(request: LlmRequest) -> Turn:
    """Claude Code's model: it calls the agent, and then waits for what it is told."""
    if TOOL in request.called or not request.tools:
        return say("I wait.")
    # Its first request may come before it has read the tools of the server.
    return call_tools([(TOOL, {"message": "go"}) if TOOL in request.tools else (LOOK, {})])


def the_only(requests: list[Request]) -> Request:
    [request] = requests
    return request


@asynccontextmanager
async def claude_before(
    gateway: World, home: Path, script: Callable[[LlmRequest], Turn] = calls_once, *, behind: str = ""
) -> AsyncGenerator[tuple[ClaudeCode, Front]]:
    async with (
        front(behind or gateway.served.base_url) as before,
        claude_code(home, before.url, script) as installed,
    ):
        yield installed, before


@pytest.mark.needs("claude-code")
async def test_claude_code_without_a_terminal_declares_nothing_and_gets_the_answer(tmp_path: Path) -> None:
    async with (
        world(f"sqlite:///{tmp_path}/threads.db", tmp_path) as gateway,
        claude_before(gateway, tmp_path / "home") as (installed, before),
    ):
        gateway.tools.gate.open()
        printed = await installed.print("Ask the agent.")
        rows = await gateway.rows()
    assert "I wait." in printed
    assert not the_only(before.of("tools/call")).declares
    assert installed.model.has_read(DONE)
    assert rows == 0


@pytest.mark.needs("claude-code", "postgresql")
async def test_claude_code_gets_the_result_from_another_process_after_a_kill(
    server: PostgreSql, tmp_path: Path
) -> None:
    url = server.new_database()
    async with world(url, tmp_path, two=True, tasks=POLLS) as gateway:
        there = gateway.other_url
        async with (
            claude_before(gateway, tmp_path / "home", behind=there) as (installed, before),
            installed.session("Ask the agent."),
        ):
            await gateway.tools.gate.wait_for_entered(1)
            await before.until("tasks/get", 2)
            before.behind = gateway.served.base_url
            gateway.other.signal(signal.SIGKILL)
            gateway.tools.gate.open()
            await let_leases_end(url)
            await eventually(lambda: installed.model.has_read("| two | three"), what="the result at the model")
    polls = before.of("tasks/get")
    assert {one.behind for one in polls} == {there, gateway.served.base_url}
    assert all(one.declares for one in polls)
    assert installed.model.has_read("task-notification")
    assert gateway.tool_calls == ["one", "two", "three"]


@pytest.mark.needs("claude-code")
async def test_claude_code_takes_a_late_task_and_goes_on_in_another_session(tmp_path: Path) -> None:
    async with (
        world(f"sqlite:///{tmp_path}/threads.db", tmp_path, tasks={**POLLS, "after_seconds": 1}) as gateway,
        claude_before(gateway, tmp_path / "home") as (installed, before),
    ):
        async with installed.session("Ask the agent."):
            await before.until("tasks/get", 1)
        gateway.tools.gate.open()
        async with installed.session("--continue"):
            await eventually(lambda: installed.model.has_read(DONE), what="the result at the model")
    call = the_only(before.of("tools/call"))
    assert call.answer.index(b"notifications/progress") < call.answer.index(b'"resultType":"task"')
    assert len({one.rpc["params"]["taskId"] for one in before.of("tasks/get")}) == 1
    assert before.of("tasks/cancel") == []
    assert gateway.tool_calls == ["one", "two", "three"]


@pytest.mark.needs("claude-code")
async def test_claude_code_shows_a_question_as_a_form_and_is_heard_at_another_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/threads.db"
    async with world(url, tmp_path, two=True, tasks=POLLS, settings=APPROVES) as gateway:
        gateway.tools.gate.open()
        async with (
            claude_before(gateway, tmp_path / "home", behind=gateway.other_url) as (installed, before),
            installed.session("Ask the agent.") as screen,
        ):
            await screen.shows("Esc to answer later")
            before.behind = gateway.served.base_url
            await screen.press_until(RIGHT, lambda: screen.has("Space to select"))
            screen.press(DOWN)
            await screen.shows(f"{POINTER} call")
            screen.press(ENTER)
            await screen.shows("Decision: call")
            await screen.press_until(ENTER, lambda: before.of("tasks/update"))
            await eventually(lambda: installed.model.has_read(DONE), what="the result at the model")
    update = the_only(before.of("tasks/update"))
    answer = {"action": "accept", "content": {"decision": "call"}}
    assert [*update.rpc["params"]["inputResponses"].values()] == [answer]
    assert b'"error"' not in update.answer
    assert update.behind == gateway.served.base_url


@pytest.mark.needs("claude-code")
async def test_claude_code_cancels_the_task_that_its_model_stops(tmp_path: Path) -> None:
    may_stop = Gate()

    def script(request: LlmRequest) -> Turn:
        started = re.search(r'task_id "(\w+)"', str(request.tool_results))
        if started is None or STOP in request.called:
            return calls_once(request)
        return hang(may_stop, call_tools([(STOP, {"task_id": started[1]})]))

    async with (
        world(f"sqlite:///{tmp_path}/threads.db", tmp_path, tasks=POLLS) as gateway,
        claude_before(gateway, tmp_path / "home", script) as (installed, before),
    ):
        async with installed.session("Ask the agent."):
            await gateway.tools.gate.wait_for_entered(1)
            may_stop.open()
            await before.until("tasks/cancel", 2)  # it sends each twice
            await gateway.tools.gate.wait_for_cancelled(1)
        ended = await gateway.get(before.of("tasks/cancel")[0].rpc["params"]["taskId"])
    assert ended["status"] == "cancelled"
    first, second = (json.loads(one.answer)["result"] for one in before.of("tasks/cancel"))
    assert first == second


@pytest.mark.parametrize(
    ("name", "script"),
    [
        pytest.param("typescript", "conformance/ext_tasks.mjs", marks=pytest.mark.needs("typescript"), id="ext-tasks"),
        pytest.param(
            "fastmcp-tasks", "task_clients/fastmcp_client.py", marks=pytest.mark.needs("fastmcp-tasks"), id="fastmcp"
        ),
    ],
)
async def test_clients_of_sdks_poll_answer_and_cancel(name: str, script: str, tmp_path: Path) -> None:
    async def run(mode: str) -> dict[str, Any]:
        process = await asyncio.create_subprocess_exec(
            program(name), str(TESTS / script), before.url, mode, stdout=PIPE, stderr=PIPE
        )
        printed, complaint = await process.communicate()
        assert process.returncode == 0, complaint.decode()
        return dict(json.loads(printed))

    async with (
        world(f"sqlite:///{tmp_path}/threads.db", tmp_path, settings=APPROVES, tasks=POLLS) as gateway,
        front(gateway.served.base_url) as before,
    ):
        cancelled = await run("cancel")
        async with asyncio.TaskGroup() as group:
            answering = group.create_task(run("result"))
            await before.until("tasks/get", len(before.of("tasks/get")) + 1)
            gateway.tools.gate.open()
    assert cancelled == {"kind": "task", "status": "cancelled", "asked": 0, "text": None}
    assert answering.result() == {"kind": "task", "status": "completed", "asked": 2, "text": DONE}
