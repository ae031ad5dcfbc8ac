"""Driver of a serving on a cluster: supervisor and front in one process; Spark tasks hold the replicas.

``main`` is called by the script that spark-submit runs. The Spark job has one task per replica, which ends with the
serving; a lost task is run again. The address is valid for the lifetime of this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from typing import Any

import msgspec

from hopsml.cluster.driver.backends.spark_executors import driver_addresses
from hopsml.cluster.driver.tokens.keeper import TokenKeeper
from hopsml.cluster.driver.tokens.sources import source_of
from hopsml.core import processes, redact
from hopsml.core import settings as hopsml_settings
from hopsml.core.delegation_tokens import Credentials
from hopsml.core.newer_python import UTC
from hopsml.core.processes import write_no_core_dumps
from hopsml.errors import HopsmlError, StorageError
from hopsml.serving import server_records
from hopsml.serving.agent_server import AgentServer
from hopsml.serving.front import Front, serve_front
from hopsml.serving.load_publisher import published
from hopsml.serving.messages import AgentWelcome, Command, LogsRequest, StopServing, SupervisorAnswer
from hopsml.serving.server_records import LaunchOutcome, ServerRecord, ServingAccess
from hopsml.serving.starting import LOOPBACK
from hopsml.serving.supervisor import Supervisor, listening_socket

log = logging.getLogger("hopsml.serving")

LOST = "the Spark job that holds the replicas has ended"


class ClusterServing:
    """Serving on a cluster, from its claim to its end."""

    def __init__(self, context: Any, granted: ServingAccess) -> None:
        self._context, self._granted, self._settings = context, granted, granted.settings
        self._stopped = asyncio.Event()
        self._problem, self._has_tokens = "", False
        self._supervisor: Supervisor | None = None
        self._agents_token = secrets.token_urlsafe(32)
        welcome = AgentWelcome(msgspec.structs.replace(self._settings, versions={}), granted.token)
        self._door = AgentServer(welcome, self._agents_token, self._evict)

    async def serve(self) -> str:
        """Run the serving until it is stopped, and return why it ended; empty if it was stopped on request."""
        settings = self._settings
        bind, host = driver_addresses(self._context.getConf().get)
        own = settings.host if settings.host not in LOOPBACK else ""
        hopsml_settings.use_name_of_spark(await asyncio.to_thread(self._context.sparkUser))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopped.set)
        with contextlib.closing(listening_socket(own or bind, settings.port)) as listener:
            listener.setblocking(False)
            record = self._record(own or host, listener.getsockname()[1])
            async with self._kept_tokens():
                await asyncio.to_thread(server_records.register_cluster_server, settings.project, record)
                try:
                    await self._answering(listener, host, bind, record)
                finally:
                    await asyncio.to_thread(self._release, record)
        return self._problem

    @contextlib.asynccontextmanager
    async def _kept_tokens(self) -> AsyncIterator[None]:
        """Keep the delegation tokens of this process and of all agents valid, on a cluster with Kerberos."""
        source = await asyncio.to_thread(source_of, self._context)
        if source is None:
            yield
            return
        loop = asyncio.get_running_loop()

        def ship(tokens: Credentials) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed: the serving has ended before
                loop.call_soon_threadsafe(self._door.give_tokens, tokens)

        self._has_tokens = True
        keeper = TokenKeeper(source, ship, lambda text: log.warning("%s", text))
        try:
            await asyncio.to_thread(keeper.start)
            yield
        finally:
            await asyncio.to_thread(keeper.close)

    async def _answering(self, listener: socket.socket, host: str, bind: str, record: ServerRecord) -> None:
        """Start the replicas, write the outcome of the start, and answer requests until the serving is stopped."""
        front = Front(self._settings.name, self._settings.limits, self._granted.token, self._granted.control, self._do)
        self._door.front = front
        supervisor = self._supervisor = Supervisor(self._settings, self._door, listener.getsockname()[:2])
        async with (
            published(supervisor.status, supervisor.counts, record, self._settings.project),
            self._door.listen(bind) as port,
            serve_front(front, listener) as drain,
        ):
            self._hold_places(host, port)
            starting = asyncio.create_task(supervisor.start())
            stopped = asyncio.create_task(self._stopped.wait())
            await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
            error = (
                starting.result() if starting.done() else self._problem or "the serving was stopped while it started"
            )
            self._problem = self._problem or error
            outcome = LaunchOutcome(self._granted.launch, error)
            await asyncio.to_thread(server_records.write_outcome, self._settings.name, self._settings.project, outcome)
            if not error:
                log.info("all replicas answer")
                await stopped
            await drain()
            supervisor.stop()
            await supervisor.wait_for_end()
            starting.cancel()

    def _record(self, host: str, port: int) -> ServerRecord:
        """Return the server record of this process."""
        return ServerRecord(
            self._settings.name,
            host,
            port,
            socket.gethostname(),
            hopsml_settings.user_name(),
            "",
            os.getpid(),
            datetime.now(UTC),
            self._context.applicationId,
            self._granted.profile,
            self._granted.launch,
            processes.start_time_of(os.getpid()),
            processes.pid_namespace(),
        )

    def _release(self, record: ServerRecord) -> None:
        """Delete the server record; an error is logged."""
        try:
            server_records.release_cluster_server(self._settings.project, record)
        except StorageError as error:
            log.warning("the record of this server cannot be deleted: %s", error)

    async def _do(self, command: Command) -> SupervisorAnswer:
        """Carry out a command of the owner."""
        assert self._supervisor is not None
        if isinstance(command, StopServing):
            self._stopped.set()
            return self._supervisor.status()
        if isinstance(command, LogsRequest):
            return msgspec.structs.replace(self._supervisor.status(), logs=await self._door.logs(command.last))
        answer = await self._supervisor.execute_command(command)
        return msgspec.structs.replace(answer, machines=self._door.replica_hosts())

    # ------------------------------------------------------------------------------------------ Spark

    def _hold_places(self, host: str, port: int) -> None:
        """Run one Spark job with a task per replica, on a separate thread.

        If the job ends before the serving, the serving stops.
        """
        from pyspark import InheritableThread

        loop = asyncio.get_running_loop()

        def ended(problem: str) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed: the serving has ended before
                loop.call_soon_threadsafe(self._job_ended, problem)

        body = agent_task_body(host, port, self._door.identity.certificate, self._agents_token, self._has_tokens)
        arguments = (self._context, self._settings.replicas, body, ended)
        job: threading.Thread = InheritableThread(target=_run_job, args=arguments)
        job.daemon = True
        job.start()

    def _job_ended(self, problem: str) -> None:
        """Stop the serving with an error because its Spark job has ended."""
        if not self._stopped.is_set():
            self._problem = f"{LOST}: {problem}"
            log.error("%s", self._problem)
            self._stopped.set()

    def _evict(self, task: int) -> None:
        """Kill a Spark task attempt with its Python process; Spark runs the task again."""
        try:
            self._context._jsc.sc().killTaskAttempt(task, True, "its agent does not answer")
        except Exception as error:  # noqa: BLE001 an error of py4j: Spark is stopping, or the task has ended
            log.debug("task %s was not killed: %s", task, error)


def _run_job(context: Any, replicas: int, body: Callable[[Iterator[int]], Iterator[int]], ended: Any) -> None:
    """Run the Spark job of the agents, and report how it ended."""
    try:
        context.setJobGroup("hopsml-serving", f"hopsml: agents for {replicas} replicas", interruptOnCancel=True)
        context.parallelize(range(replicas), replicas).mapPartitions(body).collect()
        ended("its tasks have ended")
    except Exception as error:  # noqa: BLE001 py4j and Spark raise exceptions of many kinds
        ended(redact.text((str(error).strip() or type(error).__name__)[:2000]))


def agent_task_body(
    host: str, port: int, certificate: str, token: str, has_tokens: bool = False
) -> Callable[[Iterator[int]], Iterator[int]]:
    """Return the body of a Spark task: run an agent until the driver ends it.

    Args:
        host: Host of the driver.
        port: Port of the driver for agents.
        certificate: Certificate of the driver, in PEM format.
        token: Token of the agents.
        has_tokens: True if agents are sent delegation tokens.
    """

    def body(_: Iterator[int]) -> Iterator[int]:
        from pyspark import TaskContext

        from hopsml.serving.agent import AgentBootstrap, AgentResources, run_agent

        task = TaskContext.get()
        gpus = task.resources().get("gpu") if task else None
        variables = {"CUDA_VISIBLE_DEVICES": ",".join(gpus.addresses)} if gpus else {}
        means = AgentResources(task.taskAttemptId(), task.cpus(), variables) if task else AgentResources()
        run_agent(AgentBootstrap(host, port, certificate, token, has_tokens), means)
        yield 0

    return body


def main(name: str, launch: str) -> None:
    """Serve ``name`` as configured in its private folder; exit with status 1 after an error."""
    write_no_core_dumps()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    redact.mask_logger("hopsml")
    project = hopsml_settings.project_url()
    granted = server_records.read_launch_access(name, project, launch)
    if granted is None:
        sys.exit(f"hopsml: this start of '{name}' in {project} has ended, since a later start has replaced it")
    from pyspark import SparkContext

    problem = ""
    context = SparkContext.getOrCreate()
    try:
        problem = asyncio.run(ClusterServing(context, granted).serve())
    except HopsmlError as error:
        problem = str(error)
        server_records.write_outcome(name, project, LaunchOutcome(launch, problem))
    finally:
        with contextlib.suppress(Exception):  # the JVM has ended
            context.stop()
    if problem:
        log.error("%s", problem)
        sys.exit(1)
