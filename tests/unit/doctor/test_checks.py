"""Tests of each check of this machine, from facts to finding."""

from __future__ import annotations

from typing import Any

import pytest

from hopsml.cluster.shared.gpus import HostGpu
from hopsml.doctor import checks
from hopsml.doctor.checks import Finding, Needs, Status, fail, ok
from hopsml.doctor.facts import AddressFacts, LimitFacts, PortFacts, PythonFacts, ScratchFacts, SparkFacts
from hopsml.submission.spark_connect import ConnectFacts
from hopsml.submission.spark_start import JavaFacts, java_version

pytestmark = pytest.mark.fast

LOCAL = Needs()
SPARK = Needs(profile="local-cluster", spark=True, master="local-cluster[2,2,1024]")
YARN = Needs(profile="yarn", spark=True, yarn=True, distributed=True, master="yarn")
REMOTE, CLIENT = ConnectFacts(setting="SPARK_REMOTE"), ConnectFacts(is_client_only=True)
OK, WARN, FAIL = Status.OK, Status.WARN, Status.FAIL
GIB = 1 << 30


def java(output: str, **facts: Any) -> JavaFacts:
    return JavaFacts("/usr/bin/java", "PATH", output, **facts)


def check_finding(finding: Finding, status: Status, *words: str) -> None:
    assert finding.status is status, finding
    for word in words:
        assert word in f"{finding.summary} {finding.remedy}", (word, finding)


def test_finding_has_a_remedy_exactly_if_it_is_not_ok() -> None:
    with pytest.raises(ValueError, match="remedy"):
        fail("x", "broken", "")
    with pytest.raises(ValueError, match="remedy"):
        Finding("x", OK, "fine", "do this")
    assert ok("x", "fine").remedy == ""


@pytest.mark.parametrize(
    ("version", "status"),
    [((3, 9, 2), FAIL), ((3, 10, 0), OK), ((3, 11, 7), OK), ((3, 12, 1), OK), ((3, 13, 0), OK), ((3, 15, 0), WARN)],
)
def test_python_version_is_checked(version: tuple[int, int, int], status: Status) -> None:
    check_finding(checks.python(version), status, ".".join(map(str, version)))


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime', 17),
        ('java version "1.8.0_402"\nJava(TM) SE', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21" 2023-09-19', 21),
        ("Segmentation fault", None),
    ],
)
def test_java_version_is_parsed_from_the_output(output: str, version: int | None) -> None:
    assert java_version(output) == version


@pytest.mark.parametrize(
    ("facts", "needs", "status", "words"),
    [
        (java('version "17.0.1"'), SPARK, OK, ["17", "/usr/bin/java"]),
        (java('version "21.0.1"'), SPARK, OK, ["21"]),
        (java('version "24.0.1"'), SPARK, WARN, ["24", "openjdk-17"]),
        (java('version "11.0.1"'), SPARK, FAIL, ["11", "too old for Spark 4.3", "openjdk-17"]),
        (java('version "1.8.0_1"'), LOCAL, WARN, ["8", "too old"]),
        (java("", problem="it did not end within 15 s"), SPARK, FAIL, ["did not end within 15 s"]),
        (java("rubbish"), SPARK, FAIL, ["rubbish"]),
        (JavaFacts("", "PATH"), SPARK, FAIL, ["no java", "JAVA_HOME"]),
        (JavaFacts("", "PATH"), LOCAL, OK, ["runs without Spark"]),
    ],
)
def test_java_is_checked_for_spark_and_local_profiles(
    facts: JavaFacts, needs: Needs, status: Status, words: list[str]
) -> None:
    check_finding(checks.java(facts, "4.3.0", needs), status, *words)


@pytest.mark.parametrize(
    ("pyspark", "output", "status", "words"),
    [
        ("3.5.9", 'version "1.8.0_402"', OK, ["8"]),
        ("3.5.9", 'version "11.0.1"', OK, ["11"]),
        ("3.4.4", 'version "21.0.1"', WARN, ["Spark 3.4 is not tested", "openjdk-17"]),
        ("4.0.5", 'version "11.0.1"', FAIL, ["too old for Spark 4.0"]),
        ("", 'version "17.0.1"', OK, ["17"]),
    ],
)
def test_java_is_checked_against_the_installed_spark(
    pyspark: str, output: str, status: Status, words: list[str]
) -> None:
    check_finding(checks.java(java(output), pyspark, SPARK), status, *words)


