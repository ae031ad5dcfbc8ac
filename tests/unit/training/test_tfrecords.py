"""Tests of TFRecord files read without TensorFlow: rows once an epoch, values, and located damage."""

from __future__ import annotations

import gzip
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hopsml
from hopsml.errors import ArgumentError, ArgumentTypeError, PathNotFound, StorageError
from hopsml.training.data import tfrecord_files
from tests.helpers.training import record_files
from tests.helpers.training.record_files import example, framed

pytestmark = pytest.mark.fast


def row(number: int) -> dict[str, Any]:
    return {"id": number, "x": [float(number), -float(number)], "name": b"n%d" % number}


@pytest.fixture
def clicks(tmp_path: Path) -> Path:
    """Seven files of 23 records, one in a subfolder, one compressed, with the other files that a writer leaves."""
    folder = tmp_path / "clicks"
    for number in range(7):
        name = f"clicks.tfrecord-{number:05d}-of-00007" if number % 2 else f"day=3/part-r-{number:05d}"
        record_files.write(folder / name, map(row, range(number * 23, number * 23 + 23)))
    (folder / "day=3" / "part-r-00004").write_bytes(gzip.compress((folder / "day=3" / "part-r-00004").read_bytes()))
    (folder / "_SUCCESS").touch()
    (folder / "features.json").write_text("{}")
    return folder


def all_of(rows: Any) -> list[int]:
    return [int(one) for batch in rows for one in batch["id"]]


def read(path: Path, *arguments: Any, **more: Any) -> dict[str, Any]:
    """All rows of a file as one batch."""
    rows = hopsml.data.tfrecords(str(path), *arguments, **more)
    (batch,) = rows.batch(10_000)
    return dict(batch)


# ---------------------------------------------------------------------------------------------- rows


def test_tfrecords_yield_every_row_once_per_epoch_with_its_columns(clicks: Path) -> None:
    rows = hopsml.data.tfrecords(f"file://{clicks}").batch(16).shuffle(seed=3, window=50).repeat(2)
    batches = list(rows)
    first, second = all_of(batches[:11]), all_of(batches[11:])
    assert sorted(first) == sorted(second) == list(range(161)) and first != second
    for batch in batches:
        assert batch["id"].dtype == np.int64 and batch["x"].dtype == np.float32 and batch["name"].dtype == object
        assert batch["x"].tolist() == [[one, -one] for one in batch["id"]]
        assert batch["name"].tolist() == [b"n%d" % one for one in batch["id"]]
    assert all_of(pickle.loads(pickle.dumps(rows))) == first + second


def test_pickled_data_set_does_not_count_records_again(clicks: Path) -> None:
    rows = hopsml.data.tfrecords(str(clicks)).batch(16)
    made = pickle.dumps(rows)
    shutil.rmtree(clicks)
    assert len(pickle.loads(made)) == len(rows) == 11


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_group_of_any_size_reads_every_row_once(clicks: Path, workers: int) -> None:
    rows = hopsml.data.tfrecords(str(clicks), ["id"]).batch(10).shuffle(seed=1, window=40)
    group, seen = [rows.reader() for _ in range(workers)], list[int]()
    for rank, reader in enumerate(group):
        reader.join(rank, workers)
    while not group[0].is_exhausted:
        batches = [reader.next_batch() for reader in group]
        assert all(list(batch) == ["id"] for batch in batches)
        seen += all_of(batches)
    assert sorted(seen) == list(range(161))


def test_large_file_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hopsml.training.data import tfrecord_files

    monkeypatch.setattr(tfrecord_files, "_SHARD_BYTES", 1000)
    file = record_files.write(tmp_path / "a.tfrecord", map(row, range(100)))
    rows = hopsml.data.tfrecords(str(file))
    assert len(rows.source.shard_sizes) >= 5 and sum(rows.source.shard_sizes) == 100
    assert all_of(rows.batch(7)) == list(range(100))
    assert rows.source.row_bytes == file.stat().st_size / 100


