"""The versions that one replica holds: carries out what the router decides, each with the thread that computes it."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from hopsml import redact
from hopsml.serving.batching import Batcher
from hopsml.serving.routes import Load, Route, RouteAction, Router, RouteRefused, Turned, Unload
from hopsml.serving.trying import try_out

if TYPE_CHECKING:
    from hopsml.model.flavors.contract import LoadedModel
    from hopsml.serving.limits import ServingLimits
    from hopsml.serving.metrics import Meter

log = logging.getLogger("hopsml.serving")

Loader = Callable[[int], "tuple[LoadedModel, str]"]  # of a version's number: the model, and its platform's name


class VersionHolder:
    """``load`` gives a version's model; it is called in a thread of its own, while earlier versions answer.

    ``tell``: called when a route is followed, or is not, and why.
    """

    def __init__(
        self, load: Loader, limits: ServingLimits, meter: Meter, tell: Callable[[Turned | RouteRefused], None]
    ) -> None:
        self._load, self._limits, self._meter, self._tell = load, limits, meter, tell
        self._router = Router()
        self._batchers: dict[int, Batcher] = {}
        self._platforms: dict[int, str] = {}
        self._computing: dict[int, ThreadPoolExecutor] = {}  # one a version: one that hangs holds no other up
        self._loading = ThreadPoolExecutor(1, "load")
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_ready(self) -> bool:
        """Whether a version answers."""
        return self._router.route is not None

    @property
    def is_loading(self) -> bool:
        """Whether a version is being loaded, which may keep Python from everything else for seconds."""
        return bool(self._tasks)

    @property
    def versions(self) -> dict[int, str]:
        """As ``Router.versions``."""
        return self._router.versions

    @property
    def waiting(self) -> int:
        """Requests in queues."""
        return sum(len(batcher) for batcher in self._batchers.values())

    def follow(self, route: Route) -> None:
        """Go over to this route as soon as its versions are loaded.

        What is still being loaded for an earlier one may hang, so it is not waited for.
        """
        if self._tasks:
            self._loading.shutdown(wait=False)
            self._loading = ThreadPoolExecutor(1, "load")
        self._carry_out(self._router.ask(route))

    def choose(self, version: int | None, label: str | None) -> int:
        """As ``Router.choose``."""
        return self._router.choose(version, label)

    def batcher(self, version: int) -> Batcher:
        """Of a version that was chosen."""
        return self._batchers[version]

    def platform(self, version: int) -> str:
        """What the version was made with."""
        return self._platforms[version]

    def began(self, version: int) -> None:
        """A request is in this version."""
        self._router.began(version)

    def ended(self, version: int) -> None:
        """A request was answered by this version."""
        self._carry_out(self._router.ended(version))

    def close(self) -> None:
        """End the threads; what computes is not waited for."""
        for executor in (*self._computing.values(), self._loading):
            executor.shutdown(wait=False, cancel_futures=True)

    def _carry_out(self, actions: Iterable[RouteAction]) -> None:
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
        loop = asyncio.get_running_loop()
        try:
            model, platform = await loop.run_in_executor(self._loading, self._tried_out, version)
        except Exception as error:  # noqa: BLE001 whatever a model's code raises is why it cannot be served
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
        """Loaded, and warm before any request comes to it, where zeros are something that it takes."""
        model, platform = self._load(version)
        if cold := try_out(model):
            text = redact.text(cold[:500])
            log.warning("version %s takes no row of zeros, so its first requests take longer: %s", version, text)
        return model, platform
