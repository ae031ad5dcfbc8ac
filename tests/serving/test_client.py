"""Tests of the validation of requests before they are sent."""

from __future__ import annotations

from datetime import datetime, timezone

import numpy as np
import pandas as pd
import pytest

from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.serving import client
from hopsml.serving.server_records import ServerRecord

pytestmark = pytest.mark.fast


def test_what_json_does_not_have_is_named() -> None:
    record = ServerRecord("digits", "127.0.0.1", 9, "here", "me", "", 1, datetime.now(timezone.utc))
    with pytest.raises(ArgumentTypeError, match=r"holds <object .*, a object; it must be made of numbers"):
        client.request(record, "/v1/models/digits:predict", {"instances": [object()]}, 1.0)
    with pytest.raises(ArgumentTypeError, match=r"holds a DataFrame; give its values.*table.to_numpy\(\)"):
        client.request(record, "/v1/models/digits:predict", {"inputs": pd.DataFrame({"a": [1.0]})}, 1.0)


def test_rows_that_are_dicts_are_put_together_by_input() -> None:
    assert client.by_input([{"a": 1, "b": [2]}, {"b": [3], "a": 4}]) == {"a": [1, 4], "b": [[2], [3]]}
    for whole in ([[1.0], [2.0]], {"a": [1]}, [], [{"a": 1}, 2], "text"):
        assert client.by_input(whole) is whole
    with pytest.raises(ArgumentError, match="row 1 has the inputs b, and row 0 a; all rows must have the same"):
        client.by_input([{"a": 1}, {"b": 2}])


def test_null_among_numbers_is_nan() -> None:
    assert np.isnan(client.array_of([[None, 1.0]])).tolist() == [[True, False]]
    assert client.array_of([1, 2]).dtype == np.int64
    assert client.array_of(["a", None]).tolist() == ["a", None]
    assert client.array_of([{"b64": "AA=="}]).tolist() == [{"b64": "AA=="}]