@pytest.mark.parametrize(
    ("pyspark", "python", "status", "words"),
    [
        ("3.5.9", (3, 11, 7), OK, ["3.5.9"]),
        ("3.3.4", (3, 10, 13), OK, ["3.3.4"]),
        ("3.3.4", (3, 11, 7), FAIL, ["functions of Python 3.11", "use Python 3.10", "pyspark>=3.4"]),
        ("3.2.1", (3, 10, 1), WARN, ["3.2.1 has not been tested", "pyspark==3.3.*"]),
        ("5.0.0", (3, 13, 1), WARN, ["5.0.0 has not been tested", "pyspark==4.3.*"]),
    ],
)
def test_spark_is_checked_against_the_python_version(
    pyspark: str, python: tuple[int, int, int], status: Status, words: list[str]
) -> None:
    check_finding(checks.spark(SparkFacts(pyspark, "3.3.4", "", ""), {}, SPARK, python), status, *words)


@pytest.mark.parametrize(
    ("facts", "packages", "needs", "status", "words"),
    [
        (SparkFacts("4.3.0", "3.5.0", "", ""), {}, YARN, OK, ["4.3.0", "3.5.0"]),
        (SparkFacts("4.3.0", "3.5.0", "/opt/spark", "4.3.0"), {}, YARN, OK, []),
        (
            SparkFacts("4.3.0", "3.5.0", "/opt/spark", "3.5.1"),
            {},
            YARN,
            FAIL,
            ["/opt/spark", "3.5.1", "unset SPARK_HOME"],
        ),
        (SparkFacts("4.3.0", "", "/opt/nothing", ""), {}, YARN, FAIL, ["/opt/nothing", "no Spark"]),
        (SparkFacts("3.5.1", "3.3.4", "", ""), {}, YARN, OK, ["3.5.1"]),
        (SparkFacts("3.2.1", "3.3.4", "", ""), {}, LOCAL, WARN, ["3.2.1", "pip install"]),
        (SparkFacts("", "", "", ""), {}, YARN, FAIL, ["not installed", "pip install"]),
        (SparkFacts("", "", "", ""), {}, LOCAL, OK, ["does without"]),
        (SparkFacts("4.3.0", "3.5.0", "", "", REMOTE), {}, YARN, FAIL, ["SPARK_REMOTE is set", "without SPARK_REMOTE"]),
        (SparkFacts("4.3.0", "3.5.0", "", "", REMOTE), {}, LOCAL, WARN, ["SPARK_REMOTE is set"]),
        (SparkFacts("", "", "", "", CLIENT), {}, YARN, FAIL, ["only pyspark-client", "pip uninstall pyspark-client"]),
        (SparkFacts("", "", "", "", CLIENT), {}, LOCAL, OK, ["does without"]),
        (SparkFacts("4.3.0", "", "", ""), {"pyspark-client": "4.3.0"}, LOCAL, FAIL, ["overwrite", "pip uninstall"]),
    ],
)
def test_spark_installation_is_checked(
    facts: SparkFacts, packages: dict[str, str], needs: Needs, status: Status, words: list[str]
) -> None:
    check_finding(checks.spark(facts, packages, needs), status, *words)


@pytest.mark.parametrize(
    ("packages", "environment", "status", "words"),
    [
        ({"tensorflow": "2.21.0", "keras": "3.15.1"}, {}, OK, ["tensorflow 2.21.0", "keras 3.15.1"]),
        ({"tensorflow-cpu": "2.21.0", "keras": "3.15.1", "tf-keras": "2.21.0"}, {}, OK, ["tensorflow-cpu"]),
        ({"torch": "2.13.0"}, {}, OK, ["torch 2.13.0"]),
        ({"torch": "2.4.1"}, {}, OK, ["torch 2.4.1"]),
        ({"torch": "2.3.1"}, {}, WARN, ["torch 2.3.1 has not been tested", "torch==2.4.*"]),
        ({}, {}, WARN, ["pip install"]),
        ({"tensorflow": "2.15.0"}, {}, FAIL, ["2.15.0 does not work", "tf_keras 2.15", "tensorflow==2.16.*"]),
        (
            {"tensorflow": "2.15.1", "keras": "2.15.0", "tf-keras": "2.15.1"},
            {"TF_USE_LEGACY_KERAS": "1"},
            OK,
            ["tensorflow 2.15.1", "tf-keras 2.15.1"],
        ),
        ({"tensorflow": "2.14.1", "tf-keras": "2.14.1"}, {"TF_USE_LEGACY_KERAS": "1"}, FAIL, ["tensorflow==2.15.*"]),
        ({"tensorflow-cpu": "2.12.0"}, {}, FAIL, ["tensorflow-cpu==2.16.*"]),
        ({"tensorflow": "2.22.0"}, {}, WARN, ["has not been tested", "2.21"]),
        ({"tensorflow": "2.21.0", "keras": "2.15.0"}, {}, FAIL, ["keras 2.15.0", "tf_keras"]),
        ({"tensorflow": "2.21.0", "tensorflow-cpu": "2.21.0"}, {}, WARN, ["overwrite", "pip uninstall"]),
        ({"tensorflow": "2.21.0", "tensorflow-cpu": "2.21.1"}, {}, FAIL, ["overwrite"]),
        ({"tensorflow": "2.21.0"}, {"TF_USE_LEGACY_KERAS": "1"}, FAIL, ["tf-keras is not installed"]),
        ({"tensorflow": "2.21.0", "tf-keras": "2.20.1"}, {}, WARN, ["tf-keras 2.20.1", "tf-keras==2.21.*"]),
        ({"tensorflow": "2.21.0", "tf-keras": "2.20.1"}, {"TF_USE_LEGACY_KERAS": "1"}, FAIL, ["tf-keras==2.21.*"]),
        ({"tensorflow": "2.21.0", "tensorflow-io": "0.37.1"}, {}, WARN, ["tensorflow-io", "pip uninstall"]),
    ],
)
def test_framework_versions_are_checked(
    packages: dict[str, str], environment: dict[str, str], status: Status, words: list[str]
) -> None:
    check_finding(checks.frameworks(packages, environment), status, *words)


