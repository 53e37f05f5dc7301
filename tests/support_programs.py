"""Foreign programs that some tests need: skip without them on a workstation, fail without them in CI."""

import os
import shutil

import pytest


def require_program[Found](found: Found | None, reason: str) -> Found:
    """Return `found`, what a lookup found; skip the test for `reason` when that is nothing.

    `.ci/run` sets `PALLAS_CI=1` after it has installed every program, so there the test fails instead: a check that
    CI does not run is a check nobody runs.
    """
    if found is not None:
        return found
    if os.environ.get("PALLAS_CI") == "1":
        pytest.fail(f"PALLAS_CI=1, so every program has to be there: {reason}", pytrace=False)
    pytest.skip(reason)


def program(name: str, package: str) -> str:
    """Where a program is, those for administrators included; `package` is Debian's."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
    return require_program(shutil.which(name, path=path), f"{name} is not installed (apt-get install {package})")
