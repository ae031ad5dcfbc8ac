"""Generate docs/reference/versions.md, "Supported versions", from hopsml/core/versions.py and the cells of `make matrix`.

python -m tools.supported_versions      # writes the page; a test compares it with the table
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hopsml.core.versions import ALL, PYTHON, SPARK_NEEDS, version_text, versions_text
from tools.version_matrix import CELLS, Cell

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "versions.md"
_HEAD = """# Supported versions

This page is generated (`python -m tools.supported_versions`) from `hopsml/core/versions.py`, which `hopsml doctor`, the
extras of the package, the verbs and the warnings in workers read, too.

A version below the second column is refused with the nearest supported version, and another one outside the first
column causes one warning: of Python when the verbs are imported, of NumPy when one is called, of Spark and Java when
Spark starts or `hopsml submit` is called, of pandas when rows pass through it, of a framework in the worker. So is a
Python, or a Java, that the table of Spark below does not have. `hopsml doctor` checks all of them, and notes the
version of the ResourceManager's Hadoop. To continue regardless set [`HOPSML_ANY_VERSION=1`](settings.md).

The [trials by new users](../decisions/2026-11-29-trials-of-users.md) record the first minutes with the wheel of
`dist/` alone on Python 3.12 (Keras), 3.13 (PyTorch) and 3.11 (Spark).
"""
_SPARK = """
## Spark, Java and Python

Driver and executors need the same minor version of Python. Python 3.14 is not supported: no version of TensorFlow up
to 2.21 has a wheel for it, and hopsml was not tried with it. Under Spark 3.5 on Java 21, `data=` and predictions fail,
because Spark's Arrow does. Under Spark 4 one cell has Java 21, of a package whose runtime lacks `jdk.incubator.vector`:
it starts JVMs without this module, which Spark's linear algebra uses if it is there.
NumPy 1.26 needs `pip install 'pyarrow<26'`: pyarrow 26 does not load with it.
"""
_BOUNDS = """
## Upper bounds of dependencies

The package has an upper bound only where newer versions are known to fail, or change what hopsml extends: below the next
minor version for `tensorflow`, whose operations are built for each one, and `torch`, of which newer versions have failed;
below the next major version for `pyspark`, `apache-airflow-core`, `mlflow-skinny`, `pydantic` and `sqlalchemy`, whose last
major version changed interfaces that hopsml uses. No next major version of these had been released on 29 November 2026. The
core has no upper bounds; `tests/unit/test_dependencies.py` lists the reason for each of its packages.
"""
_KERAS_2 = """
## Keras 2

With `TF_USE_LEGACY_KERAS=1` and the `tf_keras` of the same minor version workers use Keras 2: with TensorFlow 2.15 in the
cell `keras-2`, with 2.21 in the default environment. TensorFlow 2.15 is not within the extras, which require Keras 3:
`pip install 'hopsml-spark[spark]' tensorflow==2.15.1 tf_keras==2.15.1 'numpy<2' 'pyarrow<26'`. The wheel has no operations
for it: from the wheel, `implementation="auto"` is TensorFlow's own collectives, in a clone `make setup` builds them.
"""
_CELLS = """
## Combinations that are tested together

`make matrix` creates an environment for each row, runs `tests/matrix` in it, and removes it;
`make matrix CELLS="oldest newest"` selects rows. Its newest results, with the seconds of each cell, are in
`benchmarks/results/matrix.md`. `make test` runs parts of the contract in the cells `oldest` and `newest`, whose environments
it keeps. Java 17 and 25 are the machine's; 8, 11 and 21 are runtimes from packages of the Python index.
"""
_HADOOP = """
## Hadoop

The tests start the daemons of Hadoop 3.5.0 (`tools/hadoop`). `make hadoop-versions` runs those of submission, of runs on
HDFS, of storage and of TensorFlow's `hdfs://` with 3.3.6 and 3.4.1, and writes `benchmarks/results/hadoop.md`;
`RELEASES="3.3.6"` selects one. On 29 November 2026 all 58 passed with each. For single tests set the release:
`HADOOP_VERSION=3.3.6 pytest tests/integration/yarn/test_submit.py`. Java 17 needs
`--add-opens=java.base/java.lang=ALL-UNNAMED` for the daemons of these releases.
"""


def page() -> str:
    """Return the page as Markdown."""
    versions = [
        (
            one.title,
            versions_text(one.supported),
            f"{version_text(one.oldest)}: {one.why_not_older}" if one.oldest else "",
        )
        for one in ALL
    ]
    sparks = [
        (
            version_text(one.spark),
            ", ".join(map(str, one.javas)),
            versions_text([python for python in PYTHON.supported if python <= one.newest_python]),
        )
        for one in SPARK_NEEDS
    ]
    return "\n".join(
        (
            _HEAD + "\n" + _table(("package", "supported", "refused below"), versions),
            _SPARK + "\n" + _table(("Spark", "Java", "Python"), sparks),
            _BOUNDS,
            _KERAS_2,
            _CELLS + "\n" + _table(("cell", "Python", "Java", "packages"), [_row(cell) for cell in CELLS]),
            _HADOOP,
        )
    )


def _row(cell: Cell) -> tuple[str, ...]:
    packages = ", ".join(requirement.replace("==", " ") for requirement in (*cell.packages, *cell.large))
    return cell.name, cell.python, str(cell.java), packages or "the lowest versions that hopsml declares"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace("| --- ", "|---").replace("--- |", "---|")


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
