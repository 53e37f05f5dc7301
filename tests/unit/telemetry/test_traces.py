"""Whether there are traces, which trace a call joins, and what is handed on; without the SDK unless it says so."""

import importlib
import os
import warnings
from collections.abc import Mapping
from importlib.util import find_spec

import pytest
from fast_agent.config import OpenTelemetrySettings, Settings
from opentelemetry.context import attach, detach, get_current
from opentelemetry.trace import INVALID_SPAN, ProxyTracerProvider, set_span_in_context

from pallas_gateway.runtime.settings.hosting import tame
from pallas_gateway.telemetry import traces

TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"
ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
INSTRUMENTATIONS = ("opentelemetry.instrumentation.openai", "opentelemetry.instrumentation.anthropic")
"""Of which fast-agent 0.10.48 has the first only."""


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        (ENDPOINT, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://collector:4318/v1/metrics"}, False),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "true"}, False),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "false"}, True),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, False),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": ""}, True),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "console, otlp"}, True),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "console"}, False),
    ],
)
def test_traces_are_on_where_opentelemetrys_variables_say_so(environ: Mapping[str, str], wanted: bool) -> None:
    assert traces.is_wanted(environ) is wanted


def test_unwanted_traces_are_off_inside_the_block_too() -> None:
    with traces.exporting({}):
        assert not traces.are_on()


def test_a_requests_meta_wins_over_its_header() -> None:
    other = f"00-{'a' * 32}-{'b' * 16}-00"
    with traces.call("outer", {"traceparent": TRACEPARENT}), traces.call("inner", {"traceparent": other}):
        assert traces.trace_id() == TRACE_ID


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "nonsense",
        TRACE_ID,
        TRACEPARENT.replace("00-", "ff-", 1),
        TRACEPARENT.upper(),
        TRACEPARENT.replace(TRACE_ID, "0" * 32),
        TRACEPARENT.replace(SPAN_ID, "0" * 16),
        TRACEPARENT + "-and-more",
        "x" * 100_000,
        "\u0660" * 55,
    ],
)
def test_a_malformed_traceparent_is_none(traceparent: str) -> None:
    headers: dict[str, str] = {}
    with traces.call("echo", {"traceparent": traceparent, "tracestate": "vendor=1"}):
        traces.hand_on(headers)
        assert traces.trace_id() is None
    assert headers == {}


@pytest.mark.parametrize("tracestate", ["=", ",,,,", "a" * 1000, "a=b," * 500, "k=\x7f", "ü=ü"])
def test_a_malformed_tracestate_costs_no_call(tracestate: str) -> None:
    with traces.call("echo", {"traceparent": TRACEPARENT, "tracestate": tracestate}):
        assert traces.trace_id() == TRACE_ID


def test_ending_what_never_began_does_nothing() -> None:
    token = attach(set_span_in_context(INVALID_SPAN))
    try:
        spans, before = traces.CallSpans(), get_current()
        spans.end_turn("turn", {}, error=None)
        spans.end_tool("tool", ok=True)
        assert get_current() is before
    finally:
        detach(token)


@pytest.mark.parametrize(("asked", "told"), [(None, False), ("false", False), ("true", True)])
def test_fast_agents_own_tracing_leaves_out_what_was_said_unless_asked(
    monkeypatch: pytest.MonkeyPatch, asked: str | None, told: bool
) -> None:
    """The switch of the instrumentations that fast-agent uses, which are on by themselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # theirs, of their own imports
        instrumentations = [importlib.import_module(f"{name}.utils") for name in INSTRUMENTATIONS if find_spec(name)]
    monkeypatch.setattr(os, "environ", {"TRACELOOP_TRACE_CONTENT": asked} if asked else {})
    settings = Settings(otel=OpenTelemetrySettings(enabled=True))
    tame(settings)
    assert settings.otel is not None
    assert settings.otel.enabled
    assert instrumentations
    assert {bool(one.should_send_prompts()) for one in instrumentations} == {told}


def test_fast_agents_own_tracing_is_off_while_the_gateway_traces() -> None:
    settings = Settings(otel=OpenTelemetrySettings(enabled=True))
    with traces.using(ProxyTracerProvider().get_tracer("any")):
        tame(settings)
    assert settings.otel is not None
    assert not settings.otel.enabled
