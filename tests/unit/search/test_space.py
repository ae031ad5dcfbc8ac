"""Tests of search spaces: Maggy's form and errors, scales, conditions, the predecessor's dicts."""

from __future__ import annotations

import copy
import itertools
import json
import math
import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsml.errors import ArgumentError
from hopsml.search.algorithms.random import GridSearcher
from hopsml.search.space.parameter import distinct_values
from hopsml.search.space.space import Searchspace, check_function

pytestmark = pytest.mark.fast


def conditional() -> Searchspace:
    """Children that stand before their parents, and a grandchild."""
    return Searchspace(
        slope=("DOUBLE", [0.0, 1.0], {"act": ["relu", "elu"]}),
        act=("CATEGORICAL", ["relu", "gelu", "elu"], {"layers": [2, 3]}),
        layers=("INTEGER", [1, 3]),
        lr=("LOGUNIFORM", [1e-4, 1e-1]),
    )


def test_searchspace_supports_the_methods_of_maggy() -> None:
    space = Searchspace(kernel=("INTEGER", [2, 8]), pool=["integer", (2, 8)])
    space.add("dropout", ("DOUBLE", [0.01, 0.99]))
    space.add("act", ("CATEGORICAL", ["relu", "tanh"]))
    assert space.kernel == [2, 8] and space.dropout == [0.01, 0.99]
    assert space.names() == {"kernel": "INTEGER", "pool": "INTEGER", "dropout": "DOUBLE", "act": "CATEGORICAL"}
    assert space.keys() == ["kernel", "pool", "dropout", "act"]
    assert space.values()[0] == ("INTEGER", [2, 8])
    assert space.get("act") == ["relu", "tanh"] and space.get("other", 7) == 7 and space.get("other") is None
    assert "pool" in space and "stride" not in space and len(space) == 4
    assert (
        list(space)[3] == {"name": "act", "type": "CATEGORICAL", "values": ["relu", "tanh"]} == list(space.items())[3]
    )
    assert space.to_dict()["dropout"] == ("DOUBLE", [0.01, 0.99])
    assert Searchspace(**space.to_dict()).to_dict() == space.to_dict()
    assert json.loads(space.json()) == json.loads(json.dumps(space.to_dict())) == json.loads(str(space))
    assert space.DOUBLE == Searchspace.DOUBLE == "DOUBLE"
    with pytest.raises(AttributeError, match="no parameter and no method 'stride'"):
        _ = space.stride


