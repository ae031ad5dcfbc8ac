"""Tests of Spark objects that a function cannot be sent with; and of the number of executors."""

from __future__ import annotations

from typing import Any

import pytest

from hopsml import util
from hopsml.cluster.driver.capture import capture
from hopsml.errors import CaptureError

pytestmark = pytest.mark.spark


def capture_error(value: Any) -> str | None:
    """Return the message with which a function that uses the value is refused, or None if it is accepted."""

    def train() -> Any:
        return value

    try:
        capture(train)
    except CaptureError as error:
        return str(error)
    return None


def test_spark_objects_captured_by_a_function_are_refused(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql import SparkSession

    session = SparkSession(spark)
    try:
        refused = {name: capture_error(value) for name, value in {"session": session, "context": spark}.items()}
        through_driver = {
            "df": capture_error(session.range(3)),
            "rdd": capture_error(spark.parallelize([1])),
        }
        column, accumulator = capture_error(session.range(3).id), capture_error(spark.accumulator(0))
        broadcast, row = capture_error(spark.broadcast(1)), capture_error(session.range(1).collect()[0])
        monkeypatch.setitem(globals(), "session_of_this_file", session)
        with pytest.raises(CaptureError, match=r"^uses_global captures `session_of_this_file` \(global\), a pyspark\."):
            capture(uses_global)
    finally:
        SparkSession._instantiatedSession = SparkSession._activeSession = None
    for name, message in refused.items():
        assert message is not None and "`value` (closure variable), a pyspark." in message, name
        assert "exists only in the driver; use it before the launch" in message
    for name, message in through_driver.items():
        assert message is not None and "can be read only through the driver; pass it by data={...}" in message, name
    assert column is not None and "add it to a DataFrame by df.withColumn(...)" in column
    assert accumulator is not None and "return the value from the function" in accumulator
    assert broadcast is not None and "pass its .value in args" in broadcast
    assert row is None  # plain data


session_of_this_file: Any = None


def uses_global() -> Any:
    """A function of a user's module."""
    return session_of_this_file.range(3)


def test_num_executors_without_a_setting_counts_live_executors(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert util.num_executors() == 2  # as the master has it
    monkeypatch.setattr(util, "executor_limit", lambda conf, master: None)
    assert util.num_executors() == 2
