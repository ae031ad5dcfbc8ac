"""Fixtures of the contract: one Spark application of two executors, and a project folder for each test."""

from __future__ import annotations

from tests.integration.spark.conftest import spark, store

__all__ = ["spark", "store"]
