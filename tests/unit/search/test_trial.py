"""Tests of trial ids: Maggy's, and different ones for repeated configurations."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

from hopsml.search.space.space import trial_id

pytestmark = pytest.mark.fast


class Activation:
    """A value that JSON does not know."""


def test_trial_id_equals_that_of_maggy() -> None:
    params = {"pool": 3, "kernel": 5, "dropout": 0.25, "act": "relu"}
    text = json.dumps(params, sort_keys=True)
    assert trial_id(params) == hashlib.md5(text.encode()).hexdigest()[:16]
    assert trial_id(dict(reversed(params.items()))) == trial_id(params)
    assert trial_id({}) == "99914b932bd37a50"  # of '{}'


def test_trial_id_supports_values_unknown_to_json() -> None:
    assert trial_id({"n": np.int64(3), "x": np.float64(0.5)}) == trial_id({"n": 3, "x": 0.5})
    assert trial_id({"a": np.array([1, 2])}) == trial_id({"a": [1, 2]})
    assert trial_id({"f": Activation}) == trial_id({"f": f"{__name__}.Activation"})  # no address of this process
    assert trial_id({"f": json.dumps}) == trial_id({"f": "json.dumps"})
    assert trial_id({"s": frozenset({1})}) == trial_id({"s": "frozenset({1})"})


def test_repeated_configuration_has_another_trial_id() -> None:
    ids = {trial_id({"a": 1}, repeat) for repeat in range(3)}
    assert trial_id({"a": 1}) in ids and len(ids) == 3
    assert all(len(one) == 16 and int(one, 16) >= 0 for one in ids)
