"""Forked programs are to their tests what started ones are."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import forked, forker
from tests.support.commands import GATEWAY, started
from tests.support.waiting import eventually

SHOWS = """
import gc, json, os, signal, sys, tempfile, threading, time
print(json.dumps({
    "argv": sys.argv[1:],
    "directory": os.getcwd(),
    "environ": {**os.environ},
    "descriptors": sorted(os.listdir("/proc/self/fd")),
    "input": sys.stdin.read(),
    "path": sys.path,
    "threads": [one.name for one in threading.enumerate()],
    "frozen": gc.get_freeze_count(),
    "blocked": [*signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    "signals": [str(signal.getsignal(number)).partition(" at ")[0] for number in (signal.SIGINT, signal.SIGTERM)],
    "name": __name__,
    "folder": tempfile.gettempdir(),
    "time zone": time.tzname,
}))
"""
ENDS = {
    "by a reason": "import sys; sys.exit('a reason')",
    "by an error": "raise ValueError('an error')",
    "by a signal": "import os; os.kill(os.getpid(), 9)",
    "by Ctrl-C": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "after its threads and its clean-up": """
import atexit, threading
atexit.register(print, 'cleaned up')
threading.Timer(0.01, print, ['later']).start()
""",
}
ALONE = """
import socket, subprocess, sys
text = "import forker, sys; forker.preload = lambda: print(flush=True); forker.main(int(sys.argv[1]))"
requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
words, pipe, number = [sys.executable, "-c", text], subprocess.PIPE, theirs.fileno()
process = subprocess.Popen([*words, str(number)], stdin=pipe, stdout=pipe, pass_fds=[number], cwd=sys.argv[1])
process.stdout.readline()
print(process.pid, flush=True)
sys.stdin.read()
"""


def test_a_forked_program_finds_what_a_started_one_finds(tmp_path: Path) -> None:
    shown = []
    for is_real in (True, False):
        environ = {
            "PYTHONPATH": f"{tmp_path}/one:{tmp_path}/two",
            "TMPDIR": str(tmp_path),
            "TZ": "EST5",
            "ODD": "\udcff",
        }
        with started(["a", "b"], tmp_path, command=("-c", SHOWS), environ=environ, is_real=is_real) as program:
            ran = program.end()
        assert (ran.code, ran.err) == (0, "")
        shown.append(ran.json)
    assert shown[0] == shown[1]
    assert (shown[1]["argv"], shown[1]["folder"], shown[1]["time zone"]) == (["a", "b"], str(tmp_path), ["EST", "EST"])


@pytest.mark.parametrize("how", ENDS)
def test_a_forked_program_ends_as_a_started_one_does(how: str, tmp_path: Path) -> None:
    ends = []
    for is_real in (True, False):
        with started([], tmp_path, command=("-c", ENDS[how]), is_real=is_real) as program:
            ran = program.end()
        ends.append((ran.code, ran.out, ran.err.splitlines()[-1:]))
    assert ends[0] == ends[1]


def test_a_forked_program_takes_signals_and_is_killed_when_its_block_ends(tmp_path: Path) -> None:
    text = (
        "import signal; signal.signal(signal.SIGTERM, lambda *_: print('heard', flush=True)); print('on', flush=True)"
    )
    with started([], tmp_path, command=("-c", f"{text}\nwhile True: signal.pause()")) as program:
        program.wait_for("on")
        assert Path(f"/proc/{program.pid}").exists()
        program.signal(signal.SIGTERM)
        program.wait_for("heard")
        with pytest.raises(subprocess.TimeoutExpired):
            program.end(0)
    assert program.end().code == -signal.SIGKILL
    assert not Path(f"/proc/{program.pid}").exists()


@pytest.mark.parametrize("is_forked", [True, False])
def test_the_package_is_loaded_in_forked_programs_alone_whose_cpu_time_is_known(
    is_forked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forked, "IS_POSSIBLE", is_forked)
    loaded = "import sys; print('pallas_gateway.process.server' in sys.modules, 'pytest' in sys.modules)"
    before = forked.cpu_seconds()
    with started([], tmp_path, command=("-c", f"sum(range(5_000_000)); {loaded}")) as program:
        assert program.end().out == f"{is_forked} False\n"
    assert (forked.cpu_seconds() > before) is is_forked


def test_a_variable_that_is_read_at_the_start_needs_a_real_one(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match="start it for real"),
        started(["--version"], tmp_path, environ={"PALLAS_CHANGES": "-shared-context"}),
    ):
        pass


def test_modules_are_run_from_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import sys; print(__name__, sys.argv, __spec__.name)")
    with started(["--one"], tmp_path, command=("-m", "mine")) as program:
        assert program.end().out == f"__main__ ['{tmp_path}/mine.py', '--one'] mine\n"
    with started(["--version"], tmp_path, command=GATEWAY) as program:
        assert program.end().out.startswith("pallas-gateway ")


async def test_the_process_that_forks_ends_with_the_one_that_started_it() -> None:
    folder = str(Path(forker.__file__).parent)
    pipe = subprocess.PIPE
    starter = await asyncio.create_subprocess_exec(sys.executable, "-c", ALONE, folder, stdin=pipe, stdout=pipe)
    assert starter.stdout is not None
    pid = int(await starter.stdout.readline())
    assert Path(f"/proc/{pid}").exists()
    starter.kill()
    await starter.communicate()
    await eventually(lambda: not Path(f"/proc/{pid}").exists(), what="the end of the process that forks")
