"""Tests of the functions on URLs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hopsml.core import settings
from hopsml.errors import ArgumentError
from hopsml.storage import filesystem, urls

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("hdfs://nn:8020/a/b", ("hdfs", "nn:8020", "/a/b")),
        ("HDFS://ns1", ("hdfs", "ns1", "/")),
        ("hdfs:///a", ("hdfs", "", "/a")),
        ("file:///a b%20c", ("file", "", "/a b%20c")),
        ("/a/b", ("", "", "/a/b")),
        ("a/b", ("", "", "a/b")),
        ("s3://bucket/a?b#c", ("s3", "bucket", "/a?b#c")),
    ],
)
def test_split_returns_scheme_host_and_path(url: str, parts: tuple[str, str, str]) -> None:
    assert urls.split(url) == parts


@pytest.mark.parametrize(
    ("url", "parent", "name"),
    [
        ("hdfs://nn:1/a/b", "hdfs://nn:1/a", "b"),
        ("hdfs://nn:1/a/", "hdfs://nn:1/", "a"),
        ("hdfs://nn:1/", "hdfs://nn:1/", ""),
        ("/a", "/", "a"),
        ("a", ".", "a"),
        ("file:///x/y", "file:///x", "y"),
    ],
)
def test_parent_and_name_split_the_last_part(url: str, parent: str, name: str) -> None:
    assert (urls.parent(url), urls.name(url)) == (parent, name)


def test_join_and_relative_combine_paths() -> None:
    assert urls.join("hdfs://nn", "a", "", "b/c") == "hdfs://nn/a/b/c"
    assert urls.join("/a/", "b") == "/a/b"
    assert urls.relative("hdfs://nn/a/b/c", "hdfs://nn/a/") == "b/c"
    with pytest.raises(ArgumentError, match="relative"):
        urls.join("/a", "/b")
    with pytest.raises(ArgumentError, match="below"):
        urls.relative("/ab", "/a")


def test_path_below_a_temporary_name_is_temporary() -> None:
    fresh = urls.temporary_sibling("hdfs://nn:1/a/b")
    assert urls.has_temporary_part(fresh) and urls.has_temporary_part(urls.join(fresh, "c", "d"))
    assert not urls.has_temporary_part("hdfs://nn:1/a/b.tmp-1/c")


def test_temporary_sibling_hides_the_final_name() -> None:
    fresh = urls.temporary_sibling("hdfs://nn/a/events.out.tfevents.1")
    assert urls.parent(fresh) == "hdfs://nn/a"
    assert "tfevents" not in fresh
    assert urls.is_temporary(fresh)
    assert not urls.is_temporary("hdfs://nn/a/.tmp-x/file")
    assert fresh != urls.temporary_sibling("hdfs://nn/a/events.out.tfevents.1")


@pytest.mark.parametrize(
    ("local", "remote"),
    [
        ("/scratch/r0/hdfs://127.0.0.1:8020/P/x/events", "hdfs://127.0.0.1:8020/P/x/events"),
        ("/scratch/r0/hdfs://127.0.0.1:8020/P/x/events/model", "hdfs://127.0.0.1:8020/P/x/events/model"),
        ("file:///scratch/hdfs://ns1/P", "hdfs://ns1/P"),
        ("/scratch/s3://bucket/key", "s3://bucket/key"),
        ("/scratch/hdfs://ns1", "hdfs://ns1"),
        ("/scratch/plain/path", None),
        ("/scratch/hdfs/x", None),
        ("relative/x", None),
        ("hdfs://nn:1/a", None),
        ("/scratch/hdfs:///no-host", None),
    ],
)
def test_remote_of_extracts_an_embedded_remote_url(local: str, remote: str | None) -> None:
    assert urls.mirrored_url(local) == remote


def test_remote_of_accepts_normalised_paths() -> None:
    """pathlib and os.path fold the two slashes into one."""
    embedded = "/scratch/hdfs://127.0.0.1:8020/P/x"
    assert urls.mirrored_url(os.path.normpath(embedded)) == "hdfs://127.0.0.1:8020/P/x"
    assert urls.mirrored_url(str(Path(embedded) / "model")) == "hdfs://127.0.0.1:8020/P/x/model"


@pytest.mark.parametrize("url", ["hdfs:/x", "file:/x", "s3a:/bucket/x", "viewfs:/x/y"])
def test_url_with_one_slash_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scheme = url.partition(":")[0]
    for use in (urls.check_slashes, filesystem.for_url):
        with pytest.raises(ArgumentError, match=f"one slash after {scheme}:.*write {scheme}:///"):
            use(url)
    monkeypatch.setenv("HOPSML_PROJECT_URL", url)
    with pytest.raises(ArgumentError, match=f"write {scheme}:///"):
        settings.project_url()
    for good in (url.replace(":/", ":///"), f"/scratch/{url}", f"./{url}", "x/y"):
        urls.check_slashes(good)
