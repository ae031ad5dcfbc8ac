"""Ablation studies of Keras models: effects of features, layers or groups of layers, left out one at a time (LOCO).

    study = AblationStudy("titanic", 1, label_name="survived", dataset_generator=make_dataset)
    study.features.include("age", "fare")
    study.model.set_base_model_generator(make_model)
    study.model.layers.include("dense_two")
    study.model.layers.include_groups(["dense_two", "dense_three"])
    lagom(train, experiment_type="ablation", ablation_study=study)   # def train(dataset_function, model_function,
    reporter)

There is a trial of the whole model, and one for each feature, layer, group and custom model. Only workers use Keras. A
model without a layer is made from the changed configuration, with new weights and shapes: the inputs of the removed
layer become inputs of the layers after it, in sequential and functional models of Keras 3 and of tf_keras.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec

from hopsml.core import refused_names
from hopsml.errors import ArgumentError
from hopsml.search.contract import Config, Outcome, Searcher, Suggestion, Wait
from hopsml.search.space.space import Searchspace, takes_any

__path__: list[str] = []  # so that an import of a missing name reports what to use instead
NONE = "None"  # Maggy's value if nothing is left out
FEATURE, LAYER = "ablated_feature", "ablated_layer"
_CUSTOM = "custom: "
_Parameters = ParamSpec("_Parameters")


class Features:
    """Features of the training data to be ablated, one in each trial."""

    def __init__(self) -> None:
        self.included: list[str] = []

    def include(self, *features: str | Iterable[str]) -> None:
        """Add features, each of which is left out in a separate trial."""
        self.included += [name for name in _flat(features, "feature") if name not in self.included]

    def exclude(self, *features: str | Iterable[str]) -> None:
        """Remove features that were included, so that they are not ablated."""
        gone = set(_flat(features, "feature"))
        self.included = [name for name in self.included if name not in gone]

    def list_all(self) -> list[str]:
        """Print the features that are ablated, and return them."""
        for name in self.included:
            print(name)
        return list(self.included)


class Layers:
    """Names of layers and groups of layers of the base model to be ablated, one in each trial."""

    def __init__(self) -> None:
        self.included: list[str] = []
        self.groups: list[tuple[str, ...] | str] = []  # names, or their common prefix

    def include(self, *layers: str | Iterable[str]) -> None:
        """Add layers, each of which is left out in a separate trial."""
        self.included += [name for name in _flat(layers, "layer") if name not in self.included]

    def exclude(self, *layers: str | Iterable[str]) -> None:
        """Remove layers that were included, so that they are not ablated."""
        gone = set(_flat(layers, "layer"))
        self.included = [name for name in self.included if name not in gone]

    def include_groups(self, *groups: Sequence[str], prefix: str | None = None) -> None:
        """Add groups, each left out in a separate trial: lists of layers, or all layers with a name ``prefix``."""
        self.groups += [group for group in self._groups(groups, prefix) if group not in self.groups]

    def exclude_groups(self, *groups: Sequence[str], prefix: str | None = None) -> None:
        """Remove groups that were included, given by their layers or by the ``prefix`` of their names."""
        gone = self._groups(groups, prefix)
        self.groups = [group for group in self.groups if group not in gone]

    @staticmethod
    def _groups(groups: Sequence[Sequence[str]], prefix: str | None) -> list[tuple[str, ...] | str]:
        found: list[tuple[str, ...] | str] = []
        for group in groups:
            names = _flat([group], "layer")
            if isinstance(group, str) or len(names) < 2:
                raise ArgumentError(f"include_groups({group!r}): a group is a list of two layers or more")
            found.append(tuple(names))
        return found if prefix is None else [*found, prefix]

    def print_all(self) -> None:
        """Print the layers that are ablated."""
        print("\n".join(self.included))

    def print_all_groups(self) -> None:
        """Print the groups that are ablated."""
        print("\n".join(str(group) for group in self.groups))


class Model:
    """Model to be studied: the function that creates it, the layers to be ablated, other models to compare."""

    def __init__(self) -> None:
        self.layers = Layers()
        self.base_model_generator: Callable[..., Any] | None = None
        self.custom_model_generators: dict[str, Callable[..., Any]] = {}

    def set_base_model_generator(self, base_model_generator: Callable[..., Any]) -> None:
        """Set the function that creates the whole model, compiled or not, a new one at each call."""
        self.base_model_generator = base_model_generator

    def add_custom_model_generator(self, custom_model_generator: Callable[..., Any], model_identifier: str) -> None:
        """Add another model to compare, with a separate trial; raises ArgumentError for an identifier in use."""
        if model_identifier in self.custom_model_generators:
            raise ArgumentError(f"the custom model {model_identifier!r} exists already; choose another identifier")
        self.custom_model_generators[model_identifier] = custom_model_generator


class AblationStudy:
    """Definition of an ablation study: the components to leave out, and the functions that create model and data.

    ``dataset_generator`` creates the data; it gets ``ablated_feature=`` if it has such a parameter.
    """

    def __init__(
        self,
        training_dataset_name: str = "",
        training_dataset_version: int = 1,
        label_name: str = "",
        dataset_generator: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.training_dataset_name = training_dataset_name
        self.training_dataset_version = training_dataset_version
        self.label_name = label_name
        self.dataset_generator = kwargs.get("dataset_generator", dataset_generator)
        self.features = Features()
        self.model = Model()

    def set_dataset_generator(self, dataset_generator: Callable[..., Any]) -> None:
        """Set the function that creates the training data."""
        self.dataset_generator = dataset_generator

    def configurations(self) -> list[Config]:
        """Return one configuration for each trial: the whole model, each feature, layer, group and custom model."""
        layers = self.model.layers
        trials = [(NONE, NONE), *((feature, NONE) for feature in self.features.included)]
        trials += [(NONE, layer) for layer in layers.included]
        trials += [(NONE, _written(group)) for group in layers.groups]
        trials += [(NONE, _CUSTOM + name) for name in self.model.custom_model_generators]
        return [{FEATURE: feature, LAYER: layer} for feature, layer in trials]

    def space(self) -> Searchspace:
        """Return the study as a search space of two categorical parameters: ablated feature and ablated layer."""
        configs = self.configurations()
        return Searchspace(
            **{name: ("CATEGORICAL", list(dict.fromkeys(one[name] for one in configs))) for name in (FEATURE, LAYER)}
        )

    def generators(self, config: Any = None) -> dict[str, Any]:
        """Return the functions that workers need, with the config's model and dataset as defaults.

        Raises:
            ArgumentError: The study and the config have no model or no data, as there is no feature store to read it
                from.
        """
        model = self.model.base_model_generator or getattr(config, "model", None)
        dataset = self.dataset_generator or getattr(config, "dataset", None)
        if model is None:
            raise ArgumentError("the study has no model; say study.model.set_base_model_generator(function)")
        if dataset is None:
            raise ArgumentError(
                "the study has no data; pass dataset_generator=function, as there is no feature store here"
            )
        return {"model": model, "dataset": dataset, "custom": dict(self.model.custom_model_generators)}


def _written(group: tuple[str, ...] | str) -> str:
    return f"{group}*" if isinstance(group, str) else "|".join(group)


def _flat(names: Iterable[Any], what: str) -> list[str]:
    found: list[str] = []
    for name in names:
        found += [name] if isinstance(name, str) else list(name)
    if wrong := [name for name in found if not isinstance(name, str) or not name]:
        raise ArgumentError(f"{wrong[0]!r} is no name of a {what}; give its name as text")
    return found


class ListedSearcher(Searcher):
    """Searcher that suggests given configurations, each once, in their order."""

    def __init__(self, configs: list[Config]) -> None:
        self._configs, self._asked = configs, 0
        self.total = len(configs)

    def ask(self, number: int) -> Suggestion | Wait:
        """Return the configuration of this number; ``Wait.DONE`` after the last."""
        self._asked = number + 1
        return Suggestion(dict(self._configs[number])) if number < len(self._configs) else Wait.DONE

    def tell(self, number: int, outcome: Outcome) -> None:
        """Ignore the outcome: the configurations do not depend on results."""

    def state(self) -> dict[str, Any]:
        """Return the number of suggested configurations, for ``restore``."""
        return {"asked": self._asked}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the number of suggested configurations."""
        self._asked = state["asked"]


