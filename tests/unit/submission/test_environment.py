"""Tests of packed environments: hash, archive, cache; tests/integration/yarn/test_submit_environment.py uses YARN."""

from __future__ import annotations

import dataclasses
import http.server
import importlib.util
import json
import marshal
import os
import py_compile
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest

from hopsml.core import profiles, settings
from hopsml.errors import ArgumentError
from hopsml.submission import environment_archive, shipping
from hopsml.submission.environment_archive import Environment
from tests.helpers.clock import END_S

pytestmark = pytest.mark.fast

YARN = profiles.parse("y", "master: yarn\ndeploy_mode: cluster\nstore: hdfs://ns1/Projects/p\n", "y.yaml")
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def small(tmp_path: Path) -> Environment:
    """Return an environment with one package and one editable project, and an interpreter expected on every node."""
    site, project = tmp_path / "site", tmp_path / "src" / "mine"
    for name, content in {
        "one/__init__.py": "VALUE = 1\n",
        "one/template.py": "this is {{ no }} Python\n",
        "one/data.txt": "data",
        "__editable___mine_finder.py": "",
        "__editable__.mine.pth": "import __editable___mine_finder",
        "pyspark/jars/spark.jar": "large",
        "pyspark/__init__.py": "",
    }.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(content)
    project.mkdir(parents=True)
    (project / "__init__.py").write_text("VALUE = 'mine'\n")
    base = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
    return Environment(tmp_path, (site,), {"one": "1.0"}, {"mine": project}, Path("/usr"), base)


def test_environment_hash_depends_on_its_content(small: Environment) -> None:
    first = small.hash
    assert dataclasses.replace(small).hash == first
    assert dataclasses.replace(small, packages={"one": "1.1"}).hash != first
    (small.editable["mine"] / "__pycache__").mkdir()
    (small.editable["mine"] / "__pycache__" / "x.pyc").write_bytes(b"x")
    assert dataclasses.replace(small).hash == first
    (small.editable["mine"] / "__init__.py").write_text("VALUE = 'other'\n")
    assert dataclasses.replace(small).hash != first


