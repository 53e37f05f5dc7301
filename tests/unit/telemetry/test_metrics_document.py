"""docs/operate/observability.md has every metric as it is, no other, and alerts that Prometheus takes."""

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.metrics import MetricWrapperBase

from pallas_gateway.hosting.agent_state import State
from pallas_gateway.telemetry.metrics import (
    DURATION_BUCKETS,
    HALTS,
    OPERATION_BUCKETS,
    OUTCOMES,
    QUESTION_KINDS,
    QUESTION_OUTCOMES,
    REFUSALS,
    Metrics,
)
from tests.support.exposition import check_alerts
from tests.support.metrics_document import ALERTS, QUESTIONS, ROWS, TEXT


def made() -> dict[str, MetricWrapperBase]:
    """Every metric in code by its documented name."""
    found = [value for value in vars(Metrics(CollectorRegistry())).values() if isinstance(value, MetricWrapperBase)]
    return {f"{one._name}_total" if one._type == "counter" else one._name: one for one in found}


MADE = made()


@pytest.mark.parametrize("name", MADE)
def test_a_metric_is_in_the_document_with_its_type_and_labels(name: str) -> None:
    row = ROWS[name]
    assert row.type == MADE[name]._type
    assert row.labels == set(MADE[name]._labelnames)


def test_every_metric_that_the_document_names_is_made() -> None:
    assert set(ROWS) == set(MADE)
    named = {re.sub(r"_(bucket|count|sum)$", "", name) for name in re.findall(r"\bpallas_\w+", TEXT)}
    assert named == set(MADE)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("pallas_send_message_total", OUTCOMES),
        ("pallas_calls_refused_total", REFUSALS),
        ("pallas_agent_loop_aborted_total", HALTS),
        ("pallas_questions_total", (*QUESTION_KINDS, *QUESTION_OUTCOMES)),
        ("pallas_agent_state", State),
        ("pallas_llm_tokens_total", ("input", "output", "cache_read", "cache_write", "cache_hit", "reasoning")),
        ("pallas_tool_calls_total", ("tool", "prompt", "resource")),
    ],
)
def test_a_closed_list_of_label_values_is_in_the_document(name: str, values: tuple[str, ...]) -> None:
    assert set(values) <= set(re.findall(r"`(\w+)`", ROWS[name].says))


def test_the_document_has_how_each_gauge_of_several_workers_is_made_one() -> None:
    _, _, table = TEXT.partition("\n| | over all workers |\n")
    rows = [row.strip("| ").split(" | ") for row in table.partition("\n\n")[0].splitlines()[1:]]
    says = {name: how for names, how in rows for name in re.findall(r"`(pallas_\w+)`", names)}
    by_mode: dict[str, str | tuple[str, ...]] = {"livesum": "the sum", "livemin": "the smallest"}
    by_mode |= {"livemostrecent": "what the worker found", "livemax": ("1 for each state", "the largest")}
    gauges = {name: one._multiprocess_mode for name, one in MADE.items() if isinstance(one, Gauge)}
    others = {name for name in gauges if name not in says}
    assert {gauges[name] for name in others} == {"livemax"}
    assert {name: how for name, how in says.items() if not how.startswith(by_mode[gauges[name]])} == {}


def test_the_buckets_are_the_documented_ones() -> None:
    for buckets in (DURATION_BUCKETS, OPERATION_BUCKETS):
        assert f"from {buckets[0]} to {buckets[-1]} seconds" in " ".join(TEXT.split())


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
