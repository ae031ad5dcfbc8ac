"""Test that TensorBoard's HParams view reads a trial's event file."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopsml.training.trials import trial_files

pytestmark = pytest.mark.tensorflow


@pytest.fixture(scope="module", autouse=True)
def tensorflow() -> None:
    """Imported as by a training function; what that leaves in this process is not a test's."""
    import tensorflow  # noqa: F401


def test_tensorboard_reads_hparams_and_metric_of_a_trial(tmp_path: Path) -> None:
    trial_files.write_hparams(tmp_path, "abc", {"lr": 0.1, "act": "relu", "shape": (1, 2)}, "accuracy", 0.75, 9)
    assert trial_files.has_tensorboard()
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.plugins.hparams import plugin_data_pb2

    (file,) = tmp_path.iterdir()
    values = [value for event in EventFileLoader(str(file)).Load() for value in event.summary.value]
    kinds = {value.tag: value for value in values}
    data = plugin_data_pb2.HParamsPluginData.FromString(
        kinds["_hparams_/session_start_info"].metadata.plugin_data.content
    )
    shown = data.session_start_info.hparams
    assert shown["lr"].number_value == 0.1 and shown["act"].string_value == "relu"
    assert shown["shape"].string_value == "(1, 2)" and data.session_start_info.group_name == "abc"
    assert kinds["accuracy"].tensor.float_val[0] == 0.75
