"""A process that has imported the package once and forks programs, each run as a new interpreter would run it.

`tests.support.forked` starts it by its path, with `-P`, and with the number of the descriptor of a socket. It imports
nothing of the tests, and ends when its standard input does, which is when the process that started it has ended.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any, Never

LIBRARIES = (  # what gateways import in functions, and the libraries of those
    "anyio._backends._asyncio",
    "ctypes",
    "fast_agent.core.environment_lifecycle",
    "fast_agent.core.harness",
    "fast_agent.hooks.compaction",
    "fast_agent.llm.internal.passthrough",
    "fast_agent.llm.provider.openai.llm_generic",
    "fast_agent.llm.provider.openai.llm_openai",
    "fast_agent.llm.provider.openai.responses",
    "fast_agent.plugins.post_user_turn",
    "fast_agent.tools.attach_media",
    "fast_agent.tools.environment_filesystem_runtime",
    "fast_agent.tools.local_filesystem_runtime",
    "fastmcp.server.server",
    "httpcore",
    "httpcore2",
    "openai.resources.chat.completions.completions",
    "fast_agent.tools.composite_filesystem_runtime",
    "fast_agent.llm.model_info",
    "PIL.Image",
    "uvloop",
    "websockets.asyncio.client",
)
LEFT_OUT = (
    "pallas_gateway.__main__",
    "pallas_gateway.shared.database.migrations",
    "pallas_gateway.example",
    "pallas_gateway.fast_paths._google_chunks",  # loads the libraries of a provider, which takes seconds
    "pallas_gateway.repairs.bedrock._client",  # likewise
    "pallas_gateway.telemetry.trace_export",  # likewise
)
HIGH = 900
"""Above the descriptors of programs, and below the number that most systems allow."""


def preload() -> None:
    """Import the package and what gateways import, prepare it, and take it out of every collection of garbage."""
    import pallas_gateway  # noqa: PLC0415  not before signals are ignored
    from pallas_gateway import composition  # noqa: PLC0415
    from pallas_gateway.runtime import preparation  # noqa: PLC0415

    composition.use_changes()
    for one in pkgutil.walk_packages(pallas_gateway.__path__, "pallas_gateway."):
        if not one.name.startswith(LEFT_OUT):
            importlib.import_module(one.name)
    for name in LIBRARIES:
        importlib.import_module(name)
    preparation.prepare()  # checks and changes libraries: a quarter of a worker's start
    gc.collect()
    gc.freeze()


def next_program(requests: socket.socket) -> dict[str, Any]:
    """Fork a program for each request. Returns in the programs only, each with its own request."""
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        ready, _, _ = select.select([0, requests.fileno(), *running], [], [])
        if 0 in ready:
            os._exit(0)
        for descriptor in running.keys() & ready:
            pid, client = running.pop(descriptor)
            os.close(descriptor)
            reply(client, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            client.close()
        if requests.fileno() in ready:
            text, (connection, *descriptors), _, _ = socket.recv_fds(requests, 1 << 20, 64)
            request: dict[str, Any] = json.loads(text)
            client = socket.socket(fileno=connection)
            held = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # until the program has its own
            if (pid := os.fork()) == 0:
                for one in (requests, client, *(other for _, other in running.values())):
                    one.detach()
                become(request, descriptors)
                signal.pthread_sigmask(signal.SIG_SETMASK, held)
                return request
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
            for descriptor in descriptors:
                os.close(descriptor)
            running[os.pidfd_open(pid)] = pid, client
            reply(client, pid)


def reply(client: socket.socket, number: int) -> None:
    """Send a number, unless the one who asked is gone."""
    try:
        client.send(str(number).encode())
    except OSError:
        return


def become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Give this process the descriptors, directory, environment, path and signals of a new program."""
    moved = [fcntl.fcntl(one, fcntl.F_DUPFD, HIGH) for one in descriptors]
    os.closerange(0, HIGH)
    for one, number in zip(moved, request["descriptors"], strict=True):
        os.dup2(one, number)
    os.closerange(HIGH, HIGH + len(moved))
    if request["session"]:
        os.setsid()
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environ"])
    tempfile.tempdir = None  # kept from the environment of this process
    time.tzset()
    sys.path[:0] = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.unfreeze()  # a gateway sets aside what it has loaded, and would first look for garbage in what is frozen


def run(arguments: list[str]) -> None:
    """Run what follows `python` on a command line: `-m MODULE`, `-c TEXT` or `-P FILE`, and arguments."""
    option, what, *_ = arguments
    sys.argv = [option, *arguments[2:]]
    if option == "-m":
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    elif option == "-c":
        sys.path.insert(0, "")
        module = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), vars(module))  # noqa: S102  as `python -c` does
    else:
        sys.argv[0] = what
        runpy.run_path(what, run_name="__main__")


def end(code: int) -> Never:
    """End this process as Python does, but for the garbage collection of all modules, which takes a quarter second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        sys.exit(code)
    os._exit(code)


def main(descriptor: int) -> None:
    """Fork programs until the one who asks for them is gone, and run in each what it is to run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a Ctrl-C, which ends the tests
    preload()
    request = next_program(socket.socket(fileno=descriptor))
    try:
        run(request["arguments"])
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise
        end(ended.code or 0)
    end(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
