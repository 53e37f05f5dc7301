"""docs/operate/observability.md lists every event the code can log with its level, and every quiet library."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import pallas_gateway
from pallas_gateway.telemetry.logs import QUIET_LOGGERS
from tests.support.observability_page import section

PACKAGE = Path(pallas_gateway.__file__).parent
REFERENCE = section("Logging")
LEVELS = {
    "debug": "DEBUG",
    "info": "INFO",
    "warning": "WARNING",
    "error": "ERROR",
    "exception": "ERROR",
    "critical": "CRITICAL",
    "log": "",
}
"""Of the methods of a logger; that of `log` is known only when it is called."""
OF_NO_LOGGER_CALL = {
    "Running on …",  # Hypercorn's own
    "whatever fast-agent says: its warnings and errors, all else at DEBUG",
    "log record not formatted",  # made by hand
}

type Texts = dict[str, list[str]]


@dataclass(frozen=True, order=True)
class Event:
    """One call of a logger with a constant message."""

    file: str
    message: str
    level: str


def events_in(source: str, file: str = "") -> Iterator[Event]:
    """Every event of a module but those for debugging; also where a variable or a dict holds the message."""
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for scope in (tree, *functions):
        texts = _texts_of(tree.body) | _texts_of(ast.walk(scope) if scope is not tree else ())
        for node in ast.walk(scope):
            if isinstance(node, ast.Call) and (logged := _logged(node)) is not None:
                method, message = logged
                known = (_until_it_varies(text) for text in _constants(message, texts))
                yield from (Event(file, text, LEVELS[method]) for text in known if text != "…" and method != "debug")


def _until_it_varies(message: str) -> str:
    constant, varies, _ = message.partition("%")
    return f"{constant}…" if varies else constant


def _logged(call: ast.Call) -> tuple[str, ast.expr] | None:
    """The method and the message of a logger's call, which may be one for later: `call_later(1, log.info, "event")`."""
    functions = [(call.func, call.args), *((one, call.args[place:]) for place, one in enumerate(call.args, start=1))]
    for function, rest in functions:
        is_one = isinstance(function, ast.Attribute) and function.attr in LEVELS and rest
        if isinstance(function, ast.Attribute) and is_one and "log" in ast.unparse(function.value).lower():
            return function.attr, rest[1 if function.attr == "log" else 0]
    return None


def _texts_of(nodes: Iterator[ast.AST] | list[ast.stmt] | tuple[()]) -> Texts:
    found: Texts = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).extend(_constants(node.value, {}))
    return found


def _constants(node: ast.expr | None, texts: Texts) -> list[str]:
    """The texts an expression may be, as far as it is one, the name of one, or an entry of a dict of them."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.Name(id=name) | ast.Subscript(value=ast.Name(id=name)):
            return texts.get(name, [])
        case ast.Dict(values=values):
            return [text for value in values for text in _constants(value, texts)]
        case ast.IfExp(body=one, orelse=other):
            return [*_constants(one, texts), *_constants(other, texts)]
    return []


def listed() -> Iterator[tuple[str, str]]:
    """Message and level of every event in the table; what is left out at its end is `…`."""
    for row in re.findall(r"^\| `pallas.*\|$", REFERENCE, re.MULTILINE):
        _, _, messages, levels, *_ = re.split(r"(?:^| )\|(?: |$)", row)
        texts = re.split(r"`(?:, | / )`", messages.strip("`"))
        named = re.split(r", | / ", levels)
        yield from zip(texts, named * len(texts) if len(named) == 1 else named, strict=len(named) > 1)


@cache
def found() -> frozenset[Event]:
    return frozenset(event for path in PACKAGE.rglob("*.py") for event in events_in(path.read_text(), path.name))


def _is(message: str, text: str) -> bool:
    if message.endswith("…"):
        return text.startswith(message.removesuffix("…"))
    return message.startswith(text.removesuffix("…")) if text.endswith("…") else message == text


def test_the_events_are_found() -> None:
    assert len(found()) > 30
    assert Event("accounting.py", "call ended", "INFO") in found()


def test_events_are_found_wherever_their_message_stands() -> None:
    source = """
_NAMED = "by name"
_SAID = {"x": "by key"}
def say(on):
    _log.info(_NAMED)
    self._log.warning(_SAID[on])
    message = ("in " "pieces")
    _log.exception(message)
    _log.error("on" if on else "off")
    _log.log(level, "whenever")
    _log.warning("as far as %s", on)
    _log.debug("for debugging"), _log.info("%s", on)
    loop.call_later(1, _log.warning, "later")
"""
    assert {(one.message, one.level) for one in events_in(source)} == {
        ("by name", "INFO"),
        ("by key", "WARNING"),
        ("in pieces", "ERROR"),
        ("on", "ERROR"),
        ("off", "ERROR"),
        ("as far as …", "WARNING"),
        ("later", "WARNING"),
        ("whenever", ""),
    }


def test_every_event_is_listed_with_its_level() -> None:
    levels = {event: {level for text, level in listed() if _is(event.message, text)} for event in found()}
    assert not [event for event in found() if not levels[event] or (event.level and event.level not in levels[event])]


def test_every_listed_event_is_one() -> None:
    def is_one(text: str, level: str) -> bool:
        return any(_is(event.message, text) and event.level in (level, "") for event in found())

    assert not [one for one in listed() if one[0] not in OF_NO_LOGGER_CALL and not is_one(*one)]


@pytest.mark.parametrize("logger", QUIET_LOGGERS)
def test_every_quiet_library_is_listed(logger: str) -> None:
    assert any(f"`{name}`" in REFERENCE for name in (logger, logger.partition(".")[0]))
