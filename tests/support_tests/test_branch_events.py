"""What is measured through branch events is what coverage's trace function measures, for every kind of branch."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

PLUGIN = "tests.support.branch_events"

PROGRAM = """
import asyncio
import contextlib


def branches(number, other=None):
    if number:
        found = 1
    elif other:
        found = 2
    else:
        found = 3
    for item in range(number):
        if item == 5:
            break
    else:
        found = 4
    while found < 6:
        found += 1
        if found == 100: return found
    try:
        if number == 1:
            raise ValueError
        int("no number")
    except KeyError:
        found = 5
    except ValueError:
        found = 6
    finally:
        found += 1
    one_line = [item for item in range(1 if number else 2) if item > number]
    with contextlib.suppress(KeyError):
        if number and other:
            raise KeyError
    match number:
        case 0:
            found = 0
        case 1 | 2:
            found = 1
        case _ if one_line:
            found = 2
    if (
        number
        and other
    ):
        found = 3
    if other is None:
        return found
    if not number or other == 3:
        return None


async def numbers(end):
    for number in range(end):
        await asyncio.sleep(0)
        if number > 10:
            return
        yield number


async def left_by_a_break(end):
    async for number in numbers(end):
        if number == 2:
            break
    else:
        return 5
    async for number in numbers(end):
        end += 1
    async with contextlib.AsyncExitStack():
        if end:
            return 4


async def last_in_its_function(end):
    async for number in numbers(end):
        end += 1


async def never_entered(end):
    async for number in numbers(0):
        end += 1


async def never_ended():
    async for number in numbers(2):
        raise ValueError


async def continued(end):
    try:
        async for number in numbers(end):
            if end == 3:
                continue
            end += 0
    finally:
        end = 1
    while True:
        end += 1
        if end > 3:
            break
    return [number async for number in numbers(end)]


async def many_at_once():
    loops = left_by_a_break(1), left_by_a_break(5), continued(3), continued(0), last_in_its_function(2)
    await asyncio.gather(*loops, last_in_its_function(0), never_entered(0), never_ended(), return_exceptions=True)


branches(0), branches(1), branches(3), branches(2, 3)
asyncio.run(many_at_once())
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def measured(folder: Path, *settings: str) -> dict[str, Any]:
    """What coverage says of the program in `folder`."""
    (folder / "rc").write_text("\n".join(("[run]", "branch = True", *settings)))
    for arguments in (("run", "--rcfile=rc", "program.py"), ("json", "--rcfile=rc", "-q")):
        subprocess.run([sys.executable, "-m", "coverage", *arguments], cwd=folder, check=True, timeout=60)
    said: dict[str, Any] = json.loads((folder / "coverage.json").read_text())
    return said


@pytest.mark.skipif(sys.version_info[:2] != (3, 13), reason="no other Python needs it")
def test_branch_events_tell_the_same_as_a_trace_function(program: Path) -> None:
    traced, told = measured(program, "core = ctrace"), measured(program, f"plugins = {PLUGIN}")

    assert told["files"] == traced["files"]
    assert traced["totals"]["missing_branches"] > 5
    assert traced["totals"]["covered_branches"] > 20
