"""What a call may cost, in counts that no clock and no busy machine can change.

Each number is what was counted when it was last lowered. To raise one takes a reason in the commit.
"""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from fast_agent.core.agent_instance_factory import CallableAgentInstanceFactory

from tests.support.clients import MODERN_VERSION, RawReply, raw_client
from tests.support.downstreams import stateless_downstream
from tests.support.gateway import Agent, Running, running, until_idle, write_project
from tests.support.one_user import use_if_told
from tests.support.provider_gateways import Provider, serving
from tests.support.provider_matrix import over_providers
from tests.support.scripted_llm import say, scripted_llm
from tests.support.watching import stage

INITIALIZE_VERSION = "2025-06-18"
WARM_UP_CALLS = 2
CALLS = 5
SESSION = {"requests: initialize": 1, "requests: notifications/initialized": 1}
"""What a call asks of a downstream of the older era before it can use it; of one of the newer, nothing."""
PROGRESS = {"progressToken": 1}
LOGS = {"io.modelcontextprotocol/logLevel": "info"}
TOLD: tuple[tuple[str, dict[str, Any], dict[str, int]], ...] = (
    (INITIALIZE_VERSION, {}, {"notifications": 3, "bytes": 1460}),
    (INITIALIZE_VERSION, PROGRESS, {"notifications": 8, "bytes": 2160}),
    (MODERN_VERSION, {}, {"notifications": 0, "bytes": 520}),
    (MODERN_VERSION, {**PROGRESS, **LOGS}, {"notifications": 8, "bytes": 2280}),
)
"""What a client is sent for a call with one use of a tool, by what it asks for. Durations are of varying length."""
EVERY_CALL = {"instances": 1}
UNUSED = {**EVERY_CALL, "LLM requests": 1, "trust stores read": 0}
USED = {**EVERY_CALL, "requests: tools/call": 1, "LLM requests": 2, "trust stores read": 0}
MODULES_FOR_HELP = 472
MODULES_FOR_SERVE = 1656
"""Some more than today: versions of Python differ in how many modules they have, and each package adds one."""
NOT_FOR_HELP = ("fast_agent", "mcp", "fastmcp", "openai", "hypercorn", "starlette")
NOT_FOR_SERVE = (
    *("openai", "anthropic", "aiohttp", "joserfc", "opentelemetry.sdk", "numpy", "PIL"),
    *("sqlalchemy", "alembic", "asyncpg", "aiosqlite"),
)


