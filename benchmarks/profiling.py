"""Where a call's time goes: flame graphs by py-spy, and the functions that take most, by themselves and in all.

Samples only what runs: waiting is not in it. py-spy must be allowed to look at the gateway (root, or a kernel that
lets a parent's other children be traced: `kernel.yama.ptrace_scope=0`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from benchmarks import contenders, load
from benchmarks.growth import history
from benchmarks.load import Load
from benchmarks.processes import REPOSITORY
from benchmarks.project import Agent
from benchmarks.report import RESULTS, SHORT_RESULTS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from benchmarks.bench import Bench
    from benchmarks.contenders import Endpoint

PY_SPY = REPOSITORY / "benchmarks/.venv/bin/py-spy"
SECONDS = 20
SECONDS_SHORT = 8
SAMPLES_PER_SECOND = 250
HISTORY = 100
TOP = 40
_WAITING = "_worker (concurrent/futures/thread.py"
"""A thread without work: py-spy takes it to be running."""
_RUNNER = "Runner.run (asyncio/runners.py"
_LOOPS = ("Handle._run (asyncio/events.py", _RUNNER)
"""What calls everything: asyncio's own loop, and what stands below uvloop, whose own frames are C and not seen."""
_C_LOOP = "the event loop (uvloop)"


async def profile_all(bench: Bench) -> None:
    """A bare agent, one with a tool call, one without an LLM, and the bare one with a long history."""
    agents = {
        "bare": Agent(contenders.llm_url(bench.llm)),
        "tooled": Agent(contenders.llm_url(bench.llm, "tool"), (contenders.downstream(bench.downstreams, "facts"),)),
        "parrot": Agent(),
    }
    async with contenders.gateway(bench.new_folder(), agents) as gateway:
        profiled = {**gateway, "history": gateway["bare"].saying(history=history(HISTORY))}
        bench.results["profile"] = {name: await _profile(bench, name, one) for name, one in profiled.items()}
    _keep_pictures(bench)


async def _profile(bench: Bench, name: str, endpoint: Endpoint) -> dict[str, Any]:
    """Two recordings under load, as py-spy writes one format at a time: a picture, and stacks to count."""
    seconds = SECONDS_SHORT if bench.plan.name == "short" else SECONDS
    stacks = bench.folder / f"{name}.stacks"
    recordings = ((bench.folder / f"flame-{name}.svg", "flamegraph"), (stacks, "raw"))
    sampled = []
    for target, form in recordings:
        how = Load(16, seconds + 2, 1)
        sample, _ = await asyncio.gather(load.measure(endpoint, how), _record(endpoint, target, form, seconds))
        sampled.append(sample)
    top = top_functions(stacks.read_text().splitlines())
    bench.say(f"profile: {name}: {sampled[-1].cpu_ms:.1f} ms of CPU per call")
    return {"cpu_ms": sampled[-1].cpu_ms, "calls_per_second": sampled[-1].calls_per_second, **top}


async def _record(endpoint: Endpoint, target: Path, form: str, seconds: int) -> None:
    await asyncio.sleep(1)
    options = ("--format", form, "--duration", str(seconds), "--rate", str(SAMPLES_PER_SECOND))
    command = ("record", "--pid", str(endpoint.process.pid), "--output", target.name, *options)
    recording = await asyncio.create_subprocess_exec(
        "py-spy",
        *command,
        executable=PY_SPY,
        cwd=target.parent,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, errors = await recording.communicate()
    finally:
        if recording.returncode is None:
            recording.kill()
            await recording.wait()
    if recording.returncode:
        raise RuntimeError(f"py-spy: {errors.decode(errors='replace')}")


def _keep_pictures(bench: Bench) -> None:
    """Only now: py-spy writes what it has when it is interrupted, over the picture of a whole run."""
    results = SHORT_RESULTS if bench.plan.name == "short" else RESULTS
    results.mkdir(parents=True, exist_ok=True)
    for picture in bench.folder.glob("flame-*.svg"):
        (results / picture.name).write_text(anywhere(picture.read_text()))


def anywhere(picture: str) -> str:
    """The picture without where on this machine it was made: its title is py-spy's whole command."""
    return picture.replace(str(PY_SPY), PY_SPY.name)


def top_functions(stacks: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """What has most samples, in shares of all: packages and functions by themselves, functions with all they call.

    `stacks`: py-spy's raw format, `frame;frame;… samples`, a frame `function (file:line)`. What stands below the event
    loop is left out, as it is below everything.
    """
    packages: Counter[str] = Counter()
    alone: Counter[str] = Counter()
    in_all: Counter[str] = Counter()
    for stack in stacks:
        frames_text, _, count_text = stack.rpartition(" ")
        frames = [_frame(frame) for frame in frames_text.split(";")]
        if frames[-1].startswith(_WAITING):
            continue
        samples = int(count_text)
        itself = _C_LOOP if frames[-1].startswith(_RUNNER) else frames[-1]
        packages[_package(itself)] += samples
        alone[itself] += samples
        in_all.update(dict.fromkeys(_above_the_loop(frames), samples))
    total = alone.total()
    return {
        name: _shares(counts, total) for name, counts in (("packages", packages), ("alone", alone), ("in_all", in_all))
    }


def _frame(text: str) -> str:
    """A function and its file, without the line within it."""
    function, _, place = text.rpartition(" (")
    return f"{function} ({place.rpartition(':')[0] or place.rstrip(')')})"


def _package(frame: str) -> str:
    return frame.rpartition(" (")[2].rstrip(")").partition("/")[0].removesuffix(".py")


def _above_the_loop(frames: list[str]) -> list[str]:
    positions = [i for i, frame in enumerate(frames) if frame.startswith(_LOOPS)]
    return frames[positions[-1] + 1 :] if positions else frames


def _shares(counts: Counter[str], total: int) -> list[dict[str, Any]]:
    return [{"where": where, "share": samples / total} for where, samples in counts.most_common(TOP)]
