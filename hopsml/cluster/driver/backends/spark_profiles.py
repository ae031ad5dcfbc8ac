"""Which resource profile Spark gets with an ask for agents: those with a GPU and those without have one each.

With a fixed number of executors both kinds run on the application's own, by profiles of a task alone: a GPU more than the
application's other tasks have, or one less. Where those have none, agents without one need no profile. Under dynamic
allocation Spark refuses profiles of a task alone, or starts executors as the application's own for them: each kind then
names executors, with GPUs and without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Profiles:
    """The profiles of one application. Each is made once: executors that Spark has started for one serve no other."""

    def __init__(self, context: Any, setting: Callable[[str, str], str]) -> None:
        """``setting``: of the application, by name and default."""
        self._context, self._setting = context, setting
        self._made: dict[bool, Any] = {}
        self._refusal: str | None = None

    def _number(self, key: str, default: int) -> int:
        return int(self._setting(key, str(default)))

    @property
    def dynamic(self) -> bool:
        """Whether executors come when tasks wait for them."""
        return self._setting("spark.dynamicAllocation.enabled", "false") == "true"

    @property
    def gpus(self) -> int:
        """Of each of the application's own executors."""
        return self._number("spark.executor.resource.gpu.amount", 0)

    @property
    def every_task_has_a_gpu(self) -> bool:
        """Whether the application's tasks get GPUs without a profile."""
        return float(self._setting("spark.task.resource.gpu.amount", "0")) > 0

    def of(self, bare: bool) -> Any:
        """The profile for agents of this kind; None: they need none."""
        if not self.gpus or (self.every_task_has_a_gpu and not bare) or (bare and self._any_task_is_bare):
            return None
        if bare not in self._made:
            self._made.setdefault(bare, self._make(bare))  # of two threads that make one the first has made it
        return self._made[bare]

    @property
    def _any_task_is_bare(self) -> bool:
        return not self.dynamic and not self.every_task_has_a_gpu

    def _make(self, bare: bool) -> Any:
        from pyspark.resource import ExecutorResourceRequests, ResourceProfileBuilder, TaskResourceRequests

        of_task = TaskResourceRequests().cpus(self._number("spark.task.cpus", 1))
        builder = ResourceProfileBuilder().require(of_task if bare else of_task.resource("gpu", 1))
        if self.dynamic:  # a profile of a task alone is refused, or gets executors as the application's own
            of_executor = ExecutorResourceRequests().cores(self._number("spark.executor.cores", 1))
            script = self._setting("spark.executor.resource.gpu.discoveryScript", "")
            builder = builder.require(of_executor if bare else of_executor.resource("gpu", self.gpus, script))
        return builder.build

    def refusal(self) -> str:
        """Why this Spark gives no agents without a GPU, though executors have some; "" where it does. Asked once."""
        if self._refusal is None:
            profile = self.of(bare=True)
            self._refusal = self._refused(profile) if profile is not None else ""
        return self._refusal

    def _refused(self, profile: Any) -> str:
        try:
            self._context._jsc.sc().resourceProfileManager().isSupported(profile._java_resource_profile)
        except Exception as error:  # noqa: BLE001 py4j's, of Spark's SparkException or of a method that it does not have
            java = getattr(error, "java_exception", None)
            return str(java.getMessage() if java is not None else error).splitlines()[0][:300]
        return ""
