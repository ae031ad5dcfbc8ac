"""How the secrets of a job come to its drivers: sealed under a key that serves once, in a file that is read once.

    <job's folder>/<try>/<tag>.sealed       on the project's store, 0600

The key is in the driver's environment, which neither ``ps`` nor YARN's pages show; without the file it opens nothing, nor
does the file without the key.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, MutableMapping, Sequence

from hopsml import redact
from hopsml.errors import ArgumentError, PathNotFound, ServiceError
from hopsml.service.driver.end_requests import TAG
from hopsml.service.spec import secret_rules
from hopsml.storage import urls
from hopsml.storage.filesystem import for_url
from hopsml.training.discovery.names import FOLDER

KEY = "HOPSML_JOB_SECRETS_KEY"
_NONCE = bytes(12)  # each key seals one message


def new_key() -> str:
    """A key, as text."""
    return os.urandom(32).hex()


def put(variables: Mapping[str, str], values: Mapping[str, str]) -> None:
    """Leave the values, by name, for the driver that is started with these variables. Raises StorageError."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    tag, url = variables[TAG], _url(variables)
    store = for_url(url)
    store.write_bytes(
        url, AESGCM(bytes.fromhex(variables[KEY])).encrypt(_NONCE, json.dumps(values).encode(), tag.encode())
    )
    store.set_permission(url, 0o600)


def take(names: Sequence[str], environment: MutableMapping[str, str]) -> dict[str, str]:
    """The variables of a job's secrets, for user code alone; this process masks their values from now on.

    What the service has left is deleted, and its key is taken out of ``environment``. Without a service they are in the
    environment under their own variables. Raises ArgumentError naming those that are not, ServiceError where what the
    service has left is gone.
    """
    if not names:
        return {}
    key = environment.pop(KEY, "")
    values = _opened(key, environment) if key else _of_caller(names, environment)
    found = {secret_rules.variable(name): value for name, value in values.items()}
    for variable, value in found.items():
        redact.register(variable, value)
    return found


def _opened(key: str, environment: Mapping[str, str]) -> dict[str, str]:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    url = _url(environment)
    store = for_url(url)
    try:
        content = store.read_bytes(url)
    except PathNotFound:
        raise ServiceError(
            f"the secrets of {environment[TAG]} have been read before, or somebody has deleted {url}; submit the job again"
        ) from None
    store.delete(url)
    values: dict[str, str] = json.loads(AESGCM(bytes.fromhex(key)).decrypt(_NONCE, content, environment[TAG].encode()))
    return values


def _of_caller(names: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    found = {name: environment.get(secret_rules.variable(name), "") for name in names}
    if missing := [name for name, value in found.items() if not value]:
        wanted = secret_rules.variable(missing[0])
        raise ArgumentError(
            f"the job needs the secret {missing[0]}, and {wanted} is not set in this environment; set it, or submit "
            f"the job to a service that keeps it (`hopsml secrets put {missing[0]}`)"
        )
    for name, value in found.items():
        secret_rules.check_value(name, value)
    return found


def _url(variables: Mapping[str, str]) -> str:
    return urls.join(variables[FOLDER], f"{variables[TAG]}.sealed")
