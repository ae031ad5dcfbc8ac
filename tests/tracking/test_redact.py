"""Secrets do not reach a record, and what is no secret does."""

from __future__ import annotations

import pytest

from hopsml.tracking import redact
from hopsml.tracking.redact import REDACTED

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    "name",
    [
        "spark.hadoop.fs.s3a.secret.key", "spark.ssl.keyPassword", "spark.authenticate.secret", "HF_TOKEN",
        "AWS_ACCESS_KEY_ID", "spark.executorEnv.WANDB_API_KEY", "javax.passphrase", "GOOGLE_APPLICATION_CREDENTIALS",
        "mysql_passwd",
    ],
)  # fmt: skip
def test_settings_that_are_named_like_secrets_are_not_written(name: str) -> None:
    assert redact.settings({name: "abc", "spark.master": "yarn"}) == {name: REDACTED, "spark.master": "yarn"}


def test_secrets_inside_of_harmless_settings_are_masked() -> None:
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


def test_arguments_keep_what_only_sounds_like_a_secret() -> None:
    given = {"max_tokens": 512, "keypoints": "17", "tokenizer": "bert", "lr": 0.1, "keys": ["a"], "key": 3}
    assert redact.arguments(given) == given


def test_arguments_lose_their_secrets_at_any_depth() -> None:
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
def test_command_lines_lose_their_secrets(words: list[str]) -> None:
    cleaned = redact.command(["train.py", *words, "--epochs", "3"])
    assert "abc" not in " ".join(cleaned)
    assert cleaned[0] == "train.py" and cleaned[-2:] == ["--epochs", "3"]
