"""A hosted agent uses the terminal and the options of the process; tried in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys

from pallas_gateway import composition
from pallas_gateway.runtime import preparation

sys.argv = ["pallas-gateway", "serve", "--per-port"]
composition.use_changes()
preparation.prepare()

from fast_agent import FastAgent
from fast_agent.ui import console

for one in (console.console, console.error_console, console.server_console):
    one.print("chat and progress")
print("made", FastAgent("mine").args.quiet)
"""


def test_a_module_reads_no_options_and_prints_nothing(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "made False\n"
    assert "chat and progress" not in ran.stderr
