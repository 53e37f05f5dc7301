"""`serve` in a process of its own, as patient as the gateways of `tests.support.gateway`: run by its path, with `-P`.

What gateways wait for comes late on a machine that does other work beside. Their stops wait for late
requests only with `LATE_REQUESTS` in the environment. With a first argument `start_worker` it is the program of a
worker. It imports nothing of the tests, which are not on the path.
"""

from __future__ import annotations

import asyncio
import os
import runpy
import signal
import socket
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PATIENCE_SECONDS = 60.0
FORKER = "TESTS_FORKER"
"""Names the descriptor of the socket to the process that forks, see `tests.support.forked`."""
PARENT = "TESTS_PARENT"
LATE_REQUESTS = "PALLAS_TESTS_LATE_REQUESTS"
IMPATIENT = "PALLAS_TESTS_IMPATIENT"
"""In the environment: with the limits of the package, for a test of such a limit."""
LATE = ("last_answers_seconds", "last_requests_seconds")


def be_patient() -> None:
    if IMPATIENT in os.environ:
        return
    from pallas_gateway import limits  # noqa: PLC0415  a worker ignores signals first

    counting = dict.fromkeys(("postgresql", "sqlite"), PATIENCE_SECONDS)
    for part, defaults in (
        (limits.ConnectionLimits, {} if LATE_REQUESTS in os.environ else dict.fromkeys(LATE, 0.0)),
        (limits.DatabaseLimits, {"count_seconds": counting, "use_seconds": PATIENCE_SECONDS}),
        (limits.HealthLimits, dict.fromkeys(("probe_seconds", "preflight_seconds"), PATIENCE_SECONDS)),
        (limits.ListingLimits, {"ask_seconds": PATIENCE_SECONDS}),
        (
            limits.ProgramLimits,
            dict.fromkeys(("start_seconds", "rehearse_seconds", "list_seconds"), PATIENCE_SECONDS),
        ),
        (limits.RuntimeLimits, {"attach_seconds": PATIENCE_SECONDS}),
    ):
        known = part.__init__.__kwdefaults__
        assert known is not None
        assert defaults.keys() <= known.keys()
        known.update(defaults)


class ForkedWorker:
    """A forked worker, with what `WorkerProcess` uses of `asyncio.subprocess.Process`."""

    def __init__(self, forked: Any, stdin: asyncio.StreamWriter) -> None:
        self.pid: int = forked.pid
        self.stdin = stdin
        self._forked = forked
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(forked, self._end)

    @property
    def returncode(self) -> int | None:
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._forked)
        self._ended.set_result(self._forked.wait())


def fork_workers(fork: Callable[..., Any], command: Sequence[str]) -> None:
    """Have what begins with `command`, which starts a worker, forked instead."""
    start = asyncio.create_subprocess_exec

    async def start_or_fork(*words: str, **options: Any) -> Any:
        if words[: len(command)] != command:
            return await start(*words, **options)
        ours, theirs = socket.socketpair()
        with theirs:
            descriptors = {0: theirs.fileno(), 1: 2, 2: 2, **{one: one for one in options["pass_fds"]}}
            environ = {**options["env"], PARENT: str(os.getpid())}
            forked = fork(words[1:], Path.cwd(), environ, descriptors)
        return ForkedWorker(forked, (await asyncio.open_connection(sock=ours))[1])

    asyncio.create_subprocess_exec = start_or_fork  # type: ignore[assignment]  # what is used of it


def start_worker() -> None:
    if (parent := os.environ.pop(PARENT, None)) is not None:
        Path("/proc/self/comm").write_text(f"worker {parent}")
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    be_patient()
    import pallas_gateway  # noqa: PLC0415  as above
    from pallas_gateway.process.workers import forwarding  # noqa: PLC0415  as above

    if IMPATIENT not in os.environ:
        forwarding.ASK_SECONDS = PATIENCE_SECONDS
    runpy.run_path(str(Path(pallas_gateway.__file__).parent / "cli" / "start_worker.py"), run_name="__main__")


def main() -> None:
    be_patient()
    from pallas_gateway.cli import app, workers  # noqa: PLC0415  as above

    command = (sys.executable, "-P", __file__, "start_worker")
    workers.COMMAND = command  # type: ignore[assignment]  # one word more
    if descriptor := os.environ.pop(FORKER, None):
        os.set_inheritable(int(descriptor), False)
        forked = runpy.run_path(str(Path(__file__).with_name("forked.py")))["Forked"]
        fork_workers(partial(forked, requests=socket.socket(fileno=int(descriptor))), command)
    app.main()


if __name__ == "__main__":
    if sys.argv[1] == "start_worker":
        start_worker()
    else:
        main()