def test_counting_large_records_reads_only_their_lengths() -> None:
    content, sizes_read = b"".join(framed(bytes(5000)) for _ in range(4)), list[int]()

    def count(offset: int, length: int) -> bytes:
        sizes_read.append(length)
        return content[offset : offset + length]

    assert [span.rows for span in tfrecord_files.split_records(count, len(content), 1 << 30, "f")] == [4]
    assert sizes_read == [len(content)]
    size = 1 << 20
    header = size.to_bytes(8, "little")
    header += record_files.masked(header)
    sizes_read.clear()

    def sparse(offset: int, length: int) -> bytes:
        sizes_read.append(length)
        assert offset % (size + 16) == 0
        return (header + bytes(length))[:length]

    assert [span.rows for span in tfrecord_files.split_records(sparse, 5 * (size + 16), 3 << 20, "f")] == [3, 2]
    assert sizes_read[1:] == [12] * 4


# ---------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize(
    ("values", "dtype", "shape"),
    [
        ([1, -1, 2**62, -(2**63), 300], np.int64, (5,)),
        ([[1, -2], [3, 1 << 40]], np.int64, (2, 2)),
        ([0.5, -1.5], np.float32, (2,)),
        ([[0.5] * 3, [1.5] * 3], np.float32, (2, 3)),
        ([b"", b"\x00\xff" * 200], object, (2,)),
        ([[b"a", b"b"], [b"", b"d"]], object, (2, 2)),
    ],
)
def test_tfrecord_features_have_expected_values_and_types(
    tmp_path: Path, values: Any, dtype: Any, shape: Any, is_packed: bool
) -> None:
    file = tmp_path / "a.tfrecord"
    file.write_bytes(b"".join(framed(example({"c": value}, is_packed)) for value in values))
    found = read(file)["c"]
    assert (found.dtype, found.shape, found.tolist()) == (dtype, shape, values)


@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=3, max_size=3), min_size=1, max_size=20))
def test_integers_of_any_size_are_decoded(numbers: list[list[int]]) -> None:
    from hopsml.training.data import examples

    records = [example({"c": one}) for one in numbers]
    begins = np.cumsum([0, *map(len, records)])[:-1].tolist()
    table = examples.decode_examples(b"".join(records), begins, [len(one) for one in records], None, "here", 0)
    assert table["c"].to_pylist() == numbers


def test_requested_shapes_and_columns_are_returned(tmp_path: Path) -> None:
    file = record_files.write(
        tmp_path / "a.tfrecord", [{"image": [float(n)] * 6, "one": 1, "more": 2} for n in range(3)]
    )
    found = read(file, {"image": (2, 3), "one": (1,)})
    assert {name: column.shape for name, column in found.items()} == {"image": (3, 2, 3), "one": (3, 1)}
    with pytest.raises(
        ArgumentError, match=r"column 'image' of .*a\.tfrecord, records 0 to 0, has 6 value\(s\).* \(2, 2\)"
    ):
        read(file, {"image": (2, 2)})
    with pytest.raises(ArgumentTypeError, match=r"the shape of a feature is a tuple of whole numbers"):
        read(file, {"image": 6})


def test_fill_values_replace_absent_features(tmp_path: Path) -> None:
    rows = [{"id": 1, "x": [1.0, 2.0], "t": b"a"}, {"id": [], "t": b"b"}, {"x": [5.0, 6.0]}]
    file = record_files.write(tmp_path / "a.tfrecord", rows)
    found = read(file, fill={"id": -1, "x": [0.0, 0.0], "t": b"?"})
    assert found["id"].tolist() == [1, -1, -1] and found["t"].tolist() == [b"a", b"b", b"?"]
    assert found["x"].tolist() == [[1, 2], [0, 0], [5, 6]]
    absent = read(file, ["id", "w", "v"], fill={"id": 0, "w": 0.5, "v": [1, 2]})
    assert (absent["w"].dtype, absent["w"].tolist()) == (np.float32, [0.5] * 3)
    assert absent["v"].tolist() == [[1, 2]] * 3
    assert read(file, ["w"], fill={"w": 7})["w"].tolist() == [7] * 3  # though nothing else is read
    assert read(file, fill={"id": 0, "x": [0.0, 0.0], "t": b"", "w": 7})["w"].tolist() == [7] * 3
    with pytest.raises(ArgumentError, match=r"fill= has the column w, which features= omits; its columns are id"):
        read(file, ["id"], fill={"id": 0, "w": 7})
    with pytest.raises(
        ArgumentError, match=r"column 'id' of .*a\.tfrecord, records 0 to 2, has 2 null\(s\) in 3 rows; say"
    ):
        read(file, ["id"])
    with pytest.raises(
        ArgumentError, match=r"column 'w' of .*a\.tfrecord, .*is in none of the records, which have id; remove"
    ):
        read(file, ["id", "w"], fill={"id": 0})