def test_random_values_belong_to_the_space() -> None:
    space = conditional()
    drawn = space.get_random_parameter_values(200, seed=3)
    assert len(drawn) == 200 and all(space.contains(config) for config in drawn)
    assert {frozenset(config) for config in drawn} == {
        frozenset({"layers", "lr"}),
        frozenset({"layers", "lr", "act"}),
        frozenset({"layers", "lr", "act", "slope"}),
    }
    assert space.get_random_parameter_values(0) == []
    for num in (-1, 2.0, "3", True):
        with pytest.raises(ValueError, match="num="):
            space.get_random_parameter_values(num)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("DOUBLE", r"it must be \(type, region\)"),
        (("DOUBLE",), r"it must be \(type, region\)"),
        (("DOUBLE", [0, 1], None, None), r"it must be \(type, region\)"),
        (("FLOAT", [0, 1]), "type 'FLOAT' is not known; there are DOUBLE, INTEGER, DISCRETE"),
        ((3, [0, 1]), "type 3 is not known"),
        (("DISCRETE", []), "the region of DISCRETE is empty"),
        (("CATEGORICAL", "relu"), "it must be a list of bounds or of values"),
        (("INTEGER", 3), r'it must be a list of bounds or of values, as in \("DOUBLE", \[0.0, 1.0\]\)'),
        ([0, 1], r'such as \("DOUBLE", \[0.0, 1.0\]\) .* or \("DISCRETE", \[0, 1\]\) for these values'),
        ([0.1, 0.2, 0.3], r'such as \("DOUBLE", .* or \("DISCRETE", \[0.1, 0.2, 0.3\]\)'),
        (["relu", "gelu"], r'it must be a list of bounds or of values, as in \("DOUBLE"'),
        (("DOUBLE", ["a", "b"]), "the bound 'a' of DOUBLE is not a number"),
        (("DOUBLE", [True, 2]), "the bound True of DOUBLE is not a number"),
        (("INTEGER", [1, 2.5]), "the bound 2.5 of INTEGER is not an integer"),
        (("INTEGER", [False, 2]), "the bound False of INTEGER is not an integer"),
        (("DOUBLE", [0.0, math.inf]), "the bound inf of DOUBLE is not finite"),
        (("LOGUNIFORM", [math.nan, 1]), "the bound nan of LOGUNIFORM is not finite"),
        (("LOGUNIFORM", [0, 1]), "the lower bound 0.0 of LOGUNIFORM must be greater than 0"),
        (("LOGUNIFORM", [-1e-3, 1]), "the lower bound -0.001 of LOGUNIFORM must be greater than 0"),
        (("LOGINTEGER", [0, 8]), "the lower bound 0 of LOGINTEGER must be greater than 0"),
    ],
)
def test_invalid_parameter_definition_is_a_value_error(value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        Searchspace(p=value)
    assert isinstance(caught.value, ArgumentError) and not isinstance(caught.value, AssertionError)
    assert "p" in str(caught.value)


@pytest.mark.parametrize("kind", ["DOUBLE", "INTEGER", "LOGUNIFORM", "LOGINTEGER"])
@pytest.mark.parametrize(
    ("region", "words"), [([1], "two bounds"), ([1, 2, 3], "two bounds"), ([3, 1], "swap"), ([2, 2], "swap")]
)
def test_invalid_bounds_raise_an_assertion_error_as_in_maggy(kind: str, region: list[int], words: str) -> None:
    with pytest.raises(AssertionError, match=words) as caught:
        Searchspace(p=(kind, region))
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("name", ["names", "add", "DOUBLE", "transform", "_order", "", 3])
def test_reserved_parameter_names_are_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="reserved"):
        Searchspace().add(name, ("DOUBLE", [0, 1]))


def test_duplicate_parameter_name_is_refused() -> None:
    space = Searchspace(lr=("DOUBLE", [0, 1]))
    with pytest.raises(ValueError, match="'lr' is taken"):
        space.add("lr", ("DOUBLE", [0, 1]))
    assert space.to_dict() == {"lr": ("DOUBLE", [0, 1])}


def test_parameter_may_have_the_name_of_a_method_that_maggy_lacks() -> None:
    """Maggy's class has no ``size``: a space with such a parameter works there, and must here."""
    space = Searchspace(size=("INTEGER", [1, 4]), contains=("DISCRETE", [0]), key=("DISCRETE", ["k"]))
    assert space.size() == 4 and space.get("size") == [1, 4]
    assert space.contains({"size": 2, "contains": 0, "key": "k"})
    assert len(list(space.combinations())) == 4


@pytest.mark.parametrize(
    ("when", "words"),
    [
        ({"activation": ["relu"]}, "'activation', which is not a parameter; the parameters are act, layers"),
        ({"act": ["swish"]}, "act is 'swish', which is not of"),
        ({"layers": [True]}, "layers is True, which is not of"),
        ({"act": []}, "lists no value of 'act'"),
        ({"lr": [0.5]}, "'lr', which is DOUBLE; it needs one with listed values"),
        (["act"], "it must be a dict of lists"),
        ({3: [1]}, "it must be a dict of lists"),
    ],
)
def test_invalid_conditions_are_refused(when: Any, words: str) -> None:
    space = Searchspace(act=("CATEGORICAL", ["relu"]), layers=("INTEGER", [1, 2]), lr=("DOUBLE", [0, 1]))
    with pytest.raises(ArgumentError, match=words):
        space.add("slope", ("DOUBLE", [0, 1]), when=when)
    assert space.keys() == ["act", "layers", "lr"]


