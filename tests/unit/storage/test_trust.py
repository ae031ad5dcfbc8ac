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


def file_status(owner: str, permission: int = 0o644, url: str = ON_HDFS) -> FileStatus:
    return FileStatus(url, False, 10, 0.0, owner=owner, permission=permission)


@pytest.fixture(autouse=True)
def _anna(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "anna")
    monkeypatch.delenv(trust.VARIABLE, raising=False)


def test_own_file_and_file_without_owner_are_trusted() -> None:
    trust.check_trusted(file_status("anna"), "it runs")
    trust.check_trusted(file_status(""), "it runs")


def test_file_of_another_user_is_trusted_only_if_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match=r"belongs to mallory, and it runs: .* only from anna\. .*TRUSTED_OWNERS"):
        trust.check_trusted(file_status("mallory"), "it runs")
    monkeypatch.setenv(trust.VARIABLE, "bob, mallory")
    trust.check_trusted(file_status("mallory"), "it runs")


@pytest.mark.parametrize("permission", [0o664, 0o646, 0o777])
def test_file_writable_by_others_is_not_trusted(permission: int) -> None:
    with pytest.raises(ArgumentError, match=rf"other than anna \(permission {permission:o}\).*chmod go-w"):
        trust.check_trusted(file_status("anna", permission), "it runs")


def test_root_is_trusted_on_a_local_disk_and_not_on_hdfs() -> None:
    with pytest.raises(ArgumentError, match="belongs to root"):
        trust.check_trusted(file_status("root"), "it runs")
    trust.check_trusted(file_status("root", url="/srv/job.json"), "it runs")


def test_environment_archive_of_another_user_or_writable_by_others_is_not_used(tmp_path: Path) -> None:
    planted = tmp_path / "environments/anna/hash.tar.gz"
    planted.parent.mkdir(parents=True)
    planted.write_bytes(b"forged")
    planted.chmod(0o666)
    shipment = shipping.Shipment(str(planted), Environment.current())
    with pytest.raises(ArgumentError, match="every driver and executor would execute its content"):
        shipping.ensure_uploaded(shipment, print)
    planted.chmod(0o644)
    shipping.ensure_uploaded(shipment, print)
    if os.geteuid() == 0:
        os.chown(planted, 65534, 65534)
        with pytest.raises(ArgumentError, match="belongs to nobody"):
            shipping.ensure_uploaded(shipment, print)
    assert for_url(str(planted)).read_bytes(str(planted)) == b"forged"


def test_trusted_file_is_written_with_owner_permission_in_a_group_folder(
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
    file_status = for_url(url).status(url)
    assert file_status.permission == 0o644
    trust.check_trusted(file_status, "it says where requests are sent")
