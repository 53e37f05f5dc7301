"""What the tests of the metrics rely on: an exposition read, a query judged by names, and by Prometheus itself."""

from pathlib import Path

import pytest

from tests.support.exposition import Exposition, check_alerts, lint, unknown_in, without_result

TEXT = """# HELP pallas_things_total Things.
# TYPE pallas_things_total counter
pallas_things_total{agent="a",kind="big"} 1.0
pallas_things_total{agent="b",kind="small"} 2.0
# HELP pallas_wait_seconds Waiting.
# TYPE pallas_wait_seconds histogram
pallas_wait_seconds_bucket{agent="a",le="1.0"} 1.0
pallas_wait_seconds_bucket{agent="a",le="+Inf"} 1.0
pallas_wait_seconds_count{agent="a"} 1.0
pallas_wait_seconds_sum{agent="a"} 0.5
# HELP other_things Not ours.
# TYPE other_things gauge
other_things 1.0
"""
BEFORE = Exposition(TEXT)
AFTER = Exposition(TEXT.replace('"big"} 1.0', '"big"} 3.0'))


def test_families_go_by_their_documented_names_and_are_the_gateways_own() -> None:
    assert {name: family.type for name, family in BEFORE.families.items()} == {
        "pallas_things_total": "counter",
        "pallas_wait_seconds": "histogram",
    }
    assert BEFORE.value("pallas_things_total", kind="small", agent="b") == 2
    assert BEFORE.value("pallas_things_total", agent="b") is None


@pytest.mark.parametrize(
    ("expression", "unknown"),
    [
        ('sum by (agent) (rate(pallas_things_total{kind="big"}[5m]))', []),
        ('pallas_things_total{kind=~"big|small"}', []),
        ("sum by (agent, le) (pallas_wait_seconds_bucket)", []),
        ('up{job="pallas"} == 0', []),
        ("pallas_thing_total > 0", ["pallas_thing_total"]),
        ("pallas_wait_seconds", ["pallas_wait_seconds"]),  # a histogram has no series of that name
        ("sum by (server) (pallas_things_total)", ["server"]),
        ('pallas_things_total{kind=~"big|huge"}', ['kind="huge"']),
        ('pallas_things_total{sort="big"}', ['sort="big"']),
    ],
)
def test_what_a_query_asks_for_and_is_not_there_is_named(expression: str, unknown: list[str]) -> None:
    assert unknown_in(expression, BEFORE) == unknown


@pytest.mark.needs("promtool")
def test_promtool_says_which_query_has_no_answer(tmp_path: Path) -> None:
    answered = ['increase(pallas_things_total{agent="a"}[5m]) > 0', 'pallas_things_total{kind="big"} == 3']
    assert without_result(answered, BEFORE, AFTER, tmp_path) == ""
    for silent in ("increase(pallas_wait_seconds_sum[5m]) > 0", "pallas_nothing"):
        assert silent in without_result([*answered, silent], BEFORE, AFTER, tmp_path)


@pytest.mark.needs("promtool")
def test_promtool_finds_fault_with_what_no_scraper_would_like() -> None:
    assert lint(TEXT) == ""
    assert "counter metrics should have" in lint(TEXT.replace("pallas_things_total", "pallas_things"))


@pytest.mark.needs("promtool")
def test_promtool_reads_alerts(tmp_path: Path) -> None:
    assert check_alerts({"Fine": "pallas_up == 0"}, tmp_path) == ""
    assert "Broken" in check_alerts({"Broken": "pallas_up == == 0"}, tmp_path)
