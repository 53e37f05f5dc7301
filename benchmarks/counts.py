"""Functions of Python and asyncio tasks of a call: counts, which are the same on every machine, beside its CPU.

A change that saves or costs a few percent is lost in the noise of CPU times, and is seen here. They are figures and no
tests: an equally good gateway may enter other functions.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from time import monotonic
from typing import TYPE_CHECKING, Any

from benchmarks import contenders, counted_gateway, load, providers, tables
from benchmarks.project import Agent

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from benchmarks.bench import Bench
    from benchmarks.contenders import Endpoint

PIECES = 200
_BARE, _TOOLED = "bare", "tooled"
_WARM_UP_CALLS = 2
_COUNTED_CALLS = 4
_PIECES_SECONDS = 1.0
_POLL_SECONDS = 0.01
_WRITE_SECONDS = 30.0


async def measure(bench: Bench) -> None:
    """Count for a bare call, for one with a tool call, and for a streamed piece of each provider's answer."""
    agents = {
        _BARE: Agent(contenders.llm_url(bench.llm)),
        _TOOLED: Agent(contenders.llm_url(bench.llm, "tool"), (contenders.downstream(bench.downstreams, "facts"),)),
    }
    for number, name in enumerate(providers.MODELS):
        for pieces in (1, PIECES):
            url = contenders.llm_url(bench.llm, seconds=_PIECES_SECONDS, pieces=pieces)
            agents[f"agent{number}x{pieces}"] = providers.agent(name, url)
    folder = bench.new_folder()
    async with contenders.gateway(folder, agents, program=counted_gateway.__name__) as gateway:
        calls = {name: await of_a_call(folder, gateway[name]) for name in (_BARE, _TOOLED)}
        of_pieces = {
            name: await _of_a_piece(folder, gateway[f"agent{number}x1"], gateway[f"agent{number}x{PIECES}"])
            for number, name in enumerate(providers.MODELS)
        }
    bench.results["counts"] = {"calls": calls, "pieces": of_pieces}
    bench.say(f"counts: {bench.results['counts']}")


def section(results: Mapping[str, Any]) -> str:
    """The document's part on counts; empty if nothing was counted."""
    counted = results.get("counts", {}).get("counts")
    if not counted:
        return ""
    calls = [
        (f"a {name} call", tables.number(one["functions"]), tables.number(one["tasks"]))
        for name, one in counted["calls"].items()
    ]
    pieces = [(f"a streamed piece, {name}", tables.number(one), "") for name, one in counted["pieces"].items()]
    return f"""## Counts

{tables.rows(("", "functions", "tasks"), [*calls, *pieces])}

Functions of Python that the gateway's process enters and asyncio tasks that it begins, libraries included. They do not
depend on the machine."""


async def of_a_call(folder: Path, endpoint: Endpoint) -> dict[str, float]:
    """Functions and tasks of one call, at a gateway that counts them and whose project is in `folder`."""
    await load.answers(endpoint, _WARM_UP_CALLS)
    before = await _counts(folder, endpoint)
    await load.answers(endpoint, _COUNTED_CALLS)
    after = await _counts(folder, endpoint)
    return {name: (after[name] - before[name]) / _COUNTED_CALLS for name in ("functions", "tasks")}


async def _of_a_piece(folder: Path, one: Endpoint, many: Endpoint) -> float:
    """Functions for a piece: those of a long answer without those of a short one that takes as long."""
    functions = [(await of_a_call(folder, endpoint))["functions"] for endpoint in (one, many)]
    return (functions[1] - functions[0]) / (PIECES - 1)


async def _counts(folder: Path, endpoint: Endpoint) -> dict[str, int]:
    """The counts so far.

    Raises:
        TimeoutError: the gateway did not write them.
    """
    file = folder / counted_gateway.FILE
    file.unlink(missing_ok=True)
    os.kill(endpoint.process.pid, signal.SIGUSR1)
    deadline = monotonic() + _WRITE_SECONDS
    while not await asyncio.to_thread(file.exists):
        if monotonic() > deadline:
            raise TimeoutError("the gateway wrote no counts")
        await asyncio.sleep(_POLL_SECONDS)
    return dict(json.loads(file.read_text()))
