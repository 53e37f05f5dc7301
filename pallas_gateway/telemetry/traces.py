"""One call as a trace: its spans, and what joins them to the spans of the caller and of the downstreams.

Only OpenTelemetry's API is imported here, which the MCP SDK imports anyway. Outside `exporting` every span is a no-op
that stands for its parent; so a caller's `traceparent` is handed on just as it came.

The tracer is the gateway's own and not OpenTelemetry's global one: what fast-agent and the MCP SDK trace by themselves
would say everything twice, and some of it with the words of the conversation. Span names and attributes follow the
semantic conventions for generative AI and MCP, as far as those go. No span ever holds what was said, nor a token.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opentelemetry.context import attach, get_current
from opentelemetry.trace import NoOpTracer, SpanKind, StatusCode, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, MutableMapping

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

type Attributes = Mapping[str, str | int | list[str]]

_w3c = TraceContextTextMapPropagator()
_tracer: Tracer = NoOpTracer()


def are_on() -> bool:
    """Whether spans go anywhere."""
    return not isinstance(_tracer, NoOpTracer)


@contextmanager
def exporting(environ: Mapping[str, str]) -> Iterator[None]:
    """Spans made inside the block go to the collector that `environ` names, if it names one."""
    if not is_wanted(environ):
        yield
        return
    # Imported here: the SDK costs a third of a second, which nobody pays who does not trace.
    from pallas_gateway.telemetry.trace_export import tracer_for  # noqa: PLC0415

    with tracer_for(environ) as tracer, using(tracer):
        yield


@contextmanager
def using(tracer: Tracer) -> Iterator[None]:
    """Spans made inside the block are `tracer`'s."""
    global _tracer  # noqa: PLW0603  where spans go is a matter of the process, as it is for OpenTelemetry itself
    before, _tracer = _tracer, tracer
    try:
        yield
    finally:
        _tracer = before


def is_wanted(environ: Mapping[str, str]) -> bool:
    """Whether OpenTelemetry's variables ask for traces: an endpoint is named and nothing says no."""
    endpoint = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    disabled = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    exporters = [name.strip() for name in (environ.get("OTEL_TRACES_EXPORTER") or "otlp").split(",")]
    return bool(endpoint) and not disabled and "otlp" in exporters


def keep_content_out() -> None:
    """fast-agent's own tracing, where an operator has it on, leaves out what was said unless they ask for it."""
    os.environ.setdefault("TRACELOOP_TRACE_CONTENT", "false")


@contextmanager
def call(agent: str, headers: Mapping[str, str], *, mcp_method: str | None = "tools/call") -> Iterator[Span]:
    """The span of one call: current inside the block, below what the request's `traceparent` names.

    Without that header its parent is the current span: the MCP SDK has put there what the request's `_meta` brought.
    `mcp_method` is None for a call that did not come over MCP.
    """
    brought = _w3c.extract(headers)
    parent = brought if _is_in_a_trace(brought) else None
    attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": agent}
    if mcp_method is not None:
        attributes["mcp.method.name"] = mcp_method
    with _span(f"invoke_agent {agent}", attributes, kind=SpanKind.SERVER, parent=parent) as span:
        yield span


def tell_result(span: Span, facts: Mapping[str, Any] | None, *, failed: bool) -> None:
    """What became of a call, on its span.

    Args:
        span: of `call`.
        facts: `_meta["pallas/call"]` of its result, None for a request that did not come as far as being a call.
        failed: whether the caller got an error; its `stop_reason` is then the reason.
    """
    if not span.is_recording():
        return
    span.set_attribute("pallas.outcome", "error" if failed else "ok")
    if facts is None:
        return
    ids = {"gen_ai.conversation.id": facts["conversation_id"], "pallas.call_id": facts["call_id"]}
    span.set_attributes({name: value for name, value in ids.items() if value is not None})
    span.set_attribute("pallas.stop_reason", facts["stop_reason"])
    span.set_attribute("pallas.iterations", facts["iterations"])
    span.set_attributes(token_attributes(facts["usage"]))
    if failed:
        fail(span, facts["stop_reason"])