def test_circular_and_contradictory_conditions_are_refused() -> None:
    with pytest.raises(ArgumentError, match="in a circle: a -> b -> a"):
        Searchspace(a=("INTEGER", [1, 2], {"b": [1]}), b=("INTEGER", [1, 2], {"a": [1]}))
    with pytest.raises(ArgumentError, match="in a circle: a -> a"):
        Searchspace(a=("INTEGER", [1, 2], {"a": [1]}))
    with pytest.raises(ArgumentError, match=r"c can never be there: it needs a in \[1\] and in \[2\]"):
        Searchspace(a=("INTEGER", [1, 2]), b=("INTEGER", [1, 2], {"a": 1}), c=("INTEGER", [1, 2], {"b": 1, "a": 2}))


def test_unhashable_and_unordered_values_are_supported() -> None:
    space = Searchspace(units=("CATEGORICAL", [[64], [64, 32], None, {"a": 1}]), flag=("DISCRETE", [True, 1, 1.0, 1]))
    assert space.size() == 4 * 3  # True, 1 and 1.0 are three values; the second 1 is none
    assert space.flag == [True, 1, 1.0, 1]
    seen = {space.key(config) for config in space.combinations()}
    assert len(seen) == 12
    for config in space.combinations():
        assert space.contains(config)
        assert space.decode(json.loads(json.dumps(space.encode(config)))) == config
        back = space.inverse_transform(space.transform(config))
        assert [(type(value), value) for value in back.values()] == [(type(value), value) for value in config.values()]


def test_numpy_bounds_are_converted() -> None:
    space = Searchspace(
        n=("INTEGER", np.array([1, 3])), x=("DOUBLE", (np.float32(0.5), np.int64(2))), r=("DISCRETE", range(3))
    )
    assert space.size() is None and space.r == [0, 1, 2]
    config = space.inverse_transform([0.99, 0.0, 0.5])
    assert config == {"n": 3, "x": 0.5, "r": 1} and type(config["n"]) is int and type(config["x"]) is float


@settings(max_examples=60, deadline=None)
@given(
    low=st.floats(-1e300, 1e300), width=st.floats(1e-3, 1e300), first=st.integers(-(2**40), 2**40),
    count=st.integers(1, 2**40), unit=st.floats(0, 1),
)  # fmt: skip
def test_transform_and_inverse_transform_round_trip(
    low: float, width: float, first: int, count: int, unit: float
) -> None:
    if not low < low + width < math.inf:
        return
    positive = abs(first) + 1
    space = Searchspace(
        d=("DOUBLE", [low, low + width]),
        i=("INTEGER", [first, first + count]),
        u=("LOGUNIFORM", [1e-9 * positive, 1e3 * positive]),
        n=("LOGINTEGER", [positive, positive + count]),
        c=("CATEGORICAL", list("abc")),
    )
    config = space.inverse_transform([unit] * 5)
    assert space.contains(config)
    again = space.inverse_transform(space.transform(config))
    assert (again["i"], again["c"]) == (config["i"], config["c"])
    assert again["n"] == pytest.approx(config["n"], rel=1e-9)
    assert again["u"] == pytest.approx(config["u"], rel=1e-9)
    assert again["d"] == pytest.approx(config["d"], rel=1e-9, abs=1e-9 * width)


def test_inverse_transform_clips_points_outside_the_unit_cube() -> None:
    space = Searchspace(
        d=("DOUBLE", [-1e308, 1e308]), i=("INTEGER", [2, 4]), u=("LOGUNIFORM", [1e-4, 1]), n=("LOGINTEGER", [1, 512])
    )
    for point in ([0.0] * 4, [-0.5] * 4):
        assert space.inverse_transform(point) == {"d": -1e308, "i": 2, "u": pytest.approx(1e-4), "n": 1}
    for point in ([1.0] * 4, [7.0] * 4):
        assert space.inverse_transform(point) == {"d": 1e308, "i": 4, "u": 1.0, "n": 512}
    assert space.inverse_transform([0.5] * 4)["u"] == pytest.approx(1e-2)
    with pytest.raises(ValueError):
        space.inverse_transform([0.5] * 3)


def test_integers_have_equal_shares_on_their_scale() -> None:
    space = Searchspace(i=("INTEGER", [1, 4]), n=("LOGINTEGER", [1, 4]))
    units = [(place + 0.5) / 4000 for place in range(4000)]
    assert Counter(space.inverse_transform([unit] * 2)["i"] for unit in units) == {1: 1000, 2: 1000, 3: 1000, 4: 1000}
    shares = Counter(space.inverse_transform([unit] * 2)["n"] for unit in units)
    for value in range(1, 5):  # from half to half on a logarithmic scale
        wanted = math.log((value + 0.5) / (value - 0.5)) / math.log(4.5 / 0.5)
        assert shares[value] / 4000 == pytest.approx(wanted, abs=2e-3)


def test_contains_accepts_only_complete_valid_configurations() -> None:
    space = conditional()
    fits = {"layers": 2, "act": "relu", "slope": 0.5, "lr": 1e-3}
    assert space.contains(fits)
    assert space.contains({"layers": 1, "lr": 1e-3})
    for wrong in (
        {**fits, "lr": 1.0}, {**fits, "lr": "1e-3"}, {**fits, "layers": 2.0}, {**fits, "layers": True}, {**fits, "other": 1},
        {**fits, "act": "gelu"}, {**fits, "layers": 1}, {"layers": 2, "act": "relu", "lr": 1e-3}, {},
    ):  # fmt: skip
        assert not space.contains(wrong)


def test_space_size_equals_the_number_of_combinations() -> None:
    space = Searchspace(
        act=("CATEGORICAL", ["relu", "gelu"], {"layers": [2, 3, 40]}),
        slope=("DISCRETE", [1, 2, 3], {"act": ["relu"], "layers": [2]}),
        layers=("INTEGER", [1, 50]),
        bias=("CATEGORICAL", [True, False]),
    )
    listed = list(space.combinations())
    assert len(listed) == space.size() == 2 * (47 + 2 * 2 + (3 + 1))
    assert len({space.key(config) for config in listed}) == len(listed)
    assert all(space.contains(config) for config in listed)
    assert [list(config) for config in listed[:1]] == [["layers", "bias"]]
    assert conditional().size() is None
    huge = Searchspace(a=("INTEGER", [1, 10**12]), b=("DISCRETE", [1, 2], {"a": [7]}))
    assert huge.size() == 10**12 + 1


@st.composite
def spaces(draw: st.DrawFn) -> Searchspace:
    """Up to five small parameters, each of which may depend on those before it, in any order of declaration."""
    parameters: dict[str, tuple[Any, ...]] = {}
    for name in "abcde"[: draw(st.integers(1, 5))]:
        values: list[Any] = draw(st.lists(st.sampled_from([0, 1, True, "x", None]), min_size=1, max_size=3))
        parents = draw(st.lists(st.sampled_from(sorted(parameters)), unique=True, max_size=2)) if parameters else []
        when = {
            parent: draw(st.lists(st.sampled_from(parameters[parent][1]), min_size=1, max_size=2)) for parent in parents
        }
        parameters[name] = ("CATEGORICAL", values, when) if when else ("CATEGORICAL", values)
    names = draw(st.permutations(sorted(parameters)))
    try:
        return Searchspace(**{name: parameters[name] for name in names})
    except ArgumentError as error:
        if "can never be there" not in str(error):
            raise
        return Searchspace(a=("DISCRETE", [1]))


