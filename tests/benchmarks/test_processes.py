"""Servers are watched while their child processes come and go."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import processes
from benchmarks.processes import Process


@pytest.fixture
def ended() -> Iterator[int]:
    """A process that has ended and still has its number."""
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        yield child.pid


def test_a_child_that_has_ended_since_it_was_found_counts_nothing(ended: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    monkeypatch.setattr(processes, "tree", lambda root: [root, gone.pid, ended])
    own = Process(os.getpid(), 0, Path(os.devnull), 0.0)

    assert own.cpu_seconds > 0
    assert own.memory_kb > 0
    assert own.descriptors > 0


def test_a_server_that_has_ended_is_an_error(ended: int) -> None:
    with pytest.raises(OSError, match=rf"{ended}|No such process"):
        _ = Process(ended, 0, Path(os.devnull), 0.0).memory_kb
