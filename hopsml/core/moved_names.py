"""Names in records of earlier versions: modules, classes and functions that have moved, and where they are now.

Records name them in pickled functions and searches, and in a run's hooks and sidecar. The import finder of ``hopsml``
calls ``find_spec`` for modules that do not exist; ``loads`` also resolves classes that were renamed in their module.
"""

from __future__ import annotations

import importlib
import io
import pickle
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# Former "module" or "module:name", without the package, -> the present "module" or "module:name".
_MOVED = {
    "cluster.shared.keras_names": "hopsml.cluster.worker.calling",
    "cluster.shared.spec:names": "hopsml.cluster.shared.spec:argument_names",
    "cluster.shared.spec:recorded": "hopsml.cluster.shared.spec:spec_record",
    "cluster.shared.spec:specified": "hopsml.cluster.shared.spec:section_from_options",
    "experiment.frameworks": "hopsml.experiment.collective",
    "experiment.mirroring": "hopsml.experiment.collective",
    "experiment.older_names": "hopsml.experiment.predecessor",
    "experiment.older_names:combination": "hopsml.experiment.predecessor:combination_name",
    "experiment.older_names:instead_of": "hopsml.core.refused_names:missing_attribute_error",
    "experiment.options:taken_from": "hopsml.experiment.options:convert_options",
    "experiment.parameter_servers": "hopsml.experiment.collective",
    "experiment.predecessor:combination": "hopsml.experiment.predecessor:combination_name",
    "experiment.predecessor:of_evolution": "hopsml.experiment.predecessor:evolution_call",
    "experiment.predecessor:of_grid": "hopsml.experiment.predecessor:grid_call",
    "experiment.predecessor:of_random": "hopsml.experiment.predecessor:random_call",
    "experiment.searches.call:Names": "hopsml.experiment.searches.call:TrialNames",
    "experiment.searches.call:by_id": "hopsml.experiment.searches.call:maggy_id",
    "experiment.searches.call:checked": "hopsml.experiment.searches.call:checked_call",
    "experiment.searches.call:isolated": "hopsml.experiment.searches.call:parse_isolation",
    "experiment.searches.call:promoted": "hopsml.experiment.searches.call:promotion_pairs",
    "experiment.searches.call:size_of": "hopsml.experiment.searches.call:size_function",
    "experiment.searches.call:without_budget": "hopsml.experiment.searches.call:missing_budget_note",
    "experiment.searches.names": "hopsml.experiment.searches.call",
    "experiment.searches.names:Names": "hopsml.experiment.searches.call:TrialNames",
    "experiment.searches.names:by_id": "hopsml.experiment.searches.call:maggy_id",
    "experiment.spark_session": "hopsml.experiment.applications",
    "hdfs.directories": "hopsml.hdfs.files",
    "hdfs.modules": "hopsml.hdfs.files",
    "hdfs.paths": "hopsml.hdfs.files",
    "maggy.ablation:Listed": "hopsml.maggy.ablation:ListedSearcher",
    "maggy.ablation:carry_out": "hopsml.maggy.ablation:run_ablation_trial",
    "maggy.ablation:effects": "hopsml.maggy.ablation:effect_table",
    "maggy.distributed:carry_out": "hopsml.maggy.distributed:call_in_strategy_scope",
    "maggy.experiment:offered": "hopsml.maggy.experiment:accepted_config_fields",
    "maggy.experiment:run": "hopsml.maggy.experiment:run_search",
    "maggy.experiment:summed_up": "hopsml.maggy.experiment:maggy_result",
    "maggy.optimizer.base": "hopsml.maggy.optimizer",
    "maggy.optimizer.base:Adapted": "hopsml.maggy.optimizer:OptimizerAdapter",
    "maggy.optimizer.base:Named": "hopsml.maggy.optimizer:NamedOptimizer",
    "maggy.optimizer:Adapted": "hopsml.maggy.optimizer:OptimizerAdapter",
    "maggy.optimizer:Named": "hopsml.maggy.optimizer:NamedOptimizer",
    "maggy.surgery": "hopsml.maggy.ablation",
    "model.flavors.contract:named": "hopsml.model.flavors.contract:flavor_module",
    "model.flavors.contract:version_of": "hopsml.model.flavors.contract:package_versions",
    "redact": "hopsml.core.redact",
    "search.algorithms.asha:Asha": "hopsml.search.algorithms.asha:AshaStopper",
    "search.algorithms.bohb": "hopsml.search.algorithms.tpe",
    "search.algorithms.bracket": "hopsml.search.algorithms.hyperband",
    "search.algorithms.cmaes": "hopsml.search.algorithms.evolution",
    "search.algorithms.differential_evolution": "hopsml.search.algorithms.evolution",
    "search.algorithms.features": "hopsml.search.algorithms.gaussian_process",
    "search.algorithms.gaussian_process:fitted": "hopsml.search.algorithms.gaussian_process:fit_kernel",
    "search.algorithms.gp:one_thread": "hopsml.search.algorithms.gp:limit_to_one_thread",
    "search.algorithms.grid": "hopsml.search.algorithms.random",
    "search.algorithms.grid:GridSearch": "hopsml.search.algorithms.random:GridSearcher",
    "search.algorithms.grid:listed": "hopsml.search.algorithms.random:discretized_space",
    "search.algorithms.libraries": "hopsml.search.algorithms.random",
    "search.algorithms.libraries:optuna": "hopsml.search.algorithms.random:import_optuna",
    "search.algorithms.libraries:require": "hopsml.search.algorithms.random:require_packages",
    "search.algorithms.pb2": "hopsml.search.algorithms.pbt",
    "search.algorithms.pb2:fitted": "hopsml.search.algorithms.pbt:fit_kernel",
    "search.algorithms.pbt:fitted": "hopsml.search.algorithms.pbt:fit_kernel",
    "search.algorithms.random:RandomSearch": "hopsml.search.algorithms.random:RandomSearcher",
    "search.algorithms.random:listed": "hopsml.search.algorithms.random:discretized_space",
    "search.algorithms.random:number_of": "hopsml.search.algorithms.random:derived_seed",
    "search.algorithms.random:optuna": "hopsml.search.algorithms.random:import_optuna",
    "search.algorithms.random:require": "hopsml.search.algorithms.random:require_packages",
    "search.algorithms.random:seed_of": "hopsml.search.algorithms.random:seed_or_random",
    "search.algorithms.randomness": "hopsml.search.algorithms.random",
    "search.algorithms.randomness:number_of": "hopsml.search.algorithms.random:derived_seed",
    "search.algorithms.randomness:seed_of": "hopsml.search.algorithms.random:seed_or_random",
    "search.algorithms.rungs": "hopsml.search.algorithms.asha",
    "search.algorithms.single": "hopsml.search.algorithms.random",
    "search.algorithms.single:SingleRun": "hopsml.search.algorithms.random:SingleRunSearcher",
    "search.algorithms.warmup": "hopsml.search.algorithms.history",
    "search.metric:finite": "hopsml.search.metric:finite_or_none",
    "search.space.config_json": "hopsml.search.space.parameter",
    "search.space.config_json:marked": "hopsml.search.space.parameter:to_json_value",
    "search.space.config_json:reader": "hopsml.search.space.parameter:line_parser",
    "search.space.parameter:distinct": "hopsml.search.space.parameter:distinct_values",
    "search.space.parameter:marked": "hopsml.search.space.parameter:to_json_value",
    "search.space.parameter:reader": "hopsml.search.space.parameter:line_parser",
    "search.space.parameter:same": "hopsml.search.space.parameter:is_same_value",
    "search.space.trial_id": "hopsml.search.space.space",
    "settings": "hopsml.core.settings",
    "states": "hopsml.core.states",
    "states:end": "hopsml.core.states:final_state",
    "tracebacks": "hopsml.core.tracebacks",
    "tracking.code": "hopsml.tracking.provenance",
    "tracking.inputs:attach": "hopsml.tracking.inputs:start_recording",
    "tracking.machine": "hopsml.tracking.provenance",
    "tracking.seeds": "hopsml.tracking.inputs",
    "training.discovery.lookup": "hopsml.training.discovery",
    "training.discovery:TaskListener": "hopsml.training.discovery:TaskPorts",
    "training.exchange": "hopsml.training.distributed",
    "training.large_batch.batch_sizes": "hopsml.training.large_batch.schedules",
    "training.large_batch.noise_scale": "hopsml.training.large_batch.schedules",
    "training.large_batch.normalizer": "hopsml.training.large_batch.recipe",
    "training.report": "hopsml.training.messages",
    "training.task_addresses": "hopsml.training.distributed",
    "training.tensorflow.callbacks": "hopsml.training.tensorflow.fit.callbacks",
    "training.tensorflow.distribution.tuning:first_gradients": (
        "hopsml.training.tensorflow.distribution.tuning:capture_first_gradients"
    ),
    "training.tensorflow.distribution.tuning:measure": (
        "hopsml.training.tensorflow.distribution.tuning:measure_candidates"
    ),
    "training.tensorflow.export": "hopsml.training.tensorflow.checkpoints",
    "training.tensorflow.gradient_hooks": "hopsml.training.tensorflow.distribution.gradient_hooks",
    "training.tensorflow.hdfs_files": "hopsml.training.tensorflow.setup",
    "training.tensorflow.reducer": "hopsml.training.tensorflow.distribution.merging",
    "training.tensorflow.server_loop": "hopsml.training.tensorflow.fit.server_loop",
    "training.tensorflow.standard_callbacks": "hopsml.training.tensorflow.fit.standard_callbacks",
    "training.tensorflow.strategy": "hopsml.training.tensorflow.distribution.strategy",
    "training.tensorflow.training_loop": "hopsml.training.tensorflow.fit.training_loop",
    "training.trace_worker": "hopsml.training.prepare",
    "training.trace_worker:attach": "hopsml.training.prepare:trace_first_step",
    "training.trials.trial:carry_out": "hopsml.training.trials.trial:run_group_trial",
    "training.whereabouts": "hopsml.training.distributed",
}
MOVED: dict[str, str] = {f"hopsml.{former}": now for former, now in _MOVED.items()}


