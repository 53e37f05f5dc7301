"""Programs of others that tests need, and the marks of such tests.

A test that needs one has the mark `needs`, with names of `PROGRAMS`: without the program it is skipped before its first
step, and fails where `PALLAS_CI=1` promises every program. `PALLAS_WITHOUT=nginx,node`, or `=all`, hides programs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TESTS = Path(__file__).parent
MAKE = "make programs"
OLDEST_NODE = 22


@dataclass(frozen=True)
class Program:
    """A program, or programs that are installed together.

    Attributes:
        find: returns its path, or None where it is not installed.
        install: the command that installs it.
    """

    find: Callable[[], Path | None]
    install: str


def on_path(name: str) -> Path | None:
    """Find a program, those for administrators included."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    return Path(found) if found else None


def find_node(oldest: int = OLDEST_NODE) -> Path | None:
    """Return the first Node new enough: `PALLAS_NODE`, the one of `make programs`, the one on PATH."""
    return next((node for node in _nodes() if _major_version(node) >= oldest), None)


def _nodes() -> Iterator[Path]:
    candidates = (os.environ.get("PALLAS_NODE"), TESTS / "conformance/node_modules/.bin/node", shutil.which("node"))
    return (Path(candidate) for candidate in candidates if candidate)


def _major_version(node: Path) -> int:
    try:
        run = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return 0
    version = re.match(r"v(\d+)\.", run.stdout)
    return int(version[1]) if version else 0


def _find_postgresql() -> Path | None:
    # Debian keeps the programs beside the path, one folder for each version.
    newest = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), reverse=True)
    return newest[0] if newest else on_path("pg_ctl")


def _find_claude_code() -> Path | None:
    # A program of its own for each platform: no Node runs it.
    return next(TESTS.glob("task_clients/node_modules/@anthropic-ai/claude-code-*/claude"), None)


def _debian(name: str, package: str) -> Program:
    return Program(lambda: on_path(name), f"apt-get install {package}")


def _node_modules(folder: str) -> Program:
    modules = TESTS / folder / "node_modules"
    return Program(lambda: find_node() if (modules / ".package-lock.json").exists() else None, MAKE)


def _environment(folder: str) -> Program:
    python = TESTS / folder / ".venv/bin/python"
    return Program(lambda: python if (TESTS / folder / ".venv/.ready").exists() else None, MAKE)


PROGRAMS = {
    "bash": _debian("bash", "bash"),
    # The shell has the same engine without windows, menus and profiles: it takes a third less CPU.
    "chromium": Program(
        lambda: on_path("chromium-headless-shell") or on_path("chromium"), "apt-get install chromium-headless-shell"
    ),
    "curl": _debian("curl", "curl"),
    "kubectl": _debian("kubectl", "kubernetes-client"),
    "nginx": _debian("nginx", "nginx"),
    "postgresql": Program(_find_postgresql, "apt-get install postgresql"),
    "promtool": _debian("promtool", "prometheus"),
    "systemd-analyze": _debian("systemd-analyze", "systemd"),
    # Node 22 with the MCP conformance suite, both releases of the TypeScript SDK with ext-tasks, and server-everything
    "typescript": _node_modules("conformance"),
    "console-tools": _node_modules("console"),  # axe, tsc, eslint, acorn
    "oidc-provider": _node_modules("authorization_server"),
    "python-sdk-1": _environment("older_sdk"),
    "registry-clients": _environment("registry_clients"),
    "openai-clients": _environment("openai_clients"),  # openai-agents, agent-framework, LiteLLM, openresponses-types
    "openai-clients-node": _node_modules("openai_clients"),  # AI SDK, @openai/agents, LangChain
    "llama.cpp": _environment("model_server"),
    "claude-code": Program(_find_claude_code, MAKE),
    "fastmcp-tasks": _environment("task_clients"),
    "release-0.1.0": _environment("release_0_1_0"),  # its Python is missing in a clone without the commit
}


OF_FIXTURES = {
    "browser": "chromium",
    "cluster": "kubectl",
    "production": "kubectl",
}
"""Programs that fixtures start; a test that requests such a fixture needs no mark."""


def is_hidden(name: str) -> bool:
    """Return whether `PALLAS_WITHOUT` names the program."""
    return not {name, "all"}.isdisjoint(os.environ.get("PALLAS_WITHOUT", "").split(","))


@cache
def _found(name: str) -> Path | None:
    return PROGRAMS[name].find()


def is_there(name: str) -> bool:
    """Return whether a test may use the program."""
    return not is_hidden(name) and _found(name) is not None


def program(name: str) -> str:
    """Return the path of a program of `PROGRAMS`; the test that uses it has the mark `needs`.

    For programs of `make programs`, the Node or Python that runs them.
    """
    if not is_there(name):
        pytest.fail(f"{name} is not installed, and the test has no mark `needs({name!r})`", pytrace=False)
    return str(_found(name))


def needed(item: pytest.Item) -> list[str]:
    """Return the names of the programs that a test needs, in alphabetical order."""
    fixtures = getattr(item, "fixturenames", ())
    names = {name for mark in item.iter_markers("needs") for name in mark.args}
    names |= {OF_FIXTURES[name] for name in fixtures if name in OF_FIXTURES}
    assert names <= PROGRAMS.keys(), f"{item.nodeid}: {sorted(names - PROGRAMS.keys())} is not in PROGRAMS"
    return sorted(names)


def check_needs(item: pytest.Item) -> None:
    """Skip a test before its first step if a program is missing; fail it in CI, where only hidden ones may be."""
    for name in needed(item):
        if not is_there(name):
            reason = f"{name} ({PROGRAMS[name].install})"
            if os.environ.get("PALLAS_CI") == "1" and not is_hidden(name):
                pytest.fail(f"PALLAS_CI=1, so every program has to be there: {reason}", pytrace=False)
            pytest.skip(reason)
