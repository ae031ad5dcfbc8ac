"""Tests of each check of the cluster and the profile, from facts to finding."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopsml.core import profiles
from hopsml.core.profiles import Profile
from hopsml.doctor import examination, facts
from hopsml.doctor.checks import Needs, Status
from hopsml.doctor.facts import HdfsFacts, StoreFacts, YarnFacts
from hopsml.errors import SafeMode, StorageUnavailable
from hopsml.submission.spark_start import MasterFacts
from tests.unit.doctor.test_checks import check_finding

pytestmark = pytest.mark.fast

LOCAL = Needs()
YARN = Needs(profile="yarn", spark=True, yarn=True, distributed=True, master="yarn")
OK, WARN, FAIL = Status.OK, Status.WARN, Status.FAIL
GIB = 1 << 30


def test_profile_and_its_shipped_files_are_checked() -> None:
    known = Profile("yarn", "yarn")
    check_finding(examination.check_profile(known, "", {"/conf/x.py": True}), OK, "master yarn")
    check_finding(examination.check_profile(known, "", {"/conf/x.py": False}), FAIL, "/conf/x.py", "does not exist")
    check_finding(examination.check_profile(None, "profile 'x' is not known", {}), FAIL, "'x'", "hopsml profiles")


def test_shipped_files_are_the_local_files_of_a_profile() -> None:
    spark = {
        "spark.yarn.dist.files": "/conf/a.py, hdfs://nn/b.py",
        "spark.archives": "/envs/e.tar.gz#environment,local:/opt/e2.tar.gz",
        "spark.executor.resource.gpu.discoveryScript": "./a.py",
    }
    assert examination.shipped_files(Profile("p", "yarn", spark=spark)) == ["/conf/a.py", "/envs/e.tar.gz"]
    script = {"spark.executor.resource.gpu.discoveryScript": "/conf/gpus.py"}
    assert examination.shipped_files(Profile("p", "local-cluster[1,1,512]", spark=script)) == ["/conf/gpus.py"]


def test_files_shipped_by_the_bundled_profiles_exist() -> None:
    for name in profiles.names():
        for path in examination.shipped_files(profiles.load(name)):
            assert Path(path).exists(), (name, path)


@pytest.mark.parametrize(
    ("facts", "needs", "status", "words"),
    [
        (StoreFacts("hdfs://nn/P/p", "hdfs://nn/P/p", 0.1), YARN, OK, ["hdfs://nn/P/p", "0.10 s"]),
        (StoreFacts("hdfs://nn/P/p", "hdfs://nn/P", 0.1), YARN, OK, ["does not exist yet", "hdfs://nn/P"]),
        (StoreFacts("hdfs://nn/P/p", "hdfs://nn/P/p", 3.0), YARN, WARN, ["3.00 s", "load"]),
        (StoreFacts("file:///x", "file:///x", 0.1), YARN, WARN, ["cannot read this disk", "HOPSML_PROJECT_URL"]),
        (StoreFacts("file:///x", "file:///x", 0.1), LOCAL, OK, []),
        (
            StoreFacts("hdfs://nn/x", problem="refused", kind="PermissionRefused"),
            YARN,
            FAIL,
            ["refused", "write permission"],
        ),
        (StoreFacts("hdfs://nn/x", problem="safe", kind="SafeMode"), YARN, FAIL, ["dfsadmin -safemode"]),
        (
            StoreFacts("hdfs://nn/x", problem="no answer", kind="StorageTimeout"),
            YARN,
            FAIL,
            ["no answer", "garbage collection of the NameNode"],
        ),
        (StoreFacts("x://y", problem="unknown", kind="SomethingElse"), LOCAL, FAIL, ["HOPSML_PROJECT_URL"]),
    ],
)
def test_project_store_is_checked(facts: StoreFacts, needs: Needs, status: Status, words: list[str]) -> None:
    check_finding(examination.check_store(facts, needs), status, *words)


@pytest.mark.parametrize(
    ("facts", "needs", "status", "words"),
    [
        (HdfsFacts("", ""), LOCAL, OK, ["no Hadoop configuration"]),
        (HdfsFacts("", ""), YARN, FAIL, ["HADOOP_CONF_DIR"]),
        (HdfsFacts("/conf", ""), YARN, FAIL, ["fs.defaultFS in /conf is not an HDFS"]),
        (
            HdfsFacts("/conf", "hdfs://nn", 0.2, 100 * GIB, 40 * GIB),
            YARN,
            OK,
            ["hdfs://nn", "0.20 s", "60.0 of 100.0 GiB"],
        ),
        (HdfsFacts("/conf", "hdfs://nn", 0.2), YARN, OK, []),
        (HdfsFacts("/conf", "hdfs://nn", 0.2, 100 * GIB, 99 * GIB), YARN, WARN, ["1.0 of 100.0 GiB", "runs rm"]),
        (
            HdfsFacts("/conf", "hdfs://nn", problem="nobody", kind="StorageUnavailable"),
            LOCAL,
            FAIL,
            ["nobody", "start the service"],
        ),
    ],
)
def test_hdfs_is_checked(facts: HdfsFacts, needs: Needs, status: Status, words: list[str]) -> None:
    check_finding(examination.check_hdfs(facts, needs), status, *words)


@pytest.mark.parametrize(
    ("facts", "needs", "status", "words"),
    [
        (YarnFacts(()), LOCAL, OK, ["not configured"]),
        (YarnFacts(()), YARN, FAIL, ["yarn-site.xml"]),
        (YarnFacts(("rm:8088",), "rm:8088", "3.5.0", 2, 4096, 8), YARN, OK, ["3.5.0", "2 nodes", "8 cores", "4.0 GiB"]),
        (YarnFacts(("rm:8088",), "rm:8088", "3.5.0"), YARN, FAIL, ["0 nodes", "NodeManagers"]),
        (
            YarnFacts(("rm:8088",), "rm:8088", "3.5.0", 2, pending=3),
            YARN,
            WARN,
            ["3 applications are waiting", "start_timeout"],
        ),
        (YarnFacts(("rm:8088",), problem="refused"), YARN, FAIL, ["refused", "yarn.resourcemanager.webapp.address"]),
        (YarnFacts(("rm:8088",), problem="refused"), LOCAL, WARN, ["refused"]),
        (YarnFacts(("rm:8088",), problem="HTTP 401", status=401), YARN, FAIL, ["kinit"]),
        (YarnFacts(("rm:8088",), problem="HTTP 401", status=401), LOCAL, WARN, ["kinit"]),
    ],
)
def test_yarn_is_checked(facts: YarnFacts, needs: Needs, status: Status, words: list[str]) -> None:
    check_finding(examination.check_yarn(facts, needs), status, *words)


def test_logs_of_drivers_are_checked() -> None:
    check_finding(examination.driver_logs(YarnFacts(("rm:1",), "rm:1", node="n:8042")), OK, "n:8042 answers")
    check_finding(examination.driver_logs(YarnFacts(("rm:1",), "rm:1")), OK, "no NodeManager")
    refused = YarnFacts(("rm:1",), "rm:1", node="n:8042", node_problem="requires Kerberos: no ticket")
    check_finding(examination.driver_logs(refused), WARN, "n:8042 does not return logs", "no ticket", "valid ticket")


def test_error_of_the_clean_up_does_not_replace_that_of_the_write() -> None:
    class Broken:
        """Store that refuses everything."""

        def delete(self, url: str) -> bool:
            raise StorageUnavailable("cannot delete")

    with pytest.raises(SafeMode, match="cannot write"), facts._deleted_at_the_end(Broken(), "x"):  # type: ignore[arg-type]
        raise SafeMode("cannot write")
    with (
        pytest.raises(StorageUnavailable, match="cannot delete"),
        facts._deleted_at_the_end(Broken(), "x"),  # type: ignore[arg-type]
    ):
        pass


def test_spark_master_is_checked() -> None:
    check_finding(examination.check_spark_master(MasterFacts("spark://m:7077", "m:7077")), OK, "m:7077")
    dead = MasterFacts("spark://m:7077", "", ("m:7077: Connection refused",))
    check_finding(examination.check_spark_master(dead), FAIL, "refused", "HOPSML_SPARK_MASTER")


@pytest.mark.parametrize(
    ("skews", "status", "words"),
    [
        ({}, OK, ["no service"]),
        ({"the RM": 0.4, "the store": -3.0}, OK, ["within 3 s", "the RM, the store"]),
        ({"the RM": 0.4, "the store": -30.0}, WARN, ["the store is 30 s behind", "chrony"]),
        ({"the RM": 400.0, "the store": -30.0}, FAIL, ["the RM is 400 s ahead", "Kerberos"]),
    ],
)
def test_clock_skew_is_checked(skews: dict[str, float], status: Status, words: list[str]) -> None:
    check_finding(examination.check_clock(1_800_000_000, skews), status, *words)


def test_clock_that_was_never_set_fails() -> None:
    check_finding(examination.check_clock(3600.0, {}), FAIL, "years behind")


@pytest.mark.parametrize(("theirs", "skew"), [(95.0, -5.0), (100.0, 0.0), (101.0, 0.0), (102.0, 0.0), (110.0, 8.0)])
def test_skew_is_zero_between_two_readings(theirs: float, skew: float) -> None:
    assert facts.clock_skew_s(theirs, 100.0, 102.0) == skew
