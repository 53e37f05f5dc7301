"""The metrics, their label values and the numbers of their series."""

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.registry import Collector

from pallas_gateway import __version__
from pallas_gateway.core.agent_state import State
from pallas_gateway.features.audit.audit_log import AuditState
from pallas_gateway.telemetry.exposition import SAMPLES_AT_ONCE
from pallas_gateway.telemetry.metrics import (
    DURATION_BUCKETS,
    OPERATION_BUCKETS,
    OUTCOMES,
    STATES,
    Metrics,
)
from tests.support.fair_time import hastened


@pytest.fixture
def metrics() -> Metrics:
    """All metrics, each with one sample."""
    metrics = Metrics(CollectorRegistry())
    metrics.agent_info.labels("echo", "24200").set(1)
    metrics.agent_state.labels("echo", "ready").set(1)
    metrics.expect_agent("echo", lambda: 0.0)
    metrics.llm_turns.labels("echo", "passthrough").inc()
    metrics.cost.labels("echo", "passthrough").inc(0.5)
    metrics.llm_tokens.labels("echo", "passthrough", "input").inc(3)
    metrics.count_operation("echo", "tools", "prompt", ok=False, seconds=0.2)
    metrics.instances_live.labels("echo").set(0)
    metrics.health_status.labels("echo").set(0.5)
    metrics.downstream_up.labels("echo", "tools").set(1)
    metrics.llm_provider_up.labels("openai").set(1)
    metrics.threads_database_up.labels("sqlite").set(1)
    metrics.certificate_expires.labels("gateway.tls").set(1)
    metrics.set_keys({"ci": 1})
    metrics.caller_tokens.labels("key:ci", "echo").inc(3)
    metrics.fast_path.labels("deep_copies").set(1)
    metrics.expect_rules(["rule-1"])
    metrics.show_audit(AuditState("file", 1, 1, is_up=True))
    metrics.refresh()
    metrics.agent_state_changes.labels("echo", "ready").inc()
    return metrics


def exposed(metrics: Metrics) -> dict[str, Metric]:
    found = {}
    for family in metrics.registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found[name] = family
    return found


def test_every_metric_is_pallas_own_and_none_has_a_created_series(metrics: Metrics) -> None:
    text = generate_latest(metrics.registry).decode()
    names = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    assert all(name.startswith("pallas_") for name in names)
    assert not [name for name in names if name.endswith("_created")]


def test_the_gateway_says_that_it_is_up_and_what_it_is(metrics: Metrics) -> None:
    assert metrics.registry.get_sample_value("pallas_up") == 1
    (sample,) = exposed(metrics)["pallas_build_info"].samples
    assert sample.labels["version"] == __version__
    assert sample.value == 1


@pytest.mark.parametrize(
    ("name", "buckets", "shortest", "longest"),
    [
        ("pallas_send_message_duration_seconds", DURATION_BUCKETS, 0.05, 600),
        ("pallas_tool_call_duration_seconds", OPERATION_BUCKETS, 0.005, 300),
    ],
)
def test_durations_are_told_apart_from_the_shortest_to_the_longest(
    name: str, buckets: tuple[float, ...], shortest: float, longest: float, metrics: Metrics
) -> None:
    samples = exposed(metrics)[name].samples
    edges = [float(sample.labels["le"]) for sample in samples if sample.name.endswith("_bucket")]
    assert edges == [*buckets, float("inf")]
    assert (edges[0], edges[-2]) == (shortest, longest)
    assert 60 in edges  # the suggested alert asks for a p95 above it


def test_an_operation_is_counted_by_its_outcome_and_timed_whatever_it_is(metrics: Metrics) -> None:
    for ok in (True, False, True):
        metrics.count_operation("echo", "tools", "tool", ok=ok, seconds=2)
    labels = {"agent": "echo", "server": "tools", "operation": "tool"}
    outcomes = [
        metrics.registry.get_sample_value("pallas_tool_calls_total", {**labels, "outcome": outcome})
        for outcome in OUTCOMES
    ]
    assert outcomes == [2, 1]
    assert metrics.registry.get_sample_value("pallas_tool_call_duration_seconds_sum", labels) == 6


def test_every_state_of_an_agent_begins_at_0() -> None:
    assert set(STATES) == set(State)


def test_a_registry_of_its_own_has_the_process_as_well() -> None:
    text = generate_latest(Metrics().registry).decode()
    assert "process_resident_memory_bytes" in text
    assert "python_gc_objects_collected_total" in text


def test_agents_and_models_beyond_a_number_of_series_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pallas_gateway.telemetry.metrics.MOST_SERIES", 3)
    metrics = Metrics(CollectorRegistry())
    for number in range(5):
        metrics.send_message.labels(f"agent{number}", "ok").inc()
        metrics.llm_turns.labels("agent0", f"model{number}").inc()
        metrics.send_message_seconds.labels(agent=f"agent{number}").observe(1)
    metrics.send_message.labels("agent0", "ok").inc()

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, labels)

    assert [value("pallas_send_message_total", agent=f"agent{one}", outcome="ok") for one in (0, 2, 3)] == [2, 1, None]
    assert value("pallas_send_message_total", agent="(other)", outcome="ok") == 2
    assert value("pallas_llm_turns_total", agent="(other)", model="(other)") == 2
    assert value("pallas_send_message_duration_seconds_count", agent="(other)") == 2


