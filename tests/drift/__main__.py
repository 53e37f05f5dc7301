"""`make drift`: installs the newest versions, and prints which names, tests and repairs no longer fit; 0 if all fit.

The environment is `.venv/drift`; the gateway's own is not changed. docs/operate/upgrading.md has what follows from the
output.
"""

import argparse
import subprocess
import sys

from tests.drift import environment

TESTS = ("tests/unit", "tests/repairs", "tests/fast_paths", "tests/upstream")
"""Unit tests, those of the runtime's contract and of changes, and those that notice a repaired library."""
_RESULTS = ("FAILED ", "ERROR ")


def main() -> int:
    """Install, check the names, run the tests, and those of the repairs without them."""
    parser = argparse.ArgumentParser(prog="make drift", description=__doc__)
    parser.add_argument("--fast-agent", metavar="VERSION", help="a version of fast-agent other than the newest")
    parser.add_argument("tests", nargs="*", default=TESTS, help=f"what to run instead of {' '.join(TESTS)}")
    chosen = parser.parse_args()
    try:
        environment.install(chosen.fast_agent)
    except environment.NotInstalledError as error:
        print(error, file=sys.stderr)
        return 2
    return 1 if _names() + _tests(chosen.tests) + _repairs() else 0


def _names() -> int:
    print("== names that the gateway relies on")
    return _run("-m", "tests.drift.names").returncode


def _tests(paths: list[str]) -> int:
    print(f"== tests: {' '.join(paths)}", flush=True)
    plain = ("-q", "--tb=no", "--no-header", "-p", "no:cacheprovider", "-n", "2", "--dist", "worksteal")
    ran = _run("-m", "pytest", *plain, *paths, quiet=True)
    lines = ran.stdout.splitlines()
    print("\n".join([*(line for line in lines if line.startswith(_RESULTS)), *lines[-1:]]))
    return ran.returncode


def _repairs() -> int:
    print("== repairs, each switched off for its own test")
    return _run("-m", "tests.drift.repairs").returncode


def _run(*arguments: str, quiet: bool = False) -> subprocess.CompletedProcess[str]:
    sys.stdout.flush()
    command = [str(environment.PYTHON), *arguments]
    return subprocess.run(
        command, cwd=environment.ROOT, stdout=subprocess.PIPE if quiet else None, text=True, check=False
    )


if __name__ == "__main__":
    sys.exit(main())
