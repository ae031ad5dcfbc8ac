"""OpenTelemetry traces of launches; spans are recorded after they have ended.

Tracing is off, and nothing is imported, unless ``OTEL_EXPORTER_OTLP_ENDPOINT`` (or its counterpart for traces alone)
names the receiver. A context is W3C's ``traceparent``, which is passed between processes in the variable
``TRACEPARENT``.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import re
import secrets
from typing import TYPE_CHECKING

from hopsml.core import extras

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import SpanContext

log = logging.getLogger("hopsml.tracing")

PARENT = "TRACEPARENT"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_SETTINGS = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_CERTIFICATE")
_CONTEXT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}")
_SEND_S, _EVERY_MS = 3.0, 1000  # timeout of one batch; interval between batches


def is_on() -> bool:
    """Return True if a receiver of spans is configured."""
    return any(os.environ.get(name) for name in _ENDPOINTS)


def inherited_context() -> str:
    """Return the context in which this process was started; empty if there is none or it is malformed."""
    context = os.environ.get(PARENT, "")
    return context if _CONTEXT.fullmatch(context) else ""


def context_of_name(text: str) -> str:
    """Return the context of a trace that is determined by its name, so that a restarted service continues it."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"00-{digest[:32]}-{digest[32:48]}-01"


def child_context(parent: str) -> str:
    """Return the context of a new span in the trace of its parent, or in a new trace without a parent."""
    trace = parent.split("-")[1] if parent else secrets.token_hex(16)
    return f"00-{trace}-{secrets.token_hex(8)}-01"


def variables(context: str, with_headers: bool = True) -> dict[str, str]:
    """Return the environment variables with which a process continues in this context.

    Args:
        context: the context.
        with_headers: whether to include the headers, which may contain a token: pass them only where no other user can
            read them.
    """
    names = (*_ENDPOINTS, *(_SETTINGS if with_headers else ()))
    return {PARENT: context, **{name: os.environ[name] for name in names if os.environ.get(name)}}


def record_span(
    name: str, context: str, parent: str, begin_s: float, end_s: float, problem: str = "", **attributes: str | int
) -> None:
    """Send a span that has ended, asynchronously.

    Args:
        name: name of the span.
        context: its context.
        parent: context of its parent; empty without one.
        begin_s: its beginning, seconds since 1970.
        end_s: its end, likewise.
        problem: reason of a failure; empty if it succeeded.
        **attributes: attributes of the span.
    """
    processor = _processor()
    if processor is None:
        return
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Status, StatusCode

    processor.on_end(
        ReadableSpan(
            name,
            context=_span_context(context),
            parent=_span_context(parent) if parent else None,
            resource=_resource(),
            attributes={f"hopsml.{key}": value for key, value in attributes.items()},
            status=Status(StatusCode.ERROR, problem[:1000]) if problem else Status(StatusCode.OK),
            start_time=int(begin_s * 1e9),
            end_time=int(max(begin_s, end_s) * 1e9),
        )
    )


def flush() -> None:
    """Wait, for some seconds at most, until recorded spans have been sent."""
    if is_on() and (processor := _processor()) is not None:
        processor.force_flush(int(_SEND_S * 1000))


def _span_context(context: str) -> SpanContext:
    """Convert a ``traceparent`` to OpenTelemetry's type."""
    from opentelemetry.trace import SpanContext, TraceFlags

    _, trace, span, _ = context.split("-")
    return SpanContext(int(trace, 16), int(span, 16), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


@functools.cache
def _resource() -> Resource:
    """Return the attributes that identify this process."""
    from opentelemetry.sdk.resources import Resource

    return Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "hopsml"), "process.pid": os.getpid()})


@functools.cache
def _processor() -> BatchSpanProcessor | None:
    """Return what sends spans on its own thread; None, with one warning, if its packages are missing."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        log.warning(
            "%s is set, but traces cannot be sent (%s): %s", _ENDPOINTS[0], error, extras.install_command("tracing")
        )
        return None
    import atexit

    processor = BatchSpanProcessor(OTLPSpanExporter(timeout=_SEND_S), schedule_delay_millis=_EVERY_MS)
    atexit.register(processor.shutdown)
    return processor
