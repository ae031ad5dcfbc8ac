"""Tests of takeover of a serving's name on one machine, and of requests that are checked before they are sent."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest

from hopsml.errors import AlreadyServed, ArgumentError, ArgumentTypeError
from hopsml.serving import client, server_records
from hopsml.serving.definitions import ServingFolder, ServingLimits
from hopsml.serving.messages import ServingSettings
from hopsml.serving.routes import Route
from hopsml.serving.server_records import ServerRecord
from hopsml.storage import python_child
from hopsml.storage.filesystem import for_url


def test_request_value_without_a_json_form_is_refused() -> None:
    record = ServerRecord("digits", "127.0.0.1", 9, "here", "me", "", 1, datetime.now(UTC))
    with pytest.raises(ArgumentTypeError, match=r"contains <object .*, a object; use numbers"):
        client.post_json(record, "/v1/models/digits:predict", {"instances": [object()]}, 1.0)
    with pytest.raises(ArgumentTypeError, match=r"contains a DataFrame; pass its values.*table.to_numpy\(\)"):
        client.post_json(record, "/v1/models/digits:predict", {"inputs": pd.DataFrame({"a": [1.0]})}, 1.0)


def test_rows_given_as_dicts_are_combined_by_input() -> None:
    assert client.rows_to_columns([{"a": 1, "b": [2]}, {"b": [3], "a": 4}]) == {"a": [1, 4], "b": [[2], [3]]}
    for unchanged in ([[1.0], [2.0]], {"a": [1]}, [], [{"a": 1}, 2], "text"):
        assert client.rows_to_columns(unchanged) is unchanged
    with pytest.raises(ArgumentError, match="row 1 has the inputs b, but row 0 has a; all rows must have the same"):
        client.rows_to_columns([{"a": 1}, {"b": 2}])


def test_null_among_numbers_is_nan() -> None:
    assert np.isnan(client.to_array([[None, 1.0]])).tolist() == [[True, False]]
    assert client.to_array([1, 2]).dtype == np.int64
    assert client.to_array(["a", None]).tolist() == ["a", None]
    assert client.to_array([{"b64": "AA=="}]).tolist() == [{"b64": "AA=="}]


pytestmark = pytest.mark.fast
_CLAIM = """
import sys
from pathlib import Path
import msgspec
from hopsml.serving import server_records
from hopsml.serving.messages import ServingSettings
from hopsml.serving.definitions import ServingFolder
settings = msgspec.json.decode(sys.argv[1], type=ServingSettings)
server_records.register_server(settings, 2, ServingFolder(Path(sys.argv[2])))
"""


def settings(tmp_path: Path) -> ServingSettings:
    project = tmp_path.as_uri()
    return ServingSettings("digits", project, "digits", "127.0.0.1", 0, 1, False, ServingLimits(), Route(1, 1), {})


def changed(wanted: ServingSettings, **fields: object) -> None:
    """Replace fields of the stored record."""
    record = server_records.read_server_record(wanted.name, wanted.project)
    assert record is not None
    url = server_records.server_record_url(wanted)
    for_url(url).write_bytes(url, msgspec.json.encode(msgspec.structs.replace(record, **fields)))


def test_record_of_another_container_with_the_same_host_name_is_not_replaced(tmp_path: Path) -> None:
    wanted, folder = settings(tmp_path), ServingFolder(tmp_path / "private")
    own = server_records.register_server(wanted, 1, folder)
    boot, _, inode = own.pid_namespace.partition("/")
    changed(wanted, pid_namespace=f"{boot}/pid:[1]")
    with pytest.raises(AlreadyServed, match="in another container"):
        server_records.register_server(wanted, 3, folder)
    server_records.release_server(wanted)  # this process has the same id, as the first process of each container has
    found = server_records.read_server_record("digits", wanted.project)
    assert found is not None and found.port == 1 and not found.is_here
    changed(wanted, pid_namespace=f"{'0' * len(boot)}/{inode}")  # the machine was started again since
    assert server_records.register_server(wanted, 3, folder).port == 3
    changed(wanted, pid_namespace="")  # of an earlier hopsml
    assert server_records.register_server(wanted, 4, folder).port == 4


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("unshare") is None, reason="making a PID namespace needs root")
def test_server_in_another_container_of_this_machine_is_refused(tmp_path: Path) -> None:
    wanted, folder = settings(tmp_path), tmp_path / "private"
    server_records.register_server(wanted, 1, ServingFolder(folder))
    made = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", _CLAIM]
    inside = subprocess.run(
        [*made, msgspec.json.encode(wanted), str(folder)],
        env=python_child.environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "Operation not permitted" in inside.stderr:
        pytest.skip("this machine makes no PID namespaces")
    assert "AlreadyServed: 'digits' is already served" in inside.stderr
    found = server_records.read_server_record("digits", wanted.project)
    assert found is not None and found.port == 1
