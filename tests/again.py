"""`python -m tests.again`: run the tests that failed last twice more, each alone.

Exit code 0 if each of them passes both times and `tests/flaky.toml` names it, else 1. A test that passes now and is not
named there is flaky: mend it, or name it there with date and cause.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).parents[1]
FLAKY = ROOT / "tests/flaky.toml"
FAILED = ROOT / ".pytest_cache/v/cache/lastfailed"
MOST = 5
LONGEST = timedelta(days=14)
TIMES = 2


@dataclass(frozen=True)
class Flaky:
    """A test that is known to fail now and then, since when, and why."""

    id: str
    since: date
    cause: str


def known(file: Path = FLAKY) -> list[Flaky]:
    """Read the list of flaky tests."""
    return [Flaky(**one) for one in tomllib.loads(file.read_text()).get("test", [])]


def faults_of(flaky: Sequence[Flaky], today: date) -> list[str]:
    """Return what is wrong with the list: too many tests, one for too long, one without a cause."""
    faults = [f"{len(flaky)} flaky tests, of which at most {MOST} are allowed"] if len(flaky) > MOST else []
    faults += [f"{one.id}: flaky since {one.since}" for one in flaky if today - one.since > LONGEST]
    return faults + [f"{one.id}: no cause" for one in flaky if not one.cause.strip()]


def verdict(failed: Sequence[str], passes: Callable[[str], bool], flaky: Sequence[Flaky]) -> list[str]:
    """Return a line for each failed test that makes the run red."""
    if not failed:
        return ["the run failed, but no test did"]
    names = {one.id for one in flaky}
    lines = []
    for test in failed:
        if not all(passes(test) for _ in range(TIMES)):
            lines.append(f"failed again: {test}")
        elif test not in names:
            lines.append(f"flaky: {test} passed {TIMES} times alone; mend it, or name it in tests/flaky.toml")
    return lines


def _passes(test: str) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def main() -> int:
    failed = sorted(json.loads(FAILED.read_text())) if FAILED.exists() else []
    flaky = known()
    lines = [*faults_of(flaky, datetime.now(UTC).date()), *verdict(failed, _passes, flaky)]
    print("\n".join(lines) or f"{len(failed)} known flaky tests passed when they ran again")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
