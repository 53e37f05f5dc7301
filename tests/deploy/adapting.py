"""The files of deploy/ as they are shipped, and with the few places changed that a test cannot leave as they are."""

import subprocess
from pathlib import Path

from tests.support_programs import program

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def promtool_accepts(*arguments: object) -> None:
    command = [program("promtool"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


def shipped(name: str) -> str:
    return (DEPLOY / name).read_text()


def adapted(name: str, places: dict[str, str]) -> str:
    """That text with each of `places` (what stands there: what a test needs instead) replaced.

    Raises:
        LookupError: one of them does not stand there, so the test would try something else than it says.
    """
    text = shipped(name)
    for old, new in places.items():
        if old not in text:
            raise LookupError(f"deploy/{name} does not have {old!r}")
        text = text.replace(old, new)
    return text
