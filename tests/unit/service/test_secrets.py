"""Tests of secrets: separate for each user, in no answer or file, and required by their jobs."""

from __future__ import annotations

import base64
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from hopsml.core import redact
from hopsml.errors import ArgumentError, JobFileError, ServiceError
from hopsml.service import spec
from hopsml.service.driver import driver_requests
from hopsml.service.store import JobStore
from hopsml.service.store.accounts import Role, Secrets, secrets_key
from hopsml.service.store.database import secrets as table
from tests.helpers.service.served import JOB, Served

pytestmark = pytest.mark.fast
VALUE = "Hush-93-wolves"


def put_secret(served: Served, name: str, value: Any = VALUE, role: Any = Role.USER) -> Any:
    return served.ask("PUT", f"secrets/{name}", role, json={"value": value})


def test_secrets_are_separate_for_each_user_and_never_returned(served: Served, tmp_path: Path) -> None:
    assert put_secret(served, "s3-key").status_code == 204
    assert put_secret(served, "s3-key", "Other-94-wolves").status_code == 204, "the newer one wins"
    listed = served.ask("GET", "secrets")
    assert [one["name"] for one in listed.json()] == ["s3-key"] and "wolves" not in listed.text
    assert served.ask("GET", "secrets", "bob").json() == []
    assert served.ask("DELETE", "secrets/s3-key", "bob").status_code == 400
    assert served.jobs.secrets.values("user", ["s3-key"]) == {"s3-key": "Other-94-wolves"}
    assert (
        put_secret(served, "x-1", role=Role.VIEWER).status_code
        == served.ask("GET", "secrets", Role.VIEWER).status_code
        == 403
    )
    found = [path for path in tmp_path.rglob("*") if path.is_file() and b"wolves" in path.read_bytes()]
    assert not found, found
    assert stat.S_IMODE((tmp_path / "secrets.key").stat().st_mode) == 0o600
    assert served.ask("DELETE", "secrets/s3-key").status_code == 204
    assert served.ask("GET", "secrets").json() == []


@pytest.mark.parametrize("value", ["wolf5", "12345678 "[:7], "/home/ana/key", "x\0" + VALUE, "a1" * 20_000, 5, None])
def test_unsuitable_secret_value_is_refused_and_not_repeated(served: Served, value: Any) -> None:
    answer = put_secret(served, "s3-key", value)
    assert answer.status_code in (400, 422) and not (isinstance(value, str) and value in answer.text)
    assert put_secret(served, "S3_KEY").status_code == 422


def test_job_naming_a_missing_or_foreign_secret_is_refused(served: Served) -> None:
    wanted = JOB + "secrets: [s3-key]\n"
    put_secret(served, "s3-key", role="bob")
    answer = served.submit(spec=wanted)
    assert answer.status_code == 400 and "user has no secret s3-key; `hopsml secrets put s3-key`" in (
        "; ".join(answer.json().values())
    )
    assert served.submit("bob", spec=wanted).status_code == 201
    assert served.ask("POST", "jobs/1/clone").status_code == 400, "a clone is its own owner's"
    assert served.ask("POST", "jobs/1/clone", "bob").status_code == 201


def test_secret_is_decrypted_only_in_its_row_with_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = JobStore.open(f"sqlite:///{tmp_path}/service.db")
    try:
        secrets = Secrets(store, secrets_key(tmp_path))
        secrets.store_secret("ana", "one", VALUE, 1.0)
        assert Secrets(store, secrets_key(tmp_path)).values("ana", ["one"]) == {"one": VALUE}
        monkeypatch.setenv("HOPSML_SECRETS_KEY", base64.b64encode(bytes(32)).decode())
        with pytest.raises(ServiceError, match="encrypted with another key than this server's"):
            Secrets(store, secrets_key(tmp_path)).values("ana", ["one"])
        assert "HOPSML_SECRETS_KEY" not in os.environ, "jobs inherit nothing of it"
        with store.write_transaction() as connection:
            connection.execute(update(table).values(owner="ben"))
        with pytest.raises(ServiceError, match="another key"):
            secrets.values("ben", ["one"])
        monkeypatch.setenv("HOPSML_SECRETS_KEY", "nonsense")
        with pytest.raises(ArgumentError, match="HOPSML_SECRETS_KEY holds no key: it must be 32 random bytes"):
            secrets_key(tmp_path)
    finally:
        store.close()


def test_secrets_are_delivered_to_a_driver_once(tmp_path: Path) -> None:
    variables = {"HOPSML_JOB_TAG": "t-1-1", "HOPSML_JOB_FOLDER": (tmp_path / "1").as_uri()}
    variables[driver_requests.KEY] = driver_requests.new_key()
    driver_requests.seal_secrets(variables, {"s3-key": VALUE})
    (file,) = (tmp_path / "1").iterdir()
    assert VALUE.encode() not in file.read_bytes() and stat.S_IMODE(file.stat().st_mode) == 0o600
    environment = dict(variables)
    assert driver_requests.take_secrets(("s3-key",), environment) == {"S3_KEY": VALUE}
    assert driver_requests.KEY not in environment and not file.exists()
    assert VALUE not in redact.text(f"said {VALUE}")
    with pytest.raises(ServiceError, match="have been read before"):
        driver_requests.take_secrets(("s3-key",), dict(variables))


def test_secrets_come_from_the_environment_without_a_service() -> None:
    assert driver_requests.take_secrets(("s3-key",), {"S3_KEY": VALUE}) == {"S3_KEY": VALUE}
    assert driver_requests.take_secrets((), {}) == {}
    with pytest.raises(
        ArgumentError, match=r"the job needs the secret s3-key, and S3_KEY is not set .*hopsml secrets put"
    ):
        driver_requests.take_secrets(("s3-key",), {})


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("secrets: [hopsml-token]", "HOPSML_TOKEN, and names with this prefix are reserved for hopsml"),
        ("secrets: [db]\ntasks: {main: {script: train.py, env: {DB: x}}}", "stands under env of task 'main', too"),
    ],
)
def test_secret_that_would_hide_another_variable_is_refused(more: str, words: str) -> None:
    with pytest.raises(JobFileError) as refused:
        spec.loads(f"{more}\nname: digits\n" if "tasks" in more else f"{JOB}{more}\n")
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "name", ["path", "ld-preload", "pythonpath", "spark-home", "cuda-visible-devices", "hopsml-token"]
)
def test_secret_named_like_a_variable_of_programs_is_refused(served: Served, name: str) -> None:
    answer = put_secret(served, name)
    variable = name.upper().replace("-", "_")
    assert answer.status_code == 400 and f"secret {name} would be {variable}" in answer.json()["error"], answer.text
    assert served.ask("GET", "secrets").json() == []
    with pytest.raises(JobFileError, match=f"secret {name} would be {variable}"):
        spec.loads(f"{JOB}secrets: [{name}]\n")
    assert put_secret(served, f"my-{name}").status_code == 204