@pytest.mark.parametrize(
    ("rows", "word"),
    [
        ([{"c": [1]}, {"c": [1, 2]}], r"column 'c' of .*a\.tfrecord, records 0 to 1, has lists of 1 to 2 values"),
        (
            [{"c": 1}, {"c": 0.5}],
            r"column 'c' holds integers in one record, and floats in record 1 \(counted from 0\) of .*a\.tfrecord: all",
        ),
        ([{"c": 1, "d": 1}, {"c": 2}], r"column 'd' of .*a\.tfrecord, .*has 1 null\(s\) in 2 rows"),
    ],
)
def test_features_that_differ_between_records_are_refused(tmp_path: Path, rows: Any, word: str) -> None:
    file = record_files.write(tmp_path / "a.tfrecord", rows)
    with pytest.raises(ArgumentError, match=word):
        read(file)


@pytest.mark.parametrize(
    ("first", "second", "features", "word"),
    [
        ({"c": 1}, {"c": [1, 2]}, None, "column 'c' of B, holds lists of 2 .*first record of A there are single val"),
        ({"c": [1, 2]}, {"c": [1, 2, 3]}, None, "column 'c' of B, holds lists of 3 .*A there are lists of 2"),
        ({"c": 1}, {"c": 0.5}, None, "column 'c' is int64 in A and float in B: all "),
        ({"c": b"1"}, {"c": 1}, ["c"], "column 'c' is large_binary in A and int64 in B"),
        ({"c": [1, 2]}, {"c": [0.5]}, None, "column 'c' is int64 in A and float in B"),
        ({"c": 1, "d": 1}, {"c": 1}, None, r"column 'd' is in A, but not in B, .*fill=\{'d': ...\}"),
        ({"c": 1}, {"c": 1, "d": 1}, None, "column 'd' is in B, but not in A"),
        ({"c": 1, "d": 1}, {"c": 1}, ["d"], "column 'd' is in A, but not in B"),
        ({"c": [1] * 4}, {"c": [1] * 6}, {"c": (2, 2)}, r"'c' of B, has 6 value\(s\) .* the shape \(2, 2\)"),
    ],
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_files_with_different_features_are_refused_at_creation(
    tmp_path: Path, first: Any, second: Any, features: Any, word: str, pack: Callable[[bytes], bytes]
) -> None:
    """Otherwise workers that read one file each would train on different columns."""
    for name, row in (("a", first), ("b", second)):
        (tmp_path / f"{name}.tfrecord").write_bytes(pack(record_files.content([row] * 2)))
    word = word.replace("A", r"\S+a\.tfrecord").replace("B", r"\S+b\.tfrecord(, records 0 to 0)?")
    with pytest.raises(ArgumentError, match=word):
        hopsml.data.tfrecords(str(tmp_path), features)


@pytest.mark.parametrize(
    ("later", "word"),
    [
        ({"c": [7, 8, 9], "d": 1}, r"column 'c' of B, holds lists of 3 .*A there are lists of 2"),
        ({"c": [0.5, 1.5], "d": 1}, r"column 'c' of B, is float32, and in the first record of A it is int64"),
        ({"c": [7, 8], "d": 1, "e": 1}, r"column 'e' of B, is absent in the first record of A"),
        ({"c": [7, 8]}, r"column 'd' is absent in B, and is in the first record of A"),
    ],
)
def test_records_that_differ_later_in_a_file_are_reported_while_reading(
    tmp_path: Path, later: Any, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hopsml.training.data import tfrecord_files

    monkeypatch.setattr(tfrecord_files, "_SHARD_BYTES", 1)  # each record is read alone
    record_files.write(tmp_path / "a.tfrecord", [{"c": [n, n], "d": n} for n in range(2)])
    record_files.write(tmp_path / "b.tfrecord", [{"c": [3, 3], "d": 3}, later])
    rows = hopsml.data.tfrecords(str(tmp_path)).batch(2)
    readers = [rows.reader() for _ in range(2)]
    for rank, reader in enumerate(readers):
        reader.join(rank, 2)
    assert readers[0].next_batch()["c"].shape == (1, 2)
    word = word.replace("A", r"\S+a\.tfrecord").replace("B", r"\S+b\.tfrecord, records 1 to 1")
    with pytest.raises(ArgumentError, match=word):
        list(iter(readers[1].next_batch, None))
    for reader in readers:
        reader.close()


@pytest.mark.parametrize(
    ("tables", "fill", "expected"),
    [
        ([{"x": 0.5}, {}], 1, [0.5, 1.0]),
        ([{}, {"x": 0.5}], 1, [1.0, 0.5]),
        ([{"x": [0.5, 1.5]}, {}], [1, 2], [[0.5, 1.5], [1.0, 2.0]]),
        ([{"x": b"a"}, {}], "-", [b"a", b"-"]),
        ([{}, {}], 3, [3, 3]),
    ],
)
def test_feature_absent_from_a_file_is_filled_in_the_type_of_other_files(
    tmp_path: Path, tables: Any, fill: Any, expected: Any
) -> None:
    for number, row in enumerate(tables):
        record_files.write(tmp_path / f"{number}.tfrecord", [{"id": number, "w": 1} | row])
    rows = hopsml.data.tfrecords(str(tmp_path), fill={"x": fill})
    (batch,) = rows.batch(10)
    assert batch["x"].tolist() == expected
    assert {one["x"].dtype for one in rows.batch(1)} == {batch["x"].dtype}
    assert {tuple(one) for one in rows.batch(1)} == {("id", "w", "x")}


def test_fill_value_of_another_type_than_the_feature_is_refused(tmp_path: Path) -> None:
    record_files.write(tmp_path / "a.tfrecord", [{"id": 1, "x": 1}])
    record_files.write(tmp_path / "b.tfrecord", [{"id": 2}])
    with pytest.raises(ArgumentError, match=r"column 'x' of \S+b\.tfrecord, .*is of type int64, which 0.5 is not"):
        hopsml.data.tfrecords(str(tmp_path), fill={"x": 0.5})


def test_first_record_reads_no_more_than_that_record() -> None:
    large, ranges_read = framed(bytes(100_000)), list[tuple[int, int]]()
    content = b"..." + large + framed(b"x")

    def read_at(offset: int, length: int) -> bytes:
        ranges_read.append((offset, length))
        return content[offset : offset + length]

    span = tfrecord_files.RecordSpan(3, len(content), 0, 2)
    assert tfrecord_files.first_record(read_at, span, "f") == bytes(100_000)
    assert ranges_read == [(3, 1 << 16), (3, len(large))]


# ---------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("at", [0, 9, 14, -1])
def test_damaged_record_is_named(tmp_path: Path, at: int) -> None:
    """A bit of its length, of the length's checksum, of the record, of its checksum."""
    records = [framed(example(row(number))) for number in range(5)]
    broken = bytearray(records[3])
    broken[at] ^= 4
    file = tmp_path / "a.tfrecord"
    file.write_bytes(b"".join([*records[:3], bytes(broken), records[4]]))
    offset = sum(map(len, records[:3]))
    with pytest.raises(
        StorageError, match=rf"a\.tfrecord: record 3 \(counted from 0\), at byte {offset}, is damaged"
    ) as refused:
        read(file)
    assert refused.value.path == str(file)


@pytest.mark.parametrize("length", [5, 14, -1])
def test_truncated_file_is_named(tmp_path: Path, length: int) -> None:
    records = [framed(example(row(number))) for number in range(3)]
    file = tmp_path / "a.tfrecord"
    file.write_bytes(b"".join([*records[:2], records[2][:length]]))
    offset = sum(map(len, records[:2]))
    with pytest.raises(StorageError, match=rf"a\.tfrecord ends after \d+ bytes, within record 2 .* at byte {offset}"):
        hopsml.data.tfrecords(str(file))
    file.write_bytes(gzip.compress(b"".join(records))[:-9])
    with pytest.raises(StorageError, match=r"a\.tfrecord is not a complete GZIP file"):
        hopsml.data.tfrecords(str(file))


@pytest.mark.parametrize(
    ("record", "word"),
    [
        (b"\x0a\x05abc", "goes on behind its end"),
        (b"\x12\x00", "it is a SequenceExample"),
        (b"text", "byte 0 begins no field"),
        (b"\xff" * 20, "a number of it has more than ten bytes"),
    ],
)
def test_records_that_are_not_examples_are_refused(tmp_path: Path, record: bytes, word: str) -> None:
    file = tmp_path / "a.tfrecord"
    file.write_bytes(framed(example(row(0))) + framed(record))
    with pytest.raises(ArgumentError, match=rf"record 1 .* of .*a\.tfrecord is not a tf\.train\.Example: .*{word}"):
        read(file)


@given(st.binary(max_size=60), st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=3))
def test_arbitrary_bytes_are_decoded_or_refused_with_a_message(some: bytes, changes: list[tuple[int, int]]) -> None:
    from hopsml.training.data import columns, examples

    changed = bytearray(example({"id": 7, "x": [0.5, 1.5], "name": b"n" * 100}))
    for at, value in changes:
        changed[at % len(changed)] = value
    for record in (some, bytes(changed)):
        message = "here"
        try:
            table = examples.decode_examples(record, [0], [len(record)], None, "here", 0)
            assert table.num_columns == 0 or table.num_rows == 1
            table.validate(full=True)
            columns.table_to_arrays(table, {}, "here")
        except ArgumentError as error:
            message = str(error)
        assert "here" in message


def test_file_that_is_not_a_tfrecord_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "part-0").write_text("id,x\n1,2\n3,4\n")
    with pytest.raises(StorageError, match=r"part-0: record 0 .*is damaged, or the file does not contain TFRecords"):
        hopsml.data.tfrecords(str(tmp_path))


