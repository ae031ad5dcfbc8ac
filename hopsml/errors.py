"""Hierarchy of all errors that hopsml raises on purpose.

    HopsmlError
    ├── ArgumentError (ValueError)            a call that cannot be executed; nothing was started
    │   ├── CaptureError                      the training function cannot be pickled; names the cause
    │   ├── RuleError (AssertionError)        a value that the predecessor or Maggy refused by an assertion
    │   │   └── BoundsError                   bounds of a hyper-parameter that are not two, or not ascending
    │   ├── UnknownName (KeyError)            no such searcher or stopper; the message lists the existing ones
    │   ├── ModelNotFound (LookupError)       the registry has no such model, version or alias
    │   ├── ModelExists                       the registry has this version already
    │   ├── JobFileError                      a job file with mistakes; the message lists all, one per line
    │   ├── AlreadyServed                     another server has this name; the message has its address
    │   └── ServingNotFound (LookupError)     no model is or was served under this name
    ├── ArgumentTypeError (TypeError)         an argument of the wrong type
    │   └── MetricsError (AssertionError)     metrics of a model that are no dict of numbers by name
    ├── EnvironmentConflict                   the user's environment already has a variable that hopsml would set
    ├── UnsupportedVersion                    a version that is known not to work
    ├── RunError (RuntimeError)               a run that was started and did not finish
    │   ├── StartTimeout                      members missing at the start deadline, each with its reason
    │   ├── NotEnoughSlots                    the run needs more slots than the cluster can provide
    │   ├── WorkerFailed                      a worker failed: rank, host, cause, remote traceback, log
    │   ├── RunCancelled                      cancelled by the user or by an interrupt
    │   ├── ResultsNotStored                  the training finished, but its results could not be stored; ``result`` has them
    │   └── CoordinatorLost                   the coordinator itself failed (Spark stopped, agents' job failed)
    ├── ServingError (RuntimeError)           a server could not be started, changed or queried
    ├── CollectiveError (RuntimeError)        an operation of a group failed; ``rank``: the member that caused it
    │   ├── PeerLost (ConnectionError)        a member has ended or cannot be reached
    │   ├── CollectiveTimeout (TimeoutError)  a member did not take part in time
    │   ├── CollectiveMismatch                members called different operations
    │   ├── CollectiveRefused                 a process lacks the group's secret, or is of another generation
    │   ├── CollectiveEnded                   the group was ended in this process
    │   ├── CollectiveChanged                 the group's members are not those that the call was made for
    │   └── CollectiveUnavailable             the native library is missing
    ├── ServiceError (RuntimeError)           the job service cannot process a request
    │   ├── StoreError                        its database is unavailable, full, locked, or of a newer version
    │   ├── JobNotFound (LookupError)         it has no such job
    │   └── ProviderError                     nodes could not be listed, added or ended; has the provider's message
    ├── ClusterError (RuntimeError)           YARN rejected a request; the message contains YARN's
    │   ├── ApplicationNotFound (LookupError) the ResourceManager has no such application
    │   └── ClusterUnavailable                no ResourceManager answers at the addresses
    └── StorageError (OSError)                a file operation failed; names the path
        ├── PathNotFound (FileNotFoundError)
        ├── PathExists (FileExistsError)
        ├── PermissionRefused (PermissionError)
        ├── QuotaExceeded                     permanent until the quota is raised
        ├── SafeMode                          temporary: the NameNode is starting
        ├── StorageUnavailable                no server answers at the address
        └── StorageTimeout (TimeoutError)     the call did not end within its deadline

Messages contain the value, the rule and the remedy.

    TrialStopped (BaseException)              not an error: the search ends this trial here
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hopsml.core import redact, tracebacks

__all__ = [
    "AlreadyServed",
    "ApplicationNotFound",
    "ArgumentError",
    "ArgumentTypeError",
    "BoundsError",
    "CaptureError",
    "ClusterError",
    "ClusterUnavailable",
    "CollectiveChanged",
    "CollectiveEnded",
    "CollectiveError",
    "CollectiveMismatch",
    "CollectiveRefused",
    "CollectiveTimeout",
    "CollectiveUnavailable",
    "CoordinatorLost",
    "EnvironmentConflict",
    "HopsmlError",
    "JobFileError",
    "JobNotFound",
    "MetricsError",
    "ModelExists",
    "ModelNotFound",
    "NotEnoughSlots",
    "PathExists",
    "PathNotFound",
    "PeerLost",
    "PermissionRefused",
    "ProviderError",
    "QuotaExceeded",
    "ResultsNotStored",
    "RuleError",
    "RunCancelled",
    "RunError",
    "SafeMode",
    "ServiceError",
    "ServingError",
    "ServingNotFound",
    "StartTimeout",
    "StorageError",
    "StorageTimeout",
    "StorageUnavailable",
    "StoreError",
    "TrialStopped",
    "UnknownName",
    "UnsupportedVersion",
    "WorkerFailed",
]


class HopsmlError(Exception):
    """Base class of all errors that hopsml raises on purpose; secrets are masked in the message."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(redact.text(arg) if isinstance(arg, str) else arg for arg in args))

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows: the frames of the user's code and the message."""
        return tracebacks.render(self)


