"""Names of the predecessor and of Maggy with code that uses them; the source of docs/compatibility.md.

``python -m tests.helpers.compatibility`` runs all of them and writes the table again.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hopsml import devices, experiment, hdfs, model, numpy_helper, pandas_helper, serving, tensorboard, tflauncher, util
from hopsml.errors import HopsmlError
from hopsml.maggy import Searchspace, Trial
from hopsml.maggy import config as configs
from hopsml.maggy import experiment as maggy
from hopsml.maggy.ablation import AblationStudy
from hopsml.maggy.optimizer import GP, TPE, AbstractOptimizer, Asha, GridSearch, RandomSearch, SingleRun
from hopsml.maggy.tensorboard import logdir
from tests.helpers.local_application import local_application
from tests.helpers.predecessor_names import NAMES

TABLE = Path(__file__).parents[2] / "docs" / "compatibility.md"
HEAD = """# Compatibility with hops and Maggy

In existing code replace `hops` by `hopsml`, and `maggy` by `hopsml.maggy`. Both tables are generated (`python -m
tests.helpers.compatibility`). The first one lists what published programs use, each with a few lines that are run: it works,
or the table has the message with which it is refused. The second one lists [every public name](#every-public-name).

A row states that the call works; two kinds of programs also need a change or a package:

- `parameter_server`: `tf.distribute.experimental.ParameterServerStrategy()` without arguments has left TensorFlow. Build the
  strategy by `hopsml.tensorflow.strategy()`, and train with `hopsml.tensorflow.ServerLoop`: [Train with parameter
  servers](how-to/parameter-servers.md).
- `serving.start` and requests to a serving: install the extra `serving` (`pip install 'hopsml-spark[serving]'`): [Serve
  models](how-to/serving.md).
"""
NAMES_HEAD = """
## Every public name

A name is offered by the module of `hopsml` with the same name, or it is refused with what to use instead: by an
AttributeError where it is looked up, by an ImportError where it is imported.

| module | names | |
|---|---|---|"""


@dataclass(frozen=True)
class Row:
    """``use`` returns a true value. ``refused``: it raises the replacement's name. ``slow``: TensorFlow starts."""

    module: str
    name: str
    use: Callable[[], Any]
    refused: bool = False
    slow: bool = False

    def outcome(self) -> str:
        """Return the outcome as the table states it."""
        if self.refused:
            with pytest.raises((HopsmlError, AttributeError, ImportError)) as caught:
                self.use()
            return "refused: " + " ".join(str(caught.value).split())
        found = self.use()
        assert found, f"{self.module}.{self.name} gave {found!r}"
        return "works"

    @property
    def start(self) -> str:
        """Return the beginning of its line."""
        return f"| `{self.module}` | `{self.name}` | "

    def line(self) -> str:
        """Run it, and return its line."""
        return f"{self.start}{self.outcome()} |"


@contextmanager
def application(folder: Path) -> Iterator[Path]:
    """Start local workers and a project with everything that the rows need."""
    with local_application(folder) as project, pytest.MonkeyPatch.context() as patch:
        (folder / "cwd").mkdir()
        patch.chdir(folder / "cwd")
        patch.setenv("HOPSML_SERVING_FOLDER", str(folder / "serving"))
        patch.setattr(sys, "path", list(sys.path))
        Path("local.txt").write_text("x")
        hdfs.dump("a,b\n1,2\n", "Resources/t.csv")
        hdfs.dump("VALUE = 1\n", "Resources/row_module.py")
        yield project
        hdfs.files._module_folder().cleanup()  # as at the end of the process
        hdfs.files._module_folder.cache_clear()
        sys.modules.pop("row_module", None)


QUIET: dict[str, Any] = {"progress": False, "keep_warm": 120.0}
FEW: dict[str, Any] = {**QUIET, "max_executors": 2, "seed": 1}
SPACE = Searchspace(x=("DOUBLE", [0.0, 1.0]))
LISTED = Searchspace(x=("DISCRETE", [1, 2]))


def in_worker(function: Callable[[], Any], **options: Any) -> Any:
    return experiment.launch(function, **QUIET, **options).value


def session() -> Any:
    return type("SparkSession", (), {"__module__": "pyspark.sql.session"})()


def unpacked(result: Any, size: int) -> bool:
    return len(result) == size and isinstance(result[0], str) and hdfs.isdir(result[0])


# ---------------------------------------------------------------------------------------------------- experiment


def begin_and_end() -> bool:
    return hdfs.exists(experiment.begin("row") + "/run.json") and experiment.end(1.0) is None


EXPERIMENT = [
    Row("experiment", "launch(train)", lambda: unpacked(experiment.launch(lambda: 1, **QUIET), 2)),
    Row("experiment", "launch(train, args_dict)", lambda: experiment.launch(lambda a: a, {"a": [1, 2]}, **QUIET)[1] is None),
    Row("experiment", "grid_search", lambda: unpacked(experiment.grid_search(lambda a: a, {"a": [1, 2]}, **FEW), 3)),
    Row(
        "experiment", "random_search",
        lambda: unpacked(experiment.random_search(lambda a: a, {"a": [1, 9]}, samples=2, **FEW), 3),
    ),
    Row(
        "experiment", "differential_evolution",
        lambda: unpacked(
            experiment.differential_evolution(lambda a: a, {"a": [0.0, 1.0]}, generations=2, population=4, **FEW), 3
        ),
    ),
    Row(
        "experiment", "evolutionary_search",
        lambda: unpacked(
            experiment.evolutionary_search(session(), lambda a: a, {"a": [0.0, 1.0]}, generations=2, popsize=4, **FEW), 3
        ),
    ),
    Row(
        "experiment", "collective_all_reduce",
        lambda: unpacked(experiment.collective_all_reduce(lambda: 1, num_workers=2, **QUIET), 2),
    ),
    Row("experiment", "horovod(train)", lambda: unpacked(experiment.horovod(lambda: 1, num_workers=1, **QUIET), 2)),
    Row("experiment", "horovod(notebook)", lambda: experiment.horovod(session(), "Jupyter/hvd.ipynb"), refused=True),
    Row("experiment", "mirrored", lambda: unpacked(experiment.mirrored(session(), lambda: 1, "row", True, **QUIET), 2)),
    Row(
        "experiment", "mirrored(evaluator=True)",
        lambda: experiment.mirrored(lambda: 1, evaluator=True, **QUIET), refused=True,
    ),
    Row(
        "experiment", "parameter_server",
        lambda: unpacked(experiment.parameter_server(lambda: {"metric": 1}, "row", evaluator=True, **QUIET), 2),
        slow=True,
    ),
    Row("experiment", "train_and_evaluate", lambda: experiment.train_and_evaluate, refused=True),
    Row("experiment", "begin, end", begin_and_end),
    Row("experiment", "Direction", lambda: (experiment.Direction.MAX, experiment.Direction.MIN) == ("MAX", "MIN")),
    Row("tflauncher", "launch", lambda: unpacked(tflauncher.launch(session(), lambda a: a, {"a": [1]}, **QUIET), 2)),
    Row("allreduce", "launch", lambda: importlib.import_module("hopsml").allreduce, refused=True),
]  # fmt: skip

# ------------------------------------------------------------------------------------------------ tensorboard, devices, util


def visualize() -> bool:
    """Run in a subprocess until it is interrupted."""
    run = experiment.launch(lambda: 1, **QUIET)
    code = f"import hopsml; hopsml.tensorboard.visualize({run.logdir!r})"
    environment = {**os.environ, "PYTHONPATH": str(TABLE.parents[1])}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment) as page:
        assert page.stdout is not None
        first_line = page.stdout.readline().decode()
        page.send_signal(signal.SIGINT)
    return "http://127.0.0.1:" in first_line and page.returncode == 0


