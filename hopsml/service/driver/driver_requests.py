"""Messages between the job service and the driver of a launch, on the project's storage, named by the launch's tag.

    <project>/Jobs/<tag>.end                request to end; empty
    <project>/Jobs/<tag>.slots              number of slots that the driver may hold, written by the service
    <project>/Jobs/<tag>.held               the driver's answer: [number that it received, most slots that it holds]
    <job's folder>/<try>/<tag>.sealed       the job's secrets, encrypted with a key for one use; mode 0600

A driver that receives a request to end is interrupted as by Ctrl-C: its runs are cancelled, and the output of their workers
so far is stored; YARN itself can only kill. From the moment when a driver has received a number of slots its runs request no
more than that; surplus slots are released at their next commit, and the answer reports when that has happened. The key of
the secrets is in the driver's environment, which neither ``ps`` nor YARN's pages show; it is useless without the file.
"""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Callable, Mapping, MutableMapping, Sequence

from hopsml.core import redact, settings
from hopsml.core.variables import Settings
from hopsml.errors import ArgumentError, CoordinatorLost, PathNotFound, ServiceError
from hopsml.service.spec import fields
from hopsml.storage import mailbox, urls
from hopsml.storage.filesystem import for_url
from hopsml.training.discovery import FOLDER as ADDRESSES

log = logging.getLogger("hopsml.service")

END_POLL_S, SLOTS_POLL_S = 2.0, 1.0
TAG = Settings.job_tag.name
FIRST_SLOTS = Settings.job_slots.name  # number of slots at the driver's start
FOLDER = "Jobs"
_MOST_BYTES = 100  # of a message
_MOST_DIGITS = 9  # of a number of slots


def request_end(project_url: str, tag: str) -> None:
    """Request the driver of a launch to end. Raises StorageError."""
    mailbox.send(_url(project_url, tag, "end"), b"")


def end_is_requested(project_url: str, tag: str) -> bool:
    """Return True if the driver of a launch was requested to end. Raises StorageError."""
    return mailbox.receive(_url(project_url, tag, "end"), 1) is not None


def send_slots(project_url: str, tag: str, slots: int) -> None:
    """Write the number of slots that a driver may hold. Raises StorageError."""
    mailbox.send(_url(project_url, tag, "slots"), str(slots).encode())


def granted_slots(project_url: str, tag: str) -> int | None:
    """Return the number of slots that a driver may hold; None if none was written since its start. Raises StorageError."""
    return _number(_text(project_url, tag, "slots"))


def answer_slots(project_url: str, tag: str, received: int, held: int) -> None:
    """Write the driver's answer: the number that it received, and the slots that it holds. Raises StorageError."""
    mailbox.send(_url(project_url, tag, "held"), json.dumps([received, held]).encode())


def answered_slots(project_url: str, tag: str) -> tuple[int, int] | None:
    """Return a driver's newest answer: (slots that it received, slots that it holds); None without one. StorageError."""
    try:
        received, held = json.loads(_text(project_url, tag, "held") or "null")
        return int(received), int(held)
    except (ValueError, TypeError, OverflowError, RecursionError):  # being written, or overwritten by a job's code
        return None


class SlotsWatch:
    """Poller that applies the granted slots to a driver and answers with the slots it holds."""

    def __init__(self, tag: str, first: int, allow: Callable[[int], None], held: Callable[[int], int]) -> None:
        """Initialize the poller and apply the first number.

        Args:
            tag: Tag of the driver's launch.
            first: Initial number of slots.
            allow: Limits the driver's runs to a number of slots.
            held: Returns the slots held, given the granted number.
        """
        self._tag, self._allow, self._held = tag, allow, held
        self._slots, self._answered = first, (0, 0)
        allow(first)

    def poll(self, project_url: str) -> None:
        """Apply a new number, and write a new answer; after an error the next call repeats it.

        Raises:
            StorageError: The storage cannot be read or written.
            CoordinatorLost: The slots that are held cannot be determined.
        """
        slots = granted_slots(project_url, self._tag)
        if slots is not None and slots != self._slots:
            log.info("this driver may have %d slots from now on, after %d", slots, self._slots)
            self._allow(slots)
            self._slots = slots
        answer = self._slots, self._held(self._slots)
        if answer != self._answered:
            answer_slots(project_url, self._tag, *answer)
            self._answered = answer


