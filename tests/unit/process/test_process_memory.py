"""Memory that was freed is used again without the system. In processes of their own."""

import ctypes
import os
import platform
import subprocess
import sys

import pytest

from pallas_gateway.process import process

PROGRAM = """
import resource, sys
from pallas_gateway import composition
from pallas_gateway.process import process

def pages_mapped():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [bytes([one]) * 6_000_000 for one in range(5)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

composition.use_changes()
if "keep" in sys.argv:
    process.keep_memory()
for _ in range(3):
    mapped = pages_mapped()
print(mapped)
"""
PAGES = 5 * 6_000_000 // os.sysconf("SC_PAGE_SIZE")


def pages_mapped(*arguments: str, **environment: str) -> int:
    variables = {*process.MEMORY_VARIABLES, "GLIBC_TUNABLES"}
    without = {name: value for name, value in os.environ.items() if name not in variables}
    command = [sys.executable, "-c", PROGRAM, *arguments]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env={**without, **environment})
    return int(shown.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have other limits")
def test_memory_that_was_freed_is_not_mapped_again() -> None:
    assert pages_mapped("keep") < PAGES / 10
    assert pages_mapped() > PAGES / 2


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have other limits")
@pytest.mark.parametrize("variable", process.MEMORY_VARIABLES)
def test_limits_of_the_environment_stay(variable: str) -> None:
    assert pages_mapped("keep", **{variable: "131072"}) > PAGES / 2


def test_a_c_library_without_such_limits_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    process.keep_memory()
