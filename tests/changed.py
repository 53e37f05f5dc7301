"""`python -m tests.changed quick`: the tests of what has changed; `shaken`: changed tests again and again, under load.

Changed is what differs from the branch `main` (`origin/main` where there is none), or on `main` from its commit before
the last, committed or not; another commit is named with `--base`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.areas import AREAS, area_of
from tests.support.costs import known_costs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
CPU_SECONDS = 200.0
"""Of the tests that `quick` runs: two minutes on two cores, collecting included."""
UNKNOWN_SECONDS = 2.0
"""Assumed of a file that was never measured."""
RUNS = 10
BUSY = "while True: pass"


def base_commit(named: str | None) -> str:
    """Return the commit to compare with; ends the program if there is none."""
    for name in [named] if named else ["main", "origin/main"]:
        if commit := _commit(name):
            is_head = named is None and commit == _commit("HEAD")
            return _commit(f"{name}~1") or commit if is_head else commit
    sys.exit(f"no commit {named or 'main'} to compare with; name one: --base COMMIT")


def changed_files(base: str) -> list[str]:
    """Return the paths of files that differ from `base`, without deleted ones."""
    differing = _git("diff", "--name-only", "--diff-filter=d", base, "--").splitlines()
    return sorted({*differing, *_git("ls-files", "--others", "--exclude-standard").splitlines()})


def files_for(changed: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the files of tests that belong to changed files: those that are theirs, then those of their areas."""
    own, areas = dict[str, None](), dict[str, None]()
    for name in changed:
        path = Path(name)
        match path.parts:
            case ["tests", *_] if path.name.startswith("test_") and path.suffix == ".py":
                own[name] = None
            case ["tests", folder, _, *_] if path.suffix == ".py" and folder not in ("support", "figures"):
                own |= dict.fromkeys(_below(folder))
            case ["pallas_gateway", *folders, file]:
                unit = "/".join(("unit", *folders))
                own |= dict.fromkeys(_below(f"{unit}/test_{Path(file).stem}*.py"))
                areas |= dict.fromkeys(one for glob in area_of(folders) for one in _below(glob))
            case ["docs", *_]:
                areas |= dict.fromkeys(one for glob in AREAS["docs"] for one in _below(glob))
            case _:
                pass
    return [*own], [one for one in areas if one not in own]


def _below(glob: str) -> list[str]:
    found = sorted(TESTS.glob(glob))
    files = [file for one in found for file in ([one] if one.is_file() else sorted(one.rglob("test_*.py")))]
    return [str(file.relative_to(ROOT)) for file in files]


def within(seconds: float, files: Sequence[str], costs: dict[str, float]) -> tuple[list[str], list[str]]:
    """Return the files, in their order, whose CPU time adds up to at most `seconds`, and those that are left out."""
    kept, left_out, sum_ = list[str](), list[str](), 0.0
    for file in files:
        cost = costs.get(file, UNKNOWN_SECONDS)
        if sum_ + cost > seconds:
            left_out.append(file)
        else:
            sum_ += cost
            kept.append(file)
    return kept, left_out


def quick(base: str | None) -> int:
    """Run the tests of what has changed, the cheap ones of the areas first."""
    costs = {name: cost.cpu for name, cost in known_costs("test").items()}
    own, areas = files_for(changed_files(base_commit(base)))
    areas.sort(key=lambda file: costs.get(file, UNKNOWN_SECONDS))
    kept, left_out = within(CPU_SECONDS, [*own, *areas], costs)
    if not kept:
        print(f"No test belongs to what differs from {base_commit(base)[:8]}; --base COMMIT compares with another.")
        return 0
    code = _pytest("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "--tier", "test", *kept)
    if left_out:
        dearest = sorted(left_out, key=lambda file: -costs.get(file, UNKNOWN_SECONDS))
        seconds = sum(costs.get(file, UNKNOWN_SECONDS) for file in left_out)
        print(f"left out: {len(left_out)} files with {seconds:.0f} s of CPU, such as {', '.join(dearest[:5])}")
    print("left out: all other tests; `make test` runs them")
    return code


def shaken(base: str | None) -> int:
    """Run changed files of tests `RUNS` times, each time in another order, while two processes use the cores."""
    changed = map(Path, changed_files(base_commit(base)))
    files = [str(one) for one in changed if one.parts[0] == "tests" and one.match("test_*.py")]
    if not files:
        print("No file of tests has changed.")
        return 0
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(2)]
    try:
        failed = sum(_pytest("-n", "2", "--shuffle", str(seed), *files) != 0 for seed in range(RUNS))
    finally:
        for one in busy:
            one.kill()
            one.wait()
    print(f"shaken: {RUNS} runs of {len(files)} files with two busy processes, {failed} failed")
    return 1 if failed else 0


def _pytest(*arguments: str) -> int:
    command = [sys.executable, "-m", "pytest", "-q", *arguments]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""}, check=False).returncode


def _commit(name: str) -> str:
    command = ["git", "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S607
    return done.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.changed", description=__doc__)
    parser.add_argument("what", choices=["quick", "shaken"])
    parser.add_argument("--base", help="a commit to compare with")
    options = parser.parse_args()
    return {"quick": quick, "shaken": shaken}[options.what](options.base)


if __name__ == "__main__":
    sys.exit(main())
