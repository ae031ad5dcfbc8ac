"""Every error that hopsml raises on purpose, in one tree.

    HopsmlError
    ├── ArgumentError (ValueError)            a call that cannot be carried out; nothing was started
    │   ├── CaptureError                      the training function cannot be shipped, and what in it is why
    │   ├── BoundsError (AssertionError)      bounds of a hyper-parameter that are not two, or not ascending
    │   ├── UnknownName (KeyError)            no such searcher or stopper; the message lists those that there are
    │   ├── ModelNotFound (LookupError)       the registry has no such model, version or alias
    │   ├── ModelExists                       the registry has this version already
    │   ├── JobFileError                      a job file with mistakes; the message has them all, a line each
    │   ├── AlreadyServed                     another server has this name; the message has its address
    │   └── ServingNotFound (LookupError)     nothing of this name is, or was, served
    ├── ArgumentTypeError (TypeError)         an argument of the wrong type
    ├── EnvironmentConflict                   the user's environment already holds what hopsml would set
    ├── UnsupportedVersion                    a framework version that is known not to work
    ├── RunError (RuntimeError)               a run that was started and did not finish
    │   ├── StartTimeout                      members missing at the start deadline, each with its reason
    │   ├── NotEnoughSlots                    the cluster can never give what was asked for
    │   ├── WorkerFailed                      a worker failed: rank, host, cause, remote traceback, log
    │   ├── RunCancelled                      cancelled by the user or by an interrupt
    │   └── CoordinatorLost                   the launcher itself broke (Spark stopped, agents' job failed)
    ├── ServingError (RuntimeError)           a server that could not be started, changed or asked
    ├── CollectiveError (RuntimeError)        an operation of a group of processes failed; ``rank``: who is to blame
    │   ├── PeerLost (ConnectionError)        a member has ended or cannot be reached
    │   ├── CollectiveTimeout (TimeoutError)  a member took no part in time
    │   ├── CollectiveMismatch                members called different operations
    │   ├── CollectiveRefused                 somebody does not know the group's secret, or is of another generation
    │   ├── CollectiveEnded                   the group was ended in this process
    │   ├── CollectiveChanged                 the group has other members than the call was made for
    │   └── CollectiveUnavailable             the native library is not there
    ├── ServiceError (RuntimeError)           the job service cannot do what was asked
    │   ├── StoreError                        its database is away, full, locked, or of a newer version
    │   ├── JobNotFound (LookupError)         it has no such job
    │   └── ProviderError                     nodes could not be listed, added or ended; the message has the provider's words
    ├── ClusterError (RuntimeError)           YARN refused what was asked; the message has its words
    │   ├── ApplicationNotFound (LookupError) the ResourceManager knows no such application
    │   └── ClusterUnavailable                no ResourceManager answers at the addresses
    └── StorageError (OSError)                a file operation; names the path
        ├── PathNotFound (FileNotFoundError)
        ├── PathExists (FileExistsError)
        ├── PermissionRefused (PermissionError)
        ├── QuotaExceeded                     permanent until somebody raises the quota
        ├── SafeMode                          passing: the NameNode is starting
        ├── StorageUnavailable                nobody answers at the address
        └── StorageTimeout (TimeoutError)     the call did not end within its deadline

Messages name the value, the rule and the remedy.

    TrialStopped (BaseException)              no error: the search wants this trial to end here
"""

from __future__ import annotations

from collections.abc import Sequence

from hopsml import redact, tracebacks


class HopsmlError(Exception):
    """Base of all errors that hopsml raises on purpose. Its text holds no secret, whoever's words are quoted in it."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(redact.text(arg) if isinstance(arg, str) else arg for arg in args))

    def _render_traceback_(self) -> list[str]:
        """For IPython: the user's own frames and the message."""
        return tracebacks.render(self)


class ArgumentError(HopsmlError, ValueError):
    """A call with an argument that cannot be used; nothing was started."""


class CaptureError(ArgumentError):
    """The training function cannot be pickled for the workers; the message names the object in it that is to blame."""


class BoundsError(ArgumentError, AssertionError):
    """The bounds of a hyper-parameter are not two, or not ascending; callers of Maggy expect an AssertionError."""


class UnknownName(ArgumentError, KeyError):
    """No searcher or stopper has this name; callers of Maggy expect a KeyError."""

    def __str__(self) -> str:  # KeyError would quote the whole message
        return str(self.args[0]) if self.args else ""


class ModelNotFound(ArgumentError, LookupError):
    """The registry has no such model, version or alias; the message has the names that are spelt nearly so."""


class ModelExists(ArgumentError):
    """The registry has this version already, and it was not to be overwritten."""


