"""What the machine was and which versions ran."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sysconfig
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.contenders import AGNO_PYTHON
from benchmarks.processes import REPOSITORY

_OURS = (
    *("fast-agent-mcp", "mcp", "fastmcp-slim", "hypercorn", "httpx", "httpx2", "openai", "anthropic", "google-genai"),
    *("pydantic", "uvloop"),
)
_THEIRS = ("agno", "mcp", "uvicorn", "openai", "pydantic")
_ASK = (
    "import json, sys; from importlib.metadata import version; print(json.dumps({n: version(n) for n in sys.argv[1:]}))"
)


def describe() -> dict[str, Any]:
    """The machine and the programs, for the results."""
    return {
        "processor": _line_after("/proc/cpuinfo", "model name"),
        "cores": os.cpu_count(),
        "memory_gib": round(int(_line_after("/proc/meminfo", "MemTotal").split()[0]) / 2**20, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_version()} ({_build()})",
        "load_before": os.getloadavg()[0],
        "commit": _commit(),
        "versions": {name: version(name) for name in _OURS},
        "agno_versions": _agno_versions(),
    }


def _build() -> str:
    """How the interpreter was configured. Debian's has both optimisations, and does not name them here."""
    options = sysconfig.get_config_var("CONFIG_ARGS") or ""
    optimised = (("PGO", "--enable-optimizations"), ("LTO", "--with-lto"))
    return ", ".join(f"{name} {'on' if option in options else 'not configured'}" for name, option in optimised)


def _line_after(file: str, key: str) -> str:
    lines = Path(file).read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "unknown")


def _commit() -> str:
    shown = subprocess.run(
        ["git", "describe", "--always", "--dirty"],  # noqa: S607  from PATH, as a developer's
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    return shown.stdout.strip() or "unknown"


def _agno_versions() -> dict[str, str]:
    shown = subprocess.run([AGNO_PYTHON, "-c", _ASK, *_THEIRS], capture_output=True, text=True, check=False)
    versions: dict[str, str] = json.loads(shown.stdout or "{}")
    return versions
