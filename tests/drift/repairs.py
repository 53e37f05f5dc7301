"""Runs the test of each repair with that repair switched off, and names the repairs that are no longer needed.

`python -m tests.drift.repairs [NAME ...]` does so in any environment; `make drift` with the newest versions. A test
that passes without its repair means that the library is mended, or that the test shows nothing.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pallas_gateway import repairs
from pallas_gateway.changes.registry import CHANGES, Registry
from tests.unit.changes.upstream_page import mirrored

ROOT = Path(__file__).parents[2]
PASSED, FAILED = 0, 1
"""What pytest exits with."""
AT_ONCE = 2
HANGS_SECONDS = 400.0  # more than the time limit of a test

type Run = Callable[[str, Mapping[str, str]], int]
"""Runs a file of tests with these variables of the environment; returns what pytest exits with."""


@dataclass(frozen=True)
class Repair:
    """One repair: its name, its file and the file of its test."""

    name: str
    file: str
    test: str


def all_repairs() -> list[Repair]:
    found = []
    for name, one in sorted(Registry([repairs]).changes.items()):
        path = one.module.__name__.split(".")
        found.append(Repair(name, f"{'/'.join(path)}.py", mirrored(path[1:])))
    return found


def lines(wanted: list[Repair], run: Run) -> list[str]:
    """A line for each repair whose test passes without it, or cannot be run."""

    def line(one: Repair) -> str | None:
        code = run(one.test, {CHANGES: f"-{one.name}"})
        if code == PASSED:
            return f"no longer needed: {one.name}: {one.test} passes without it; delete both it and {one.file}"
        return None if code == FAILED else f"not tested: {one.name}: pytest exits with {code} for {one.test}"

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [one for one in pool.map(line, wanted) if one is not None]


def run_tests(test: str, variables: Mapping[str, str]) -> int:
    plain = ("-q", "--tb=no", "--no-header", "-p", "no:cacheprovider", "-n", "0")
    command = [sys.executable, "-m", "pytest", *plain, test]
    try:
        return subprocess.run(
            command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, check=False, timeout=HANGS_SECONDS
        ).returncode
    except subprocess.TimeoutExpired:  # without some repairs the process stands still, and no time limit in it ends it
        return FAILED


def main(names: list[str]) -> int:
    wanted = [one for one in all_repairs() if not names or one.name in names]
    found = lines(wanted, run_tests)
    print("\n".join(found or [f"all {len(wanted)} repairs are needed"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
