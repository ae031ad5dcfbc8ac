"""Tests of the driver of a serving on a cluster, without Spark: what it leaves after a start that fails."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from hopsml.cluster.driver.tokens.sources import TokenFileSource
from hopsml.core import delegation_tokens as tokens
from hopsml.errors import StorageError
from hopsml.serving import driver
from hopsml.serving.messages import Route, ServingLimits, ServingSettings
from hopsml.serving.server_records import ServingAccess

pytestmark = pytest.mark.fast


def test_start_that_cannot_be_registered_leaves_no_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch, given = tmp_path / "scratch", tmp_path / "given"
    scratch.mkdir()
    tokens.write(given, tokens.Credentials((tokens.Token("", b"\0\5", b"password", tokens.HDFS_KIND, "ha-hdfs:ns1"),)))
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setenv(tokens.VARIABLE, str(given))
    monkeypatch.setattr(driver, "source_of", lambda _: TokenFileSource(str(given)))
    project = "file:///proc/no-folder-can-be-created-here"
    settings = ServingSettings("digits", project, "digits", "127.0.0.1", 0, 1, False, ServingLimits(), Route(1, 1), {})
    context = SimpleNamespace(
        getConf=lambda: SimpleNamespace(get=lambda key, default: default),
        applicationId="application_1_1",
        sparkUser=lambda: "alice",
    )

    async def serve() -> None:
        with pytest.raises(StorageError):
            await driver.ClusterServing(context, ServingAccess("launch", "yarn", "token", "control", settings)).serve()

    asyncio.run(serve())
    assert os.listdir(scratch) == [] and os.environ[tokens.VARIABLE] == str(given)
    assert "hopsml-tokens" not in [thread.name for thread in threading.enumerate()]
