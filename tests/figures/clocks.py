"""Uses of real time in tests: clocks, sleeps, and time limits below 30 s. `python -m tests.figures.clocks` lists them.

`clocks.json` has those that there are, by file. The list only shrinks: a new test sets the limit that it waits for
(tests/support/gateway.py), runs on virtual time (tests/support/virtual_time.py), or counts turns of the event loop.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
KNOWN = Path(__file__).with_name("clocks.json")
CLOCKS = {"monotonic", "perf_counter"}
LIMITS = {"timeout", "timeout_seconds"}
NAMES = {*CLOCKS, *LIMITS, "sleep"}
SHORT_SECONDS = 30


def uses() -> dict[str, int]:
    """Return how often each file of tests, those of `support/` excepted, uses real time."""
    found = {}
    for path in sorted(TESTS.rglob("*.py")):
        parts = path.relative_to(TESTS).parts
        if parts[0] != "support" and not {".venv", "node_modules"} & set(parts):
            text = path.read_text()
            if any(one in text for one in NAMES) and (count := sum(1 for _ in _uses_of(ast.parse(text)))):
                found["/".join(parts)] = count
    return found


def _uses_of(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (_is_clock(node) or any(map(_is_short_limit, node.keywords))):
            yield node


def _is_clock(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    is_pause = name == "sleep" and not (
        call.args and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0
    )
    return name in CLOCKS or is_pause


def _is_short_limit(keyword: ast.keyword) -> bool:
    match keyword:
        case ast.keyword(arg=name, value=ast.Constant(value=int() | float() as seconds)):
            return name in LIMITS and seconds < SHORT_SECONDS
    return False


if __name__ == "__main__":
    KNOWN.write_text(json.dumps(uses(), indent=1) + "\n")
    print(f"{sum(uses().values())} uses of real time in {len(uses())} files")
