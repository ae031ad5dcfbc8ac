"""Secrets in every place where a user may put one."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hopsml.storage import filesystem
from tests.helpers.secrets_found import secrets_found

MARK = "s3cr3t"  # in each secret, and in nothing else
BY_VALUE = f"{MARK}/by value&{MARK}"  # also searched in its URL encoding
VARIABLES = {"WAREHOUSE_PASSWORD": BY_VALUE, "HF_TOKEN": f"{MARK}-token-1"}
TO_WORKERS = {"WORKER_DB_PWD": f"{MARK}-pwd-11", "REDIS_URL": f"redis://:{MARK}-redis@host:6379", "COLOUR": "red"}
ARGUMENTS: dict[str, Any] = {
    "lr": 0.1,
    "api_key": f"{MARK}-argument",
    "stores": [{"dsn": f"{MARK}-in-a-list", "bucket": "b"}, [{"auth": ("anna", f"{MARK}-in-a-tuple")}]],
    "url": f"https://anna:{MARK}-url@host/data?token={MARK}-query",
    "command": f"load --as {BY_VALUE}",
    "passwords": {"password": b"s3cr3t-as-bytes"},
}
SCRIPT = f'''
import json
import os
import sys

DB_PASSWORD = "{MARK}-global"
COPY = DB_PASSWORD
ARGUMENTS = {ARGUMENTS!r}
TO_WORKERS = json.loads(os.environ["TO_WORKERS"])


class Reader:
    token = "{MARK}-of-a-class"

    def __init__(self):
        self.secret = "{MARK}-of-an-object"


def make(fails):
    credential = "{MARK}-closure"
    reader = Reader()

    def train(lr, api_key, stores, url, command, passwords, access_token="{MARK}-default"):
        import hopsml
        from hopsml.tracking import inputs

        signing_key = "{MARK}-literal"
        held = [DB_PASSWORD, COPY, Reader.token, reader.secret, credential, signing_key, access_token, api_key, url, command]
        held += [stores[0]["dsn"], stores[1][0]["auth"][1], passwords["password"].decode()]
        held += [os.environ["WORKER_DB_PWD"], os.environ["REDIS_URL"]]
        assert all("s3cr%dt".__mod__(3) in value for value in held), held  # the worker has them all
        inputs.data("nowhere://anna:" + signing_key + "@host/" + api_key)
        inputs.data("/nowhere/" + api_key)
        hopsml.report(step=1, loss=0.5, password=api_key, said=command)
        if fails:
            raise ValueError("cannot log in as " + api_key + " with " + command + " at " + url)
        return {{"accuracy": lr, "refresh_token": api_key, "said": "used " + command}}

    return train


def trial(x, api_key):
    if x > 0.5:
        raise ValueError("cannot log in as " + api_key)
    return {{"x": x, "said": api_key}}


if __name__ == "__main__":
    from hopsml import errors, experiment

    options = dict(name="planted", description="with " + DB_PASSWORD, environment=TO_WORKERS, progress=False)
    done = experiment.submit(make(False), args=ARGUMENTS, num_workers=1, **options).result()
    assert done.metrics["refresh_token"] == ARGUMENTS["api_key"]  # the caller has what was returned
    print(done.summary(), done, done._repr_html_())
    try:
        experiment.submit(make(True), args=ARGUMENTS, num_workers=1, **options).result()
    except errors.WorkerFailed as error:
        print(error, error.remote_traceback, error.log_tail, file=sys.stderr)
    space = {{"x": ("DISCRETE", [0.1, 0.9])}}
    found = experiment.search(
        trial, space, searcher="grid", metric="x", retries=0, args={{"api_key": ARGUMENTS["api_key"]}}, **options
    )
    assert len(found.rows) == 2
    print(found.summary(), found, found._repr_html_())
    with experiment.recorded("etl", args=dict(ARGUMENTS, passwords={{}})) as run:
        run.metrics["refresh_token"] = ARGUMENTS["api_key"]
        print(run.json())
'''


def run(folder: Path, project_url: str, more: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a git repository whose script, configuration and difference hold secrets, and run it."""

    def git(*arguments: str) -> None:
        who = ["-c", "user.name=anna", "-c", "user.email=anna@host"]
        subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)

    folder.mkdir()
    git("init", "-q")
    git("remote", "add", "origin", f"https://anna:{MARK}-remote@host/x.git")
    for name in ("training.py", ".env", "conf.yaml", "server.pem"):
        (folder / name).write_text("# nothing yet\n")
    git("add", "-A")
    git("commit", "-q", "-m", "one")
    (folder / "training.py").write_text(SCRIPT)
    (folder / ".env").write_text(f"DB_PASSWORD={MARK}-dotenv\nexport API_KEY='{MARK}-dotenv-quoted'\n")
    (folder / "conf.yaml").write_text(f"db:\n  password: {MARK}-yaml-1\n  url: postgres://anna:{MARK}-yaml@host/db\n")
    (folder / "server.pem").write_text(f"-----BEGIN PRIVATE KEY-----\n{MARK}\n-----END PRIVATE KEY-----\n")
    (folder / "local.yaml").write_text(
        f"master: none\nlocal_slots: 2\nenvironment: {{PROFILE_SECRET: {MARK}-of-the-profile}}\n"
    )
    line = [sys.executable, "training.py", "--db-password", f"{MARK}-argv", f"--token={MARK}-argv-2"]
    environment = {**os.environ, **VARIABLES, **more, "TO_WORKERS": json.dumps(TO_WORKERS)}
    environment |= {"HOPSML_PROJECT_URL": project_url, "HOPSML_PROFILE": "local", "HOPSML_CONF_DIR": str(folder)}
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def leaks(files: Mapping[str, bytes]) -> dict[str, str]:
    """Return the place of each planted secret in files, in any encoding, with its context."""
    return secrets_found(files, secrets=(MARK, BY_VALUE))


def open_to_others(url: str) -> list[str]:
    """Return files below a URL that others may read, with their permissions."""
    found = [filesystem.for_url(url).status(url), *filesystem.walk(url)]
    return [f"{one.url} {stat.S_IMODE(one.permission):o}" for one in found if one.permission & 0o077]
