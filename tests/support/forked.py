"""Programs that are forked from a process with the package imported, instead of started: a quarter of the CPU.

Not for programs whose start is the subject, nor with variables that are read while Python or the package is loaded.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

IS_POSSIBLE = sys.platform == "linux"
REAL = tuple(f"tests/{one}/" for one in os.environ.get("PALLAS_REAL_PROGRAMS", "").split(",") if one)
"""Folders whose tests start each program as a user does."""
READ_AT_THE_START = {
    "ANTHROPIC_LOG",
    "OPENAI_LOG",
    "PALLAS_CHANGES",
    "PALLAS_FAST_PATHS",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONHASHSEED",
}
FORKER = "TESTS_FORKER"
"""Names the descriptor of the socket to the process that forks."""
_HIGHEST = 899
_ENVIRON = dict(os.environ)
"""Without what a test has set."""
_forkers: list[int] = []


def start(
    arguments: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    streams: tuple[int, int, int],
    *,
    is_real: bool = False,
    start_new_session: bool = False,
    forks: bool = False,
) -> subprocess.Popen[bytes] | Forked:
    """Fork a program if that is possible and not `is_real`; else start it. It has `streams` as its own.

    If it `forks`, it is given the socket to the process that forks, for programs of its own.
    """
    if IS_POSSIBLE and not is_real and not os.environ.get("PYTEST_CURRENT_TEST", "").startswith(REAL):
        changed = {name for name in READ_AT_THE_START if env.get(name) != _ENVIRON.get(name)}
        assert not changed, f"start it for real: {changed}"
        descriptors = dict(enumerate(streams))
        if forks:
            descriptors[_HIGHEST] = _forker().fileno()
            env = {**env, FORKER: str(_HIGHEST)}
        return Forked(arguments, cwd, env, descriptors, start_new_session=start_new_session)
    stdin, stdout, stderr = streams
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=cwd,
        env=env,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=start_new_session,
    )


class Forked:
    """A forked program, with what `Program` uses of `subprocess.Popen`."""

    def __init__(
        self,
        arguments: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        descriptors: Mapping[int, int],
        *,
        start_new_session: bool = False,
        requests: socket.socket | None = None,
    ) -> None:
        """Fork it with open `descriptors`, each a number of the program for one of this process.

        `requests` is the socket of a process that was given it, to fork programs of its own.
        """
        self._answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.returncode: int | None = None
        request = {
            "arguments": [*arguments],
            "directory": str(cwd),
            "environ": {**env},
            "descriptors": [*descriptors],
            "session": start_new_session,
        }
        with theirs:
            socket.send_fds(
                requests or _forker(), [json.dumps(request).encode()], [theirs.fileno(), *descriptors.values()]
            )
        told = self._answers.recv(100)
        assert told, "the process that forks has ended; its reason is on stderr"
        self.pid = int(told)

    def fileno(self) -> int:
        """Return the descriptor that can be read when it has ended."""
        return self._answers.fileno()

    def poll(self) -> int | None:
        return self._code(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and return the exit code: of a signal, its negative number."""
        code = self._code(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("a forked program", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _code(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._answers], [], [], timeout)[0]:
            told = self._answers.recv(100)
            assert told, "the process that forks has ended; its reason is on stderr"
            self.returncode = int(told)
            self._answers.close()
        return self.returncode


@cache
def _forker() -> socket.socket:
    requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("forker.py")), str(theirs.fileno())],
            env=_ENVIRON,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    _forkers.append(process.pid)
    atexit.register(requests.close)
    atexit.register(process.communicate)  # the first to be called
    return requests


def cpu_seconds() -> float:
    """Return the CPU time so far of the process that forks, and of its programs that have ended."""
    times = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15] for pid in _forkers]
    return sum(int(ticks) for of_one in times for ticks in of_one) / os.sysconf("SC_CLK_TCK")
