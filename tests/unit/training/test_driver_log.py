"""Test that log lines of a script that configures ``logging`` at import time are in the workers' logs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsml.training import prepare
from tests.helpers.clock import END_S
from tests.helpers.cluster.backend_contract import submit
from tests.helpers.local_application import local_application

pytestmark = pytest.mark.fast


@pytest.fixture
def configured_logging() -> Iterator[None]:
    """Configure logging as by ``logging.basicConfig(level=logging.INFO, format=...)``."""
    root, handler = logging.getLogger(), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("{levelname} MY {message}", style="{"))
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield
    root.removeHandler(handler)
    root.setLevel(before)


def test_workers_log_in_the_format_of_the_drivers_root_logger(tmp_path: Path, configured_logging: None) -> None:
    def train() -> None:
        logging.getLogger("my.training").info("with %d samples", 512)
        logging.getLogger("my.training").debug("not this")

    with local_application(tmp_path):
        run = submit(train, workers=1)
        run.result(END_S)
        assert "INFO MY with 512 samples" in run.logs() and "not this" not in run.logs()


def test_logging_description_reproduces_format_level_and_handler(capsys: pytest.CaptureFixture[str]) -> None:
    driver, worker = logging.Logger("root", logging.DEBUG), logging.Logger("root")
    assert prepare.describe_logging(driver) == ""
    driver.addHandler(logging.NullHandler())
    assert prepare.describe_logging(driver) == ""
    handler = logging.StreamHandler(sys.stdout)
    handler.setLevel(logging.INFO)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="then"))
    driver.addHandler(handler)
    description = prepare.describe_logging(driver)
    prepare.configure_logging(description, worker)
    prepare.configure_logging(description, worker)
    worker.debug("below the handler's level")
    worker.info("once")
    assert capsys.readouterr() == ("then once\n", "") and worker.level == logging.DEBUG
    assert prepare.describe_logging(worker) == description
