"""Writes docs/upstream.md from the files of `repairs/` and `fast_paths/`, and from `FAULTS` of adapters: `make docs`.

The first line of a file is the title of its section, its paragraphs `Symptom:` and `Repair:` the text.
"""

import ast
import re
from dataclasses import dataclass
from importlib import import_module
from inspect import getdoc
from itertools import groupby
from pathlib import Path

import pallas_gateway
from pallas_gateway import fast_paths, repairs
from pallas_gateway.changes.change import FAST_PATH, REPAIR, Fault
from pallas_gateway.changes.registry import Registered, Registry

PACKAGE = Path(pallas_gateway.__file__).parent
ROOT = PACKAGE.parent
SCRIPTS = "tests/upstream"
CHANGES = Registry([repairs, fast_paths]).changes
PARAGRAPHS = ("Symptom", "Repair")
LIBRARIES = {
    "fast_agent": "fast-agent",
    "openai": "OpenAI's APIs",
    "anthropic": "Anthropic",
    "google": "Google",
    "bedrock": "Amazon Bedrock",
    "logins": "Logins at providers",
    "mcp": "The MCP SDK",
    "hypercorn": "Hypercorn",
    "http": "HTTP",
}
"""Headings by folder of `repairs/` or distribution, in the order of the page."""

INTRODUCTION = """\
# Faults of libraries

<!-- Made by `make docs` from the files that mend them; to change a section, change the file that it names. -->

For operators who look for the cause of a fault, and for those who upgrade a library: what would make an answer wrong or
harm another call, and what the gateway does about it.

A section ends with the file that mends the fault, and the setting that switches the repair off, if there is one. The
file says when the fault was seen last (`seen_in`), and when the repair can go (`gone_when`).
`tests/repairs/http/test_unread_data.py` reproduces the fault that `repairs/http/unread_data.py` mends,
a script of `tests/upstream/` without the gateway. `make drift` runs all with the newest versions.
"""

SLOW_PARTS = """\
## Slow parts of libraries

[Fast paths](operate/reloading.md#fast-paths) change no answer, only its cost. The file in `fast_paths/` has details,
[benchmarks/decisions.md](../benchmarks/decisions.md#fast-paths) what each saved.

| name | what is made faster |
|---|---|
"""


@dataclass(frozen=True, slots=True)
class Section:
    """One fault.

    Attributes:
        library: a key of `LIBRARIES`, or the name of another distribution.
        title: of the section.
        text: paragraphs.
        where: the file that mends the fault, and what belongs to it.
    """

    library: str
    title: str
    text: str
    where: str

    def markdown(self) -> str:
        """The section, with its paragraphs in bold."""
        begins = re.compile(rf"^({'|'.join(PARAGRAPHS)}): (.)", re.MULTILINE)
        text = begins.sub(lambda found: f"**{found[1]}.** {found[2].upper()}", self.text).replace("**Symptom.** ", "")
        return f"### {self.title}\n\n{text}\n\n{self.where}\n"


def markdown() -> str:
    """Return the page `docs/upstream.md`."""
    order = [*LIBRARIES]
    sections = [*repaired(), *adapted()]
    sections.sort(key=lambda one: (order.index(one.library) if one.library in order else len(order), one.library))
    parts = [INTRODUCTION]
    for library, those in groupby(sections, key=lambda one: one.library):
        parts += [f"## {LIBRARIES.get(library, library)}\n", *(one.markdown() for one in those)]
    return "\n".join([*parts, SLOW_PARTS]) + "".join(made_faster())


def repaired() -> list[Section]:
    """The section of each file in `repairs/`."""
    mended = [_section(one) for one in CHANGES.values() if one.change.kind is REPAIR]
    return sorted(mended, key=lambda one: one.title)


def made_faster() -> list[str]:
    """The row of each file in `fast_paths/`: its name, the first line of its docstring, and its script."""

    def row(one: Registered) -> str:
        script = f" `{SCRIPTS}/{one.change.script}`" if one.change.script else ""
        return f"| `{one.change.name}` | {(getdoc(one.module) or '').partition('\n')[0]}{script} |\n"

    return sorted(row(one) for one in CHANGES.values() if one.change.kind is FAST_PATH)


def _section(one: Registered) -> Section:
    change = one.change
    title, _, text = (getdoc(one.module) or "").partition("\n")
    path = one.module.__name__.split(".")[1:]
    where = [f"`{'/'.join(path)}.py`", f"`PALLAS_CHANGES=-{change.name}`"]
    where += [f"`{SCRIPTS}/{change.script}`"] if change.script else []
    return Section(path[1], title.removesuffix("."), text.strip(), ", ".join(where))


def adapted() -> list[Section]:
    """The section of each fault that an adapter mends."""
    found = []
    for path in modules_with_faults():
        faults: tuple[Fault, ...] = import_module(".".join(path.with_suffix("").parts)).FAULTS
        for one in faults:
            shown = [one.test] if one.test else []
            shown += [f"{SCRIPTS}/{one.script}"] if one.script else []
            where = ", ".join(f"`{name}`" for name in (path.relative_to(PACKAGE.name), *shown))
            found.append(Section(one.library, one.title, one.text.strip(), where))
    return found


def modules_with_faults() -> list[Path]:
    """The modules that have a constant `FAULTS`, as paths below the project."""
    return [path.relative_to(ROOT) for path in sorted(PACKAGE.rglob("*.py")) if _has_faults(path.read_text())]


def _has_faults(source: str) -> bool:
    if "\nFAULTS" not in source:
        return False
    assigned = [one for one in ast.parse(source).body if isinstance(one, ast.Assign | ast.AnnAssign)]
    targets = [one.target if isinstance(one, ast.AnnAssign) else one.targets[0] for one in assigned]
    return any(isinstance(one, ast.Name) and one.id == "FAULTS" for one in targets)


def mirrored(path: list[str]) -> str:
    """The file with the test of a change, by the path of its module without the package."""
    *folders, name = path
    return "/".join(["tests", *folders, f"test_{name}.py"])