def watch_for_end(environment: Mapping[str, str]) -> None:
    """Start to poll for a request to end, in a driver that a service started; it is interrupted once."""
    if not (tag := Settings(environment).job_tag):
        return
    project_url = settings.project_url()

    def interrupted() -> bool:
        if not end_is_requested(project_url, tag):
            return False
        os.kill(os.getpid(), signal.SIGINT)
        return True

    mailbox.poll_in_background("hopsml-end-request", END_POLL_S, interrupted)


def watch_slots(environment: Mapping[str, str]) -> None:
    """Start to poll for numbers of slots, in a driver of an elastic task that a service started."""
    tag, first = Settings(environment).job_tag, _number(Settings(environment).job_slots)
    if not tag or not first:
        return
    from hopsml.experiment import applications

    project_url = settings.project_url()
    watch = SlotsWatch(tag, first, applications.limit_slots, applications.dismiss_surplus_agents)

    def applied() -> bool:
        watch.poll(project_url)
        return False

    mailbox.poll_in_background("hopsml-job-slots", SLOTS_POLL_S, applied, CoordinatorLost)


def _number(text: str) -> int | None:
    """Return a decimal number; None if the text is not one, or is incomplete."""
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None


def _text(project_url: str, tag: str, kind: str) -> str:
    """Return a message as text, in which invalid UTF-8 is replaced; "" if there is none. Raises StorageError."""
    return (mailbox.receive(_url(project_url, tag, kind), _MOST_BYTES) or b"").decode(errors="replace")


def _url(project_url: str, tag: str, kind: str) -> str:
    """Return the URL of a mailbox of a launch."""
    return urls.join(project_url, FOLDER, f"{tag}.{kind}")


KEY = Settings.job_secrets_key.name
_NONCE = bytes(12)  # constant, because each key encrypts one message


def new_key() -> str:
    """Return a random 256-bit key as hexadecimal text."""
    return os.urandom(32).hex()


def seal_secrets(variables: Mapping[str, str], values: Mapping[str, str]) -> None:
    """Store the encrypted secrets for the driver that is started with these variables.

    Args:
        variables: Environment of the driver, with its tag, folder and key.
        values: Name of a secret -> its value.

    Raises:
        StorageError: The file cannot be written.
    """
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    tag, url = variables[TAG], _secrets_url(variables)
    store = for_url(url)
    store.write_bytes(
        url, AESGCM(bytes.fromhex(variables[KEY])).encrypt(_NONCE, json.dumps(values).encode(), tag.encode())
    )
    store.set_permission(url, 0o600)


def take_secrets(names: Sequence[str], environment: MutableMapping[str, str]) -> dict[str, str]:
    """Return the variables of a job's secrets, for user code only; this process masks their values from now on.

    The service's file is deleted, and its key is removed from ``environment``. Without a service the secrets are in the
    environment, under their own variables.

    Raises:
        ArgumentError: A secret is not set in an environment without a service.
        ServiceError: The service's file does not exist any more.
    """
    if not names:
        return {}
    key = Settings(environment).job_secrets_key
    environment.pop(KEY, None)
    values = _opened(key, environment) if key else _of_caller(names, environment)
    found = {fields.secret_variable(name): value for name, value in values.items()}
    for variable, value in found.items():
        redact.register(variable, value)
    return found


def _opened(key: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Decrypt and delete the service's file."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    url = _secrets_url(environment)
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
    found = {name: environment.get(fields.secret_variable(name), "") for name in names}
    if missing := [name for name, value in found.items() if not value]:
        wanted = fields.secret_variable(missing[0])
        raise ArgumentError(
            f"the job needs the secret {missing[0]}, and {wanted} is not set in this environment; set it, or submit "
            f"the job to a service that keeps it (`hopsml secrets put {missing[0]}`)"
        )
    for name, value in found.items():
        fields.check_secret_value(name, value)
    return found


def _secrets_url(variables: Mapping[str, str]) -> str:
    """Return the URL of the file for a driver's variables."""
    return urls.join(variables[ADDRESSES], f"{variables[TAG]}.sealed")
