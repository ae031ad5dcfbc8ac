"""Fixtures of all tests: a temporary folder for the session, an order from quick to slow, and leak checks."""

from __future__ import annotations

import functools
import gc
import os
import re
import shutil
import signal
import tempfile
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from hopsml.core.variables import Settings
from tests.helpers import clock, leaks, local_application
from tests.helpers.local_application import store
from tools.guard import Guard, guard_for

__all__ = ["store"]

# In this order: quick tests that cover most run first.
NEEDS = ("fast", "local", "airflow", "mlflow", "chaos", "torch", "tensorflow", "spark", "hadoop", "secure")
SHOWN_LINES = 12  # of a failure, at once; the complete one is at the end


def pytest_configure(config: pytest.Config) -> None:
    """Let the session have a temporary folder that no other process uses, and end in order on SIGTERM."""
    usual = tempfile.gettempdir()
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", usual)  # tmp_path stays in its usual place after a failure
    os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "data" / "spark_conf"))
    # A test that does not concern the lease does not depend on a machine that is fast enough for the default.
    os.environ.setdefault(Settings.lease_s.name, "30")
    os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="hopsml-tests-", dir=usual)
    tempfile.tempdir = None
    config.stash[TEMPORARY] = guard_for(["rm", "-rf", os.environ["TMPDIR"]]), os.environ["TMPDIR"]
    signal.signal(signal.SIGTERM, _end_in_order)
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # as in the background of a shell: all that tests start had it so
        signal.signal(signal.SIGINT, signal.default_int_handler)
    clock.WATCH.start()
    # A slow example depends on the machine, not on the code.
    settings.register_profile("hopsml", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    if not config.getoption("--hypothesis-profile", None):
        settings.load_profile("hopsml")


TEMPORARY = pytest.StashKey[tuple[Guard, str]]()
SESSION_PID = os.getpid()


def _end_in_order(number: int, frame: FrameType | None) -> None:
    if os.getpid() != SESSION_PID:  # a forked child has no fixtures to tear down
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    pytest.exit("SIGTERM", returncode=128 + number)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the session's temporary folder."""
    clock.WATCH.stop()
    guard, folder = config.stash[TEMPORARY]
    shutil.rmtree(folder, ignore_errors=True)
    guard.dismiss()
    del os.environ["TMPDIR"]
    tempfile.tempdir = None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude imported and collected objects from later garbage collections."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip the import of files without tests selected by ``-m fast`` or ``-m "not fast"``."""
    if not collection_path.name.startswith("test_") or collection_path.is_dir():
        return None
    wanted, is_fast = str(config.getoption("markexpr")).split(" and "), _fast(collection_path)
    return True if ("fast" in wanted and is_fast is False) or ("not fast" in wanted and is_fast is True) else None


@functools.cache
def _fast(file: Path) -> bool | None:
    """Return whether all tests of a file are fast, or none; None if mixed, or unknown without importing it."""
    content = file.read_text()
    of_all = re.search(r"^pytestmark = (\S+)", content, re.M)
    return True if of_all and of_all[1] == "pytest.mark.fast" else None if "mark.fast" in content else False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort quick tests first; refuse a test without a marker, as no selection would run it.

    For parallel processes, long tests start first, so that all processes end together.
    """
    silent = [item.nodeid for item in items if _need(item) is None]
    if silent:
        raise pytest.UsageError(f"one of the markers {', '.join(NEEDS)} is missing: {', '.join(silent[:5])}")
    unseen = [item.nodeid for item in items if _fast(item.path) is (item.get_closest_marker("fast") is None)]
    if unseen:
        raise pytest.UsageError(f"-m fast or -m 'not fast' would pass over their files: {', '.join(unseen[:5])}")
    side_by_side = config.getoption("loadgroup", False)
    items.sort(key=lambda item: NEEDS.index(str(_need(item))), reverse=side_by_side)
    if side_by_side:
        from tests.helpers.side_by_side import place

        items.sort(key=lambda item: place(item.nodeid, str(_need(item))))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object | None:
    """Keep tests with shared fixtures in one process, with --dist loadgroup."""
    if config.getoption("dist") != "loadgroup":
        return None
    from tests.helpers.side_by_side import SharedScopeScheduling

    return SharedScopeScheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Stop Hadoop after the last test that shares it, in parallel processes: idle daemons need a tenth of a processor."""
    try:
        return (yield)
    finally:
        if nextitem is not None and item.config.getoption("loadgroup", False):
            from tests.helpers.side_by_side import group

            if group(item.nodeid) == group("tests/integration/yarn/") != group(nextitem.nodeid):
                from tests.integration.yarn.conftest import end

                end(item.session)


def _need(item: pytest.Item) -> str | None:
    """Return the marker for the most expensive need of the test."""
    return next((name for name in reversed(NEEDS) if item.get_closest_marker(name)), None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how much of a slow run's time was lost to the machine."""
    if clock.WATCH.lost_s >= 1:
        terminalreporter.line(f"{clock.WATCH.lost_s:.0f} s of it were lost: the machine was slow, paused, or too busy")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print each failure at once: an interrupted run never prints its summary."""
    if report.failed:
        print(f"\nFAILED {report.nodeid} ({report.when}, {report.duration:.1f} s)", flush=True)
        print("\n".join(report.longreprtext.splitlines()[-SHOWN_LINES:]), flush=True)


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a process, thread, listening socket, variable or temporary file behind.

    Set up before the test's other fixtures of function scope and torn down after them, and after all
    fixtures of a wider scope are set up, whose resources are not the test's. See tests/helpers/leaks.py.
    """
    local_application.start_missing_agents()
    test_id = uuid.uuid4().hex
    before = leaks.Snapshot.take(test_id)
    os.environ[leaks.MARK] = test_id
    yield
    left = leaks.leaks_since(before)
    os.environ.pop(leaks.MARK, None)
    _restore(before.environment)
    if left:
        pytest.fail(f"{request.node.nodeid} left behind:\n  " + "\n  ".join(left), pytrace=False)


def _restore(environment: dict[str, str]) -> None:
    """Undo changed variables, so that a leak of one test is not reported again by the next."""
    for name in leaks.changed_names(environment, dict(os.environ)):
        if name in environment:
            os.environ[name] = environment[name]
        else:
            os.environ.pop(name)


@pytest.fixture(scope="session", autouse=True)
def zygotes() -> Iterator[None]:
    """Share the process that imports TensorFlow for agents among the tests of this process."""
    from hopsml.experiment import applications
    from tests.helpers.kept_zygotes import KeptZygotes

    zygotes_of_session = KeptZygotes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(applications, "ZygoteProcess", zygotes_of_session)
        yield
    zygotes_of_session.end()


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yield a real MLflow server that answers; a test that stops it restarts it."""
    from tests.helpers.tracking.mlflow_server import MlflowServer

    server = MlflowServer(tmp_path_factory.mktemp("mlflow"))
    with leaks.not_of_this_test():
        server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def hadoop(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Yield HDFS and YARN with 2 DataNodes and 2 NodeManagers with 2 GPUs each; they end with the session."""
    from tests.integration.yarn.conftest import running

    yield from running(request)


@pytest.fixture(scope="session")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yield a KDC with users alice and bob and HTTP services of this host; a test that halts it runs it again."""
    from tests.helpers.kerberos import running_kdc

    yield from running_kdc(tmp_path_factory.mktemp("kerberos") / "kdc")


@pytest.fixture(scope="session")
def secure_hdfs() -> Iterator[Any]:
    """Yield a Kerberized HDFS whose tokens are renewed for 15 s and expire after 90 s, and a YARN without nodes."""
    from tests.helpers.kerberos import running_cluster
    from tools.hadoop.kerberos import Security
    from tools.hadoop.settings import Shape

    yield from running_cluster(
        "secure-hdfs",
        Shape(datanodes=1, nodemanagers=0),
        Security(token_renew_s=15, token_max_s=90),
    )


@pytest.fixture(scope="session")
def secure_yarn() -> Iterator[Any]:
    """Yield a Kerberized HDFS and YARN with SPNEGO, 2 NodeManagers, and tokens of 90 s renewed and 300 s in all."""
    from tests.helpers.kerberos import running_cluster
    from tools.hadoop.kerberos import Security
    from tools.hadoop.settings import Shape

    yield from running_cluster(
        "secure-yarn", Shape(datanodes=1), Security(spnego=True, token_renew_s=90, token_max_s=300)
    )
