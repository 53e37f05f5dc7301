"""`python -m benchmarks [full|short|soak|profile|growth]`: measure, write the results, the plots and the document."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import uvloop

from benchmarks import growth, machine, profiling, report, scenarios, soak
from benchmarks.bench import FULL, SHORT, Plan, bench

_PARTS = {
    "full": scenarios.measure_all,
    "growth": growth.measure_all,
    "soak": soak.measure,
    "profile": profiling.profile_all,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("part", nargs="?", default="all", choices=["all", *_PARTS], help="what to run")
    parser.add_argument("--short", action="store_true", help="under three minutes; its figures are rough")
    parser.add_argument("--keep", action="store_true", help="keep the servers' folders and logs")
    arguments = parser.parse_args()
    plan = SHORT if arguments.short else FULL
    results_folder = report.SHORT_RESULTS if arguments.short else report.RESULTS
    default = ["full"] if arguments.short else ["full", "growth"]
    parts = default if arguments.part == "all" else [arguments.part]
    folder = Path(tempfile.mkdtemp(prefix="pallas-bench-"))
    try:
        for part in parts:
            results = asyncio.run(_run(part, plan, folder), loop_factory=uvloop.new_event_loop)
            report.keep(part, results, results_folder)
    finally:
        if arguments.keep:
            sys.stderr.write(f"kept: {folder}\n")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    document = report.publish(results_folder)
    sys.stdout.write(f"{report.table(report.load(results_folder))}\n\nwritten: {document}\n")


async def _run(part: str, plan: Plan, folder: Path) -> dict[str, object]:
    described = machine.describe()
    part_folder = folder / part
    part_folder.mkdir()
    async with bench(plan, part_folder) as running:
        await _PARTS[part](running)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        return {"plan": plan.name, "at": at, "machine": described, **running.results}


if __name__ == "__main__":
    main()
