"""Tests of the Kerberized HDFS of tools/hadoop: who is let in, by which way."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.helpers.kerberos import use_ticket

pytestmark = pytest.mark.hadoop

CODE = """
import sys
from hdfs_native import Client, WriteOptions
client = Client(sys.argv[1])
with client.create(sys.argv[2], WriteOptions(overwrite=True)) as file:
    file.write(b"text")
print(client.get_file_info(sys.argv[2]).owner, client.read(sys.argv[2]).read())
"""


def write(cluster: Any, path: str) -> subprocess.CompletedProcess[str]:
    """Write a file in a new process, which has no connection yet."""
    command = [sys.executable, "-c", CODE, cluster.namenode_url, path]
    return subprocess.run(command, capture_output=True, text=True)


def test_ticket_decides_who_writes(secure_hdfs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(secure_hdfs.conf_dir))
    use_ticket(monkeypatch, secure_hdfs.kdc, "alice")
    done = write(secure_hdfs, "/user/alice/file")
    assert done.stdout == "alice b'text'\n", done.stderr
    use_ticket(monkeypatch, secure_hdfs.kdc, "bob")
    assert "AccessControlException" in write(secure_hdfs, "/user/alice/file").stderr
    monkeypatch.setenv("KRB5CCNAME", "FILE:/nowhere/cache")
    assert "GSS" in write(secure_hdfs, "/user/alice/file").stderr


def test_webhdfs_refuses_a_user_name_without_a_ticket(secure_hdfs: Any) -> None:
    url = f"http{secure_hdfs.webhdfs_url.removeprefix('webhdfs')}/webhdfs/v1/?op=LISTSTATUS"
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        urllib.request.urlopen(f"{url}&user.name=alice", timeout=10)
    refused.value.close()
    assert "FileStatuses" in secure_hdfs.web.get_json(url)