def test_an_agent_that_people_have_deleted_leaves_no_series() -> None:
    metrics = Metrics(CollectorRegistry())
    metrics.expect_agent("echo", lambda: 0.0)
    before = generate_latest(metrics.registry)
    metrics.set_agent("poet", 1)
    metrics.expect_agent("poet", lambda: 0.0)
    metrics.expect_model("poet", "m", is_priced=True)
    metrics.expect_downstream("poet", "notes")
    metrics.count_operation("poet", "notes", "tool", ok=True, seconds=1)
    metrics.caller_tokens.labels("ci", "poet").inc()
    metrics.forget_agent("poet")
    metrics.forget_calls("poet")
    metrics.forget_counts("poet")
    assert generate_latest(metrics.registry) == before


@pytest.mark.parametrize("encode", [generate_latest, openmetrics])
async def test_metrics_that_the_library_writes_are_written_outside_the_event_loop(
    metrics: Metrics, encode: Callable[[Collector], bytes]
) -> None:
    threads = []

    def noting(registry: Collector) -> bytes:
        threads.append(threading.get_ident())
        return encode(registry)

    text = await metrics.exposition(noting)

    assert text == encode(metrics.exposed)
    assert b"pallas_event_loop_tasks 1.0" in text
    assert threads != [threading.get_ident()]


def test_a_rule_has_a_series_from_its_first_load_until_it_is_removed(metrics: Metrics) -> None:
    def used() -> dict[str, float]:
        return {one.labels["rule"]: one.value for one in exposed(metrics)["pallas_limit_used_ratio"].samples}

    metrics.expect_rules(["rule-1", "mine"])
    assert used() == {"rule-1": 0, "mine": 0}
    metrics.show_limits({"rule-1": 0.5, "mine": 1.25, "not loaded yet": 1})
    assert used() == {"rule-1": 0.5, "mine": 1.25}
    metrics.expect_rules(["mine"])
    assert used() == {"mine": 1.25}


def test_the_audit_log_has_series_while_it_is_on() -> None:
    metrics = Metrics(CollectorRegistry())
    names = ("pallas_audit_up", "pallas_audit_sequence", "pallas_audit_head")

    def shown() -> list[dict[str, float]]:
        families = exposed(metrics)
        return [{one.labels["output"]: one.value for one in families[name].samples} for name in names]

    assert shown() == [{}, {}, {}]
    metrics.show_audit(AuditState("file", 7, 0xABC, is_up=True))
    assert shown() == [{"file": 1}, {"file": 7}, {"file": 0xABC}]
    metrics.show_audit(AuditState("syslog", 1, 0x1, is_up=False))
    assert shown() == [{"syslog": 0}, {"syslog": 1}, {"syslog": 1}]
    metrics.show_audit(None)
    assert shown() == [{}, {}, {}]


async def test_a_slow_measurement_is_shown_by_a_later_scrape(metrics: Metrics) -> None:
    answered, begun = asyncio.Event(), list[asyncio.Task[None]]()

    async def measured() -> None:
        await answered.wait()
        metrics.show_limits({"mine": 0.5})

    def measure() -> asyncio.Task[None]:
        begun.append(asyncio.create_task(measured()))
        return begun[-1]

    metrics.expect_rules(["mine"])
    metrics.measure = measure
    for _ in range(2):
        await hastened(metrics.update())
    assert len(begun) == 1
    answered.set()
    await metrics.update()
    assert [one.value for one in exposed(metrics)["pallas_limit_used_ratio"].samples] == [0.5]


async def test_scrapes_wait_for_each_other(metrics: Metrics) -> None:
    loop, entered, may_end, running = asyncio.get_running_loop(), asyncio.Event(), threading.Event(), []

    def slow(_registry: Collector) -> bytes:
        running.append(threading.get_ident())
        loop.call_soon_threadsafe(entered.set)
        assert may_end.wait(10)
        return str(len(running)).encode()

    scrapes = [asyncio.create_task(metrics.exposition(slow)) for _ in range(3)]
    await entered.wait()
    await asyncio.to_thread(lambda: None)  # by now, a thread has taken the others if they did not wait
    at_once = len(running)
    may_end.set()
    assert at_once == 1
    assert await asyncio.gather(*scrapes) == [b"1", b"2", b"3"]


async def test_writing_metrics_lets_the_event_loop_run_every_few_samples(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    for number in range(SAMPLES_AT_ONCE):
        metrics.expect_agent(f"agent{number}", lambda: 0.0)
    expected = generate_latest(metrics.exposed)
    monkeypatch.setattr("pallas_gateway.telemetry.exposition.time", SimpleNamespace(sleep=pauses.append))

    text = await metrics.exposition(generate_latest)

    assert len(pauses) >= expected.count(b"\npallas_") / SAMPLES_AT_ONCE
    assert text.replace(b"pallas_event_loop_tasks 1.0", b"pallas_event_loop_tasks 0.0") == expected