class ArgumentError(HopsmlError, ValueError):
    """Error raised for a call with an argument that cannot be used; nothing was started."""


class CaptureError(ArgumentError):
    """Error raised when the training function cannot be pickled.

    The message names the object in it that prevents it.
    """


class RuleError(ArgumentError, AssertionError):
    """Error raised for a value that the predecessor or Maggy refused by an assertion: callers expect AssertionError."""


class BoundsError(RuleError):
    """Error raised for bounds of a hyper-parameter that are not two, or not ascending."""


class UnknownName(ArgumentError, KeyError):
    """Error raised when no searcher or stopper has the name; also a KeyError, which callers of Maggy expect."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0]) if self.args else ""


class ModelNotFound(ArgumentError, LookupError):
    """Error raised when the registry has no such model, version or alias; the message lists similar names."""


class ModelExists(ArgumentError):
    """Error raised when the registry has the version already, and it must not be overwritten."""


class JobFileError(ArgumentError):
    """Error raised for an invalid job file; ``problems`` are all mistakes that could be detected, one per line."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(redact.text(problem) for problem in problems)


class AlreadyServed(ArgumentError):
    """Error raised when another server already has the name; the message has its address."""


class ServingNotFound(ArgumentError, LookupError):
    """Error raised when no model is served or was created under the name; the message lists similar names."""


class ArgumentTypeError(HopsmlError, TypeError):
    """Error raised for a call with an argument of the wrong type; nothing was started."""


class MetricsError(ArgumentTypeError, AssertionError):
    """Error raised for metrics of a model that are no dict of numbers by name.

    It is also an AssertionError, which callers of the predecessor expect.
    """


class EnvironmentConflict(HopsmlError):
    """Error raised when the user's environment already has a variable that hopsml would set."""


class UnsupportedVersion(HopsmlError):
    """Error raised for a version that is known not to work, of a package, Python or Java; it lists those that do."""


class RunError(HopsmlError, RuntimeError):
    """Base class of errors of a run that was started and did not finish."""

    def __init__(self, message: str, run_dir: str | None = None) -> None:
        super().__init__(message)
        self.run_dir = run_dir


class StartTimeout(RunError):
    """Error raised when workers are missing at the start deadline."""


class NotEnoughSlots(RunError):
    """Error raised when a run needs more slots than the cluster can ever provide."""


