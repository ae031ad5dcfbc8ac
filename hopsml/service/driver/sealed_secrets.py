"""Transfer of a job's secrets to its drivers: encrypted with a key for one use, in a file that is read once.

    <job's folder>/<try>/<tag>.sealed       on the project's storage, mode 0600

The key is in the driver's environment, which neither ``ps`` nor YARN's pages show. The file without the key is useless,
and so is the key without the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, MutableMapping, Sequence

from hopsml.core import redact
from hopsml.errors import ArgumentError, PathNotFound, ServiceError
from hopsml.service.driver.driver_requests import TAG
from hopsml.service.spec import secret_rules
from hopsml.storage import urls
from hopsml.storage.filesystem import for_url
from hopsml.training.discovery.names import FOLDER

KEY = "HOPSML_JOB_SECRETS_KEY"
_NONCE = bytes(12)  # constant, because each key encrypts one message


def new_key() -> str:
    """Return a random 256-bit key as hexadecimal text."""
    return os.urandom(32).hex()


def put(variables: Mapping[str, str], values: Mapping[str, str]) -> None:
    """Store the encrypted secrets for the driver that is started with these variables.

    Args:
        variables: Environment of the driver, with its tag, folder and key.
        values: Name of a secret -> its value.

    Raises:
        StorageError: The file cannot be written.
    """
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    tag, url = variables[TAG], _url(variables)
    store = for_url(url)
    store.write_bytes(
        url, AESGCM(bytes.fromhex(variables[KEY])).encrypt(_NONCE, json.dumps(values).encode(), tag.encode())
    )
    store.set_permission(url, 0o600)


def take(names: Sequence[str], environment: MutableMapping[str, str]) -> dict[str, str]:
    """Return the variables of a job's secrets, for user code only; this process masks their values from now on.

    The service's file is deleted, and its key is removed from ``environment``. Without a service the secrets are in the
    environment, under their own variables.

    Args:
        names: Names of the job's secrets.
        environment: Environment of the driver.

    Raises:
        ArgumentError: A secret is not set in an environment without a service.
        ServiceError: The service's file does not exist any more.
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
    """Decrypt and delete the service's file."""
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
    """Return the secrets from the environment of a driver that no service started."""
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
    """Return the URL of the file for a driver's variables."""
    return urls.join(variables[FOLDER], f"{variables[TAG]}.sealed")
