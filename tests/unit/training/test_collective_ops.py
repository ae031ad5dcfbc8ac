"""Tests that the library of hopsml's TensorFlow operations is checked before it is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopsml.errors import UnsupportedVersion
from hopsml.training.tensorflow.distribution import collective_ops
from tools import build_native

pytestmark = pytest.mark.fast


def test_library_built_for_another_tensorflow_is_refused(tmp_path: Path) -> None:
    library = tmp_path / "libhopsml_tensorflow-2.21.so"
    library.write_bytes(b"\x7fELF...hopsml was built for TensorFlow 2.20\0...")
    with pytest.raises(UnsupportedVersion, match=r"built for TensorFlow 2\.20, this is 2\.21\.0; build it"):
        collective_ops.check_library(library, "2.21.0")
    collective_ops.check_library(library, "2.20.1")


def test_library_serves_all_patch_releases_of_a_minor_version() -> None:
    assert collective_ops.library_path("2.18.0") == collective_ops.library_path("2.18.1")
    assert collective_ops.library_path("2.18.1").name == "libhopsml_tensorflow-2.18.so"


def test_file_that_is_not_a_hopsml_library_is_refused(tmp_path: Path) -> None:
    library = tmp_path / "libhopsml_tensorflow-2.21.so"
    library.write_bytes(b"\x7fELF")
    with pytest.raises(UnsupportedVersion, match="built for TensorFlow an unknown version"):
        collective_ops.check_library(library, "2.21.0")


def test_missing_library_error_lists_found_libraries_and_the_build_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collective_ops, "LIBRARIES", tmp_path)
    (tmp_path / "libhopsml_tensorflow-2.20.so").touch()
    with pytest.raises(
        UnsupportedVersion, match=r"for TensorFlow 2\.21\.0 \(found: libhopsml_tensorflow-2\.20\.so\).*`make wheel`"
    ):
        collective_ops.check_library(tmp_path / "libhopsml_tensorflow-2.21.so", "2.21.0")


def test_library_for_installed_tensorflow_is_valid_and_not_rebuilt() -> None:
    version = build_native.tensorflow_version()
    assert version is not None
    build_native.build()
    library = build_native.build_for_tensorflow(version)
    collective_ops.check_library(library, version)
    before = library.stat().st_mtime_ns
    assert build_native.build_for_tensorflow(version).stat().st_mtime_ns == before
