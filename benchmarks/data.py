"""Rows for a training: from a DataFrame (``frame_feed.py``), and from HDFS by TensorFlow (``hdfs_plugin.py``)."""

from __future__ import annotations

from benchmarks import frame_feed, hdfs_plugin
from benchmarks.figures import Report
from benchmarks.options import Options


def run(options: Options) -> Report:
    """Measure the data feed and the HDFS plugin."""
    whole = Report()
    for part in (frame_feed.run(options), hdfs_plugin.run(options)):
        whole.figures += part.figures
        whole.notes += part.notes
    return whole
