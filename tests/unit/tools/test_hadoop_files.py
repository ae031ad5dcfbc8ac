"""Tests of the files that tools/hadoop writes and downloads: settings, ports, jars; and of profiles in conf/."""

from __future__ import annotations

import dataclasses
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path
from xml.etree import ElementTree

import pytest

from hopsml.core import profiles
from tools.hadoop import ha, jars, tls
from tools.hadoop.__main__ import parser, security_of, shape_of
from tools.hadoop.errors import HadoopError
from tools.hadoop.kerberos import Security, principals, secured
from tools.hadoop.ports import FIRST, LAST, free_ports
from tools.hadoop.settings import PORTS_OF, Settings, Shape, kind, write_conf
from tools.hadoop.shuffle_service import compile_service, with_shuffle_service
from tools.hadoop.spark import spark_conf, submit_command, submit_env

pytestmark = pytest.mark.fast

ROOT = Path(__file__).resolve().parents[3]


def read_xml(path: Path) -> dict[str, str]:
    """Key -> value of a Hadoop settings file."""
    rows = ElementTree.parse(path).getroot()
    return {str(row.findtext("name")): str(row.findtext("value")) for row in rows}


def conf_of(home: Path, name: str) -> Path:
    """The settings folder of one daemon of a cluster with made-up ports."""
    names = ("nn", "rm", "dn1", "nm1", "nm2")
    ports = {each: {use: 20000 + i for i, use in enumerate(PORTS_OF[kind(each)])} for each in names}
    return write_conf(home, name, ports, Shape(gpus=3))


def test_each_nodemanager_has_its_own_address_and_gpu_claims(tmp_path: Path) -> None:
    settings = [read_xml(conf_of(tmp_path, name) / "yarn-site.xml") for name in ("nm1", "nm2")]
    assert [each["yarn.nodemanager.hostname"] for each in settings] == ["127.0.0.11", "127.0.0.12"]
    assert settings[1]["yarn.nodemanager.admin-env"] == (
        f"HOPSML_EMULATED_GPUS=3,HOPSML_GPU_CLAIMS={tmp_path}/nm2/gpu-claims"
    )


def test_client_configuration_has_gpu_resource_and_hdfs_address(tmp_path: Path) -> None:
    conf = conf_of(tmp_path, "client")
    assert read_xml(conf / "resource-types.xml") == {"yarn.resource-types": "yarn.io/gpu"}
    assert read_xml(conf / "core-site.xml")["fs.defaultFS"] == "hdfs://127.0.0.1:20000"


def test_folder_with_special_characters_gives_valid_xml(tmp_path: Path) -> None:
    home = tmp_path / "a & b <c>"
    assert read_xml(conf_of(home, "dn1") / "hdfs-site.xml")["dfs.datanode.data.dir"] == f"file://{home}/dn1/data"


@pytest.mark.parametrize(("sizes", "message"), [({"datanodes": 0}, "datanodes=0"), ({"gpus": -1}, "gpus=-1")])
def test_invalid_cluster_shape_is_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"{message}: it must be at least"):
        Shape(**sizes)


def test_start_options_set_the_shape_fields_of_the_same_name() -> None:
    sizes = {field.name: 65 + place for place, field in enumerate(dataclasses.fields(Shape))}
    sizes |= {"namenodes": 2, "resourcemanagers": 2}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in sizes.items()]
    assert shape_of(parser().parse_args(["start", *options])) == Shape(**sizes)
    assert shape_of(parser().parse_args(["start"])) == Shape()


def test_ports_are_free_distinct_and_not_those_of_clients() -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        ports = free_ports(50, "127.0.0.1", taken=range(FIRST, FIRST + 10000))
    assert len(set(ports)) == 50
    assert all(FIRST + 10000 <= port < LAST for port in ports)


def test_port_in_use_is_not_chosen() -> None:
    (port,) = free_ports(1, "127.0.0.1")
    others = set(range(FIRST, LAST)) - {port}
    with socket.create_server(("127.0.0.1", port)), pytest.raises(OSError, match="fewer than 1 free ports"):
        free_ports(1, "127.0.0.1", taken=others)
    assert free_ports(1, "127.0.0.1", taken=others) == [port]


