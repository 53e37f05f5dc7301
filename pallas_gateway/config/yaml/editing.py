"""Changes values in a YAML text; all other bytes stay, comments included.

It replaces text between the marks of PyYAML's nodes. A round trip through a library's tree would reformat the whole
file and move comments. The result is read again, which finds edits that changed more than intended because of
anchors, aliases or merges.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, override

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from pallas_gateway.config.problems import ConfigurationError, Problem
from pallas_gateway.config.yaml.definitions import AGENTS, defined_in, same
from pallas_gateway.config.yaml.source import MERGE_TAG

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    type Pair = tuple[ScalarNode, Node]

_INDENT = 2
_NO_WRAPPING = 1_000_000
_ALIAS = re.compile(r"\s*:\s*(\*[^\s,\[\]{}]+)")


def rendered(agents: Mapping[str, Any]) -> str:
    """Format agents as a file of their own."""
    return f"{_dumped({AGENTS: dict(agents)})}\n"


def with_agents(text: str, file: str, wanted: Mapping[str, Any]) -> str:
    """Return the text of `agents.yaml` with these agents added or changed; its other agents stay.

    Raises:
        ConfigurationError: an agent shares its definition with others in a way that cannot be separated.
    """
    before = dict(defined_in(text, file).agents)
    for name, agent in wanted.items():
        if name in before and same(before[name], agent):
            continue
        expected = {**before, name: agent}
        tries = [_changed(text, name, agent, whole=whole) for whole in (False, True)]
        text = _first_that_says(expected, file, tries, name)
        before = expected
    return text


def _first_that_says(expected: Mapping[str, Any], file: str, tries: Iterable[str], name: str) -> str:
    for result in tries:
        try:
            if same(dict(defined_in(result, file).agents), dict(expected)):
                return result
        except ConfigurationError:
            continue
    message = "cannot be changed by a program here, because of anchors, merges or `|+` around it; edit the file"
    raise ConfigurationError([Problem(file, None, f"{AGENTS}.{name}", message)])


def _changed(text: str, name: str, agent: Any, *, whole: bool) -> str:
    """Change each key of the agent that differs, or with `whole` replace its definition."""
    edits = _Edits(text)
    edits.change_root(name, agent, whole=whole)
    return edits.result()


class _Edits:
    """Changes of one text, collected by place and made at once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._newline = "\r\n" if "\r\n" in text else "\n"
        self._changes: list[tuple[int, int, str]] = []

    def result(self) -> str:
        text = self._text
        for start, end, new in sorted(self._changes, reverse=True):
            text = text[:start] + new + text[end:]
        return text if text.endswith("\n") else text + self._newline  # required after a block of text at the end

    def change_root(self, name: str, agent: Any, *, whole: bool) -> None:
        root = yaml.compose(self._text, Loader=yaml.SafeLoader)
        if not isinstance(root, MappingNode):
            return
        agents = _own(root).get(AGENTS)
        if agents is None:
            self._insert(root, AGENTS, {name: agent})
            return
        key, node = agents
        if not self._is_block(key, node):
            self._replace(agents, {**_data(self._text), name: agent})
            return
        found = _own(node).get(name)
        if found is None:
            self._insert(node, name, agent)
        elif whole or not isinstance(agent, dict) or not self._is_block(*found):
            self._replace(found, agent)
        else:
            self._change(found[1], _data(self._text)[name], agent)

    def _change(self, node: Node, data: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
        own = _own(node)
        for key in own.keys() - wanted.keys():
            self._remove(own[key])
        for key, value in wanted.items():
            if key in data and same(data[key], value):
                continue
            if key not in own:
                self._insert(node, key, value)
            elif isinstance(value, dict) and isinstance(data.get(key), dict) and self._is_block(*own[key]):
                self._change(own[key][1], data[key], value)
            else:
                self._replace(own[key], value)

    def _insert(self, mapping: Node, key: str, value: Any) -> None:
        """Insert after the mapping's last line, including comments below it."""
        pairs = list(mapping.value)
        place = self._end_of_comments(*pairs[-1])
        entry = _indented(_dumped({key: value}), pairs[0][0].start_mark.column)
        self._changes.append((place, place, self._newline + self._with_newlines(entry)))

    def _remove(self, pair: Pair) -> None:
        start = self._text.rfind("\n", 0, pair[0].start_mark.index) + 1
        is_scalar = isinstance(pair[1], ScalarNode) or self._is_alias(*pair)
        end = self._text.find("\n", self._end(*pair) if is_scalar else self._end_of_comments(*pair))
        self._changes.append((start, len(self._text) if end < 0 else end + 1, ""))

    def _replace(self, pair: Pair, value: Any) -> None:
        """Replace only the value; a comment behind a scalar stays."""
        key, node = pair
        flow = isinstance(node, MappingNode | SequenceNode) and bool(node.flow_style) and not self._is_alias(*pair)
        entry = _dumped({"k": value}, flow=flow or None).removeprefix("k:")
        start = self._text.index(":", key.end_mark.index) + 1
        new = _indented(entry, key.start_mark.column).lstrip() if not entry.startswith("\n") else None
        text = f" {new}" if new is not None else _indented(entry, key.start_mark.column)
        self._changes.append((start, self._end(*pair), self._with_newlines(text)))

    def _end(self, key: ScalarNode, node: Node) -> int:
        """Return the position after a value, without the comments and blank lines that follow."""
        if self._is_alias(key, node):
            match = _ALIAS.match(self._text, key.end_mark.index)
            return match.end() if match else key.end_mark.index
        return self._end_of(node)

    def _end_of(self, node: Node) -> int:
        if isinstance(node, MappingNode) and not node.flow_style and node.value:
            return self._end(*node.value[-1])
        if isinstance(node, SequenceNode) and not node.flow_style and node.value:
            last = node.value[-1]
            if last.start_mark.index >= node.start_mark.index:
                return self._end_of(last)
        end: int = node.end_mark.index
        return len(self._text[:end].rstrip()) if end > node.start_mark.index else end

    def _end_of_comments(self, key: ScalarNode, node: Node) -> int:
        """Return the end of the value's last line, or of the last comment below that is indented further."""
        end = place = self._end_of_line(self._end(key, node))
        while (place := self._text.find("\n", place) + 1) > 0:
            line = self._text[place : self._end_of_line(place)]
            words = line.lstrip()
            if words.startswith("#") and len(line) - len(words) > key.start_mark.column:
                end = place + len(line)
            elif words:
                break
        return end

    def _end_of_line(self, place: int) -> int:
        end = self._text.find("\n", place)
        if end < 0:
            return len(self._text)
        return end - 1 if self._text[end - 1 : end] == "\r" else end

    def _is_block(self, key: ScalarNode, node: Node) -> bool:
        return isinstance(node, MappingNode) and not node.flow_style and not self._is_alias(key, node)

    def _is_alias(self, key: ScalarNode, node: Node) -> bool:
        """Return True for an alias: its node is the one at the anchor, which is earlier in the text."""
        return node.start_mark.index < key.start_mark.index

    def _with_newlines(self, text: str) -> str:
        return text.replace("\n", self._newline)


def _own(node: Node) -> dict[str, Pair]:
    """Return the keys of a mapping itself, without merged ones."""
    return {key.value: (key, value) for key, value in node.value if key.tag != MERGE_TAG}


def _data(text: str) -> dict[str, Any]:
    return dict(defined_in(text, "").agents)


class _Dumper(yaml.SafeDumper):
    """Writes lists of plain values in one line, long text as a block, and list entries indented."""

    @override
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, indentless=False)