@pytest.mark.parametrize(
    ("count", "has_driver", "packages", "status", "words"),
    [
        (0, False, {}, OK, ["none"]),
        (0, True, {}, WARN, ["finds no GPU", "nvidia-smi"]),
        (2, True, {"tensorflow": "2.21.0"}, OK, ["2 on this machine"]),
        (2, True, {"tensorflow-cpu": "2.21.0"}, WARN, ["cannot use them", "[tensorflow]"]),
    ],
)
def test_gpus_and_their_driver_are_checked(
    count: int, has_driver: bool, packages: dict[str, str], status: Status, words: list[str]
) -> None:
    found = tuple(HostGpu(index, f"GPU-{index}") for index in range(count))
    check_finding(checks.gpus(found, has_driver, packages), status, *words)


ROOMY = {"open_files": 65536, "processes": -1, "stack_bytes": 8 << 20, "shm_bytes": 8 * GIB}


def test_limit_of_open_files_is_compared_with_the_need_of_a_group() -> None:
    check_finding(checks.limits(LimitFacts(**{**ROOMY, "open_files": 1024}), workers=384), OK)
    check_finding(
        checks.limits(LimitFacts(**{**ROOMY, "open_files": 1024}), workers=385), WARN, "385 workers needs 1026"
    )
    check_finding(checks.limits(LimitFacts(**ROOMY), workers=100_000), WARN, "needs 200256", "ulimit -n 200256")


@pytest.mark.parametrize(
    ("change", "gpus", "status", "words"),
    [
        ({}, 0, OK, ["65536", "unlimited"]),
        ({"open_files": -1, "stack_bytes": -1}, 0, OK, []),
        ({"open_files": 1024}, 0, WARN, ["open files is only 1024", "1920 workers needs 4096", "ulimit -n"]),
        ({"processes": 1000}, 0, WARN, ["processes and threads is only 1000", "ulimit -u"]),
        ({"stack_bytes": 1 << 20}, 0, WARN, ["1024 KiB", "ulimit -s"]),
        ({"shm_bytes": 64 << 20}, 1, OK, []),
        ({"shm_bytes": 64 << 20}, 2, WARN, ["/dev/shm", "64 MiB", "--shm-size"]),
        (
            {"open_files": 256, "processes": 64},
            0,
            WARN,
            ["open files is only 256", "processes and threads is only 64", "ulimit -n", "ulimit -u"],
        ),
    ],
)
def test_process_limits_are_checked(change: dict[str, int], gpus: int, status: Status, words: list[str]) -> None:
    check_finding(checks.limits(LimitFacts(**{**ROOMY, **change}), gpus), status, *words)