class JobFileError(ArgumentError):
    """A job file that cannot be used. ``problems``: all that is wrong with it, as far as that can be told, a line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(redact.text(problem) for problem in problems)


class AlreadyServed(ArgumentError):
    """Another server has this name."""


class ServingNotFound(ArgumentError, LookupError):
    """Nothing of this name is served, or was created to be; the message has the names that are spelt nearly so."""


class ArgumentTypeError(HopsmlError, TypeError):
    """A call with an argument of the wrong type; nothing was started."""


class EnvironmentConflict(HopsmlError):
    """The user's environment already holds a variable that hopsml would set."""


class UnsupportedVersion(HopsmlError):
    """A framework version that is known not to work; the message lists those that do."""


class RunError(HopsmlError, RuntimeError):
    """Base of errors of a run that was started and did not finish."""

    def __init__(self, message: str, run_dir: str | None = None) -> None:
        super().__init__(message)
        self.run_dir = run_dir


class StartTimeout(RunError):
    """Workers were missing when the time allowed for the start was over."""


class NotEnoughSlots(RunError):
    """The run needs more slots than the cluster can ever give."""


class WorkerFailed(RunError):
    """A worker failed; the first one that did is named.

    Attributes: ``rank``, ``host``, ``cause`` (one line), ``remote_traceback`` (may be empty), ``log`` (its path),
    ``log_tail`` (its last lines, as far as they have arrived).
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
    """The run was cancelled by the user or by an interrupt."""


class CoordinatorLost(RunError):
    """What all workers depend on failed: Spark was stopped, its JVM ended, or the agents' Spark job failed."""


class ServingError(HopsmlError, RuntimeError):
    """A server could not be started or changed, or did not answer; the message has its words, or names its log."""


class CollectiveError(HopsmlError, RuntimeError):
    """An operation of a group of processes failed, and the group with it. ``rank``: the member that is to blame, or None."""

    def __init__(self, message: str, *, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


class PeerLost(CollectiveError, ConnectionError):
    """A member of the group has ended or cannot be reached."""


class CollectiveTimeout(CollectiveError, TimeoutError):
    """A member of the group took no part in time."""


class CollectiveMismatch(CollectiveError):
    """Members of the group called different operations; the message has both, and ``rank`` is one of those that differ."""


class CollectiveRefused(CollectiveError):
    """Somebody who was to be a member does not know the group's secret, is of another generation, or does not encrypt as
    the others do; or somebody has changed what went encrypted between two members."""


class CollectiveEnded(CollectiveError):
    """The group was ended in this process, or this process is a fork of the one that formed it."""


class CollectiveChanged(CollectiveError):
    """The group has other members than the call's arrays were made for; nothing was done, and the call can be made anew."""


class CollectiveUnavailable(CollectiveError):
    """The native library is not there, or OpenSSL's, which encryption needs; the message says how to get it."""


class ServiceError(HopsmlError, RuntimeError):
    """The job service cannot do what was asked of it."""


class StoreError(ServiceError):
    """The service's database is away, full, locked, or of a newer version; the message has its words."""


class JobNotFound(ServiceError, LookupError):
    """The service has no such job."""


class ProviderError(ServiceError):
    """Whoever gives nodes could not list, add or end some; the message has its words. It is asked again."""


class ClusterError(HopsmlError, RuntimeError):
    """YARN refused a request."""


class ApplicationNotFound(ClusterError, LookupError):
    """The ResourceManager knows no such application."""


class ClusterUnavailable(ClusterError):
    """No ResourceManager answers; the same call may succeed later."""


class TrialStopped(BaseException):
    """The search ends this trial, or pauses it; raised where the training function reports.

    It is control flow as ``KeyboardInterrupt`` and ``asyncio.CancelledError`` are, and like them no ``Exception``: training
    code is full of ``except Exception`` that would swallow it and train on. Catch it by its name, to save; whatever the
    function does then, its trial counts as ended by the search. ``how`` is "stop" or "pause".
    """

    def __init__(self, how: str = "stop", step: int | None = None) -> None:
        text = "paused: it may go on later, from its newest checkpoint" if how == "pause" else "stopped"
        super().__init__(f"the search has {text}" + ("" if step is None else f" (step {step})"))
        self.how, self.step = how, step


class StorageError(HopsmlError, OSError):
    """A file operation failed; ``path`` is the URL that it was about."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path

    def __str__(self) -> str:  # OSError would print the errno pair
        return str(self.args[0]) if self.args else ""


class PathNotFound(StorageError, FileNotFoundError):
    """There is no such file or directory."""


class PathExists(StorageError, FileExistsError):
    """The target exists already and was not to be overwritten."""


class PermissionRefused(StorageError, PermissionError):
    """The file system refuses this user."""


class QuotaExceeded(StorageError):
    """A space or name quota is used up; nothing but a higher quota or fewer files helps."""


class SafeMode(StorageError):
    """The NameNode is in safe mode; trying again later helps."""


class StorageUnavailable(StorageError):
    """The storage service does not answer, or the connection broke."""


class StorageTimeout(StorageError, TimeoutError):
    """A storage call did not return within its deadline."""
