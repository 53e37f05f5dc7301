"""`python -m benchmarks [full|short|soak|profile|growth]`: measure, write the results, the plots and the document."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from benchmarks import growth, machine, profiling, report, scenarios, soak
from benchmarks.bench import FULL, SHORT, Plan, bench

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PARTS = {
    "full": scenarios.measure_all,
    "growth": growth.measure_all,
    "soak": soak.measure,
    "profile": profiling.profile_all,
}
_SCENARIOS_OF: dict[str, Mapping[str, object]] = {"full": scenarios.SCENARIOS, "growth": growth.CURVES}
_SCENARIOS = [name for scenarios_of in _SCENARIOS_OF.values() for name in scenarios_of]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("part", nargs="?", default="all", choices=["all", *_PARTS], help="what to run")
    parser.add_argument("--short", action="store_true", help="under three minutes; its figures are rough")
    parser.add_argument("--only", action="append", default=[], choices=_SCENARIOS, help="this scenario; repeatable")
    parser.add_argument("--keep", action="store_true", help="keep the servers' folders and logs")
    arguments = parser.parse_args()
    plan = SHORT if arguments.short else FULL
    results_folder = report.SHORT_RESULTS if arguments.short else report.RESULTS
    parts = _parts(arguments.part, arguments.only, short=arguments.short)
    folder = Path(tempfile.mkdtemp(prefix="pallas-bench-"))
    try:
        for part in parts:
            only = [name for name in arguments.only if name in _SCENARIOS_OF.get(part, {})]
            results = asyncio.run(_run(part, plan, folder, only), loop_factory=uvloop.new_event_loop)
            report.keep(part, results, results_folder)
    finally:
        if arguments.keep:
            sys.stderr.write(f"kept: {folder}\n")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    document = report.publish(results_folder)
    sys.stdout.write(f"{report.table(report.load(results_folder))}\n\nwritten: {document}\n")


def _parts(wanted: str, only: Sequence[str], *, short: bool) -> list[str]:
    if wanted != "all":
        return [wanted]
    if only:
        return [part for part, scenarios in _SCENARIOS_OF.items() if not scenarios.keys().isdisjoint(only)]
    return ["full"] if short else ["full", "growth"]


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
