"""Changes of agents whose process is killed at any of their statements: each is made as a whole, or not at all."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def whole(line: dict[str, Any]) -> dict[str, Any]:
    """Return what is stored after a change that was made."""
    name, before = line["name"], line["before"]
    after: dict[str, Any] = {**before, "number": before["number"] + 1}
    two = before[name]
    match line["change"]:
        case "create":
            after[f"{name}-new"] = {"version": 1, "title": None, "versions": [1]}
        case "change":
            after[name] = {"version": 3, "title": "Three", "versions": [1, 2, 3]}
        case "restore":
            after[name] = {"version": 3, "title": None, "versions": [1, 2, 3]}
        case "delete":
            del after[name]
    assert two == {"version": 2, "title": "Two", "versions": [1, 2]}
    return after


@pytest.mark.whole("threads/test_definitions.py::test_of_two_changes_at_once_that_would_form_a_circle_one_is_refused")
async def test_a_change_that_is_killed_is_made_as_a_whole_or_not_at_all(database_url: str) -> None:
    command = [sys.executable, "-m", "tests.support.killed_changes", database_url]
    program = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    output, _ = await asyncio.wait_for(program.communicate(), 300)
    assert program.returncode == 0
    lines = [json.loads(line) for line in output.splitlines()]
    for change in ("create", "change", "restore", "delete"):
        mine = [line for line in lines if line["change"] == change]
        made = [line["after"] == whole(line) for line in mine]
        assert all(done or line["after"] == line["before"] for done, line in zip(made, mine, strict=True))
        # Killed before the end of its transaction it leaves nothing; after that, and undisturbed, all of it.
        assert made == [False] * (len(mine) - 2) + [True, True]
        assert [line["killed"] for line in mine] == [True] * (len(mine) - 1) + [False]
        assert len(mine) > 5
