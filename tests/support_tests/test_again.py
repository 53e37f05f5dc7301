from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from tests.again import FLAKY, LONGEST, MOST, Flaky, faults_of, known, verdict

TODAY = date(2026, 11, 27)
LISTED = Flaky("a", TODAY, "a lease of a second")


def test_the_list_of_flaky_tests_is_short_and_young() -> None:
    assert faults_of(known(FLAKY), datetime.now(UTC).date()) == []


def test_a_list_is_read(tmp_path: Path) -> None:
    file = tmp_path / "flaky.toml"
    file.write_text('[[test]]\nid = "a"\nsince = 2026-11-27\ncause = "a lease of a second"\n')
    assert known(file) == [LISTED]


def test_too_many_too_old_and_unexplained_tests_are_faults() -> None:
    assert faults_of([LISTED] * MOST, TODAY + LONGEST) == []
    assert faults_of([LISTED] * (MOST + 1), TODAY) == ["6 flaky tests, of which at most 5 are allowed"]
    assert faults_of([LISTED], TODAY + LONGEST + timedelta(days=1)) == ["a: flaky since 2026-11-27"]
    assert faults_of([Flaky("a", TODAY, " ")], TODAY) == ["a: no cause"]


def test_a_failed_test_is_red_unless_it_is_known_and_passes_twice() -> None:
    runs = {"a": iter([True, True]), "b": iter([True, False]), "c": iter([True, True])}
    lines = verdict(["a", "b", "c"], lambda test: next(runs[test]), [LISTED])
    assert [line.split(" passed")[0] for line in lines] == ["failed again: b", "flaky: c"]


def test_a_known_flaky_test_that_fails_again_is_red() -> None:
    assert verdict(["a"], lambda _: False, [LISTED]) == ["failed again: a"]


def test_a_run_that_failed_without_a_test_is_red() -> None:
    assert verdict([], lambda _: True, []) == ["the run failed, but no test did"]