def run_ablation_trial(
    function: Callable[..., Any],
    generators: Mapping[str, Any],
    given: Mapping[str, Any],
    ablated_feature: str,
    ablated_layer: str,
    reporter: Any,
) -> Any:
    """Run one trial in a worker: the user's function with generators for the ablated data and model."""
    offers = {
        "dataset_function": _dataset_function(generators["dataset"], ablated_feature),
        "model_function": _model_function(generators, ablated_layer),
        "reporter": reporter,
        "hparams": {FEATURE: ablated_feature, LAYER: ablated_layer},
        **given,
    }
    offers["dataset"], offers["model"] = offers["dataset_function"], offers["model_function"]  # Maggy 1.x
    known = inspect.signature(function).parameters
    return function(**{name: value for name, value in offers.items() if name in known})


def _dataset_function(generator: Callable[..., Any], feature: str) -> Callable[..., Any]:
    left_out = None if feature == NONE else feature
    known = inspect.signature(generator).parameters
    if FEATURE in known or takes_any(known):
        return functools.partial(generator, **{FEATURE: left_out})
    if left_out is not None:
        raise ArgumentError(
            f"{getattr(generator, '__name__', generator)} has no parameter {FEATURE}, so {feature!r} cannot be left out; "
            "add it"
        )
    return generator


def _model_function(generators: Mapping[str, Any], layer: str) -> Callable[..., Any]:
    if layer.startswith(_CUSTOM):
        custom: Callable[..., Any] = generators["custom"][layer.removeprefix(_CUSTOM)]
        return custom
    base: Callable[..., Any] = generators["model"]
    return base if layer == NONE else _without(base, layer)


