"""Sends spans to an OTLP collector over HTTP, with OpenTelemetry's SDK and its variables.

Imported only when traces are on. The SDK sends spans from a thread of its own. An unavailable collector costs spans,
never a call; its loss and its return are logged once each.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import override
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import NoOpTracer, Tracer

from pallas_gateway import __version__

_log = logging.getLogger("pallas.traces")
_SENDER = OTLPSpanExporter.__module__
_QUEUE = "opentelemetry.sdk._shared_internal"
_HEADERS = "opentelemetry.util.re"
_LOGGED_ONCE = {
    _QUEUE: "trace queue full",
    _HEADERS: "invalid OTEL_EXPORTER_OTLP_HEADERS",
}
_PROTOCOL = "http/protobuf"


@contextmanager
def tracer_for(environ: Mapping[str, str], *, flush_seconds: float) -> Iterator[Tracer]:
    """A tracer that sends its spans as the variables say, the last ones at the end, within `flush_seconds`.

    If OpenTelemetry cannot use the variables, the error is logged and the gateway serves without traces.
    """
    with _SdkLog().captured() as sdk_log:
        opened = _open(environ, sdk_log)
        if opened is None:
            yield NoOpTracer()
            return
        provider, exporter = opened
        try:
            yield provider.get_tracer("pallas_gateway", __version__)
        finally:
            _end(provider, exporter, flush_seconds)


def _open(environ: Mapping[str, str], sdk_log: _SdkLog) -> tuple[TracerProvider, SpanExporter] | None:
    try:
        endpoint = _endpoint(environ)
        exporter = _ReportingExporter(OTLPSpanExporter(), sdk_log, endpoint)
        ours = Resource.create({"service.name": "pallas-gateway", "service.version": __version__})
        # Merged again, because attributes from code would override the operator's variables.
        resource = ours.merge(OTELResourceDetector().detect())
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)  # its own end can take half a minute
        provider.add_span_processor(BatchSpanProcessor(exporter))
    except Exception as error:  # noqa: BLE001  the SDK raises many kinds
        _log.error("traces off", extra={"error": str(error)})
        return None
    _log.info("traces on", extra={"endpoint": endpoint})
    asked = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if asked and asked != _PROTOCOL:
        _log.warning("trace protocol not supported", extra={"asked": asked, "sent": _PROTOCOL})
    return provider, exporter


def _endpoint(environ: Mapping[str, str]) -> str:
    """The collector's address for the log: without credentials, path and query."""
    url = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or ""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _end(provider: TracerProvider, exporter: SpanExporter, seconds: float) -> None:
    """Send the last spans, in a daemon thread: the SDK would wait 30 s for a hanging collector."""
    ending = threading.Thread(target=provider.shutdown, name="traces-flush", daemon=True)
    ending.start()
    ending.join(seconds)
    if ending.is_alive():
        exporter.shutdown()  # ends its retries


class _SdkLog(logging.Filter):
    """Suppresses the SDK's records: it writes several per attempt, some with values of its variables.

    Logs the ones that concern an operator, or keeps them for `_ReportingExporter`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._first: str | None = None
        self._logged: set[str] = set()

    @contextmanager
    def captured(self) -> Iterator[_SdkLog]:
        """Filter the SDK's records inside the block."""
        loggers = [logging.getLogger(name) for name in (_SENDER, _QUEUE, _HEADERS)]
        for logger in loggers:
            logger.addFilter(self)
        try:
            yield self
        finally:
            for logger in loggers:
                logger.removeFilter(self)

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == _SENDER:
            self._first = self._first or _reason(record)
        elif record.name not in self._logged:
            self._logged.add(record.name)
            # Logged once.
            _log.warning(_LOGGED_ONCE[record.name])
        return False

    def take(self) -> str:
        reason, self._first = self._first, None
        return reason or "not in time"


def _reason(record: logging.LogRecord) -> str:
    """The type of the error, or the status; never an exception's text, which has the URL and perhaps a key."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    parts = [_kind(value) if isinstance(value, Exception) else value for value in arguments]
    return " ".join(str(value) for value in parts if isinstance(value, str | int) and value != "spans")


def _kind(error: Exception) -> str:
    """The type of an error such as `NewConnectionError`, which urllib3 wraps in errors about retries."""
    cause = getattr(error, "reason", None)
    return type(cause if isinstance(cause, Exception) else error).__name__


class _ReportingExporter(SpanExporter):
    """Logs once that the collector is unavailable, and once that it is available again and how many spans were lost."""

    def __init__(self, sender: SpanExporter, sdk_log: _SdkLog, endpoint: str) -> None:
        self._sender = sender
        self._sdk_log = sdk_log
        self._endpoint = endpoint
        self._lost = 0

    @override
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send `spans`; called by the SDK's thread."""
        result = self._sender.export(spans)
        error = self._sdk_log.take()
        if result is SpanExportResult.SUCCESS:
            if self._lost:
                extra: dict[str, object] = {"endpoint": self._endpoint, "lost_spans": self._lost}
                _log.info("trace collector available again", extra=extra)
            self._lost = 0
            return result
        if not self._lost:
            extra = {"endpoint": self._endpoint, "error": error}
            _log.warning("trace collector unavailable", extra=extra)
        self._lost += len(spans)
        return result

    @override
    def shutdown(self) -> None:
        self._sender.shutdown()
