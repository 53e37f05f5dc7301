"""Scrape configuration, alerts and dashboard; tests/e2e/test_metrics.py has the dashboard's metrics."""

import re
from pathlib import Path

import pytest
import yaml

from tests.deploy.adapting import DEPLOY, promtool_accepts, shipped
from tests.support.dashboard import PANELS, QUERIES, as_promql
from tests.support.exposition import check_alerts
from tests.support.metrics_document import ALERTS

PROMETHEUS = DEPLOY / "prometheus"


@pytest.mark.needs("promtool")
def test_prometheus_takes_the_scrape_configuration_and_its_rules() -> None:
    promtool_accepts("check", "config", PROMETHEUS / "prometheus.yml")


def test_the_job_is_named_as_the_alerts_and_the_dashboard_know_it() -> None:
    [job] = yaml.safe_load(shipped("prometheus/prometheus.yml"))["scrape_configs"]
    assert f'up{{job="{job["job_name"]}"}}' in ALERTS["PallasDown"]
    jobs = {name for query in QUERIES for name in re.findall(r'job="(\w+)"', query)}
    assert jobs == {job["job_name"]}


@pytest.mark.needs("promtool")
def test_each_alert_fires_when_it_should_and_is_silent_when_all_is_well() -> None:
    promtool_accepts("test", "rules", PROMETHEUS / "alerts.test.yml")


def test_no_alert_goes_untried() -> None:
    wrong, well = yaml.safe_load(shipped("prometheus/alerts.test.yml"))["tests"]
    fired = {one["alertname"] for one in wrong["alert_rule_test"] if one["exp_alerts"]}
    assert fired == {one["alertname"] for one in well["alert_rule_test"]} == set(ALERTS)


@pytest.mark.needs("promtool")
def test_prometheus_takes_every_query_of_the_dashboard(tmp_path: Path) -> None:
    queries = {f"Query{number}": as_promql(query) for number, query in enumerate(QUERIES)}
    assert check_alerts(queries, tmp_path) == ""


def test_panels_have_names_of_their_own_and_do_not_lie_on_each_other() -> None:
    assert len({panel["title"] for panel in PANELS}) == len({panel["id"] for panel in PANELS}) == len(PANELS)
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells
