"""Contract of a strategy, over TensorFlow's collectives and over hopsml's group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.clock import END_S
from tests.helpers.training.group import group, run_group

pytestmark = pytest.mark.tensorflow

Results = list[dict[str, Any]]
PARTS = [
    "values",
    "gradients",
    "variables",
    "data",
    "weighted",
    "clipped",
    "own_state",
    "synchronized",
    "files",
    "overflow",
]
KERAS_PARTS = ["fit", "uneven", "several_steps", "custom_loop", "arrays", "orders", "read_once", "without_call"]
SHORT_PARTS = ["read_once", "without_call"]
OWN_PARTS = ["types", "compiled", "differing", "absent"]  # after the last two TensorFlow's collectives stay broken


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Two workers over hopsml's group."""
    folder = tmp_path_factory.mktemp("own")
    return run_group("strategy_contract:contract", folder, kind="hopsml", parts=PARTS + OWN_PARTS, keras_parts=[])


@pytest.fixture(scope="module")
def own_keras(own: Results, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Results of Keras over hopsml's group, added to all others."""
    folder = tmp_path_factory.mktemp("keras")
    found = run_group("strategy_contract:contract", folder, kind="hopsml", parts=[], keras_parts=KERAS_PARTS)
    return [{**mine, **keras} for mine, keras in zip(own, found, strict=True)]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Two workers over TensorFlow's collectives."""
    folder = tmp_path_factory.mktemp("theirs")
    return run_group("strategy_contract:contract", folder, kind="tensorflow", parts=PARTS, keras_parts=KERAS_PARTS)


@pytest.fixture(params=["hopsml", pytest.param("tensorflow", marks=pytest.mark.variant)])
def results(request: pytest.FixtureRequest) -> Results:
    """Results of hopsml's group and of TensorFlow's."""
    return list(request.getfixturevalue({"hopsml": "own", "tensorflow": "theirs"}[request.param]))


@pytest.fixture(scope="module")
def own_short(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Results of Keras over hopsml's group, for the part that `make test` runs."""
    folder = tmp_path_factory.mktemp("short")
    return run_group("strategy_contract:contract", folder, kind="hopsml", parts=[], keras_parts=SHORT_PARTS)


@pytest.fixture(params=["own_short", pytest.param("theirs", marks=pytest.mark.variant)])
def short_results(request: pytest.FixtureRequest) -> Results:
    """Either of them, with the parts that `make test` runs, too."""
    return list(request.getfixturevalue(request.param))


@pytest.fixture(params=["own_keras", "theirs"])
def keras_results(request: pytest.FixtureRequest) -> Results:
    """Either of them, with what Keras does."""
    return list(request.getfixturevalue(request.param))


def test_strategy_reduces_and_gathers_values(results: Results) -> None:
    rows = [[1.0, 2.0], [2.0, 4.0], [2.0, 4.0]]
    for rank, result in enumerate(results):
        assert result["values"] == {
            "sum": 3.0,
            "mean": 1.5,
            "integers": [2, 1],
            "mean_of_rows": pytest.approx([5 / 3, 10 / 3]),
            "rows": rows,
            "columns": [[0, 10, 11]],
            "structure": [[3.0, 6.0], 15.0, 3],
            "half_mean": [1.5, 3.0],
            "all_gathered": rows,
            "replica": rank,
            "replicas": 2,
            "eager": 3.0,
        }


def test_custom_loop_reduces_dense_sparse_and_absent_gradients(results: Results) -> None:
    """Expected values are those of a single process with the five rows [0, 1, 1] and [5, 0]."""
    for rank, result in enumerate(results):
        found = result["gradients"]
        assert found["loss"] == 15.0
        assert found["table"][0] == pytest.approx([1 - 0.2, 1 - 0.4]) == found["table"][1]
        assert found["table"][5] == pytest.approx([1 - 0.1, 1 - 0.2])
        assert found["table"][2:5] == [[1.0, 1.0]] * 3
        assert found["weight"] == pytest.approx([1 - 0.5, 2 - 0.5])
        assert found["unused"] == 3.0
        assert found["through"] == [3.0 * 2 * 1.0 * 1.0, 3.0 * 2 * 3.0 * 2.0], rank


def test_variables_start_equal_and_are_aggregated(results: Results) -> None:
    for rank, result in enumerate(results):
        assert result["variables"] == {
            "initial": 10.0,
            "integer": [3, 6],
            "written": [3.0, 1.5],
            "read": [3.0, 1.5],
            "own": [rank + 1.0] * 3,
            "assigned": [4.0, 20.0],
            "total": 8.0,
            "saved": 8.0,
            "restored": [8.0, 20.0],
        }


def test_global_batch_is_divided_among_replicas(results: Results) -> None:
    for rank, result in enumerate(results):
        found = result["data"]
        assert [len(share) for share in found["data"]] == [4, 4, 2 - rank]
        assert found["auto"] == found["data"]
        assert [len(share) for share in found["off"]] == [4, 4, 4, 4, 3]
        assert found["endless"] == [[3 * rank, 3 * rank + 1, 3 * rank + 2]] * 2
        assert found["function"] == [[rank, rank + 2, rank + 4, rank + 6], [rank + 8, rank + 10]]
        assert found["in_function"] == sum(range(19))
        assert found["value"] == rank
    both = [sorted(a + b) for a, b in zip(*(result["data"]["data"] for result in results), strict=True)]
    assert both == [list(range(8)), list(range(8, 16)), [16, 17, 18]]


@pytest.mark.parametrize("kind", ["classes", "samples"])
def test_class_and_sample_weights_count_as_in_one_process(results: Results, kind: str) -> None:
    first, second = (result["weighted"] for result in results)
    assert first[f"{kind}_group"] == second[f"{kind}_group"]
    together, alone = first[f"{kind}_group"], first[f"{kind}_alone"]
    assert together["weights"] == pytest.approx(alone["weights"], rel=1e-4, abs=1e-6)
    assert set(together["history"]) == set(alone["history"])
    assert together["history"]["accuracy"] == pytest.approx(alone["history"]["accuracy"], rel=1e-4)


@pytest.mark.parametrize("source", ["generator", "stream", "threads", "shuffled", "unknown length"])
def test_fit_trains_on_every_row_of_a_source_once(short_results: Results, source: str) -> None:
    first, second = (result["read_once"][source] for result in short_results)
    assert sorted(first + second) == list(range(48))
    for step in range(6):  # both have their shares of the same batches
        assert {row // 8 for row in first[step * 4 : step * 4 + 4] + second[step * 4 : step * 4 + 4]} == {
            first[step * 4] // 8
        }


def test_data_of_unknown_length_ends_without_warning(short_results: Results) -> None:
    assert [result["read_once"]["warned"]["unknown length"] for result in short_results] == [[], []]


def test_layer_state_that_differs_between_workers_is_named(results: Results) -> None:
    chief, other = (result["own_state"]["printed"] for result in results)
    assert chief == ""
    assert "none/last" in other and "mean/last" not in other and 'aggregation="mean"' in other


def test_strategy_of_one_worker_reads_sources_once_and_trains_models_without_call(tmp_path: Path) -> None:
    (result,) = run_group(
        "strategy_contract:contract", tmp_path, 1, kind="tensorflow", parts=[], keras_parts=SHORT_PARTS
    )
    for source in ("generator", "stream", "threads", "shuffled"):
        assert sorted(result["read_once"][source]) == list(range(48)), source
    assert len(result["without_call"]) == 2


def test_training_does_not_change_the_arrays_behind_batches(short_results: Results) -> None:
    assert [result["read_once"]["targets"] for result in short_results] == [True, True]


def test_model_without_call_is_built_equally_on_all_ranks(short_results: Results) -> None:
    first, second = (result["without_call"] for result in short_results)
    assert first == second


@pytest.mark.parametrize("clip", ["clipvalue", "clipnorm", "global_clipnorm"])
def test_clipped_gradients_equal_those_of_one_process(results: Results, clip: str) -> None:
    for result in results:
        together, alone = result["clipped"][clip]
        for found, expected in zip(together, alone, strict=True):
            assert found == [pytest.approx(row, rel=1e-5) for row in expected]


def test_batch_normalisation_uses_the_global_batch(results: Results) -> None:
    for result in results:
        assert max(result["synchronized"].values()) < 1e-5


def test_model_is_saved_and_loaded_under_a_strategy(results: Results) -> None:
    first, second = (result["files"] for result in results)
    assert first == second
    assert first["saved"] == first["loaded"] == first["weights"]
    assert first["served"] < 1e-6
    assert first["trained_on"][0] == first["trained_on"][1]


def test_overflow_on_one_rank_skips_the_step_on_all(results: Results) -> None:
    first, second = (result["overflow"] for result in results)
    assert first == second
    assert first["scales"] == [2.0**15, 2.0**14, 2.0**14]
    assert first["weights"][0] == first["weights"][1] != first["weights"][2]


@pytest.mark.variant  # of test_keras3.py, and of three workers below
def test_keras_trains_equally_on_all_ranks(keras_results: Results) -> None:
    first, second = results = keras_results
    for part in ("fit", "several_steps", "custom_loop"):
        assert first[part] == second[part], part
    assert first["uneven"]["weights"] == second["uneven"]["weights"]
    for result in results:
        assert result["uneven"]["loss"][0] == pytest.approx(result["uneven"]["loss"][1], rel=1e-4)
        assert result["uneven"]["predict_shape"] == [33, 3] and result["uneven"]["predict_error"] < 1e-5


@pytest.mark.variant  # of test_keras3.py
def test_shuffled_arrays_are_divided_without_overlap(keras_results: Results) -> None:
    results = keras_results
    shares = [result["arrays"]["share"] for result in results]
    assert sorted(shares[0] + shares[1]) == list(range(40))
    for orders in zip(*(result["orders"]["orders"] for result in results), strict=True):
        for mine, others in zip(*orders, strict=True):
            assert sorted(mine + others) == list(range(40))


@pytest.mark.variant
def test_hopsml_and_tensorflow_collectives_give_identical_weights(own_keras: Results, theirs: Results) -> None:
    """Weights are bit-identical: a sum of two values does not depend on their order."""
    for mine, other in zip(own_keras, theirs, strict=True):
        for part in ("fit", "several_steps", "custom_loop", "weighted", "files"):
            assert mine[part] == other[part], part
        assert mine["uneven"]["weights"] == other["uneven"]["weights"]


def test_compiled_function_is_refused_with_a_remedy(own: Results) -> None:
    for result in own:
        assert result["compiled"]["error"] in ("ArgumentError", "StagingError")  # the second is AutoGraph's wrapper
        assert "leave jit_compile out" in result["compiled"]["message"]


def test_tensor_types_are_widened_gathered_or_refused(own: Results) -> None:
    for result in own:
        found = result["types"]
        assert found["small"] == [["uint8", [3]], None, ["int16", [3]]]
        assert found["empty"] == [[0, 3], [0]]
        assert found["flags"] == [False, True]
        assert found["mean"] == ["float64", [1.5]]
        assert "bool cannot be summed" in found["refused"]


@pytest.mark.parametrize("what", ["shapes", "types", "numbers", "order"])
def test_ranks_that_reduce_different_tensors_raise_an_error(own: Results, what: str) -> None:
    for result in own:
        kind, message = result["differing"][what]
        assert kind == "InvalidArgumentError"
        assert "rank" in message
        assert result["differing"]["afterwards"] == [2.0]


def test_differing_shape_is_named(own: Results) -> None:
    for result in own:
        message = result["differing"]["shapes"][1]
        assert "[3,2]" in message and "[3,3]" in message


def test_absent_member_is_named_at_the_deadline(own: Results) -> None:
    first, second = (result["absent"] for result in own)
    assert first["late"][0] == "DeadlineExceededError" and "rank 1" in first["late"][1]
    assert second["late"][0] in ("DeadlineExceededError", "UnavailableError")


def test_cancelled_step_leaves_the_group(own: Results) -> None:
    first, second = (result["absent"] for result in own)
    assert "this rank's own" in first["cancelled"][1]
    # The second where the step was cancelled before its reduction had begun: then there was nothing to leave.
    assert second["cancelled"][0] in ("UnavailableError", "DeadlineExceededError")
    assert "rank 0" in second["cancelled"][1]


@pytest.mark.parametrize("kind", ["hopsml", pytest.param("tensorflow", marks=pytest.mark.variant)])
def test_killed_member_raises_unavailable_error_and_training_continues_alone(kind: str, tmp_path: Any) -> None:
    with group("strategy_contract:loss", tmp_path, kind=kind) as started:
        started.processes[1].wait(END_S)
        found = started.wait_for(0)
    assert found["done"] == 5
    assert found["error"] == "UnavailableError"
    if kind == "hopsml":
        assert "rank 1" in found["message"]
        assert found["traces"] == 1
        assert found["weight"] == 5 + 3
        assert found["replicas"] == 1
        assert found["keras"] == [1 + 0.5 * 10, 0.5 * 6] and found["traced_again"] == 0


@pytest.mark.variant
def test_strategy_contract_holds_with_three_workers(tmp_path: Any) -> None:
    found = run_group(
        "strategy_contract:contract", tmp_path, workers=3, kind="hopsml", parts=["values", "data"], keras_parts=["fit"]
    )
    assert found[0]["fit"] == found[1]["fit"] == found[2]["fit"]
    for rank, result in enumerate(found):
        assert result["values"]["sum"] == 6.0 and result["values"]["mean"] == 2.0
        assert len(result["values"]["rows"]) == 6 and result["values"]["replica"] == rank
        assert result["data"]["in_function"] == sum(range(19))
    shares = [result["data"]["data"] for result in found]
    assert sorted(number for share in shares for batch in share for number in batch) == list(range(19))
