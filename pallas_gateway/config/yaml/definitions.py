"""Agent definitions as raw data, for `export` and `apply`; the meaning of their keys is not known here."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pallas_gateway.config.problems import ConfigurationError, Problem
from pallas_gateway.config.yaml.source import FREE_PREFIX, Document, parse_document, parse_documents

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

AGENTS = "agents"
_SHAPE = "must be a mapping with 'agents:', as 'pallas-gateway export' prints it"


@dataclass(frozen=True)
class Definitions:
    """Agents by name, with placeholders unexpanded; `lines` has the 1-based lines of their dotted paths."""

    file: str
    agents: Mapping[str, Any] = field(repr=False)
    lines: Mapping[str, int] = field(repr=False)

    def mended(self, problem: Problem) -> Problem:
        """Move a problem of the resulting file to its place here, if it is about one of these agents."""
        path = problem.path
        while path.startswith(f"{AGENTS}.") and path not in self.lines:
            path = path.rpartition(".")[0]
        return Problem(self.file, self.lines[path], problem.path, problem.message) if path in self.lines else problem


def defined_in(text: str, file: str) -> Definitions:
    """Return the agents that `agents.yaml` defines.

    Raises:
        ConfigurationError: it is not valid YAML, or has duplicate keys.
    """
    document = parse_document(text, file, None)
    if problems := [*document.problems, *document.duplicates]:
        raise ConfigurationError(problems)
    return Definitions(file, _agents(document), document.lines)


def read_definitions(text: str, file: str) -> Definitions:
    """Return the agents of a file in the form of `export`: one or more documents, each a mapping or a list of them.

    Raises:
        ConfigurationError: with every problem of the form.
    """
    documents = parse_documents(text, file)
    if problems := [one for document in documents for one in (*document.problems, *document.duplicates)]:
        raise ConfigurationError(problems)
    parts = [part for document in documents if document.data is not None for part in _parts(document)]
    problems = [problem for part in parts for problem in _problems(part)]
    agents: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for part in parts:
        found = _agents(part) if isinstance(part.data, dict) else {}
        for name in found.keys() & agents.keys():
            message = f"this agent is already on line {lines[f'{AGENTS}.{name}']}; keep one of them"
            problems.append(part.problem(f"{AGENTS}.{name}", message))
        agents |= found
        lines |= {path: line for path, line in part.lines.items() if path.startswith(f"{AGENTS}.")}
    if not agents and not problems:
        problems = [Problem(file, None, "", f"defines no agent; it {_SHAPE}")]
    if problems:
        raise ConfigurationError(problems)
    return Definitions(file, agents, lines)


def same(one: object, other: object) -> bool:
    """Return True if two definitions are equal; `1`, `true` and `'1'` differ, the order of keys does not matter."""
    return _canonical(one) == _canonical(other)


def _canonical(data: object) -> str:
    return json.dumps(data, sort_keys=True, default=repr)


def _parts(document: Document) -> Iterator[Document]:
    """Yield the document, or each entry if it is a list, with paths relative to the entry."""
    if not isinstance(document.data, list):
        yield document
        return
    for index, entry in enumerate(document.data):
        prefix = f".{index}."
        lines = {path.removeprefix(prefix): line for path, line in document.lines.items() if path.startswith(prefix)}
        yield Document(document.file, entry, {"": document.lines[f".{index}"], **lines})


def _problems(part: Document) -> Iterator[Problem]:
    if not isinstance(part.data, dict):
        yield part.problem("", _SHAPE)
        return
    for key in part.data:
        if key != AGENTS and not key.startswith(FREE_PREFIX):
            yield part.problem(key, "only 'agents' can be applied; change other settings in agents.yaml itself")
    if not isinstance(part.data.get(AGENTS, {}), dict):
        yield part.problem(AGENTS, "must be a mapping of agents by name")


def _agents(document: Document) -> dict[str, Any]:
    found = document.data.get(AGENTS) if isinstance(document.data, dict) else None
    agents = found if isinstance(found, dict) else {}
    return {name: agent for name, agent in agents.items() if not name.startswith(FREE_PREFIX)}
