"""Spark backend: agents as ordinary Spark tasks, with one job for each agent request and one task for each agent.

With some settings of Spark each agent has its own job (``spark_task.needs_own_job``).

No barrier stage is used: Spark refuses those under dynamic allocation, and ends them as a whole at the first failed
task. Ordinary tasks that are pending make Spark request executors from YARN; a task whose executor died is run again,
and its agent joins.
"""

from __future__ import annotations

import math
import queue
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from hopsml.cluster.agent.agent import NEVER_JOINED
from hopsml.cluster.agent.network import Bootstrap
from hopsml.cluster.driver.backends import spark_executors, spark_task
from hopsml.cluster.driver.backends.base import FAILED_AT_LAUNCH, AskEnded, Capacity, EndWarning, SlotEnded
from hopsml.cluster.driver.backends.spark_executors import ResourceProfiles
from hopsml.core.callbacks import nonblocking_logger

log = nonblocking_logger("hopsml.spark")

REGISTRATION_WAIT_S = 15.0
# seconds to wait for Spark's reason of a lost executor: YARN reports at its heartbeat, every 3 s
LOSS_S, LOOK_S = 6.0, 0.2
MOST_TASKS = 10_000  # tasks of a stage that are searched
MOST_STAGES = 3  # stages of other jobs that are named
NEWS_S = 3.5  # possible age of a node's warning when it is read here: YARN informs Spark at its heartbeat, every 3 s