@pytest.mark.parametrize(
    ("free", "inodes", "problem", "status"),
    [
        (100 * GIB, 1000, "", OK),
        (100 * GIB, -1, "", OK),
        (2 * GIB, 1000, "", WARN),
        (GIB // 10, 1000, "", FAIL),
        (100 * GIB, 0, "", FAIL),
        (0, 0, "No space left on device", FAIL),
    ],
)
def test_scratch_space_is_checked(free: int, inodes: int, problem: str, status: Status) -> None:
    check_finding(checks.scratch(ScratchFacts("/scratch", free, inodes, problem)), status, "/scratch", problem)


@pytest.mark.parametrize(
    ("facts", "status", "words"),
    [
        (PortFacts("", 1, 1), OK, ["HOPSML_PORT_RANGE"]),
        (PortFacts("", 1, 0, "Operation not permitted"), FAIL, ["not permitted"]),
        (PortFacts("40000-40100", 101, 99), OK, ["99 of 101"]),
        (PortFacts("40000-40100", 101, 3), WARN, ["3 of 101", "widen"]),
        (PortFacts("40000-40001", 2, 0, "Address already in use"), FAIL, ["already in use", "ss -tlnp"]),
        (
            PortFacts("high", 0, 0, "HOPSML_PORT_RANGE='high' is not two port numbers, low-high"),
            FAIL,
            ["'high'", "40000-40100"],
        ),
    ],
)
def test_port_range_is_checked(facts: PortFacts, status: Status, words: list[str]) -> None:
    check_finding(checks.ports(facts), status, *words)


INTERFACES = ("10.0.0.5", "172.17.0.1", "127.0.0.1")


@pytest.mark.parametrize(
    ("announced", "source", "problem", "needs", "status", "words"),
    [
        ("10.0.0.5", "the host name", "", YARN, OK, ["10.0.0.5", "it also has 172.17.0.1", "SPARK_LOCAL_IP"]),
        ("::1", "the host name", "", YARN, WARN, ["cannot reach", "SPARK_LOCAL_IP"]),
        ("127.0.0.1", "SPARK_LOCAL_IP", "", YARN, WARN, ["cannot reach", "SPARK_LOCAL_IP", "10.0.0.5, 172.17.0.1"]),
        ("127.0.0.1", "spark.driver.host", "", SPARK, OK, []),
        ("192.0.2.7", "the host name", "", YARN, WARN, ["no interface", "192.0.2.7"]),
        ("", "the host name", "'n1' cannot be resolved: unknown", YARN, FAIL, ["'n1'", "SPARK_LOCAL_IP"]),
        ("", "the host name", "'n1' cannot be resolved: unknown", LOCAL, OK, ["loopback"]),
    ],
)
def test_announced_address_is_checked(
    announced: str, source: str, problem: str, needs: Needs, status: Status, words: list[str]
) -> None:
    check_finding(checks.addresses(AddressFacts("n1", INTERFACES, announced, source, problem), needs), status, *words)


@pytest.mark.parametrize(
    ("facts", "needs", "status", "words"),
    [
        (PythonFacts("/p/bin/python", "PYSPARK_PYTHON", "3.11.2", True), YARN, OK, ["3.11.2"]),
        (PythonFacts("/p/bin/python", "PYSPARK_PYTHON", "3.10.2", True), YARN, FAIL, ["3.10.2", "driver's is 3.11"]),
        (PythonFacts("/p/bin/python", "PYSPARK_PYTHON", "3.11.2", False), YARN, FAIL, ["does not have hopsml"]),
        (
            PythonFacts("/p/bin/python", "PYSPARK_PYTHON", problem="this program does not exist"),
            YARN,
            WARN,
            ["this program does not exist"],
        ),
        (
            PythonFacts("/p/bin/python", "PYSPARK_PYTHON", problem="this program does not exist"),
            SPARK,
            FAIL,
            ["this program does not exist"],
        ),
        (PythonFacts("./environment/bin/python", "PYSPARK_PYTHON", problem="none"), YARN, OK, ["shipped"]),
        (PythonFacts("python3", "default", "3.11.2", True), YARN, OK, ["PYSPARK_PYTHON is not set"]),
        (PythonFacts("python3", "default", "3.9.2", False), YARN, FAIL, ["3.9.2", "spark.archives"]),
        (PythonFacts("python3", "default", "3.9.2", False), SPARK, OK, ["this interpreter"]),
        (PythonFacts("python3", "default"), LOCAL, OK, ["this interpreter"]),
    ],
)
def test_python_of_the_executors_is_checked(facts: PythonFacts, needs: Needs, status: Status, words: list[str]) -> None:
    check_finding(checks.executors_python(facts, (3, 11, 7), needs), status, *words)


def test_other_users_with_processes_on_the_host_are_named() -> None:
    check_finding(checks.shared_host([], False), Status.OK, "no processes of other users")
    check_finding(
        checks.shared_host(["mallory"], False),
        Status.WARN,
        "mallory has processes",
        "on all interfaces",
        "docs/security.md",
    )
    check_finding(checks.shared_host(["mallory"], True), Status.OK, "mallory beside you", "only members of its group")
