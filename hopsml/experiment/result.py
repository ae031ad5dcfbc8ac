"""What a run leaves: a value for the program, files for everybody else."""

from __future__ import annotations

from typing import Any

from hopsml.experiment import summary
from hopsml.storage.run_dir import RunDir


class Result(tuple[str, Any]):
    """Outcome of a finished run; unpacks as the predecessor's pair: ``logdir, metrics = result``.

    Attributes: ``metrics`` (dict: what the chief's function returned, with the log's path), ``value`` (what it
    returned, files as where they lie, without what cannot travel, of which a note tells), ``logdir`` (URL of the TensorBoard
    events), ``run_dir`` (URL of the run directory), ``run_id``,
    ``artifacts`` (URLs of what the function saved in its working folder), ``in_force`` (what the workers were seen to do
    together, and by which path gradients were merged), ``unrecorded`` (records that the store did not take, each with the
    reason; usually empty).
    """

    metrics: dict[str, Any]  # empty for several combinations, whose pair's second element is None
    runs: list[Result]  # of several combinations
    value: Any
    logdir: str
    run_dir: str
    run_id: str
    state: str
    workers: list[dict[str, Any]]
    ring_order: list[str]
    seconds: float
    steps_per_second: float
    merge_scope: int | str
    scoped_allocator: bool
    in_force: dict[str, Any]  # what the workers did together; the two above are what was asked for
    unrecorded: dict[str, str]

    def __new__(cls, logdir: str, metrics: dict[str, Any] | None, **facts: Any) -> Result:
        """Facts are the other attributes."""
        self = super().__new__(cls, (logdir, metrics))
        self.logdir, self.metrics, self.unrecorded = logdir, metrics or {}, {}
        for name, value in facts.items():
            setattr(self, name, value)
        return self

    @property
    def artifacts(self) -> list[str]:
        """URLs of the files that the function saved in its working folder, such as ``model.save("model.keras")``."""
        return [status.url for status in summary.files_below(RunDir(self.run_dir).artifacts)]

    def summary(self) -> str:
        """What a person wants to know at the end; see ``hopsml.experiment.summary``."""
        return summary.text(self)

    def json(self, **more: Any) -> str:
        """One line for scripts: metrics, workers, run directory, state, and whatever is added."""
        return summary.json_line(self, **more)

    def __repr__(self) -> str:
        return (
            f"Result(run_id={self.run_id!r}, state={self.state!r}, metrics={self.metrics!r}, run_dir={self.run_dir!r})"
        )
