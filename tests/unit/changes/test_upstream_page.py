"""docs/upstream.md is made from the files of changes, which all say what they do; `make docs` writes it."""

import re
from inspect import getdoc
from pathlib import Path

import pytest

from pallas_gateway.changes.change import FAST_PATH, REPAIR
from pallas_gateway.changes.registry import Registered
from tests.unit.changes.upstream_page import (
    CHANGES,
    PARAGRAPHS,
    ROOT,
    SCRIPTS,
    adapted,
    markdown,
    mirrored,
    modules_with_faults,
    repaired,
)

REPAIRS = {name: one for name, one in CHANGES.items() if one.change.kind is REPAIR}
FAST_PATHS = {name: one for name, one in CHANGES.items() if one.change.kind is FAST_PATH}
a_change = pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
a_repair = pytest.mark.parametrize("repair", REPAIRS.values(), ids=REPAIRS)


@a_repair
def test_a_repair_says_what_it_mends(repair: Registered) -> None:
    title, _, text = (getdoc(repair.module) or "").partition("\n\n")
    assert re.fullmatch(r"[A-Z`\"'].{5,}\.", title), "the first line is the title, a sentence"
    said = re.findall(r"^(\w+): ", text, re.MULTILINE)
    assert [word for word in said if word in PARAGRAPHS] == list(PARAGRAPHS)


@a_repair
def test_a_repair_says_when_it_can_go(repair: Registered) -> None:
    assert repair.change.kind == "repair"
    assert re.fullmatch(r"[^A-Z.].*[^.]|[A-Z`].*[^.]", repair.change.gone_when, re.DOTALL), "a clause"
    assert re.fullmatch(r"[\d.]+", repair.change.seen_in)
    assert repair.change.script is None or (ROOT / SCRIPTS / repair.change.script).is_file()


@pytest.mark.parametrize("fast", FAST_PATHS.values(), ids=FAST_PATHS)
def test_a_fast_path_says_what_it_makes_faster(fast: Registered) -> None:
    title, _, text = (getdoc(fast.module) or "").partition("\n\n")
    assert re.fullmatch(r".{10,}\.", title), "the first line is the title"
    assert text
    assert fast.change.gone_when == fast.change.gone_when.removesuffix("."), "a clause"


def test_the_page_ends_with_the_fast_paths_by_name() -> None:
    _, _, slow = markdown().partition("\n## Slow parts of libraries\n")
    assert re.findall(r"^\| `(\w+)` \| .{10,}\.(?: `.+`)? \|$", slow, re.MULTILINE) == sorted(FAST_PATHS)


def test_a_section_of_a_repair_says_how_it_is_switched_off() -> None:
    ends = "\n".join(one.where for one in repaired())
    assert set(re.findall(r"`PALLAS_CHANGES=-(\S+)`", ends)) == {*REPAIRS}


@a_change
def test_a_change_has_a_test_where_it_is_looked_for(change: Registered) -> None:
    assert (ROOT / mirrored(change.module.__name__.split(".")[1:])).is_file()


def test_a_test_of_a_repair_has_a_repair() -> None:
    tests = {str(path.relative_to(ROOT)) for path in (ROOT / "tests/repairs").rglob("test_*.py")}
    assert tests == {mirrored(one.module.__name__.split(".")[1:]) for one in REPAIRS.values()}


def test_each_fault_of_an_adapter_says_what_it_is() -> None:
    assert len(adapted()) >= len(modules_with_faults())
    for section in adapted():
        said = re.findall(r"^(\w+): ", section.text, re.MULTILINE)
        assert [word for word in said if word in PARAGRAPHS] == list(PARAGRAPHS), section.title


def test_each_fault_of_an_adapter_names_what_reproduces_it() -> None:
    for section in adapted():
        named = re.findall(r"`(tests/[^`]+)`", section.where)
        assert named, section.title
        assert [one for one in named if not (ROOT / one).is_file()] == []


def test_a_path_below_the_package_is_made_one_of_a_test() -> None:
    assert mirrored(["repairs", "fast_agent", "save_history"]) == "tests/repairs/fast_agent/test_save_history.py"
    assert Path(ROOT, "tests/repairs/fast_agent/test_save_history.py").is_file()
