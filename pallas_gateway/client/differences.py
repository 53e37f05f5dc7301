"""Changes of texts, shown before they are made, and the question whether to make them."""

from __future__ import annotations

import difflib
import sys
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.text import Text

from pallas_gateway.client.output import problem, without_controls

if TYPE_CHECKING:
    from collections.abc import Iterator

_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def difference(before: str, after: str, name: str, changed: str = "applied") -> Iterator[str]:
    """Yield the lines of a unified diff."""
    lines = (before.splitlines(), after.splitlines())
    yield from difflib.unified_diff(*lines, name, f"{name} ({changed})", lineterm="")


def show_difference(before: str, after: str, name: str) -> None:
    """Print a unified diff."""
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    for line in difference(before, after, name):
        shown = without_controls(line) if console.is_terminal else line
        console.print(Text(shown, style=_STYLES.get(line[0], "") if line[:3] not in ("+++", "---") else "bold"))


def is_wanted(question: str, *, can_ask: bool, nothing: str, yes_does: str) -> bool:
    """Ask for confirmation on a terminal; elsewhere print that --yes is required."""
    if not can_ask or not sys.stdin.isatty():
        problem(f"{nothing}; --yes {yes_does}")
        return False
    if typer.confirm(question, err=True):
        return True
    problem(nothing)
    return False
