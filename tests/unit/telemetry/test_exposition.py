"""The text of the metrics is the present one, in each format."""

from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.registry import Collector

from pallas_gateway.telemetry.metrics import Metrics

type Encode = Callable[[Collector], bytes]


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
        assert await metrics.exposition(encode) == encode(metrics.exposed)

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

    text = await metrics.exposition(openmetrics)

    names = {family.name for family in metrics.registry.collect()}
    assert {line.split()[2] for line in text.decode().splitlines() if line.startswith("# TYPE")} == names
    assert text.endswith(b"\n# EOF\n")
    assert text.count(b"# EOF") == 1