@contextmanager
def connecting(server: str) -> Iterator[None]:
    """The span of getting a connection to one downstream; an exception ends it as failed."""
    with _span(f"connect {server}", {"pallas.server": server}, kind=SpanKind.CLIENT):
        yield


def trace_id() -> str | None:
    """The id of the trace that the current call belongs to, None if it belongs to none."""
    context = get_current_span().get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else None


def hand_on(headers: MutableMapping[str, str]) -> None:
    """Add `traceparent` (and `tracestate`) for the current span, if there is one, to the headers of a request."""
    _w3c.inject(headers)


class CallSpans:
    """The LLM turns and tool calls of one call as spans below the one that is current when this is made.

    They begin and end in different places, hence no context managers. A tool call's span is current from its beginning,
    so what is sent to its server names it.
    """

    def __init__(self) -> None:
        self._call = get_current()
        self._open: dict[object, Span] = {}

    def begin_turn(self, key: object, *, agent: str, model: str) -> None:
        """An agent asks its model; `key` names the turn when it ends."""
        attributes = {"gen_ai.operation.name": "chat", "gen_ai.agent.name": agent, "gen_ai.request.model": model}
        self._begin(key, f"chat {model}", attributes)

    def begin_tool(self, key: object, *, server: str, tool: str) -> None:
        """A downstream is called, in the context of the caller of this function."""
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": tool,
            "mcp.method.name": "tools/call",
            "pallas.server": server,
        }
        attach(set_span_in_context(self._begin(key, f"tools/call {tool}", attributes), self._call))

    def is_recorded(self, key: object) -> bool:
        """Whether it is worth while to find out the attributes of what ends."""
        return key in self._open and self._open[key].is_recording()

    def end_turn(self, key: object, attributes: Attributes, *, error: str | None) -> None:
        """The turn named `key` is over; one that is not open is none of ours."""
        if (span := self._open.pop(key, None)) is not None:
            span.set_attributes(dict(attributes))
            _end(span, error)

    def end_tool(self, key: object, *, ok: bool) -> None:
        """The tool call named `key` is over; the call's span is current again."""
        if (span := self._open.pop(key, None)) is not None:
            _end(span, None if ok else "tool_error")
            attach(self._call)

    def end_all(self, error: str = "cancelled") -> None:
        """The call is over, and what still runs was cut off for the reason `error`."""
        while self._open:
            _, span = self._open.popitem()
            _end(span, error)

    def _begin(self, key: object, name: str, attributes: Attributes) -> Span:
        span = _tracer.start_span(name, context=self._call, kind=SpanKind.CLIENT, attributes=dict(attributes))
        self._open[key] = span
        return span


def token_attributes(usage: Mapping[str, int]) -> dict[str, int]:
    """Tokens under their conventional names; there, unlike in `usage`, the input includes what the cache did."""
    return {
        "gen_ai.usage.input_tokens": usage["input"] + usage["cache_read"] + usage["cache_write"],
        "gen_ai.usage.output_tokens": usage["output"],
        "gen_ai.usage.cache_read.input_tokens": usage["cache_read"],
        "gen_ai.usage.cache_creation.input_tokens": usage["cache_write"],
        "gen_ai.usage.reasoning.output_tokens": usage["reasoning"],
    }


def fail(span: Span, reason: str) -> None:
    """Mark a span as failed. Never with the text of an error, which may quote what was said."""
    span.set_attribute("error.type", reason)
    span.set_status(StatusCode.ERROR)


def _end(span: Span, error: str | None) -> None:
    if error is not None:
        fail(span, error)
    span.end()


@contextmanager
def _span(name: str, attributes: Attributes, *, kind: SpanKind, parent: Context | None = None) -> Iterator[Span]:
    with _tracer.start_as_current_span(
        name,
        context=parent,
        kind=kind,
        attributes=dict(attributes),
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield span
        except BaseException as error:
            fail(span, "cancelled" if isinstance(error, asyncio.CancelledError) else type(error).__name__)
            raise


def _is_in_a_trace(context: Context) -> bool:
    return get_current_span(context).get_span_context().is_valid
