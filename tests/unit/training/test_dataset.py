"""Tests of Parquet files read by a group: every row once, early errors, any changes of members."""

from __future__ import annotations

import datetime
import decimal
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hopsml
from hopsml.errors import ArgumentError, ArgumentTypeError, PathNotFound, StorageError
from hopsml.training.data import batch_reader
from hopsml.training.data.batch_reader import BatchReader
from hopsml.training.data.dataset import Dataset
from hopsml.training.data.staged_rows import StagedRows

pytestmark = pytest.mark.fast
VECTOR = pa.struct(
    {"type": pa.int8(), "size": pa.int32(), "indices": pa.list_(pa.int32()), "values": pa.list_(pa.float64())}
)


def dense_vector(size: int) -> dict[str, Any]:
    """Return a dense vector of Spark ML."""
    return {"type": 1, "size": None, "indices": None, "values": [1.0] * size}


@pytest.fixture
def clicks(tmp_path: Path) -> Path:
    """Ten files of 23 rows in row groups of 10, one of them in a subfolder, with the other files that Spark writes."""
    folder = tmp_path / "clicks"
    for number in range(10):
        ids = np.arange(number * 23, number * 23 + 23)
        table = pa.table(
            {"id": ids, "features": list(np.stack([ids, ids * 2], 1).astype(np.float32)), "text": ids.astype(str)}
        )
        file = folder / ("day=3" if number == 4 else "") / f"part-{number}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, file, row_group_size=10)
    (folder / "_SUCCESS").touch()
    (folder / "_temporary").mkdir()
    (folder / "_temporary" / "part-11.parquet").write_bytes(b"half")
    return folder


def ids(batches: Any) -> list[int]:
    return [int(one) for batch in batches for one in batch["id"]]


def test_text_in_run_records_names_files_without_addresses(clicks: Path) -> None:
    some = [str(clicks / "part-0.parquet"), str(clicks / "part-1.parquet")]
    text = str(hopsml.data.parquet(some).batch(16))
    assert text == str(hopsml.data.parquet(some).batch(16)) and " at 0x" not in text
    assert text.startswith(f"Dataset(source={some[0]} and 1 more, global_batch_size=16, ")
    whole = hopsml.data.files(str(clicks / "part-0.parquet"))
    assert str(whole).startswith(f"Dataset(source={some[0]}, ")
    assert str(Dataset(StagedRows("clicks"))).startswith("Dataset(source=DataFrame 'clicks', ")


def test_parquet_yields_every_row_once_per_epoch_with_its_columns(clicks: Path) -> None:
    rows = hopsml.data.parquet(f"file://{clicks}").batch(16).shuffle(seed=3, window=50).repeat(2)
    assert len(rows) == 30
    batches = list(rows)
    assert [batch.global_size for batch in batches] == ([16] * 14 + [6]) * 2
    first, second = ids(batches[:15]), ids(batches[15:])
    assert sorted(first) == sorted(second) == list(range(230)) and first != second
    for batch in batches:
        assert batch["features"].tolist() == [[one, one * 2] for one in batch["id"]]
        assert batch["text"].tolist() == list(map(str, batch["id"]))
        batch["features"] += 1  # they are the training's own
    assert ids(rows) == first + second


def test_unshuffled_rows_are_in_the_order_of_the_files(clicks: Path) -> None:
    assert ids(hopsml.data.parquet(str(clicks), columns=["id"]).batch(7))[:23] == list(
        range(92, 115)
    )  # day=3/ is first


def test_default_shuffle_window_is_limited_by_memory(tmp_path: Path) -> None:
    images = pa.table({"id": np.arange(64), "image": [bytes([n]) * 1_000_000 for n in range(64)]})
    pq.write_table(images, tmp_path / "images.parquet", compression="zstd", use_dictionary=False)
    rows = hopsml.data.parquet(str(tmp_path)).shuffle()
    assert 200 <= rows.window <= 300
    assert hopsml.data.parquet(str(tmp_path), columns=["id"]).shuffle().window == 65_536
    assert rows.shuffle(window=7).window == 7


