import os
from pathlib import Path

import pytest

from tests import support_programs
from tests.support_programs import PROGRAMS, Program, check_needs, find_node, is_there, needed, program


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two programs: one is installed."""
    for name in ("PALLAS_CI", "PALLAS_WITHOUT", "PALLAS_NODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(support_programs, "TESTS", tmp_path / "nowhere")
    monkeypatch.setitem(PROGRAMS, "here", Program(lambda: tmp_path / "here", "apt-get install here"))
    monkeypatch.setitem(PROGRAMS, "absent", Program(lambda: None, "make programs"))
    support_programs._found.cache_clear()


@pytest.fixture
def item(request: pytest.FixtureRequest) -> pytest.Item:
    """This test, without the marks it has."""
    item: pytest.Item = request.node
    item.own_markers.clear()
    return item


def fake_node(folder: Path, version: str) -> Path:
    node = folder / "node"
    node.write_text(f"#!/bin/sh\necho {version}\n", encoding="utf-8")
    node.chmod(0o755)
    return node


def test_the_node_of_the_variable_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = fake_node(tmp_path, "v24.1.0")
    monkeypatch.setenv("PALLAS_NODE", str(node))
    assert find_node() == node


def test_a_node_too_old_or_broken_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = fake_node(tmp_path, "v20.20.2")
    monkeypatch.setenv("PALLAS_NODE", str(tmp_path / "missing"))
    monkeypatch.setenv("PATH", str(node.parent) + os.pathsep + os.environ["PATH"])
    assert find_node() is None


def test_a_test_that_needs_nothing_or_what_is_there_runs(item: pytest.Item, tmp_path: Path) -> None:
    check_needs(item)
    item.add_marker(pytest.mark.needs("here"))
    check_needs(item)
    assert program("here") == str(tmp_path / "here")


def test_a_missing_program_skips_with_the_command_that_installs_it(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.needs("here", "absent"))
    assert needed(item) == ["absent", "here"]
    with pytest.raises(pytest.skip.Exception, match=r"absent \(make programs\)"):
        check_needs(item)


def test_a_missing_program_fails_in_ci_unless_it_is_hidden(item: pytest.Item, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALLAS_CI", "1")
    item.add_marker(pytest.mark.needs("absent"))
    with pytest.raises(pytest.fail.Exception, match="absent"):
        check_needs(item)
    monkeypatch.setenv("PALLAS_WITHOUT", "nginx,absent")
    with pytest.raises(pytest.skip.Exception, match="absent"):
        check_needs(item)


@pytest.mark.parametrize("hidden", ["here", "all", "nginx,here"])
def test_a_hidden_program_is_not_there(hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_there("here")
    monkeypatch.setenv("PALLAS_WITHOUT", hidden)
    assert not is_there("here")
    with pytest.raises(pytest.fail.Exception, match="has no mark"):
        program("here")


def test_a_mark_names_a_known_program(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.needs("abacus"))
    with pytest.raises(AssertionError, match="abacus"):
        needed(item)
