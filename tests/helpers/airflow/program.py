"""Program in Airflow's environment: scheduler and triggerer for one DAG, in one process that a test can kill.

    program.py test FILE DAG_ID RUN_AFTER [CONF]     dag.test() of a DAG run that this call creates
    program.py again FILE DAG_ID RUN_AFTER           continues this DAG run as Airflow does after a restart
    program.py trigger CLASS_AND_ARGUMENTS           runs a trigger to its event, from its serialised form
    program.py on-kill CLASS_AND_ARGUMENTS           treats a trigger whose task was cleared as the triggerer does
    program.py providers                             prints what Airflow's provider manager knows of this one

The last line of the output is one JSON object.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import sys
from datetime import datetime
from types import SimpleNamespace
from typing import Any

OVER = ("success", "failed", "upstream_failed", "skipped")


def load_dag(file: str, dag_id: str) -> Any:
    spec = importlib.util.spec_from_file_location("dag_file", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return next(
        value for value in vars(module).values() if getattr(value, "dag_id", "") == dag_id and hasattr(value, "test")
    )


def run_dag(file: str, dag_id: str, run_after: str, conf: str = "{}") -> dict[str, Any]:
    moment = datetime.fromisoformat(run_after)
    run = load_dag(file, dag_id).test(run_after=moment, logical_date=moment, run_conf=json.loads(conf))
    return told(run)


def again(file: str, dag_id: str, run_after: str) -> dict[str, Any]:
    """Continue a DAG run, which dag.test() would delete, as Airflow does: a scheduler gives tasks that are no longer
    running another try, and a triggerer runs the triggers of the deferred ones, from the database.
    """
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
    from airflow.models import dagrun
    from airflow.serialization.definitions.dag import SerializedDAG

    def existing(*, dag: Any, logical_date: datetime, session: Any, **_: Any) -> Any:
        run = session.query(dagrun.DagRun).filter_by(dag_id=dag.dag_id, logical_date=logical_date).one()
        run.dag = dag
        for ti in run.get_task_instances(session=session):
            if ti.trigger_id is not None and ti.state not in OVER:
                ti.state = "deferred"  # while dag.test() runs a trigger itself, it calls the task queued
        session.commit()
        runner = SimpleNamespace(log=logging.getLogger("scheduler"))
        SchedulerJobRunner.check_trigger_timeouts(runner, session=session)
        session.expire_all()
        for ti in run.get_task_instances(session=session):
            if ti.state == "deferred":
                fire(ti, session)
            elif ti.state not in ("scheduled", *OVER):
                ti.state = None
        session.commit()
        return run

    dagrun.get_or_create_dagrun = existing  # type: ignore[assignment]
    SerializedDAG.clear_dags = staticmethod(lambda **_: 0)  # type: ignore[method-assign, assignment]
    return run_dag(file, dag_id, run_after)


def fire(ti: Any, session: Any) -> None:
    """Run the triggerer's part, and the scheduler's handling of the event."""
    from airflow.models.trigger import Trigger
    from airflow.sdk.serde import serialize
    from airflow.serialization.decoders import smart_decode_trigger_kwargs

    stored = session.get(Trigger, ti.trigger_id)
    arguments = {name: smart_decode_trigger_kwargs(value) for name, value in stored.kwargs.items()}
    print(f"the triggerer runs {stored.classpath}", flush=True)
    event = trigger(json.dumps([stored.classpath, arguments]))["event"]
    ti.next_kwargs, ti.trigger_id, ti.state = {**(ti.next_kwargs or {}), "event": serialize(event)}, None, "scheduled"


def told(run: Any) -> dict[str, Any]:
    from airflow.models.xcom import XComModel
    from airflow.sdk.serde import deserialize
    from airflow.utils.session import create_session

    with create_session() as session:
        rows = session.query(XComModel).filter_by(dag_id=run.dag_id, run_id=run.run_id).all()
        xcoms: dict[str, dict[str, Any]] = {}
        for row in rows:
            xcoms.setdefault(row.task_id, {})[row.key] = deserialize(row.value)
    tasks = {ti.task_id: {"state": ti.state, "tries": ti.try_number} for ti in run.get_task_instances()}
    return {"state": run.state, "tasks": tasks, "xcoms": xcoms}


def rebuilt(text: str) -> Any:
    from airflow.sdk._shared.module_loading import import_string

    path, arguments = json.loads(text)
    return import_string(path)(**arguments)


def trigger(text: str) -> dict[str, Any]:
    async def first_event(made: Any) -> Any:
        return await anext(made.run())

    return {"event": asyncio.run(first_event(rebuilt(text))).payload}


def on_kill(text: str) -> dict[str, Any]:
    asyncio.run(rebuilt(text).on_kill())
    return {}


def providers() -> dict[str, Any]:
    from airflow.providers_manager import ProvidersManager

    return {"info": ProvidersManager().providers["hopsml-spark"].data}


def main(verb: str, *arguments: str) -> None:
    verbs = {"test": run_dag, "again": again, "trigger": trigger, "on-kill": on_kill, "providers": providers}
    print(json.dumps(verbs[verb](*arguments), default=str), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
