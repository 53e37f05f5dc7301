"""A gateway with a call that has made another one, and its lists of calls."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.gateway import Agent
from tests.support.listener import reserved_port
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, hang, say
from tests.support.waiting import Gate
from tests.support.watching import Stage, speaker, stage

PATH = "/api/v1/calls"


@asynccontextmanager
async def busy_stage(path: Path, **gateway: Any) -> AsyncGenerator[tuple[Stage, Gate]]:
    """`root`, which asks its peer `peer` and then says what that has said; `peer` is held at the gate."""
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        if speaker(request) == "peer":
            return hang(gate)
        if request.tool_results:
            return say("told: " + "".join(request.tool_results.values()))
        return call_tools([("peer__send_message", {"message": "and now?"})])

    with reserved_port() as port:
        agents = {"root": Agent(["tools", "peer"]), "peer": Agent(["tools"], settings={"port": port})}
        servers = {"peer": {"url": f"http://localhost:{port}/mcp"}}
        async with stage(path, script, agents, peers=servers, gateway=gateway) as staged:
            yield staged, gate


@asynccontextmanager
async def api_of(staged: Stage, bearer: str | None = None) -> AsyncGenerator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {bearer}"} if bearer else {}
    async with httpx.AsyncClient(base_url=staged.served.base_url, trust_env=False, headers=headers) as http:
        yield http


async def listed(http: httpx.AsyncClient, query: str = "") -> dict[str, dict[str, Any]]:
    """The calls of a list by their agents, of which each has one."""
    response = await http.get(PATH + query)
    assert response.status_code == 200, response.text
    assert response.headers["cache-control"] == "no-store"
    calls = response.json()["calls"]
    by_agent = {one["agent"]: one for one in calls}
    assert len(by_agent) == len(calls)
    return by_agent