# ---------------------------------------------------------------------- Kerberos


def secure_conf(home: Path, name: str, security: Security) -> Path:
    """The settings folder of one daemon of a Kerberized cluster."""
    ports = {
        each: {use: 20000 + i for i, use in enumerate(PORTS_OF[kind(each)])} for each in ("nn", "rm", "dn1", "nm1")
    }
    return write_conf(home, name, ports, Shape(), lambda plain: secured(plain, home / "kdc", security))


def test_kerberized_cluster_is_addressed_by_the_name_in_its_principals(tmp_path: Path) -> None:
    conf = secure_conf(tmp_path, "client", Security())
    assert read_xml(conf / "core-site.xml")["fs.defaultFS"] == "hdfs://localhost:20000"
    assert read_xml(conf / "yarn-site.xml")["yarn.resourcemanager.webapp.address"].startswith("localhost:")
    node = read_xml(secure_conf(tmp_path, "nm1", Security()) / "yarn-site.xml")
    assert node["yarn.nodemanager.hostname"] == "127.0.0.11"


def test_security_options_set_protection_lives_and_cipher(tmp_path: Path) -> None:
    plain = read_xml(secure_conf(tmp_path, "nn", Security(token_renew_s=90, token_max_s=300)) / "hdfs-site.xml")
    assert plain["dfs.namenode.delegation.token.renew-interval"] == "90000"
    assert plain["dfs.namenode.delegation.token.max-lifetime"] == "300000"
    assert "dfs.encrypt.data.transfer.cipher.suites" not in plain
    private = read_xml(secure_conf(tmp_path, "nn", Security("privacy")) / "hdfs-site.xml")
    assert private["dfs.data.transfer.protection"] == "privacy"
    assert private["dfs.encrypt.data.transfer.cipher.suites"] == "AES/CTR/NoPadding"


def test_two_namenodes_are_one_name_service(tmp_path: Path) -> None:
    names = (*ha.daemons_of_ha(), "dn1")
    ports = {each: {use: 20000 + i for i, use in enumerate(PORTS_OF[kind(each)])} for each in names}
    conf = write_conf(
        tmp_path, "nn2", ports, Shape(2), lambda plain: ha.with_two_namenodes(plain, tmp_path, "nn2", ports)
    )
    assert read_xml(conf / "core-site.xml")["fs.defaultFS"] == "hdfs://ns1"
    hdfs = read_xml(conf / "hdfs-site.xml")
    assert hdfs["dfs.ha.namenode.id"] == "nn2" and hdfs["dfs.namenode.name.dir"] == f"file://{tmp_path}/nn2/data"
    assert "dfs.namenode.http-address" not in hdfs
    assert hdfs["dfs.namenode.rpc-address.ns1.nn1"] == "127.0.0.1:20000"
    assert shape_of(parser().parse_args(["start", "--ha"])).namenodes == 2
    with pytest.raises(ValueError, match="at most 2 of each"):
        Shape(namenodes=3)


def test_nodemanagers_start_the_shuffle_service_at_one_port_with_its_own_classes(tmp_path: Path) -> None:
    ports = {
        each: {use: 20000 + i for i, use in enumerate(PORTS_OF[kind(each)])} for each in ("nn", "rm", "dn1", "nm1")
    }
    conf = write_conf(tmp_path, "nm1", ports, Shape(), lambda plain: with_shuffle_service(plain, tmp_path, 23456))
    found = read_xml(conf / "yarn-site.xml")
    assert found["yarn.nodemanager.aux-services"] == "spark_shuffle"
    assert found["yarn.nodemanager.aux-services.spark_shuffle.classpath"].startswith(f"{tmp_path}/shuffle-service:")
    assert found["spark.shuffle.service.port"] == "23456" and found["yarn.nodemanager.hostname"] == "127.0.0.11"


def test_failed_compilation_of_the_shuffle_service_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "javac").write_text("#!/bin/sh\necho cannot find symbol >&2; exit 1\n")
    (tmp_path / "javac").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(HadoopError, match=r"javac ShuffleService.java ended with 1: cannot find symbol"):
        compile_service(tmp_path, "jars")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(HadoopError, match="javac is missing"):
        compile_service(tmp_path, "jars")


