"""Tests that secrets captured by a function are not recorded, but reach the worker."""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import pytest

from hopsml.cluster.driver import secret_extraction
from hopsml.cluster.driver.capture import Captured, capture
from hopsml.core import redact
from hopsml.errors import ArgumentError

pytestmark = pytest.mark.fast

API_TOKEN = "glob-2718281828"


@pytest.fixture(autouse=True)
def _no_registered_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets registered by one test must not affect the next."""
    monkeypatch.setattr(redact, "_registered", {})


def result_of(captured: Captured) -> Any:
    """Return the result of the captured function, called as by a worker."""
    function, arguments = cloudpickle.loads(captured.payload_with_secrets)
    return function(**arguments)


def contains(payload: bytes, text: str) -> bool:
    """True if the text occurs in a string of the pickle."""
    strings = [argument for _, argument, _ in pickletools.genops(payload) if isinstance(argument, str | bytes)]
    return text.encode() in payload or any(text in str(string) for string in strings)


@dataclass
class Settings:
    user: str
    password: str


def secret_in_arguments() -> tuple[Callable[..., Any], dict[str, Any]]:
    return (lambda **given: given), {
        "lr": 0.1,
        "stores": [{"dsn": "s3cr3t-31415", "bucket": "b"}],
        "auth": ("anna", "s3cr3t-31415"),
    }


def secret_in_a_url() -> tuple[Callable[..., Any], dict[str, Any]]:
    return (lambda url: url), {"url": "postgresql://anna:s3cr3t-31415@host/db"}


def secret_in_a_closure() -> tuple[Callable[..., Any], dict[str, Any]]:
    password = "s3cr3t-31415"
    return (lambda: password), {}


def secret_in_defaults() -> tuple[Callable[..., Any], dict[str, Any]]:
    def train(a: int, password: str = "s3cr3t-31415", *, token: bytes = b"s3cr3t-31415") -> Any:
        return a, password, token

    return train, {"a": 1}


def secret_in_a_literal() -> tuple[Callable[..., Any], dict[str, Any]]:
    def train() -> Any:
        db_password = "s3cr3t-31415"
        return db_password, dict(api_key="s3cr3t-31415x")

    return train, {}


def secret_in_an_object() -> tuple[Callable[..., Any], dict[str, Any]]:
    return (lambda settings: (settings.user, settings.password)), {"settings": Settings("anna", "s3cr3t-31415")}


def secret_number() -> tuple[Callable[..., Any], dict[str, Any]]:
    return (lambda **given: given), {"pin_password": 31415926535, "short": {"password": "ab"}}


@pytest.mark.parametrize(
    "case",
    [
        secret_in_arguments,
        secret_in_a_url,
        secret_in_a_closure,
        secret_in_defaults,
        secret_in_a_literal,
        secret_in_an_object,
        secret_number,
    ],
)
def test_secret_is_left_out_of_the_recorded_payload_and_reaches_the_worker(
    case: Callable[[], tuple[Callable[..., Any], dict[str, Any]]],
) -> None:
    function, arguments = case()
    expected = function(**arguments)
    captured = capture(function, arguments)
    assert not contains(captured.payload, "s3cr3t") and captured.secrets and not captured.unrecorded
    assert not contains(captured.payload, "31415926535")
    assert result_of(captured) == expected
    assert "s3cr3t" not in str([one.facts() for one in captured.secrets])


def test_secret_in_a_used_global_is_extracted() -> None:
    captured = capture(lambda: API_TOKEN)
    assert [one.name for one in captured.secrets] == ["API_TOKEN"]
    assert not contains(captured.payload, "2718281828") and result_of(captured) == "glob-2718281828"


def test_value_of_a_secret_variable_is_extracted_wherever_it_occurs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAREHOUSE_PASSWORD", "tr0ub4dor")
    captured = capture(lambda **given: given, {"command": "load --as tr0ub4dor now", "plain": b"x tr0ub4dor"})
    assert [(one.name, one.variable) for one in captured.secrets] == [("WAREHOUSE_PASSWORD", "WAREHOUSE_PASSWORD")]
    assert not contains(captured.payload, "tr0ub4dor")
    assert result_of(captured) == {"command": "load --as tr0ub4dor now", "plain": b"x tr0ub4dor"}


def test_shipped_and_recorded_payload_are_equal_without_a_secret() -> None:
    captured = capture(lambda **given: given, {"max_tokens": 5, "pad_token": "<pad>", "url": "abfs://c@a.dfs.net/x"})
    assert captured.payload_with_secrets is captured.payload and captured.secrets == ()


def test_secret_assigned_within_an_argument_is_left_out_of_the_recorded_payload() -> None:
    captured = capture(lambda **given: given, {"where": "host=db user=me password=tr0ub4dor"})
    assert not contains(captured.payload, "tr0ub4dor") and result_of(captured) == {
        "where": "host=db user=me password=tr0ub4dor"
    }


def test_type_annotation_under_a_secret_name_is_not_a_secret() -> None:
    def train(password: str, settings: Settings) -> str:
        return password + settings.password

    captured = capture(train, {"password": "s3cr3t-31415", "settings": Settings("anna", "s3cr3t-31415")})
    assert [one.name for one in captured.secrets] == ["PASSWORD"] and result_of(captured) == 2 * "s3cr3t-31415"


def test_recorded_payload_does_not_depend_on_the_value_of_the_secret() -> None:
    first, second = (capture(max, {"password": f"s3cr3t-{number}"}) for number in (1, 2))
    assert first.payload == second.payload and first.payload_with_secrets != second.payload_with_secrets


def test_function_with_an_inseparable_secret_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAREHOUSE_PASSWORD", "tr0ub4dor")
    captured = capture(lambda table: len(table), {"table": np.array([b"tr0ub4dor"])})
    assert "WAREHOUSE_PASSWORD" in captured.unrecorded and result_of(captured) == 1


def test_worker_masks_the_secrets_that_it_receives(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = capture(lambda password: password, {"password": "s3cr3t-31415"})
    monkeypatch.setattr(redact, "_registered", {})
    assert result_of(captured) == "s3cr3t-31415"
    assert redact.text("with s3cr3t-31415") == f"with {redact.REDACTED}"


def test_recorded_payload_is_restored_with_new_values_of_its_secrets() -> None:
    captured = capture(
        lambda **given: given, {"api_key": "s3cr3t-31415", "token": b"s3cr3t-27182", "password": 161803398}
    )
    with pytest.raises(pickle.UnpicklingError):
        pickle.loads(captured.payload)
    recorded = [one.facts() for one in captured.secrets]
    again = {"API_KEY": "new-1", "HOPSML_SECRET_TOKEN": "new-2", "HOPSML_SECRET_PASSWORD": "3"}
    secrets = secret_extraction.supply_secrets_again(recorded, {"API_KEY": "new-1"}, again, "run x")
    function, arguments = pickle.loads(secret_extraction.seal(captured.payload, secrets))
    assert function(**arguments) == {"api_key": "new-1", "token": b"new-2", "password": 3}


def test_missing_secret_is_named_with_the_remedy() -> None:
    recorded = [{"name": "DB_PASSWORD", "type": "str", "variable": "DB_PASSWORD"}]
    assert secret_extraction.supply_secrets_again(recorded, {}, {"DB_PASSWORD": "x"}, "run x")[0].value == "x"
    with pytest.raises(ArgumentError, match=r"run x received secrets.*: DB_PASSWORD; set HOPSML_SECRET_DB_PASSWORD in"):
        secret_extraction.supply_secrets_again(recorded, {}, {}, "run x")
    with pytest.raises(ArgumentError, match="HOPSML_SECRET_PIN must be a whole number"):
        secret_extraction.supply_secrets_again(
            [{"name": "PIN", "type": "int", "variable": ""}], {"PIN": "x"}, {}, "run x"
        )
