"""Tests of trace contexts between processes, and of spans at their receiver."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from hopsml.core import tracing
from hopsml.experiment.reporting import LaunchPart, launch_parts
from tests.helpers import leaks
from tests.helpers.otlp import receiver

CONTEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(autouse=True)
def no_exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith("OTEL_") or name == tracing.PARENT:
            monkeypatch.delenv(name)
    yield
    tracing._processor.cache_clear()


@pytest.mark.fast
@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (CONTEXT, CONTEXT),
        ("", ""),
        ("00-0-0-01", ""),
        (CONTEXT.upper(), ""),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", ""),
        (f"{CONTEXT}-more", ""),
    ],
)
def test_malformed_trace_context_is_ignored(given: str, taken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tracing.PARENT, given)
    assert tracing.inherited_context() == taken


@pytest.mark.fast
def test_child_contexts_share_the_trace_of_their_root(monkeypatch: pytest.MonkeyPatch) -> None:
    root = tracing.context_of_name("digits-17 1000.25")
    assert root == tracing.context_of_name("digits-17 1000.25") != tracing.context_of_name("digits-17 1000.5")
    below = tracing.child_context(root)
    assert below.split("-")[1] == root.split("-")[1] and below.split("-")[2] != root.split("-")[2]
    assert tracing.child_context("").split("-")[1] != tracing.child_context("").split("-")[1]
    for context in (root, below, tracing.child_context("")):
        monkeypatch.setenv(tracing.PARENT, context)
        assert tracing.inherited_context() == context


@pytest.mark.fast
def test_otlp_headers_are_omitted_from_variables_unless_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not tracing.is_on()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://here")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=token")
    assert tracing.is_on()
    here = {tracing.PARENT: CONTEXT, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://here"}
    assert tracing.variables(CONTEXT, with_headers=False) == here
    assert tracing.variables(CONTEXT) == {**here, "OTEL_EXPORTER_OTLP_HEADERS": "authorization=token"}


@pytest.mark.fast
def test_parts_of_a_launch_are_consecutive() -> None:
    reached = {"executors": 11.0, "rendezvous": 12.5, "first step": 14.0}
    assert list(launch_parts(10.0, reached, 20.0)) == [
        LaunchPart("executors", 10.0, 11.0),
        LaunchPart("rendezvous", 11.0, 12.5),
        LaunchPart("first step", 12.5, 14.0),
    ]
    del reached["first step"]
    assert [one.name for one in launch_parts(10.0, reached, 20.0)] == ["executors", "rendezvous"], "it reports nothing"
    failed = list(launch_parts(10.0, {"executors": 11.0}, 20.0, "WorkerFailed: no"))
    assert failed[1:] == [LaunchPart("rendezvous", 11.0, 20.0, "WorkerFailed: no")]


@pytest.mark.local
def test_span_is_received_as_it_was_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver() as taken:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", taken.url)
        below = tracing.child_context(CONTEXT)
        with leaks.not_of_this_test():
            tracing.record_span("part", below, CONTEXT, 1000.25, 1001.5, "it broke", run="app_1", rank=2)
        tracing.flush()
        processor = tracing._processor()
        assert processor is not None
        processor.shutdown()
    (span,) = taken.spans
    assert (span.name, span.begin_s, span.end_s, span.problem) == ("part", 1000.25, 1001.5, "it broke")
    assert [span.trace, span.parent] == CONTEXT.split("-")[1:3] and span.id == below.split("-")[2]
    assert span.attributes == {"run": "app_1", "rank": 2} and span.pid == os.getpid()
    assert taken.paths == ["/v1/traces"]


@pytest.mark.local
def test_tracing_imports_nothing_when_off_and_a_missing_package_is_logged_once() -> None:
    off = "import sys; from hopsml.core import tracing; import hopsml.experiment.reporting as one; "
    off += "assert one.begin_trace('app_1', 2) is None; "
    off += "assert not any(name.startswith('opentelemetry') for name in sys.modules)"
    subprocess.run([sys.executable, "-c", off], check=True)
    missing = "import sys; sys.modules['opentelemetry.exporter'] = None; from hopsml.core import tracing\n"
    missing += f"for _ in range(2): tracing.record_span('x', '{CONTEXT}', '', 1.0, 2.0)"
    stderr = subprocess.run(
        [sys.executable, "-c", missing],
        env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        check=True,
        capture_output=True,
        text=True,
    ).stderr
    assert stderr.count("traces cannot be sent") == 1 and "[tracing]" in stderr
