"""The tested versions of libraries are those of the lock."""

from pathlib import Path

from pallas_gateway.changes.versions import TESTED

LOCK = Path(__file__).parents[3] / "requirements.lock"


def test_the_tested_versions_are_those_of_the_lock() -> None:
    locked = dict(line.split()[0].split("==") for line in LOCK.read_text().splitlines() if "==" in line.split(" ")[0])
    assert {library: locked[library] for library in TESTED} == TESTED