@settings(max_examples=50, deadline=None)
@given(space=spaces(), points=st.lists(st.lists(st.floats(0, 1), min_size=5, max_size=5), max_size=5))
def test_combinations_equal_a_naive_enumeration_for_any_conditions(
    space: Searchspace, points: list[list[float]]
) -> None:
    """The space lists what a naive reading of the conditions accepts among all combinations of values and absences."""
    found = space.parameters
    absent = object()
    naive = []
    for chosen in itertools.product(*([*one.values, absent] for one in found.values())):
        config = {name: value for name, value in zip(found, chosen, strict=True) if value is not absent}
        wanted = {
            name
            for name, one in found.items()
            if all(any(_same(config.get(key, absent), value) for value in values) for key, values in one.when.items())
        }
        if wanted == set(config):
            naive.append(space.key(config))
    assert sorted(naive) == sorted(space.key(config) for config in space.combinations())
    assert space.size() == len(naive)
    for point in points:
        config = space.inverse_transform(point[: len(found)])
        assert space.key(config) in naive and space.contains(config)
        assert space.key(space.inverse_transform(space.transform(config))) == space.key(config)


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other


def test_space_can_be_pickled_and_copied() -> None:
    for travelled in (pickle.loads(pickle.dumps(conditional())), copy.deepcopy(conditional())):
        assert travelled.to_dict() == conditional().to_dict()
        assert travelled.lr == [1e-4, 1e-1]
    assert Searchspace(**conditional().to_dict()).to_dict() == conditional().to_dict()


# ---------------------------------------------------------------- the predecessor's dicts


def test_grid_has_the_order_of_a_product_and_refuses_invalid_lists() -> None:
    space = Searchspace.from_grid({"lr": [0.1, 0.2], "act": ("relu", "gelu"), "n": np.array([1, 2])})
    grid = GridSearcher(space)
    assert grid.total == 8
    assert list(space.combinations())[:3] == [
        {"lr": 0.1, "act": "relu", "n": 1},
        {"lr": 0.1, "act": "relu", "n": 2},
        {"lr": 0.1, "act": "gelu", "n": 1},
    ]
    for wrong in ({}, {"a": []}, {"a": 3}, {"a": "xy"}, [1]):
        with pytest.raises(ValueError):
            Searchspace.from_grid(wrong)  # type: ignore[arg-type]


def test_grid_over_continuous_parameters_needs_points() -> None:
    space = Searchspace(lr=("LOGUNIFORM", [1e-4, 1e-2]), n=("INTEGER", [1, 2]), d=("DOUBLE", [0, 1], {"n": [2]}))
    with pytest.raises(ValueError, match=r"lr is LOGUNIFORM .* make it DISCRETE, .* searcher_args={\"points\": 5}"):
        GridSearcher(space)
    grid = GridSearcher(space, points=3)
    assert grid.total == 3 * (1 + 3)
    assert [config.get("d") for config in grid.space.combinations()][:4] == [None, 0.0, 0.5, 1.0]
    assert sorted({config["lr"] for config in grid.space.combinations()}) == pytest.approx([1e-4, 1e-3, 1e-2])
    for points in (1, True, 2.0):
        with pytest.raises(ValueError, match="points="):
            GridSearcher(space, points=points)  # type: ignore[arg-type]


def test_grid_points_apply_to_integers_and_by_name() -> None:
    space = Searchspace(n=("INTEGER", [1, 100]), lr=("DOUBLE", [0.0, 1.0]), few=("INTEGER", [1, 3]))
    grid = GridSearcher(space, points=4)
    assert grid.total == 4 * 4 * 3
    assert {config["n"] for config in grid.space.combinations()} == {1, 34, 67, 100}
    assert all(type(config["n"]) is int for config in grid.space.combinations())
    logarithmic = GridSearcher(Searchspace(n=("LOGINTEGER", [1, 1000])), points=4)
    assert [config["n"] for config in logarithmic.space.combinations()] == [1, 10, 100, 1000]
    by_name = GridSearcher(space, points={"n": 2, "lr": 3})
    assert by_name.total == 2 * 3 * 3
    assert {config["n"] for config in by_name.space.combinations()} == {1, 100}
    with pytest.raises(ValueError, match="lr is DOUBLE"):
        GridSearcher(space, points={"n": 2})
    with pytest.raises(ValueError, match=r"points of m: .* are n, lr, few"):
        GridSearcher(space, points={"m": 2})
    with pytest.raises(ValueError, match="points="):
        GridSearcher(space, points={"n": 1})


