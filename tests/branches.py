"""`python -m tests.branches BEFORE.json AFTER.json [COMMIT]`: names the files whose branch coverage fell, if any did.

`make branches` writes such a file, `.venv/branches.json`. COMMIT is that of BEFORE: files that moved since then are
compared with what they were. Exits with 1 if a file fell.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, override

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROUNDING = 0.01


@dataclass(frozen=True)
class Fall:
    """A file that is covered less; figures are percent of its branches, or of its lines where it has no branch."""

    file: str
    before: float
    after: float

    @override
    def __str__(self) -> str:
        """Return the line that is printed."""
        return f"{self.file}: {self.before:.1f} % before, {self.after:.1f} % after"


def falls(before: Mapping[str, Any], after: Mapping[str, Any], moved: Mapping[str, str]) -> list[Fall]:
    """The files of `after` that are covered less than in `before`; `moved` has old paths by new ones."""
    earlier = before["files"]
    found = []
    for file, measured in after["files"].items():
        old = moved.get(file, file)
        if old in earlier:
            fall = Fall(file, _percent(earlier[old]["summary"]), _percent(measured["summary"]))
            if fall.after < fall.before - _ROUNDING:
                found.append(fall)
    return sorted(found, key=lambda fall: fall.after - fall.before)


def _percent(summary: Mapping[str, Any]) -> float:
    kind = "branches" if summary["num_branches"] else "statements"
    return float(summary[f"percent_{kind}_covered"])


def moved_since(commit: str) -> dict[str, str]:
    """Old paths of files by their new ones."""
    command = ("git", "diff", "--name-status", "--diff-filter=R", "-M40%", commit, "--", "pallas_gateway")
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {new: old for _, old, new in (line.split("\t") for line in lines)}


def main(arguments: list[str]) -> int:
    """Compare two files, and print what fell."""
    parser = argparse.ArgumentParser(prog="python -m tests.branches", description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("commit", nargs="?")
    chosen = parser.parse_args(arguments)
    before, after = (json.loads(file.read_text()) for file in (chosen.before, chosen.after))
    found = falls(before, after, moved_since(chosen.commit) if chosen.commit else {})
    print(*found, f"{len(found)} of {len(after['files'])} files fell", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
