"""The documents name files where they are, and their links lead somewhere."""

import re
from pathlib import Path

from pallas_gateway.changes.change import FAST_PATH
from pallas_gateway.changes.registry import registry
from pallas_gateway.changes.versions import SETTINGS
from tests.support.documents import ROOT, anchors, documents, files, name_of, without_code

PACKAGE = ROOT / "pallas_gateway"
FOLDERS = {one.name for one in PACKAGE.iterdir() if one.is_dir()} - {"agents"}  # projects have that folder, too
OWN_PATH = re.compile(rf"`((?:{'|'.join(sorted(FOLDERS))})/[\w/]+\.py)[`:]")
OTHER_PATH = re.compile(r"\b((?:tests|benchmarks|\.ci|\.github)/[\w./-]*\w)")
MADE_BY_A_RUN = {"benchmarks/results/short", "tests/conformance/node_modules"}
MODULE = re.compile(r"python -m ((?:tests|benchmarks|pallas_gateway)[\w.]*)")
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
LINK_NAMED_BY_PATH = re.compile(r"\[`?([\w./-]+(?:\.md|/))`?\]\((?!https?:)([^)#\s]+)")
NAMED_IN_CODE = re.compile(r"(?<![\w/.-])(docs/[\w./-]+\.md)(?:#([\w-]+))?")
CODE = (".py", ".yaml", ".yml", ".toml", ".js", ".mjs", ".html", ".sh", ".service", "Makefile", "Dockerfile", ".ci/run")


def test_each_module_that_a_document_names_exists() -> None:
    named = [(file.name, path) for file in documents() for path in OWN_PATH.findall(file.read_text())]
    assert named
    assert [one for one in named if not (PACKAGE / one[1]).is_file()] == []


def test_each_file_beside_the_package_that_a_document_names_exists() -> None:
    texts = {name_of(file): file.read_text() for file in documents()}
    named = [(name, path) for name, text in texts.items() for path in OTHER_PATH.findall(text)]
    modules = [(name, f"{one.replace('.', '/')}*") for name, text in texts.items() for one in MODULE.findall(text)]
    assert named
    assert modules
    lost = [one for one in (*named, *modules) if not any(ROOT.glob(one[1].replace("NAME", "*")))]
    assert [one for one in lost if one[1] not in MADE_BY_A_RUN] == []


def test_each_link_of_a_document_leads_to_a_file_and_a_heading() -> None:
    links = [
        (file, path, anchor) for file in documents() for path, anchor in LINK.findall(without_code(file.read_text()))
    ]
    assert len(links) > 400
    broken = [
        (name_of(file), path, anchor)
        for file, path, anchor in links
        if not leads_somewhere(file.parent / path if path else file, anchor)
    ]
    assert broken == []


def test_each_link_that_is_named_by_a_path_leads_to_it() -> None:
    links = [(file, *found) for file in documents() for found in LINK_NAMED_BY_PATH.findall(file.read_text())]
    of_documents = [one for one in links if one[1].endswith(".md")]
    assert of_documents
    wrong = [(name_of(file), said) for file, said, path in of_documents if not path.endswith(said)]
    assert wrong == []


def test_each_document_that_another_file_names_exists() -> None:
    named = [(file, *found) for file in files(*CODE, ".md") for found in NAMED_IN_CODE.findall(file.read_text())]
    own = [(file, path, anchor) for file, path, anchor in named if file != Path(__file__)]
    assert len({file for file, *_ in own}) > 40
    lost = [(name_of(file), path, anchor) for file, path, anchor in own if not leads_somewhere(ROOT / path, anchor)]
    assert lost == []


def test_the_index_of_decisions_lists_each_of_them() -> None:
    folder = ROOT / "docs" / "develop" / "decisions"
    listed = re.findall(r"^\| \[\d{4}\]\(([^)]+)\)", (folder / "README.md").read_text(), re.MULTILINE)
    assert listed == sorted(file.name for file in folder.glob("0*.md"))


def test_the_decisions_name_functions_and_fast_paths_that_exist() -> None:
    path = (ROOT / "docs/develop/decisions/0003-path-of-a-call.md").read_text()
    rows = re.findall(r"^\| (?:`([\w/]+)/`|the package itself) \| (.+) \|$", path, re.MULTILINE)
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

    speed = (ROOT / "benchmarks/decisions.md").read_text().split("\n## Fast paths\n", 1)[1].split("\n### ", 1)[0]
    measured = {
        name for cell in re.findall(r"^\| (`[^|]+) \|", speed, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)
    }
    made = [one.change for one in registry().changes.values() if one.change.kind is FAST_PATH]
    assert measured == {*(one.name for one in made), *SETTINGS}


def leads_somewhere(target: Path, anchor: str) -> bool:
    """Return True for a file or folder that exists and has the heading, if one is named."""
    return target.exists() and (not anchor or anchor in anchors(target.resolve()))
