"""Public names of the predecessor (hops) and of Maggy that hopsml does not offer, each with what to use instead. Pure.

``hopsml.<module>.<name>`` raises AttributeError with this text, and its import ModuleNotFoundError.
"""

from __future__ import annotations

from collections.abc import Iterable

from hopsml.core import suggestions, tracebacks

_HOPSWORKS = "the client of Hopsworks (package hopsworks), since this is a service of Hopsworks"
_OTHER_STRATEGY = "hopsml.experiment.collective_all_reduce(train), whose function builds hopsml.tensorflow.strategy()"
_DEBUGGER = (
    "tf.debugging.experimental.enable_dump_debug_info(hopsml.tensorboard.logdir()) and TensorBoard's Debugger V2, as "
    "TensorFlow 1's sessions are gone"
)
_OF_RESULT = "the result of the verb: result.run_id, result.run_dir, result.logdir"
_TENSORBOARD = "hopsml.tensorboard.logdir() in the function, and result.logdir outside"
_NO_SCRIPTS = (
    "hopsml.serving.get_model_path(name): predictor and transformer scripts are not supported; export the model with "
    "its pre- and postprocessing"
)
_ADDRESS = "hopsml.serving.status(name).url"
_STOPPING = "es_policy='median' or 'none' of lagom, or stopper= of hopsml.experiment.search"
_PRUNER = "pruner='hyperband' and pruner_kwargs= of hopsml.maggy.optimizer.GP and TPE"
_ABLATOR = "ablator='loco' of hopsml.maggy.config.AblationConfig"
_INTERNAL = "the public names of hopsml.maggy: this was internal to Maggy"
_OWN_OPTIMIZER = "a subclass of hopsml.maggy.optimizer.AbstractOptimizer"

