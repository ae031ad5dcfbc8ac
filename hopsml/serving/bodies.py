"""Bodies of both REST interfaces, as conversions between JSON and arrays. Pure.

The interfaces are TensorFlow Serving's ``:predict``, and ``infer`` of the Open Inference Protocol (KServe's version 2).
JSON has neither NaN nor Infinity: a request with either is refused, and answers contain ``null`` in their place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import orjson

from hopsml.model.description import TensorSpec
from hopsml.serving import tensors
from hopsml.serving.receiving import bad_request

if TYPE_CHECKING:
    from hopsml.model.description import Signature
    from hopsml.model.flavors.contract import MissingValues
    from hopsml.serving.loaded_versions import Arrays

SIGNATURE = "serving_default"  # answers requests that name none
DATATYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "int8": "INT8",
    "int16": "INT16", "int32": "INT32", "int64": "INT64", "float16": "FP16", "float32": "FP32", "float64": "FP64",
    "str": "BYTES",
}  # fmt: skip
_GZIP = b"\x1f\x8b"
_OF_ROWS = orjson.OPT_SERIALIZE_NUMPY
_ROWS_AT_ONCE = 4096  # converted while no other thread can run, so that heartbeats continue


@dataclass(frozen=True)
class InferenceRequest:
    """Arrays of a request, and the form of its answer.

    Attributes:
        inputs: Arrays by input.
        by_rows: True if the request has ``instances``, False for ``inputs``.
        outputs: Requested outputs; empty for all.
        id: ID of the request, which the answer repeats.
        signature: Name of the signature that answers.
    """

    inputs: Arrays
    by_rows: bool = True
    outputs: tuple[str, ...] = ()
    id: str | None = None
    signature: str = SIGNATURE


def loads(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a body.

    Raises:
        RequestRefused: (400) The body is not a JSON object.
    """
    if body.startswith(_GZIP):
        raise bad_request("the body is compressed; send uncompressed JSON, without Content-Encoding")
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        hint = "; JSON has neither NaN nor Infinity; omit such rows" if _near(body, error.pos) else ""
        raise bad_request(f"the body is not JSON: {error}{hint}") from None
    if not isinstance(found, dict):
        raise bad_request('the body must be a JSON object, such as {"instances": [[0.1, 0.2]]}')
    return found


def _near(body: bytes, position: int) -> bool:
    """Return True if the text at an error position contains NaN or Infinity."""
    around = body[max(0, position - 2) : position + 10]
    return any(word in around for word in (b"NaN", b"Inf", b"nan", b"inf"))


def dumps(content: Any) -> bytes:
    """Return content, which may contain NumPy arrays, as JSON."""
    return orjson.dumps(content, option=_OF_ROWS)


# ------------------------------------------------------------------------------------------ TensorFlow Serving


def parse_v1(
    body: bytes,
    inputs: Mapping[str, TensorSpec],
    missing: MissingValues | None = None,
    named: Mapping[str, Mapping[str, TensorSpec]] = MappingProxyType({}),
) -> InferenceRequest:
    """Parse ``{"instances": [...]}``, by rows, or ``{"inputs": ...}``, by inputs.

    Args:
        body: Body of the request.
        inputs: Inputs of the model.
        missing: As for ``tensors.parse_array``.
        named: Inputs by name of the model's further signatures, which ``signature_name`` selects.

    Raises:
        RequestRefused: (400) The body is invalid.
    """
    content = loads(body)
    unknown = sorted(content.keys() - {"instances", "inputs", "signature_name"})
    if unknown:
        raise bad_request(
            f"the key '{unknown[0][:80]}' is unknown; a request has instances or inputs, and optionally signature_name"
        )
    name = content.get("signature_name") or SIGNATURE
    if not isinstance(name, str) or (name != SIGNATURE and name not in named):
        known = ", ".join((SIGNATURE, *named))
        raise bad_request(f"the model has no signature_name={str(name)[:80]!r}; use one of {known}, or omit it")
    inputs = named.get(name, inputs)
    if ("instances" in content) == ("inputs" in content):
        raise bad_request("a request must have either instances (a list of rows) or inputs (one list for each input)")
    if "instances" in content:
        return InferenceRequest(_of_instances(content["instances"], inputs, missing), signature=name)
    return InferenceRequest(_of_columns(content["inputs"], inputs, missing), by_rows=False, signature=name)


