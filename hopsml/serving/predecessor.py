"""Functions of the predecessor's serving module, for existing code."""

from __future__ import annotations

import zlib
from datetime import datetime
from typing import Any

import msgspec

from hopsml.core import settings
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.serving import client, definitions, manager
from hopsml.serving.definitions import ServingDefinition
from hopsml.storage import urls

SERVERS = {
    "TENSORFLOW_SERVING": "TENSORFLOW_SERVING",
    "TENSORFLOW": "TENSORFLOW_SERVING",
    "PYTHON": "PYTHON",
    "SKLEARN": "PYTHON",
}
_VERBS = (":predict",)
_MODELS = "Models"
_SCRIPTS = (".py", ".ipynb")  # the predecessor's servers of the types PYTHON, SKLEARN and FLASK ran one
_NO_SCRIPTS = (
    "predictor and transformer scripts are not supported; export the model with its pre- and postprocessing, as a "
    "Keras model with preprocessing layers or a pipeline of scikit-learn"
)


class ServingEntry(msgspec.Struct, frozen=True):
    """Description of a serving in the predecessor's form; ``created`` is in UTC."""

    id: int
    name: str
    model_path: str
    model_name: str
    model_version: int | str
    model_server: str
    status: str
    creator: str
    created: datetime | None


def create_or_update(
    serving_name: str,
    model_path: str | None = None,
    model_server: str | int | None = None,
    model_version: int | str | None = None,
    *others: Any,
    artifact_path: str | None = None,
    serving_type: str | None = None,
    predictor: str | None = None,
    transformer: str | None = None,
    inference_logging: str | None = None,
    instances: int | None = None,
    **unused: Any,
) -> None:
    """Define a serving, which ``start`` starts; a running one switches to the version.

    Every order of the predecessor's positional arguments is accepted:

        (serving_name, model_path, model_server, model_version, ...)       the newest
        (serving_name, model_path, model_version, artifact_version, transformer, model_server, ...)
        (serving_name, artifact_path, model_version, model_server, ...)
        (artifact_path, serving_name, serving_type, model_version, ...)    the oldest

    Arguments for Kafka, KServe, batching and resources are accepted without effect; batching is automatic.

    Args:
        serving_name: Name of the serving.
        model_path: Path of a model in the registry: ``Models/NAME`` or ``Models/NAME/VERSION``.
        model_server: "TENSORFLOW_SERVING" or "PYTHON".
        model_version: Version number or alias; by default the one in the path, else the newest.
        *others: Further positional arguments, in which a model server is recognized.
        artifact_path: Former name of ``model_path``.
        serving_type: Former name of ``model_server``.
        predictor: Not supported.
        transformer: Not supported.
        inference_logging: Any value other than "NONE" enables the request log; a running serving applies it at its next
            start.
        instances: Number of replicas; a running serving applies it at its next start.
        **unused: Accepted without effect.

    Raises:
        ArgumentError: An argument is invalid or not supported, or a running serving has another model.
    """
    path = model_path if artifact_path is None else artifact_path
    if "/" in str(serving_name):
        serving_name, path = str(path), serving_name
    server: str | int | None = serving_type if model_server is None else model_server
    if isinstance(server, int) and not isinstance(server, bool):  # the third argument is a version
        named = [one for one in (model_version, *others) if isinstance(one, str) and one.upper() in SERVERS]
        server, model_version = (named[0] if named else None), server
    if transformer is not None or predictor is not None:
        raise ArgumentError(_NO_SCRIPTS)
    if str(path or "").rstrip("/").endswith(_SCRIPTS):
        raise ArgumentError(f"model_path={path!r:.200} is a script. {_NO_SCRIPTS[0].upper()}{_NO_SCRIPTS[1:]}")
    model, version = _of_path(path)
    chosen = _checked_version(version if model_version is None else model_version)
    earlier = definitions.find_definition(definitions.checked_name(serving_name)) or ServingDefinition(
        serving_name, model
    )
    definition = msgspec.structs.replace(
        earlier,
        model=model,
        version=chosen,
        replicas=_checked_instances(earlier.replicas if instances is None else instances),
        log_requests=earlier.log_requests if inference_logging is None else inference_logging.upper() != "NONE",
        model_server=_checked_server(server),
    )
    runs = (
        definitions.find_definition(serving_name) is not None
        and manager.status(serving_name).state == definitions.RUNNING
    )
    if runs and definition.model != earlier.model:
        raise ArgumentError(
            f"'{serving_name}' is running and serves the model '{earlier.model}'; stop it before it can serve '{model}'"
        )
    if runs:
        manager.roll(serving_name, chosen)
        if (definition.replicas, definition.log_requests) != (earlier.replicas, earlier.log_requests):
            print(f"'{serving_name}' is already running; instances and inference_logging take effect at its next start")
    definitions.write_definition(definition)


def _of_path(path: str | None) -> tuple[str, int | None]:
    """Return the model, and the version if the path contains one."""
    names = [name for name in str(path or "").rstrip("/").split("/") if name]
    if not names:
        raise ArgumentError(f"model_path={path!r}: the path must be that of a model, such as 'Models/digits'")
    if names[-1].isdecimal() and len(names) > 1:
        return names[-2], int(names[-1])
    return names[-1], None


def _checked_version(version: Any) -> int | str:
    """Return a valid version; "latest" for None."""
    if version is None:
        return "latest"
    if isinstance(version, str) and version.isdecimal():
        return int(version)
    if isinstance(version, str) or (isinstance(version, int) and not isinstance(version, bool)):
        return version
    raise ArgumentTypeError(f"model_version={version!r:.80} is a {type(version).__name__}; it must be a whole number")