class WorkerFailed(RunError):
    """Error raised when a worker has failed; of several failures, the first one is reported.

    Attributes:
        rank: rank of the worker.
        host: its host.
        cause: the error in one line.
        remote_traceback: traceback in the worker; may be empty.
        log: path of the worker's log.
        log_tail: last lines of the log, as far as they have arrived.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int,
        host: str,
        cause: str,
        remote_traceback: str = "",
        log: str = "",
        log_tail: str = "",
        run_dir: str | None = None,
    ) -> None:
        super().__init__(message, run_dir)
        self.rank = rank
        self.host = host
        self.cause = redact.text(cause)
        self.remote_traceback = redact.text(remote_traceback)
        self.log = log
        self.log_tail = redact.text(log_tail)


class RunCancelled(RunError):
    """Error raised when the run was cancelled by the user or by an interrupt."""


class ResultsNotStored(RunError):
    """Error raised when a run, search or launch has finished, but could not store what it promised.

    Attributes:
        result: what the call would have returned; the function's value is ``result.value``.
    """

    result: Any = None


class CoordinatorLost(RunError):
    """Error raised when what all workers depend on has failed.

    Spark was stopped, its JVM ended, or the agents' Spark job failed.
    """


class ServingError(HopsmlError, RuntimeError):
    """Error raised when a model server cannot be started or changed, or does not answer.

    The message contains the server's error, or names its log.
    """


class CollectiveError(HopsmlError, RuntimeError):
    """Error raised when an operation of a group of processes fails, and with it the group.

    Attributes:
        rank: the member that caused the failure, or None.
    """

    def __init__(self, message: str, *, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


class PeerLost(CollectiveError, ConnectionError):
    """Error raised when a member of the group has ended or cannot be reached."""


class CollectiveTimeout(CollectiveError, TimeoutError):
    """Error raised when a member of the group does not take part in an operation in time."""


class CollectiveMismatch(CollectiveError):
    """Error raised when members of the group call different operations.

    The message has both operations, and ``rank`` is one of the members that differ.
    """


class CollectiveRefused(CollectiveError):
    """Error raised when a process is not admitted to the group, or traffic between members was manipulated.

    The process lacks the group's secret, is of another generation, or uses another encryption setting than the others;
    or encrypted data between two members was changed.
    """


class CollectiveEnded(CollectiveError):
    """Error raised when the group was ended in this process, or was formed by the parent of this forked process."""


class CollectiveChanged(CollectiveError):
    """Error raised when the group has other members than the call's arrays were made for.

    Nothing was done, and the call can be repeated.
    """


class CollectiveUnavailable(CollectiveError):
    """Error raised when the native library is missing, or OpenSSL's, which encryption needs.

    The message explains how to install it.
    """


class ServiceError(HopsmlError, RuntimeError):
    """Error raised when the job service cannot process a request."""


class StoreError(ServiceError):
    """Error raised when the service's database is unavailable, full, locked, or of a newer version.

    The message has the database's error.
    """


class JobNotFound(ServiceError, LookupError):
    """Error raised when the service has no such job."""


class ProviderError(ServiceError):
    """Error raised when a node provider cannot list, add or end nodes; the message has its error.

    The request is repeated.
    """


class ClusterError(HopsmlError, RuntimeError):
    """Error raised when YARN rejects a request, or Spark cannot start."""


class ApplicationNotFound(ClusterError, LookupError):
    """Error raised when the ResourceManager has no such application."""


class ClusterUnavailable(ClusterError):
    """Error raised when no ResourceManager answers; the same call may succeed later."""


class TrialStopped(BaseException):
    """Signal that the search ends or pauses this trial, raised where the training function reports.

    It is control flow, as ``KeyboardInterrupt`` and ``asyncio.CancelledError`` are, and like them no ``Exception``: an
    ``except Exception`` in training code would swallow it, and the training would continue. Catch it by its name, to
    save; whatever the function does then, its trial counts as ended by the search. ``how`` is "stop" or "pause".
    """

    def __init__(self, how: str = "stop", step: int | None = None) -> None:
        text = "paused: it may go on later, from its newest checkpoint" if how == "pause" else "stopped"
        super().__init__(f"the search has {text}" + ("" if step is None else f" (step {step})"))
        self.how, self.step = how, step


class StorageError(HopsmlError, OSError):
    """Error raised when a file operation fails; ``path`` is the URL of the file."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path

    def __str__(self) -> str:  # OSError would show the errno pair
        return str(self.args[0]) if self.args else ""


class PathNotFound(StorageError, FileNotFoundError):
    """Error raised when a file or directory does not exist."""


class PathExists(StorageError, FileExistsError):
    """Error raised when the target exists already and must not be overwritten."""


class PermissionRefused(StorageError, PermissionError):
    """Error raised when the file system does not permit this user an operation."""


class QuotaExceeded(StorageError):
    """Error raised when a space or name quota is used up; only a higher quota or fewer files help."""


class SafeMode(StorageError):
    """Error raised while the NameNode is in safe mode; the same call may succeed later."""


class StorageUnavailable(StorageError):
    """Error raised when the storage service does not answer, or the connection broke."""


class StorageTimeout(StorageError, TimeoutError):
    """Error raised when a storage call does not return within its deadline."""


def __dir__() -> list[str]:
    return list(__all__)


tracebacks.install_excepthook()  # here, as every module that raises one of these errors imports this one