def test_random_search_boundaries_become_parameters_and_invalid_ones_are_refused() -> None:
    space = Searchspace.from_boundaries({"a": [1, 5], "b": (0.1, 1), "c": [1, 2.5]})
    assert space.to_dict() == {"a": ("INTEGER", [1, 5]), "b": ("DOUBLE", [0.1, 1]), "c": ("DOUBLE", [1, 2.5])}
    for wrong in ([1], [1, 2, 3], ["a", "b"], [1, "b"], [True, False], [2, 1], [1.0, 1.0], [0.0, math.nan], 3, "ab"):
        with pytest.raises(ValueError, match="p"):
            Searchspace.from_boundaries({"p": wrong})
    with pytest.raises(ValueError, match="a dict of two bounds each"):
        Searchspace.from_boundaries({})


@pytest.mark.parametrize(
    ("bounds", "parameter"),
    [
        ([1, 5], ("INTEGER", [1, 5])),
        ([5, 1], ("INTEGER", [1, 5])),
        ([1, 4.5], ("INTEGER", [1, 4])),
        ([1, 1.5], ("CATEGORICAL", [1, 1])),
        ([0.1, 0.0001], ("DOUBLE", [0.0001, 0.1])),
        ([0.5, 4], ("DOUBLE", [0.5, 4])),
        ([3, 3], ("CATEGORICAL", [3, 3])),
        (["relu", "gelu"], ("CATEGORICAL", ["relu", "gelu"])),
        ([True, False], ("CATEGORICAL", [True, False])),
    ],
)
def test_evolution_boundaries_become_parameters_by_the_type_of_the_first_bound(
    bounds: list[Any], parameter: tuple[str, list[Any]]
) -> None:
    """The first bound's type decides; descending numbers are sorted."""
    assert Searchspace.from_boundaries({"p": bounds}, categories=True).to_dict() == {"p": parameter}


@pytest.mark.parametrize("bounds", [[1], [1, 2, 3], [1, "b"], ["b", 1], [1, math.inf], [0.5, math.nan], "ab"])
def test_invalid_evolution_boundaries_are_refused(bounds: Any) -> None:
    with pytest.raises(ValueError):
        Searchspace.from_boundaries({"p": bounds}, categories=True)


# ---------------------------------------------------------------- the function


def test_matching_function_signatures_are_accepted() -> None:
    space = conditional()

    def all_of_them(lr: float, layers: int, act: str = "relu", slope: float = 0.0, reporter: Any = None) -> None: ...
    def anything(**kwargs: Any) -> None: ...
    def at_once(model: Any, hparams: dict[str, Any]) -> None: ...

    for function in (all_of_them, anything, at_once, dict):  # the last has no parameter names
        check_function(space, function)


def test_mismatched_function_signatures_are_refused() -> None:
    space = conditional()

    def train(layers: int, act: str = "relu") -> None: ...
    def no_default(lr: float, layers: int, act: str, slope: float = 0.0) -> None: ...

    with pytest.raises(
        ArgumentError, match=r"train\(layers, act\) has no parameter slope, lr, which the search space gives"
    ):
        check_function(space, train)
    with pytest.raises(ArgumentError, match="no_default: act needs a default, such as act=None"):
        check_function(space, no_default)


def test_distinct_separates_values_by_type_and_compares_unhashable_ones() -> None:
    nan = float("nan")
    values = [1, True, 1.0, 1, "1", [1], [1], (1,), nan, None, None, {"a": 1}, {"a": 1}]
    assert repr(distinct_values(values)) == repr((1, True, 1.0, "1", [1], (1,), nan, None, {"a": 1}))
