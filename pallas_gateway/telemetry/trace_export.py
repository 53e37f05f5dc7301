"""Where spans go: to an OTLP collector over HTTP, by OpenTelemetry's SDK and its variables.

Imported only when traces are on. Spans are sent by a thread of the SDK's; a collector that is slow or gone costs spans,
never a call, and is one line in the log when it goes and one when it is back.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import NoOpTracer

from pallas_gateway import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Tracer

FLUSH_SECONDS = 3.0
"""How long the end waits for the last spans to be sent."""
_log = logging.getLogger("pallas.traces")
_SENDER = OTLPSpanExporter.__module__
_QUEUE = "opentelemetry.sdk._shared_internal"
_HEADERS = "opentelemetry.util.re"
_SAID_ONCE = {
    _QUEUE: "spans are lost, more are made than the trace collector takes",
    _HEADERS: "OTEL_EXPORTER_OTLP_HEADERS holds something that is no header, which is left out",
}
_PROTOCOL = "http/protobuf"


@contextmanager
def tracer_for(environ: Mapping[str, str]) -> Iterator[Tracer]:
    """A tracer whose spans are sent as the variables say; the last ones are sent, within `FLUSH_SECONDS`, at the end.

    Variables that OpenTelemetry cannot use cost the traces and are said; the gateway serves without them.
    """
    with _Complaints().heard() as complaints:
        opened = _open(environ, complaints)
        if opened is None:
            yield NoOpTracer()
            return
        provider, exporter = opened
        try:
            yield provider.get_tracer("pallas_gateway", __version__)
        finally:
            _end(provider, exporter)


def _open(environ: Mapping[str, str], complaints: _Complaints) -> tuple[TracerProvider, SpanExporter] | None:
    try:
        endpoint = _endpoint(environ)
        exporter = _TellingExporter(OTLPSpanExporter(), complaints, endpoint)
        provider = _provider(exporter)
    except Exception as error:  # noqa: BLE001  whatever the SDK finds wrong with its variables
        _log.error("traces are off, OpenTelemetry cannot use its variables", extra={"error": str(error)})
        return None
    _log.info("traces are on", extra={"endpoint": endpoint})
    asked = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if asked and asked != _PROTOCOL:
        _log.warning("traces are sent in another protocol than asked for", extra={"asked": asked, "sent": _PROTOCOL})
    return provider, exporter


def _provider(exporter: SpanExporter) -> TracerProvider:
    ours = Resource.create({"service.name": "pallas-gateway", "service.version": __version__})
    # Merged again, because what is created in code would win over what the operator says.
    resource = ours.merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)  # its own end could take half a minute
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _endpoint(environ: Mapping[str, str]) -> str:
    """Where spans go, as far as it may be logged: without credentials, path and query."""
    url = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or ""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _end(provider: TracerProvider, exporter: SpanExporter) -> None:
    """Send what is left. In a thread that nobody waits for at exit: the SDK would wait 30 s for a hanging collector."""
    ending = threading.Thread(target=provider.shutdown, name="traces-flush", daemon=True)
    ending.start()
    ending.join(FLUSH_SECONDS)
    if ending.is_alive():
        exporter.shutdown()  # gives up its retries


class _Complaints(logging.Filter):
    """Takes out of the log what the SDK says, several records for each attempt and some with values of its variables.

    What an operator should know of it is said here, or kept for `_TellingExporter`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._first: str | None = None
        self._said: set[str] = set()

    @contextmanager
    def heard(self) -> Iterator[_Complaints]:
        """Listen to the SDK inside the block."""
        loggers = [logging.getLogger(name) for name in (_SENDER, _QUEUE, _HEADERS)]
        for logger in loggers:
            logger.addFilter(self)
        try:
            yield self
        finally:
            for logger in loggers:
                logger.removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Let nothing pass."""
        if record.name == _SENDER:
            self._first = self._first or _reason(record)
        elif record.name not in self._said:
            self._said.add(record.name)
            _log.warning(_SAID_ONCE[record.name])
        return False

    def take(self) -> str:
        """The reason that was given first since the last time."""
        reason, self._first = self._first, None
        return reason or "not in time"


def _reason(record: logging.LogRecord) -> str:
    """The kind of error or the status, without an exception's text: it holds the URL, which may hold a key."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    told = [_kind(value) if isinstance(value, Exception) else value for value in arguments]
    return " ".join(str(value) for value in told if isinstance(value, str | int) and value != "spans")


def _kind(error: Exception) -> str:
    """`NewConnectionError` and the like; urllib3 wraps them in errors that say only that it has tried."""
    cause = getattr(error, "reason", None)
    return type(cause if isinstance(cause, Exception) else error).__name__


class _TellingExporter(SpanExporter):
    """Says once that the collector is gone, and once that it is back and what was lost."""

    def __init__(self, sender: SpanExporter, complaints: _Complaints, endpoint: str) -> None:
        self._sender = sender
        self._complaints = complaints
        self._endpoint = endpoint
        self._lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send `spans`; called by the SDK's thread."""
        result = self._sender.export(spans)
        error = self._complaints.take()
        if result is SpanExportResult.SUCCESS:
            self._came_through()
        else:
            self._was_lost(len(spans), error)
        return result

    def shutdown(self) -> None:
        """Give up what is being tried."""
        self._sender.shutdown()

    def _came_through(self) -> None:
        if self._lost:
            _log.info("trace collector is back", extra={"endpoint": self._endpoint, "lost_spans": self._lost})
        self._lost = 0

    def _was_lost(self, spans: int, error: str) -> None:
        if not self._lost:
            extra = {"endpoint": self._endpoint, "error": error}
            _log.warning("trace collector does not take spans, they are lost until it does", extra=extra)
        self._lost += spans
