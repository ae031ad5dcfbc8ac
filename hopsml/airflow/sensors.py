"""Sensor that waits for a run, whoever has started it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.exceptions import AirflowException

from hopsml.airflow import jobs
from hopsml.airflow.triggers import HopsMLRunTrigger
from hopsml.core import settings
from hopsml.core.states import Lifecycle

if TYPE_CHECKING:
    from airflow.sdk import Context


class HopsMLRunSensor(BaseSensorOperator):
    """Sensor that succeeds when a run has ended in one of ``states``; its result is that of ``HopsMLOperator``.

    Args:
        run: URL, path or id of the run, which may not exist yet.
        project_url: project in which ids are resolved; by default $HOPSML_PROJECT_URL, or HDFS.
        states: end states to wait for, of FINISHED, FAILED, CANCELLED, LOST; any other one fails the task.
        deferrable: wait in the triggerer.
    """

    template_fields: Sequence[str] = ("run", "project_url")
    ui_color = "#e8f3e9"

    def __init__(
        self,
        *,
        run: str,
        project_url: str = "",
        states: Sequence[str] = (Lifecycle.FINISHED,),
        deferrable: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.run, self.project_url, self.deferrable = run, project_url, deferrable
        self.states = jobs.checked_states("states", states)

    def poke(self, context: Context) -> PokeReturnValue:
        """Return whether the run has ended, with its result."""
        found = jobs.result_if_ended(self.run, self.project_url or settings.project_url())
        return PokeReturnValue(found is not None, self._accepted(found) if found is not None else None)

    def execute(self, context: Context) -> Any:
        """Wait for the run's end in this process, or defer to ``HopsMLRunTrigger``."""
        if not self.deferrable:
            return super().execute(context)
        project_url = self.project_url or settings.project_url()
        return self.defer(
            trigger=HopsMLRunTrigger(self.run, project_url, self.poke_interval),
            method_name="execute_complete",
            timeout=self.timeout,
        )

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Return the run's result, when Airflow resumes the task after the trigger's event."""
        return self._accepted(event)

    def _accepted(self, found: dict[str, Any]) -> dict[str, Any]:
        """Return the result. Raises AirflowException if the run ended in another state."""
        if found["state"] not in self.states:
            raise AirflowException(
                f"run {found['run_dir']} ended as {found['state']}, but the sensor waits for "
                f"{', '.join(self.states)}: {found['error'] or 'see the logs of the run'}"
            )
        return found