def test_pickled_data_set_reads_the_same_rows(clicks: Path) -> None:
    rows = hopsml.data.parquet(str(clicks)).batch(50)
    assert ids(pickle.loads(pickle.dumps(rows))) == ids(rows)


def test_parquet_reads_selected_columns_of_several_paths(clicks: Path) -> None:
    some = [str(clicks / "part-2.parquet"), str(clicks / "part-1.parquet")]
    batches = list(hopsml.data.parquet(some, columns=["id"]).batch(100))
    assert [sorted(batch) for batch in batches] == [["id"]]
    assert ids(batches) == [*range(46, 69), *range(23, 46)]


def readers(rows: Any, size: int, position: Any = None) -> list[BatchReader]:
    made = [rows.reader() for _ in range(size)]
    for rank, one in enumerate(made):
        one.join(rank, size)
        if position is not None:
            one.go_to(position)
    return made


def test_group_that_changes_within_an_epoch_reads_every_row_once(clicks: Path) -> None:
    rows = hopsml.data.parquet(str(clicks)).batch(16).shuffle(seed=3, window=50)
    group, seen = readers(rows, 3), list[int]()
    for _ in range(4):
        seen += ids(one.next_batch() for one in group)
    for rank, one in enumerate(group[:2]):  # one is lost, the others continue in their processes
        one.join(rank, 2)
    group.pop().close()
    for _ in range(3):
        seen += ids(one.next_batch() for one in group)
    position = group[0].position()
    for one in group:
        one.close()
    group = readers(rows, 4, position)  # all restart, with two newcomers
    while not group[0].is_exhausted:
        seen += ids(one.next_batch() for one in group)
    assert sorted(seen) == list(range(230))


def test_batch_share_without_rows_has_all_columns(clicks: Path) -> None:
    group = readers(hopsml.data.parquet(str(clicks / "part-0.parquet")).batch(2), 3)
    batches = [one.next_batch() for one in group]
    assert [len(batch["id"]) for batch in batches] == [1, 1, 0]
    assert batches[2]["features"].shape == (0, 2) and batches[2].global_size == 2
    for one in group:
        one.close()


def test_state_iterates_over_a_parquet_data_set(clicks: Path) -> None:
    state, seen = hopsml.elastic.State(total=0), list[int]()
    for batch in state.resume(hopsml.data.parquet(str(clicks)).batch(50).shuffle()):
        seen += ids([batch])
        state.total = state.total + batch.global_size
    assert sorted(seen) == list(range(230)) and (state.total, state.batches) == (230, 5)


def test_state_refuses_data_without_a_position() -> None:
    with pytest.raises(ArgumentTypeError, match=r"resume\(\): \[1, 2\] is a list, which has no position"):
        next(hopsml.elastic.State(total=0).resume([1, 2]))  # type: ignore[call-overload]


def test_abandoned_loop_ends_its_reader(clicks: Path) -> None:
    for _ in hopsml.data.parquet(str(clicks)).batch(2):
        break
    for _ in hopsml.elastic.State(total=0).resume(hopsml.data.parquet(str(clicks)).batch(2)):
        break


def test_invalid_parquet_input_is_refused(clicks: Path, tmp_path: Path) -> None:
    with pytest.raises(PathNotFound, match="nowhere"):
        hopsml.data.parquet(str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArgumentError, match=r"empty contains no Parquet file \(\*\.parquet, .*among its 0 file"):
        hopsml.data.parquet(str(tmp_path / "empty"))
    with pytest.raises(ArgumentError, match=r"part-0.parquet has no column label; its columns are features, id, text"):
        hopsml.data.parquet(str(clicks / "part-0.parquet"), columns=["id", "label"])
    with pytest.raises(ArgumentTypeError, match=r"pass a list of names: columns=\['id'\]"):
        hopsml.data.parquet(str(clicks), columns="id")
    for file in clicks.rglob("part-7.parquet"):
        file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(StorageError, match=r"part-7\.parquet is not a complete Parquet file"):
        hopsml.data.parquet(str(clicks))


