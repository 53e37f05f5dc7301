"""The commands as their users run them: in a process of their own, or (cheaper) in this one."""

import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

from pallas_gateway.cli.app import main
from tests.support import forked
from tests.support.waiting import WAIT_SECONDS

GATEWAY = ("-m", "pallas_gateway")
PATIENT_GATEWAY = ("-P", str(Path(__file__).with_name("patient_gateway.py")))
PALLAS = ("-c", "from pallas_gateway.cli.app import pallas_main; pallas_main()")
PALLAS_MODULE = ("-m", "pallas.server")
READY_SECONDS = 100
"""A machine busy with other suites takes a minute to import everything. Less than a test may take in all."""


@dataclass(frozen=True)
class Ran:
    """How a command ended. `code` is its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Command:
    """Runs `pallas-gateway` in this process, in the working directory."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Ran:
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        printed = self._capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return Ran(code, printed.out, printed.err)


class Program:
    """A command in a process of its own."""

    def __init__(self, process: "subprocess.Popen[bytes] | forked.Forked", out: IO[str], err: IO[str]) -> None:
        self._process = process
        self._changed = threading.Condition()
        self._printed: dict[str, list[str]] = {"out": [], "err": []}
        streams = {"out": out, "err": err}
        self._readers = [threading.Thread(target=self._read, args=item, daemon=True) for item in streams.items()]
        for reader in self._readers:
            reader.start()

    @property
    def out(self) -> str:
        return "".join(self._printed["out"])

    @property
    def err(self) -> str:
        return "".join(self._printed["err"])

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def url(self) -> str:
        """Base URL of a gateway that has said it is ready."""
        return self.out.partition("Registry:   ")[2].partition("/.well-known")[0]

    def wait_for(self, text: str, seconds: float = READY_SECONDS) -> None:
        def is_there() -> bool:
            return text in self.out or text in self.err or not any(reader.is_alive() for reader in self._readers)

        with self._changed:
            self._changed.wait_for(is_there, seconds)
        assert text in self.out or text in self.err, f"no {text!r} in:\n{self.out}\n{self.err}"

    def wait_until(self, predicate: Callable[[], bool], what: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: predicate() or self._has_ended, READY_SECONDS)
        assert predicate(), f"no {what!r} in:\n{self.out}\n{self.err}"

    @property
    def _has_ended(self) -> bool:
        return not any(reader.is_alive() for reader in self._readers)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self, timeout_seconds: float = WAIT_SECONDS) -> Ran:
        code = self._process.wait(timeout_seconds)
        for reader in self._readers:
            reader.join(5)
        return Ran(code, self.out, self.err)

    def kill(self) -> None:
        """End it whatever it does, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)
        for reader in self._readers:
            reader.join(5)

    def _read(self, name: str, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                with self._changed:
                    self._printed[name].append(line)
                    self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()


@contextmanager
def started(
    arguments: Sequence[str],
    folder: Path,
    *,
    command: Sequence[str] = GATEWAY,
    environ: Mapping[str, str] | None = None,
    given: str | None = None,
    is_real: bool = False,
) -> Generator[Program]:
    """Start a command in `folder`, with `given` as its standard input; it is killed when the block
    ends, if it has not ended.

    It is forked, which is cheaper, unless `is_real`: where the start of Python or of the package is the subject.
    """
    environment = {**os.environ, "PALLAS_LOG_FILE": "", "COLUMNS": "200", **(environ or {})}
    with ExitStack() as ours, ExitStack() as its:
        text = its.enter_context(tempfile.TemporaryFile())
        text.write((given or "").encode())
        text.seek(0)
        (out, its_out), (err, its_err) = _pipe(ours, its), _pipe(ours, its)
        streams = (text.fileno(), its_out, its_err)
        words, forks = [*command, *arguments], command == PATIENT_GATEWAY
        process = forked.start(words, folder, environment, streams, is_real=is_real, forks=forks)
        ours.pop_all()  # the program has them now
    program = Program(process, out, err)
    try:
        yield program
    finally:
        program.kill()


def _pipe(ours: ExitStack, its: ExitStack) -> tuple[IO[str], int]:
    """Make a pipe; its ends are closed with the stacks."""
    reading, writing = os.pipe()
    its.callback(os.close, writing)
    return ours.enter_context(os.fdopen(reading)), writing