# Module -> name -> what to use.
INSTEAD: dict[str, dict[str, str]] = {
    "hopsml": {
        "allreduce": "hopsml.experiment.collective_all_reduce(train), which works without MPI",
        "beam": "the package apache-beam, with its own runners",
        "constants": "the arguments of hopsml's functions, whose values are texts such as 'TENSORFLOW_SERVING'",
        "credentials_provider": "the credentials of the cloud's own client (package boto3)",
        "dataset": "hopsml.hdfs.copy_to_hdfs and copy_to_local",
        "differential_evolution": "hopsml.experiment.differential_evolution",
        "distribute": "hopsml.experiment.collective_all_reduce, mirrored and parameter_server",
        "exceptions": "hopsml.errors",
        "experiment_impl": "hopsml.experiment",
        "facets": "the package facets-overview",
        "featurestore_impl": _HOPSWORKS,
        "grid_search": "hopsml.experiment.grid_search",
        "jobs": "`hopsml submit`, or HopsMLOperator of hopsml.airflow",
        "launcher": "hopsml.experiment.launch",
        "project": "HOPSML_PROJECT_URL, the URL of the project's folder",
        "random_search": "hopsml.experiment.random_search",
        "version": "hopsml.__version__",
        **dict.fromkeys(
            (
                "elasticsearch", "featurestore", "hive", "kafka", "secret", "service_discovery", "tls", "user", "xattr",
            ),
            _HOPSWORKS,
        ),
    },
    "hopsml.experiment": {
        "allreduce": _OTHER_STRATEGY,
        "train_and_evaluate": f"{_OTHER_STRATEGY} and calls model.fit: Estimators have left TensorFlow",
        **dict.fromkeys(
            ("app_id", "driver_tensorboard_hdfs_path", "elastic_id", "experiment_json", "run_id", "running"), _OF_RESULT
        ),
    },
    "hopsml.tensorboard": {
        "interactive_debugger": _DEBUGGER,
        "non_interactive_debugger": _DEBUGGER,
        **dict.fromkeys(("events_logdir", "local_logdir_path", "root_logdir_path"), _TENSORBOARD),
        **dict.fromkeys(
            ("debugger_endpoint", "endpoint", "pypath", "tb_path", "tb_pid", "tb_port", "tb_url"),
            "hopsml.tensorboard.visualize(result.logdir), or `hopsml runs tensorboard RUN`",
        ),
    },
    "hopsml.devices": {
        "get_gpu_info": "hopsml.devices.get_num_gpus(), and for names and memory the framework's own functions "
        "(torch.cuda.get_device_properties, tf.config.experimental.get_device_details) or `nvidia-smi`",
    },
    "hopsml.hdfs": {
        "fd": "hopsml.hdfs.log(text)",
        "localize": "hopsml.hdfs.copy_to_local(path)",
        "pydoop_available": "hopsml.hdfs, which needs no pydoop",
        "tls_enabled": "hopsml.hdfs.is_tls_enabled()",
        "webhdfs_address": "hopsml.hdfs.get_webhdfs_host() and get_webhdfs_port()",
    },
    "hopsml.model": {
        "download_model": "hopsml.model.find(name, version).local_files(), which returns a folder with the files",
    },
    "hopsml.serving": {
        "Serving": "hopsml.serving.ServingEntry",
        "get_artifact_version": "hopsml.serving.get_model_version(name): a version of the registry is model and artifact",
        "get_internal_endpoints": _ADDRESS,
        "get_kafka_topic": "create_or_update(..., inference_logging='ALL'), which writes a log of requests and answers",
        "get_predictor": _NO_SCRIPTS,
        "get_predictor_resource_config": "hopsml.serving.status(name): replicas and machines; a profile sets their cores",
        "get_serving_endpoint": _ADDRESS,
        "get_serving_tool": "hopsml.serving.get_model_server(name): there is one tool",
        "get_transformer": _NO_SCRIPTS,
    },
    "hopsml.util": {
        "abspath": "hopsml.hdfs.abs_path(path)",
        "get_hadoop_classpath_glob": "the command `hadoop classpath --glob`",
        "get_hadoop_home": "os.environ['HADOOP_HOME']",
        "get_job_name": "hopsml.job",
        **dict.fromkeys(
            (
                "attach_jupyter_configuration_to_notebook", "connect", "elastic_endpoint", "get_api_key_aws",
                "get_flink_conf_dir", "get_flink_lib_dir", "get_jwt", "get_notebook_kernel_id",
                "get_redshift_username_password", "get_requests_verify", "get_secret", "hopsworks_endpoint", "http",
                "notebook_post_save", "parse_redhift_jdbc_url", "send_request", "session", "set_auth_header", "verify",
                "write_b64_cert_to_bytes",
            ),
            _HOPSWORKS,
        ),
    },
    "hopsml.maggy": {
        "constants": _INTERNAL,
        "core": _INTERNAL,
        "earlystop": _STOPPING,
        "pruner": _PRUNER,
        "tb_experimental": "hopsml.maggy.tensorboard",
        "util": _INTERNAL,
        "version": "hopsml.__version__",
    },
    "hopsml.maggy.ablation": {
        "AbstractAblator": _ABLATOR,
        "LOCO": _ABLATOR,
        "ablationstudy": "hopsml.maggy.ablation.AblationStudy",
        "ablator": _ABLATOR,
    },
    "hopsml.maggy.experiment": {
        "launch": "hopsml.maggy.experiment.lagom, its later name",
        **dict.fromkeys(
            (
                "APP_ID", "EXPERIMENT_JSON", "RUNNING", "RUN_ID", "app_id", "driver_tensorboard_hdfs_path", "elastic_id",
                "experiment_json", "run_id", "running",
            ),
            "`hopsml runs ls`, or the file result.json of the run directory",
        ),
        **dict.fromkeys(("experiment", "experiment_pyspark", "experiment_python", "lagom_driver"), "lagom"),
    },
    "hopsml.maggy.optimizer": {
        "BaseAsyncBO": _OWN_OPTIMIZER,
        **dict.fromkeys(("abstractoptimizer", "asha", "gridsearch", "randomsearch", "singlerun"), "hopsml.maggy.optimizer"),
        **dict.fromkeys(("acquisitions", "gp", "tpe"), "hopsml.maggy.optimizer.GP and TPE"),
    },
    "hopsml.maggy.tensorboard": {"tensorboard_dir": _TENSORBOARD},
}  # fmt: skip


def refusal(module: str, name: str) -> str:
    """Return the message for a name of the predecessor that ``module`` does not offer; "" for any other name."""
    instead = INSTEAD.get(module, {}).get(name)
    if instead is None:
        return ""
    shown = module if module == "hopsml" else module.removeprefix("hopsml.")
    return f"{shown}.{name} does not exist; use {instead}"


def missing_attribute_error(module: str, name: str, known: Iterable[str] = ()) -> AttributeError:
    """Return the error for an attribute that ``module`` lacks: what to use instead, else similar names of ``known``.

    It has a name but no object, so that Python adds no suggestion of its own to the text.
    """
    text = refusal(module, name)
    if not text:
        meant = suggestions.similar_names(name, [] if name.startswith("_") else known)
        hint = f"; did you mean {' or '.join(meant)}?" if meant else ""
        text = f"module '{module}' has no attribute '{name}'{hint}"
    return tracebacks.shortened(AttributeError(text, name=name))
