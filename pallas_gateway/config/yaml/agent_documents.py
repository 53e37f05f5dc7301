"""`kind: agent` documents, in which another platform (mcpctl) describes agents, as definitions of this one.

What has no counterpart here is left out and reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pallas_gateway.config.problems import Problem, did_you_mean
from pallas_gateway.config.yaml.expansion import PLACEHOLDER
from pallas_gateway.config.yaml.source import Document

KIND = "agent"
KIND_KEY = "kind"
LIST_KIND, ITEMS = "list", "items"
COUNTERPARTS = {
    "description": "description",
    "llm": "model",
    "systemPrompt": "instruction",
    "defaultParams": "default_params",
}
"""Fields of a document's `spec`, and the keys of an agent in `agents.yaml` that say the same."""
_SET_HERE = "the gateway sets it"
_ELSEWHERE: Mapping[str, str] = {
    "project": "agents have no project; name its MCP servers in the key 'servers'",
    "proxyModelName": "calls of an agent's model pass no proxy model",
    "extras": "no key says the same",
    "owner": "the caller that applies a document owns a new agent",
    "ownerId": "the caller that applies a document owns a new agent",
    "defaultParams.messages": "the history is sent with each call",
    **dict.fromkeys(("id", "llmId", "projectId", "version", "createdAt", "updatedAt", "status"), _SET_HERE),
}
"""Fields without a counterpart, with the reason."""
_ENVELOPE = (KIND_KEY, "apiVersion", "metadata", "spec", "status")
_AGENTS = "agents"


@dataclass(frozen=True)
class LeftOut:
    """A field that has no counterpart: of which agent, and the line where it stands."""

    agent: str
    path: str
    line: int | None
    why: str


@dataclass
class Converted:
    """A document in the form of `export`, and what it lost; with problems it is not usable."""

    document: Document
    left_out: list[LeftOut] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def is_of_another_platform(data: object) -> bool:
    """Return True for a document that says of which kind it is."""
    return isinstance(data, dict) and KIND_KEY in data


def items_of(data: object) -> list[Any] | None:
    """Return the documents in a `kind: List`; None for anything else."""
    if not isinstance(data, dict) or str(data.get(KIND_KEY, "")).casefold() != LIST_KIND:
        return None
    items = data.get(ITEMS)
    return items if isinstance(items, list) else []


def converted(part: Document) -> Converted:
    """Return a `kind: agent` document in the form of `export`: the fields are in `spec`, or next to `kind`."""
    return _Conversion(part).run()


class _Conversion:
    def __init__(self, part: Document) -> None:
        self._part = part
        self._data: dict[str, Any] = part.data if isinstance(part.data, dict) else {}
        self._result = Converted(Document(part.file))
        self._agent: dict[str, Any] = {}
        self._name = ""

    def run(self) -> Converted:
        if str(self._data[KIND_KEY]).casefold() != KIND:
            self._problem(KIND_KEY, f"only documents of the kind '{KIND}' can be applied")
            return self._result
        metadata = self._section("metadata")
        has_spec = "spec" in self._data
        fields = self._section("spec") if has_spec else {k: v for k, v in self._data.items() if k not in _ENVELOPE}
        at = "metadata.name" if "name" in metadata else "spec.name" if "name" in fields and has_spec else "name"
        name = metadata.get("name", fields.get("name", self._data.get("name")))
        if not isinstance(name, str) or not name.strip():
            self._problem("metadata" if metadata else KIND_KEY, "has no name: write metadata: {name: …}")
            return self._result
        self._name = name
        self._map_line(at, "")
        self._leave_out("metadata.", {key: value for key, value in metadata.items() if key != "name"})
        self._leave_out("", {"status": self._data.get("status")})
        for key, value in fields.items():
            self._take("spec." if has_spec else "", key, value)
        self._result.document.data = {_AGENTS: {name: self._agent}}
        return self._result

    def _take(self, prefix: str, key: str, value: Any) -> None:
        path = f"{prefix}{key}"
        if key == "name":
            return
        if key not in COUNTERPARTS:
            if key in _ELSEWHERE:
                self._leave_out(prefix, {key: value})
            else:
                self._problem(path, f"unknown field{did_you_mean(key, [*COUNTERPARTS, *_ELSEWHERE])}")
        elif value is not None:
            wanted = COUNTERPARTS[key]
            self._map_line(path, wanted)
            if key == "llm":
                value = self._reference(path, value)
            elif key == "defaultParams" and isinstance(value, dict):
                self._leave_out(f"{path}.", {"messages": value.get("messages")}, known="defaultParams.")
                value = {name: one for name, one in value.items() if name != "messages"}
            self._refuse_placeholders(path, value)
            self._agent[wanted] = value

    def _reference(self, path: str, value: Any) -> Any:
        """Return the name in `NAME` or `{name: NAME}`."""
        if not isinstance(value, dict):
            return value
        if "name" not in value:
            self._problem(path, "must be a name, or a mapping with the key 'name'")
        self._leave_out(f"{path}.", {key: one for key, one in value.items() if key != "name"})
        return value.get("name")

    def _refuse_placeholders(self, path: str, value: Any) -> None:
        """Refuse texts that the gateway would change: there a `${NAME}` is only text."""
        for text in _texts(value):
            if found := PLACEHOLDER.search(text):
                why = f"has {found[0]}, which is text there and an environment variable here; write it in another way"
                self._problem(path, why)
                return

    def _leave_out(self, prefix: str, fields: Mapping[str, Any], *, known: str = "") -> None:
        for key, value in fields.items():
            if value not in (None, "", [], {}):
                why = _ELSEWHERE.get(f"{known}{key}", "no key says the same")
                path = f"{prefix}{key}"
                self._result.left_out.append(LeftOut(self._name, path, self._part.line_of(path), why))

    def _section(self, key: str) -> dict[str, Any]:
        section = self._data.get(key)
        if not isinstance(section, dict | None):
            self._problem(key, "must be a mapping (indented 'key: value' lines)")
        return section if isinstance(section, dict) else {}

    def _map_line(self, path: str, wanted: str) -> None:
        """Note the lines of a value, and of all within it, under their paths in the result."""
        here = f"{_AGENTS}.{self._name}{f'.{wanted}' if wanted else ''}"
        lines = self._result.document.lines
        lines[here] = self._part.line_of(path) or 1
        for one, line in self._part.lines.items():
            if one.startswith(f"{path}."):
                lines[f"{here}{one.removeprefix(path)}"] = line

    def _problem(self, path: str, message: str) -> None:
        self._result.problems.append(self._part.problem(path, message))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)
