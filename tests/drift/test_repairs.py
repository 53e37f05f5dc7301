"""`make drift` names the repairs whose tests pass without them."""

from collections.abc import Mapping

import pytest

from tests.drift import repairs
from tests.drift.repairs import FAILED, PASSED, ROOT, Repair, all_repairs, lines

REPAIRS = [Repair(name, f"pallas_gateway/repairs/x/{name}.py", f"tests/repairs/x/test_{name}.py") for name in "abc"]


def test_a_repair_whose_test_passes_without_it_is_named() -> None:
    codes, seen = {"a": FAILED, "b": PASSED, "c": 5}, []

    def run(test: str, variables: Mapping[str, str]) -> int:
        seen.append((test, dict(variables)))
        return codes[test[-4]]

    assert lines(REPAIRS, run) == [
        "no longer needed: b: tests/repairs/x/test_b.py passes without it; "
        "delete both it and pallas_gateway/repairs/x/b.py",
        "not tested: c: pytest exits with 5 for tests/repairs/x/test_c.py",
    ]
    assert sorted(seen, key=lambda one: one[0]) == [(one.test, {"PALLAS_CHANGES": f"-{one.name}"}) for one in REPAIRS]


def test_nothing_is_said_while_all_are_needed() -> None:
    assert lines(REPAIRS, lambda *_: FAILED) == []


def test_every_repair_is_tried() -> None:
    found = all_repairs()
    assert "save-history" in {one.name for one in found}
    assert [one.file for one in found if not (ROOT / one.file).is_file()] == []
    assert [one.test for one in found if not (ROOT / one.test).is_file()] == []


def test_a_test_that_stands_still_without_its_repair_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repairs, "HANGS_SECONDS", 0.0)
    assert repairs.run_tests(REPAIRS[0].test, {}) == FAILED
