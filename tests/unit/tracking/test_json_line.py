"""Tests of JSON lines for programs: valid for every reader, with non-finite numbers restored."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

import pytest

from hopsml.tracking import listing

pytestmark = pytest.mark.fast


def refuse(literal: str) -> NoReturn:
    raise ValueError(f"{literal} is no JSON")


def test_json_line_represents_non_finite_numbers_as_strings() -> None:
    content: dict[str, Any] = {
        "loss": math.nan,
        "curve": (1.5, math.inf, {"low": -math.inf}),
        "name": "é",
        "none": None,
    }
    read: dict[str, Any] = json.loads(listing.json_line(content), parse_constant=refuse)
    assert read == {"loss": "NaN", "curve": [1.5, "Infinity", {"low": "-Infinity"}], "name": "é", "none": None}
    assert math.isnan(float(read["loss"])) and float(read["curve"][2]["low"]) == -math.inf
    assert listing.json_line({"name": "é"}, ascii_only=True) == '{"name": "\\u00e9"}'