AROUND = [
    Row("tensorboard", "logdir()", lambda: in_worker(lambda: os.path.isdir(tensorboard.logdir()))),
    Row(
        "tensorboard", "local_logdir_bool", lambda: in_worker(lambda: tensorboard.local_logdir_bool, local_logdir=True)
    ),
    Row("tensorboard", "visualize", visualize, slow=True),
    Row("tensorboard", "interactive_debugger", lambda: tensorboard.interactive_debugger, refused=True),
    Row("tensorboard", "non_interactive_debugger", lambda: tensorboard.non_interactive_debugger, refused=True),
    Row("devices", "get_num_gpus", lambda: devices.get_num_gpus() >= 0),
    Row("util", "num_executors", lambda: util.num_executors(session()) >= 1),
    Row("util", "num_param_servers", lambda: util.num_param_servers() == 0),
    Row("util", "grid_params", lambda: util.grid_params({"a": [1, 2], "b": [3]}) == {"a": [1, 2], "b": [3, 3]}),
]


# ---------------------------------------------------------------------------------------------------- hdfs


def copied_up() -> bool:
    hdfs.copy_to_hdfs("local.txt", "Logs", overwrite=True)
    return hdfs.load("Logs/local.txt") == b"x"


def done(function: Callable[..., Any], *arguments: Any) -> bool:
    hdfs.dump("x", "Logs/f")
    hdfs.mkdir("Logs/d")
    return function(*arguments) is None


