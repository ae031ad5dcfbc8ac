"""Tests of Spark objects that a function cannot be sent with; and of the number of executors."""

from __future__ import annotations

from typing import Any

import pytest

from hopsml import util
from hopsml.cluster.driver.capture import capture
from hopsml.errors import CaptureError

pytestmark = pytest.mark.spark


def message(value: Any) -> str | None:
    """Of the error that a function is refused with because it has this value; None where it is not refused."""

    def train() -> Any:
        return value

    try:
        capture(train)
    except CaptureError as error:
        return str(error)
    return None


def test_objects_of_a_running_spark_are_refused(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql import SparkSession

    session = SparkSession(spark)
    try:
        refused = {name: message(value) for name, value in {"session": session, "context": spark}.items()}
        through_driver = {
            "df": message(session.range(3)),
            "rdd": message(spark.parallelize([1])),
            "column": message(session.range(3).id),
        }
        broadcast, row = message(spark.broadcast(1)), message(session.range(1).collect()[0])
        monkeypatch.setitem(globals(), "session_of_this_file", session)
        with pytest.raises(CaptureError, match=r"^uses_global captures `session_of_this_file` \(global\), a pyspark\."):
            capture(uses_global)
    finally:
        SparkSession._instantiatedSession = SparkSession._activeSession = None
    for name, said in refused.items():
        assert said is not None and "`value` (closure variable), a pyspark." in said, name
        assert "exists only in the driver; use it before the launch" in said
    for name, said in through_driver.items():
        assert said is not None and "can be read only through the driver; write it to shared storage" in said, name
    assert broadcast is not None and "pass its .value in args" in broadcast
    assert row is None  # plain data


session_of_this_file: Any = None


def uses_global() -> Any:
    """A function of a user's module."""
    return session_of_this_file.range(3)


def test_executors_are_counted_where_no_setting_says_how_many(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert util.num_executors() == 2  # as the master has it
    monkeypatch.setattr(util, "executor_limit", lambda conf, master: None)
    assert util.num_executors() == 2
