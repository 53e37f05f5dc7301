"""A turn in a thread with 200 stored tool results, and in the same thread without them: CPU of the gateway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from benchmarks import contenders
from benchmarks.figures import Bounds, figure, ratio
from benchmarks.processes import HOST
from benchmarks.project import Agent
from pallas_gateway.calls.call import Message, Step, StepLog
from pallas_gateway.core.long_calls.service import LongCalls
from pallas_gateway.features.threads.records import ExchangeOutcome, NewThread
from pallas_gateway.features.threads.service import Threads
from pallas_gateway.identity.secret import Secret
from pallas_gateway.limits import TaskLimits, ThreadLimits
from pallas_gateway.shared.database.connections import LeaseTerms
from pallas_gateway.shared.database.service import GatewayDatabase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.bench import Bench
    from benchmarks.contenders import Endpoint

RESULTS = 200
LARGE_WINDOW = 1_000_000
"""Tokens: all results are sent to the model."""
TURNS_IN_A_ROUND = 20
_ENTRY = "What was said before, in about as many words as people use when they ask a question or answer one. " * 3


async def measure(bench: Bench) -> None:
    """Results of 1 KB, which are all sent to the model, and of 16 KB, of which the latest are that fit its window."""
    title = f"turn in a thread with {RESULTS} stored tool results of 1 KB, all read, CPU over the same without"
    await _measure(bench, "threads/results", title, 1024, {"model_capabilities": {"context_window": LARGE_WINDOW}})
    title = (
        f"turn in a thread with {RESULTS} stored tool results of 16 KB, those read that fit, CPU over the same without"
    )
    await _measure(bench, "threads/large", title, 16 * 1024, {})


async def _measure(bench: Bench, identity: str, title: str, size: int, of_agent: Mapping[str, Any]) -> None:
    """Measure turns of both threads in turn; each round adds as many to the one as to the other."""
    folder = bench.new_folder()
    servers = (contenders.downstream(bench.downstreams, "facts"),)
    agents = {"bare": Agent(contenders.llm_url(bench.llm), servers, of_agent)}
    settings = {"database": "sqlite:///threads.db"}
    async with contenders.gateway(folder, agents, settings=settings) as gateway:
        threads = {name: await _thread(folder, size if name == "with" else 0) for name in ("without", "with")}
        cpu_ms: dict[str, list[float]] = {name: [] for name in threads}
        for round_ in range(bench.plan.rounds + 1):
            for name, thread_id in threads.items():
                used = await _cpu_ms(gateway["bare"], thread_id)
                if round_:  # the first warms up
                    cpu_ms[name].append(used)
    for name, taken in cpu_ms.items():
        bench.say(f"{identity}: {name} results: CPU {figure(taken).median:.1f} ms")
    bench.check(identity, title, ratio(cpu_ms["with"], cpu_ms["without"]), Bounds(1.3, 1.2, at_least=False))


async def _cpu_ms(endpoint: Endpoint, thread_id: str) -> float:
    """CPU of a turn."""
    url = f"http://{HOST}:{endpoint.process.port}/api/v1/agents/bare/chat"
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        before = endpoint.process.cpu_seconds
        for _ in range(TURNS_IN_A_ROUND):
            said = await http.post(url, json={"message": contenders.MESSAGE, "threadId": thread_id})
            if endpoint.expected not in said.text:
                raise ValueError(said.text[:2000])
        return (endpoint.process.cpu_seconds - before) / TURNS_IN_A_ROUND * 1000


async def _thread(folder: Path, size: int) -> str:
    """Write a thread as the gateway would after so many turns, with a result of this size each, or without."""
    thread, answer = NewThread("anonymous", "bare"), Message("assistant", _ENTRY)
    url = Secret(f"sqlite:///{folder}/threads.db")
    async with GatewayDatabase(url, folder) as database:
        long_calls = LongCalls(database, "benchmark", TaskLimits())
        threads = Threads(database, LeaseTerms(60, "benchmark"), ThreadLimits(), long_calls)
        database.add(threads)
        turns = threads.turns
        for number in range(RESULTS):
            asked = Message("user", _ENTRY)
            opened = (
                turns.turn(thread.id, asked, "0" * 16, wait_seconds=60)
                if number
                else turns.first_turn(thread, asked, "0" * 16)
            )
            async with opened as turn:
                turn.keep()
                if size:
                    turn.step_log = StepLog(size, steps=[_step(number, size)])
                await turn.end(ExchangeOutcome(answer, "endTurn"))
    return thread.id


def _step(number: int, size: int) -> Step:
    id_ = f"call_{number}"
    call: dict[str, Any] = {
        "method": "tools/call",
        "params": {"name": "facts__look_up", "arguments": {"topic": "bees"}},
    }
    text = ("Bees are winged insects closely related to wasps and ants. " * 400)[:size]
    result = {"content": [{"type": "text", "text": text}], "isError": False}
    stored = {
        "assistant": {"role": "assistant", "content": [], "tool_calls": {id_: call}, "stop_reason": "toolUse"},
        "results": {"role": "user", "content": [], "tool_results": {id_: result}},
        "tools": {id_: "facts/look_up"},
    }
    return Step("generic", "scripted", json.dumps(stored))
