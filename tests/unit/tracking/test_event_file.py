"""Tests of written event files with TensorBoard's reader and protocol buffers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from hopsml.training import evaluation

pytestmark = pytest.mark.fast


def events(path: Path) -> list[Any]:
    """Return the events read by TensorBoard, which checks lengths and checksums."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.tensorflow_stub import errors
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New

    reader, found = PyRecordReader_New(str(path)), []
    while True:
        try:
            reader.GetNext()
        except errors.OutOfRangeError:
            return found
        found.append(Event.FromString(reader.record()))


def test_tensorboard_reads_written_scalars(tmp_path: Path) -> None:
    values = {"accuracy": 0.75, "rows": 360, "name": "digits", "good": True, "n" * 300: math.nan, "huge": 1e300}
    path = tmp_path / "file"
    path.write_bytes(evaluation.encode_scalar_events(values, 5_000_000_000, 1.5))
    first, second = events(path)
    assert first.file_version == "brain.Event:2" and (second.step, second.wall_time) == (5_000_000_000, 1.5)
    read = {one.tag: one.simple_value for one in second.summary.value}
    assert list(read) == ["accuracy", "rows", "n" * 300, "huge"], "numbers alone"
    assert (read["accuracy"], read["rows"], read["huge"]) == (0.75, 360, math.inf) and math.isnan(read["n" * 300])


def test_tensorboard_reader_detects_a_changed_byte(tmp_path: Path) -> None:
    """Shows that TensorBoard's reader checks, without which the test above would prove nothing."""
    data = bytearray(evaluation.encode_scalar_events({"accuracy": 0.75}, 1, 1.5))
    data[-6] ^= 1
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(Exception, match="failed event crc32 check"):
        events(path)