def test_read_ahead_error_is_raised_in_the_training_loop(clicks: Path) -> None:
    rows = hopsml.data.parquet(str(clicks)).batch(10)
    (clicks / "part-5.parquet").unlink()
    seen = list[int]()

    def train() -> None:
        for batch in rows:
            seen.extend(ids([batch]))

    with pytest.raises(StorageError, match=r"part-5\.parquet"):
        train()
    assert len(seen) >= 100  # all that lies before it


def test_failed_read_is_retried_by_the_next_call(clicks: Path) -> None:
    reader = hopsml.data.parquet(str(clicks / "part-5.parquet")).batch(10).reader()
    reader.join(0, 1)
    moved = (clicks / "part-5.parquet").rename(clicks / "elsewhere")
    for _ in range(2):
        with pytest.raises(StorageError, match=r"part-5\.parquet"):
            reader.next_batch()
    moved.rename(clicks / "part-5.parquet")
    assert len(reader.next_batch()["id"]) == 10
    reader.close()


def test_damaged_page_is_reported_with_its_file(tmp_path: Path) -> None:
    file = tmp_path / "noise.parquet"
    pq.write_table(pa.table({"x": np.random.default_rng(1).random(10_000)}), file, use_dictionary=False)
    content = bytearray(file.read_bytes())
    content[1000:1400] = bytes(400)
    content[10:60] = bytes(range(50))  # the page's header
    file.write_bytes(content)
    with pytest.raises(StorageError, match=r"noise\.parquet is not a complete Parquet file, or was changed"):
        list(hopsml.data.parquet(str(file)).batch(100))


def test_path_may_be_a_path_object_and_wildcards_are_refused(clicks: Path) -> None:
    assert ids(hopsml.data.parquet([clicks / "part-1.parquet"]).batch(50)) == list(range(23, 46))
    with pytest.raises(PathNotFound, match=r"are ordinary characters in a path. Pass the folder"):
        hopsml.data.parquet(str(clicks / "*.parquet"))
    for nothing in ([], "", [""]):
        with pytest.raises(ArgumentError, match="is empty; pass the URL"):
            hopsml.data.parquet(nothing)


@pytest.mark.parametrize(
    ("call", "error", "word"),
    [
        (
            lambda path: hopsml.data.parquet(path, columns=[1]),
            ArgumentTypeError,
            r"columns=\[1\] must be a list of names",
        ),
        (lambda path: hopsml.data.parquet(path, columns=[]), ArgumentError, r"columns=\[\] selects no columns"),
        (lambda path: hopsml.data.files(path, suffixes=[1]), ArgumentTypeError, r"suffixes=\[1\] must be a list"),
        (lambda path: hopsml.data.files(path, suffixes=".txt"), ArgumentTypeError, r"pass a list of names: suffixes="),
        (lambda path: hopsml.data.files(path, suffixes=[]), ArgumentError, r"suffixes=\[\] selects no columns"),
        (lambda path: hopsml.data.tfrecords(path, features=[]), ArgumentError, r"features=\[\] selects no columns"),
        (lambda path: hopsml.data.parquet(path, fill=0), ArgumentTypeError, r"fill=0 must be a dict"),
        (
            lambda path: hopsml.data.parquet(path, fill={"ege": 0}),
            ArgumentError,
            r"fill= has the column ege, .* its columns are features",
        ),
    ],
)
def test_invalid_data_set_arguments_are_refused(clicks: Path, call: Any, error: type[Exception], word: str) -> None:
    with pytest.raises(error, match=word):
        call(str(clicks))


def test_duplicate_column_names_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), tmp_path / "two.parquet")
    with pytest.raises(ArgumentError, match=r"two\.parquet has several columns with the name a;"):
        hopsml.data.parquet(str(tmp_path))


