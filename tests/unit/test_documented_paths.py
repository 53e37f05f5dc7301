"""The documents name modules where they are, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

from pallas_gateway.changes.change import FAST_PATH
from pallas_gateway.changes.registry import registry
from pallas_gateway.changes.versions import SETTINGS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pallas_gateway"
DOCUMENTS = (*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"))
FOLDERS = {one.name for one in PACKAGE.iterdir() if one.is_dir()} - {"agents"}  # projects have that folder, too
OWN_PATH = re.compile(rf"`((?:{'|'.join(sorted(FOLDERS))})/[\w/]+\.py)[`:]")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def test_each_module_that_a_document_names_exists() -> None:
    named = [(file.name, path) for file in DOCUMENTS for path in OWN_PATH.findall(file.read_text())]
    assert named
    assert [one for one in named if not (PACKAGE / one[1]).is_file()] == []


def test_each_link_of_a_document_leads_to_a_file_and_a_heading() -> None:
    links = [(file, path, anchor) for file in DOCUMENTS for path, anchor in LINK.findall(file.read_text())]
    assert links
    broken = [
        (file.name, path, anchor)
        for file, path, anchor in links
        if not (target := file.parent / path if path else file).exists() or (anchor and anchor not in anchors(target))
    ]
    assert broken == []


def test_the_index_of_decisions_lists_each_of_them() -> None:
    folder = ROOT / "docs" / "develop" / "decisions"
    listed = re.findall(r"^\| \[\d{4}\]\(([^)]+)\)", (folder / "README.md").read_text(), re.MULTILINE)
    assert listed == sorted(file.name for file in folder.glob("0*.md"))


def test_the_decisions_name_functions_and_fast_paths_that_exist() -> None:
    path = (ROOT / "docs/develop/decisions/0003-path-of-a-call.md").read_text()
    rows = re.findall(r"^\| (?:`(\w+)/`|the package itself) \| (.+) \|$", path, re.MULTILINE)
    steps = [
        (PACKAGE / package / f"{module}.py", function)
        for package, row in rows
        for module, functions in re.findall(r"`([\w/]+)`: ([^;]+)", row)
        for function in re.findall(r"`(?:\w+\.)?(\w+)`", functions)
    ]
    gone = [(str(file), name) for file, name in steps if not re.search(rf"(def|class) {name}\b", file.read_text())]
    assert gone == []
    assert f"| modules on the path | 33 | {len({file for file, _ in steps})} |" in path
    assert f"| functions on the path | 69 | {len(steps)} |" in path

    speed = (ROOT / "docs/develop/decisions/0002-fast-paths.md").read_text()
    measured = {
        name for cell in re.findall(r"^\| (`[^|]+) \|", speed, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)
    }
    made = [one.change for one in registry().changes.values() if one.change.kind is FAST_PATH]
    assert measured == {*(one.name for one in made), *SETTINGS}


def anchors(file: Path) -> set[str]:
    """Return the anchors of a page: those that GitHub gives to headings, and those written as HTML."""
    text = file.read_text()
    headings = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(text))
    return {heading.strip().replace(" ", "-") for heading in headings} | set(re.findall(r'<a name="(\w+)">', text))
