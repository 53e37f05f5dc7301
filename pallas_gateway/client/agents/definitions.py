"""Agents of a running gateway as they stand in YAML: with the keys of `agents.yaml`, so that both can be exchanged.

Changes of such texts are shown before they are made.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
from pydantic.alias_generators import to_camel
from rich.console import Console
from rich.text import Text

from pallas_gateway.client.arguments import UsageError
from pallas_gateway.client.output import problem, without_controls
from pallas_gateway.config.problems import ConfigurationError, Problem
from pallas_gateway.config.yaml.definitions import AGENTS, DeclaredDefinitions, read_definitions

KEYS = (
    "title", "description", "icon", "instruction", "model", "servers", "tools", "agents", "params", "examples",
    "max_iterations", "loop_repeat_threshold", "call_timeout_seconds", "max_in_flight", "approve", "tool_limits",
    "max_tokens_per_call", "human_input",
)  # fmt: skip
"""The keys of a definition, in the order in which they are shown."""
_IN_YAML = {"params": "default_params"}
_IN_API = {"default_params": "params"}


def definition_in(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the definition in a document of the API, with the keys of `agents.yaml`."""
    found = ((key, document.get(to_camel(key))) for key in KEYS)
    return {_IN_YAML.get(key, key): value for key, value in found if value is not None}


def body_of(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return a definition of a YAML file as the API takes it; unknown keys stay as they are."""
    return {_name_in_api(key): value for key, value in definition.items()}


def malformed(wanted: DeclaredDefinitions, names: Iterable[str]) -> Iterator[Problem]:
    """Yield the problems of definitions that cannot be sent."""
    for name in names:
        path, agent = f"{AGENTS}.{name}", wanted.agents[name]
        if not isinstance(agent, dict):
            yield Problem(wanted.file, wanted.lines.get(path), path, "must be a mapping (indented 'key: value' lines)")
        elif "params" in agent and "default_params" in agent:
            message = "is another name of 'default_params', which is given as well; keep one of them"
            yield Problem(wanted.file, wanted.lines.get(f"{path}.params"), f"{path}.params", message)


def placed(wanted: DeclaredDefinitions, name: str, problems: Iterable[tuple[str, str]]) -> list[Problem]:
    """Return problems that the gateway has found in a definition, at their places in the file."""
    found = [Problem(wanted.file, None, _path_in(wanted, name, path), message) for path, message in problems]
    return [wanted.mended(one) for one in found]


def _path_in(wanted: DeclaredDefinitions, name: str, path: str) -> str:
    top, dot, rest = path.partition(".")
    agent = wanted.agents[name]
    keys = {_name_in_api(key): key for key in agent} if isinstance(agent, dict) else {}
    return f"{AGENTS}.{name}{f'.{keys.get(top, top)}' if top else ''}{dot}{rest}"


def _name_in_api(key: str) -> str:
    name = _IN_API.get(key, key)
    return to_camel(name) if name in KEYS else key


STDIN = "-"


def definitions_of(file: str) -> DeclaredDefinitions:
    """Return the definitions in a file, or on standard input.

    Raises:
        ConfigurationError: it cannot be read, or is malformed.
        UsageError: stdin is no text.
    """
    if file != STDIN:
        return read_definitions(text_of(Path(file), "no such file; -f names a file as `export` prints it")[1], file)
    try:
        return read_definitions(sys.stdin.buffer.read().decode("utf-8-sig"), "stdin")
    except UnicodeDecodeError:
        raise UsageError("stdin is not UTF-8 text.") from None


def text_of(path: Path, missing: str) -> tuple[bytes, str]:
    """Return the content of a file as bytes and as text; `missing` is the message if it does not exist.

    Raises:
        ConfigurationError: it cannot be read.
    """
    try:
        content = path.read_bytes()
        return content, content.decode("utf-8-sig")
    except FileNotFoundError:
        why = missing
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        why = "is not UTF-8 text; save it as UTF-8"
    raise ConfigurationError([Problem(str(path), None, "", why)])


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