class SparkBackend:
    """Backend that runs agents on the executors of one SparkContext."""

    name = "spark"
    restarts_agents = True
    gpus_per_agent = 0  # Spark assigns them

    def __init__(self, context: Any, messages: spark_executors.ExecutorMessages | None = None) -> None:
        """Use this context; ``messages``: Spark's messages about executors, collected since before it was created."""
        self.context = context
        self._messages = messages or spark_executors.collect(context._jvm)
        self._had_executor = False  # True once an executor has registered
        self._conf = context.getConf()
        # 0 if it is not set: Spark's default of 1 is no statement about the cluster
        self.cores_per_agent = self._int("spark.task.cpus", 0)
        self._profiles = ResourceProfiles(context, self._conf.get)
        self.grows = self._profiles.dynamic
        self._most_failures = spark_task.max_task_failures(context.master, self._conf.get)
        self._has_own_jobs = spark_task.needs_own_job(self._most_failures, self._conf.get)
        self._jobs: dict[int, threading.Thread] = {}
        self._job_counts: dict[int, int] = {}  # agent request -> number of Spark jobs that run its agents
        self._successors = 0  # executors that were requested beyond spark.executor.instances
        self._group = f"hopsml-agents-{context.applicationId}"
        host, port = self._conf.get("spark.driver.host", ""), self._conf.get("spark.driver.port", "")
        self._announced = f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
        self._looked_at, self._last_lines = "", list[str]()

    # ------------------------------------------------------------------------------------------ capacity and addresses

    def _int(self, key: str, default: int) -> int:
        """Return a setting as a number."""
        return int(self._conf.get(key, str(default)))

    def capacity(self) -> Capacity:
        """Return executors times slots per executor; unlimited under dynamic allocation without a maximum."""
        per_executor, slot_setting = self._slots_per_executor()
        refusal = self._profiles.why_no_bare_agents()
        bare = self._tasks_per_executor(bare=True) if self._profiles.gpus and not refusal else 0
        if self.grows:
            most = self._int("spark.dynamicAllocation.maxExecutors", 0)
            if not most:
                preferred = max(1, self._executors()) * per_executor
                setting = "spark.dynamicAllocation.maxExecutors is not set"
                return Capacity(None, setting, preferred, None if bare else 0, alike=refusal)
            setting = f"spark.dynamicAllocation.maxExecutors={most}, {slot_setting}"
            # The maximum applies to the executors of each profile.
            enlarge = f"raise spark.dynamicAllocation.maxExecutors above {most}"
            return Capacity(most * per_executor, setting, most * per_executor, most * bare, None, refusal, enlarge)
        executors, setting = self._fixed_executors()
        slots, both = executors * per_executor, executors * bare
        together, enlarge = both if bare else None, self._how_to_enlarge()
        return Capacity(slots, f"{setting}, {slot_setting}", slots, both, together, refusal, enlarge)

    def _how_to_enlarge(self) -> str:
        """Return what the user does for more slots without dynamic allocation, as the beginning of a clause."""
        master = self.context.master
        if master.startswith("local"):
            return f"use a larger master than {master}"
        if master != "yarn" and not self._int("spark.executor.instances", 0):
            is_limited = self._int("spark.cores.max", 0)
            return "raise spark.cores.max" if is_limited else "add workers to the standalone cluster"
        return "raise spark.executor.instances or spark.executor.cores"

    def _slots_per_executor(self) -> tuple[int, str]:
        """Return the slots of an executor, and as text the settings from which they follow."""
        slots = max(1, self._tasks_per_executor(bare=True))
        gpus = self._profiles.gpus
        by_cores = (
            f"its cores {self._cores_per_executor()} divided by spark.task.cpus={self._int('spark.task.cpus', 1)}"
        )
        if gpus and gpus < slots:
            return (
                gpus,
                f"spark.executor.resource.gpu.amount={gpus} (slots per executor with a GPU; {slots} by {by_cores})",
            )
        return slots, f"{slots} slots per executor ({by_cores})"

    def _cores_per_executor(self) -> int:
        """Return the number of cores of an executor."""
        master = self.context.master
        if master.startswith("local-cluster["):
            return int(master[len("local-cluster[") : -1].split(",")[1])
        if master.startswith("local"):
            return int(self.context.defaultParallelism)
        return self._int("spark.executor.cores", 1 if master == "yarn" else 0) or int(self.context.defaultParallelism)

    def _tasks_per_executor(self, bare: bool) -> int:
        """Return how many agents fit on one executor: bare ones take only cores, others a GPU each if it has any."""
        return self._cores_per_executor() // self._int("spark.task.cpus", 1) if bare else self._slots_per_executor()[0]

    def _fixed_executors(self) -> tuple[int, str]:
        """Return the number of executors without dynamic allocation, and as text the setting from which it follows."""
        master = self.context.master
        if master.startswith("local-cluster["):
            count = int(master[len("local-cluster[") :].split(",")[0])
            return count, f"master {master}: {count} executors"
        if master.startswith("local"):
            return 1, f"master {master}: one process"
        if instances := self._int("spark.executor.instances", 0):
            return instances, f"spark.executor.instances={instances}"
        if master == "yarn":
            return 2, "spark.executor.instances is not set: YARN gives 2"
        if (most := self._int("spark.cores.max", 0)) and (cores := self._int("spark.executor.cores", 0)):
            return most // cores, f"spark.cores.max={most} divided by spark.executor.cores={cores}"
        self._await_executors(1)
        return max(1, self._executors()), f"master {master}: the executors that it has granted"

    def _executors(self) -> int:
        """Return the number of executors that are registered now, without the driver."""
        infos = self.context._jsc.sc().statusTracker().getExecutorInfos()
        return len(infos) if self.context.master.startswith("local[") else max(0, len(infos) - 1)

    def _await_executors(self, count: int) -> None:
        """Wait for executors to register: if some are late, the early ones get two agents each."""
        if self.context.master.startswith("local") and not self.context.master.startswith("local-cluster"):
            return
        deadline = time.monotonic() + REGISTRATION_WAIT_S
        while self._executors() < count and time.monotonic() < deadline:
            time.sleep(0.02)

    def addresses(self) -> tuple[str, tuple[str, ...]]:
        """Return the addresses of Spark's driver, which are also the coordinator's."""
        bind, announced = spark_executors.driver_addresses(self._conf.get)
        return bind, (announced,)

    # ------------------------------------------------------------------------------------------ agents

    def submit(self, bootstrap: Bootstrap, count: int, ended: AskEnded, slot_ended: SlotEnded) -> None:
        """Start a Spark job of ``count`` tasks on a separate thread; Spark restarts lost tasks."""
        from pyspark import InheritableThread

        self._job_counts[bootstrap.request_id] = count if self._has_own_jobs else 1
        job = InheritableThread(target=self._run_job, args=(bootstrap, count, ended, slot_ended))
        job.daemon = True
        job.name = f"hopsml-spark-ask-{bootstrap.request_id}"
        self._jobs[bootstrap.request_id] = job
        job.start()

    def _run_job(self, bootstrap: Bootstrap, count: int, ended: AskEnded, slot_ended: SlotEnded) -> None:
        """Run the agents of a request, and report its end."""
        try:
            problem = spark_task.why_settings_refused(self._conf.get) or self._run_agents(bootstrap, count, slot_ended)
        except Exception as error:  # noqa: BLE001 py4j and Spark raise various errors: the waiting runs report them
            problem = self._failed_launches() or spark_executors.job_failure(error)
        ended(bootstrap.request_id, problem)

    def _run_agents(self, bootstrap: Bootstrap, count: int, slot_ended: SlotEnded) -> str:
        """Run one Spark job for all agents of a request, or one for each if Spark's settings need that.

        Returns its problem, or that of the agent which ended last; "" if there was none.
        """
        profile = self._profiles.profile_for(bootstrap.bare)
        if not self.grows and self._tasks_per_executor(bootstrap.bare) > 1:
            self._await_executors(min(count, self._fixed_executors()[0]))
        if bootstrap.bare:
            self._wait_for_older_requests(bootstrap.request_id)
        slots = self.context.parallelize(range(count), count)
        if profile is not None:
            slots = slots.withResources(profile)
        agents = slots.mapPartitionsWithIndex(spark_task.agent_body(bootstrap, self._most_failures))
        if self._job_counts[bootstrap.request_id] > 1:
            return self._run_singly(bootstrap.request_id, agents, count, slot_ended)
        return self._run_tasks(bootstrap.request_id, agents, range(count))

    def _run_singly(self, request_id: int, agents: Any, count: int, slot_ended: SlotEnded) -> str:
        """Run a Spark job for each agent, and report each end but the last, whose problem is returned."""
        from pyspark import InheritableThread

        ends: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()

        def run(index: int) -> None:
            ends.put((index, self._run_tasks(request_id, agents, [index])))

        for index in range(count):
            job = InheritableThread(target=run, args=(index,))
            job.daemon = True
            job.name = f"hopsml-spark-ask-{request_id}-{index}"
            job.start()
        for _ in range(count - 1):
            slot_ended(request_id, *ends.get())
        return ends.get()[1]

    def _run_tasks(self, request_id: int, agents: Any, indices: Sequence[int]) -> str:
        """Run the agents with these indices as one Spark job, and return its problem; "" if there was none."""
        try:
            group, text = self._group_of(request_id), f"hopsml: {len(indices)} agents"
            self.context.setJobGroup(group, text, interruptOnCancel=True)
            last_messages = self.context.runJob(agents, list, list(indices))
            return next((last for last in last_messages if last.startswith(NEVER_JOINED)), "")
        except Exception as error:  # noqa: BLE001 py4j and Spark raise various errors: the waiting runs report them
            # Ctrl-C cancels all jobs. A run that waits was started after it, or it would be cancelled itself.
            is_interrupt, python = "cancellation of all jobs" in str(error), str(self.context.pythonExec)
            return "" if is_interrupt else self._failed_launches() or spark_executors.job_failure(error, python)

    def _wait_for_older_requests(self, request_id: int) -> None:
        """Wait until Spark has received the older requests, since it serves the oldest job first.

        If bare agents start first they may take all cores of an executor, so that its GPU cannot be used.
        """
        tracker, deadline = self.context.statusTracker(), time.monotonic() + 2 * REGISTRATION_WAIT_S
        older = [(other_id, job) for other_id, job in list(self._jobs.items()) if other_id < request_id]

        def is_received(other_id: int) -> bool:
            return len(tracker.getJobIdsForGroup(self._group_of(other_id))) >= self._job_counts[other_id]

        while time.monotonic() < deadline:
            if all(is_received(other_id) for other_id, job in older if job.is_alive()):
                return
            time.sleep(0.02)

    def _group_of(self, request_id: int) -> str:
        """Return the name of the Spark job group of an agent request."""
        return f"{self._group}-{request_id}"

    def job_ids(self) -> list[int]:
        """Return the ids of Spark's jobs that hold agents."""
        tracker = self.context.statusTracker()
        return [
            job_id
            for request_id, job in list(self._jobs.items())
            if job.is_alive()
            for job_id in tracker.getJobIdsForGroup(self._group_of(request_id))
        ]

    def cancel(self, request_id: int) -> None:
        """Cancel the request's Spark job, whose tasks are pending."""
        try:
            self.context.cancelJobGroup(self._group_of(request_id))
        except Exception:  # noqa: BLE001 Spark is stopping: the job ends with it
            pass

    def evict(self, task: int, pid: int) -> None:
        """Kill the agent's task attempt and its Python worker; Spark restarts the task as after a lost executor."""
        try:
            self.context._jsc.sc().killTaskAttempt(task, True, "its agent does not answer")
        except Exception:  # noqa: BLE001 Spark is stopping, or has detected it by itself
            pass

    def why_missing(self, request_id: int) -> str:
        """Return the state of the request's Spark tasks and of the executors."""
        job = self._jobs.get(request_id)
        if job is not None and not job.is_alive():
            return "the Spark job that holds the agents has ended"
        executors = self._executors()
        if executors == 0:
            return self._why_none()
        running = 0
        tracker = self.context.statusTracker()
        for job_id in self.job_ids():
            info = tracker.getJobInfo(job_id)
            for stage_id in info.stageIds if info else ():
                stage = tracker.getStageInfo(stage_id)
                running += stage.numActiveTasks if stage else 0
        cause = self.other_work() or "executors for the others were not granted, or an agent cannot reach the driver"
        return f"Spark has {executors} executors and {running} running agent tasks; {cause}"

    def _why_none(self) -> str:
        """Return why no executor is registered: none was granted, or the granted ones cannot reach the driver."""
        launches = self._launches()
        ended = next(reversed(launches.ended), "")
        return spark_executors.why_no_executor(
            launches,
            spark_executors.containers_of(self.context),
            self._announced,
            spark_executors.last_lines(self.context, ended) if ended else (),
        )

    def _launches(self) -> spark_executors.Launches:
        """Return the executors granted so far; none if messages are not collected."""
        return self._messages.launches() if self._messages is not None else spark_executors.Launches()

    def _failed_launches(self) -> str:
        """Return why Spark has given up, if all executors have failed and none has ever registered; "" otherwise."""
        try:
            if not self.context._jsc.sc().isStopped():
                self._check_executors()
            launches = self._launches()
            if self._had_executor or not launches.ended:
                return ""
            lines = self._last_lines or spark_executors.last_lines(self.context, next(reversed(launches.ended)))
            return f"{FAILED_AT_LAUNCH}: {spark_executors.why_no_executor(launches, None, self._announced, lines)}"
        except Exception as error:  # noqa: BLE001 py4j raises it if the JVM has ended
            log.debug("the state of the executors cannot be read: %s", error)
            return ""

    def _check_executors(self) -> None:
        """Store whether an executor has registered, and the last lines of one that has not, before the context ends."""
        if self._had_executor:
            return
        self._had_executor = self._executors() > 0
        ended = next(reversed(self._launches().ended), "")
        if ended and ended != self._looked_at and not self._had_executor:
            self._looked_at, self._last_lines = (
                ended,
                spark_executors.last_lines(self.context, ended) or self._last_lines,
            )

    def is_contended(self) -> bool:
        """Return True if a stage of another Spark job has pending tasks and no running one."""
        stages = self._other_stages()
        return any(stage.numActiveTasks == 0 and stage.numCompletedTasks < stage.numTasks for stage in stages)

    def other_work(self) -> str:
        """Return the stages of other Spark jobs of this application that run tasks, as text; "" if there are none."""
        running = [stage for stage in self._other_stages() if stage.numActiveTasks]
        texts = [f"stage {stage.stageId} ({stage.name})" for stage in running[:MOST_STAGES]]
        more = f" and {len(running) - MOST_STAGES} more" if len(running) > MOST_STAGES else ""
        return f"other Spark jobs of this application hold slots: {', '.join(texts)}{more}" if running else ""

    def _other_stages(self) -> list[Any]:
        """Return the active stages of jobs that hold no agents; empty while Spark is stopping."""
        tracker = self.context.statusTracker()
        try:
            ours = {
                stage_id
                for job_id in self.job_ids()
                if (info := tracker.getJobInfo(job_id)) is not None
                for stage_id in info.stageIds
            }
            others = [tracker.getStageInfo(each) for each in sorted(tracker.getActiveStageIds()) if each not in ours]
        except Exception:  # noqa: BLE001 Spark is stopping: the agents' job reports it
            return []
        return [stage for stage in others if stage is not None]

    def leaving_tasks(self, tasks: frozenset[int]) -> dict[int, EndWarning]:
        """Return the tasks on executors that Spark is decommissioning, on request or because their nodes are."""
        try:
            scheduler = self.context._jsc.sc().taskScheduler()
            going = scheduler.executorsPendingDecommission()
            self._request_successors(int(going.size()))
            if going.isEmpty() or not tasks:
                return {}
            time_s = self._node_time_s()
            # py4j converts small longs to ints, so that no task can be looked up by its number.
            all_managers = _each(scheduler.taskIdToTaskSetManager().elements(), "hasMoreElements", "nextElement")
            managers = {manager.name(): manager for manager in all_managers}
            return {
                int(info.taskId()): EndWarning(
                    f"Spark decommissions executor {info.executorId()} on {info.host()}", time_s.get(str(info.host()))
                )
                for manager in managers.values()
                for info in _each(manager.taskInfos().values().iterator())
                if int(info.taskId()) in tasks and going.contains(info.executorId())
            }
        except Exception as error:  # noqa: BLE001 Spark is stopping, or its version stores this in another place
            log.debug("which executors are decommissioned is not known: %s", error)
            return {}

    def _request_successors(self, going: int) -> None:
        """Request executors to replace those that are being decommissioned.

        With a fixed number of executors YARN counts these as well, and would replace them only after their end.
        """
        if self.grows or self.context.master != "yarn" or going == self._successors:
            return
        hosts = self.context._jvm.org.apache.spark.api.python.PythonUtils.toScalaMap({})
        self.context._jsc.sc().requestTotalExecutors(self._fixed_executors()[0] + going, 0, hosts)
        self._successors = going

    def _node_time_s(self) -> dict[str, float]:
        """Return by host the seconds that YARN gives to the nodes that it decommissions; other hosts are missing."""
        if self.context.master != "yarn":
            return {}
        jvm, spark = self.context._jvm, self.context._jsc.sc()
        hadoop = jvm.org.apache.hadoop
        conf = hadoop.yarn.conf.YarnConfiguration(spark.hadoopConfiguration())
        conf.setLong("yarn.resourcemanager.connect.max-wait.ms", 2000)  # the default is 15 minutes
        states = self.context._gateway.new_array(hadoop.yarn.api.records.NodeState, 1)
        states[0] = hadoop.yarn.api.records.NodeState.DECOMMISSIONING
        client = hadoop.yarn.client.api.YarnClient.createYarnClient()
        try:
            client.init(conf)
            client.start()
            reports = list(client.getNodeReports(states))
            limits = {str(one.getNodeId().getHost()): one.getDecommissioningTimeout() for one in reports}
        except Exception as error:  # noqa: BLE001 a ResourceManager that is unreachable, or one that refuses the query
            log.debug("how long nodes have is not known: %s", error)
            return {}
        finally:
            client.stop()
        known = {host: float(limit) for host, limit in limits.items() if limit is not None}
        return {host: max(0.0, limit - NEWS_S) if limit >= 0 else math.inf for host, limit in known.items()}

    def why_lost(self, task: int, pid: int) -> str:
        """Return why Spark counts the agent's task as failed; for a lost executor, the cluster manager's reason."""
        deadline = time.monotonic() + LOSS_S
        while True:
            try:
                problem = self._problem_of_task(task)
            except Exception as error:  # noqa: BLE001 Spark is stopping, or its version stores this in another place
                log.debug("the reason why task %d has ended cannot be read: %s", task, error)
                return ""
            if problem:
                return spark_task.why_executor_lost(problem)
            if time.monotonic() >= deadline:
                return ""
            time.sleep(LOOK_S)

    def _problem_of_task(self, task: int) -> str:
        """Return why an attempt of a task has failed or was killed, as shown in Spark's web UI; "" while it runs."""
        store, tracker = self.context._jsc.sc().statusStore(), self.context.statusTracker()
        for job_id in self.job_ids():
            info = tracker.getJobInfo(job_id)
            for stage_id in info.stageIds if info else ():
                attempt = int(store.lastStageAttempt(stage_id).attemptId())
                for one in _each(store.taskList(stage_id, attempt, MOST_TASKS).iterator()):
                    if int(one.taskId()) == task:
                        message = one.errorMessage()
                        return str(message.get()) if message.isDefined() else ""
        return ""

    def why_unavailable(self) -> str:
        """Return why no agent can be started any more; "" while agents can be.

        The reason is that Python or Spark has stopped the SparkContext, or that the JVM has ended.
        """
        context = self.context._jsc
        if context is None:
            return "its SparkContext was stopped"
        try:
            if not context.sc().isStopped():
                self._check_executors()
                return ""
            return self._failed_launches() or "its SparkContext was stopped"
        except Exception as error:  # noqa: BLE001 py4j's without a JVM; None's, if Python is just stopping it
            log.debug("Spark does not say whether it is stopped: %s", error)
            return "Spark's JVM, in which the driver of this application ran, has ended" if self._refuses() else ""

    def _refuses(self) -> bool:
        """Return True if the JVM's port refuses connections.

        Other errors, such as too few descriptors, may be temporary.
        """
        where = self.context._gateway.gateway_parameters
        try:
            socket.create_connection((where.address, where.port), timeout=1.0).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        """Wait for the agents' jobs, and cancel those that remain."""
        alive = [job for job in self._jobs.values() if job.is_alive()]
        for job in alive:
            job.join(5)
        if any(job.is_alive() for job in alive):
            for request_id in [request_id for request_id, job in self._jobs.items() if job.is_alive()]:
                self.cancel(request_id)
            for job in alive:
                job.join(5)


def _each(iterator: Any, more: str = "hasNext", following: str = "next") -> Iterator[Any]:
    """Yield the elements of a Scala iterator or a Java enumeration."""
    while getattr(iterator, more)():
        yield getattr(iterator, following)()


def application_attempt(context: Any) -> int:
    """Return the number of YARN's attempt at the application, from 1; also 1 if YARN would not restart this driver."""
    attempt = context._jsc.sc().applicationAttemptId()  # YARN defines one only for a driver in a YARN container
    return int(attempt.get()) if attempt.isDefined() else 1