def test_spnego_of_yarn_is_an_option(tmp_path: Path) -> None:
    found = [read_xml(secure_conf(tmp_path, "rm", Security(spnego=on)) / "yarn-site.xml") for on in (False, True)]
    assert ["hadoop.http.filter.initializers" in each for each in found] == [False, True]


def https_conf(home: Path, name: str) -> Path:
    """The settings folder of one daemon of a Kerberized cluster with two NameNodes and HTTPS."""
    names = (*ha.daemons_of_ha(), "rm", "rm2", "dn1", "nm1")
    ports = {each: {use: 20000 + i for i, use in enumerate(PORTS_OF[kind(each)])} for each in names}

    def change(plain: Settings) -> Settings:
        encrypted = tls.with_https(ha.with_two_namenodes(plain, home, name, ports), home / "tls", name)
        return secured(encrypted, home / "kdc", Security(https=True))

    return write_conf(home, name, ports, Shape(2, resourcemanagers=2), change)


def test_https_replaces_every_http_address(tmp_path: Path) -> None:
    for name, file, key in (
        ("client", "hdfs-site.xml", "dfs.namenode.https-address.ns1.nn2"),
        ("client", "yarn-site.xml", "yarn.resourcemanager.webapp.https.address.rm2"),
        ("dn1", "hdfs-site.xml", "dfs.datanode.https.address"),
        ("jn1", "hdfs-site.xml", "dfs.journalnode.https-address"),
        ("nm1", "yarn-site.xml", "yarn.nodemanager.webapp.https.address"),
    ):
        rows = read_xml(https_conf(tmp_path, name) / file)
        assert rows[key].rpartition(":")[2].startswith("2000")
        assert [other for other in rows if re.search(r"(?<!https[-.])(http-|http\.|webapp\.)address", other)] == []
        assert rows["dfs.http.policy" if file.startswith("hdfs") else "yarn.http.policy"] == "HTTPS_ONLY"


def test_only_daemons_have_the_private_key(tmp_path: Path) -> None:
    assert not (https_conf(tmp_path, "client") / "ssl-server.xml").exists()
    client = read_xml(tmp_path / "client" / "conf" / "ssl-client.xml")
    assert client["ssl.client.truststore.location"] == str(tls.truststore(tmp_path / "tls"))
    server = read_xml(https_conf(tmp_path, "nm1") / "ssl-server.xml")
    assert server["ssl.server.keystore.location"] == str(tls.keystore(tmp_path / "tls"))
    assert not (secure_conf(tmp_path, "nn", Security()) / "ssl-client.xml").exists()


def test_kerberos_options_of_the_command_line_describe_the_security() -> None:
    assert security_of(parser().parse_args(["start"])) is None
    options = ["--kerberos", "--spnego", "--protection=integrity", "--encrypt", "--token-renew-s=1", "--token-max-s=2"]
    options.append("--https")
    expected = Security("integrity", encrypt=True, spnego=True, https=True, token_renew_s=1, token_max_s=2)
    assert security_of(parser().parse_args(["start", *options])) == expected


def test_each_host_has_a_principal_for_http() -> None:
    names = principals({"nn": {}, "nm1": {}, "nm12": {}})
    assert {"HTTP/localhost", "HTTP/127.0.0.11", "HTTP/127.0.0.22", "alice", "bob"} <= set(names)
    assert len(names) == len(set(names))


def test_unknown_protection_is_refused() -> None:
    with pytest.raises(ValueError, match="protection='secret': it must be one of authentication, integrity, privacy"):
        Security("secret")


# ---------------------------------------------------------------------- jars

MVN = """#!/bin/sh
echo run >> {log}
for argument in "$@"; do
    case $argument in -DoutputDirectory=*) out=${{argument#*=}} ;; esac
done
mkdir -p "$out"
{body}
"""