def _without(base: Callable[_Parameters, Any], layer: str) -> Callable[_Parameters, Any]:
    """Return ``base`` wrapped so that its model lacks a layer, a group of them ("a|b") or all of a prefix ("a*")."""

    @functools.wraps(base)
    def make(*positional: _Parameters.args, **named: _Parameters.kwargs) -> Any:
        model = base(*positional, **named)
        names = [one.name for one in model.layers]
        chosen = [name for name in names if name.startswith(layer[:-1])] if layer.endswith("*") else layer.split("|")
        return without_layers(model, chosen)

    return make


def effect_table(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the table of results: what was left out, the metric without it, the difference from the whole model."""
    base = next((row["value"] for row in rows if row["config"] == {FEATURE: NONE, LAYER: NONE}), None)
    table = []
    for row in rows:
        names = [value for value in row["config"].values() if value != NONE]
        value = row["value"]
        effect = None if value is None or base is None else value - base
        without = " and ".join(names) or "nothing"
        table.append({"without": without, "value": value, "effect": effect, "error": row["error"]})
    return table


def without_layers(model: Any, names: Iterable[str]) -> Any:
    """Return the model without the layers of these names, not compiled.

    Raises:
        ArgumentError: A name is unknown, an input or output of the model, or a layer with several inputs.
    """
    gone = list(dict.fromkeys(names))
    there = [layer.name for layer in model.layers]
    if unknown := [name for name in gone if name not in there]:
        raise ArgumentError(f"the model has no layer {', '.join(unknown)}; it has {', '.join(there)}")
    if not gone:
        raise ArgumentError(f"no layer is left out; the model has {', '.join(there)}")
    config = _without_shapes(copy.deepcopy(model.get_config()))
    if type(model).__name__ == "Sequential":
        kept = [layer for layer in config["layers"] if layer["config"].get("name") not in gone]
        return type(model).from_config({**config, "layers": kept})
    return type(model).from_config(_rewired(config, gone))


def _without_shapes(value: Any) -> Any:
    """Return the configuration without recorded input shapes, which change after a removed layer."""
    if isinstance(value, dict):
        return {
            key: _without_shapes(item)
            for key, item in value.items()
            if key not in ("build_config", "build_input_shape")
        }
    return [_without_shapes(item) for item in value] if isinstance(value, list) else value


def _rewired(config: dict[str, Any], gone: list[str]) -> dict[str, Any]:
    for kind in ("input_layers", "output_layers"):
        if ends := [name for name in gone if name in _names(config.get(kind))]:
            raise ArgumentError(
                f"{', '.join(ends)} is among the model's {kind}: a model without it has no end; leave another out"
            )
    sources = {layer["name"]: _source(layer) for layer in config["layers"] if layer["name"] in gone}
    kept = [layer for layer in config["layers"] if layer["name"] not in gone]
    for layer in kept:
        layer["inbound_nodes"] = _replaced(layer["inbound_nodes"], sources)
    return {**config, "layers": kept}


def _names(ends: Any) -> set[str]:
    """Return the layers of ``input_layers`` or ``output_layers``: one triple, or a list or dict of them."""
    if isinstance(ends, dict):
        return set().union(*(_names(end) for end in ends.values()))
    if isinstance(ends, (list, tuple)):
        if len(ends) == 3 and isinstance(ends[0], str):
            return {ends[0]}
        return set().union(*(_names(end) for end in ends))
    return set()


def _source(layer: dict[str, Any]) -> tuple[str, int, int]:
    found: list[tuple[str, int, int]] = []
    _collect(layer["inbound_nodes"], found)
    if len(set(found)) != 1:
        raise ArgumentError(
            f"layer {layer['name']} has {len(set(found))} inputs; only layers with a single input can be left out"
        )
    return found[0]


def _collect(value: Any, found: list[tuple[str, int, int]]) -> None:
    if isinstance(value, dict):
        if "keras_history" in value:
            found.append(tuple(value["keras_history"]))  # Keras 3
            return
        for item in value.values():
            _collect(item, found)
    elif _is_reference(value):
        found.append((value[0], value[1], value[2]))  # tf_keras
    elif isinstance(value, (list, tuple)):
        for item in value:
            _collect(item, found)


def _is_reference(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) >= 3
        and isinstance(value[0], str)
        and isinstance(value[1], int)
        and isinstance(value[2], int)
    )


def _replaced(value: Any, sources: dict[str, tuple[str, int, int]]) -> Any:
    """Return the configuration with references to removed layers replaced by those layers' inputs."""
    if isinstance(value, dict):
        if "keras_history" in value:
            return {**value, "keras_history": list(_origin(value["keras_history"], sources))}
        return {key: _replaced(item, sources) for key, item in value.items()}
    if _is_reference(value):
        return [*_origin(value[:3], sources), *value[3:]]
    if isinstance(value, (list, tuple)):
        return [_replaced(item, sources) for item in value]
    return value


def _origin(reference: Any, sources: dict[str, tuple[str, int, int]]) -> tuple[str, int, int]:
    name, node, tensor = reference
    while name in sources:
        name, node, tensor = sources[name]
    return name, node, tensor


def __getattr__(name: str) -> object:
    raise refused_names.missing_attribute_error(__name__, name, ("AblationStudy",))