HDFS: dict[str, Callable[[], Any]] = {
    "project_path": lambda: hdfs.project_path().endswith("/"),
    "project_name": hdfs.project_name,
    "project_user": lambda: "__" in hdfs.project_user(),
    "project_id": hdfs.project_id,
    "abs_path": lambda: hdfs.abs_path("Resources").endswith("Resources"),
    "get_plain_path": lambda: hdfs.get_plain_path("hdfs://nn:8020/Projects/p/x") == "/Projects/p/x",
    "copy_to_hdfs": copied_up,
    "copy_to_local": lambda: os.path.isfile(hdfs.copy_to_local("Resources/t.csv")),
    "copy_from_project": lambda: os.path.isfile(hdfs.copy_from_project("Resources/t.csv")),
    "cp": lambda: done(hdfs.cp, "Logs/f", "Logs/copy", True) and hdfs.exists("Logs/copy"),
    "move": lambda: done(hdfs.move, "Logs/f", "Logs/moved") and hdfs.exists("Logs/moved"),
    "rename": lambda: done(hdfs.rename, "Logs/f", "Logs/renamed") and hdfs.exists("Logs/renamed"),
    "dump, load": lambda: done(hdfs.dump, b"y", "Logs/g") and hdfs.load("Logs/g") == b"y",
    "open_file": lambda: hdfs.open_file("Resources/t.csv").read().startswith(b"a,b"),
    "get": lambda: hdfs.get().exists("Resources"),
    "get_fs": lambda: hdfs.get_fs().open_file("Resources/t.csv").read(1) == b"a",
    "ls": lambda: any(path.endswith("t.csv") for path in hdfs.ls("Resources")),
    "lsl": lambda: hdfs.lsl("Resources")[0]["kind"] == "file",
    "glob": lambda: len(hdfs.glob("Resources/*.csv")) == 1,
    "mkdir": lambda: done(hdfs.mkdir, "Logs/a/b") and hdfs.isdir("Logs/a/b"),
    "rmr": lambda: done(hdfs.rmr, "Logs/d") and not hdfs.exists("Logs/d"),
    "delete": lambda: done(hdfs.delete, "Logs/f") and not hdfs.exists("Logs/f"),
    "exists": lambda: hdfs.exists("Resources"),
    "isdir": lambda: hdfs.isdir("Resources"),
    "isfile": lambda: hdfs.isfile("Resources/t.csv"),
    "stat": lambda: hdfs.stat("Resources/t.csv").st_size == 8,
    "access": lambda: hdfs.access("Resources/t.csv", os.R_OK),
    "chmod": lambda: done(hdfs.chmod, "Logs/f", 750) and hdfs.stat("Logs/f").st_mode & 0o777 == 0o750,
    "chown": lambda: done(hdfs.chown, "Logs/f", "", ""),
    "capacity": lambda: hdfs.capacity() > 0,
    "close": lambda: done(hdfs.close),
    "log": lambda: done(hdfs.log, "a line"),
    "add_module": lambda: hdfs.add_module("Resources/row_module.py") in sys.path,
    "is_tls_enabled": lambda: hdfs.is_tls_enabled() is False,
    "get_webhdfs_host": lambda: with_hadoop(hdfs.get_webhdfs_host) == "nn.example",
    "get_webhdfs_port": lambda: with_hadoop(hdfs.get_webhdfs_port) == 9870,
}


