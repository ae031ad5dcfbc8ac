"""Public names of the predecessor (hops 0.6 to 3.8) and of Maggy (0.1 to 1.1), by module.

Loggers are left out. A module without names here was internal, and is refused as a whole.
"""

from __future__ import annotations

NAMES: dict[str, list[str]] = {
    "experiment": [
        "allreduce", "app_id", "begin", "collective_all_reduce", "differential_evolution", "Direction",
        "driver_tensorboard_hdfs_path", "elastic_id", "end", "evolutionary_search", "experiment_json", "grid_search",
        "horovod", "launch", "mirrored", "parameter_server", "random_search", "run_id", "running", "train_and_evaluate",
    ],
    "tensorboard": [
        "debugger_endpoint", "endpoint", "events_logdir", "interactive_debugger", "local_logdir_bool",
        "local_logdir_path", "logdir", "non_interactive_debugger", "pypath", "root_logdir_path", "tb_path", "tb_pid",
        "tb_port", "tb_url", "visualize",
    ],
    "devices": [
        "get_gpu_info", "get_num_gpus",
    ],
    "util": [
        "abspath", "attach_jupyter_configuration_to_notebook", "connect", "elastic_endpoint", "get_api_key_aws",
        "get_flink_conf_dir", "get_flink_lib_dir", "get_hadoop_classpath_glob", "get_hadoop_home", "get_job_name",
        "get_jwt", "get_notebook_kernel_id", "get_redshift_username_password", "get_requests_verify", "get_secret",
        "grid_params", "hopsworks_endpoint", "http", "notebook_post_save", "num_executors", "num_param_servers",
        "parse_redhift_jdbc_url", "send_request", "session", "set_auth_header", "verify", "write_b64_cert_to_bytes",
    ],
    "hdfs": [
        "abs_path", "access", "add_module", "capacity", "chmod", "chown", "close", "copy_from_project", "copy_to_hdfs",
        "copy_to_local", "cp", "delete", "dump", "exists", "fd", "get", "get_fs", "get_plain_path", "get_webhdfs_host",
        "get_webhdfs_port", "glob", "is_tls_enabled", "isdir", "isfile", "load", "localize", "log", "ls", "lsl",
        "mkdir", "move", "open_file", "project_id", "project_name", "project_path", "project_user", "pydoop_available",
        "rename", "rmr", "stat", "tls_enabled", "webhdfs_address",
    ],
    "numpy_helper": [
        "fromfile", "fromregex", "genfromtxt", "load", "loadtxt", "memmap", "save", "savez", "savez_compressed",
    ],
    "pandas_helper": [
        "read_csv", "read_excel", "read_json", "read_parquet", "write_csv", "write_json", "write_parquet",
    ],
    "model": [
        "download_model", "export", "get_best_model", "get_model", "Metric", "ModelArchiveExists", "ModelNotFound",
    ],
    "serving": [
        "create_or_update", "delete", "describe", "exists", "export", "get", "get_all", "get_artifact_path",
        "get_artifact_version", "get_available_instances", "get_id", "get_internal_endpoints", "get_kafka_topic",
        "get_model_name", "get_model_path", "get_model_server", "get_model_version", "get_predictor",
        "get_predictor_resource_config", "get_serving_endpoint", "get_serving_tool", "get_status", "get_transformer",
        "get_type", "get_version", "make_inference_request", "Serving", "ServingNotFound", "start", "stop",
    ],
    "jobs": [
        "create_job", "get_current_execution", "get_executions", "start_job", "stop_job",
    ],
    "dataset": [
        "compress", "CompressTimeout", "delete", "DeletionTimeout", "download", "extract", "get_path_info",
        "HTTPDownload", "HTTPUpload", "path_exists", "upload",
    ],
    "project": [
        "connect", "create", "get_project_info", "get_project_info_as_shared", "project_id_as_shared",
    ],
    "featurestore": [
        "add_metadata", "connect", "create_featuregroup", "create_on_demand_featuregroup", "create_training_dataset",
        "disable_featuregroup_online", "enable_featuregroup_online", "FeatureStoreDeprecationWarning",
        "fs_formatwarning", "get_clients", "get_credential", "get_dataframe_tf_record_schema", "get_feature",
        "get_featuregroup", "get_featuregroup_features_list", "get_featuregroup_partitions",
        "get_featuregroup_statistics", "get_featuregroup_tags", "get_featuregroups", "get_features",
        "get_features_list", "get_featurestore_metadata", "get_latest_featuregroup_version",
        "get_latest_training_dataset_version", "get_latest_training_datset_version", "get_metadata",
        "get_online_featurestore_connector", "get_project_featurestores", "get_storage_connector",
        "get_storage_connectors", "get_tags", "get_training_dataset", "get_training_dataset_features_list",
        "get_training_dataset_path", "get_training_dataset_statistics", "get_training_dataset_tags",
        "get_training_dataset_tf_record_schema", "get_training_datasets", "import_featuregroup_redshift",
        "import_featuregroup_s3", "insert_into_featuregroup", "insert_into_training_dataset", "metadata_cache",
        "print_instructions", "project_featurestore", "project_training_datasets_sink", "remove_featuregroup_tag",
        "remove_metadata", "remove_training_dataset_tag", "set_featuregroup_tag", "set_training_dataset_tag",
        "setup_databricks", "sql", "StatisticsDeprecationError", "StatisticsDeprecationWarning",
        "sync_hive_table_with_featurestore", "update_featuregroup_stats", "update_training_dataset_stats",
        "visualize_featuregroup_clusters", "visualize_featuregroup_correlations",
        "visualize_featuregroup_descriptive_stats", "visualize_featuregroup_distributions",
        "visualize_training_dataset_clusters", "visualize_training_dataset_correlations",
        "visualize_training_dataset_descriptive_stats", "visualize_training_dataset_distributions", "write_init_script",
    ],
    "kafka": [
        "convert_json_schema_to_avro", "get_broker_endpoints", "get_broker_endpoints_list", "get_kafka_default_config",
        "get_schema", "get_security_protocol", "KafkaTopicDTO", "parse_avro_msg",
    ],
    "tls": [
        "get_ca_chain_location", "get_client_certificate_location", "get_client_key_location", "get_key_store",
        "get_key_store_cert", "get_key_store_pwd", "get_trust_store", "get_trust_store_pwd", "pems_dir",
    ],
    "elasticsearch": [
        "get_authorization_token", "get_elasticsearch_config", "get_elasticsearch_index",
    ],
    "hive": [
        "setup_hive_connection",
    ],
    "secret": [
        "create_secret", "delete_secret", "get_secret",
    ],
    "user": [
        "create_user",
    ],
    "xattr": [
        "get_xattr", "remove_xattr", "set_xattr",
    ],
    "service_discovery": [
        "ServiceDiscovery",
    ],
    "credentials_provider": [
        "assume_role", "get_role", "get_roles",
    ],
    "constants": [
        "AWS", "DELIMITERS", "ELASTICSEARCH_CONFIG", "ENV_VARIABLES", "FEATURE_STORE", "HIVE_CONFIG", "HTTP_CONFIG",
        "KAFKA_CONSUMER_CONFIG", "KAFKA_PRODUCER_CONFIG", "KAFKA_SSL_CONFIG", "LOCAL", "MODEL_SERVING", "MYSQL_CONFIG",
        "PETASTORM_CONFIG", "REST_CONFIG", "S3_CONFIG", "SPARK_CONFIG", "SSL_CONFIG", "XATTRS",
    ],
    "exceptions": [
        "APIKeyFileNotFound", "RestAPIError", "UnkownSecretStorageError",
    ],
    "beam": [
        "cleanup_runners", "clusters", "create_runner", "exit_handler", "get_portable_runner_config", "get_sdk_worker",
        "jobserver_host", "jobserver_port", "kill_runners", "start", "start_beam_jobserver", "start_runner",
        "stop_runner",
    ],
    "facets": [
        "dive", "overview",
    ],
    "tflauncher": [
        "launch",
    ],
    "allreduce": [
        "launch",
    ],
    "launcher": [],
    "grid_search": [],
    "random_search": [],
    "differential_evolution": [],
    "version": [],
    "distribute": [],
    "experiment_impl": [],
    "featurestore_impl": [],
    "maggy": [
        "Searchspace", "ablation", "callbacks", "config", "constants", "core", "earlystop", "experiment",
        "experiment_config", "optimizer", "pruner", "searchspace", "tb_experimental", "tensorboard", "trial", "util",
        "version",
    ],
    "maggy.experiment": [
        "lagom", "launch", "experiment", "experiment_pyspark", "experiment_python", "lagom_driver", "APP_ID",
        "EXPERIMENT_JSON", "RUNNING", "RUN_ID", "app_id", "driver_tensorboard_hdfs_path", "elastic_id",
        "experiment_json", "run_id", "running",
    ],
    "maggy.config": [
        "AblationConfig", "BaseConfig", "HyperparameterOptConfig", "LagomConfig", "OptimizationConfig",
        "TfDistributedConfig", "TorchDistributedConfig",
    ],
    "maggy.experiment_config": [
        "AblationConfig", "LagomConfig", "OptimizationConfig", "TfDistributedConfig", "TorchDistributedConfig",
    ],
    "maggy.searchspace": [
        "Searchspace",
    ],
    "maggy.trial": [
        "Trial",
    ],
    "maggy.tensorboard": [
        "logdir", "tensorboard_dir",
    ],
    "maggy.callbacks": [
        "KerasBatchEnd", "KerasEpochEnd",
    ],
    "maggy.ablation": [
        "AblationStudy", "AbstractAblator", "LOCO", "ablationstudy", "ablator",
    ],
    "maggy.optimizer": [
        "AbstractOptimizer", "Asha", "GridSearch", "RandomSearch", "SingleRun", "abstractoptimizer", "asha", "bayes",
        "gridsearch", "randomsearch", "singlerun",
    ],
    "maggy.optimizer.bayes": [
        "BaseAsyncBO", "GP", "TPE", "acquisitions", "gp", "tpe",
    ],
}  # fmt: skip
