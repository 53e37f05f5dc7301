"""Where spans go: a real collector or none, and the variables that say so. None of it is process-wide."""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager

import pytest
from opentelemetry import trace

from pallas_gateway.telemetry import trace_export, traces
from tests.support.downstreams import refusing
from tests.support.listener import black_hole, reserved_port
from tests.support.trace_collector import trace_collector
from tests.support.waiting import eventually, stopwatch

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
ONLY_AT_THE_END = {"OTEL_BSP_SCHEDULE_DELAY": "600000"}
AT_ONCE = {"OTEL_BSP_SCHEDULE_DELAY": "10", "OTEL_EXPORTER_OTLP_TIMEOUT": "0.5"}
LOST = "trace collector unavailable"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@asynccontextmanager
async def exporting(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], *, flush_seconds: float = 3.0
) -> AsyncGenerator[None]:
    """As `serve` does it, but ended in a thread: the collector needs the loop to take the last spans."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with ExitStack() as stack:
        stack.enter_context(traces.exporting(environ, flush_seconds=flush_seconds))
        try:
            yield
        finally:
            await asyncio.to_thread(stack.close)
    assert not traces.are_on()
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)  # nobody has set one
    assert not any(logging.getLogger(name).filters for name in (trace_export._SENDER, trace_export._HEADERS))


def make_call(traceparent: str | None = None) -> None:
    with traces.call("echo", {"traceparent": traceparent} if traceparent else {}):
        pass


async def test_the_last_spans_are_sent_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with trace_collector() as collector:
        async with exporting(monkeypatch, {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.base_url, **ONLY_AT_THE_END}):
            assert traces.are_on()
            make_call()
            assert collector.spans == []
        (span,) = collector.named("invoke_agent echo")
    assert (span.parent_id, span.scope) == (None, "pallas_gateway")
    assert span.resource["service.name"] == "pallas-gateway"


async def test_what_the_operator_says_decides(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The traces' own endpoint and headers, the service's name, the sampler; a caller that samples is joined."""
    async with trace_collector() as collector:
        environ = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{collector.base_url}/v1/traces",
            "OTEL_EXPORTER_OTLP_HEADERS": "x-key=let-me-in,a secret that is no header",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
            "OTEL_SERVICE_NAME": "our-agents",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
            "OTEL_TRACES_SAMPLER": "parentbased_always_off",
            **ONLY_AT_THE_END,
        }
        async with exporting(monkeypatch, environ):
            make_call()
            make_call(TRACEPARENT)

    (span,) = collector.spans
    assert (span.trace_id, span.parent_id) == tuple(TRACEPARENT.split("-")[1:3])
    assert span.resource["service.name"] == "our-agents"
    assert span.resource["deployment.environment.name"] == "test"
    assert [headers["x-key"] for headers in collector.headers] == ["let-me-in"]
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == [
        "invalid OTEL_EXPORTER_OTLP_HEADERS",
        "trace protocol not supported",
    ]
    assert "a secret" not in caplog.text


async def test_a_collector_that_is_down_is_said_once_and_so_is_its_return(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="pallas.traces")
    with reserved_port() as port:
        url = f"http://user:password@127.0.0.1:{port}/v1/traces?key=hidden"
        one_retry = {**AT_ONCE, "OTEL_EXPORTER_OTLP_TIMEOUT": "2"}
        environment = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": url, **one_retry}
        async with AsyncExitStack() as kept, exporting(monkeypatch, environment):
            make_call()
            await said(caplog, LOST)
            make_call()
            collector = await kept.enter_async_context(trace_collector(port=port))  # also for spans that come late
            make_call()
            await collector.wait_for_spans(1)
            await said(caplog, "trace collector available again")

    assert [record.getMessage() for record in caplog.records] == ["traces on", LOST, "trace collector available again"]
    assert {vars(record)["endpoint"] for record in caplog.records} == {f"http://127.0.0.1:{port}"}
    assert vars(caplog.records[1])["error"] in {"NewConnectionError", "ConnectionError"}  # the exporter 1.45.0, 1.45.1
    assert vars(caplog.records[2])["lost_spans"] >= 1
    assert not any(secret in caplog.text for secret in ("password", "hidden"))


async def test_a_collector_that_refuses_is_said_with_its_status(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        refusing(401) as collector,
        exporting(monkeypatch, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": collector.url, **AT_ONCE}),
    ):
        make_call()
        await said(caplog, LOST)
    assert vars(caplog.records[-1])["error"].startswith("401")


async def test_a_collector_that_never_answers_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with black_hole() as url:
        async with (
            stopwatch() as watch,
            exporting(monkeypatch, {"OTEL_EXPORTER_OTLP_ENDPOINT": url, **ONLY_AT_THE_END}, flush_seconds=0.1),
        ):
            make_call()
    assert watch.seconds < 5  # the SDK alone would wait 10 s


async def test_more_spans_than_can_be_sent_are_lost_and_that_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limits = {"OTEL_BSP_MAX_QUEUE_SIZE": "2", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "2"}
    with black_hole() as url:
        async with exporting(
            monkeypatch, {"OTEL_EXPORTER_OTLP_ENDPOINT": url, **ONLY_AT_THE_END, **limits}, flush_seconds=0.1
        ):
            for _ in range(50):
                make_call()
    said_ = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said_.count("trace queue full") == 1


@pytest.mark.parametrize(
    "mistake",
    [
        {"OTEL_BSP_MAX_QUEUE_SIZE": "-1"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[collector"},
    ],
)
async def test_variables_that_cannot_be_used_cost_the_traces_and_are_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, mistake: dict[str, str]
) -> None:
    async with exporting(monkeypatch, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", **mistake}):
        assert not traces.are_on()
        make_call()
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.getMessage() == "traces off"


async def said(caplog: pytest.LogCaptureFixture, message: str) -> None:
    await eventually(lambda: message in caplog.messages, what=message)