@pytest.mark.parametrize(
    ("message", "era", "budget"),
    [
        pytest.param("use it", "both", USED, id="used"),
        pytest.param("leave it", "both", UNUSED, id="not used"),
        pytest.param("use it", "initialize", {**USED, **SESSION}, id="older era"),
        pytest.param("leave it", "initialize", UNUSED, id="older era, not used"),
    ],
)
async def test_call_asks_no_more_of_others_than_its_budget(
    message: str, era: Any, budget: Mapping[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: Counter[str] = Counter()
    async with stateless_downstream(era=era) as tools, scripted_llm(use_if_told) as llm:
        servers = {"tools": {"transport": "http", "url": tools.url}}
        project = write_project(tmp_path, {"solo": Agent(["tools"])}, llm_url=llm.base_url, servers=servers)
        async with running(project) as served:
            await call(served, message, times=WARM_UP_CALLS)
            tools.recorder.clear()
            llm.requests.clear()
            count_instances(counted, monkeypatch)
            count_trust_stores(counted, monkeypatch)
            await call(served, message, times=CALLS)
            await tools.recorder.wait_until_idle()
        counted["LLM requests"] = len(llm.requests)
        counted.update(f"requests: {request.rpc_method or request.method}" for request in tools.recorder.requests)

    assert over(counted, budget) == {}


@over_providers("connections")
@pytest.mark.usefixtures("lasting_sockets")
async def test_call_over_any_provider_costs_no_more_than_its_budget(
    provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: Counter[str] = Counter()
    async with serving(tmp_path, provider, lambda _: say("Done.")) as served:
        await call(served.gateway, "leave it", times=WARM_UP_CALLS)
        open_before = set(served.llm.sockets)
        served.llm.requests.clear()
        count_instances(counted, monkeypatch)
        count_trust_stores(counted, monkeypatch)
        await call(served.gateway, "leave it", times=CALLS)
        counted["LLM requests"] = len(served.llm.requests)
        counted["connections opened"] = len(set(served.llm.sockets) - open_before)

    assert over(counted, UNUSED) == {}


async def test_client_is_told_no_more_than_the_budget(tmp_path: Path) -> None:
    async with stage(tmp_path, use_if_told) as staged:
        replies = [
            await call(staged.served, "use it", version=version, meta=meta, times=CALLS) for version, meta, _ in TOLD
        ]

    assert [over(told_by(got), budget) for got, (_, _, budget) in zip(replies, TOLD, strict=True)] == [{}] * len(TOLD)


@pytest.mark.parametrize(
    ("imports", "most", "without"),
    [
        pytest.param("pallas_gateway.cli.commands", MODULES_FOR_HELP, NOT_FOR_HELP, id="help"),
        pytest.param(
            "pallas_gateway.process.server, pallas_gateway.runtime.runtime",
            MODULES_FOR_SERVE,
            NOT_FOR_SERVE,
            id="serve",
        ),
    ],
)
def test_start_imports_no_more_than_the_budget(imports: str, most: int, without: tuple[str, ...]) -> None:
    program = f"import sys, {imports}; print('\\n'.join(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    modules = shown.stdout.split()

    assert [name for name in without if name in modules] == []
    assert len(modules) <= most


async def call(
    served: Running,
    message: str,
    *,
    times: int,
    version: str = MODERN_VERSION,
    meta: Mapping[str, Any] | None = None,
) -> list[RawReply]:
    """So many calls, one after the other, and all that follows them."""
    async with raw_client(served.url("solo"), protocol_version=version) as client:
        replies = [await client.call_tool("solo", {"message": message}, meta=meta) for _ in range(times)]
    assert not any(reply.result.get("isError") for reply in replies)
    await until_idle(served)
    return replies


def told_by(replies: Sequence[RawReply]) -> Counter[str]:
    sizes = [len(json.dumps(message)) for reply in replies for message in reply.messages]
    return Counter(notifications=sum(len(reply.notifications) for reply in replies), bytes=sum(sizes))


def over(counted: Counter[str], budget: Mapping[str, int]) -> dict[str, str]:
    return {
        what: f"{count / CALLS:g}, not {budget.get(what, 0)}"
        for what, count in counted.items()
        if count > CALLS * budget.get(what, 0)
    }


def count_instances(counted: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    counted["instances"] = -1  # one may be made ahead, for a call that does not come
    create = CallableAgentInstanceFactory.create_instance

    async def create_instance(self: CallableAgentInstanceFactory) -> Any:
        counted["instances"] += 1
        return await create(self)

    monkeypatch.setattr(CallableAgentInstanceFactory, "create_instance", create_instance)


def count_trust_stores(counted: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs 20 to 40 ms of a blocked event loop where the store is not empty as it is here."""
    load, load_default = ssl.SSLContext.load_verify_locations, ssl.SSLContext.set_default_verify_paths

    def load_verify_locations(self: ssl.SSLContext, *arguments: Any, **named: Any) -> None:
        counted["trust stores read"] += 1
        load(self, *arguments, **named)

    def set_default_verify_paths(self: ssl.SSLContext) -> None:
        counted["trust stores read"] += 1
        load_default(self)

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", load_verify_locations)
    monkeypatch.setattr(ssl.SSLContext, "set_default_verify_paths", set_default_verify_paths)
