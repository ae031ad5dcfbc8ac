"""Tests of communication settings that ``strategy()`` refuses before it imports TensorFlow."""

from __future__ import annotations

from typing import Any

import pytest

import hopsml
from hopsml.errors import ArgumentError

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"compression": "fp16", "implementation": "tensorflow"}, "compression with implementation='tensorflow'"),
        ({"accumulate": 4, "implementation": "nccl"}, "accumulate with implementation='nccl'"),
        ({"double_buffering": True, "merge_scope": 4}, "double_buffering with merge_scope"),
        ({"compression": "powersgd", "ring_order": [0]}, "compression with ring_order"),
        ({"compression": "gzip"}, "compression='gzip': it must be None, or one of 'fp16'"),
        ({"topk": 0.5, "compression": "powersgd"}, "it is a setting of compression='topk'"),
    ],
)
def test_a_setting_without_meaning_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        hopsml.tensorflow.strategy(**arguments)


def test_a_setting_of_hopsmls_collective_says_what_to_choose() -> None:
    with pytest.raises(ArgumentError, match="choose implementation='hopsml', or leave these settings out"):
        hopsml.tensorflow.strategy(reduction="adasum", implementation="ring")