def test_archive_works_in_another_folder_without_compiling(small: Environment, tmp_path: Path) -> None:
    length = environment_archive.pack(small, tmp_path / "packed.tar.gz")
    assert length == (tmp_path / "packed.tar.gz").stat().st_size
    elsewhere = tmp_path / "elsewhere"
    with tarfile.open(tmp_path / "packed.tar.gz") as tar:
        tar.extractall(elsewhere, filter="fully_trusted")
    site = elsewhere / "lib" / VERSION / "site-packages"
    names = {str(file.relative_to(site)) for file in site.rglob("*.*")}
    assert "one/data.txt" in names and "one/template.py" in names
    assert not any("spark.jar" in name or "__editable__" in name for name in names)
    (site / "mine" / "__init__.py").write_text(
        "VALUE = 'source'\n"
    )  # its compiled file counts, whatever the source's time
    code = "import sys, one, mine; print(sys.prefix, one.VALUE, mine.VALUE, mine.__file__)"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    lines = subprocess.run(
        [str(elsewhere / "bin" / "python"), "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert lines.stdout.split() == [str(elsewhere), "1", "mine", str(site / "mine" / "__init__.py")], lines.stderr


def test_compiled_file_is_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "module.py"
    file.write_text("VALUE = 1\n")
    fresh = environment_archive._compiled(file)
    cached = Path(importlib.util.cache_from_source(str(file), optimization=""))
    py_compile.compile(str(file), str(cached), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP)
    monkeypatch.setattr(environment_archive, "_compile", lambda *_: pytest.fail("compiled again"))
    again = environment_archive._compiled(file)
    assert fresh and again and again[:16] == fresh[:16] and marshal.loads(again[16:]) == marshal.loads(fresh[16:])
    os.utime(file, (1, 1))
    with pytest.raises(pytest.fail.Exception):
        environment_archive._compiled(file)


def test_concurrent_submissions_upload_one_archive(small: Environment, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store/environments/{small.hash}.tar.gz"
    both, lines, failed = threading.Barrier(2), [], []

    def meet() -> None:  # called before each file: both find nothing, and both pack
        if not both.broken:
            both.wait(END_S)

    def submit() -> None:
        try:
            shipping.ensure_uploaded(shipping.Shipment(url, small), lines.append, meet)
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=submit) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert sorted(os.listdir(tmp_path / "store" / "environments")) == [f"{small.hash}.json", f"{small.hash}.tar.gz"]
    assert sum(line.startswith("packing") for line in lines) == 2
    content = json.loads((tmp_path / "store" / "environments" / f"{small.hash}.json").read_text())
    assert content["packages"] == {"one": "1.0"} and {"one", "mine", "json", "pyspark"} <= set(content["modules"])
    lines.clear()
    shipping.ensure_uploaded(shipping.Shipment(url, small), lines.append)
    assert lines == []


def test_packing_can_be_interrupted(small: Environment, tmp_path: Path) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shipping.ensure_uploaded(shipping.Shipment(f"file://{tmp_path}/store/e.tar.gz", small), lambda line: None, stop)
    assert not (tmp_path / "store").exists()


def test_current_environment_has_its_editable_project_and_imports() -> None:
    here = Environment.current()
    assert {"hopsml"} <= set(here.editable) and "hopsml-spark" in here.packages
    assert {"hopsml", "msgspec", "numpy", "yaml", "json", "pyspark"} <= here.modules
    assert "lightgbm" not in here.modules
    assert list(environment_archive.uncompiled_files(here.editable["hopsml"] / "errors.py")) == [
        (here.editable["hopsml"] / "errors.py", "errors.py")
    ]


def test_shipment_sets_archive_and_python_of_driver_and_executors() -> None:
    url = "hdfs://ns1/env.tar.gz"
    cluster = shipping.plan_shipment(url, YARN).settings({"spark.yarn.dist.archives": "a.zip#a"}, "cluster")
    assert cluster["spark.yarn.dist.archives"] == f"a.zip#a,{url}#environment"
    assert cluster["spark.yarn.appMasterEnv.PYSPARK_PYTHON"] == cluster["spark.executorEnv.PYSPARK_PYTHON"]
    client = shipping.plan_shipment(url, YARN).settings({}, "client")
    assert client["spark.pyspark.python"] == "./environment/bin/python"
    assert client["spark.pyspark.driver.python"] == sys.executable
    assert shipping.Shipment().settings({}, "cluster") == {}


def test_shipping_mode_is_checked_against_the_profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    local = profiles.parse("l", "master: local-cluster[2,1,512]\n", "l.yaml")
    assert shipping.plan_shipment("never", YARN) == shipping.plan_shipment("auto", local) == shipping.Shipment()
    planned = shipping.plan_shipment("auto", YARN)
    assert (
        planned.url == f"hdfs://ns1/Projects/p/environments/{settings.user_name()}/{Environment.current().hash}.tar.gz"
    )
    with pytest.raises(ArgumentError, match="'always': profile 'l' has master local-cluster"):
        shipping.plan_shipment("always", local)
    with pytest.raises(ArgumentError, match="'sometimes': the value must be never, auto, always, or the URL"):
        shipping.plan_shipment("sometimes", YARN)
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{tmp_path}")
    with pytest.raises(ArgumentError, match="nodes cannot read this disk"):
        shipping.plan_shipment("auto", dataclasses.replace(YARN, store=""))


def test_module_list_of_an_archive_is_not_requested_over_http(tmp_path: Path) -> None:
    """The script imports a missing module, which a readable list would refuse."""
    requested: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requested.append(self.path)
            self.send_error(404)

        do_HEAD = do_GET

        def log_message(self, *args: object) -> None:
            """Nothing."""

    script = tmp_path / "script.py"
    script.write_text("import nowhere_to_be_found\n")
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        shipment = shipping.Shipment(f"http://127.0.0.1:{server.server_port}/e.tar.gz")
        shipping.check_imports(str(script), shipment, {}, YARN)
        server.shutdown()
        thread.join()
    assert requested == []
    (tmp_path / "e.json").write_text('{"modules": []}')
    with pytest.raises(ArgumentError, match="lacks nowhere_to_be_found"):
        shipping.check_imports(str(script), shipping.Shipment(f"file://{tmp_path}/e.tar.gz"), {}, YARN)