def with_hadoop(ask: Callable[[], Any]) -> Any:
    """Set a client configuration as on a cluster."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        properties = {"fs.defaultFS": "hdfs://nn.example:8020", "dfs.namenode.http-address": "nn.example:9870"}
        rows = "".join(f"<property><name>{k}</name><value>{v}</value></property>" for k, v in properties.items())
        for name in ("core-site.xml", "hdfs-site.xml"):
            Path(folder, name).write_text(f"<configuration>{rows}</configuration>")
        patch.setenv("HADOOP_CONF_DIR", folder)
        return ask()


# ---------------------------------------------------------------------------------------------------- numpy, pandas


def through_numpy(write: str, read: str, ending: str, **options: Any) -> bool:
    getattr(numpy_helper, write)(f"Resources/row{ending}", [1.0, 2.0])
    found = getattr(numpy_helper, read)(f"Resources/row{ending}", **options)
    return list(found if ending == ".npy" else found["arr_0"]) == [1.0, 2.0]


def from_raw(read: str) -> bool:
    hdfs.dump(bytes(16), "Resources/raw")
    return getattr(numpy_helper, read)("Resources/raw", dtype="float64").tolist() == [0.0, 0.0]


def from_text(read: str, **options: Any) -> bool:
    return len(getattr(numpy_helper, read)("Resources/t.csv", **options)) > 0


def through_pandas(write: str, read: str, ending: str) -> bool:
    import pandas

    frame = pandas.DataFrame({"a": [1, 2]})
    getattr(pandas_helper, write)(f"Resources/row{ending}", frame, **({"index": False} if ending == ".csv" else {}))
    return bool(getattr(pandas_helper, read)(f"Resources/row{ending}").equals(frame))


def from_excel() -> bool:
    import importlib.util

    assert importlib.util.find_spec("openpyxl") is None, "now it can be tried"
    with pytest.raises(ImportError, match="openpyxl"):  # pandas' own reader, which is not among our packages
        pandas_helper.read_excel("Resources/t.csv", engine="openpyxl")
    return True


HELPERS = [
    Row("numpy_helper", "save, load", lambda: through_numpy("save", "load", ".npy")),
    Row("numpy_helper", "savez", lambda: through_numpy("savez", "load", ".npz")),
    Row("numpy_helper", "savez_compressed", lambda: through_numpy("savez_compressed", "load", ".npz")),
    Row("numpy_helper", "loadtxt", lambda: from_text("loadtxt", delimiter=",", skiprows=1)),
    Row("numpy_helper", "genfromtxt", lambda: from_text("genfromtxt", delimiter=",")),
    Row(
        "numpy_helper",
        "fromregex",
        lambda: from_text("fromregex", regexp=rb"(\d),(\d)", dtype=[("a", int), ("b", int)]),
    ),
    Row("numpy_helper", "fromfile", lambda: from_raw("fromfile")),
    Row("numpy_helper", "memmap", lambda: from_raw("memmap")),
    Row("pandas_helper", "write_csv, read_csv", lambda: through_pandas("write_csv", "read_csv", ".csv")),
    Row(
        "pandas_helper",
        "write_parquet, read_parquet",
        lambda: through_pandas("write_parquet", "read_parquet", ".parquet"),
    ),
    Row("pandas_helper", "write_json, read_json", lambda: through_pandas("write_json", "read_json", ".json")),
    Row("pandas_helper", "read_excel", from_excel),
    Row(
        "pandas_helper", "read_csv(path, ';')", lambda: list(pandas_helper.read_csv("Resources/t.csv", ";")) == ["a,b"]
    ),
]

# ---------------------------------------------------------------------------------------------------- Maggy


def lagom(optimizer: Any, space: Any = LISTED, **more: Any) -> bool:
    found = maggy.lagom(
        lambda x=1, budget=1: float(x),
        searchspace=space,
        optimizer=optimizer,
        num_trials=more.pop("num_trials", 4),
        **FEW,
        **more,
    )
    return found["best_val"] is not None and found["best_hp"] == found["best_config"]


class Own(AbstractOptimizer):
    """Searcher of two trials."""

    def initialize(self) -> None:
        self.left = [{"x": 1}, {"x": 2}]

    def get_suggestion(self, trial: Trial | None = None) -> Trial | None:
        return Trial(self.left.pop()) if self.left else None

    def finalize_experiment(self, trials: list[Trial]) -> None:
        assert len(trials) == 2


def ablated() -> bool:
    study = AblationStudy("titanic", 1, "survived", dataset_generator=lambda ablated_feature=None: [ablated_feature])
    study.features.include("age")
    study.model.set_base_model_generator(lambda: None)
    found = maggy.lagom(lambda dataset_function: float(len(dataset_function())), configs.AblationConfig(study), **FEW)
    return len(found["effects"]) == 2


def distributed() -> bool:
    found = maggy.lagom(lambda hparams: 1.0, configs.TfDistributedConfig(hparams={"a": 1}), max_executors=1, **QUIET)
    return bool(found == {"metric": 1.0, "num_workers": 1})


def keras_callback(name: str) -> Callable[[], Any]:
    def use() -> Any:
        callbacks = importlib.import_module("hopsml.maggy.callbacks")
        broadcasts: list[Any] = []
        reporter = type("R", (), {"broadcast": lambda self, value, step: broadcasts.append((value, step))})()
        made = getattr(callbacks, name)(reporter, "loss")
        made.on_train_batch_end(0, {"loss": 0.5})
        made.on_epoch_end(0, {"loss": 0.5})
        return broadcasts == [(0.5, 0)]

    return use


def with_config(config: Callable[[], Any], function: Any = lambda x: float(x)) -> Callable[[], Any]:
    return lambda: maggy.lagom(function, config(), **FEW)["best_val"] is not None


def imported(name: str) -> Any:
    return importlib.import_module(f"hopsml.{name}")


def by_itself() -> bool:
    optimizer = RandomSearch()
    optimizer.num_trials, optimizer.searchspace = 1, SPACE
    optimizer.initialize()
    return isinstance(optimizer.get_suggestion(), Trial) and optimizer.get_suggestion() is None


MAGGY = [
    Row("maggy.experiment", "lagom(train_fn, searchspace=...)", lambda: lagom("randomsearch", SPACE)),
    Row("maggy.config", "HyperparameterOptConfig", with_config(lambda: configs.HyperparameterOptConfig(2, "tpe", SPACE))),
    Row("maggy.config", "OptimizationConfig", with_config(lambda: configs.OptimizationConfig(2, "randomsearch", SPACE))),
    Row("maggy.config", "BaseConfig", with_config(lambda: configs.BaseConfig(), lambda: 1.0)),
    Row("maggy.config", "AblationConfig", ablated),
    Row("maggy.config", "TfDistributedConfig", distributed, slow=True),
    Row("maggy.config", "TorchDistributedConfig", with_config(lambda: configs.TorchDistributedConfig()), refused=True),
    *(
        Row("maggy.experiment_config", name, lambda name=name: imported(f"maggy.experiment_config.{name}"))  # type: ignore[misc]
        for name in ("ablation", "lagom", "optimization", "tf_distributed", "torch_distributed")
    ),
    *(
        Row("maggy.optimizer", f"'{name}'", lambda name=name, space=space: lagom(name, space))  # type: ignore[misc]
        for name, space in (
            ("randomsearch", SPACE), ("gridsearch", LISTED), ("asha", SPACE), ("tpe", SPACE), ("gp", SPACE),
            ("none", Searchspace()),
        )
    ),
    *(
        Row("maggy.optimizer", type(one).__name__, lambda one=one, space=space: lagom(one, space))  # type: ignore[misc]
        for one, space in ((RandomSearch(), SPACE), (GridSearch(), LISTED), (Asha(), SPACE), (SingleRun(), Searchspace()))
    ),
    Row("maggy.optimizer", "RandomSearch().initialize()", by_itself),
    Row("maggy.optimizer", "AbstractOptimizer", lambda: lagom(Own())),
    *(
        Row("maggy.optimizer.bayes", type(one).__name__, lambda one=one: lagom(one, SPACE))  # type: ignore[misc]
        for one in (GP(num_warmup_trials=2), TPE(num_warmup_trials=2))
    ),
    Row(
        "maggy.optimizer.bayes", "pruner='hyperband'",
        lambda: lagom(TPE(pruner="hyperband", pruner_kwargs={"max_budget": 2, "eta": 2, "n_iterations": 1}), SPACE),
    ),
    Row("maggy.optimizer.bayes", "interim_results=True", lambda: TPE(interim_results=True), refused=True),
    Row("maggy", "Searchspace", lambda: Searchspace(x=("integer", [1, 2])).add("y", ("DOUBLE", [0.0, 1.0])) is None),
    Row("maggy", "Trial.to_json, from_json", lambda: Trial.from_json(Trial({"x": 1}).to_json()) == Trial({"x": 1})),
    Row("maggy.tensorboard", "logdir", lambda: logdir is tensorboard.logdir),
    Row("maggy.callbacks", "KerasBatchEnd", keras_callback("KerasBatchEnd"), slow=True),
    Row("maggy.callbacks", "KerasEpochEnd", keras_callback("KerasEpochEnd"), slow=True),
]  # fmt: skip


def exported(**named: Any) -> Any:
    return model.export("local.txt", "row", metrics={"accuracy": 0.5}, description="a row", **named)


def export_in_worker() -> bool:
    def train() -> None:
        Path("model.txt").write_text("trained")
        model.export(model_path="model.txt", model_name="trained", metrics={"accuracy": 0.9}, synchronous_timeout=60)

    found = experiment.launch(train, **QUIET)
    return model.get_model("trained").description.lineage.run_url == found.run_dir


MODEL = [
    Row("model", "export(model_path, model_name)", lambda: exported(synchronous=True)["version"] >= 1),
    Row("model", "export(model_version=, overwrite=)", lambda: exported(model_version=7, overwrite=True).version == 7),
    Row("model", "export in the training function", export_in_worker),
    Row("model", "get_model", lambda: exported() and model.get_model("row", 1).training_metrics["accuracy"] == 0.5),
    Row(
        "model", "get_best_model",
        lambda: exported() and model.get_best_model("row", "accuracy", model.Metric.MAX)["metrics"] == {"accuracy": 0.5},
    ),
    Row("model", "get_best_model(unknown metric)",
        lambda: exported() and model.get_best_model("row", "nothing", "MAX"), refused=True),
    Row("model", "ModelNotFound", lambda: issubclass(model.ModelNotFound, LookupError)),
    Row("model", "ModelArchiveExists", lambda: issubclass(model.ModelArchiveExists, ValueError)),
]  # fmt: skip


def estimator() -> str:
    """Return the path of a model that can be served; each export is a further version."""
    from sklearn.linear_model import LinearRegression

    return model.export(LinearRegression().fit([[0.0], [1.0]], [0.0, 2.0]), "line").model_path


def created(*given: Any, **named: Any) -> bool:
    """True if a call understands its arguments: the first version of the model "line"."""
    estimator()
    serving.create_or_update(*given, **named)
    found = serving.get("line")
    return found is not None and (found.model_name, found.model_version) == ("line", 1)


def served() -> bool:
    """Create, call and delete a serving, as code of the predecessor does."""
    serving.create_or_update("line", estimator(), "TENSORFLOW_SERVING", model_version=1, instances=1)
    serving.start("line")
    try:
        answer = serving.make_inference_request("line", {"signature_name": "serving_default", "instances": [[3.0]]})
        running = serving.get_status("line")
    finally:
        serving.stop("line")
    return bool(
        (running, serving.get_status("line")) == ("Running", "Stopped") and round(answer["predictions"][0]) == 6
    )


def returns(getter: Callable[[str], Any], wanted: Any) -> Callable[[], bool]:
    return lambda: created("line", "Models/line", "PYTHON", 1) and getter("line") == wanted


def deleted() -> bool:
    return created("line", "Models/line/1") and serving.delete("line") is None and not serving.exists("line")


SERVING = [
    Row("serving", "create_or_update(serving_name, model_path, model_server, model_version)",
        lambda: created("line", "Models/line", "TENSORFLOW_SERVING", 1)),
    Row("serving", "create_or_update(serving_name, model_path, model_version, artifact_version, transformer, model_server)",
        lambda: created("line", "Models/line", 1, None, None, "PYTHON")),
    Row("serving", "create_or_update(serving_name, artifact_path, model_version, model_server)",
        lambda: created("line", "Models/line/1", 1, "TENSORFLOW_SERVING")),
    Row("serving", "create_or_update(artifact_path, serving_name, serving_type, model_version)",
        lambda: created("Models/line", "line", "TENSORFLOW", 1)),
    Row("serving", "create_or_update(kfserving=, batching_enabled=, topic_name=)",
        lambda: created("line", "Models/line", "PYTHON", 1, kfserving=False, batching_enabled=True, topic_name="NONE")),
    Row("serving", "create_or_update(predictor=)",
        lambda: serving.create_or_update("line", "Models/line", "PYTHON", predictor="Resources/p.py"), refused=True),
    Row("serving", "create_or_update(transformer=)",
        lambda: serving.create_or_update("line", "Models/line", "PYTHON", transformer="Resources/t.py"), refused=True),
    Row("serving", "start, stop, get_status, make_inference_request", served),
    Row("serving", "exists", lambda: not serving.exists("nothing") and returns(serving.exists, True)()),
    Row("serving", "get, get_id", lambda: returns(serving.get_id, serving.get("line").id)()),
    Row("serving", "get_all", lambda: returns(lambda name: [one.name for one in serving.get_all()], ["line"])()),
    Row("serving", "get_model_path", lambda: returns(serving.get_model_path, model.get_model("line").model_path)()),
    Row("serving", "get_model_name", returns(serving.get_model_name, "line")),
    Row("serving", "get_model_version", returns(serving.get_model_version, 1)),
    Row("serving", "get_model_server", returns(serving.get_model_server, "PYTHON")),
    Row(
        "serving",
        "get_type, get_version",
        lambda: returns(serving.get_type, "PYTHON")() and returns(serving.get_version, 1)(),
    ),
    Row("serving", "get_artifact_path", lambda: returns(serving.get_artifact_path, f"{hdfs.project_path()}Models/line/1")()),
    Row("serving", "get_available_instances", returns(serving.get_available_instances, 0)),
    Row("serving", "create_or_update('Resources/script.py', ...)",
        lambda: serving.create_or_update("Resources/row_module.py", "line", "SKLEARN"), refused=True),
    Row("serving", "export(model_path, model_name)",
        lambda: serving.export("local.txt", "exported").endswith("/exported/1")),
    Row("serving", "describe", lambda: created("line", "Models/line/1") and serving.describe("line") is None),
    Row("serving", "delete", deleted),
    Row("serving", "ServingNotFound", lambda: issubclass(serving.ServingNotFound, LookupError)),
]  # fmt: skip

ELSEWHERE = [
    Row("hops", name, lambda name=name: getattr(importlib.import_module("hopsml"), name), refused=True)  # type: ignore[misc]
    for name in (
        "jobs", "dataset", "project", "featurestore", "kafka", "hive", "elasticsearch", "secret",
        "service_discovery", "tls", "user", "xattr",
    )
]  # fmt: skip

FILES = [Row("hdfs", name, use, refused=name == "project_id") for name, use in HDFS.items()]
ROWS = [
    *EXPERIMENT,
    *AROUND,
    *FILES,
    *HELPERS,
    *MAGGY,
    *MODEL,
    *SERVING,
    *ELSEWHERE,
]


def outcome_of_name(module: str, name: str) -> str:
    """Return "offered", or the message without the name with which a name of the predecessor is refused."""
    try:
        getattr(importlib.import_module(f"hopsml.{module}"), name)
    except (AttributeError, ImportError) as refused:
        return "refused: " + str(refused).partition(" does not exist; ")[2]
    return "offered"


def names_table() -> list[str]:
    """Return the second table's lines: names of a module with the same outcome are in one line."""
    lines = []
    for module, names in NAMES.items():
        try:
            importlib.import_module(f"hopsml.{module}")
        except ImportError as refused:
            listed = ", ".join(f"`{name}`" for name in names) or "all"
            lines.append(f"| `{module}` | {listed} | refused: {str(refused).partition(' does not exist; ')[2]} |")
            continue
        outcomes: dict[str, list[str]] = {}
        for name in names:
            outcomes.setdefault(outcome_of_name(module, name), []).append(f"`{name}`")
        lines += [f"| `{module}` | {', '.join(some)} | {outcome} |" for outcome, some in outcomes.items()]
    return lines


def page(lines: list[str]) -> str:
    """Return the whole page, from the lines of its first table."""
    return "\n".join([HEAD, "| module | name | |", "|---|---|---|", *lines, NAMES_HEAD, *names_table(), ""])


def main() -> None:
    """Run all rows; write the page."""
    with tempfile.TemporaryDirectory() as folder, application(Path(folder)):
        lines = [row.line() for row in ROWS]
    TABLE.write_text(page(lines))


if __name__ == "__main__":
    main()
