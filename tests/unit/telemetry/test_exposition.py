"""Metrics are written as by the library, and series that have not changed are written once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics

from pallas_gateway.telemetry.exposition import MOST_FORMATS, SERIES_AT_ONCE
from pallas_gateway.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client.registry import Collector

    type Encode = Callable[[Collector], bytes]


class Counted:
    """An encoder that counts the series it writes."""

    def __init__(self, encode: Encode = generate_latest) -> None:
        self.encode = encode
        self.series = 0

    def __call__(self, collector: Collector) -> bytes:
        text = self.encode(collector)
        self.series += sum(not line.startswith(b"#") for line in text.splitlines())
        return text


@pytest.fixture
def metrics() -> Metrics:
    made = Metrics(CollectorRegistry())
    for agent in ("echo", 'with "quotes"\\ and ü'):
        made.expect_agent(agent, lambda: 2.0)
        made.expect_model(agent, "a.model")
    return made


@pytest.mark.parametrize("encode", [generate_latest, openmetrics])
async def test_text_is_that_of_the_library_whatever_changes(metrics: Metrics, encode: Encode) -> None:
    live = [0.0]

    async def check() -> None:
        assert await metrics.exposition(encode, "any") == encode(metrics.exposed)

    await check()
    metrics.send_message.labels("echo", "ok").inc()
    metrics.send_message_seconds.labels("echo").observe(0)
    metrics.count_operation("echo", "files", "tool", ok=True, seconds=1e7)
    metrics.downstream_up.labels("echo", "files").set(float("nan"))
    await check()
    metrics.instances_live.labels("echo").set_function(lambda: live[0])
    await check()
    live[0] = float("inf")
    metrics.downstream_up.labels("echo", "files").set(float("nan"))
    metrics.forget_calls('with "quotes"\\ and ü')
    await check()
    metrics.expect_agent('with "quotes"\\ and ü', lambda: 3.0)
    await check()


async def test_metrics_of_the_process_are_written_each_time() -> None:
    metrics = Metrics()

    text = await metrics.exposition(openmetrics, "any")

    names = {family.name for family in metrics.registry.collect()}
    assert {line.split()[2] for line in text.decode().splitlines() if line.startswith("# TYPE")} == names
    assert text.endswith(b"\n# EOF\n")
    assert text.count(b"# EOF") == 1


async def test_series_is_written_when_its_value_has_changed(metrics: Metrics) -> None:
    encode = Counted()
    text = await metrics.exposition(encode, "any")
    assert encode.series == sum(not line.startswith(b"#") for line in text.splitlines())
    encode.series = 0

    await metrics.exposition(encode, "any")
    assert encode.series == 0
    metrics.send_message.labels("echo", "ok").inc()
    metrics.send_message.labels("echo", "error").inc(0)
    await metrics.exposition(encode, "any")
    assert encode.series == 1


async def test_few_formats_are_kept(metrics: Metrics) -> None:
    encode = Counted()
    await metrics.exposition(encode, "first")
    whole, encode.series = encode.series, 0
    for number in range(MOST_FORMATS - 1):
        await metrics.exposition(encode, f"version={number}")
    encode.series = 0

    await metrics.exposition(encode, "first")
    assert encode.series == 0
    for number in range(MOST_FORMATS):
        await metrics.exposition(encode, f"version={MOST_FORMATS + number}")
    encode.series = 0
    await metrics.exposition(encode, "first")
    assert encode.series == whole


async def test_event_loop_runs_between_few_series(metrics: Metrics) -> None:
    for number in range(SERIES_AT_ONCE // 5):
        metrics.expect_agent(f"agent{number}", lambda: 0.0)
    series = sum(not line.startswith(b"#") for line in generate_latest(metrics.exposed).splitlines())
    await metrics.exposition(generate_latest, "any")
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turning = asyncio.create_task(turn())
    await metrics.exposition(generate_latest, "any")
    turning.cancel()

    lines_of_histograms = 17 * SERIES_AT_ONCE // 5
    assert turns >= (series - lines_of_histograms) // SERIES_AT_ONCE > 2
