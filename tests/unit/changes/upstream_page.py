"""Writes docs/upstream.md from the files of `repairs/` and `fast_paths/` and from `FAULTS` of adapters, by `make docs`.

The first line of a file is the title of its section, its paragraphs `Symptom:`, `Reproduction:` and `Repair:` the text.
"""

from __future__ import annotations

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
PARAGRAPHS = ("Symptom", "Reproduction", "Repair")
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

The gateway mends faults of fast-agent, Hypercorn, the MCP SDK and the libraries of providers that would make an answer
wrong, or harm another call. A repair has one file, a name, and a test that fails without it; `PALLAS_CHANGES=-NAME`
switches it off. Sections without a name are mended by the gateway's own code, which cannot be switched off. Every name
of a library that a repair needs is checked before it is used: an upgrade that removes one stops the start, and
`make drift` names it ([upgrading](operate/upgrading.md)).

Some faults have a script that shows them without the gateway, on loopback: `python tests/upstream/NAME.py` prints
`fault` or `no fault`. `make test` runs these with the locked versions and `make drift` with the newest.

What is only slow is listed [at the end](#slow-parts-of-libraries).
"""

SLOW_PARTS = """\
## Slow parts of libraries

These files change no answer, only its cost: their tests compare the result with that of the library, and what does not
have the usual form is left to the library. With versions that were not tested they are off. What each of them
saved when it was made is in [benchmarks/decisions.md](../benchmarks/decisions.md#fast-paths).
"""


@dataclass(frozen=True, slots=True)
class Section:
    """One fault, or one slow part.

    Attributes:
        library: a key of `LIBRARIES`, or the name of another distribution.
        title: of the section.
        text: paragraphs.
        gone_when: a clause; empty if it is not known.
        where: lines that say where the fault is mended and tested.
    """

    library: str
    title: str
    text: str
    gone_when: str
    where: str

    def markdown(self) -> str:
        """The section, with its paragraphs in bold."""
        begins = re.compile(rf"^({'|'.join(PARAGRAPHS)}): (.)", re.MULTILINE)
        text = begins.sub(lambda found: f"**{found[1]}.** {found[2].upper()}", self.text)
        gone = f"**Can go** when {self.gone_when}.\n\n" if self.gone_when else ""
        return f"### {self.title}\n\n{text}\n\n{gone}{self.where}\n"


def markdown() -> str:
    """Return the page `docs/upstream.md`."""
    order = [*LIBRARIES]
    sections = [*repaired(), *adapted()]
    sections.sort(key=lambda one: (order.index(one.library) if one.library in order else len(order), one.library))
    parts = [INTRODUCTION]
    for library, those in groupby(sections, key=lambda one: one.library):
        parts += [f"## {LIBRARIES.get(library, library)}\n", *(one.markdown() for one in those)]
    return "\n".join([*parts, SLOW_PARTS, *(one.markdown() for one in made_faster())])


def repaired() -> list[Section]:
    """The section of each file in `repairs/`."""
    mended = [_section(one, "Mended") for one in CHANGES.values() if one.change.kind is REPAIR]
    return sorted(mended, key=lambda one: one.title)


def made_faster() -> list[Section]:
    """The section of each file in `fast_paths/`."""
    faster = [_section(one, "Made faster") for one in CHANGES.values() if one.change.kind is FAST_PATH]
    return sorted(faster, key=lambda one: one.title)


def _section(one: Registered, done: str) -> Section:
    change = one.change
    title, _, text = (getdoc(one.module) or "").partition("\n")
    path = one.module.__name__.split(".")[1:]
    lines = [f"- {done} in `{'/'.join(path)}.py`, switched off by `PALLAS_CHANGES=-{change.name}`."]
    lines += [f"- Test: `{mirrored(path)}`."]
    lines += [f"- Last seen in {change.libraries[0]} {change.seen_in}."] if change.seen_in else []
    lines += [f"- Libraries: {', '.join(change.libraries)}."] if change.kind is FAST_PATH else []
    lines += [f"- Script: `{SCRIPTS}/{change.script}`."] if change.script else []
    return Section(path[1], title.removesuffix("."), text.strip(), change.gone_when, "\n".join(lines))


def adapted() -> list[Section]:
    """The section of each fault that an adapter mends."""
    found = []
    for path in modules_with_faults():
        faults: tuple[Fault, ...] = import_module(".".join(path.with_suffix("").parts)).FAULTS
        for one in faults:
            where = f"- Mended in `{path.relative_to(PACKAGE.name)}`."
            where += f"\n- Test: `{one.test}`." if one.test else ""
            where += f"\n- Script: `{SCRIPTS}/{one.script}`." if one.script else ""
            found.append(Section(one.library, one.title, one.text.strip(), one.gone_when, where))
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
