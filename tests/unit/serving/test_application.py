"""Tests of both REST interfaces in process: answers, refusals and messages."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from hopsml.model.description import ModelDescription
from hopsml.model.flavors import sklearn
from hopsml.serving import bodies
from hopsml.serving.application import RestApplication
from hopsml.serving.definitions import ServingLimits
from hopsml.serving.loaded_versions import LoadedVersions
from hopsml.serving.metrics import ReplicaMeter
from hopsml.serving.request_log import RequestLog
from hopsml.serving.routes import Route, RouteRefused, RouteTookEffect
from tests.unit.serving.models import Scaled, Two

pytestmark = pytest.mark.fast
TOKEN = "correct-horse-battery-staple"
ONES = {"instances": [[1, 1, 1, 1]]}
Ask = Callable[[httpx.AsyncClient], Awaitable[Any]]


class Server:
    """Application over models by version; ``outcomes`` lists the outcomes of routes."""

    def __init__(self, models: dict[int, Any], folder: Path | None = None, **limits: Any) -> None:
        self.models, self.outcomes = models, list[RouteTookEffect | RouteRefused]()
        self.meter = ReplicaMeter()
        self._limits = ServingLimits(**limits)
        self._log = None if folder is None else RequestLog(folder, "0")

    def play(self, ask: Ask, route: Route | None = None, token: str = TOKEN) -> Any:
        return asyncio.run(self._play(ask, route or Route(1, default=min(self.models)), token))

    async def _play(self, ask: Ask, route: Route, token: str) -> Any:
        self.loaded_versions = LoadedVersions(self._load, self._limits, self.meter, self.outcomes.append)
        application = RestApplication("digits", self.loaded_versions, self._limits, TOKEN, self.meter, self._log)
        try:
            if route.number:
                self.loaded_versions.switch_to(route)
                await self.until(1)
            transport = httpx.ASGITransport(application)
            headers = {"authorization": f"Bearer {token}"} if token else {}
            async with httpx.AsyncClient(transport=transport, base_url="http://server", headers=headers) as client:
                return await ask(client)
        finally:
            self.loaded_versions.close()
            application.close()
            if self._log is not None:
                self._log.close()

    async def until(self, count: int) -> None:
        while len(self.outcomes) < count:
            await asyncio.sleep(0.001)

    def _load(self, version: int) -> tuple[Any, str]:
        if isinstance(self.models[version], Exception):
            raise self.models[version]
        return self.models[version], "numpy"


def answer_to(path: str, content: Any = None, model: Any = None, **options: Any) -> httpx.Response:
    """Return the answer to one request."""

    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        if content is None:
            return await client.get(path)
        body = {"content": content} if isinstance(content, bytes) else {"json": content}
        return await client.post(path, **body)

    token = options.pop("token", TOKEN)
    return Server({3: model or Scaled()}, **options).play(ask, token=token)


def refusal(path: str, content: Any, model: Any = None, **options: Any) -> tuple[int, str]:
    found = answer_to(path, content, model, **options)
    return found.status_code, found.json()["error"]


V1, V2 = "/v1/models/digits", "/v2/models/digits"


@pytest.mark.parametrize(
    ("path", "content", "answer"),
    [
        (":predict", ONES, {"predictions": [[2, 2, 2, 2]]}),
        (":predict", {"signature_name": "serving_default", **ONES}, {"predictions": [[2, 2, 2, 2]]}),
        (":predict", {"instances": [{"x": [1, 2, 3, 4.5]}]}, {"predictions": [[2, 4, 6, 9]]}),
        (":predict", {"inputs": [[1, 1, 1, 1]]}, {"outputs": [[2, 2, 2, 2]]}),
        (":predict", {"inputs": {"x": [[1, 1, 1, 1]]}}, {"outputs": [[2, 2, 2, 2]]}),
        ("/versions/3:predict", ONES, {"predictions": [[2, 2, 2, 2]]}),
        ("/labels/stable:predict", ONES, {"predictions": [[2, 2, 2, 2]]}),
    ],
)
def test_predict_request_in_the_form_of_tensorflow_serving_is_answered(path: str, content: Any, answer: Any) -> None:
    found = answer_to(V1 + path, content)
    assert (found.status_code, found.json()) == (200, answer)
    assert found.headers["model-version"] == "3"


def test_hanging_version_does_not_block_other_versions() -> None:
    """Version 1 hangs in a request and 2 while it is loaded; 3 answers."""
    hanging, unloadable = Scaled(), Scaled()
    server = Server({1: hanging, 2: unloadable, 3: Scaled(5.0)}, deadline_s=0.2)

    async def ask(client: httpx.AsyncClient) -> list[int]:
        hanging.gate.clear()
        unloadable.gate.clear()
        hung = (await client.post(f"{V1}:predict", json=ONES)).status_code
        server.loaded_versions.switch_to(Route(2, default=2))
        await asyncio.to_thread(unloadable.entered.wait)
        server.loaded_versions.switch_to(Route(3, default=3))
        await server.until(3)
        found = (await client.post(f"{V1}:predict", json=ONES)).json()["predictions"][0]
        hanging.gate.set()
        unloadable.gate.set()
        return [hung, *found]

    assert server.play(ask) == [503, 5, 5, 5, 5]
    assert server.outcomes[1:] == [
        RouteRefused(2, "a later request has replaced this one: route 3"),
        RouteTookEffect(3),
    ]


def test_several_inputs_and_outputs_are_accepted_by_rows_and_by_columns() -> None:
    rows = [{"a": 1, "b": 2, "text": "x"}, {"a": 3, "b": 4, "text": {"b64": "eQ=="}}]
    found = answer_to(f"{V1}:predict", {"instances": rows}, Two())
    assert found.json() == {"predictions": [{"sum": 3, "upper": "X"}, {"sum": 7, "upper": "Y"}]}
    columns = {"a": [1, 3], "b": [2, 4], "text": ["x", "y"]}
    assert answer_to(f"{V1}:predict", {"inputs": columns}, Two()).json() == {
        "outputs": {"sum": [3, 7], "upper": ["X", "Y"]}
    }


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "the body is not JSON"),
        (b'{"instances": [[NaN, 1, 1, 1]]}', "JSON has neither NaN nor Infinity"),
        (gzip.compress(b"{}", mtime=0), "the body is compressed; send uncompressed JSON"),
        (b"[1]", "the body must be a JSON object"),
        ({}, "either instances (a list of rows) or inputs"),
        ({**ONES, "inputs": []}, "either instances (a list of rows) or inputs"),
        ({**ONES, "signature": ""}, "the key 'signature' is unknown"),
        ({**ONES, "signature_name": "train"}, "no signature_name='train'; use one of serving_default, or omit it"),
        ({"instances": []}, "instances must be a list with at least one row"),
        ({"instances": [[1, 2, 3]]}, "input 'x': it has the shape (1, 3), but the model takes float32 (any, 4)"),
        (
            {"instances": [[1, 2, 3, 4], [1]]},
            "input 'x': its rows differ in shape, but the model takes float32 (any, 4)",
        ),
        ({"instances": [["a", "b", "c", "d"]]}, "input 'x': it contains text, but the model takes numbers (float32)"),
        (
            {"instances": [[1, None, 3, 4]]},
            "input 'x': it contains null, which NaN becomes in JSON, but the model takes numbers (float32)",
        ),
        ({"instances": [[1, 1e300, 3, 4]]}, "input 'x': it contains a number outside of the range of float32"),
        ({"instances": [{"y": [1, 1, 1, 1]}]}, "'y' is not an input of the model; "),
        ({"instances": [{"x": [1, 1, 1, 1]}, {"z": 1}]}, "instances[1] must be an object with x, like the first row"),
        ({"inputs": {}}, "input 'x' is missing; the model takes x (float32 (any, 4))"),
    ],
)
def test_invalid_predict_request_is_refused_with_the_reason(content: Any, words: str) -> None:
    status, text = refusal(f"{V1}:predict", content)
    assert status == 400 and words in text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            {"instances": [1, 2]},
            "instances: the model has 3 inputs, so each value needs the name of its input: a, b, text",
        ),
        ({"instances": [{"a": 1, "b": 2}]}, "input 'text' is missing"),
        ({"inputs": {"a": [1], "b": [2, 3], "text": ["x"]}}, "input 'b' has 2 rows, but 'a' has 1"),
        (
            {"inputs": {"a": [1.5], "b": [2], "text": ["x"]}},
            "input 'a': it contains numbers, but the model takes whole numbers (int32)",
        ),
        (
            {"inputs": {"a": [2**40], "b": [2], "text": ["x"]}},
            "input 'a': its values from 1099511627776 to 1099511627776 do not fit into int32",
        ),
        ({"inputs": {"a": [1], "b": [2], "text": [7]}}, "input 'text': it must contain text, but contains 7"),
        ({"inputs": {"a": [1], "b": [2], "text": [{"b64": "?"}]}}, "the value is not base64"),
    ],
)
def test_invalid_request_with_several_inputs_is_refused_with_the_reason(content: Any, words: str) -> None:
    status, text = refusal(f"{V1}:predict", content, Two())
    assert status == 400 and words in text


def infer(**changes: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 1, 1, 1], **changes}]}


def test_open_inference_request_is_answered() -> None:
    answer = {"name": "y", "datatype": "FP32", "shape": [1, 4], "data": [2, 2, 2, 2]}
    expected = {"model_name": "digits", "model_version": "3", "outputs": [answer]}
    assert answer_to(f"{V2}/infer", infer()).json() == expected
    assert answer_to(f"{V2}/versions/3/infer", {**infer(data=[[1, 1, 1, 1]]), "id": "7"}).json() == {
        **expected,
        "id": "7",
    }
    two = Scaled(outputs=("y", "total"))
    total = answer_to(f"{V2}/infer", {**infer(), "outputs": [{"name": "total"}]}, two).json()["outputs"]
    assert total == [{"name": "total", "datatype": "FP32", "shape": [1], "data": [8]}]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"inputs": [{"name": "x"}]}, "inputs[0] has no shape"),
        ({"inputs": 3}, "inputs must be a list of objects"),
        ({}, "input 'x' is missing"),
        ({"inputs": infer()["inputs"] * 2}, "input 'x' was sent twice; send each input once"),
        (infer(datatype="FLOAT"), "the datatype 'FLOAT' is not one of BOOL"),
        (infer(shape=[1, -4]), "its shape must be a list of whole numbers"),
        (infer(data=[1, 1]), "its data have 2 values, but its shape [1, 4] has 4"),
        (infer(data="1111"), "its data must be a list"),
        (infer(shape=[2**32, 2**32], data=[]), f"its shape [4294967296, 4294967296] has {2**64}"),
        (infer(shape=[2**63 + 1, 1]), "its data have 4 values"),
        (infer(shape=[1] * 70, data=[1]), "its shape has 70 dimensions, but the model takes float32 (any, 4)"),
        (infer(shape=[0, 2**63], data=[]), "it has no rows"),
        (infer(shape=[2, 2]), "it has the shape (2, 2), but the model takes float32 (any, 4)"),
        ({**infer(), "outputs": [{"name": "z"}]}, "'z' is not an output of the model; its outputs are y"),
    ],
)
def test_invalid_open_inference_request_is_refused_with_the_reason(content: Any, words: str) -> None:
    status, text = refusal(f"{V2}/infer", content)
    assert status == 400 and words in text


def test_metadata_and_status_are_returned_in_both_protocols() -> None:
    signature = answer_to(f"{V1}/metadata").json()["metadata"]["signature_def"]["signature_def"]["serving_default"]
    dims = [{"size": "-1", "name": ""}, {"size": "4", "name": ""}]
    assert signature["inputs"]["x"]["dtype"] == "DT_FLOAT" and signature["inputs"]["x"]["tensor_shape"]["dim"] == dims
    status = {"error_code": "OK", "error_message": ""}
    shown = {"model_version_status": [{"version": "3", "state": "AVAILABLE", "status": status}]}
    assert (
        answer_to(V1).json() == answer_to(f"{V1}/versions/3").json() == answer_to(f"{V1}/labels/stable").json() == shown
    )
    assert answer_to(V2).json() == {
        "name": "digits", "versions": ["3"], "platform": "numpy",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}],
    }  # fmt: skip
    assert answer_to(f"{V2}/ready").json() == {"name": "digits", "ready": True}
    assert answer_to("/v2").json()["name"] == "hopsml"


@pytest.mark.parametrize(
    ("path", "content", "status", "words"),
    [
        (
            "/v1/models/didgits:predict",
            ONES,
            404,
            "there is no model 'didgits' here; this serving has the model digits",
        ),
        (f"{V1}/versions/9:predict", ONES, 404, "version 9 is not served; the served versions are 3"),
        (f"{V1}/versions/x:predict", ONES, 404, "a version must be a whole number"),
        (f"{V1}/labels/best:predict", ONES, 404, "no version has the label 'best'; there are: stable"),
        (f"{V1}:classify", ONES, 404, ":classify does not exist"),
        ("/predict", ONES, 404, "/predict does not exist; the address of a model is /v1/models/NAME:predict"),
        (f"{V1}:predict", None, 405, "needs the method POST, not GET"),
    ],
)
def test_unknown_model_version_label_or_address_is_refused(path: str, content: Any, status: int, words: str) -> None:
    found = answer_to(path, content)
    assert found.status_code == status and words in found.json()["error"]


def test_token_is_required_except_for_health_checks() -> None:
    for token in ("", "wrong", f"{TOKEN}x"):
        found = answer_to(f"{V1}:predict", ONES, token=token)
        assert found.status_code == 401 and found.headers["www-authenticate"] == "Bearer"
        assert answer_to("/metrics", token=token).status_code == 401
        assert answer_to("/v2/health/live", token=token).json() == {"live": True}
        assert answer_to("/v2/health/ready", token=token).json() == {"ready": True}


def test_request_body_is_bounded_with_and_without_a_declared_length() -> None:
    body = b'{"instances": [[' + b"1," * 1000 + b"1]]}"

    async def without_length() -> AsyncIterator[bytes]:
        for begin in range(0, len(body), 100):
            yield body[begin : begin + 100]

    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        path = f"{V1}:predict"
        return [await client.post(path, content=body), await client.post(path, content=without_length())]

    for found in Server({3: Scaled()}, body_bytes=999).play(ask):
        assert found.status_code == 413 and "the request is larger than 999 bytes" in found.json()["error"]


def test_request_before_the_first_version_is_loaded_gets_retry_after() -> None:
    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        return [await client.get("/v2/health/ready"), await client.post(f"{V1}:predict", json=ONES)]

    ready, predicted = Server({3: Scaled()}).play(ask, Route(0, default=3))
    assert ready.status_code == 503 and ready.json() == {"ready": False}
    assert predicted.status_code == 503 and predicted.headers["retry-after"] == "1"


def test_model_error_and_full_queue_and_missed_deadline_are_reported() -> None:
    status, text = refusal(f"{V1}:predict", {"instances": [[-1, 1, 1, 1]]})
    assert (status, text) == (500, "the model failed: ValueError: cannot compute -1")
    status, text = refusal(f"{V1}:predict", {"instances": [[-2, 1, 1, 1]]})
    assert (status, text) == (500, "the model failed: RuntimeError: its code called sys.exit(3)")
    model = Scaled()
    server = Server({3: model}, queue_requests=1)

    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        model.gate.clear()
        model.entered.clear()
        computing = asyncio.create_task(client.post(f"{V1}:predict", json=ONES))
        await asyncio.to_thread(model.entered.wait, 30)
        waits = asyncio.create_task(client.post(f"{V1}:predict", json=ONES))
        while not server.loaded_versions.waiting_count:
            await asyncio.sleep(0)
        too_many = await client.post(f"{V1}:predict", json=ONES)
        model.gate.set()
        return [await computing, await waits, too_many]

    computing, waits, too_many = server.play(ask)
    assert (computing.status_code, waits.status_code, too_many.status_code) == (200, 200, 429)
    assert too_many.headers["retry-after"] == "1"
    late = answer_to(f"{V1}:predict", ONES, deadline_s=0.0)
    assert late.status_code in (408, 503)


def test_version_change_and_canary_fail_no_request() -> None:
    """Requests are sent continuously; each is answered by a loaded version."""
    server = Server({3: Scaled(2), 4: Scaled(3), 5: ValueError("broken file"), 6: Scaled(4)})
    answered: list[tuple[int, str, float]] = []
    over = asyncio.Event()

    async def load(client: httpx.AsyncClient) -> None:
        while not over.is_set():
            found = await client.post(f"{V1}:predict", json=ONES)
            answered.append(
                (found.status_code, found.headers.get("model-version", ""), found.json()["predictions"][0][0])
            )

    async def ask(client: httpx.AsyncClient) -> None:
        clients = [asyncio.create_task(load(client)) for _ in range(4)]
        for count, route in enumerate(
            (Route(2, default=4), Route(3, default=5), Route(4, default=4, canary=6, share=0.25)), start=2
        ):
            seen = len(answered)
            server.loaded_versions.switch_to(route)
            await server.until(count)
            while len(answered) < seen + 40:
                await asyncio.sleep(0)
        over.set()
        await asyncio.gather(*clients)

    server.play(ask)
    assert {(status, version, value) for status, version, value in answered} == {
        (200, "3", 2.0), (200, "4", 3.0), (200, "6", 4.0)
    }  # fmt: skip
    assert server.outcomes == [
        RouteTookEffect(1),
        RouteTookEffect(2),
        RouteRefused(3, "ValueError: broken file"),
        RouteTookEffect(4),
    ]
    assert server.loaded_versions.versions == {4: "AVAILABLE", 6: "AVAILABLE"}


def test_metrics_count_requests_by_version_and_status() -> None:
    async def ask(client: httpx.AsyncClient) -> str:
        for content in (ONES, ONES, {}):
            await client.post(f"{V1}:predict", json=content)
        return (await client.get("/metrics")).text

    found = Server({3: Scaled()}).play(ask)
    assert 'hopsml_requests_total{version="3",status="200"} 2' in found
    assert 'hopsml_requests_total{version="3",status="400"} 1' in found
    assert 'hopsml_batch_rows_bucket{le="1"} 2' in found and "hopsml_batch_rows_count 2" in found
    assert "# TYPE hopsml_request_seconds histogram" in found


def test_requests_are_logged_with_their_answers(tmp_path: Path) -> None:
    import json

    async def ask(client: httpx.AsyncClient) -> None:
        await client.post(f"{V1}:predict", json=ONES)
        await client.post(f"{V2}/infer", json={**infer(data=[-1, 1, 1, 1]), "id": "b"})

    Server({3: Scaled()}, tmp_path).play(ask)
    (segment,) = tmp_path.iterdir()
    first, second = map(json.loads, segment.read_text().splitlines())
    assert first["inputs"] == {"x": [[1, 1, 1, 1]]} and first["outputs"] == {"y": [[2, 2, 2, 2]]}
    assert (first["version"], first["status"]) == (3, 200)
    assert (second["id"], second["outputs"], second["status"]) == ("b", None, 500)


def test_long_answers_are_serialized_outside_the_event_loop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Otherwise a replica sends no heartbeat for so long that its supervisor ends it, and so the next one."""
    threads: list[str] = []

    def noted(content: Any) -> bytes:
        threads.append(threading.current_thread().name)
        return written(content)

    written = bodies.dumps
    monkeypatch.setattr(bodies, "dumps", noted)
    rows = [[float(number), 1.0, 1.0, 1.0] for number in range(20_000)]

    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post(f"{V1}:predict", json={"instances": rows})

    found = Server({3: Scaled(outputs=("y", "total"))}, folder=tmp_path / "log").play(ask).json()["predictions"]
    assert len(found) == len(rows) and found[-1] == {"y": [39998.0, 2.0, 2.0, 2.0], "total": 40004.0}
    assert len(threads) > 3 and all(name.startswith("parse") for name in threads)


