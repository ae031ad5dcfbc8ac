"""Tests of the whole API with random calls: documented, forbidden and unknown ones."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
import requests
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from hopsml.service.rest.limited import Limits, Rate
from hopsml.service.rest.service_application import api_application, service_application
from hopsml.service.store.accounts import Role
from tests.helpers.service.served import Served

pytestmark = pytest.mark.local

EXAMPLES = 100  # of each operation, and of each kind
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH")
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "allow_header_conformance",
)


class FuzzClient:
    """Client of a service without rate limits."""

    def __init__(self, served: Served) -> None:
        self.streams, limits = served.streams, Limits(0.0, 0.0, Rate(0.0, 0.0))
        self._app = service_application(served.jobs, served.project, self.streams, "x", limits)
        self.token = served.tokens[Role.ADMIN]

    def ask(
        self, method: str, url: str, headers: Any = (), content: Any = None, token: str | None = ""
    ) -> httpx.Response:
        """Send one request; ``token`` None sends none."""
        sent_headers = dict(headers)
        if token is not None:
            sent_headers["authorization"] = f"Bearer {token or self.token}"

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://service") as asking:
                return await asking.request(method, url, headers=sent_headers, content=content)

        answer = asyncio.run(ask())
        if answer.status_code >= 400 and method != "HEAD":
            problem = json.loads(answer.content)
            assert set(problem) == {"error", "remedy"} and problem["error"], (method, url, answer.status_code, problem)
        return answer


@pytest.fixture
def client(served: Served) -> FuzzClient:
    assert served.submit().status_code == 201  # digits-1
    return FuzzClient(served)


def _methods_by_path() -> dict[str, set[str]]:
    """Return the methods of each address."""
    return {
        path: {method.upper() for method in methods} for path, methods in api_application().openapi()["paths"].items()
    }


def test_request_without_a_valid_token_is_refused_at_every_address(client: FuzzClient) -> None:
    for path, methods in _methods_by_path().items():
        for method in methods:
            assert client.ask(method, path.replace("{job}", "1"), token=None).status_code == 401, path
    assert client.ask("GET", "/api/v1/jobs", token="nonsense").status_code == 401


def test_method_that_an_address_does_not_have_is_refused_with_the_allowed_ones(client: FuzzClient) -> None:
    for path, methods in _methods_by_path().items():
        for method in sorted(set(METHODS) - methods):
            answer = client.ask(method, path.replace("{job}", "1"))
            assert answer.status_code == 405, (method, path, answer.text)
            assert set(answer.headers["allow"].split(", ")) - {"HEAD"} == methods, path
            assert method in answer.json()["error"] and answer.headers["allow"] in answer.json()["remedy"]
    for path in ("/api/v1/nothing", "/api/v1/jobs/", "/api/nothing", "/api/v1/jobs/1/nothing", "/nothing"):
        for method in ("GET", "POST"):
            assert client.ask(method, path).status_code in (404, 405), path


BROKEN = (b"", b"{", b"\xff\xfe", b"null", b"[]", b'"text"', b"[" * 100_000, b'{"a": 1e999}', b'{"\\ud800": 1}', b"NaN")


def test_unparsable_body_is_refused_at_every_address(client: FuzzClient) -> None:
    with_body = [
        (method.upper(), path)
        for path, methods in api_application().openapi()["paths"].items()
        for method, operation in methods.items()
        if operation.get("requestBody", {}).get("content", {}).get("application/json")
    ]
    assert len(with_body) > 5
    for method, path in with_body:
        for content in BROKEN:
            headers = {"content-type": "application/json"}
            answer = client.ask(method, path.replace("{job}", "1").replace("{name}", "name"), headers, content)
            assert 400 <= answer.status_code < 500, (path, content[:20], answer.status_code)


@pytest.mark.variant
@pytest.mark.parametrize("kind", ["positive", "negative"])
def test_random_requests_conform_to_the_openapi_document(client: FuzzClient, kind: str) -> None:
    import schemathesis
    from schemathesis.checks import CHECKS as KNOWN
    from schemathesis.checks import load_all_checks
    from schemathesis.core.parameters import ParameterLocation

    load_all_checks()
    asyncio.run(client.streams.end())  # what can be followed ends at once: a request would not come to its end
    checks, mode = KNOWN.get_by_names(CHECKS), schemathesis.GenerationMode(kind)
    rejected = KNOWN.get_by_names(["negative_data_rejection"])
    problems: list[str] = []
    schema = schemathesis.openapi.from_dict(api_application().openapi()).exclude(
        path="/api/v1/workspaces"
    )  # whose body is a zip
    for operation in [one.ok() for one in schema.get_all_operations()]:

        @seed(28)
        @settings(
            max_examples=EXAMPLES, database=None, deadline=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(operation.as_strategy(generation_mode=mode), st.booleans())
        def check_case(case: Any, known: bool) -> None:
            if known and "job" in case.path_parameters:
                case.path_parameters["job"] = "digits-1"
            sent = requests.Request(**case.as_transport_kwargs(base_url="http://service")).prepare()
            forwarded = {name: value for name, value in sent.headers.items() if name.lower() != "authorization"}
            response = client.ask(str(sent.method), str(sent.url), forwarded, sent.body)
            body = case.meta.components.get(ParameterLocation.BODY)  # more in a query than is known does no harm
            is_wrong = body is not None and body.mode == schemathesis.GenerationMode.NEGATIVE
            case.validate_response(response, checks=[*checks, *(rejected if is_wrong else [])])

        try:
            check_case()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            problems.append(f"{operation.label}: {error!r:.2000}")
    assert not problems, "\n\n".join(problems)