def write_each(folder: Path, *tables: Any, **more: Any) -> str:
    """Write one file for each table (0.parquet, 1.parquet, ...) and return the folder."""
    for number, table in enumerate(tables):
        pq.write_table(table if isinstance(table, pa.Table) else pa.table(table), folder / f"{number}.parquet", **more)
    return str(folder)


def nested(inner: str, *values: Any) -> Any:
    return pa.array([{inner: value} for value in values])


DIFFERENT = [
    ({"x": [1, 2], "y": [1.0, 2.0]}, {"x": [3, 4]}, r"column 'y' is in \S+0\.parquet, but not in \S+1\.parquet"),
    ({"x": [3, 4]}, {"x": [1, 2], "y": [1.0, 2.0]}, r"column 'y' is in \S+1\.parquet, but not in \S+0\.parquet"),
    ({"x": [1, 2]}, {"x": ["3", "4"]}, "'x' is int64 .*string"),
    ({"x": [1, 2]}, {"x": pa.array([3, 4], pa.int32())}, "'x' is int64 .*int32"),
    ({"x": [1, 2]}, {"x": pa.array([3, 4], pa.uint64())}, "'x' is int64 .*uint64"),
    ({"x": [1, 2]}, {"x": [3.0, None]}, "'x' is int64 .*double"),  # as pandas writes whole numbers with nulls
    ({"x": [1.0, 2.0]}, {"x": pa.array([3, 4], pa.float32())}, "'x' is double .*float"),
    ({"x": [1, 0]}, {"x": [True, False]}, "'x' is int64 .*bool"),
    ({"x": [[1], [2]]}, {"x": [[1.5], [2.5]]}, "'x' is list<element: int64> .*list<element: double>"),
    ({"x": [1, 2]}, {"x": [[1], [2]]}, "'x' is int64 .*list<element: int64>"),
    ({"x": [[1], [2]]}, {"x": [[[1]], [[2]]]}, "'x' is list<element: int64> .*list<element: list<element: int64>>"),
    ({"s": [{"a": 1}] * 2}, {"s": [{"a": 1.5}] * 2}, "'s.a' is int64 .*double"),
    ({"s": [{"a": 1, "b": 1}]}, {"s": [{"a": 1}]}, "'s.b' is in .*but not in"),
    ({"s": [{"a": 1}]}, {"s": [1]}, "'s.a' is in .*but not in"),
    ({"x": [b"a", b"b"]}, {"x": ["a", "b"]}, "'x' is binary .*string"),
    ({"x": ["a"]}, {"x": pa.array([b"a"]).dictionary_encode()}, "'x' is string .*dictionary<values=binary"),
    (
        {"x": pa.array([1], pa.timestamp("ms"))},
        {"x": pa.array([1], pa.timestamp("us"))},
        r"'x' is timestamp\[ms\] .*timestamp\[us\]",
    ),
    ({"x": pa.array([1], pa.timestamp("us"))}, {"x": pa.array([1], pa.timestamp("us", "UTC"))}, "'x' is .*tz=UTC"),
    ({"x": pa.array([1], pa.date32())}, {"x": pa.array([1], pa.timestamp("us"))}, r"'x' is date32\[day\] .*timestamp"),
    ({"x": [1, 2]}, {"x": [None, None]}, r"'x' has only nulls in \S+1\.parquet, and is int64 in \S+0\.parquet"),
    ({"x": [None, None]}, {"x": [1, 2]}, r"'x' has only nulls in \S+0\.parquet, and is int64 in \S+1\.parquet"),
    ({"x": [[1.0, 2.0]] * 2}, {"x": [[1.0]] * 2}, "'x' has 2 value.*, but 1 in"),
    (
        {"x": pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2))},
        {"x": pa.array([[1.0]], pa.list_(pa.float32(), 1))},
        "'x' has 2 value.*, but 1 in",
    ),
    ({"s": nested("v", [1, 2])}, {"s": nested("v", [1])}, "'s.v' has 2 value.*, but 1 in"),
]


