"""Tests that records contain no secrets, and leave other values unchanged."""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from hopsml import errors
from hopsml.core import redact
from hopsml.core.redact import REDACTED
from hopsml.storage.run_dir import to_json

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    "name",
    [
        "spark.hadoop.fs.s3a.secret.key", "spark.ssl.keyPassword", "spark.authenticate.secret", "HF_TOKEN",
        "AWS_ACCESS_KEY_ID", "spark.executorEnv.WANDB_API_KEY", "javax.passphrase", "GOOGLE_APPLICATION_CREDENTIALS",
        "spark.kerberos.keytab", "spark.yarn.keytab", "KRB5_CLIENT_KTNAME_KEYTAB", "spark.ssl.rpc.trustStorePassword",
        "mysql_passwd",
    ],
)  # fmt: skip
def test_settings_with_names_of_secrets_are_redacted(name: str) -> None:
    assert redact.settings({name: "abc", "spark.master": "yarn"}) == {name: REDACTED, "spark.master": "yarn"}


def test_secrets_within_other_settings_are_masked() -> None:
    cleaned = redact.settings(
        {
            "spark.driver.extraJavaOptions": "-Xmx1g -Djavax.net.ssl.trustStorePassword=abc1 -XX:+UseSerialGC",
            "spark.proxy": "https://anna:abc2@proxy:3128/x?token=abc3&page=2",
        }
    )
    assert "abc" not in str(cleaned)
    assert cleaned["spark.driver.extraJavaOptions"].startswith("-Xmx1g ")
    assert cleaned["spark.driver.extraJavaOptions"].endswith(" -XX:+UseSerialGC")
    assert cleaned["spark.proxy"].startswith("https://anna:") and cleaned["spark.proxy"].endswith("&page=2")


def test_arguments_with_names_similar_to_secrets_are_unchanged() -> None:
    given = {"max_tokens": 512, "keypoints": "17", "tokenizer": "bert", "lr": 0.1, "keys": ["a"], "key": 3}
    assert redact.arguments(given) == given


def test_secret_arguments_are_redacted_at_any_depth() -> None:
    given = {
        "api_key": "abc",
        "store": {"secret_access_key": "abc", "bucket": "b"},
        "hf_token": "abc",
        "password": "abc",
    }
    cleaned = redact.arguments(given)
    assert "abc" not in str(cleaned)
    assert cleaned["store"]["bucket"] == "b"


@pytest.mark.parametrize(
    "words", [["--token=abc"], ["--token", "abc"], ["--db-password", "abc"], ["s3://u:abc@host/x"]]
)
def test_secrets_in_command_lines_are_redacted(words: list[str]) -> None:
    cleaned = redact.command(["train.py", *words, "--epochs", "3"])
    assert "abc" not in " ".join(cleaned)
    assert cleaned[0] == "train.py" and cleaned[-2:] == ["--epochs", "3"]


# ---------------------------------------------------------------------- by name


@pytest.mark.parametrize("name", ["DB_PWD", "BASIC_AUTH", "SENTRY_DSN", "SESSION_COOKIE", "SMTP_PASS", "GITHUB_PAT"])
def test_settings_with_short_names_of_secrets_are_redacted(name: str) -> None:
    assert redact.settings({name: "abc"}) == {name: REDACTED}


@pytest.mark.parametrize("name", ["PWD", "OLDPWD", "AUTHOR", "COMPASS", "PATH", "spark.app.name", "SSH_AUTH_SOCK"])
def test_settings_with_names_similar_to_secrets_are_unchanged(name: str) -> None:
    assert redact.settings({name: "/home/anna"}) == {name: "/home/anna"}


@pytest.mark.parametrize(
    "name", ["pad_token", "eos_token", "max_tokens", "token_type", "author", "monkey", "key", "signature"]
)
def test_names_of_training_parameters_are_not_secrets(name: str) -> None:
    given = {name: "<pad>", "n": {name: "abcdefgh1"}}
    assert redact.arguments(given) == given


def test_secrets_in_dicts_within_lists_are_redacted_with_all_values_below_their_name() -> None:
    given = {
        "stores": [{"dsn": "abc", "bucket": "b"}, {"deep": [{"pwd": "abc"}]}],
        "auth": ["anna", "abc"],
        "credentials": {"user": "anna", "value": "abc", "port": 5432},
        "password": 123456,
    }
    cleaned = redact.arguments(given)
    assert "abc" not in str(cleaned) and "123456" not in str(cleaned) and "anna" not in str(cleaned)
    assert cleaned["stores"][0]["bucket"] == "b" and cleaned["credentials"]["port"] == 5432


# ---------------------------------------------------------------------- by value


def test_value_of_a_secret_variable_is_masked_wherever_it_occurs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_DB_PASSWORD", "tr0ub/4 dor&3")
    for spelling in ("tr0ub/4 dor&3", "tr0ub%2F4%20dor%263", "tr0ub/4%20dor%263", "tr0ub%2F4+dor%263"):
        assert redact.text(f"GET /x/{spelling}/y failed") == f"GET /x/{REDACTED}/y failed"
    monkeypatch.delenv("MY_DB_PASSWORD")
    assert "tr0ub" in redact.text("tr0ub/4 dor&3")


