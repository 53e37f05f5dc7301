"""`python -m benchmarks [PART]`: measure, write the results, the plots and the document."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from benchmarks import console, counts, fast_paths, growth, machine, profiling, providers, report, scenarios, soak
from benchmarks.bench import FULL, SHORT, Plan, bench

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType

_PARTS = {
    "full": scenarios.measure_all,
    "growth": growth.measure_all,
    "providers": providers.measure,
    "console": console.measure,
    "counts": counts.measure,
    "fast-paths": fast_paths.measure,
    "soak": soak.measure,
    "profile": profiling.profile_all,
}
_SCENARIOS_OF: dict[str, Mapping[str, object]] = {
    "full": scenarios.SCENARIOS,
    "growth": growth.CURVES,
    "providers": {"providers": providers.measure},
    "console": console.SCENARIOS,
    "counts": {"counts": counts.measure},
    "fast-paths": {"fast-paths": fast_paths.measure},
}
"""What `--only` can name."""
_ALL = ("full", "growth", "providers", "console", "counts")
"""Without the fast paths, which take minutes each, and the soak and the profiles."""
_SCENARIOS = [name for scenarios_of in _SCENARIOS_OF.values() for name in scenarios_of]
_INTERRUPTED = 128 + signal.SIGINT


def main() -> None:
    """Measure what the command line names; any signal that ends a program ends the servers as well."""
    _take_signals_for_interrupts()
    try:
        _measure(wanted(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; nothing of this part was kept, earlier results stay\n")
        sys.exit(_INTERRUPTED)


def _take_signals_for_interrupts() -> None:
    # Also where a script started this in the background, which ignores interrupts, and so would ignore the others.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    # By asyncio's own handler, which cancels what runs; an exception here could end up in any callback.
    signal.raise_signal(signal.SIGINT)


def wanted(command_line: Sequence[str]) -> argparse.Namespace:
    """What the command line names; ends the program with 2 if it makes no sense."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "part",
        nargs="?",
        default="all",
        choices=["all", *_PARTS],
        help="all: full, and unless short growth, providers, console and counts",
    )
    parser.add_argument("--short", action="store_true", help="minutes instead of an hour; its figures are rough")
    parser.add_argument("--only", action="append", default=[], choices=_SCENARIOS, help="this scenario; repeatable")
    parser.add_argument("--keep", action="store_true", help="keep the servers' folders and logs")
    arguments = parser.parse_args(command_line)
    for name in arguments.only:
        if arguments.part != "all" and name not in _SCENARIOS_OF.get(arguments.part, {}):
            parser.error(_no_part(name, arguments.part))
    return arguments


def _no_part(scenario: str, part: str) -> str:
    choices = ", ".join(_SCENARIOS_OF.get(part, {}))
    return f"--only {scenario} is no part of {part}, " + (f"choose from {choices}" if choices else "which has none")


def _measure(arguments: argparse.Namespace) -> None:
    plan = SHORT if arguments.short else FULL
    results_folder = report.SHORT_RESULTS if arguments.short else report.RESULTS
    folder = Path(tempfile.mkdtemp(prefix="pallas-bench-"))
    try:
        for part, only in measured(arguments).items():
            results = asyncio.run(_run(part, plan, folder, only), loop_factory=uvloop.new_event_loop)
            report.keep(part, results, results_folder)
    finally:
        if arguments.keep:
            sys.stderr.write(f"kept: {folder}\n")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    document = report.publish(results_folder)
    sys.stdout.write(f"{report.table(report.load(results_folder))}\n\nwritten: {document}\n")


def measured(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """The parts to measure, each with the scenarios that were named, none for the whole part."""
    return {part: _only(part, arguments.only) for part in _parts(arguments)}


def _parts(arguments: argparse.Namespace) -> list[str]:
    if arguments.part != "all":
        return [arguments.part]
    if arguments.only:
        return [part for part, scenarios in _SCENARIOS_OF.items() if not scenarios.keys().isdisjoint(arguments.only)]
    return ["full"] if arguments.short else list(_ALL)


def _only(part: str, named: Sequence[str]) -> list[str]:
    scenarios = _SCENARIOS_OF.get(part, {})
    return [] if scenarios.keys() <= set(named) else [name for name in named if name in scenarios]


async def _run(part: str, plan: Plan, folder: Path, only: Sequence[str]) -> dict[str, object]:
    described = machine.describe()
    part_folder = folder / part
    part_folder.mkdir()
    async with bench(plan, part_folder, only) as running:
        await _PARTS[part](running)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        return {"plan": plan.name, "at": at, "only": list(only), "machine": described, **running.results}


if __name__ == "__main__":
    main()
