"""Contract of file systems on S3: a real server in a separate process."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from hopsml.storage.filesystem import for_url
from tests.helpers.storage import s3_server
from tests.helpers.storage.filesystem_contract import FileSystemContract

pytestmark = [pytest.mark.local, pytest.mark.variant]  # of the memory store's and HDFS's


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    with s3_server.running() as variables:
        yield variables


class TestS3(FileSystemContract):
    has_folders = False  # names alone, with slashes in them

    @pytest.fixture
    def store(self, server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
        for name, value in server.items():
            monkeypatch.setenv(name, value)
        url = f"s3://{s3_server.BUCKET}/{secrets.token_hex(8)}"
        for_url(url).make_dirs(url)
        return url