@pytest.mark.parametrize(("first", "second", "word"), DIFFERENT)
def test_files_with_different_schemas_are_refused_at_creation(
    tmp_path: Path, first: Any, second: Any, word: str
) -> None:
    """Otherwise it shows only in a batch with rows of both files, and workers may train on different columns."""
    with pytest.raises(ArgumentError, match=f"column {word}" if word[0] == "'" else word) as refused:
        hopsml.data.parquet(write_each(tmp_path, first, second))
    assert "0.parquet" in str(refused.value) and "1.parquet" in str(refused.value)


def test_files_with_equivalent_schemas_are_read_together(tmp_path: Path) -> None:
    day, words = datetime.datetime(2026, 1, 2), ["a", "b"]
    first = {
        "text": words,
        "price": [decimal.Decimal("1.5"), decimal.Decimal("2.5")],
        "at": pa.array([day, day], pa.timestamp("us", "UTC")),
        "v": [[1.0, 2.0]] * 2,
        "s": [{"a": 1, "b": 2}] * 2,
    }
    second = {
        "s": [{"b": 2, "a": 1}] * 2,
        "v": pa.array([[1.0, 2.0]] * 2, pa.list_(pa.float64(), 2)),
        "at": pa.array([day, day], pa.timestamp("us", "Europe/Oslo")),
        "price": [1.5, 2.5],
        "text": pa.array(words, pa.large_string()).dictionary_encode(),
    }
    empty = {"text": pa.array([], pa.int8())}  # of a partition without rows, whose types pandas does not know
    rows = hopsml.data.parquet(write_each(tmp_path, first, second, empty))
    for batch in rows.batch(2):  # each of one file
        assert list(batch) == ["text", "price", "at", "v", "s.a", "s.b"]  # also where the file has another order
        assert batch["text"].tolist() == words and batch["price"].tolist() == [1.5, 2.5]
        assert batch["s.a"].tolist() == [1, 1] and batch["v"].shape == (2, 2)
    both = [tmp_path / "0.parquet", tmp_path / "1.parquet"]
    assert [list(batch) for batch in hopsml.data.parquet(both, columns=["v", "text"]).batch(2)] == [["text", "v"]] * 2


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())), "map<string, int32"),
        (pa.array([datetime.time(1)], pa.time64("us")), r"time64\[us\]"),
        (pa.array([[{"a": 1}]]), "list<.*struct"),
        (pa.array([[[{"a": 1}]]]), "list<.*struct"),
        (pa.array([[[("a", 1)]]], pa.list_(pa.map_(pa.string(), pa.int32()))), "list<.*map"),
    ],
)
def test_column_types_without_array_form_are_refused_at_creation(tmp_path: Path, column: Any, kind: str) -> None:
    path = write_each(tmp_path, {"id": [1], "c": column})
    with pytest.raises(
        ArgumentError,
        match=rf"column 'c' of \S+0\.parquet is of type {kind}.*, which cannot be converted to an array; drop",
    ):
        hopsml.data.parquet(path)
    with pytest.raises(ArgumentError, match=rf"column 's\.c' of \S+0\.parquet is of type {kind}"):
        hopsml.data.parquet(write_each(tmp_path, {"s": pa.StructArray.from_arrays([column], ["c"])}))
    pq.write_table(pa.table({"id": [1], "c": column}), tmp_path / "0.parquet")
    assert [list(batch) for batch in hopsml.data.parquet(path, columns=["id"]).batch(1)] == [["id"]]


def test_columns_that_are_not_selected_may_differ(tmp_path: Path) -> None:
    path = write_each(tmp_path, {"x": [1], "y": [1.0]}, {"y": ["a"], "x": [2]}, {"x": [3]})
    assert [batch["x"].tolist() for batch in hopsml.data.parquet(path, columns=["x"]).batch(2)] == [[1, 2], [3]]


