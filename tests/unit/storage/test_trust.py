"""Tests that files which decide which code runs are accepted only from the user and from named accounts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hopsml.errors import ArgumentError
from hopsml.storage import trust
from hopsml.storage.filesystem import FileStatus, for_url
from hopsml.submission import shipping
from hopsml.submission.environment_archive import Environment

pytestmark = pytest.mark.fast
ON_HDFS = "hdfs://nn:8020/Projects/p/Jobs/train.json"


def found(owner: str, permission: int = 0o644, url: str = ON_HDFS) -> FileStatus:
    return FileStatus(url, False, 10, 0.0, owner=owner, permission=permission)


@pytest.fixture(autouse=True)
def _anna(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "anna")
    monkeypatch.delenv(trust.VARIABLE, raising=False)


def test_ones_own_file_is_believed_and_that_of_a_store_without_owners() -> None:
    trust.check(found("anna"), "it runs")
    trust.check(found(""), "it runs")


def test_somebody_elses_is_not_unless_they_are_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match=r"belongs to mallory, and it runs: .* only from anna\. .*TRUSTED_OWNERS"):
        trust.check(found("mallory"), "it runs")
    monkeypatch.setenv(trust.VARIABLE, "bob, mallory")
    trust.check(found("mallory"), "it runs")


@pytest.mark.parametrize("permission", [0o664, 0o646, 0o777])
def test_what_others_may_write_is_not(permission: int) -> None:
    with pytest.raises(ArgumentError, match=rf"other than anna \(permission {permission:o}\).*chmod go-w"):
        trust.check(found("anna", permission), "it runs")


def test_the_name_of_root_says_nothing_on_hdfs_and_much_on_a_local_disk() -> None:
    with pytest.raises(ArgumentError, match="belongs to root"):
        trust.check(found("root"), "it runs")
    trust.check(found("root", url="/srv/job.json"), "it runs")


def test_an_archive_of_the_environment_is_not_taken_because_it_has_the_name(tmp_path: Path) -> None:
    planted = tmp_path / "environments/anna/hash.tar.gz"
    planted.parent.mkdir(parents=True)
    planted.write_bytes(b"forged")
    planted.chmod(0o666)
    shipment = shipping.Shipment(str(planted), Environment.current())
    with pytest.raises(ArgumentError, match="every driver and executor would execute its content"):
        shipping.ensure(shipment, print)
    planted.chmod(0o644)
    shipping.ensure(shipment, print)
    if os.geteuid() == 0:
        os.chown(planted, 65534, 65534)
        with pytest.raises(ArgumentError, match="belongs to nobody"):
            shipping.ensure(shipment, print)
    assert for_url(str(planted)).read_bytes(str(planted)) == b"forged"


def test_what_is_written_to_be_believed_is_its_owners_alone_also_in_a_groups_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HADOOP_USER_NAME")
    tmp_path.chmod(0o775)
    url = f"file://{tmp_path}/server.json"
    before = os.umask(0o002)
    try:
        trust.write_bytes(url, b"{}")
    finally:
        os.umask(before)
    found = for_url(url).status(url)
    assert found.permission == 0o644
    trust.check(found, "it says where requests are sent")
