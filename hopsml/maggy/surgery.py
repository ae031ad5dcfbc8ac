"""Removal of layers from a Keras model, by a new model from the changed configuration, with new weights and shapes.

The inputs of a removed layer become inputs of the layers after it. For sequential and functional models, of Keras 3 and
of tf_keras.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from hopsml.errors import ArgumentError


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
            f"layer {layer['name']} has {len(set(found))} inputs; one with a single input can be left out"
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
