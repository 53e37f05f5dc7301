"""Agent definitions as raw data, for `export` and `apply`; the meaning of their keys is not known here.

Documents of another platform are converted, see `agent_documents.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from pallas_gateway.config.problems import ConfigurationError, Problem
from pallas_gateway.config.yaml.agent_documents import (
    COUNTERPARTS,
    ITEMS,
    Converted,
    LeftOut,
    converted,
    is_of_another_platform,
    items_of,
)
from pallas_gateway.config.yaml.source import FREE_PREFIX, Document, parse_document, parse_documents

AGENTS = "agents"
_SHAPE = "must be a mapping with 'agents:', as 'pallas-gateway export' prints it"


@dataclass(frozen=True)
class DeclaredDefinitions:
    """Agents by name, with placeholders unexpanded; `lines` has the 1-based lines of their dotted paths."""

    file: str
    agents: Mapping[str, Any] = field(repr=False)
    lines: Mapping[str, int] = field(repr=False)
    left_out: Sequence[LeftOut] = ()
    converted: Set[str] = frozenset()
    """Agents from documents of another platform, which can describe only some keys."""

    def completed(self, before: Mapping[str, Any]) -> dict[str, Any]:
        """Return the agents; converted ones keep the keys that they have in `before` and no document describes."""
        return {**self.agents, **{name: {**_kept(before.get(name)), **self.agents[name]} for name in self.converted}}

    def mended(self, problem: Problem) -> Problem:
        """Move a problem of the resulting file to its place here, if it is about one of these agents."""
        path = problem.path
        while path.startswith(f"{AGENTS}.") and path not in self.lines:
            path = path.rpartition(".")[0]
        return Problem(self.file, self.lines[path], problem.path, problem.message) if path in self.lines else problem


def defined_in(text: str, file: str) -> DeclaredDefinitions:
    """Return the agents that `agents.yaml` defines.

    Raises:
        ConfigurationError: it is not valid YAML, or has duplicate keys.
    """
    document = parse_document(text, file, None)
    if problems := [*document.problems, *document.duplicates]:
        raise ConfigurationError(problems)
    return DeclaredDefinitions(file, _agents(document), document.lines)


def read_definitions(text: str, file: str) -> DeclaredDefinitions:
    """Return the agents of a file in the form of `export`: one or more documents, each a mapping or a list of them.

    Raises:
        ConfigurationError: with every problem of the form.
    """
    documents = parse_documents(text, file)
    if problems := [one for document in documents for one in (*document.problems, *document.duplicates)]:
        raise ConfigurationError(problems)
    found = [part for document in documents if document.data is not None for part in _parts(document)]
    conversions = [converted(part) if is_of_another_platform(part.data) else Converted(part) for part in found]
    parts = [one.document for one in conversions if not one.problems]
    problems = [problem for one in conversions for problem in one.problems or _problems(one.document)]
    agents: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for part in parts:
        of_part = _agents(part) if isinstance(part.data, dict) else {}
        for name in of_part.keys() & agents.keys():
            message = f"this agent is already on line {lines[f'{AGENTS}.{name}']}; keep one of them"
            problems.append(part.problem(f"{AGENTS}.{name}", message))
        agents |= of_part
        lines |= {path: line for path, line in part.lines.items() if path.startswith(f"{AGENTS}.")}
    if not agents and not problems:
        problems = [Problem(file, None, "", f"defines no agent; it {_SHAPE}")]
    if problems:
        raise ConfigurationError(problems)
    left_out = tuple(one for conversion in conversions for one in conversion.left_out)
    foreign = [one.document for part, one in zip(found, conversions, strict=True) if one.document is not part]
    return DeclaredDefinitions(
        file, agents, lines, left_out, frozenset(name for one in foreign for name in _agents(one))
    )


def _kept(before: Any) -> dict[str, Any]:
    agent = before if isinstance(before, dict) else {}
    return {key: value for key, value in agent.items() if key not in COUNTERPARTS.values()}


def left_out_lines(definitions: DeclaredDefinitions) -> Iterator[str]:
    """Yield one line for each field of documents of another platform that has no counterpart."""
    fields: dict[tuple[str, str], list[LeftOut]] = {}
    for one in definitions.left_out:
        fields.setdefault((one.path, one.why), []).append(one)
    for (path, why), (first, *others) in fields.items():
        agents = ", ".join([first.agent, *(f"{one.agent} (line {one.line})" for one in others)])
        yield f"{definitions.file}:{first.line}: {path}: left out, it has no counterpart here ({why}); agents: {agents}"


def same(one: object, other: object) -> bool:
    """Return True if two definitions are equal; `1`, `true` and `'1'` differ, the order of keys does not matter."""
    return _canonical(one) == _canonical(other)


def _canonical(data: object) -> str:
    return json.dumps(data, sort_keys=True, default=repr)


def _parts(document: Document) -> Iterator[Document]:
    """Yield the document, or each entry if it is a list, with paths relative to the entry."""
    items = items_of(document.data)
    entries, place = (document.data, "") if isinstance(document.data, list) else (items, ITEMS)
    if entries is None:
        yield document
        return
    for index, entry in enumerate(entries):
        prefix = f"{place}.{index}"
        inner = {
            path.removeprefix(f"{prefix}."): line
            for path, line in document.lines.items()
            if path.startswith(f"{prefix}.")
        }
        yield Document(document.file, entry, {"": document.lines[prefix], **inner})


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
