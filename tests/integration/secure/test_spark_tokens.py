"""Tests of the tokens that a driver obtains through Spark's JVM with a ticket or a keytab, of one store and of several."""

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
from tests.helpers.clock import END_S
from tests.helpers.kerberos import use_ticket
from tools.hadoop import spark
from tools.hadoop.ports import free_ports

pytestmark = pytest.mark.hadoop

ROOT = Path(__file__).resolve().parents[3]
START = """
import json, sys, time
from pyspark import SparkConf, SparkContext
from hopsml.cluster.driver.tokens.sources import SparkTokenSource, source_of
from hopsml.core import delegation_tokens

conf = SparkConf().setMaster("local[1]").setAppName("tokens").set("spark.ui.enabled", "false")
for key, value in json.loads(sys.argv[1]).items():
    conf.set(key, value)
context = SparkContext(conf=conf)
source = source_of(context)
"""
WITH_TICKET = f"""{START}
first, second = source.find(), source.find()
delegation_tokens.write(sys.argv[2], second.credentials)
print(json.dumps({{
    "obtains": source.obtains, "extends": source.extends, "life_s": first.life_s, "longest_s": first.longest_s,
    "ticket_s": first.ticket_s, "new": first.mark != second.mark,
    "owner": first.credentials.tokens[0].describe().owner, "stores": source._stores(),
}}))
context.stop()
"""
# A second store: a relay before the same NameNode, which is then closed and opened again.
WITH_TWO_STORES = f"""
import sys
from tests.helpers.relay import Relay
relay = Relay(int(sys.argv[2]), int(sys.argv[3]))
{START}
def shown(found):
    services = sorted(token.service for token in found.credentials.tokens)
    return {{"services": services, "missing": found.missing, "life_s": found.life_s}}

answers = {{"extends": source.extends, "both": shown(source.find())}}
relay.close()
while not (found := source.find()).missing:  # until new tokens are due, at half of their life
    time.sleep(0.5)
answers["one"] = shown(found)
while len((found := source.find()).credentials.tokens) > 1:  # until the last ones of the closed store have ended
    time.sleep(0.5)
answers["expired"] = shown(found)
relay = Relay(int(sys.argv[2]), int(sys.argv[3]))
while source.find().missing:
    time.sleep(1)
answers["again"] = shown(source.find())
print(json.dumps(answers))
relay.close()
context.stop()
"""


@pytest.fixture
def options(secure_hdfs: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Settings of Spark for the cluster, whose user alice has a ticket."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(secure_hdfs.conf_dir))
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"{secure_hdfs.namenode_url}/user/alice/project")
    secure_hdfs.kdc.kinit("alice", life_s=3600)
    use_ticket(monkeypatch, secure_hdfs.kdc, "alice")
    option = f"-Djava.security.krb5.conf={secure_hdfs.kdc.config}"
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", f"{option} {spark.QUICK_JVM}")
    return {"spark.driver.extraJavaOptions": option}


def run(code: str, options: dict[str, str], *arguments: str) -> dict[str, Any]:
    """Run a program with a SparkContext, and return what it prints last."""
    command = [sys.executable, "-c", code, json.dumps(options), *arguments]
    done = subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=END_S)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_driver_with_a_ticket_obtains_new_tokens_and_knows_their_life(
    secure_hdfs: Any, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = run(WITH_TICKET, options, str(tmp_path / "tokens"))
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


def test_life_of_tokens_behind_viewfs_is_that_of_the_namenode(
    secure_hdfs: Any, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the client's configuration they would last for a day."""
    monkeypatch.setenv("HOPSML_PROJECT_URL", "viewfs://lab/user/alice/project")
    options |= {
        "spark.hadoop.fs.defaultFS": "viewfs://lab",
        "spark.hadoop.fs.viewfs.mounttable.lab.link./user": f"{secure_hdfs.namenode_url}/user",
        "spark.hadoop.dfs.namenode.delegation.token.renew-interval": "86400000",
    }
    found = run(WITH_TICKET, options, str(tmp_path / "tokens"))
    assert found["stores"] == ["viewfs://lab"]
    assert 10 < found["life_s"] <= 16


@pytest.mark.parametrize("credential", ["ticket", "keytab"])
def test_unreachable_store_costs_neither_its_last_tokens_nor_those_of_the_other_one(
    credential: str, secure_hdfs: Any, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the second store only the project's URL tells; Spark obtains no tokens for it."""
    (port,) = free_ports(1, "localhost")
    namenode = secure_hdfs.namenode_url.rpartition(":")[2]
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"hdfs://localhost:{port}/user/alice/project")
    options |= {
        "spark.hadoop.ipc.client.connect.max.retries": "0",
        "spark.hadoop.ipc.client.connection.maxidletime": "1000",
    }
    if credential == "keytab":
        options["spark.kerberos.keytab"] = str(secure_hdfs.kdc.keytab("alice"))
        options["spark.kerberos.principal"] = secure_hdfs.kdc.principal("alice")
    found = run(WITH_TWO_STORES, options, str(port), namenode)
    own, relayed = f"localhost:{namenode}", f"localhost:{port}"
    assert found["extends"] == (credential == "keytab")
    both = sorted([own, relayed])
    assert found["both"]["services"] == both and found["both"]["missing"] == ""
    assert found["one"]["services"] == both and f"hdfs://{relayed} (" in found["one"]["missing"]
    assert found["expired"]["services"] == [own], "an expired token would hide one that YARN renews"
    assert found["again"] == {"services": both, "missing": "", "life_s": found["again"]["life_s"]}
