"""Writes docs/operate/log-events.md: the calls of loggers in the package, and the comments directly above them."""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pallas_gateway
from pallas_gateway.telemetry.logs import QUIET_LOGGERS

type Values = dict[str, list[ast.expr]]

PACKAGE = Path(pallas_gateway.__file__).parent
LEVELS = {
    "info": "INFO",
    "warning": "WARNING",
    "error": "ERROR",
    "exception": "ERROR",
    "critical": "CRITICAL",
    "log": "",
}
INTRODUCTION = """\
# Log events

<!-- Made by `make docs` from the calls of loggers, and the comments above them. -->

For operators who search the log or alert on it: the messages above `DEBUG` by their loggers, with their fields beside
[those of every record](observability.md#fields-of-every-record) and the reason (`reason`, `why` or `error`); `…` stands
for what varies.

Of these libraries only warnings are logged, whatever the root's level is: {libraries}.
"""
SECTIONS = {
    "ERROR and CRITICAL": ("ERROR", "CRITICAL"),
    "WARNING": ("WARNING",),
    "INFO": ("INFO",),
}
"""Levels by heading. An event of several levels is in the first section that has one of them."""
LEFT_OUT = {"agent", "call_id", "conversation_id", "exception", "error", "reason", "why", "…"}
"""Fields of every record, those with the reason, and those that no constant names."""


@dataclass(frozen=True, order=True)
class Event:
    """One call of a logger."""

    logger: str
    message: str
    level: str
    fields: tuple[str, ...] = ()
    meaning: str = ""


OTHERS = (
    Event("pallas.server.http", "Running on …", "INFO", (), "Of Hypercorn, as its warnings and errors are."),
    Event("pallas.logs", "log record not formatted", "ERROR", ("source", "line")),
)
"""Not logged by a call of a logger here."""


def markdown() -> str:
    """Return the page `docs/operate/log-events.md`."""
    found = sorted([*OTHERS, *(one for file in PACKAGE.rglob("*.py") for one in events_in(file))])
    lines: dict[str, list[str]] = {title: [f"\n## {title}\n\n"] for title in SECTIONS}
    for (logger, message, level), calls in groupby(found, lambda one: (one.logger, one.message, one.level)):
        section = next(lines[title] for title, levels in SECTIONS.items() if any(one in level for one in levels))
        heading = f"- `{logger}`\n"
        section += ([] if heading in section else [heading]) + [_line(message, [*calls])]
    libraries = ", ".join(f"`{one}`" for one in QUIET_LOGGERS)
    return INTRODUCTION.format(libraries=libraries) + "".join(line for section in lines.values() for line in section)


def _line(message: str, calls: list[Event]) -> str:
    fields = dict.fromkeys(f"`{field}`" for one in calls for field in one.fields if field not in LEFT_OUT)
    meanings = dict.fromkeys(one.meaning for one in calls if one.meaning)
    quote = "``" if "`" in message else "`"
    told = "; ".join(filter(None, (", ".join(fields), *meanings)))
    return f"  - {quote}{message}{quote}{': ' if told else ''}{told}\n"


def events_in(file: Path) -> Iterator[Event]:
    """The events of a module, also where names or entries of a dict have the message or the fields."""
    source = file.read_text()
    lines, tree = source.splitlines(), ast.parse(source)
    for function in (one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)):
        calls = [one for one in ast.walk(function) if isinstance(one, ast.Call)]
        found = [(call, logged) for call in calls if (logged := _logged(call)) is not None]
        values = _assigned(tree.body) | _assigned(ast.walk(function)) if found else {}
        for call, (method, logger, message) in found:
            level = LEVELS[method] or ", ".join(_levels(function) or _levels(tree))
            about = (_logger(logger, source), level, tuple(_fields(call, values)))
            texts = _texts(message, values)
            assert texts, f"{file.name}:{call.lineno}: the message is no constant"
            for text in texts:
                yield Event(about[0], _constant(text), *about[1:], _comment(lines, call.lineno))


def _fields(call: ast.Call, values: Values) -> Iterator[str]:
    given = {one.arg: one.value for one in call.keywords}
    yield from dict.fromkeys(_keys(given["extra"], values) if "extra" in given else ())


def _logged(call: ast.Call) -> tuple[str, ast.expr, ast.expr] | None:
    """Method, logger and message of a call, which may be one for later: `call_later(1, log.info, "event")`."""
    for function, rest in (
        (call.func, call.args),
        *((one, call.args[place:]) for place, one in enumerate(call.args, 1)),
    ):
        is_one = isinstance(function, ast.Attribute) and function.attr in LEVELS and rest
        if isinstance(function, ast.Attribute) and is_one and "log" in ast.unparse(function.value).lower():
            return function.attr, function.value, rest[function.attr == "log"]
    return None


def _logger(node: ast.expr, source: str) -> str:
    named = ast.unparse(node)
    made = re.search(r"getLogger\('(.+)'\)", named) or re.search(
        rf'^{named} = .*getLogger\("(.+)"\)', source, re.MULTILINE
    )
    return made[1] if made else named


def _assigned(nodes: Iterable[ast.AST]) -> Values:
    """What names are set to, what is set below them (`extra["agent"] = agent`), and what functions return."""
    found: Values = {}
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found.setdefault(name, []).append(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                found.setdefault(name, []).append(value)
            case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name), slice=ast.Constant() as key)]):
                found.setdefault(name, []).append(ast.Dict([key], [key]))
            case ast.FunctionDef(name=name):
                returned = (one.value for one in ast.walk(node) if isinstance(one, ast.Return))
                found.setdefault(name, []).extend(one for one in returned if one is not None)
    return found


def _texts(node: ast.expr, values: Values) -> list[str]:
    """The texts that an expression may be."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.Name(id=name) | ast.Subscript(value=ast.Name(id=name)):
            return [text for value in values.get(name, ()) for text in _texts(value, {})]
        case ast.Dict(values=entries):
            return [text for value in entries for text in _texts(value, values)]
    return []


def _keys(node: ast.expr | None, values: Values) -> Iterator[str]:
    match node:
        case ast.Dict(keys=keys, values=entries):
            for key, value in zip(keys, entries, strict=True):
                yield from [str(key.value)] if isinstance(key, ast.Constant) else _keys(value, values)
        case ast.Name(id=name) | ast.Call(func=ast.Name(id=name), keywords=[]):
            for value in values.get(name, ()):
                yield from _keys(value, {one: found for one, found in values.items() if one != name})
        case ast.IfExp(body=one, orelse=other):
            yield from (*_keys(one, values), *_keys(other, values))
        case _:
            yield "…"


def _levels(function: ast.AST) -> list[str]:
    found = (one.attr for one in ast.walk(function) if isinstance(one, ast.Attribute))
    return sorted({one for one in found if one in LEVELS.values()})


def _constant(message: str) -> str:
    """The message as far as it is one, without advice."""
    constant = re.split(r"%|(?<=[;:]) ", message)[0]
    return constant if constant == message else f"{constant}{' ' if constant.endswith((';', ':')) else ''}…"


def _comment(lines: list[str], line: int) -> str:
    """The comment that ends directly above a line."""
    above: list[str] = []
    while lines[line - 2 - len(above)].lstrip().startswith("# "):
        above.insert(0, lines[line - 2 - len(above)].strip().removeprefix("# "))
    return " ".join(above)
