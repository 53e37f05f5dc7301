"""Lines of workers reach the outputs of their parent whole, in order, and several in one go."""

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pallas_gateway.telemetry.log_outputs import FileOutput
from pallas_gateway.telemetry.log_relay import FILE, STDERR, LogPipe, write_lines
from tests.support.waiting import eventually


@contextmanager
def logging_to(output: FileOutput) -> Iterator[None]:
    root = logging.getLogger()
    root.addHandler(output)
    try:
        yield
    finally:
        root.removeHandler(output)
        output.close()


def sent(*lines: tuple[bytes, str]) -> bytes:
    """What a worker's end writes into its pipe."""
    reading, writing = os.pipe()
    pipe = LogPipe(writing, 1)
    for kind, line in lines:
        pipe.send(kind, line)
    os.close(writing)
    with os.fdopen(reading, "rb") as end:
        return end.read()


async def test_lines_come_whole_and_in_order_however_the_pipe_cuts_them(tmp_path: Path) -> None:
    lines = [f'{{"number": {number}, "text": "{"ü" * number}"}}' for number in range(30)]
    frames = sent(*((FILE, line) for line in lines), (STDERR, "for people"))
    pipe = asyncio.StreamReader()
    with logging_to(FileOutput(tmp_path / "log", max_bytes=10_000, backups=1)):
        writing = asyncio.create_task(write_lines(pipe))
        for begin in range(0, len(frames), 7):
            pipe.feed_data(frames[begin : begin + 7])
            await asyncio.sleep(0)
        pipe.feed_data(frames[:3])  # a killed worker's last
        pipe.feed_eof()
        async with asyncio.timeout(20):
            await writing

    assert (tmp_path / "log").read_text().splitlines() == lines


async def test_each_line_that_could_not_be_written_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "folder").write_text("no folder")
    pipe = asyncio.StreamReader()
    pipe.feed_data(sent((FILE, "one"), (FILE, "two"), (FILE, "three")))
    with logging_to(FileOutput(tmp_path / "folder" / "log", max_bytes=10_000, backups=1)):
        writing = asyncio.create_task(write_lines(pipe))
        async with asyncio.timeout(20):
            said = "log file cannot be written"
            await eventually(lambda: said in caplog.messages, what="a word about the file")
            (tmp_path / "folder").unlink()
            pipe.feed_data(sent((FILE, "four")))
            pipe.feed_eof()
            await writing

    (back,) = [record for record in caplog.records if record.getMessage() == "log file written again"]
    assert vars(back)["lost_records"] == 3
    assert (tmp_path / "folder" / "log").read_text().splitlines()[0] == "four"
