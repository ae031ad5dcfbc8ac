"""Remedies for errors of training functions whose messages give none.

Pure, except that importable modules are looked up.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable

# Functions in which Keras 3's optimizer asserts without a message, and which call it; its own lines may be missing in
# the traceback.
_LATE_UPDATE = ("_distributed_tf_update_step", "backend_update_step")
_LATE_MODEL = (
    "was not created in the distribution strategy scope",
    "Trying to create optimizer slot variable under the scope",
    "under the scope of tf.distribute.Strategy",
)
_ROWS_TO_KERAS = "ValueError: Unrecognized data type: x=Dataset(source="  # hopsml.data's, passed to fit unconverted
_SILENT = re.compile(r"^the agent on .* is gone: (?:no sign of life|took no message) for ([\d.]+) s")
_OF_NETWORK = re.compile(r"^preflight: .*: network: ")
_MISSING = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")


def is_here(module: str) -> bool:
    """Return True if this interpreter could import the module; at most the packages that contain it are imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def is_of_network(note: str) -> bool:
    """Return True if a run's note is a finding of the preflight check between two of its hosts."""
    return _OF_NETWORK.match(note) is not None


def remedy(cause: str, traceback: str, host: str, here: Callable[[str], bool] = is_here) -> str:
    """Return the remedy for a worker's error as a sentence without its full stop; "" if the error is self-explanatory.

    Args:
        cause: Cause of the failure, as text.
        traceback: The worker's traceback.
        host: Host on which the worker ran.
        here: Function that returns True if the driver could import a module.
    """
    if found := _MISSING.match(cause):
        return _missing(found[1].partition(".")[0], host, here)
    if cause.startswith("EOFError") and re.search(r"\binput\(", traceback):
        return (
            "a worker has no keyboard, so input() finds nothing to read: ask in the driver, before the run, and hand the "
            "answer over with args="
        )
    if cause.startswith(_ROWS_TO_KERAS):
        return (
            "Keras trains on what TensorFlow reads: model.fit(rows.tensorflow('features', 'label')), with the names of the "
            "columns, behind rows.batch(...)"
        )
    if silent := _SILENT.search(cause):
        return (
            f"the network between the driver and {host} was cut for longer than {silent[1]} s, or that host "
            "was suspended: check its link, routes and firewall. A group of fixed size ends with the first worker that is "
            "lost: with min_workers= instead of num_workers= the others continue after heartbeat_timeout= seconds"
        )
    is_bare = cause == "AssertionError" and any(line in traceback for line in _LATE_UPDATE)
    if is_bare or any(words in cause for words in _LATE_MODEL):
        return (
            "the model, its optimizer or a metric was made outside the strategy's scope: build and compile it below "
            "`with strategy.scope():`, and call fit there or behind it"
        )
    return ""


def _missing(module: str, host: str, here: Callable[[str], bool]) -> str:
    """Return the remedy for a module that a worker could not import."""
    if not here(module):
        return (
            f"'{module}' is not on {host}, and the driver cannot import it either: pip install what is a package into "
            f"{sys.prefix}; a module of your own must lie beside the script, or travel by hopsml submit --py-files"
        )
    return (
        f"'{module}' is here and not on {host}: a package travels with the environment (hopsml submit --ship-environment "
        "auto, or ship_environment: auto in the profile), a module of your own with hopsml submit --py-files, or install it "
        "on every node"
    )
