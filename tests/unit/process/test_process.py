"""The garbage collector is spared what stays, and nothing that is garbage stays. In processes of their own."""

import asyncio
import os
import platform
import subprocess
import sys

import pytest

from pallas_gateway.changes import registry
from pallas_gateway.process import process

PROGRAM = """
import gc, weakref
from pallas_gateway import composition
from pallas_gateway.process import process as interpreter

composition.use_changes()

class Node:
    def __init__(self):
        self.itself = self

def garbage_is_collected():
    node = weakref.ref(Node())
    kept = [[] for _ in range(interpreter.YOUNG_OBJECTS_AT_START + 10_000)]  # the collector begins by itself
    return node() is None

interpreter.expect_calls()
"""


def prints(program: str, *options: str) -> str:
    environment = {
        name: value for name, value in os.environ.items() if name not in {"PYTHONASYNCIODEBUG", "PYTHONDEVMODE"}
    }
    command = [sys.executable, *options, "-c", PROGRAM + program]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return shown.stdout.strip()


def test_what_is_loaded_is_gone_through_seldom_and_after_the_start_no_more() -> None:
    program = """
collections = []
gc.callbacks.append(lambda phase, info: collections.append(phase))
loaded = [[] for _ in range(2 * interpreter.YOUNG_OBJECTS)]
print(len(collections), garbage_is_collected())
interpreter.set_aside_what_stays()
print(gc.get_freeze_count() > len(loaded), len(gc.get_objects()) < 10_000)
collections.clear()
more = [[] for _ in range(2 * interpreter.YOUNG_OBJECTS)]
print(len(collections) > 0, garbage_is_collected(), garbage_is_collected())
"""

    assert prints(program).splitlines() == ["0 True", "True True", "True True True"]


ARENAS = """
import ctypes, os, tempfile, threading

libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
libc.fopen.argtypes, libc.malloc_info.argtypes = [ctypes.c_char_p] * 2, [ctypes.c_int, ctypes.c_void_p]
libc.fclose.argtypes = [ctypes.c_void_p]
together = threading.Barrier(4)

def allocate():
    together.wait()
    libc.malloc(100_000)
    together.wait()

threads = [threading.Thread(target=allocate) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
with tempfile.NamedTemporaryFile() as shown:
    file = libc.fopen(shown.name.encode(), b"w")
    libc.malloc_info(0, file)
    libc.fclose(file)
    print(shown.read().count(b"<heap "))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
@pytest.mark.parametrize(
    ("variable", "value", "arenas"),
    [
        ("PALLAS_FAST_PATHS", "", 1),
        ("PALLAS_FAST_PATHS", "kept_memory", 5),
        ("MALLOC_ARENA_MAX", "3", 3),
        ("GLIBC_TUNABLES", "glibc.malloc.arena_max=3", 3),
    ],
)
def test_threads_share_one_arena_unless_the_operator_has_decided_otherwise(
    variable: str, value: str, arenas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PALLAS_FAST_PATHS", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, value)

    assert int(prints(ARENAS)) == arenas


def test_what_a_reload_replaced_is_collected_when_the_new_is_set_aside() -> None:
    program = """
old = Node()
interpreter.set_aside_what_stays()
gone = weakref.ref(old)
old = Node()
gc.collect()
kept = gone() is not None
interpreter.set_aside_what_stays()
print(kept, gone() is None, gc.get_freeze_count() > 0)
"""

    assert prints(program) == "True True True"


def test_what_serves_runs_without_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    monkeypatch.setattr(registry, "_registry", None)
    seen: list[bool] = []

    async def work() -> None:
        seen.append(isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop))

    process.run(work())

    assert seen == [True]
    assert registry.registry().states() == {"event_loop": False}


@pytest.mark.parametrize(("options", "loop"), [(["-X", "dev"], "asyncio.unix_events"), ([], "uvloop")])
def test_what_serves_runs_on_libuvs_loop_but_where_it_would_crash(options: list[str], loop: str) -> None:
    program = """
import asyncio

async def work():
    print(type(asyncio.get_running_loop()).__module__)

interpreter.run(work())
"""

    assert prints(program, *options) == loop