# ---------------------------------------------------------------------------------------------- values that are missing


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Return an estimator that accepts missing ages, towns and flags but no missing ``seen``, and its served form."""
    import pandas as pd
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    table = pd.DataFrame(
        {
            "age": [20.0, None, 40.0, 60.0],
            "rank": [1, 2, 3, 1],
            "town": ["oslo", "rome", float("nan"), "rome"],
            "flag": [True, False, True, False],
            "seen": ["a", "b", "a", "b"],
        }
    )
    parts = [
        ("numbers", SimpleImputer(), ["age", "rank"]),
        ("texts", OneHotEncoder(handle_unknown="ignore"), ["town", "flag"]),
        ("seen", OneHotEncoder(), ["seen"]),
    ]
    trained = make_pipeline(ColumnTransformer(parts), LogisticRegression()).fit(table, [0, 1, 0, 1])
    return trained, served(trained, tmp_path_factory.mktemp("people"), table)


def served(trained: Any, folder: Path, example: Any) -> Any:
    saved = sklearn.save(trained, folder, example)
    description = ModelDescription(
        "people", 3, "sklearn", datetime.now(UTC), artifacts=saved.artifacts, signature=saved.signature
    )
    return sklearn.load(folder, description)


ROW = {"age": 30.0, "rank": 2, "town": "oslo", "flag": True, "seen": "a"}


@pytest.mark.parametrize(
    "change", [{}, *({name: None} for name in ROW if name != "seen"), {"town": "paris"}, dict.fromkeys(list(ROW)[:4])]
)
def test_null_is_a_missing_value_for_an_estimator(people: tuple[Any, Any], change: dict[str, Any]) -> None:
    import pandas as pd

    trained, model = people
    row = ROW | change
    plain = {"age": float("nan"), "rank": float("nan"), "town": float("nan"), "flag": None}
    rows = pd.DataFrame([{name: plain[name] if one is None else one for name, one in row.items()}, ROW])
    for name in ("town", "flag"):
        rows[name] = rows[name].astype(object)
    wanted = [pytest.approx(one) for one in trained.predict_proba(rows).tolist()]
    by_rows = answer_to(f"{V1}:predict", {"instances": [row, ROW]}, model)
    assert [one["predict_proba"] for one in by_rows.json()["predictions"]] == wanted
    by_columns = answer_to(f"{V1}:predict", {"inputs": {name: [row[name], ROW[name]] for name in ROW}}, model)
    assert by_columns.json()["outputs"]["predict_proba"] == wanted
    alone = answer_to(f"{V1}:predict", {"instances": [row]}, model)
    assert alone.json()["predictions"][0]["predict_proba"] == wanted[0]
    kinds = {"age": "FP64", "rank": "INT64", "town": "BYTES", "flag": "BOOL", "seen": "BYTES"}
    inputs = [{"name": name, "shape": [2], "datatype": kinds[name], "data": [row[name], ROW[name]]} for name in ROW]
    outputs = answer_to(f"{V2}/infer", {"inputs": inputs}, model).json()["outputs"]
    flat = next(one["data"] for one in outputs if one["name"] == "predict_proba")
    assert flat == pytest.approx([value for one in trained.predict_proba(rows) for value in one])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"instances": [ROW, {**ROW, "seen": None}]}, "input 'seen' has a missing or infinite value in row 1"),
        ({"instances": [{**ROW, "seen": "c"}]}, "does not accept the values of the input 'seen': ValueError"),
        ({"instances": [{**ROW, "town": 5}]}, "input 'town': it must contain text, but contains 5"),
        (
            msgspec.json.encode({"instances": [{**ROW, "town": msgspec.Raw(b"[" * 1000 + b"]" * 1000)}]}),
            "input 'town': its rows differ in shape",
        ),
        (
            {"instances": [{**ROW, "town": None}, {**ROW, "town": 5}]},
            "input 'town': it must contain text, but contains 5",
        ),
        (
            {"instances": [{**ROW, "age": None}, {**ROW, "age": "x"}]},
            "input 'age': it contains text, but the model takes numbers",
        ),
        (
            {"instances": [{**ROW, "rank": None}, {**ROW, "rank": 1.5}]},
            "input 'rank': it contains numbers, but the model takes whole",
        ),
        (
            {"instances": [{**ROW, "flag": None}, {**ROW, "flag": 1}]},
            "input 'flag': it contains whole numbers, but the model takes",
        ),
        ({"instances": [{**ROW, "more": 1}]}, "'more' is not an input of the model"),
        ({"instances": [{name: ROW[name] for name in ROW if name != "age"}]}, "input 'age' is missing"),
        ({"inputs": {name: [] for name in ROW}}, "it has no rows"),
        (b'{"instances": [{"age": Infinity}]}', "JSON has neither NaN nor Infinity"),
        (b'{"instances": [{"age": 1e999}]}', "the body is not JSON: number is infinity"),
    ],
)
def test_values_an_estimator_does_not_accept_are_a_client_error(
    people: tuple[Any, Any], content: Any, words: str
) -> None:
    status, text = refusal(f"{V1}:predict", content, people[1])
    assert status == 400 and words in text, text


def test_null_in_lists_of_numbers_is_a_missing_value(tmp_path: Path) -> None:
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LinearRegression
    from sklearn.pipeline import make_pipeline

    rows, targets = [[1.0, 2.0], [3.0, 5.0], [5.0, 7.0]], [1.0, 2.0, 3.5]
    filled = make_pipeline(SimpleImputer(), LinearRegression()).fit(rows, targets)
    found = answer_to(f"{V1}:predict", {"instances": [[None, 2], [3, None]]}, served(filled, tmp_path, rows)).json()
    nan = float("nan")
    assert found["predictions"] == pytest.approx(filled.predict([[nan, 2.0], [3.0, nan]]).tolist())
    strict = served(LinearRegression().fit(rows, targets), tmp_path, rows)
    status, text = refusal(f"{V1}:predict", {"instances": [[1, 2], [3, None]]}, strict)
    assert status == 400 and "input 'X' has a missing or infinite value in row 1" in text
    status, text = refusal(f"{V1}:predict", {"instances": [None, [1, 2]]}, strict)
    assert status == 400 and "input 'X': its rows differ in shape" in text


def test_null_in_text_is_refused_with_the_name_of_its_input(tmp_path: Path) -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    texts = ["good day", "bad day"]
    model = served(make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, [1, 0]), tmp_path, texts)
    status, text = refusal(f"{V1}:predict", {"instances": ["good", None]}, model)
    assert status == 400 and "input 'X' has a missing or infinite value in row 1" in text
    for values in (["a", None], [None, 5], ["a", 5]):
        status, text = refusal(f"{V1}:predict", {"inputs": {"a": [1, 2], "b": [1, 2], "text": values}}, Two())
        assert status == 400 and "input 'text': it must contain text, but contains " in text
