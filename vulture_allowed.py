"""Names that vulture does not find a use of, because others use them; ``*`` patterns are in pyproject.toml."""

# what Python, asyncio, pickle, tarfile, ssl, IPython and pytest call or read
_render_traceback_
_repr_mimebundle_
_repr_html_
load_ipython_extension
_at_the_end
eof_received
seekable
readall
readinto
writable
mtime
linkname
num_tickets

# uvicorn, urllib
capture_signals
redirect_request
http_open
http_request
http_response
https_open
https_request
https_response

# pydantic, YAML
model_config
ignore_aliases

# of an import loader
create_module

# hooks of workers, which a record names
trace_first_step

# Arrow Flight
start_call

# sqlite3, alembic, zipfile
isolation_level
down_revision
compress_type

# what a client is told, and may name
try_number
VIEWER
boxes

# what Keras, TensorFlow and Optuna do
set_params
_supports_tf_logs
_chief_worker_only
_steps_seen
_eval_epoch_iterator
save_own_variables
_tensorflow_variable
collective_ring_order
infer_relative_search_space

# what TensorFlow asks of a strategy
_num_devices_per_worker
_input_workers_devices
_host_input_device
_cluster_resolver
_cluster_spec
_use_var_policy
experimental_enable_get_next_as_optional
_get_local_replica_id
replica_id_in_sync_group
_use_merge_call
_call_for_each_replica
_replica_ctx_all_reduce
_gather_to_implementation
_broadcast_to
_get_variable_creator_initial_value
_input_workers_with_options
destinations
primary_var
_in_multi_worker_mode
_task_id
_host_cross_device_ops
_communication_options
spans_group

# what torch.distributed asks of a backend
getBackendName
group_name
_set_group_name
_device_types
is_success
allreduce_coalesced
_allgather_base
all_gather_single
allgather_into_tensor_coalesced
scatter
alltoall_base
recv
opts
out_splits
in_splits
get_future

# what Airflow does
poke
serialize
execute_complete
ui_color
get_provider_info

# what is found by a name in a table, or in a specification: hooks, stores, searchers, options of verbs
record_worker
FsspecStore
HdfsStore
WebHdfsStore
AshaSearcher
Bohb
CmaEs
Gp
HyperbandSearcher
GridSearcher
SingleRunSearcher
PB2
Tpe
RealSignatures
play
start_timeout
keep_warm
min_workers_timeout
heartbeat_timeout
progress_timeout
host_cooldown
cleanup_generations

# what a resumable group's members call: hopsml/collective/group.py
request_pause
pause_agreed

# what users call: hopsml's own, the predecessor's and Maggy's names (docs/compatibility.md)
get_num_gpus
num_executors
num_param_servers
grid_params
MAX
MIN
loadtxt
genfromtxt
fromregex
fromfile
memmap
training_metrics
version_path
synchronous_timeout
read_csv
read_excel
read_parquet
write_csv
write_parquet
buff_size
create_directory
jupyter
lagom
list_all
include
include_groups
exclude_groups
add_custom_model_generator
KerasBatchEnd
KerasEpochEnd
zero_lvl
deepspeed_config
info_dict
SCHEDULED
get_early_stop
set_early_stop
append_metric
_generate_id
get_random_parameter_values
visualize

# what a page reads of the records of hopsml.service.browse
highest
sections
continued_by
failed_rank
is_search
is_dirty
file_count

# what uvicorn reads
should_exit

# what starlette asks of a part of an address
regex
to_string

# what ONNX Runtime reads
log_severity_level

# what MLServer finds by its name
Digits
update_step
lars
PlanSchedule
num_batches_tracked
absorbs_rate
smooth_labels
Polynomial
Cosine
SlowStart
Steps
reduced_statistics
advise
add_gradients
doubling
follow

# operations of hopsml.collective
all_gather
reduce_scatter
barrier
make_default
release_ports

# what tests ask of reports and of the real daemons
tracking_url
recommission
make_whole
build_program

# attributes of pydoop's result of stat, which existing programs read
st_nlink
st_ctime

# attribute of a requests session
trust_env

# fields of a delegation token
renewer
real_user
issued_s
