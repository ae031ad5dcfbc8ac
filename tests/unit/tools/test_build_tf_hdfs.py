"""Tests of the build of TensorFlow's file system for hdfs://: pinned crates, one of them patched."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import build_tf_hdfs


@pytest.mark.fast
def test_missing_cargo_error_names_what_is_lost(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CARGO", "no-such-cargo")
    monkeypatch.setattr(build_tf_hdfs, "_digest", lambda: "changed")
    with pytest.raises(SystemExit, match=r"no-such-cargo is missing: TensorFlow does not open hdfs:// .*make tf-hdfs"):
        build_tf_hdfs.main([])
    build_tf_hdfs.main(["--if-possible"])
    assert "no-such-cargo is missing" in capfd.readouterr().err


@pytest.mark.fast
def test_unexpected_crate_version_is_not_patched(tmp_path: Path) -> None:
    (tmp_path / "crate" / "src").mkdir(parents=True)
    (tmp_path / "crate" / "src" / "client.rs").write_text("fn main() {}")
    with pytest.raises(ValueError, match=r"hdfs-native's src/client\.rs is not the one"):
        build_tf_hdfs._mend(tmp_path / "crate", tmp_path / "copy")


@pytest.mark.fast
def test_crates_are_compared_with_the_lock_file() -> None:
    locked = build_tf_hdfs._packages(build_tf_hdfs.LOCK)
    without = {package: checksum for package, checksum in locked.items() if package[0] != "hopsml_tf_hdfs"}
    assert all(without.values()), "each crate has a checksum"
    replaced = {**locked, next(package for package in locked if package[0] == "hdfs-native"): None}
    build_tf_hdfs._compare(replaced, locked)
    with pytest.raises(ValueError, match=r"not in native/tf_hdfs/crates.lock: .*'tokio'"):
        build_tf_hdfs._compare({**replaced, ("tokio", "9.9.9"): "0"}, locked)


@pytest.mark.fast
def test_crates_lock_contains_no_registry_address() -> None:
    assert "://" not in build_tf_hdfs.LOCK.read_text(encoding="utf-8")


@pytest.mark.local
@pytest.mark.variant
def test_rust_tests_of_the_library_pass() -> None:
    try:
        output = build_tf_hdfs.test()
    except build_tf_hdfs.NoCargo as missing:
        pytest.skip(str(missing))
    assert "test result: ok" in output, output