def _of_instances(rows: Any, inputs: Mapping[str, TensorSpec], missing: MissingValues | None) -> Arrays:
    """Return arrays by input from a list of rows."""
    if not isinstance(rows, list) or not rows:
        raise bad_request("instances must be a list with at least one row")
    if isinstance(rows[0], dict) and rows[0].keys() != {"b64"}:
        tensors.check_input_names(rows[0], inputs)
        for number, row in enumerate(rows):
            if not isinstance(row, dict) or row.keys() != rows[0].keys():
                raise bad_request(
                    f"instances[{number}] must be an object with {', '.join(rows[0])}, like the first row"
                )
        return {
            name: tensors.parse_array(name, [row[name] for row in rows], tensor, missing)
            for name, tensor in inputs.items()
        }
    return {name: tensors.parse_array(name, rows, tensor, missing) for name, tensor in _only(inputs, "instances")}


def _of_columns(columns: Any, inputs: Mapping[str, TensorSpec], missing: MissingValues | None) -> Arrays:
    """Return arrays by input from values by input."""
    if isinstance(columns, dict) and columns.keys() != {"b64"}:
        tensors.check_input_names(columns, inputs)
        found = {name: tensors.parse_array(name, columns[name], tensor, missing) for name, tensor in inputs.items()}
    else:
        found = {name: tensors.parse_array(name, columns, tensor, missing) for name, tensor in _only(inputs, "inputs")}
    return tensors.check_row_counts(found)


def _only(inputs: Mapping[str, TensorSpec], where: str) -> list[tuple[str, TensorSpec]]:
    """Return the only input, which need not be named."""
    if len(inputs) != 1:
        raise bad_request(
            f"{where}: the model has {len(inputs)} inputs, so each value needs the name of its input: "
            f"{', '.join(inputs)}"
        )
    return list(inputs.items())


def encode_answer_v1(outputs: Arrays, asked: InferenceRequest) -> bytes:
    """Return the answer by TensorFlow Serving's interface.

    The form is ``{"predictions": [...]}`` for rows and ``{"outputs": ...}`` for inputs; a single output is not named.
    """
    values = {name: tensors.to_json_value(array) for name, array in outputs.items()}
    if not asked.by_rows:
        return dumps({"outputs": next(iter(values.values())) if len(values) == 1 else values})
    if len(values) == 1:
        return dumps({"predictions": next(iter(values.values()))})
    if len({array.shape[:1] or None for array in outputs.values()}) != 1 or not next(iter(outputs.values())).ndim:
        raise bad_request("the outputs have different numbers of rows; send inputs instead of instances")
    rows, parts = zip(*values.values(), strict=True), []
    while part := [dict(zip(values, row, strict=True)) for row in islice(rows, _ROWS_AT_ONCE)]:
        parts.append(dumps(part)[1:-1])
    return b'{"predictions":[' + b",".join(parts) + b"]}"


_TENSORFLOWS = {"float32": "DT_FLOAT", "float64": "DT_DOUBLE", "float16": "DT_HALF", "str": "DT_STRING"}


def metadata_v1(model: str, version: int, signatures: Mapping[str, Signature]) -> Any:
    """Return the signatures, by name, in TensorFlow Serving's form."""
    definitions = {
        each: {
            "inputs": {name: _tensor_info(name, tensor) for name, tensor in signature.inputs.items()},
            "outputs": {name: _tensor_info(name, tensor) for name, tensor in signature.outputs.items()},
            "method_name": "tensorflow/serving/predict",
        }
        for each, signature in signatures.items()
    }
    return {
        "model_spec": {"name": model, "signature_name": "", "version": str(version)},
        "metadata": {"signature_def": {"signature_def": definitions}},
    }


def _tensor_info(name: str, tensor: TensorSpec) -> Any:
    """Return a tensor's description in TensorFlow Serving's form."""
    sizes = [{"size": str(-1 if size is None else size), "name": ""} for size in tensor.shape]
    dtype = _TENSORFLOWS.get(tensor.dtype, f"DT_{tensor.dtype.upper()}")
    return {"name": name, "dtype": dtype, "tensor_shape": {"dim": sizes, "unknown_rank": False}}


# ------------------------------------------------------------------------------------------ Open Inference Protocol