@pytest.mark.parametrize("value", ["abc", "postgres", "true", "12345", "/etc/hadoop/token", "~/.aws/credentials.ini"])
def test_value_that_may_be_any_word_is_masked_only_under_its_name(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_DB_PASSWORD", value)
    assert redact.text(f"reading {value} now") == f"reading {value} now"
    assert redact.settings({"MY_DB_PASSWORD": value}) == {"MY_DB_PASSWORD": REDACTED}


# ---------------------------------------------------------------------- by shape


@pytest.mark.parametrize(
    "text",
    [
        "https://anna:s3cr3t@host/x", "redis://:s3cr3t@host", "postgresql://anna:p@s3cr3t@host/db", "https://s3cr3t99@github.com/x",
        "http://nn:9870/webhdfs/v1/x?op=OPEN&delegation=s3cr3t&offset=0", "https://x/y?access_token=s3cr3t", "https://x?sig=s3cr3t",
        "Authorization: Basic YW5uYTps3cr3t=", "{'Authorization': 'Bearer s3cr3t.s3cr3t'}",
        "password=s3cr3t", "--token=s3cr3t", '{"db": {"password": "s3cr3t"}}', "{'api_key': 's3cr3t'}",
        "db.password: s3cr3t",
        "-----BEGIN RSA PRIVATE KEY-----\ns3cr3t\nMIIs3cr3t\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\ns3cr3t",
    ],
)  # fmt: skip
def test_text_with_the_shape_of_a_secret_is_masked(text: str) -> None:
    cleaned = redact.text(f"before {text} behind")
    assert "s3cr3t" not in cleaned and cleaned.startswith("before ") and REDACTED in cleaned
    assert redact.text(cleaned) == cleaned


@pytest.mark.parametrize(
    "text",
    [
        "AKIA" + "ABCDEFGH12345678", "ghp_" + "a1B2" * 9, "hf_" + "aB3d" * 8, "sk-" + "a1b2" * 8,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dBjftJeZ4CVP",
    ],
)  # fmt: skip
def test_keys_of_well_known_services_are_masked(text: str) -> None:
    assert redact.text(f"x {text} y") == f"x {REDACTED} y"


@pytest.mark.parametrize(
    "text",
    [
        "abfs://container@account.dfs.core.windows.net/x", "hdfs://anna@nn:8020/x", "ssh://git@host/x.git", "http://nn:9870/a@b",
        "the delegation token: expired", "max_tokens=512", "tokenizer=bert", "password=${DB_PASSWORD}", "token=<token>",
        "Basic understanding of bearer certificates", "key: value", "spark.authenticate=true",
    ],
)  # fmt: skip
def test_text_without_a_secret_is_unchanged(text: str) -> None:
    assert redact.text(text) == text


def test_literals_in_code_are_masked_and_variables_are_not() -> None:
    program = 'PASSWORD: str = "s3cr3t"\nos.environ["DB_PWD"] = \'s3cr3t\'\nlogin(password=password, token=t["T"])\n'
    cleaned = redact.code(program)
    assert "s3cr3t" not in cleaned
    assert 'login(password=password, token=t["T"])' in cleaned and cleaned.count("\n") == 3


@pytest.mark.parametrize(
    "program",
    [
        'connect("dbname=test user=me password=s3cretPw9 host=db")',
        "run('mysql --password=s3cretPw9 db', shell=True)",
        'url = "jdbc:sqlserver://db:1433;user=me;password=s3cretPw9"',
        "get_ipython().system('DB_PASSWORD=s3cretPw9 ./load.sh')",
        '# it\'s "so\nquery = """\nset password=s3cretPw9 \\"x\\"\n"""',
    ],
)
def test_assignments_within_string_literals_of_code_are_masked(program: str) -> None:
    assert "s3cretPw9" not in redact.code(program)


@pytest.mark.parametrize(
    "program",
    [
        "login(password=pass2word)",
        'print("a", password=pw4load, sep="b")',
        'x = f"password={value1}"',
        "f('token=pad')",
    ],
)
def test_names_and_expressions_in_code_are_not_masked(program: str) -> None:
    assert redact.code(program) == program


# ---------------------------------------------------------------------- ways out


def test_errors_of_hopsml_contain_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "tok-3141592")
    error = errors.WorkerFailed(
        "lost tok-3141592",
        rank=0,
        host="h",
        cause="tok-3141592",
        remote_traceback="tok-3141592",
        log_tail="tok-3141592",
    )
    assert "3141592" not in f"{error} {error.cause} {error.remote_traceback} {error.log_tail}"
    assert "3141592" not in str(errors.PathNotFound("cannot read x: tok-3141592"))


def test_secrets_are_redacted_when_records_become_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "tok-3141592")

    @dataclass
    class Note:
        text: str

    written = to_json({"n": Note("tok-3141592"), "p": Path("/x/tok-3141592"), "l": [{"auth": "abc", "nan": math.nan}]})
    assert b"3141592" not in written and b"abc" not in written and b"NaN" in written


def test_secrets_are_redacted_in_the_log_before_any_handler_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MY_TOKEN", "tok-3141592")
    seen: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(logging.Formatter("%(message)s").format(record))

    root, keep = logging.getLogger(), Keep()
    root.addHandler(keep)
    try:
        try:
            raise ValueError("tok-3141592")
        except ValueError:
            logging.getLogger("hopsml.some.module").warning("sent %s", "tok-3141592", exc_info=True)
    finally:
        root.removeHandler(keep)
    assert seen and "3141592" not in seen[0] and "ValueError" in seen[0]


def test_warning_without_a_handler_reaches_stderr_once() -> None:
    program = (
        "import logging, hopsml.core.redact\n"
        "logging.getLogger('hopsml.x').warning('said %s', 'tok-3141592')\n"
        "logging.getLogger('hopsml.x').info('not said')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "MY_TOKEN": "tok-3141592"}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, f"said {REDACTED}\n")