def _text(dumper: yaml.SafeDumper, value: str) -> ScalarNode:
    # Text with empty lines at its end cannot be a block: those that follow in the file would be added.
    style = "|" if "\n" in value and not value.endswith("\n\n") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


def _list(dumper: yaml.SafeDumper, value: list[Any]) -> SequenceNode:
    is_plain = all(not isinstance(one, list | dict) and "\n" not in str(one) for one in value)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=is_plain)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(list, _list)
_Dumper.ignore_aliases = lambda *_: True  # type: ignore[method-assign]  # each definition is complete


def _dumped(data: Mapping[str, Any], *, flow: bool | None = None) -> str:
    """Format data without a newline at the end."""
    style = {"sort_keys": False, "allow_unicode": True, "indent": _INDENT, "width": _NO_WRAPPING}
    if flow:
        [(key, value)] = data.items()
        inner = yaml.dump(value, Dumper=yaml.SafeDumper, default_flow_style=True, **style)  # type: ignore[call-overload]
        return f"{key}: {inner}".rstrip("\n")
    text: str = yaml.dump(dict(data), Dumper=_Dumper, default_flow_style=False, **style)  # type: ignore[call-overload]
    return text.removesuffix("\n")


def _indented(text: str, columns: int) -> str:
    return "\n".join(f"{' ' * columns}{line}" if line.strip() else line for line in text.split("\n"))
