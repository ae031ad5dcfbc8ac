"""Resource profiles for Spark jobs of agents: one for agents with a GPU and one for those without.

With a fixed number of executors both kinds run on the application's executors, by profiles of the task alone: with one
GPU more than the application's other tasks have, or one less. If those have none, agents without one need no profile.
Under dynamic allocation Spark refuses profiles of a task alone, or starts executors like the application's for them:
each kind then specifies executors, with and without GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class ResourceProfiles:
    """Resource profiles of one application, each made once: executors that Spark has started for one serve no other."""

    def __init__(self, context: Any, setting: Callable[[str, str], str]) -> None:
        """Use this context; ``setting`` returns a setting of the application by name and default."""
        self._context, self._setting = context, setting
        self._made: dict[bool, Any] = {}
        self._refusal: str | None = None

    def _number(self, key: str, default: int) -> int:
        """Return a setting as a number."""
        return int(self._setting(key, str(default)))

    @property
    def dynamic(self) -> bool:
        """True if Spark requests executors when tasks wait for them (dynamic allocation)."""
        return self._setting("spark.dynamicAllocation.enabled", "false") == "true"

    @property
    def gpus(self) -> int:
        """Number of GPUs of each of the application's own executors."""
        return self._number("spark.executor.resource.gpu.amount", 0)

    @property
    def every_task_has_a_gpu(self) -> bool:
        """True if the application's tasks get GPUs without a profile."""
        return float(self._setting("spark.task.resource.gpu.amount", "0")) > 0

    def of(self, bare: bool) -> Any:
        """Return the profile for agents of this kind; None if they need none."""
        if not self.gpus or (self.every_task_has_a_gpu and not bare) or (bare and self._any_task_is_bare):
            return None
        if bare not in self._made:
            self._made.setdefault(bare, self._make(bare))  # two threads may each make one: the first one stored counts
        return self._made[bare]

    @property
    def _any_task_is_bare(self) -> bool:
        """True if tasks without a profile get no GPU."""
        return not self.dynamic and not self.every_task_has_a_gpu

    def _make(self, bare: bool) -> Any:
        """Make the profile for agents of this kind."""
        from pyspark.resource import ExecutorResourceRequests, ResourceProfileBuilder, TaskResourceRequests

        of_task = TaskResourceRequests().cpus(self._number("spark.task.cpus", 1))
        builder = ResourceProfileBuilder().require(of_task if bare else of_task.resource("gpu", 1))
        if self.dynamic:  # a profile of a task alone is refused, or gets executors like the application's
            of_executor = ExecutorResourceRequests().cores(self._number("spark.executor.cores", 1))
            script = self._setting("spark.executor.resource.gpu.discoveryScript", "")
            builder = builder.require(of_executor if bare else of_executor.resource("gpu", self.gpus, script))
        return builder.build

    def refusal(self) -> str:
        """Return why this Spark provides no agents without a GPU although executors have some; "" if it does.

        The answer is cached.
        """
        if self._refusal is None:
            profile = self.of(bare=True)
            self._refusal = self._refused(profile) if profile is not None else ""
        return self._refusal

    def _refused(self, profile: Any) -> str:
        """Return Spark's reason for refusing a profile; "" if it accepts it."""
        try:
            self._context._jsc.sc().resourceProfileManager().isSupported(profile._java_resource_profile)
        except Exception as error:  # noqa: BLE001 py4j raises it for Spark's SparkException or a missing method
            java = getattr(error, "java_exception", None)
            return str(java.getMessage() if java is not None else error).splitlines()[0][:300]
        return ""