def test_partition_columns_present_in_some_files_are_refused(tmp_path: Path) -> None:
    for day, table in ((1, {"x": [1]}), (2, {"x": [2], "day": [2]})):
        (tmp_path / f"day={day}").mkdir()
        pq.write_table(pa.table(table), tmp_path / f"day={day}" / "0.parquet")
    with pytest.raises(ArgumentError, match=r"column 'day' is in \S+day=2/0\.parquet, but not in \S+day=1/0\.parquet"):
        hopsml.data.parquet(str(tmp_path))
    with pytest.raises(ArgumentError, match=r"has no column day; .*names of folders \(day=1\) are not columns"):
        hopsml.data.parquet(str(tmp_path), columns=["x", "day"])


@pytest.mark.parametrize(
    ("first", "second", "shapes"),
    [
        ([[[1, 2]]], [[[1], [2]]], r"arrays of shape \(2, 1\), .*0\.parquet there are arrays of shape \(1, 2\)"),
        (
            pa.array([dense_vector(2)], VECTOR),
            pa.array([dense_vector(3)], VECTOR),
            r"lists of 3 value.*0\.parquet there are lists of 2",
        ),
    ],
)
def test_array_shape_that_differs_between_files_is_reported_while_reading(
    tmp_path: Path, first: Any, second: Any, shapes: str
) -> None:
    """Parquet files do not describe these."""
    rows = hopsml.data.parquet(write_each(tmp_path, {"x": first}, {"x": second})).batch(1)
    reader = rows.reader()
    reader.join(0, 1)
    assert len(reader.next_batch()["x"]) == 1
    with pytest.raises(ArgumentError, match=rf"column 'x' of \S+1\.parquet, row group 0, .*{shapes}"):
        reader.next_batch()
    alone = rows.batch(2).reader()  # the second worker of two, which reads the second file alone
    alone.join(1, 2)
    with pytest.raises(ArgumentError, match="column 'x'"):
        alone.next_batch()


# ---------------------------------------------------------------------------------------------- nulls


@pytest.mark.parametrize(
    ("tables", "fill", "expected"),
    [
        ([{"x": ["a", "b"]}, {"x": [None, None]}], "-", ["a", "b", "-", "-"]),
        ([{"x": [None, None]}, {"x": [1.5, None]}], 0, [0.0, 0.0, 1.5, 0.0]),
        ([{"x": [None, None]}], 0, [0, 0]),
        ([{"x": [None]}, {"x": [None]}], [1, 2], [[1, 2], [1, 2]]),
        ([{"x": [[1.0, 2.0]]}, {"x": [None]}], [0, 0], [[1.0, 2.0], [0.0, 0.0]]),
        ([{"x": pa.array(["a"]).dictionary_encode()}, {"x": [None]}], "-", ["a", "-"]),
        ([{"x": [decimal.Decimal("1.5")]}, {"x": [None]}], 2, [1.5, 2.0]),
        ([{"x": [True]}, {"x": [None]}], False, [True, False]),
        ([{"x": [1], "id": [1]}, {"id": [2]}], 7, [1, 7]),
        ([{"id": [2, 3]}, {"id": [1], "x": [1.5]}], 7, [7.0, 7.0, 1.5]),
    ],
)
def test_column_of_nulls_or_absent_column_is_filled_in_the_type_of_other_files(
    tmp_path: Path, tables: Any, fill: Any, expected: Any
) -> None:
    rows = hopsml.data.parquet(write_each(tmp_path, *tables), fill={"x": fill})
    (batch,) = rows.batch(10)
    assert batch["x"].tolist() == expected
    assert {one["x"].dtype for one in rows.batch(1)} == {batch["x"].dtype}
    assert {tuple(one) for one in rows.batch(1)} == {tuple(batch)}


