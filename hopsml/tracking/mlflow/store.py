"""Client of MLflow, in the only file that imports MLflow; uses explicit run ids instead of MLflow's global state.

Every call blocks, for as long as MLflow's own settings allow; ``sender.py`` sets short timeouts in its process.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from hopsml.core import extras, proxies, redact
from hopsml.errors import HopsmlError
from hopsml.tracking.mlflow import entries
from hopsml.tracking.mlflow.entries import KEY_TAG, Row

_FINAL = ("FINISHED", "FAILED", "KILLED")
# Error codes that a repetition would return again; any other error may be temporary.
_REFUSALS = {
    "BAD_REQUEST", "INVALID_PARAMETER_VALUE", "INVALID_STATE", "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS",
    "PERMISSION_DENIED", "UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED", "ENDPOINT_NOT_FOUND", "NOT_IMPLEMENTED",
    "FEATURE_DISABLED", "QUOTA_EXCEEDED",
}  # fmt: skip
Call = TypeVar("Call", bound=Callable[..., Any])


class MlflowUnreachable(HopsmlError):
    """Error: the tracking server cannot be reached or does not respond; a later attempt may succeed."""


class MlflowRefused(HopsmlError):
    """Error: the tracking server rejected the request; a repetition would be rejected as well."""


class MlflowMissing(HopsmlError):
    """Error: the package ``mlflow`` is not installed where it is needed."""


def limit_request_time(timeout_s: float) -> None:
    """Limit MLflow's calls in this process to one attempt of about ``timeout_s`` seconds (whole ones, at least 1).

    It also excludes servers on this machine from proxies and makes no run active. For a process of hopsml's own, since
    it changes environment variables permanently.
    """
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = str(max(1, round(timeout_s)))
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    proxies.exclude_this_machine(os.environ)
    os.environ.pop("MLFLOW_RUN_ID", None)


@contextmanager
def limited_request_time(timeout_s: float) -> Iterator[None]:
    """Limit MLflow's calls as ``limit_request_time`` does, within a block in the user's process.

    Variables that the user has set are not changed, and the others are removed afterwards.
    """
    wanted = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": str(max(1, round(timeout_s)))}
    ours = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


def _told_apart(call: Call) -> Call:
    """Convert any exception of MLflow into one of the errors above."""

    @wraps(call)
    def checked(self: Store, *positional: Any, **named: Any) -> Any:
        try:
            return call(self, *positional, **named)
        except HopsmlError:
            raise
        except Exception as error:
            code = getattr(error, "error_code", "")
            is_refusal = code in _REFUSALS
            through = "" if is_refusal else proxies.proxy_hint(self.uri, by_requests=True)
            raise (MlflowRefused if is_refusal else MlflowUnreachable)(
                redact.text(f"{self.uri}: {error}{through}")
            ) from error

    return cast("Call", checked)


class Store:
    """Client of one tracking server; its methods raise MlflowAway and MlflowRefused."""

    def __init__(self, uri: str) -> None:
        """Create the client of the server with this URI; raises MlflowMissing."""
        try:
            logging.getLogger("mlflow").setLevel(logging.ERROR)
            from mlflow import MlflowClient
        except ImportError as error:
            raise MlflowMissing(
                f"MLflow is not installed here: {extras.install_command('mlflow')} ({error})"
            ) from error
        self.uri = uri
        self._client: Any = None
        self._make: Callable[[], Any] = lambda: MlflowClient(tracking_uri=uri, registry_uri=uri)
        self._connect()
        self._experiments: dict[str, str] = {}

    @_told_apart
    def _connect(self) -> None:
        self._client = self._make()

    # ------------------------------------------------------------------------------------------ runs

    @_told_apart
    def experiment_id(self, name: str) -> str:
        """Return the id of the experiment of this name, which is created if there is none.

        Raises MlflowRefused for an experiment that was deleted.
        """
        if name not in self._experiments:
            found = self._client.get_experiment_by_name(name)
            if found is None:
                self._experiments[name] = self._create_experiment(name)
                return self._experiments[name]
            if found.lifecycle_stage != "active":
                raise MlflowRefused(
                    f"{redact.text(self.uri)}: the experiment '{name}' was deleted; restore it, or set "
                    "MLFLOW_EXPERIMENT_NAME to another one"
                )
            self._experiments[name] = found.experiment_id
        return self._experiments[name]

    def _create_experiment(self, name: str) -> str:
        try:
            return str(self._client.create_experiment(name))
        except Exception:
            found = self._client.get_experiment_by_name(name)  # another process created it at the same time
            if found is None:
                raise
            return str(found.experiment_id)

    @_told_apart
    def find_runs(self, experiment_id: str, key: str) -> list[str]:
        """Return the ids of the runs with this key, the oldest first."""
        return [run.info.run_id for run in self._search(experiment_id, f"tags.`{KEY_TAG}` = '{key}'")]

    @_told_apart
    def open_run(self, experiment_id: str, key: str, name: str, tags: Mapping[str, str], start_s: float) -> str:
        """Return the id of the run with this key, which is created if there is none."""
        found = self.find_runs(experiment_id, key)
        if found:
            return found[0]
        created = self._client.create_run(
            experiment_id, start_time=int(start_s * 1000), tags={**tags, KEY_TAG: key}, run_name=name or None
        )
        return str(created.info.run_id)

    @_told_apart
    def delete_duplicate_runs(self, experiment_id: str, key: str, kept: str) -> list[str]:
        """Delete other runs of the same key, and return their ids.

        An attempt whose response was lost may have been carried out nevertheless.
        """
        others = [run_id for run_id in self.find_runs(experiment_id, key) if run_id != kept]
        for run_id in others:
            self._client.delete_run(run_id)
        return others

    @_told_apart
    def log(
        self,
        run_id: str,
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
        rows: Sequence[Row] = (),
    ) -> None:
        """Log params, tags and metrics in batches of the size that MLflow accepts.

        Entries that it has already are stored once.
        """
        from mlflow.entities import Metric, Param, RunTag

        for some in entries.batches(list((params or {}).items()), entries.PARAMS_A_BATCH):
            self._client.log_batch(run_id, params=[Param(key, value) for key, value in some])
        for some in entries.batches(list((tags or {}).items()), entries.PARAMS_A_BATCH):
            self._client.log_batch(run_id, tags=[RunTag(key, value) for key, value in some])
        for batch in entries.batches(rows, entries.METRICS_A_BATCH):
            metrics = [Metric(row.key, row.value, row.time_ms, row.step) for row in batch]
            self._client.log_batch(run_id, metrics=metrics)

    @_told_apart
    def log_text(self, run_id: str, file: str, text: str) -> None:
        """Write a small text file as an artifact of the run."""
        self._client.log_text(run_id, text, file)

    @_told_apart
    def finish(self, run_id: str, status: str, ended_s: float) -> None:
        """Set the run's final status and the time of its end; may be repeated."""
        self._client.set_terminated(run_id, status=status, end_time=int(ended_s * 1000))

    @_told_apart
    def ended_child_statuses(self, experiment_id: str, parent_run_id: str) -> list[str]:
        """Return the statuses of those runs nested below another one that have ended."""
        found = self._search(experiment_id, f"tags.`mlflow.parentRunId` = '{parent_run_id}'")
        return [run.info.status for run in found if run.info.status in _FINAL]

    @_told_apart
    def run_experiment_id(self, run_id: str) -> str:
        """Return the id of the experiment to which an MLflow run belongs."""
        return str(self._client.get_run(run_id).info.experiment_id)

    def _search(self, experiment_id: str, query: str) -> list[Any]:
        found: list[Any] = []
        token = None
        while True:
            page = self._client.search_runs(
                [experiment_id],
                query,
                max_results=1000,
                order_by=["attributes.start_time ASC", "attributes.run_id ASC"],
                page_token=token,
            )
            found += page
            token = page.token
            if not token:
                return found

    # ------------------------------------------------------------------------------------------ registry

    @_told_apart
    def register_version(
        self, name: str, source: str, run_id: str, tags: Mapping[str, str], description: str = ""
    ) -> str:
        """Return the number of a version of the model ``name`` whose files are at ``source``.

        The version that this run has already is reused; otherwise one is created.
        """
        self._ensure_model(name)
        for version in self._versions(name):
            if version.source == source and (version.run_id or "") == run_id:
                return str(version.version)
        made = self._client.create_model_version(
            name, source, run_id=run_id or None, tags=dict(tags), description=description or None
        )
        return str(made.version)

    @_told_apart
    def version_sources(self, name: str) -> dict[str, str]:
        """Return the number of each version of a registered model -> the location of its files.

        Empty if there is no such model.
        """
        return {str(version.version): str(version.source) for version in self._versions(name)}

    @_told_apart
    def delete_version(self, name: str, version: str) -> None:
        """Delete a version of a registered model; MLflow does not use its number again."""
        self._client.delete_model_version(name, version)

    @_told_apart
    def aliases(self, name: str) -> dict[str, str]:
        """Return alias -> version of a registered model; empty if there is no such model."""
        try:
            found: Mapping[str, Any] = self._client.get_registered_model(name).aliases
        except Exception as error:
            if getattr(error, "error_code", "") == "RESOURCE_DOES_NOT_EXIST":
                return {}
            raise
        return {alias: str(version) for alias, version in found.items()}

    @_told_apart
    def set_alias(self, name: str, alias: str, version: str) -> None:
        """Assign an alias of a registered model to one of its versions."""
        self._client.set_registered_model_alias(name, alias, version)

    @_told_apart
    def delete_alias(self, name: str, alias: str) -> None:
        """Delete an alias of a registered model; does nothing if there is none."""
        self._client.delete_registered_model_alias(name, alias)

    def _versions(self, name: str) -> list[Any]:
        found, token = list[Any](), None
        while True:
            page = self._client.search_model_versions(f"name = '{name}'", max_results=1000, page_token=token)
            found += page
            token = page.token
            if not token:
                return found

    def _ensure_model(self, name: str) -> None:
        try:
            self._client.create_registered_model(name)
        except Exception as error:
            if getattr(error, "error_code", "") != "RESOURCE_ALREADY_EXISTS":
                raise
