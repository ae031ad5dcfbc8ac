"""Tests of the addresses of NameNodes' web services, over HTTP and HTTPS."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopsml.errors import ArgumentError
from hopsml.storage.filesystem import for_url
from hopsml.storage.remote.hadoop import uses_https_only, web_addresses
from hopsml.storage.remote.webhdfs import WebHdfsStore

pytestmark = pytest.mark.fast

NAME_SERVICE = {
    "dfs.ha.namenodes.ns1": "nn1,nn2",
    **{f"dfs.namenode.rpc-address.ns1.nn{n}": f"master{n}:8020" for n in (1, 2)},
    **{f"dfs.namenode.http-address.ns1.nn{n}": f"master{n}:9870" for n in (1, 2)},
    **{f"dfs.namenode.https-address.ns1.nn{n}": f"master{n}:9871" for n in (1, 2)},
}
HTTP, HTTPS = ["master1:9870", "master2:9870"], ["master1:9871", "master2:9871"]


def configure(folder: Path, monkeypatch: pytest.MonkeyPatch, **changed: str) -> None:
    """Let the folder be the Hadoop configuration, with the name service ns1."""
    rows = {"fs.defaultFS": "hdfs://ns1", **NAME_SERVICE, **changed}
    text = "".join(f"<property><name>{key}</name><value>{value}</value></property>" for key, value in rows.items())
    (folder / "core-site.xml").write_text(f"<configuration>{text}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(folder))


@pytest.mark.parametrize(
    ("policy", "url", "expected"),
    [
        ("HTTP_ONLY", "hdfs://ns1/x", HTTP),
        ("HTTPS_ONLY", "hdfs://ns1/x", HTTPS),
        ("https_only", "hdfs://ns1/x", HTTPS),  # Hadoop ignores the case
        ("HTTP_AND_HTTPS", "hdfs://ns1/x", HTTP),
        ("HTTP_AND_HTTPS", "webhdfs://ns1/x", HTTP),
        ("HTTP_AND_HTTPS", "swebhdfs://ns1/x", HTTPS),
        ("HTTPS_ONLY", "swebhdfs://ns1/x", HTTPS),
        ("HTTPS_ONLY", "swebhdfs:///x", HTTPS),
    ],
)
def test_web_services_of_a_name_service_are_those_of_policy_and_scheme(
    policy: str, url: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(tmp_path, monkeypatch, **{"dfs.http.policy": policy})
    assert web_addresses(url) == expected
    if "webhdfs" in url:
        assert WebHdfsStore.addresses(url) == expected
    assert uses_https_only() == (policy.upper() == "HTTPS_ONLY")


@pytest.mark.parametrize("url", ["webhdfs://ns1/x", "webhdfs:///x", "webhdfs://master2:9871/x"])
def test_webhdfs_is_refused_where_the_web_services_use_https_only(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(tmp_path, monkeypatch, **{"dfs.http.policy": "HTTPS_ONLY"})
    with pytest.raises(ArgumentError, match=r"dfs\.http\.policy=HTTPS_ONLY.*write s" + url):
        for_url(url)
    for_url("webhdfs://httpfs:14000/x")  # no NameNode of this configuration
    for_url(f"s{url}")
