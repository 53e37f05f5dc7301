"""The spans of a call, connected to the spans of its caller and of the downstreams.

This module imports only OpenTelemetry's API, which the MCP SDK imports too. Outside `exporting` every span is a no-op
in place of its parent, so a caller's `traceparent` is passed on unchanged.

The tracer is the gateway's own, not OpenTelemetry's global one: the traces of fast-agent and the MCP SDK would repeat
every span, some with the text of the conversation. Span names and attributes follow the semantic conventions for
generative AI and MCP. No span holds a message or a token.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import (
    Link,
    NoOpTracer,
    Span,
    SpanKind,
    StatusCode,
    Tracer,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

type Attributes = Mapping[str, str | int | list[str]]

_w3c = TraceContextTextMapPropagator()
_tracer: Tracer = NoOpTracer()


def are_on() -> bool:
    return not isinstance(_tracer, NoOpTracer)


@contextmanager
def exporting(environ: Mapping[str, str], *, flush_seconds: float = 3.0) -> Iterator[None]:
    """Export the spans of the block to the collector that `environ` names, if any.

    Args:
        environ: the variables of OpenTelemetry.
        flush_seconds: longest wait for the last spans at the end.
    """
    if not is_wanted(environ):
        yield
        return
    # Imported here, because the SDK takes a third of a second to import.
    from pallas_gateway.telemetry.trace_export import tracer_for  # noqa: PLC0415

    with tracer_for(environ, flush_seconds=flush_seconds) as tracer, using(tracer):
        yield


@contextmanager
def using(tracer: Tracer) -> Iterator[None]:
    """Create the spans of the block with `tracer`."""
    global _tracer  # noqa: PLW0603  one for the process, as in OpenTelemetry
    before, _tracer = _tracer, tracer
    try:
        yield
    finally:
        _tracer = before


def is_wanted(environ: Mapping[str, str]) -> bool:
    """Return true if OpenTelemetry's variables name an endpoint and do not disable traces."""
    endpoint = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    disabled = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    exporters = [name.strip() for name in (environ.get("OTEL_TRACES_EXPORTER") or "otlp").split(",")]
    return bool(endpoint) and not disabled and "otlp" in exporters


def keep_content_out() -> None:
    """Keep messages out of fast-agent's own traces, unless the operator's environment asks for them."""
    os.environ.setdefault("TRACELOOP_TRACE_CONTENT", "false")


def call(
    agent: str, headers: Mapping[str, str], *, mcp_method: str | None = "tools/call"
) -> AbstractContextManager[Span]:
    """The span of one call: current inside the block, a child of the span in which the request was made.

    That is the current span, which the MCP SDK takes from the request's `_meta`, with a link to the `traceparent` of
    the HTTP request (MCP's semantic conventions); else the latter. `mcp_method` is None for a call that did not come
    over MCP.
    """
    remote, has_parent = _w3c.extract(headers), get_current_span().get_span_context().is_valid
    carrier = get_current_span(remote).get_span_context()
    parent = remote if carrier.is_valid and not has_parent else None
    links = [Link(carrier)] if carrier.is_valid and has_parent else []
    attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": agent}
    if mcp_method is not None:
        attributes["mcp.method.name"] = mcp_method
    return _span(f"invoke_agent {agent}", attributes, kind=SpanKind.SERVER, parent=parent, links=links)


def record_result(span: Span, facts: Mapping[str, Any], *, failed: bool) -> None:
    """Record the outcome of a call on its span.

    Args:
        span: the span of `call`, which is recorded.
        facts: `_meta["pallas/call"]` of its result.
        failed: the caller got an error; its `stop_reason` is then the reason.
    """
    span.set_attribute("pallas.outcome", "error" if failed else "ok")
    ids = {"gen_ai.conversation.id": facts["conversation_id"], "pallas.call_id": facts["call_id"]}
    span.set_attributes({name: value for name, value in ids.items() if value is not None})
    span.set_attribute("pallas.stop_reason", facts["stop_reason"])
    span.set_attribute("pallas.iterations", facts["iterations"])
    span.set_attributes(token_attributes(facts["usage"]))
    if failed:
        fail(span, facts["stop_reason"])


