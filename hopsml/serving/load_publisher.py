"""Publication of a serving's load in the project, where the web page reads it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable

from hopsml.core.metrics import Counts
from hopsml.errors import StorageError
from hopsml.model import serving_load
from hopsml.model.serving_load import ServingLoad
from hopsml.serving.messages import SupervisorAnswer
from hopsml.serving.metrics import LoadMeter
from hopsml.serving.server_records import ServerRecord

log = logging.getLogger("hopsml.serving")


@contextlib.asynccontextmanager
async def published(
    status: Callable[[], SupervisorAnswer], counts: Callable[[], Counts], record: ServerRecord, project: str
) -> AsyncIterator[None]:
    """Publish the load of a serving every ``PUBLISH_S`` seconds within this context, and delete it at its end.

    Args:
        status: Returns its status.
        counts: Returns the sums of its replicas' metrics.
        record: Its server.
        project: URL of the project.
    """
    publishing = asyncio.create_task(_publish(status, counts, record, project))
    try:
        yield
    finally:
        publishing.cancel()
        await asyncio.wait([publishing])
        with contextlib.suppress(StorageError):  # it is not believed any more after STALE_S
            await asyncio.to_thread(serving_load.delete_load, record.name, project)


async def _publish(
    status: Callable[[], SupervisorAnswer], counts: Callable[[], Counts], record: ServerRecord, project: str
) -> None:
    """Publish the load until the task is cancelled; errors of the store are logged."""
    meter, problem = LoadMeter(time.monotonic()), ""
    while True:
        meter.update(counts(), time.monotonic())
        load = load_of(status(), record, meter, time.time())
        try:
            await asyncio.to_thread(serving_load.write_load, record.name, project, load)
            problem = ""
        except StorageError as error:
            if str(error) != problem:
                log.warning("the load of this serving is not shown by the web page: %s", error)
            problem = str(error)
        await asyncio.sleep(serving_load.PUBLISH_S)


def load_of(status: SupervisorAnswer, record: ServerRecord, meter: LoadMeter, now_s: float) -> ServingLoad:
    """Return the load of a serving at a time, in seconds since 1970."""
    route = status.route
    return ServingLoad(
        updated_s=now_s,
        started_s=record.started.timestamp(),
        user=record.user,
        machine=record.machine,
        url=record.url,
        application=record.application,
        replicas=status.replicas,
        ready=status.ready,
        restarts=status.restarts,
        version=route.default if route is not None else None,
        canary=route.canary if route is not None else None,
        share=route.share if route is not None else 0.0,
        waiting=meter.waiting,
        seconds=meter.seconds,
        versions=meter.versions,
        rates=meter.rates,
    )
