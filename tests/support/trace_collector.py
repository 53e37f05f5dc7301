"""An OTLP collector over HTTP that keeps the spans it is sent, decoded, and the bytes they came in."""

import gzip
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from .asgi import Receive, Scope, Send, headers_of, http_only, read_body, respond
from .listener import serve_app
from .waiting import WAIT_SECONDS, Changes

type Value = str | int | float | bool | list[Value] | None


@dataclass(frozen=True)
class Span:
    """One span. Ids are hexadecimal, `parent_id` is None for a root; `scope` is who made it."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str | None
    attributes: Mapping[str, Value]
    is_error: bool
    scope: str
    resource: Mapping[str, Value] = field(repr=False)


class TraceCollector:
    def __init__(self) -> None:
        self.base_url = ""  # for OTEL_EXPORTER_OTLP_ENDPOINT; set by `trace_collector`
        self.spans: list[Span] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self._changes = Changes()

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def below(self, parent: Span) -> list[Span]:
        return [span for span in self.spans if span.parent_id == parent.span_id]

    def tree(self, roots: Iterable[Span]) -> list[str]:
        """Names, each indented by two spaces below its parent's, siblings by name."""
        lines = []
        for span in sorted(roots, key=lambda span: span.name):
            lines += [span.name, *(f"  {line}" for line in self.tree(self.below(span)))]
        return lines

    def holds(self, text: str) -> bool:
        """Whether `text` stands anywhere in what was sent."""
        return any(text.encode() in body for body in self.bodies)

    async def wait_for_spans(self, count: int, timeout_seconds: float = WAIT_SECONDS) -> None:
        await self._changes.until(lambda: len(self.spans) >= count, timeout_seconds, what=f"{count} spans")

    @http_only
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, headers = await read_body(receive), headers_of(scope)
        if (scope["method"], scope["path"]) != ("POST", "/v1/traces"):
            await respond(send, 404, b"", content_type="text/plain")
            return
        body = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body
        self.bodies.append(body)
        self.headers.append(headers)
        self.spans += decoded(body)
        self._changes.announce()
        await respond(send, 200, b"", content_type="application/x-protobuf")


@asynccontextmanager
async def trace_collector(*, port: int = 0) -> AsyncGenerator[TraceCollector]:
    collector = TraceCollector()
    async with serve_app(collector, port=port) as listener:
        collector.base_url = listener.base_url
        yield collector


def decoded(body: bytes) -> list[Span]:
    request = ExportTraceServiceRequest.FromString(body)
    return [
        _span(span, scoped.scope.name, _values(resource.resource.attributes))
        for resource in request.resource_spans
        for scoped in resource.scope_spans
        for span in scoped.spans
    ]


def _span(span: WireSpan, scope: str, resource: Mapping[str, Value]) -> Span:
    return Span(
        name=span.name,
        kind=WireSpan.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex() or None,
        attributes=_values(span.attributes),
        is_error=span.status.code == Status.STATUS_CODE_ERROR,
        scope=scope,
        resource=resource,
    )


def _values(attributes: Iterable[KeyValue]) -> dict[str, Value]:
    return {attribute.key: _value(attribute.value) for attribute in attributes}


def _value(value: AnyValue) -> Value:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None
