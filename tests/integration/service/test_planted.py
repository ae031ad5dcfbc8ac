"""Tests that a job service, its jobs and their runs show planted secrets to nobody: files, pages, command lines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hopsml.core.delegation_tokens import HDFS_KIND, Credentials, Token, write
from hopsml.core.states import Lifecycle
from tests.helpers.cluster.workloads import wait_until
from tests.helpers.secrets_found import (
    core_files_allowed,
    could_dump_core,
    of_pages,
    of_processes,
    of_store,
    secrets_found,
)
from tests.integration.service.test_job_parts import hopsml
from tests.integration.service.test_job_service import WAIT_S, JobService, service

pytestmark = pytest.mark.local
__all__ = ["service"]

VARIABLES = {
    "AWS_SECRET_ACCESS_KEY": "planted-aws/Hush+93",
    "HF_TOKEN": "planted-hf-Hush93",
    "WAREHOUSE_PASSWORD": "planted-db-Hush93",
    "REDIS_URL": "redis://anna:planted-url-Hush93@host:6379/0",
}
LOGIN, TOKEN = "planted-login-Hush93", "planted-token-Hush93"
SECRETS = ("planted-aws/Hush+93", "planted-hf-Hush93", "planted-db-Hush93", "planted-url-Hush93", LOGIN, TOKEN)
# Uses the secrets in every way in which hopsml records something, and fails with them.
TRAIN = """
def train(out, fails):
    import os, time
    import hopsml
    from hopsml import hdfs
    from hopsml.tracking import inputs

    login, url = os.environ["DB_LOGIN"], os.environ["REDIS_URL"]
    inputs.data(f"s3://anna:{login}@bucket/{os.environ['HF_TOKEN']}")
    hopsml.report(step=1, loss=0.5, password=login, said=f"logged in with {login} at {url}")
    try:
        hdfs.ls("webhdfs://127.0.0.1:9/data")
    except OSError as error:
        refused = str(error)
    open(f"{out}.ready", "w").close()
    while not os.path.exists(f"{out}.end"):
        time.sleep(0.02)
    if fails:
        raise RuntimeError(f"cannot log in with {login} and {os.environ['AWS_SECRET_ACCESS_KEY']} at {url}; {refused}")
    return {"loss": 0.5, "refresh_token": login, "said": f"used {login} at {url}", "error": refused}
"""


@pytest.mark.parametrize("fails", [True, pytest.param(False, marks=pytest.mark.variant)])
def test_service_job_and_run_show_no_planted_secret(service: JobService, tmp_path: Path, fails: bool) -> None:
    tokens = tmp_path / "tokens"
    identifier = b"\0\4anna" + TOKEN.encode()
    write(tokens, Credentials((Token("a", identifier, TOKEN.encode(), HDFS_KIND, "127.0.0.1:9"),)))
    service.variables = {**VARIABLES, "HADOOP_TOKEN_FILE_LOCATION": str(tokens), "HOPSML_STORAGE_TIMEOUT_S": "5"}
    (service.code / "train.py").write_text(TRAIN)
    out, job_file, said = service.jobs / "out", service.code / "keeper.yaml", str(fails).lower()
    job_file.write_text(
        "name: keeper\nsecrets: [db-login]\ntasks:\n"
        f"  main: {{function: train.py:train, framework: distributed, arguments: {{out: {out}, fails: {said}}}}}\n"
    )
    with core_files_allowed():
        client = service.start(cores=2)
    assert service.process is not None
    server = service.process.pid
    hopsml(client, "secrets", "put", "db-login", stdin=f"{LOGIN}\n")
    job = client.submit(job_file)
    ready = Path(f"{out}.ready")
    wait_until(lambda: ready.exists() or client.job(job.id).state.is_final, "the run")
    assert ready.exists(), client.log(job.id)
    assert secrets_found(of_processes(), secrets=SECRETS) == {}
    assert could_dump_core(server) == []
    Path(f"{out}.end").touch()
    ended = client.wait(job.id, WAIT_S)
    assert ended.state == (Lifecycle.FAILED if fails else Lifecycle.FINISHED), client.log(job.id)
    printed = {"log": client.log(job.id)[0].encode(), "job": repr(ended).encode()}
    (run,) = [one.name for one in (service.state / "project" / "Experiments").iterdir() if one.is_dir()]
    values = {"job": [job.id], "run": [run], "rank": ["0"], "task": ["main"], "schedule": ["1"]}
    pages = of_pages(client._address, client._token, values)
    assert b"cannot log in with (redacted)" in pages[f"/api/runs/{run}"] or not fails
    assert f"/api/v1/jobs/{job.id}/why" in pages and b"<html" in pages["/"] and len(pages) > 20
    commands = "jobs ls", f"jobs show {job.id}", "secrets ls", "audit"
    listed = {words: hopsml(client, *words.split()).encode() for words in commands}
    service.stop()
    stored = {**of_store(str(service.state)), **of_store(str(service.jobs)), "server.log": service.log.read_bytes()}
    assert {"run.json", "status.json", "environment.json", "metrics.jsonl"} <= {
        os.path.basename(name) for name in stored
    }
    assert secrets_found(printed, pages, listed, stored, secrets=SECRETS) == {}
    if fails:
        assert b"cannot log in with (redacted) and (redacted)" in printed["log"]