def test_selected_column_absent_from_all_files_is_filled_in_the_type_of_its_value(tmp_path: Path) -> None:
    path = write_each(tmp_path, {"x": [1, 2]})
    (batch,) = hopsml.data.parquet(path, columns=["x", "w"], fill={"w": 0.5}).batch(2)
    assert batch["w"].tolist() == [0.5, 0.5]
    (batch,) = hopsml.data.parquet(path, columns=["w"], fill={"w": 1}).batch(2)
    assert batch["w"].tolist() == [1, 1]


def test_absent_struct_fields_are_filled(tmp_path: Path) -> None:
    tables = ({"s": [{"a": 1, "b": 0.5}]}, {"s": [{"a": 2}]}, {"s": [None]}, {"s": [{"a": None, "b": None}]})
    rows = hopsml.data.parquet(write_each(tmp_path, *tables), fill={"s.a": -1, "s.b": 9})
    (batch,) = rows.batch(10)
    assert {name: column.tolist() for name, column in batch.items()} == {"s.a": [1, 2, -1, -1], "s.b": [0.5, 9, 9, 9]}


@pytest.mark.parametrize(
    ("fill", "word"),
    [
        ("-", r"column 'x' of \S+1\.parquet, .*is of type int64, which '-' is not"),
        (0.5, r"column 'x' of \S+1\.parquet, .*is of type int64, which 0.5 is not"),
    ],
)
def test_fill_value_of_another_type_is_refused(tmp_path: Path, fill: Any, word: str) -> None:
    with pytest.raises(ArgumentError, match=word):
        list(hopsml.data.parquet(write_each(tmp_path, {"x": [1]}, {"x": [None]}), fill={"x": fill}).batch(1))


def test_untyped_column_of_nulls_is_refused_at_creation(tmp_path: Path) -> None:
    path = write_each(tmp_path, {"x": [None, None], "y": [1, 2]})
    with pytest.raises(ArgumentError, match=r"column 'x' has only nulls in \S+0\.parquet.*fill=\{'x': ...\}"):
        hopsml.data.parquet(path)
    assert [list(batch) for batch in hopsml.data.parquet(path, columns=["y"]).batch(2)] == [["y"]]


def test_struct_field_and_column_with_the_same_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"0\.parquet has several columns with the name s\.a; rename"):
        hopsml.data.parquet(write_each(tmp_path, {"s": [{"a": 1}], "s.a": [2]}))


def test_list_lengths_that_differ_are_refused_before_reading(tmp_path: Path) -> None:
    lists = {"x": [[1, 2], [3, 4]], "y": [1, 2], "nested.z": [1, 2]}
    pq.write_table(pa.table(lists), tmp_path / "a.parquet", row_group_size=1)
    pq.write_table(pa.table({**lists, "x": [[1, 2], [3, 4, 5]]}), tmp_path / "b.parquet", row_group_size=1)
    with pytest.raises(
        ArgumentError,
        match=r"column 'x' has 2 value\(s\) per row in \S+a\.parquet, row group 0, but 3 in \S+b\.parquet, row group 1, and",
    ):
        hopsml.data.parquet(str(tmp_path))
    assert len(hopsml.data.parquet(str(tmp_path), columns=["y"]).batch(4)) == 1
    pq.write_table(pa.table({**lists, "x": [[[1], [2]], [[3], [4]]]}), tmp_path / "b.parquet")
    hopsml.data.parquet(str(tmp_path / "b.parquet"))


