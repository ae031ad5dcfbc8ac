"""Rows for a training, from a DataFrame or by TensorFlow from HDFS, and files of an encrypted HDFS."""

from __future__ import annotations

from benchmarks import frame_feed, hdfs_plugin, secure_hdfs
from benchmarks.figures import Report
from benchmarks.options import Options


def run(options: Options) -> Report:
    """Measure the data feed, the HDFS plugin, and the store on an encrypted HDFS."""
    whole = Report()
    for part in (frame_feed.run(options), hdfs_plugin.run(options), secure_hdfs.run(options)):
        whole.figures += part.figures
        whole.notes += part.notes
    return whole
