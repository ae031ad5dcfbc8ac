"""Roles of runs: standalone, nested in another run's directory, or host of a search's trial slots.

``plan.start`` calls these classes for everything in which the start of a run depends on its role.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hopsml.cluster.driver.capture import Captured
from hopsml.cluster.shared.spec import RunSpec
from hopsml.storage import mailbox, privacy, run_dir
from hopsml.storage.run_dir import RunDir, create_run_dir
from hopsml.training.trials import lane


@dataclass(frozen=True)
class StandaloneRun:
    """Role of a standalone run, as ``collective_all_reduce`` starts it."""

    whole = True  # the verb's only run: continues one whose driver failed, and can be continued
    heeds_requests = True  # another process can cancel it by a request in its directory
    gives_signs = True  # the driver writes a sign of life into the run directory
    recorded = True  # with its code and environment
    trains = True  # its workers call the user's function, not a search's trials

    def create_directory(self, spec: RunSpec, store: str, application: str, record: Mapping[str, Any]) -> RunDir:
        """Create the run directory with its record; ``store``: URL of the project, ``application``: its id."""
        directory = create_run_dir(store, application, record, share=spec.environment.get(privacy.VARIABLE))
        run_dir.announce_run(directory, application)
        return directory

    def run_id(self, directory: RunDir) -> str:
        """Return the run's id in the coordinator, unique among the coordinator's runs."""
        return directory.run_id

    def experiment_id(self, directory: RunDir) -> str:
        """Return the value of the predecessor's variable ML_ID: the id of the experiment that the run belongs to."""
        return directory.run_id

    def payload(self, captured: Captured, spec: RunSpec) -> bytes:
        """Return the call of each worker: cloudpickle of (function, keyword arguments)."""
        return captured.payload_with_secrets

    def arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the function's arguments, as ``run.json`` records them."""
        return dict(arguments)

    def record_entries(self) -> dict[str, Any]:
        """Return further entries of ``run.json``, by name."""
        return {}


@dataclass(frozen=True)
class NestedRun(StandaloneRun):
    """Role of a run in another run's directory: a distributed trial of a search, or one combination of a launch."""

    whole = False
    gives_signs = False

    folder: str = ""  # with the folders of all nested runs, below the whole run's directory
    place: RunDir = field(default_factory=lambda: RunDir(""))
    id: str = ""  # distinct from those of other searches on this coordinator, and of its own earlier attempts
    config: Mapping[str, Any] = field(default_factory=dict)
    of: str = ""  # id of the whole run; "": this run's own id
    recorded: bool = False  # if False, code and environment are recorded with the whole run only
    heeds_requests: bool = False

    def create_directory(self, spec: RunSpec, store: str, application: str, record: Mapping[str, Any]) -> RunDir:
        """Write the record into the folder inside the whole run's directory, and return that folder."""
        self.place.write_run(record)
        return self.place

    def run_id(self, directory: RunDir) -> str:
        """Return the id that was passed to the constructor."""
        return self.id

    def experiment_id(self, directory: RunDir) -> str:
        """Return the id of the whole run."""
        return self.of or directory.run_id

    def arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration, as the wrapper around the user's function has internal arguments."""
        return dict(self.config)


@dataclass(frozen=True)
class SearchHost(StandaloneRun):
    """Role of a run that hosts a search: its workers are trial slots (lanes), or it has none and trials are runs."""

    whole = False
    trains = False

    log_to_lane: bool = False  # what trials print goes to the lanes' logs as well
    trials: str = "trials"  # folder of the trials' folders, below the run directory; "": the run directory itself
    continued: RunDir | None = None  # directory of the search to continue; None: a new search
    about: Mapping[str, Any] = field(default_factory=dict)  # for run.json

    def create_directory(self, spec: RunSpec, store: str, application: str, record: Mapping[str, Any]) -> RunDir:
        """Create a directory for a new search, or return that of the search that is continued."""
        if self.continued is None:
            return super().create_directory(spec, store, application, record)
        mailbox.delete_cancel_request(self.continued)
        run_dir.announce_run(self.continued, application)
        return self.continued

    def payload(self, captured: Captured, spec: RunSpec) -> bytes:
        """Return the call of each worker: ``run_lane``, which passes the user's pickled function to its runners."""
        options = {
            "payload": captured.payload_with_secrets,
            "seed": spec.seed,
            "log_to_lane": self.log_to_lane,
            "trials": self.trials,
            "storage_timeout_s": spec.storage_timeout_s,
        }
        return pickle.dumps((lane.run_lane, options))

    def record_entries(self) -> dict[str, Any]:
        """Return the description of the search: search space, searcher and further settings."""
        return dict(self.about)
