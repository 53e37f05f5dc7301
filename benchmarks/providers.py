"""What the providers of models cost, each in its own wire format, beside the generic one in the same rounds."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from benchmarks import contenders, load, tables
from benchmarks.figures import Bounds, Verdict, figure, ratio
from benchmarks.load import Load
from benchmarks.project import Agent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.bench import Bench
    from benchmarks.contenders import Endpoint
    from benchmarks.load import Sample

GENERIC = "generic"
MODELS = {
    GENERIC: "generic.scripted",
    "openai known model": "openai.gpt-4.1",
    "responses": "responses.gpt-4.1",
    "anthropic": "anthropic.claude-haiku-4-5",
    "gemini": "google.gemini-2.5-flash",
}
"""By name in the results. fast-agent's catalogue holds all but the first."""
PLAIN = "plain call"
PIECES = 800
STREAMED = f"{PIECES} streamed pieces"
OPENED = "new connections per call"
_BOUNDS = {
    PLAIN: Bounds(1.6, 1.6, at_least=False),
    STREAMED: Bounds(2, 2, at_least=False),
    OPENED: Bounds(0, 0, at_least=False),
}
CLIENTS = 16
STREAM_SECONDS = 2.0
STREAM_CLIENTS = 4
"""So few that the slowest provider takes no whole core: pieces that wait for it would be read several at once."""
_OVERLAPPING = "answers at once"
_OVERLAP_SECONDS = 0.2
_OVERLAPPING_CLIENTS = 8
_WARM_UP_CALLS = 2
_COUNTED_CALLS = 5
_WITHOUT_VERSION = ("anthropic", "gemini")
"""Whose libraries add the version to the base URL by themselves."""


async def measure(bench: Bench) -> None:
    """Measure all providers in one gateway: connections opened, then CPU of plain calls, then of long streams."""
    kinds = {
        PLAIN: contenders.llm_url(bench.llm),
        STREAMED: contenders.llm_url(bench.llm, seconds=STREAM_SECONDS, pieces=PIECES),
        _OVERLAPPING: contenders.llm_url(bench.llm, seconds=_OVERLAP_SECONDS, pieces=8),
    }
    names = {(kind, name): f"agent{i}" for i, (kind, name) in enumerate((k, n) for k in kinds for n in MODELS)}
    agents = {address: agent(name, kinds[kind]) for (kind, name), address in names.items()}
    async with contenders.gateway(bench.new_folder(), agents) as gateway:
        by_kind = {kind: {name: gateway[names[kind, name]] for name in MODELS} for kind in kinds}
        await _connections(bench, by_kind[_OVERLAPPING])
        _check_cpu(bench, PLAIN, await bench.rounds(PLAIN, by_kind[PLAIN], bench.load(CLIENTS)))
        _check_cpu(bench, STREAMED, await bench.rounds(STREAMED, by_kind[STREAMED], _streaming(bench)))


def section(results: Mapping[str, Any]) -> str:
    """The document's part on providers; empty if they were not measured."""
    part = results.get("providers")
    if part is None:
        return ""
    checks = {check["id"]: check for check in part["checks"]}
    cells = [
        (
            name,
            f"`{model}`",
            *(cell for what in (PLAIN, STREAMED) for cell in _cpu_cells(part["scenarios"][what], checks, name, what)),
            _cell(checks, name, OPENED),
        )
        for name, model in MODELS.items()
    ]
    ratios = [(f"{what}: CPU ms", f"/ {GENERIC}, must {_must(what)}") for what in (PLAIN, STREAMED)]
    header = ("provider", "model", *ratios[0], *ratios[1], f"{OPENED}, must {_must(OPENED)}")
    return f"""## Providers

{tables.rows(header, cells)}

Agents without tools, each on a scripted LLM in its provider's wire format; the rest of this page is measured with
`{GENERIC}`. CPU is of the gateway, per call: with {CLIENTS} clients and an answer at once, in eight pieces,
and with {STREAM_CLIENTS} clients and {PIECES} pieces, one by one over {STREAM_SECONDS:g} s. Connections are those of
{_OVERLAPPING_CLIENTS} clients after {_WARM_UP_CALLS} calls each."""


def _cpu_cells(scenario: Mapping[str, Any], checks: Mapping[str, Any], name: str, what: str) -> tuple[str, str]:
    return tables.spread(scenario[name], "cpu_ms"), "1" if name == GENERIC else _cell(checks, name, what)


def _cell(checks: Mapping[str, Any], name: str, what: str) -> str:
    check = checks[_check_id(name, what)]
    missed = check["verdict"] == Verdict.MISSED
    return f"{tables.measured(check)}{f', {tables.verdict(check)}' if missed else ''}"


def _must(what: str) -> str:
    return tables.bounds(asdict(_BOUNDS[what]))[0]


def _check_id(name: str, what: str) -> str:
    return f"providers/{name}/{what}"


def agent(name: str, llm_url: str) -> Agent:
    """An agent whose model is that of the provider `name`."""
    return Agent(llm_url.removesuffix("/v1") if name in _WITHOUT_VERSION else llm_url, model=MODELS[name])


def _streaming(bench: Bench) -> Load:
    return Load(STREAM_CLIENTS, max(bench.plan.seconds, STREAM_SECONDS), STREAM_SECONDS)


async def _connections(bench: Bench, endpoints: Mapping[str, Endpoint]) -> None:
    """Calls that overlap need a connection each; those that follow find them open."""
    for name, endpoint in endpoints.items():
        await _at_once(endpoint, _WARM_UP_CALLS)
        before = await bench.llm_connections()
        await _at_once(endpoint, _COUNTED_CALLS)
        opened = await bench.llm_connections() - before
        measured = figure([opened / (_OVERLAPPING_CLIENTS * _COUNTED_CALLS)])
        bench.check(_check_id(name, OPENED), f"{name}: {OPENED}", measured, _BOUNDS[OPENED], "connections")


async def _at_once(endpoint: Endpoint, calls: int) -> None:
    await asyncio.gather(*(load.answers(endpoint, calls) for _ in range(_OVERLAPPING_CLIENTS)))


def _check_cpu(bench: Bench, what: str, samples: Mapping[str, Sequence[Sample]]) -> None:
    cpu = {name: [sample.cpu_ms for sample in taken] for name, taken in samples.items()}
    for name in [one for one in cpu if one != GENERIC]:
        title = f"{name}: {what}, CPU / {GENERIC}"
        bench.check(_check_id(name, what), title, ratio(cpu[name], cpu[GENERIC]), _BOUNDS[what])
