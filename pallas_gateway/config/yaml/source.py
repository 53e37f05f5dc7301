"""A YAML file as plain data with the line of every key; the meaning of keys is not known here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from yaml.constructor import SafeConstructor
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from pallas_gateway.config.problems import Problem
from pallas_gateway.config.yaml.expansion import SCALAR_ERRORS, expand

FREE_PREFIX = "x-"  # keys that belong to the operator: anchors to merge from, notes for other tools
MERGE_TAG = "tag:yaml.org,2002:merge"
MOST_COPIES = 100_000  # of values, by aliases
TEXT_TAG = "tag:yaml.org,2002:str"


@dataclass(frozen=True)
class UnsetVariable:
    """A placeholder whose variable has no value and no default; it stays in the value as written."""

    variable: str
    path: str
    line: int
    file: str


@dataclass
class Document:
    """The contents of one YAML file. `lines` maps dotted key paths to 1-based lines.

    `problems` make the file unusable; `duplicates` are keys that occur twice (the later one counts).
    Values may be secrets and are not in the repr.
    """

    file: str
    data: object = field(default=None, repr=False)
    lines: dict[str, int] = field(default_factory=dict, repr=False)
    problems: list[Problem] = field(default_factory=list)
    duplicates: list[Problem] = field(default_factory=list)
    unset: list[UnsetVariable] = field(default_factory=list)

    def line_of(self, path: str) -> int | None:
        """Return the line of a key, or of the nearest mapping around it."""
        while path and path not in self.lines:
            path = path.rpartition(".")[0]
        return self.lines.get(path)

    def problem(self, path: str, message: str) -> Problem:
        """Return a problem of this file at the line of `path`."""
        return Problem(self.file, self.line_of(path), path, message)


def read_document(path: Path, environ: Mapping[str, str], *, free_prefix: str | None = None) -> Document:
    """Read one file. Errors are in the document's `problems`; nothing is raised.

    Keys that begin with `free_prefix` are left out at every level (but may hold anchors that others merge).
    """
    document = Document(str(path))
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        document.problems.append(Problem(document.file, None, "", "is not UTF-8 text; save it as UTF-8"))
        return document
    except OSError as error:
        reason = "is a directory, not a file" if path.is_dir() else f"cannot be read: {error.strerror}"
        document.problems.append(Problem(document.file, None, "", reason))
        return document
    return parse_document(text, document.file, environ, free_prefix=free_prefix)


def parse_document(
    text: str, file: str, environ: Mapping[str, str] | None, *, free_prefix: str | None = None
) -> Document:
    """Parse a text; without `environ`, placeholders are not expanded."""
    try:
        return _document_of(yaml.compose(text, Loader=yaml.SafeLoader), file, environ, free_prefix)
    except (yaml.YAMLError, RecursionError) as error:
        return Document(file, problems=[_unreadable(error, file, text)])


def parse_documents(text: str, file: str) -> list[Document]:
    """Parse each document (`---`) of a text, without expanding placeholders; only the last may have `problems`."""
    documents: list[Document] = []
    try:
        nodes = yaml.compose_all(text, Loader=yaml.SafeLoader)
        documents.extend(_document_of(node, file, None, None) for node in nodes)
    except (yaml.YAMLError, RecursionError) as error:
        documents.append(Document(file, problems=[_unreadable(error, file, text)]))
    return documents


def _document_of(node: Node | None, file: str, environ: Mapping[str, str] | None, free_prefix: str | None) -> Document:
    document = Document(file)
    if node is not None:
        document.data = _Builder(document, environ, free_prefix).build(node, "", ())
    return document


def _unreadable(error: yaml.YAMLError | RecursionError, file: str, text: str) -> Problem:
    if isinstance(error, yaml.YAMLError):
        return _syntax_problem(error, file, text)
    return Problem(file, None, "", "is nested too deeply")


def _syntax_problem(error: yaml.YAMLError, file: str, text: str) -> Problem:
    line: int | None = None
    what = "cannot be read"
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else None
        what = _plainly(error.problem or error.context or what, mark, text)
    elif isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        what = error.reason
    return Problem(file, line, "", f"not valid YAML: {what}")


_PLAINLY = (
    ("'\\t'", "a tab stands where YAML allows only spaces; indent with spaces"),
    ("<block end>", "this line begins in another column than the lines that it belongs with; indent all of them alike"),
    ("could not find expected ':'", "a key has no colon after it; write 'key: value'"),
    ("that cannot start any token", "put the value in quotes, because it begins with this character"),
    ("unexpected end of stream", "a quote is not closed"),
    ("<stream end>", "a bracket or brace is not closed"),
)
"""Beginners' mistakes: a part of the parser's sentence, and the sentence instead."""


def _plainly(what: str, mark: yaml.Mark | None, text: str) -> str:
    """The parser's sentence in words that say what to do, for the mistakes that beginners make."""
    if what.startswith("mapping values are not allowed") and mark is not None:
        return _of_a_colon(text.splitlines()[: mark.line + 1], mark.column)
    return next((plain for part, plain in _PLAINLY if part in what), what)


