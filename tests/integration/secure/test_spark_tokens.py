"""Tests of the tokens that a driver obtains through Spark's JVM with a ticket, although Spark holds tokens already."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hopsml.core import delegation_tokens as tokens
from hopsml.storage import filesystem
from hopsml.storage.filesystem import for_url
from tests.helpers.kerberos import use_ticket
from tools.hadoop import spark

pytestmark = pytest.mark.hadoop

ROOT = Path(__file__).resolve().parents[3]
CODE = """
import json, sys
from pyspark import SparkConf, SparkContext
from hopsml.cluster.driver.tokens.sources import SparkTokenSource, source_of
from hopsml.core import delegation_tokens

conf = SparkConf().setMaster("local[1]").setAppName("tokens").set("spark.ui.enabled", "false")
conf.set("spark.driver.extraJavaOptions", sys.argv[1])
context = SparkContext(conf=conf)
source = source_of(context)
first, second = source.find(), source.find()
delegation_tokens.write(sys.argv[2], second.credentials)
print(json.dumps({
    "obtains": source.obtains, "extends": source.extends, "life_s": first.life_s, "longest_s": first.longest_s,
    "ticket_s": first.ticket_s, "new": first.mark != second.mark,
    "owner": first.credentials.tokens[0].describe().owner, "stores": source._stores(),
}))
context.stop()
"""


def test_driver_with_a_ticket_obtains_new_tokens_and_knows_their_life(
    secure_hdfs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(secure_hdfs.conf_dir))
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"{secure_hdfs.namenode_url}/user/alice/project")
    secure_hdfs.kdc.kinit("alice", life_s=3600)
    use_ticket(monkeypatch, secure_hdfs.kdc, "alice")
    option = f"-Djava.security.krb5.conf={secure_hdfs.kdc.config}"
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", f"{option} {spark.QUICK_JVM}")
    command = [sys.executable, "-c", CODE, option, str(tmp_path / "tokens")]
    done = subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["obtains"], found["extends"], found["new"]) == (True, False, True)
    assert 10 < found["life_s"] <= 16 and 60 < found["longest_s"] <= 91 and 3000 < found["ticket_s"] <= 3600
    assert found["owner"].partition("@")[0] == "alice"
    assert found["stores"] == [secure_hdfs.namenode_url]
    monkeypatch.setenv("KRB5CCNAME", "FILE:/nowhere/cache")
    monkeypatch.setenv(tokens.VARIABLE, str(tmp_path / "tokens"))
    filesystem.close_all()
    url = f"{secure_hdfs.namenode_url}/user/alice/by-token"
    for_url(url).write_bytes(url, b"written with a token")
    assert for_url(url).read_bytes(url) == b"written with a token"
    filesystem.close_all()
