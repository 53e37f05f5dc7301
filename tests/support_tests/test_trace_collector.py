"""The collector, with OpenTelemetry's own exporter for a client."""

import asyncio
from typing import cast

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode

from tests.support.trace_collector import Span, trace_collector


def make_spans(endpoint: str, compression: Compression) -> None:
    provider = TracerProvider(resource=Resource({"service.name": "tests"}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint, compression=compression)))
    tracer = provider.get_tracer("maker")
    with tracer.start_as_current_span("parent", kind=SpanKind.SERVER, attributes={"n": 1, "texts": ["a", "b"]}):
        with tracer.start_as_current_span("younger"):
            pass
        with tracer.start_as_current_span("elder") as span:
            span.set_status(StatusCode.ERROR)
    provider.shutdown()


async def test_spans_arrive_as_they_were_made() -> None:
    async with trace_collector() as collector:
        for compression in (Compression.NoCompression, Compression.Gzip):
            await asyncio.to_thread(make_spans, f"{collector.base_url}/v1/traces", compression)
        await collector.wait_for_spans(6)

    (parent, _), (elder, _), (younger, _) = (collector.named(name) for name in ("parent", "elder", "younger"))
    assert collector.tree([parent]) == ["parent", "  elder", "  younger"]
    assert parent == Span(
        name="parent",
        kind="SERVER",
        trace_id=younger.trace_id,
        span_id=cast("str", younger.parent_id),
        parent_id=None,
        attributes={"n": 1, "texts": ["a", "b"]},
        is_error=False,
        scope="maker",
        resource={"service.name": "tests"},
    )
    assert (elder.is_error, younger.is_error) == (True, False)
    assert collector.holds("younger")
    assert not collector.holds("youngest")