def parse_v2(body: bytes, signature: Signature, missing: MissingValues | None = None) -> InferenceRequest:
    """Parse ``{"inputs": [{"name", "shape", "datatype", "data"}]}``.

    Args:
        body: Body of the request.
        signature: Signature of the model.
        missing: As for ``tensors.parse_array``.

    Raises:
        RequestRefused: (400) The body is invalid.
    """
    content, inputs = loads(body), signature.inputs
    given: dict[str, Any] = {}
    for number, one in enumerate(_list_of(content, "inputs")):
        absent = [key for key in ("name", "shape", "datatype", "data") if key not in one]
        if absent:
            raise bad_request(f"inputs[{number}] has no {absent[0]}")
        if str(one["name"]) in given:
            raise bad_request(f"input '{str(one['name'])[:80]}' was sent twice; send each input once")
        given[str(one["name"])] = one
    tensors.check_input_names(given, inputs)
    arrays = {name: _tensor_v2(name, given[name], tensor, missing) for name, tensor in inputs.items()}
    wanted = tuple(str(one.get("name")) for one in _list_of(content, "outputs"))
    for name in wanted:
        if name not in signature.outputs:
            raise bad_request(
                f"'{name[:80]}' is not an output of the model; its outputs are {', '.join(signature.outputs)}"
            )
    number_of = content.get("id")
    return InferenceRequest(
        tensors.check_row_counts(arrays), outputs=wanted, id=None if number_of is None else str(number_of)
    )


def _list_of(content: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Return a list of objects in a request; empty if it is missing."""
    found = content.get(key, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise bad_request(f"{key} must be a list of objects")
    return found


def _tensor_v2(name: str, given: dict[str, Any], tensor: TensorSpec, missing: MissingValues | None) -> Any:
    """Return the array of one tensor in a request."""
    datatype, shape = given["datatype"], given["shape"]
    if datatype not in DATATYPES.values():
        raise bad_request(
            f"input '{name}': the datatype {str(datatype)[:40]!r} is not one of {', '.join(DATATYPES.values())}"
        )
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise bad_request(f"input '{name}': its shape must be a list of whole numbers")
    flat: list[Any] = given["data"]
    if not isinstance(flat, list):
        raise bad_request(f"input '{name}': its data must be a list")
    while flat and isinstance(flat[0], list):  # nested lists, which the protocol permits
        if not all(isinstance(row, list) for row in flat):
            raise bad_request(f"input '{name}': its rows differ in shape")
        flat = [value for row in flat for value in row]
    if len(shape) != len(tensor.shape):
        raise bad_request(
            f"input '{name}': its shape has {len(shape)} dimensions, but the model takes {tensors.describe_tensor(tensor)}"
        )
    if len(flat) != (count := math.prod(shape)):
        raise bad_request(f"input '{name}': its data have {len(flat)} values, but its shape {shape} has {count}")
    if not count:
        raise bad_request(f"input '{name}': it has no rows")
    array = tensors.parse_array(name, flat, TensorSpec(tensor.dtype, (None,)), missing)
    return tensors.check_shape(name, array.reshape(shape), tensor)


def encode_answer_v2(outputs: Arrays, asked: InferenceRequest, model: str, version: int) -> bytes:
    """Return ``{"model_name", "model_version", "id", "outputs": [{"name", "datatype", "shape", "data"}]}``."""
    shown = [
        {
            "name": name,
            "datatype": DATATYPES.get(array.dtype.name, "BYTES"),
            "shape": list(array.shape),
            "data": tensors.to_json_value(array.reshape(-1)),
        }
        for name, array in outputs.items()
        if not asked.outputs or name in asked.outputs
    ]
    content = {"model_name": model, "model_version": str(version), "outputs": shown}
    return dumps(content if asked.id is None else {**content, "id": asked.id})


def metadata_v2(model: str, versions: list[int], platform: str, signature: Signature) -> Any:
    """Return the model's metadata in the protocol's form."""
    return {
        "name": model,
        "versions": [str(one) for one in versions],
        "platform": platform,
        "inputs": [_metadata_tensor(name, tensor) for name, tensor in signature.inputs.items()],
        "outputs": [_metadata_tensor(name, tensor) for name, tensor in signature.outputs.items()],
    }


def _metadata_tensor(name: str, tensor: TensorSpec) -> Any:
    """Return a tensor's description in the protocol's form."""
    shape = [-1 if size is None else size for size in tensor.shape]
    return {"name": name, "datatype": DATATYPES.get(tensor.dtype, "BYTES"), "shape": shape}
