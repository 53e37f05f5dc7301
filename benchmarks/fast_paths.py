"""What each fast path of the gateway saves: CPU per call without it and with it, in the same rounds.

The gateway itself names its fast paths, in the metric `pallas_fast_path`; `PALLAS_FAST_PATHS` switches them off. Where
the benchmark has it, only those that it names are measured, switched off together.
"""

from __future__ import annotations

import os
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import httpx

from benchmarks import contenders, load, tables
from benchmarks.figures import Bounds, Figure, ratio
from benchmarks.growth import history
from benchmarks.load import Load
from benchmarks.processes import HOST
from benchmarks.project import Agent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.bench import Bench
    from benchmarks.contenders import Endpoint

SWITCH = "PALLAS_FAST_PATHS"
ALL = "off"
"""The value of the switch for all fast paths, measured after each alone."""
CONTROL = "none"
"""Two gateways with all fast paths, measured first: what their ratio is off by, the other ratios may be."""
HISTORY = 100
PIECES = 300
CASES = ("bare", "tooled", f"history {HISTORY}", f"{PIECES} streamed pieces")
WORTH_KEEPING = Bounds(1.03, 1.03, at_least=True)
_CLIENTS = 16
_STREAM_SECONDS = 1.0
_STREAM_CLIENTS = 4
_LINE = re.compile(r'^pallas_fast_path\{(?:[^}]*,)?name="([^"]+)"[^}]*\} (\S+)$', re.MULTILINE)


async def measure(bench: Bench) -> None:
    """Measure a gateway without one fast path beside a gateway with all, for each fast path.

    Raises:
        RuntimeError: the gateway has no fast paths, or does not switch off the one it should.
    """
    agents = _agents(bench)
    bench.results["fast_paths"] = {}
    async with contenders.gateway(bench.new_folder(), agents) as gateway:
        all_on = _cases(gateway)
        names = [name for name, is_on in (await _fast_paths(gateway["bare"])).items() if is_on]
        if not names:
            raise RuntimeError("no fast path to measure: the gateway's metrics have no pallas_fast_path that is 1")
        together = [joint] if (joint := os.environ.get(SWITCH)) else []
        for name in (CONTROL, *(together or (*names, ALL))):
            environment = {} if name == CONTROL else {SWITCH: name}
            async with contenders.gateway(bench.new_folder(), agents, environment=environment) as without:
                switched = await _fast_paths(without["bare"])
                require_off(name, {one: switched.get(one, False) for one in names})
                savings = await _savings(bench, _cases(without), all_on)
            bench.results["fast_paths"][name] = {case: asdict(saved) for case, saved in savings.items()}
            if name in names:
                _check(bench, name, savings)


def section(results: Mapping[str, Any]) -> str:
    """The document's part on fast paths; empty if none was measured."""
    measured = results.get("fast-paths", {}).get("fast_paths")
    if not measured:
        return ""
    cells = [(f"`{name}`", *(_shown(savings[case]) for case in CASES)) for name, savings in measured.items()]
    return f"""## Fast paths

CPU per call without a fast path / with it, the others on; `{ALL}` is without any. `{CONTROL}` compares two gateways
with all fast paths: the other ratios are uncertain by as much. `{SWITCH}` switches fast paths off.

{tables.rows(("fast path", *CASES), cells)}"""


def states(metrics: str) -> dict[str, bool]:
    """The fast paths in the text of `/metrics`, and which of them are on."""
    return {name: float(value) == 1 for name, value in _LINE.findall(metrics)}


def require_off(name: str, switched: Mapping[str, bool]) -> None:
    """Check that the switch did its work.

    Raises:
        RuntimeError: a fast path that should be off is on, or one that should be on is off; names them.
    """
    off = set(name.split(","))
    wrong = [one for one, is_on in switched.items() if is_on == bool(off & {one, ALL})]
    if wrong:
        raise RuntimeError(f"{SWITCH}={name}: not switched as it says: {', '.join(wrong)}")


async def _fast_paths(endpoint: Endpoint) -> dict[str, bool]:
    async with httpx.AsyncClient(trust_env=False, verify=False) as http:  # noqa: S501  plain HTTP on loopback
        response = await http.get(f"http://{HOST}:{endpoint.process.port}/metrics")
        return states(response.raise_for_status().text)


def _agents(bench: Bench) -> dict[str, Agent]:
    facts = contenders.downstream(bench.downstreams, "facts")
    return {
        "bare": Agent(contenders.llm_url(bench.llm)),
        "tooled": Agent(contenders.llm_url(bench.llm, "tool"), (facts,)),
        "streamed": Agent(contenders.llm_url(bench.llm, seconds=_STREAM_SECONDS, pieces=PIECES)),
    }


def _cases(gateway: Mapping[str, Endpoint]) -> dict[str, Endpoint]:
    bare = gateway["bare"]
    endpoints = (bare, gateway["tooled"], bare.saying(history=history(HISTORY)), gateway["streamed"])
    return dict(zip(CASES, endpoints, strict=True))


async def _savings(bench: Bench, without: Mapping[str, Endpoint], with_it: Mapping[str, Endpoint]) -> dict[str, Figure]:
    """By case, CPU without by CPU with. Both of a case follow each other, in turns: a few percent are looked for."""
    cpu: dict[str, tuple[list[float], list[float]]] = {case: ([], []) for case in CASES}
    for number in range(bench.plan.rounds):
        for case, (off, on) in cpu.items():
            pairs = [(off, without[case]), (on, with_it[case])]
            for taken, endpoint in pairs if number % 2 == 0 else reversed(pairs):
                taken.append((await load.measure(endpoint, _load(bench, case))).cpu_ms)
    return {case: ratio(off, on) for case, (off, on) in cpu.items()}


def _load(bench: Bench, case: str) -> Load:
    if case == CASES[-1]:
        return Load(_STREAM_CLIENTS, max(bench.plan.seconds, _STREAM_SECONDS), _STREAM_SECONDS)
    return bench.load(_CLIENTS)


def _check(bench: Bench, name: str, savings: Mapping[str, Figure]) -> None:
    """A fast path that saves too little in every case is not worth its code."""
    case, most = max(savings.items(), key=lambda one: one[1].median)
    bench.check(f"fast-paths/{name}", f"CPU without {name} / with it, {case}", most, WORTH_KEEPING)


def _shown(saved: Mapping[str, float]) -> str:
    return tables.measured({"measured": saved, "unit": "x"})