@pytest.fixture
def mvn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Maven that fetches nothing and writes down that it was called; returns its log."""
    log = tmp_path / "mvn.log"
    write_mvn(tmp_path, 'touch "$out/hadoop-hdfs-1.jar"')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return log


def write_mvn(folder: Path, body: str) -> None:
    """Let `mvn` do ``body``."""
    (folder / "mvn").write_text(MVN.format(log=folder / "mvn.log", body=body))
    (folder / "mvn").chmod(0o755)


def test_jars_are_fetched_once_per_pom_content(tmp_path: Path, mvn: Path) -> None:
    pom = tmp_path / "pom.xml"
    pom.write_text("one")
    folder = jars.ensure_jars(tmp_path / "cache", pom)
    assert (folder / "hadoop-hdfs-1.jar").exists()
    jars.ensure_jars(tmp_path / "cache", pom)
    assert mvn.read_text() == "run\n"
    pom.write_text("two")
    jars.ensure_jars(tmp_path / "cache", pom)
    assert mvn.read_text() == "run\nrun\n"


def test_another_release_of_hadoop_has_its_own_folder(
    tmp_path: Path, mvn: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = jars.ensure_jars(tmp_path / "cache")
    monkeypatch.setenv("HADOOP_VERSION", "3.3.6")
    folder = jars.ensure_jars(tmp_path / "cache")
    assert (folder.name, (folder / "hadoop-hdfs-1.jar").exists()) == ("jars-3.3.6", True)
    assert usual.name == "jars" and usual.exists()
    assert jars.ensure_jars(tmp_path / "cache") == folder
    assert mvn.read_text() == "run\nrun\n"


def test_concurrent_callers_fetch_jars_once(tmp_path: Path, mvn: Path) -> None:
    code = "import sys; from pathlib import Path; from tools.hadoop.jars import ensure_jars; "
    code += "sys.stdin.read(); print(ensure_jars(Path(sys.argv[1])))"
    command = [sys.executable, "-c", code, str(tmp_path / "cache")]
    callers = [
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    threads = [threading.Thread(target=caller.communicate) for caller in callers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [caller.returncode for caller in callers] == [0, 0, 0]
    assert mvn.read_text() == "run\n"


def test_failed_fetch_is_explained_and_retried(tmp_path: Path, mvn: Path) -> None:
    write_mvn(tmp_path, "echo Could not resolve dependencies; exit 1")
    with pytest.raises(HadoopError, match=r"exit status 1\); is a Maven repository reachable\?\nCould not resolve"):
        jars.ensure_jars(tmp_path / "cache")
    write_mvn(tmp_path, 'touch "$out/hadoop-hdfs-1.jar"')
    assert (jars.ensure_jars(tmp_path / "cache") / "hadoop-hdfs-1.jar").exists()


def test_missing_maven_error_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HadoopError, match="install Maven"):
        jars.ensure_jars(tmp_path / "cache")


# ---------------------------------------------------------------------- Spark settings and profiles


def test_gpus_are_requested_only_if_configured() -> None:
    assert not [key for key in spark_conf() if "gpu" in key]
    assert spark_conf(gpus=2)["spark.executor.resource.gpu.amount"] == "2"


def test_submit_environment_omits_the_callers_spark(tmp_path: Path) -> None:
    environment = submit_env(tmp_path, {"SPARK_HOME": "/opt/spark", "PYSPARK_SUBMIT_ARGS": "x", "PATH": "/bin"})
    assert environment["PATH"] == "/bin"
    assert environment["HADOOP_CONF_DIR"] == str(tmp_path)
    assert not {"SPARK_HOME", "PYSPARK_SUBMIT_ARGS"} & environment.keys()


def test_submit_command_contains_all_options() -> None:
    command = submit_command("job.py", "a", conf={"spark.x": "1"}, deploy_mode="client")
    assert command[1:] == ["--deploy-mode", "client", "--conf", "spark.x=1", "job.py", "a"]


@pytest.mark.parametrize("path", sorted((ROOT / "conf").glob("*.yaml")), ids=lambda path: path.stem)
def test_profiles_in_conf_are_valid_and_listed_in_the_readme(path: Path) -> None:
    profile = profiles.load(path.stem)
    assert profile.deploy_mode in ("client", "cluster")
    assert profile.description
    for key, value in profile.spark.items():
        assert key.startswith("spark.")
        if key == "spark.yarn.dist.files":
            assert Path(value).exists()
    assert f"`{path.stem}`" in (path.parent / "README.md").read_text()
