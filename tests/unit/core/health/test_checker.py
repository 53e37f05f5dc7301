"""Asking whether an agent is well: one round of probes for all who ask, and gauges that say what it found."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry

from pallas_gateway.core.health.checker import HealthChecker, HealthRounds
from pallas_gateway.core.health.verdict import Life, LlmResult, Verdict
from pallas_gateway.limits import HealthLimits
from pallas_gateway.runtime.protocols import Downstream, StdioProgram
from pallas_gateway.tasks import TaskOwner
from pallas_gateway.telemetry.metrics import Metrics
from tests.support.asgi import Receive, Scope, Send, http_only, read_body, respond_json
from tests.support.listener import reserved_port, serve_app
from tests.support.odd_server import HANDSHAKE
from tests.support.waiting import Changes, Gate, cancelled, tick

SINCE = datetime(2026, 11, 3, 12, 0, 5, tzinfo=UTC)
READY = Life("ready", SINCE)
FAILED = Life("failed", SINCE, "no key")
LLM_DOWN = LlmResult("openai", "gpt-x", "failed", "HTTP 503", SINCE)
ANSWERS = f"""
import json, sys
HANDSHAKE = {HANDSHAKE!r}
request = json.loads(sys.stdin.readline())
print(json.dumps({{"jsonrpc": "2.0", "id": request["id"], "result": HANDSHAKE}}), flush=True)
"""


async def known(llm: LlmResult | None) -> LlmResult | None:
    return llm


@dataclass(frozen=True)
class Checking:
    """A checker, one held downstream, the gate its probes wait at, and what is wrong with which peer."""

    checker: HealthChecker
    tools: Downstream
    gate: Gate
    metrics: Metrics
    tasks: TaskOwner
    peer_problems: dict[str, str]
    limits: HealthLimits

    async def check(self, *downstreams: Downstream) -> str:
        return (await self.judged(*downstreams)).status

    async def judged(self, *downstreams: Downstream, life: Life = READY, llm: LlmResult | None = None) -> Verdict:
        return await self.checker.check(downstreams or (self.tools,), life, known(llm))

    def metric(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"pallas_{name}", {"agent": "echo", **labels})


@asynccontextmanager
async def checking_tools(**limits: float) -> AsyncGenerator[Checking]:
    gate, metrics = Gate(), Metrics(CollectorRegistry())

    @http_only
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = json.loads(await read_body(receive))
        await gate.enter()
        await respond_json(send, 200, {"jsonrpc": "2.0", "id": request["id"], "result": HANDSHAKE})

    async with (
        serve_app(app) as listener,
        httpx.AsyncClient(timeout=None) as client,  # noqa: S113  each probe has its own deadline
        TaskOwner() as tasks,
    ):
        given, peers = HealthLimits(**limits), dict[str, str]()
        checker = HealthChecker(
            "echo",
            client=client,
            tasks=tasks,
            metrics=metrics,
            peer_problem=peers.get,
            limits=given,
        )
        yield Checking(checker, Downstream("tools", f"{listener.base_url}/mcp"), gate, metrics, tasks, peers, given)


async def test_those_who_ask_at_once_share_one_round() -> None:
    async with checking_tools() as one:
        asking = [asyncio.create_task(one.check()) for _ in range(20)]
        await one.gate.wait_for_entered()
        await tick()
        one.gate.open()
        assert await asyncio.gather(*asking) == ["ok"] * 20
        assert await one.check() == "ok"  # and so does whoever asks soon after
        assert len(one.gate.entered) == 1


async def test_a_later_asker_gets_a_new_round() -> None:
    async with checking_tools(fresh_seconds=0.0) as one:
        one.gate.open()
        await one.check()
        await one.check()
        assert len(one.gate.entered) == 2


async def test_an_asker_who_goes_away_does_not_end_the_round_of_the_others() -> None:
    async with checking_tools() as one:
        leaving, staying = asyncio.create_task(one.check()), asyncio.create_task(one.check())
        await one.gate.wait_for_entered()
        await cancelled(leaving)
        one.gate.open()
        assert await staying == "ok"
        assert len(one.gate.entered) == 1


def program(name: str, source: str = ANSWERS) -> Downstream:
    return Downstream(name, None, program=StdioProgram(sys.executable, ("-I", "-S", "-c", source)), transport="stdio")


async def test_a_status_began_when_it_changed_and_not_when_it_was_last_looked_at() -> None:
    async with checking_tools(fresh_seconds=0.0) as one:
        peer = replace(one.tools, peer="tech_research")
        first, second = [(await one.judged(peer)).probes[0] for _ in range(2)]
        one.peer_problems["tech_research"] = "no key"
        third, fourth = [(await one.judged(peer)).probes[0] for _ in range(2)]
    assert first.since == second.since
    assert third.since == fourth.since
    assert first.since is not None
    assert third.since is not None
    assert first.since < third.since
    assert (first.error, third.error) == (None, "no key")


async def test_a_failed_provider_makes_the_agent_degraded_beside_its_downstreams() -> None:
    async with checking_tools() as one:
        one.gate.open()
        with reserved_port() as port:
            gone = Downstream("gone", f"http://127.0.0.1:{port}/mcp")
            verdict = await one.judged(one.tools, gone, llm=LLM_DOWN)
        assert verdict.message == "Unreachable: gone; LLM: openai: HTTP 503"
        assert one.metric("agent_health_status") == 0.5


async def test_the_gauge_follows_the_agents_state_without_anybody_asking() -> None:
    async with checking_tools() as one:
        one.checker.note(FAILED, None)
        assert one.metric("agent_health_status") == 0
        one.checker.note(READY, None)
        assert one.metric("agent_health_status") == 1
        one.checker.note(READY, LLM_DOWN)
        assert one.metric("agent_health_status") == 0.5
        assert one.gate.entered == []


async def test_a_mended_agent_is_as_well_as_its_downstreams_were_when_last_asked() -> None:
    async with checking_tools() as one:
        one.peer_problems["tech_research"] = "no key"
        await one.judged(replace(one.tools, peer="tech_research"))
        one.checker.note(FAILED, None)
        one.checker.note(READY, None)
        assert one.metric("agent_health_status") == 0.5


async def test_a_peer_is_judged_by_its_state_and_not_probed() -> None:
    async with checking_tools(fresh_seconds=0.0) as one:
        peer = replace(one.tools, name="search", peer="tech_research")
        assert await one.check(peer) == "ok"
        assert one.metric("downstream_up", server="search") == 1

        one.peer_problems["tech_research"] = "no key"
        verdict = await one.judged(peer)

        assert (verdict.status, verdict.message) == ("degraded", "Unreachable: search")
        assert one.metric("downstream_up", server="search") == 0
        assert one.gate.entered == []


async def test_an_agent_that_is_not_ready_is_not_probed() -> None:
    async with checking_tools() as one:
        for downstreams in ((one.tools,), None):
            verdict = await one.checker.check(downstreams, FAILED, known(None))
            assert (verdict.status, verdict.message) == ("error", "no key")
        assert one.metric("agent_health_status") == 0
        assert one.gate.entered == []


async def test_closing_while_a_round_is_under_way_does_not_wait_for_it() -> None:
    async with checking_tools() as one:
        asking = asyncio.create_task(one.check())
        await one.gate.wait_for_entered()
        await one.tasks.cancel_all()
        await asyncio.wait({asking}, timeout=20)
        assert asking.cancelled()
        one.gate.open()
        assert await one.check() == "ok"  # a cancelled round is nobody's answer


async def test_a_program_that_answered_is_not_started_again_for_each_round_and_one_that_did_not_is(
    tmp_path: Path,
) -> None:
    starts = tmp_path / "starts"
    noting = f"open({str(starts)!r}, 'a').write('.')\n"
    async with checking_tools(fresh_seconds=0.0) as one:
        for _ in range(3):
            assert await one.check(program("local", noting + ANSWERS)) == "ok"
        assert starts.read_text() == "."
        one.limits.program_fresh_seconds = 0.0
        for _ in range(2):
            assert await one.check(program("local", noting + "raise SystemExit(3)")) == "degraded"
        one.limits.program_fresh_seconds = 60.0
        assert await one.check(program("local", noting + ANSWERS)) == "ok"
        assert starts.read_text() == "." * 4


async def test_a_round_of_its_own_sets_the_gauges() -> None:
    async with checking_tools() as one:
        one.gate.open()
        with reserved_port() as port:
            gone = Downstream("gone", f"http://127.0.0.1:{port}/mcp")
            await one.checker.refresh((one.tools, gone), READY, None)
        assert (one.metric("downstream_up", server="tools"), one.metric("downstream_up", server="gone")) == (1, 0)
        assert one.metric("agent_health_status") == 0.5


async def test_a_round_of_its_own_starts_no_program_and_asks_servers_of_callers_tokens_rarely(tmp_path: Path) -> None:
    async with checking_tools(callers_seconds=600.0) as one:
        one.gate.open()
        marker = tmp_path / "started"
        program = Downstream("program", None, program=StdioProgram("touch", (str(marker),)))
        forwarding = replace(one.tools, forwards_bearer=True)
        for _ in range(3):
            await one.checker.refresh((program, forwarding), READY, None)
        assert not marker.exists()
        assert one.metric("downstream_up", server="program") is None
        assert len(one.gate.entered) == 1


async def test_a_call_that_finds_a_server_gone_or_back_sets_the_gauges() -> None:
    async with checking_tools() as one:
        one.gate.open()
        await one.check()
        seen = []
        for error in ("connection refused", None):
            one.checker.report("tools", error, refused=False)
            one.checker.note(READY, None)
            seen.append((one.metric("downstream_up", server="tools"), one.metric("agent_health_status")))
        assert seen == [(0, 0.5), (1, 1)]


async def test_a_server_that_refuses_every_caller_is_reported_until_it_accepts_one() -> None:
    async with checking_tools(fresh_seconds=0.0) as one:
        one.gate.open()
        verdicts = []
        for error in ("HTTP 403 Forbidden",) * 3 + (None,):
            one.checker.report("tools", error, refused=error is not None)
            verdicts.append(await one.judged())
        refusing = verdicts[2]
        assert [verdict.status for verdict in verdicts] == ["ok", "ok", "degraded", "ok"]
        assert refusing.message == "Refuses callers: tools (the last 3 calls: HTTP 403 Forbidden)"
        [document] = refusing.document(SINCE)["downstream"]
        assert (document["status"], document["error"]) == ("refuses", "the last 3 calls: HTTP 403 Forbidden")
        assert one.metric("downstream_up", server="tools") == 1


async def test_a_refusal_of_callers_is_forgotten_after_a_time() -> None:
    async with checking_tools(refused_seconds=-1.0) as one:
        one.gate.open()
        for _ in range(3):
            one.checker.report("tools", "HTTP 401 Unauthorized", refused=True)
        assert await one.check() == "ok"


async def test_the_first_result_of_a_provider_is_awaited_while_downstreams_are_probed() -> None:
    async with checking_tools() as one:
        asked = asyncio.Event()

        async def asking() -> None:
            await one.gate.wait_for_entered()
            asked.set()

        checking = asyncio.create_task(one.checker.check((one.tools,), READY, asking()))
        await asyncio.wait_for(asked.wait(), 20)
        one.gate.open()
        assert (await checking).status == "ok"


class Checks:
    """The agents that were checked; `seconds` as configured."""

    def __init__(self, seconds: float, *agents: str) -> None:
        self.seconds = seconds
        self.agents = agents
        self.checked: list[str] = []
        self.failing = ""
        self._changes = Changes()
        self.rounds = HealthRounds(self._check, lambda: self.agents, lambda: self.seconds)

    async def _check(self, agent: str) -> None:
        self.checked.append(agent)
        self._changes.announce()
        if agent == self.failing:
            raise ValueError(agent)

    async def until(self, count: int) -> None:
        await self._changes.until(lambda: len(self.checked) >= count, 20, what="checks")


@asynccontextmanager
async def checking(seconds: float, *agents: str) -> AsyncIterator[Checks]:
    checks = Checks(seconds, *agents)
    running = asyncio.create_task(checks.rounds.run())
    yield checks
    running.cancel()


async def test_an_agent_that_has_started_is_checked_without_a_round() -> None:
    async with checking(3600, "a", "b") as checks:
        checks.rounds.soon("b")
        checks.rounds.soon("gone")
        await checks.until(1)
        await tick()
    assert checks.checked == ["b"]


async def test_nothing_is_checked_until_a_reload_sets_an_interval() -> None:
    async with checking(0, "a") as checks:
        checks.rounds.soon("a")
        await tick()
        assert checks.checked == []
        checks.seconds = 0.001
        checks.rounds.wake()
        await checks.until(2)


async def test_all_agents_are_checked_again_and_again_also_if_a_check_fails(caplog: pytest.LogCaptureFixture) -> None:
    async with checking(0.001, "a", "b") as checks:
        checks.failing = "a"
        await checks.until(4)
    assert checks.checked[:4] == ["a", "b"] * 2
    assert {record.getMessage() for record in caplog.records} == {"health round failed"}
