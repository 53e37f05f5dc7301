"""docs/upstream.md is made from the files of repairs, which all say what they mend; `make docs` writes it."""

from __future__ import annotations

import re
import subprocess
import sys
from inspect import getdoc
from pathlib import Path

import pytest

from pallas_gateway import repairs
from pallas_gateway.changes.registry import Registered, Registry
from tests.unit.changes.upstream_page import PARAGRAPHS, ROOT, SCRIPTS, adapted, markdown, mirrored, modules_with_faults

PAGE = ROOT / "docs" / "upstream.md"
REPAIRS = Registry([repairs]).changes
a_repair = pytest.mark.parametrize("repair", REPAIRS.values(), ids=REPAIRS)


def test_the_page_in_docs_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == markdown(), "run `make docs`"


def test_the_module_prints_the_page() -> None:
    command = [sys.executable, "-W", "error", "-m", "tests.unit.changes.upstream_page"]
    done = subprocess.run(command, capture_output=True, check=True, cwd=ROOT)
    assert done.stdout.decode() == markdown()


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


@a_repair
def test_a_repair_has_a_test_where_it_is_looked_for(repair: Registered) -> None:
    assert (ROOT / mirrored(repair.module.__name__.split(".")[1:])).is_file()


def test_a_test_of_a_repair_has_a_repair() -> None:
    tests = {str(path.relative_to(ROOT)) for path in (ROOT / "tests/repairs").rglob("test_*.py")}
    assert tests == {mirrored(one.module.__name__.split(".")[1:]) for one in REPAIRS.values()}


def test_each_fault_of_an_adapter_says_what_it_is() -> None:
    assert len(adapted()) >= len(modules_with_faults())
    for section in adapted():
        assert [word for word in PARAGRAPHS if f"**{word}.** " in section.markdown()] == list(PARAGRAPHS), section.title
        assert section.gone_when


def test_the_tests_that_adapters_name_exist() -> None:
    named = re.findall(r"^- Test: `(.+)`\.$", "\n".join(one.where for one in adapted()), re.MULTILINE)
    assert named
    assert [one for one in named if not (ROOT / one).is_file()] == []


def test_a_path_below_the_package_is_made_one_of_a_test() -> None:
    assert mirrored(["repairs", "fast_agent", "save_history"]) == "tests/repairs/fast_agent/test_save_history.py"
    assert Path(ROOT, "tests/repairs/fast_agent/test_save_history.py").is_file()
