"""Kinds of runs: an independent one, one inside another run's directory, or the one that holds a search's slots.

What differs between them when a run is started is asked of these classes, by ``plan.start`` alone.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hopsml.cluster.driver.capture import Captured
from hopsml.cluster.shared.spec import RunSpec
from hopsml.storage import cancel_request, job_record, privacy
from hopsml.storage.run_dir import RunDir, claim
from hopsml.training.trials import lane


@dataclass(frozen=True)
class Alone:
    """An independent run, as ``collective_all_reduce`` starts it."""

    whole = True  # the verb's only run: continues what a lost driver left, and can be continued
    heeds_requests = True  # somebody else can cancel it by its directory
    gives_signs = True  # of life, of its driver
    recorded = True  # with its code and environment
    trains = True  # its workers run the user's function, not a search's trials

    def directory(self, spec: RunSpec, store: str, application: str, record: Mapping[str, Any]) -> RunDir:
        """Create the run directory with its record; ``store``: URL of the project, ``application``: its id."""
        directory = claim(store, application, record, share=spec.environment.get(privacy.VARIABLE))
        job_record.announce(directory, application)
        return directory

    def run_id(self, directory: RunDir) -> str:
        """The id by which the coordinator knows the run; unique among its runs."""
        return directory.run_id

    def experiment(self, directory: RunDir) -> str:
        """The value of the predecessor's variable ML_ID: the id of the experiment that the run belongs to."""
        return directory.run_id

    def payload(self, captured: Captured, spec: RunSpec) -> bytes:
        """What each worker calls: cloudpickle of (function, keyword arguments)."""
        return captured.shipped

    def arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The function's arguments, as ``run.json`` records them."""
        return dict(arguments)

    def facts(self) -> dict[str, Any]:
        """Further entries of ``run.json``."""
        return {}


@dataclass(frozen=True)
class Part(Alone):
    """A run inside another one's directory: a distributed trial of a search, or one combination of a launch."""

    whole = False
    gives_signs = False

    folder: str = ""  # of all of them, below the directory of the whole
    place: RunDir = field(default_factory=lambda: RunDir(""))
    id: str = ""  # distinct from those of other searches on this coordinator, and of its own earlier attempts
    config: Mapping[str, Any] = field(default_factory=dict)
    of: str = ""  # id of the whole; "": its own
    recorded: bool = False  # else code and environment are recorded with the whole
    heeds_requests: bool = False

    def directory(self, spec: RunSpec, store: str, application: str, record: Mapping[str, Any]) -> RunDir:
        """The folder that was given, inside the whole run's directory."""
        self.place.write_run(record)
        return self.place

    def run_id(self, directory: RunDir) -> str:
        """The id that was given."""
        return self.id

    def experiment(self, directory: RunDir) -> str:
        """The id of the whole run."""
        return self.of or directory.run_id

    def arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration: what the function around the user's is called with says nothing to people."""
        return dict(self.config)


@dataclass(frozen=True)
class OfSearch(Alone):
    """The run that holds a search's slots, whose workers are lanes; or it has none, and each trial is a run."""

    whole = False
    trains = False

    log_to_lane: bool = False  # what trials print goes to the lanes' logs as well
    trials: str = "trials"  # where the trials' folders are, below the run directory; "": directly in it
    continued: RunDir | None = None  # the search that goes on; None: a new one
    about: Mapping[str, Any] = field(default_factory=dict)  # for run.json

    def directory(self, spec: RunSpec, store: str, application: str, record: Mapping[str, Any]) -> RunDir:
        """A new directory, or that of the search that is continued."""
        if self.continued is None:
            return super().directory(spec, store, application, record)
        cancel_request.delete(self.continued)
        job_record.announce(self.continued, application)
        return self.continued

    def payload(self, captured: Captured, spec: RunSpec) -> bytes:
        """What each lane's worker calls: hopsml's ``serve``, which passes the user's pickled function to its runners."""
        options = {
            "payload": captured.shipped,
            "seed": spec.seed,
            "log_to_lane": self.log_to_lane,
            "trials": self.trials,
            "storage_timeout_s": spec.storage_timeout_s,
        }
        return pickle.dumps((lane.serve, options))

    def facts(self) -> dict[str, Any]:
        """The description of the search: what is searched, and how."""
        return dict(self.about)