def connecting(server: str) -> AbstractContextManager[Span]:
    """The span of a connection attempt to one downstream; an exception ends it as failed."""
    return _span(f"connect {server}", {"pallas.server": server}, kind=SpanKind.CLIENT)


def trace_id() -> str | None:
    """The id of the current call's trace, None if it has none."""
    context = get_current_span().get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else None


def hand_on(headers: MutableMapping[str, str]) -> None:
    """Add `traceparent` and `tracestate` of the current span, if any, to the headers of a request."""
    _w3c.inject(headers)


class CallSpans:
    """The LLM turns and tool calls of one call, as children of the span that is current at construction.

    They begin and end in different places, hence no context managers. A tool call's span is current from its begin, so
    requests to its server name it as their parent.
    """

    def __init__(self) -> None:
        self._call = get_current()
        self._open: dict[object, Span] = {}

    def begin_turn(self, key: object, *, agent: str, model: str) -> None:
        """Begin an LLM turn; `key` identifies it at its end."""
        attributes = {"gen_ai.operation.name": "chat", "gen_ai.agent.name": agent, "gen_ai.request.model": model}
        self._begin(key, f"chat {model}", attributes)

    def begin_tool(self, key: object, *, server: str, tool: str) -> None:
        """Begin a tool call, in the context of the caller of this function."""
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": tool,
            "mcp.method.name": "tools/call",
            "pallas.server": server,
        }
        attach(set_span_in_context(self._begin(key, f"tools/call {tool}", attributes), self._call))

    def is_recorded(self, key: object) -> bool:
        """Return true if the span is recorded, so that its attributes are needed."""
        return key in self._open and self._open[key].is_recording()

    def end_turn(self, key: object, attributes: Attributes, *, error: str | None) -> None:
        """End the turn of `key`; an unknown key is ignored."""
        if (span := self._open.pop(key, None)) is not None:
            span.set_attributes(dict(attributes))
            _end(span, error)

    def end_tool(self, key: object, *, ok: bool) -> None:
        """End the tool call of `key`; the call's span becomes current again."""
        if (span := self._open.pop(key, None)) is not None:
            _end(span, None if ok else "tool_error")
            attach(self._call)

    def end_all(self, error: str = "cancelled") -> None:
        while self._open:
            _, span = self._open.popitem()
            _end(span, error)

    def _begin(self, key: object, name: str, attributes: Attributes) -> Span:
        span = _tracer.start_span(name, context=self._call, kind=SpanKind.CLIENT, attributes=dict(attributes))
        self._open[key] = span
        return span


def token_attributes(usage: Mapping[str, int]) -> dict[str, int]:
    """Tokens under their conventional names, where the input includes cache reads and writes."""
    return {
        "gen_ai.usage.input_tokens": usage["input"] + usage["cache_read"] + usage["cache_write"],
        "gen_ai.usage.output_tokens": usage["output"],
        "gen_ai.usage.cache_read.input_tokens": usage["cache_read"],
        "gen_ai.usage.cache_creation.input_tokens": usage["cache_write"],
        "gen_ai.usage.reasoning.output_tokens": usage["reasoning"],
    }


def fail(span: Span, reason: str) -> None:
    """Mark a span as failed, without the error's text, which may quote the conversation."""
    span.set_attribute("error.type", reason)
    span.set_status(StatusCode.ERROR)


def _end(span: Span, error: str | None) -> None:
    if error is not None:
        fail(span, error)
    span.end()


@contextmanager
def _span(
    name: str, attributes: Attributes, *, kind: SpanKind, parent: Context | None = None, links: Sequence[Link] = ()
) -> Iterator[Span]:
    # Not by `start_as_current_span`, whose nested context managers a call that waits would hold.
    span = _tracer.start_span(name, context=parent, kind=kind, attributes=dict(attributes), links=links)
    token = attach(set_span_in_context(span))
    try:
        yield span
    except BaseException as error:
        fail(span, "cancelled" if isinstance(error, asyncio.CancelledError) else type(error).__name__)
        raise
    finally:
        detach(token)
        span.end()