def test_tfrecord_file_deleted_or_changed_while_reading_is_named(tmp_path: Path) -> None:
    files = [record_files.write(tmp_path / f"{name}.tfrecord", map(row, range(20))) for name in "abc"]
    rows = hopsml.data.tfrecords(str(tmp_path)).batch(20)
    files[1].unlink()
    batches = iter(rows)
    assert len(next(batches)["id"]) == 20
    with pytest.raises(PathNotFound, match=r"b\.tfrecord was deleted while it was read"):
        next(batches)
    record_files.write(files[1], map(row, range(20, 30)))
    with pytest.raises(StorageError, match=r"b\.tfrecord was changed while it was read"):
        list(rows)
    record_files.write(files[1], map(row, range(20)))
    os.utime(files[1], (1, 1))  # as long as it was
    with pytest.raises(StorageError, match=r"b\.tfrecord was changed while it was read"):
        list(rows)


def test_invalid_tfrecord_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PathNotFound, match="nowhere"):
        hopsml.data.tfrecords(str(tmp_path / "nowhere"))
    with pytest.raises(ArgumentError, match=r"contains no TFRecord file \(\*\.tfrecord\*, part-\*\) among its 0 file"):
        hopsml.data.tfrecords(str(tmp_path))
    (tmp_path / "a.txt").touch()
    with pytest.raises(ArgumentError, match=r"contains no TFRecord file .*among its 1 file"):
        hopsml.data.tfrecords(str(tmp_path))
    with pytest.raises(ArgumentTypeError, match=r"pass a list of names: features=\['id'\]"):
        hopsml.data.tfrecords(str(tmp_path), "id")
    with pytest.raises(ArgumentTypeError, match=r"3 is not a path"):
        hopsml.data.tfrecords(3)  # type: ignore[arg-type]
    (tmp_path / "b.tfrecord").touch()
    assert list(hopsml.data.tfrecords(str(tmp_path)).batch(4)) == []


def test_reading_imports_neither_tensorflow_nor_pandas(clicks: Path) -> None:
    script = (
        "import sys, hopsml\n"
        f"batches = list(hopsml.data.tfrecords({str(clicks)!r}).batch(100))\n"
        "print(len(batches), 'tensorflow' in sys.modules, 'pandas' in sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "2 False False\n"
