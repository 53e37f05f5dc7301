"""docs/operating.md lists every event the code can log, and every quiet library."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pallas_gateway
from pallas_gateway.telemetry.logs import QUIET_LOGGERS
from tests.support.operating import section

PACKAGE = Path(pallas_gateway.__file__).parent
REFERENCE = section("Logging")
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}


def events() -> Iterator[tuple[str, str]]:
    """File and message of every call of a logger with a constant message; the one for debugging only is left out."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS):
                continue
            if "log" not in ast.unparse(node.func.value).lower() or node.func.attr == "debug":
                continue
            texts = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            yield from ((path.name, text) for text in texts if "%" not in text)


FOUND = sorted(set(events()))


def test_the_events_are_found() -> None:
    assert len(FOUND) > 30
    assert ("call_log.py", "call ended") in FOUND


@pytest.mark.parametrize(("file", "message"), FOUND)
def test_every_event_is_listed(file: str, message: str) -> None:
    assert f"`{message}`" in REFERENCE, f"{file} logs it"


@pytest.mark.parametrize("logger", QUIET_LOGGERS)
def test_every_quiet_library_is_listed(logger: str) -> None:
    assert any(f"`{name}`" in REFERENCE for name in (logger, logger.partition(".")[0]))