def _of_a_colon(lines: list[str], column: int) -> str:
    """The reason why no colon may stand at a column of the last of these lines."""
    *before, here = lines
    if ": " in here[:column]:
        return "put the value in quotes, because it contains ': '"
    used = [number for number, line in enumerate(before, start=1) if line.strip() and not line.lstrip().startswith("#")]
    if used and ": " not in before[used[-1] - 1]:
        return f"line {used[-1]} has no ': ' after its key"
    return "this line is indented like a part of the value above it; indent it like the other keys"


class _Builder:
    """Converts composed nodes to data, and adds lines, duplicates and unset variables to the document."""

    def __init__(self, document: Document, environ: Mapping[str, str] | None, free_prefix: str | None) -> None:
        self.document = document
        self.environ = environ
        self.free_prefix = free_prefix
        self.constructor = SafeConstructor()
        self._built: set[Node] = set()
        self._copies = 0

    def build(self, node: Node, path: str, around: tuple[Node, ...]) -> object:
        if node in around:
            raise yaml.MarkedYAMLError(problem="an alias stands inside its own anchor", problem_mark=node.start_mark)
        self._count(node)
        if isinstance(node, MappingNode):
            return self._mapping(node, path, (*around, node))
        if isinstance(node, SequenceNode):
            return self._sequence(node, path, (*around, node))
        return self._scalar(node, path)

    def _count(self, node: Node) -> None:
        """Limit the copies that aliases make: aliases of aliases grow exponentially."""
        self._copies += node in self._built
        self._built.add(node)
        if self._copies > MOST_COPIES:
            raise yaml.MarkedYAMLError(
                problem=f"aliases repeat more than {MOST_COPIES:,} values", problem_mark=node.start_mark
            )

    def _mapping(self, node: MappingNode, path: str, around: tuple[Node, ...]) -> dict[str, object]:
        data: dict[str, object] = {}
        for key, (key_node, value_node) in self._pairs(node, path, around).items():
            if self.free_prefix and key.startswith(self.free_prefix):
                continue
            inner = f"{path}.{key}" if path else key
            self.document.lines[inner] = key_node.start_mark.line + 1
            data[key] = self.build(value_node, inner, around)
        return data

    def _sequence(self, node: SequenceNode, path: str, around: tuple[Node, ...]) -> list[object]:
        items: list[object] = []
        for index, item in enumerate(node.value):
            inner = f"{path}.{index}"
            self.document.lines[inner] = item.start_mark.line + 1
            items.append(self.build(item, inner, around))
        return items

    def _scalar(self, node: Node, path: str) -> object:
        if node.tag != TEXT_TAG:
            try:
                return self.constructor.construct_object(node)
            except SCALAR_ERRORS:
                return str(node.value)
        if self.environ is None:
            return str(node.value)
        expansion = expand(node.value, self.environ)
        line = node.start_mark.line + 1
        self.document.unset += [UnsetVariable(name, path, line, self.document.file) for name in expansion.unset]
        return expansion.text

    def _pairs(self, node: MappingNode, path: str, around: tuple[Node, ...]) -> dict[str, tuple[Node, Node]]:
        """Return the own keys and those merged with `<<`, which never replace an earlier one."""
        pairs: dict[str, tuple[Node, Node]] = {}
        merged: list[Node] = []
        for key_node, value_node in node.value:
            if key_node.tag == MERGE_TAG:
                merged += value_node.value if isinstance(value_node, SequenceNode) else [value_node]
                continue
            key = self._key(key_node)
            if key in pairs:
                first, line = pairs[key][0].start_mark.line + 1, key_node.start_mark.line + 1
                message = f"this key is already on line {first}; keep one of them"
                where = f"{path}.{key}" if path else key
                self.document.duplicates.append(Problem(self.document.file, line, where, message))
            pairs[key] = (key_node, value_node)
        for source in merged:
            if not isinstance(source, MappingNode) or source in around:
                raise yaml.MarkedYAMLError(problem="'<<' can only merge other mappings", problem_mark=source.start_mark)
            self._count(source)
            pairs = self._pairs(source, path, (*around, source)) | pairs
        return pairs

    def _key(self, node: Node) -> str:
        # The text as written, so that an agent may be called `on` or `2`, which YAML would read as something else.
        if not isinstance(node, ScalarNode):
            raise yaml.MarkedYAMLError(problem="a key must be plain text", problem_mark=node.start_mark)
        return str(node.value)
