"""Noticing that a file is another one: edits, replacements and links, and nothing else; also where no watch is had."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import watchfiles

from pallas_gateway.file_stamps import Files, stamp
from pallas_gateway.process.file_watch import FileWatch
from tests.support.waiting import cancelled, eventually


@dataclass
class Watching:
    """A watch of some files, and how often it said that something changed."""

    files: dict[Path, Any] = field(default_factory=dict)
    suspects: bool = False
    changes: int = 0

    def add(self, path: Path) -> None:
        self.files[path] = stamp(path)

    async def until(self, changes: int) -> None:
        await eventually(lambda: self.changes >= changes, what=f"change {changes}")
        assert self.changes == changes


QUICK: dict[str, Any] = {"look_seconds": 0.02, "settle_milliseconds": 10}


@asynccontextmanager
async def watching(*paths: Path, suspects: bool = False, **options: Any) -> AsyncIterator[tuple[Watching, FileWatch]]:
    one = Watching(suspects=suspects)
    for path in paths:
        one.add(path)

    def files() -> Files:
        return one.files

    watch = FileWatch(files, suspects_modules=lambda: one.suspects, **options)

    async def count() -> None:
        async for _ in watch.changes():
            one.changes += 1

    counting = asyncio.create_task(count())
    try:
        yield one, watch
    finally:
        await cancelled(counting)


def edit(path: Path) -> None:
    path.write_text(path.read_text() + "# another line")


def make_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace(path: Path) -> None:
    beside = path.with_suffix(".new")
    beside.write_text("another file")
    beside.replace(path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "edited": edit,
    "replaced, as editors do": replace,
    "removed": lambda path: path.unlink(),
    "dated back": lambda path: os.utime(path, (1, 1)),
    "made a folder": make_a_folder,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_a_change_is_said_once(change: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "agents.yaml"
    path.write_text("one")
    async with watching(path, **QUICK) as (one, _):
        change(path)
        await one.until(1)


async def test_a_file_that_comes_to_be_is_a_change(tmp_path: Path) -> None:
    async with watching(tmp_path / "fastagent.secrets.yaml", **QUICK) as (one, _):
        (tmp_path / "fastagent.secrets.yaml").write_text("key: 1")
        await one.until(1)


async def test_a_config_map_that_is_swapped_is_a_change(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}" / "agents.yaml").write_text(f"name: {number}")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "agents.yaml").symlink_to("..data/agents.yaml")
    async with watching(tmp_path / "agents.yaml", **QUICK) as (one, _):
        (tmp_path / "..data_tmp").symlink_to("..2")
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")
        await one.until(1)


@pytest.mark.parametrize(
    ("suspects", "names"), [(False, ["pallas.log", "memory.sqlite", "notes.md", "other.py"]), (True, ["pallas.log"])]
)
async def test_what_is_written_beside_the_files_is_none(suspects: bool, names: list[str], tmp_path: Path) -> None:
    path = tmp_path / "agents.yaml"
    path.write_text("one")
    async with watching(path, suspects=suspects, **QUICK) as (one, _):
        for name in names:
            (tmp_path / name).write_text("beside")
        edit(path)
        await one.until(1)


async def test_a_module_beside_them_counts_while_one_is_suspected(tmp_path: Path) -> None:
    path = tmp_path / "agent.py"
    path.write_text("one")
    async with watching(path, suspects=True, **QUICK) as (one, _):

        def is_noticed() -> bool:
            (tmp_path / "helper.py").write_text("what agent.py lacked")  # again, the watch may only now have begun
            return one.changes > 0

        await eventually(is_noticed, what="the helper")


async def test_a_folder_may_go_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "agents" / "agent.py"
    path.parent.mkdir()
    path.write_text("one")
    (tmp_path / "agents.yaml").write_text("one")
    async with watching(path, tmp_path / "agents.yaml", **QUICK) as (one, _):
        path.unlink()
        path.parent.rmdir()
        await one.until(1)
        path.parent.mkdir()
        path.write_text("one")
        await one.until(2)
        edit(path)
        await one.until(3)


async def test_what_was_edited_after_it_was_read_and_before_anybody_looked_is_a_change(tmp_path: Path) -> None:
    config, module = tmp_path / "agents.yaml", tmp_path / "agent.py"
    for path in (config, module):
        path.write_text("one")
    async with watching(config, **QUICK) as (one, watch):
        one.add(module)
        edit(module)  # the agent came up by what stood there before
        watch.look_again()
        await one.until(1)


async def test_a_watch_that_cannot_be_had_is_said_once_and_files_are_looked_at(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pallas.reload")
    path = tmp_path / "agents.yaml"
    path.write_text("one")
    has_watches = False

    def awatch(*folders: Path, **options: Any) -> Any:
        if not has_watches:
            raise OSError("OS file watch limit reached.")
        return watchfiles.awatch(*folders, **options)

    async with watching(path, watch=awatch, **QUICK) as (one, _):
        for count in (1, 2):
            edit(path)
            await one.until(count)
        has_watches = True
        await eventually(lambda: "file watch restored" in caplog.messages, what="the watch")
    said = [vars(record).get("error") for record in caplog.records if record.levelno == logging.WARNING]
    assert said == ["OS file watch limit reached."]
