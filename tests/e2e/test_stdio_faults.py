"""Stdio servers whose programs misbehave, and processes when calls are cancelled, and the gateway reloads or ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.e2e.stdio_world import world
from tests.support.gateway import until_idle
from tests.support.stdio_processes import is_running
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.gateway import Limits


@pytest.fixture(autouse=True)
def limited(limits: Limits) -> None:
    limits.gateway.health.fresh_seconds = 0
    limits.runtime.programs.leave_seconds = 0.2


async def test_a_program_that_prints_a_line_without_end_is_ended(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        printed, again = (await it.ask("line where")).split(" | ")
        assert "losed" in printed
        assert again.isdigit()
        assert await it.problem() is None


async def test_a_child_process_of_a_program_ends_with_it(tmp_path: Path) -> None:
    async with world(tmp_path, warm=0) as it:
        child = int(await it.ask("child"))
        assert child in it.processes.started
        await eventually(lambda: not is_running(child), what="the end of the child process")


async def test_calls_that_are_cancelled_leave_no_more_processes_than_are_kept_ready(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await it.ask()
        await it.processes.until_latest_waits(1)
        (slow := it.processes.folder / "slow").touch()
        asking = [asyncio.create_task(it.ask("where")) for _ in range(8)]
        await eventually(lambda: len(it.processes.started) >= 8, what="their processes")
        for one in asking:
            one.cancel()
        await asyncio.wait(asking)
        await until_idle(it.served)
        await it.processes.until_alive(1)
        slow.unlink()
        assert (await it.ask("where")).isdigit()
        assert await it.problem() is None
