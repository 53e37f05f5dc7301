"""A hosted agent uses the terminal and the options of the process.

Symptom: Output of all calls goes to the gateway's terminal, and a module with `parse_cli_args=True` reads the
gateway's options and ends the process at an unknown one.

Repair: fast-agent's consoles are quiet, and `sys.argv` has no options.
"""

from __future__ import annotations

import sys

from pallas_gateway.changes.change import REPAIR, Change, Name

CHANGE = Change(
    "terminal",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    relies_on=tuple(
        Name(f"fast_agent.ui.console:{name}.quiet") for name in ("console", "error_console", "server_console")
    ),
    gone_when="fast-agent prints nothing and reads no options while a harness is used",
)


def install() -> None:
    """Silence the consoles, and hide the options."""
    from fast_agent.ui import console as consoles  # noqa: PLC0415

    for console in (consoles.console, consoles.error_console, consoles.server_console):
        console.quiet = True
    sys.argv = sys.argv[:1]
