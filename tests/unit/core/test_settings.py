"""Tests of settings from the environment and Hadoop's configuration."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

import pytest

from hopsml.core import settings
from hopsml.core.variables import SETTINGS, Settings
from hopsml.errors import ArgumentError

pytestmark = pytest.mark.fast


def write_conf(folder: Path, **values: str) -> Path:
    rows = "".join(
        f"<property><name>{key.replace('__', '.')}</name><value>{value}</value></property>"
        for key, value in values.items()
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "core-site.xml").write_text(f"<configuration>{rows}</configuration>")
    return folder


def test_storage_timeout_must_be_a_positive_number_of_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SETTINGS.storage_timeout_s == 30
    monkeypatch.setenv("HOPSML_STORAGE_TIMEOUT_S", "2.5")
    assert SETTINGS.storage_timeout_s == 2.5
    for wrong in ("soon", "0", "-1", "inf", "nan"):
        monkeypatch.setenv("HOPSML_STORAGE_TIMEOUT_S", wrong)
        with pytest.raises(ArgumentError, match=f"'{wrong}'.*above 0"):
            _ = SETTINGS.storage_timeout_s


def test_drain_time_must_be_a_nonnegative_number_of_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOPSML_DRAIN_S", raising=False)
    assert SETTINGS.drain_s == 30
    monkeypatch.setenv("HOPSML_DRAIN_S", "0")
    assert SETTINGS.drain_s == 0
    for wrong in ("soon", "-1", "inf", "nan"):
        monkeypatch.setenv("HOPSML_DRAIN_S", wrong)
        with pytest.raises(ArgumentError, match=f"'{wrong}'.*release the node at once"):
            _ = SETTINGS.drain_s


def test_lease_must_be_a_number_of_seconds_from_3_to_300(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOPSML_LEASE_S", raising=False)
    assert SETTINGS.lease_s == 10
    monkeypatch.setenv("HOPSML_LEASE_S", "60")
    assert SETTINGS.lease_s == 60
    for wrong in ("soon", "2.9", "301", "inf", "nan"):
        monkeypatch.setenv("HOPSML_LEASE_S", wrong)
        with pytest.raises(ArgumentError, match=f"'{wrong}'.*from 3 to 300"):
            _ = SETTINGS.lease_s


def test_hadoop_configuration_is_found_in_a_yarn_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    assert settings.hadoop_conf_dir() is None
    shipped = write_conf(tmp_path / "__spark_conf__" / "__hadoop_conf__", fs__defaultFS="hdfs://ns1/")
    assert settings.hadoop_conf_dir() == shipped
    assert settings.default_fs() == "hdfs://ns1"
    other = write_conf(tmp_path / "other", fs__defaultFS="hdfs://ns2")
    monkeypatch.setenv("HADOOP_CONF_DIR", "other")
    assert settings.hadoop_conf_dir() == other
    assert settings.default_fs() == "hdfs://ns2"
    write_conf(other, fs__defaultFS="hdfs://changed-now")  # counts at once
    assert settings.default_fs() == "hdfs://changed-now"


def test_broken_hadoop_configuration_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "core-site.xml").write_text("<configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    with pytest.raises(ArgumentError, match=r"core-site.xml.*HADOOP_CONF_DIR"):
        settings.hadoop_settings()


def test_project_name_and_url_follow_from_variables_and_the_default_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    monkeypatch.setenv("HADOOP_USER_NAME", "fraud__meb10000")
    assert settings.project_name() == "fraud"
    monkeypatch.setenv("HOPSML_PROJECT", "demo")
    assert settings.project_name() == "demo"
    assert settings.project_url() == f"file://{tmp_path}/.hopsml"
    monkeypatch.setenv("HADOOP_CONF_DIR", str(write_conf(tmp_path / "local", fs__defaultFS="file:///")))
    assert settings.project_url() == f"file://{tmp_path}/.hopsml"
    monkeypatch.setenv("HADOOP_CONF_DIR", str(write_conf(tmp_path / "c", fs__defaultFS="hdfs://nn:8020")))
    assert settings.project_url() == "hdfs://nn:8020/Projects/demo"
    assert settings.project_url("other") == "hdfs://nn:8020/Projects/other"
    monkeypatch.setenv("HOPSML_PROJECT_URL", "s3://bucket/p/demo/")
    assert settings.project_url() == "s3://bucket/p/demo"
    assert settings.project_url("other") == "s3://bucket/p/other"


def test_relative_project_path_is_resolved_against_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOPSML_PROJECT_URL", "runs/mine/")
    assert settings.project_url() == f"file://{tmp_path}/runs/mine"
    monkeypatch.setenv("HOPSML_PROJECT_URL", "/data/mine")
    assert settings.project_url() == "file:///data/mine"


def test_project_name_defaults_to_the_login_user() -> None:
    assert settings.project_name() == settings.user_name()
    assert settings.user_name() == os.environ.get("LOGNAME", os.environ.get("USER", settings.user_name()))


def token_of(owner: bytes) -> bytes:
    """A token file with an HDFS token of an owner."""
    names = b"".join(bytes([len(name)]) + name for name in (owner, b"yarn", b""))
    identifier = b"\0" + names + b"\x01\x02\x03\x04"
    kind = b"HDFS_DELEGATION_TOKEN"
    fields = (b"", identifier, b"password", kind, b"ha-hdfs:ns1")
    return b"HDTS\0\x01" + b"".join(bytes([len(field)]) + field for field in fields) + b"\0"


@pytest.fixture
def kerberized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The token file of a process on a Kerberized cluster, which does not exist yet; there is no ticket."""
    rules = {"hadoop__security__authentication": "Kerberos", "hadoop__security__auth_to_local": "RULE:[2:$1]L DEFAULT"}
    monkeypatch.setenv("HADOOP_CONF_DIR", str(write_conf(tmp_path / "conf", fs__defaultFS="hdfs://ns1", **rules)))
    (tmp_path / "krb5.conf").write_text("[libdefaults]\n default_realm = LAB\n")
    monkeypatch.setenv("KRB5_CONFIG", str(tmp_path / "krb5.conf"))
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path / 'none'}")
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", str(tmp_path / "tokens"))
    for name in ("HADOOP_PROXY_USER", "HOPSML_PROJECT", "HOPSML_PROJECT_URL", "HOPSML_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HADOOP_USER_NAME", "mallory")  # Hadoop ignores it where Kerberos is required
    return tmp_path / "tokens"


