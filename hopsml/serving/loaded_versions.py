"""Model versions of one replica: carries out the router's actions; each version has its own thread for computing."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from hopsml.core import redact
from hopsml.serving.batching import Batcher
from hopsml.serving.routes import Load, Route, RouteAction, Router, RouteRefused, Turned, Unload
from hopsml.serving.trying import try_out

if TYPE_CHECKING:
    from hopsml.model.flavors.contract import LoadedModel
    from hopsml.serving.limits import ServingLimits
    from hopsml.serving.metrics import Meter

log = logging.getLogger("hopsml.serving")

Loader = Callable[[int], "tuple[LoadedModel, str]"]  # version number -> the model and the name of its platform


class LoadedVersions:
    """Loaded versions of a model, with their routes and request queues."""

    def __init__(
        self, load: Loader, limits: ServingLimits, meter: Meter, tell: Callable[[Turned | RouteRefused], None]
    ) -> None:
        """Initialize the holder without versions.

        Args:
            load: Function that loads a version; it is called on a separate thread while earlier versions answer.
            limits: Limits of requests.
            meter: Counts of this process.
            tell: Function that is called when a route takes effect or is refused.
        """
        self._load, self._limits, self._meter, self._tell = load, limits, meter, tell
        self._router = Router()
        self._batchers: dict[int, Batcher] = {}
        self._platforms: dict[int, str] = {}
        self._computing: dict[int, ThreadPoolExecutor] = {}  # one per version: if one hangs, others work
        self._loading = ThreadPoolExecutor(1, "load")
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_ready(self) -> bool:
        """True if a route is in effect, so that requests are answered."""
        return self._router.route is not None

    @property
    def is_loading(self) -> bool:
        """True if a version is being loaded, which may block the Python process for seconds."""
        return bool(self._tasks)

    @property
    def versions(self) -> dict[int, str]:
        """Version number -> "LOADING", "AVAILABLE" or "UNLOADING"."""
        return self._router.versions

    @property
    def waiting(self) -> int:
        """Number of requests in the queues of all versions."""
        return sum(len(batcher) for batcher in self._batchers.values())

    def follow(self, route: Route) -> None:
        """Load the versions of a route, and switch to it when they are loaded.

        Loading for an earlier route may hang, so the new route does not wait for it.
        """
        if self._tasks:
            self._loading.shutdown(wait=False)
            self._loading = ThreadPoolExecutor(1, "load")
        self._carry_out(self._router.switch_to(route))

    def choose(self, version: int | None, label: str | None) -> int:
        """Return the version that answers a request; see ``Router.choose``."""
        return self._router.choose(version, label)

    def batcher(self, version: int) -> Batcher:
        """Return the request queue of a loaded version."""
        return self._batchers[version]

    def platform(self, version: int) -> str:
        """Return the platform of a loaded version, such as ``tensorflow_savedmodel``."""
        return self._platforms[version]

    def begin_request(self, version: int) -> None:
        """Count a request that this version is to answer."""
        self._router.begin_request(version)

    def end_request(self, version: int) -> None:
        """Count a request that this version has answered, and unload versions that are no longer needed."""
        self._carry_out(self._router.end_request(version))

    def close(self) -> None:
        """Shut down the threads without waiting for running computations."""
        for executor in (*self._computing.values(), self._loading):
            executor.shutdown(wait=False, cancel_futures=True)

    def _carry_out(self, actions: Iterable[RouteAction]) -> None:
        """Carry out the actions of the router."""
        for action in actions:
            if isinstance(action, Load):
                task = asyncio.create_task(self._loaded(action.version))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif isinstance(action, Unload):
                log.info("version %s is unloaded", action.version)
                del self._batchers[action.version], self._platforms[action.version]
                self._computing.pop(action.version).shutdown(wait=False)
            else:
                self._tell(action)

    async def _loaded(self, version: int) -> None:
        """Load a version on a thread, and report the result to the router."""
        loop = asyncio.get_running_loop()
        try:
            model, platform = await loop.run_in_executor(self._loading, self._tried_out, version)
        except Exception as error:  # noqa: BLE001 any error of a model's code is the reason of the failure
            log.warning("version %s cannot be served:\n%s", version, redact.text(traceback.format_exc()))
            self._carry_out(self._router.failed(version, redact.text(f"{type(error).__name__}: {error}"[:2000])))
            return
        self._computing[version] = ThreadPoolExecutor(1, f"compute-{version}")
        self._batchers[version] = Batcher(
            model,
            self._computing[version],
            most_rows=self._limits.batch_rows,
            most_waiting=self._limits.queue_requests,
            on_batch=self._meter.batch,
        )
        self._platforms[version] = platform
        log.info("version %s is loaded", version)
        self._carry_out(self._router.loaded(version))

    def _tried_out(self, version: int) -> tuple[LoadedModel, str]:
        """Load a version and warm it up with a row of zeros, if it accepts that."""
        model, platform = self._load(version)
        if cold := try_out(model):
            text = redact.text(cold[:500])
            log.warning("version %s takes no row of zeros, so its first requests take longer: %s", version, text)
        return model, platform
