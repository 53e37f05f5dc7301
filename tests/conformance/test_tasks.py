"""The scenarios of the MCP conformance suite for tasks, against an agent that plays their fixture tools."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from mcp.server.mcpserver import MCPServer

from pallas_gateway.config.loading.loader import Overrides
from tests.support.gateway import Agent, running, write_project
from tests.support.listener import reserved_port, serve_app
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, fail, say, scripted_llm
from tests.support.waiting import work_for

from .conformance import SuiteResult, installed_conformance, run_suite
from .forms import forms_downstream

HERE = Path(__file__).parent
pytestmark = [pytest.mark.needs("typescript"), pytest.mark.whole]
TOOLS = ["greet", "slow_compute", "failing_job", "protocol_error_job", "confirm_delete", "multi_input"]
SCENARIOS = [
    "tasks-lifecycle",
    "tasks-capability-negotiation",
    "tasks-wire-fields",
    "tasks-request-state-removal",
    "tasks-mrtr-input",
    "tasks-request-headers",
    "tasks-dispatch-and-envelope",
    "tasks-mrtr-composition",
    "tasks-required-task-error",
]
"""All but `tasks-status-notifications`, which is a stub in this version of the suite."""
AT_A_PORT = ["tasks-capability-negotiation", "tasks-request-headers"]
EXPECTED = {
    # A task fails if its process was killed and no other one can go on; a scenario cannot bring that about.
    "tasks-lifecycle:sep-2663-tasks-get-status-failed"
}
AFTER_SECONDS = 1.5
"""Longer than what is to be answered directly takes on a busy machine."""


@pytest.mark.parametrize(
    ("per_port", "scenarios"), [(False, SCENARIOS), (True, AT_A_PORT)], ids=["one port", "a port each"]
)
async def test_an_agent_fails_no_check_of_tasks_but_the_expected_ones(
    tmp_path: Path, *, per_port: bool, scenarios: list[str]
) -> None:
    conformance = installed_conformance()
    async with (
        agent(tmp_path / "allowed", "allowed", per_port=per_port) as url,
        agent(tmp_path / "required", "required") as other,
    ):
        turn = asyncio.Semaphore(3)  # the suite waits most of the time

        async def played(scenario: str) -> SuiteResult:
            async with turn:
                return await asyncio.to_thread(
                    run_suite,
                    conformance,
                    other if scenario == "tasks-required-task-error" else url,
                    spec_version="2026-07-28",
                    output=tmp_path / scenario,
                    preload=HERE / "say_task.mjs",
                    scenario=scenario,
                )

        results = await asyncio.gather(*map(played, scenarios))
    failed = {name: check.message for result in results for name, check in result.failed.items()}
    assert failed.keys() == {name for name in EXPECTED if name.partition(":")[0] in scenarios}, failed
    assert all(result.passed for result in results)


@asynccontextmanager
async def agent(path: Path, tasks: str, *, per_port: bool = False) -> AsyncGenerator[str]:
    """Serve an agent that plays the fixture tools; yields its endpoint."""
    server = MCPServer("work")

    @server.tool()
    async def work(seconds: float) -> str:
        """Work for so long, and until the call is a task."""
        await work_for(AFTER_SECONDS + 0.5 + seconds)
        return "done"

    async with AsyncExitStack() as stack:
        own_port, registry_port = (stack.enter_context(reserved_port()) for _ in range(2))
        tools = await stack.enter_async_context(serve_app(server.streamable_http_app(stateless_http=True)))
        forms = await stack.enter_async_context(forms_downstream())
        llm = await stack.enter_async_context(scripted_llm(play))
        servers = {
            name: {"transport": "http", "url": url}
            for name, url in (("work", f"{tools.base_url}/mcp"), ("forms", forms))
        }
        ports: dict[str, int] = {"port": own_port} if per_port else {}
        project = write_project(
            path,
            {"fixture": Agent([*servers], settings={"tasks": tasks, **ports})},
            llm_url=llm.base_url,
            servers=servers,
            gateway={
                "database": f"sqlite:///{path}/tasks.db",
                "tasks": {"after_seconds": AFTER_SECONDS},
                "tool_names": [*TOOLS, "test_tool_with_task"],
                "drain_seconds": 0.1,
                "host": "127.0.0.1",
            },
            deployment={"registry_port": registry_port} if per_port else {},
        )
        async with running(project, overrides=Overrides(per_port=per_port)) as served:
            yield f"http://127.0.0.1:{own_port}/mcp" if per_port else served.url("fixture")


def play(request: LlmRequest) -> Turn:
    """The model of the fixture agent; what it is told is the tool to play, with its arguments."""
    asked = json.loads(next(text for text in request.user_texts if text.startswith("{")))
    tool, results = asked["tool"], request.tool_results
    rounds = sum(1 for one in request.messages if one.get("tool_calls"))
    work = call_tools([("work__work", {"seconds": float(asked.get("seconds", 0))})])
    forms = call_tools([("forms__ask", {"tool": tool})] * (2 if tool == "multi_input" else 1))
    played: dict[str, list[Turn]] = {
        "slow_compute": [work] if asked.get("seconds") else [],
        "failing_job": [work, fail(500)],
        "protocol_error_job": [work, fail(500)],
        "confirm_delete": [work, forms],
        "multi_input": [work, forms],
        "test_tool_with_task": [forms, work],
    }
    steps = played.get(tool, [])
    if rounds < len(steps):
        return steps[rounds]
    return say(f"Hello, {asked['name']}!" if tool == "greet" else " ".join(results.values()) or "done")
