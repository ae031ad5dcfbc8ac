"""ASGI application of one replica: authorization, limits, both REST interfaces, metrics.

It uses ASGI directly: the overhead of a web framework per request would equal all of the work done here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from hopsml.cluster.shared.http_connections import admit_authenticated
from hopsml.core import extras
from hopsml.core.metrics import Counts, prometheus_text
from hopsml.model.flavors import contract
from hopsml.serving import bodies, metrics, receiving, request_log
from hopsml.serving.loaded_versions import Batcher, DeadlinePassed, QueueFull
from hopsml.serving.receiving import Receive, RequestRefused, Send, bad_request, check_token, not_found, receive_body
from hopsml.serving.routes import NoSuchVersion

if TYPE_CHECKING:
    from hopsml.serving.definitions import ServingLimits
    from hopsml.serving.loaded_versions import Arrays, LoadedVersions
    from hopsml.serving.request_log import RequestLog

log = logging.getLogger("hopsml.serving")

T = TypeVar("T")
_JSON, _TEXT = b"application/json", b"text/plain; version=0.0.4; charset=utf-8"
_OPEN = ("live", "ready")  # requested by load balancers, which have no token; the answers reveal nothing about models
_LONG = 256 << 10  # bytes of a body, or of arrays, above which a thread processes the JSON


@dataclass
class _Answer:
    """HTTP answer with its body and headers."""

    status: int
    body: bytes
    kind: bytes = _JSON
    version: int | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()


class RestApplication:
    """ASGI application that answers the requests to one model."""

    def __init__(
        self,
        name: str,
        holder: LoadedVersions,
        limits: ServingLimits,
        token: str,
        meter: metrics.ReplicaMeter,
        request_log: RequestLog | None = None,
        counts: Callable[[], Awaitable[Counts]] | None = None,
    ) -> None:
        """Initialize the application of one replica.

        Args:
            name: Name of the model in paths.
            holder: Loaded versions of the model.
            limits: Limits of requests.
            token: Token required for requests; "" for none.
            meter: Counts of this process.
            request_log: Log of requests; None to log none.
            counts: Function that returns the counts of all replicas; None for those of this process.
        """
        self._name, self._holder, self._limits, self._meter = name, holder, limits, meter
        self._token = token
        self._log = request_log
        self._counts = counts
        self._parsing = ThreadPoolExecutor(1, "parse")

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Handle one HTTP request; other ASGI events are ignored."""
        if scope["type"] != "http":
            return
        began = time.perf_counter()
        try:
            answer = await self._answer(scope, receive)
        except RequestRefused as refused:
            headers = tuple((name.encode(), value.encode()) for name, value in refused.headers.items())
            answer = _Answer(refused.status, bodies.dumps({"error": refused.text}), _JSON, refused.version, headers)
        except Exception as error:
            log.exception("a request failed")
            answer = _Answer(500, bodies.dumps({"error": f"{type(error).__name__}: {error}"[:1000]}))
        self._meter.count_answer(answer.version, answer.status, time.perf_counter() - began)
        await _send(send, answer, scope["method"] == "HEAD")

    async def _answer(self, scope: MutableMapping[str, Any], receive: Receive) -> _Answer:
        """Authorize a request and dispatch it by its path."""
        headers = dict(scope["headers"])
        target = receiving.parse_target(scope["method"], scope["path"])
        if target.what not in _OPEN:
            check_token(self._name, self._token, headers)
            admit_authenticated(scope)
        if target.what in ("predict", "infer"):
            self._check_name(target)
            deadline = asyncio.get_running_loop().time() + self._limits.deadline_s
            body = await self._body(headers, receive, deadline)
            return await self._predict(target, body, deadline)
        return await self._tell(target)

    def _check_name(self, target: receiving.RequestTarget) -> None:
        """Refuse a request for another model."""
        if target.model != self._name:
            raise not_found(f"there is no model '{target.model[:80]}' here; this serving has the model {self._name}")

    # ------------------------------------------------------------------------------------------ predictions

    async def _body(self, headers: dict[bytes, bytes], receive: Receive, deadline: float) -> bytes:
        """Return the body of a request within the limits."""
        if b"inference-header-content-length" in headers:
            raise bad_request("tensors as binary data are not supported; send them as JSON")
        return await receive_body(self._limits, headers, receive, deadline)

    async def _predict(self, target: receiving.RequestTarget, body: bytes, deadline: float) -> _Answer:
        """Compute a prediction and write it to the request log."""
        began = time.perf_counter()
        version = self._chosen(target)
        self._holder.begin_request(version)
        try:
            batcher = self._holder.batcher(version)
            asked = await self._asked(target, batcher, body)
            outputs: Arrays | None = None
            status = 500
            try:
                outputs = await self._computed(batcher, asked, deadline)
                status = 200
            except RequestRefused as refused:
                status = refused.status
                raise
            finally:
                if self._log is not None:
                    seconds = time.perf_counter() - began
                    said = (time.time(), version, asked.inputs, outputs, status, seconds, asked.id)
                    size = _size(asked.inputs, outputs or {})
                    self._log.write(await self._beside(size, partial(request_log.format_line, *said)))
            if target.what == "predict":
                answer = partial(bodies.encode_answer_v1, outputs, asked)
            else:
                answer = partial(bodies.encode_answer_v2, outputs, asked, self._name, version)
            return _Answer(200, await self._beside(_size(outputs), answer), version=version)
        except RequestRefused as refused:
            refused.version = version
            raise
        finally:
            self._holder.end_request(version)

    def _chosen(self, target: receiving.RequestTarget) -> int:
        """Return the version that answers a request."""
        try:
            return self._holder.choose_version(target.version, target.label)
        except NoSuchVersion as error:
            if not self._holder.is_ready:
                raise RequestRefused(503, f"{error}; try again soon", {"retry-after": "1"}) from None
            raise not_found(str(error)) from None

    async def _asked(self, target: receiving.RequestTarget, batcher: Batcher, body: bytes) -> bodies.InferenceRequest:
        """Parse the body of a request."""
        signature, missing = batcher.model.signature, contract.missing_replacements(batcher.model)
        named = {name: one.signature.inputs for name, one in contract.signatures_of(batcher.model).items()}

        def parse() -> bodies.InferenceRequest:
            if target.what == "predict":
                return bodies.parse_v1(body, signature.inputs, missing, named)
            return bodies.parse_v2(body, signature, missing)

        return await self._beside(len(body), parse)

    async def _beside(self, size: int, work: Callable[[], T]) -> T:
        """Do work at once, or on a thread if its size would delay the replica's heartbeats."""
        if size < _LONG:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._parsing, work)

    async def _computed(self, batcher: Batcher, asked: bodies.InferenceRequest, deadline: float) -> Arrays:
        """Compute a prediction with its deadline; errors become HTTP errors."""
        try:
            return await batcher.signature_batcher(asked.signature).predict(asked.inputs, deadline)
        except QueueFull as error:
            raise RequestRefused(429, f"{error}; try again, or start more replicas", {"retry-after": "1"}) from None
        except DeadlinePassed as error:
            raise RequestRefused(
                503, f"{error} ({self._limits.deadline_s:g} s); try again, or start more replicas", {"retry-after": "1"}
            ) from None
        except contract.RefusedValuesError as error:
            raise bad_request(str(error)[:2000]) from error
        except Exception as error:
            log.warning("the model failed: %s: %s", type(error).__name__, error)
            raise RequestRefused(500, f"the model failed: {type(error).__name__}: {error}"[:2000]) from error

    # ------------------------------------------------------------------------------------------ information

    async def _tell(self, target: receiving.RequestTarget) -> _Answer:
        """Answer a request for health, metrics or metadata."""
        what, holder = target.what, self._holder
        if what == "live":
            return _Answer(200, bodies.dumps({"live": True}))
        if what == "ready":
            return _Answer(200 if holder.is_ready else 503, bodies.dumps({"ready": holder.is_ready}))
        if what == "server":
            return _Answer(200, bodies.dumps({"name": "hopsml", "version": extras.version(), "extensions": []}))
        if what == "metrics":
            counts = self._meter.counts if self._counts is None else await self._counts()
            return _Answer(200, prometheus_text(counts, metrics.FAMILIES).encode(), _TEXT)
        self._check_name(target)
        if what == "status":
            return self._versions(target)
        version = self._chosen(target)
        if what == "model_ready":
            return _Answer(200, bodies.dumps({"name": self._name, "ready": True}))
        model = holder.batcher(version).model
        signature = model.signature
        if what == "metadata":
            named = {name: one.signature for name, one in contract.signatures_of(model).items()}
            signatures = {bodies.SIGNATURE: signature, **named}
            return _Answer(200, bodies.dumps(bodies.metadata_v1(self._name, version, signatures)))
        versions = [one for one, state in holder.versions.items() if state == "AVAILABLE"]
        platform = holder.platform(version)
        return _Answer(200, bodies.dumps(bodies.metadata_v2(self._name, versions, platform, signature)))

    def _versions(self, target: receiving.RequestTarget) -> _Answer:
        """Answer a request for the states of versions, in TensorFlow Serving's form."""
        states = self._holder.versions
        if target.version is not None or target.label is not None:
            chosen = self._chosen(target)
            states = {chosen: states[chosen]}
        shown = [
            {"version": str(one), "state": state, "status": {"error_code": "OK", "error_message": ""}}
            for one, state in sorted(states.items(), reverse=True)
        ]
        return _Answer(200, bodies.dumps({"model_version_status": shown}))

    def close(self) -> None:
        """Shut down the thread for long bodies."""
        self._parsing.shutdown(wait=False)


def _size(*arrays: Arrays) -> int:
    """Return the total size of arrays in bytes."""
    return sum(array.nbytes for some in arrays for array in some.values())


async def _send(send: Send, answer: _Answer, without_body: bool) -> None:
    """Send an answer by ASGI."""
    headers = [(b"content-type", answer.kind), (b"content-length", b"%d" % len(answer.body)), *answer.headers]
    if answer.version is not None:
        headers.append((b"model-version", b"%d" % answer.version))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if without_body else answer.body})