def find_spec(module: str) -> ModuleSpec | None:
    """Return how to import a module under its former name, or the former package of one; None for other names."""
    if module in _MODULES:
        return ModuleSpec(module, _Loader(), is_package=module in _PACKAGES)
    return None


def present_location(module: str, name: str) -> tuple[str, str]:
    """Return the present module and name of a function or class; the given ones if it has not moved."""
    moved = MOVED.get(f"{module}:{name}")
    if moved is not None:
        module, _, name = moved.partition(":")
        return module, name
    return MOVED.get(module, module), name


def loads(data: bytes) -> Any:
    """Return the object in a pickle of this or an earlier version. It runs code of the pickle."""
    return _Unpickler(io.BytesIO(data)).load()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "hopsml":
            module, name = present_location(module, name)
        return super().find_class(module, name)


class _MovedModule(ModuleType):
    """A module under its former name; its attributes are those of the present one."""

    def __getattr__(self, name: str) -> Any:
        module, now = present_location(self.__name__, name)
        if name.startswith("__") or module == self.__name__:
            raise AttributeError(f"module '{self.__name__}' has no attribute '{name}'")
        return getattr(importlib.import_module(module), now)


class _Loader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _MovedModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: attributes are looked up on use."""


_FORMER = {key.partition(":")[0] for key in MOVED}
_PACKAGES = {former.rsplit(".", parts)[0] for former in _FORMER for parts in range(1, former.count("."))}
_MODULES = _FORMER | _PACKAGES
