"""The shipped alerts and the queries of docs/operate/observability.md ask for metrics that exist."""

import re
from pathlib import Path

import pytest

from tests.support.exposition import check_alerts
from tests.support.metrics_document import ALERTS, QUESTIONS
from tests.unit.telemetry.metrics_page import made, named

MADE = {named(one): one for one in made().values()}


@pytest.mark.parametrize("expression", [*ALERTS.values(), *QUESTIONS])
def test_an_expression_asks_for_labels_that_its_metrics_have(expression: str) -> None:
    names = {re.sub(r"_bucket$", "", name) for name in re.findall(r"\bpallas_\w+", expression)}
    have = {label for name in names for label in MADE[name]._labelnames} | {"le"}
    asked = {label for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(", ")}
    matched = {label for label, _ in re.findall(r'(\w+)=~?"([^"]*)"', expression)} if names else set()
    assert asked | matched <= have


@pytest.mark.needs("promtool")
def test_prometheus_takes_the_alerts_and_the_questions(tmp_path: Path) -> None:
    questions = {f"Question{number}": question for number, question in enumerate(QUESTIONS)}
    assert check_alerts({**ALERTS, **questions}, tmp_path) == ""