def _checked_instances(instances: Any) -> int:
    """Return a valid number of replicas."""
    if isinstance(instances, bool) or not isinstance(instances, int):
        raise ArgumentTypeError(
            f"instances={instances!r:.80} is a {type(instances).__name__}; it must be a whole number"
        )
    if instances < 1:
        raise ArgumentError(f"instances={instances}: the number must be at least 1; hopsml.serving.stop stops all")
    return instances


def _checked_server(server: Any) -> str:
    """Return the model server in its current spelling; "" for None."""
    if server is None:
        return ""
    found = SERVERS.get(str(server).upper())
    if found is None:
        raise ArgumentError(f"model_server={server!r:.80}: the server must be TENSORFLOW_SERVING or PYTHON")
    return found


def get(serving_name: str) -> ServingEntry | None:
    """Return the description of a serving; None if it does not exist."""
    definition = definitions.find_definition(serving_name)
    return None if definition is None else _entry(definition)


def get_all() -> list[ServingEntry]:
    """Return the descriptions of all servings of the project."""
    return [_entry(definitions.existing_definition(name)) for name in definitions.serving_names()]


def _entry(definition: ServingDefinition) -> ServingEntry:
    """Return the description of a serving from its definition and status."""
    found = manager.status(definition.name)
    return ServingEntry(
        zlib.crc32(definition.name.encode()),
        definition.name,
        urls.join(settings.project_url(), _MODELS, definition.model),
        definition.model,
        found.version or definition.version,
        definition.model_server or "TENSORFLOW_SERVING",
        found.state,
        definition.creator,
        definition.created,
    )


def _known(serving_name: str) -> ServingEntry:
    """Return the description of a serving that must exist."""
    return _entry(definitions.existing_definition(serving_name))


def get_id(serving_name: str) -> int | None:
    """Return a constant number for a serving; None if it does not exist."""
    found = get(serving_name)
    return None if found is None else found.id


def get_status(serving_name: str) -> str:
    """Return the state of a serving: "Running" or "Stopped".

    Raises:
        ServingNotFound: There is no serving of this name.
    """
    return _known(serving_name).status


def get_model_path(serving_name: str) -> str:
    """Return the URL of the model's directory.

    Raises:
        ServingNotFound: There is no serving of this name.
    """
    return _known(serving_name).model_path


def get_model_name(serving_name: str) -> str:
    """Return the name of the model; the predecessor returned its version.

    Raises:
        ServingNotFound: There is no serving of this name.
    """
    return _known(serving_name).model_name


def get_model_version(serving_name: str) -> int | str:
    """Return the version that answers or, for a stopped serving, the version that it will start with.

    Raises:
        ServingNotFound: There is no serving of this name.
    """
    return _known(serving_name).model_version


def get_model_server(serving_name: str) -> str:
    """Return "TENSORFLOW_SERVING" or "PYTHON", as given at its creation.

    The server of hopsml has the same REST interface for both.

    Raises:
        ServingNotFound: There is no serving of this name.
    """
    return _known(serving_name).model_server


get_type = get_model_server  # its oldest name
get_version = get_model_version  # its oldest name


def get_artifact_path(serving_name: str) -> str:
    """Return the URL of the served version's directory, or of the model's for an alias; former ``get_model_path``.

    Raises:
        ServingNotFound: There is no serving of this name.
    """
    found = _known(serving_name)
    return (
        urls.join(found.model_path, str(found.model_version))
        if isinstance(found.model_version, int)
        else found.model_path
    )


def get_available_instances(serving_name: str) -> int:
    """Return the number of replicas that answer; 0 for a stopped serving.

    Raises:
        ServingNotFound: There is no serving of this name.
    """
    definitions.existing_definition(serving_name)
    return manager.status(serving_name).ready or 0


def export(model_path: str, model_name: str, model_version: int = 1, overwrite: bool = False) -> str:
    """Export files as a version of a model, and return its URL; ``hopsml.model.export`` also accepts models in memory.

    Args:
        model_path: Path or URL of the files.
        model_name: Name of the model.
        model_version: Version number.
        overwrite: True to replace the version of that number.

    Raises:
        ModelExists: The version exists, and ``overwrite`` is False.
        PathNotFound: The path does not exist.
    """
    from hopsml.model.exporting import export as export_version

    made = export_version(model_path, model_name, model_version, overwrite)
    return urls.join(settings.project_url(), _MODELS, model_name, str(model_version)) if made is None else made.url


def describe(serving_name: str) -> None:
    """Print the status of a serving.

    Raises:
        ServingNotFound: There is no serving of this name.
    """
    print(manager.status(serving_name))


def make_inference_request(serving_name: str, data: dict[str, Any], verb: str = ":predict") -> Any:
    """Send a request in TensorFlow Serving's form, and return the content of the answer.

    Args:
        serving_name: Name of the serving.
        data: ``{"signature_name", "instances"}`` or ``{"inputs"}``.
        verb: Only ":predict" is supported.

    Raises:
        ServingNotFound: There is no serving of this name.
        ArgumentError: The server refuses the request as invalid, or the verb is unknown.
        ServingError: The serving is stopped or overloaded, or the model fails.
    """
    if verb not in _VERBS:
        raise ArgumentError(f"verb={verb!r}: the verb must be {' or '.join(_VERBS)}")
    record = client.find_server(serving_name)
    return client.post_json(record, f"/v1/models/{serving_name}{verb}", data, 60.0)