def test_lists_without_length_statistics_are_read(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [[1, 2], [3, 4]]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": [[1, 2], None]}), tmp_path / "b.parquet")
    pq.write_table(pa.table({"x": [[1, 2], [5, 6]]}), tmp_path / "c.parquet", write_statistics=False)
    pq.write_table(pa.table({"x": pa.array([], pa.list_(pa.int64()))}), tmp_path / "d.parquet")
    (batch,) = hopsml.data.parquet(str(tmp_path), fill={"x": [7, 7]}).batch(10)
    assert batch["x"].tolist() == [[1, 2], [3, 4], [1, 2], [7, 7], [1, 2], [5, 6]]


def test_sparse_vectors_of_different_counts_are_read(tmp_path: Path) -> None:
    for number, places in enumerate(([1], [0, 2])):
        vector = {"type": 0, "size": 3, "indices": places, "values": [1.0] * len(places)}
        pq.write_table(pa.table({"v": pa.array([vector], VECTOR)}), tmp_path / f"{number}.parquet")
    (batch,) = hopsml.data.parquet(str(tmp_path)).batch(2)
    assert batch["v"].tolist() == [[0, 1, 0], [1, 0, 1]]


@pytest.mark.parametrize(
    ("call", "error", "word"),
    [
        (lambda rows: rows.batch(0), ArgumentError, "global_batch_size=0 is too small"),
        (lambda rows: rows.batch("3"), ArgumentTypeError, "global_batch_size='3' is a str"),
        (lambda rows: rows.repeat(True), ArgumentTypeError, "epochs=True is a bool"),
        (lambda rows: rows.shuffle(seed=-1), ArgumentError, "seed=-1 is too small; it must be at least 0"),
        (lambda rows: rows.shuffle(window=0), ArgumentError, "window=0 is too small"),
        (lambda rows: list(rows), ArgumentError, r"set it by \.batch\(global_batch_size\)"),
    ],
)
def test_invalid_batch_and_shuffle_settings_are_refused(
    clicks: Path, call: Any, error: type[Exception], word: str
) -> None:
    with pytest.raises(error, match=word):
        call(hopsml.data.parquet(str(clicks)))


def test_numpy_integers_are_accepted_as_settings(clicks: Path) -> None:
    rows, one = hopsml.data.parquet(str(clicks)), np.int64
    assert rows.batch(one(7)).shuffle(one(3), one(50)).repeat(one(2)) == rows.batch(7).shuffle(3, 50).repeat(2)
    assert type(rows.batch(one(7)).global_batch_size) is int
    for wrong in (np.bool_(True), True, 7.0, "7"):
        with pytest.raises(ArgumentTypeError, match="it must be a whole number, at least 1"):
            rows.batch(wrong)  # type: ignore[arg-type]


def test_data_set_without_rows_has_no_batches(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([], pa.int64())}), tmp_path / "none.parquet")
    assert list(hopsml.data.parquet(str(tmp_path)).batch(4).repeat(3)) == []


@pytest.mark.parametrize("together", [1, 3, 100])
@pytest.mark.parametrize("workers", [1, 3])
def test_chunks_contain_the_same_batches_in_the_same_order(
    clicks: Path, together: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = hopsml.data.parquet(str(clicks)).batch(37).shuffle(seed=3, window=50).repeat(2)
    for rank in range(workers):
        single, chunked = rows.reader(), rows.reader()
        single.join(rank, workers)
        chunked.join(rank, workers)
        wanted, found = [], []
        monkeypatch.setattr(batch_reader, "_MOST_TOGETHER", 1)
        while not single.is_exhausted:
            wanted.append(single.next_batch()["id"].tolist())
        monkeypatch.setattr(batch_reader, "_MOST_TOGETHER", together)
        while not chunked.is_exhausted:
            chunk = chunked.next_chunk()
            assert 0 < len(chunk.ends) <= together
            begins = (0, *chunk.ends[:-1])
            found += [chunk.columns["id"][begin:end].tolist() for begin, end in zip(begins, chunk.ends, strict=True)]
        assert found == wanted


def test_part_files_without_a_suffix_are_refused_rather_than_skipped(tmp_path: Path) -> None:
    for name in ("part-00000.parquet", "part-00001"):
        pq.write_table(pa.table({"a": [1, 2]}), tmp_path / name)
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".part-00001.crc").touch()
    with pytest.raises(ArgumentError, match=r"part-00001: this seems to be data, .* as for 1 of the 4 file"):
        hopsml.data.parquet(str(tmp_path))
    both = [str(tmp_path / name) for name in ("part-00000.parquet", "part-00001")]
    assert len(hopsml.data.parquet(both).batch(1)) == 4