def test_owner_of_tokens_is_the_user_of_a_kerberized_cluster(kerberized: Path) -> None:
    kerberized.write_bytes(token_of(b"alice"))
    assert (settings.user_name(), settings.login_name()) == ("alice", "alice")
    assert settings.project_url() == "hdfs://ns1/Projects/alice"
    kerberized.write_bytes(token_of(b"Etl/node1@OTHER"))
    assert settings.user_name() == "etl", "the cluster's rules apply"
    kerberized.write_bytes(token_of(b"alice@OTHER"))
    assert settings.user_name() == "alice@OTHER", "a namesake in another realm is another user"


@pytest.mark.parametrize("realm", ["", " default_realm = ATHENA.MIT.EDU\n"])
def test_container_without_the_clusters_krb5_conf_has_the_user_of_sparks_jvm(
    realm: str, kerberized: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(os.environ["KRB5_CONFIG"]).write_text(f"[libdefaults]\n{realm}")
    kerberized.write_bytes(token_of(b"alice@LAB"))
    monkeypatch.delenv("SPARK_USER", raising=False)
    assert settings.user_name() == "alice@LAB", "without Spark nobody knows the realm"
    monkeypatch.setenv("SPARK_USER", "alice")  # set by Spark in the containers of executors and drivers
    assert (settings.user_name(), settings.login_name()) == ("alice", "alice")
    assert settings.project_url() == "hdfs://ns1/Projects/alice"
    kerberized.write_bytes(token_of(b"Etl/node1@LAB"))
    assert settings.user_name() == "etl", "a rule that applies comes first"
    kerberized.write_bytes(token_of(b"bob@LAB"))
    assert settings.user_name() == "bob@LAB", "the variable does not turn one user into another"


def test_without_token_and_ticket_the_operating_system_names_the_user(
    kerberized: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings.user_name() == settings.login_name() == getpass.getuser()
    kerberized.write_bytes(b"broken")
    assert settings.user_name() == getpass.getuser()
    with monkeypatch.context() as by_keytab:
        by_keytab.setenv("SPARK_USER", "alice")  # of Spark's JVM, which has a keytab
        assert settings.user_name() == "alice"
    monkeypatch.setenv("HADOOP_PROXY_USER", "bob")
    assert settings.user_name() == "bob"
    kerberized.write_bytes(token_of(b"alice"))
    assert settings.user_name() == "alice", "a token is its owner's, whatever the variable says"


def test_proxy_user_comes_before_the_user_of_a_cluster_without_kerberos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.setenv("HADOOP_USER_NAME", "service")
    monkeypatch.setenv("HADOOP_PROXY_USER", "bob")
    assert settings.user_name() == "bob"


@pytest.mark.parametrize("scheme", ["hdfs", "viewfs", "hopsfs"])
def test_project_is_stored_on_the_clusters_store_for_each_scheme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    for name in ("HOPSML_PROJECT_URL", "HOPSML_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOPSML_PROJECT", "p")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(write_conf(tmp_path / "conf", fs__defaultFS=f"{scheme}://nn:8020")))
    assert settings.project_url() == f"{scheme}://nn:8020/Projects/p"


@pytest.mark.parametrize("value", ["x", "-1", "1e3", "nan", "inf", "9" * 5000, "\u0663\u0663\u0663x", "1-", "\ud800"])
@pytest.mark.parametrize(
    "name",
    [
        "HOPSML_LOCAL_SLOTS",
        "HOPSML_PORT_RANGE",
        "HOPSML_SEED",
        "HOPSML_STORAGE_TIMEOUT_S",
        "HOPSML_KEEPALIVE_S",
        "HOPSML_SYSTEM_METRICS_S",
        "HOPSML_DRAIN_S",
        "HOPSML_CORES",
        "HOPSML_ENCRYPTION",
        "HOPSML_UI_MEMORY_MB",
        "HOPSML_DATA_CACHE_BYTES",
        "HOPSML_APPLICATION_ATTEMPT",
    ],
)
def test_malformed_value_of_each_variable_is_refused_with_its_name(name: str, value: str) -> None:
    if value == "1e3" and name.endswith("_S"):
        pytest.skip("this is a number of seconds")
    with pytest.raises(ArgumentError, match=name):
        Settings({name: value}).check([name, "ANOTHER"])


def test_only_the_named_variables_are_checked() -> None:
    Settings({"HOPSML_SEED": "x"}).check(["HOPSML_CORES", "PATH"])


def test_login_name_of_a_uid_without_a_name_is_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_name(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", no_name)
    assert settings.login_name() == str(os.getuid())
