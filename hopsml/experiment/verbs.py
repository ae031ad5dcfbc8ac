"""Decorator of verbs: signature from an option class in ``options.py``, older spellings, and checks of arguments.

All is checked before anything is started; the predecessor's ignored arguments are listed here.
"""

from __future__ import annotations

import functools
import inspect
import os
import platform
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast

from hopsml.cluster.shared import checks
from hopsml.cluster.shared.checks import present_names
from hopsml.cluster.shared.spec import Roles
from hopsml.cluster.worker.collective_stats import NCCL_VARIABLES
from hopsml.core import suggestions
from hopsml.core.versions import PYTHON, check_version
from hopsml.errors import ArgumentError, ArgumentTypeError, NotEnoughSlots, RuleError
from hopsml.experiment import applications
from hopsml.search.space.space import parameters_of
from hopsml.storage import privacy

check_version(PYTHON, platform.python_version())  # at the import of the verbs: another version may fail anywhere


def group_size(num_workers: Any, min_workers: Any, max_workers: Any) -> tuple[int | None, int | None]:
    """Return the largest and the smallest number of workers of a run's group.

    Returns:
        ``(most, fewest)``. ``most`` is None for as many as the cluster has. ``fewest`` is None for a group of fixed
        size, whose run ends when its first worker fails.
    """
    smallest = None if min_workers is None else checks.whole_number("min_workers", min_workers)
    largest = None if max_workers is None else checks.whole_number("max_workers", max_workers)
    wanted = None if num_workers is None else checks.whole_number("num_workers", num_workers)
    if smallest is None and largest is None:
        return wanted, None
    if wanted is not None:
        if largest is not None and largest != wanted:
            raise ArgumentError(f"num_workers={wanted} and max_workers={largest} differ; pass only one of them")
        largest = wanted
    smallest = 1 if smallest is None else smallest
    if largest is not None and smallest > largest:
        raise ArgumentError(f"min_workers={smallest} is more than max_workers={largest}; it must not be")
    return largest, smallest


def first_workers(value: Any, fewest: int | None, most: int | None) -> int | None:
    """Return the number of workers with which an elastic group begins; None for its largest number.

    Args:
        value: the argument ``first_workers``.
        fewest: smallest number of workers; None for a group of fixed size.
        most: largest number; None for as many as the cluster has.

    Raises:
        ArgumentError: it is not from the smallest to the largest number.
    """
    if value is None:
        return None
    first = checks.whole_number("first_workers", value)
    if fewest is not None and not fewest <= first <= (first if most is None else most):
        limit = "" if most is None else f" to max_workers={most}"
        raise ArgumentError(f"first_workers={first}: it must be from min_workers={fewest}{limit}")
    return first


def worker_environment(value: Mapping[str, str] | None, share: str | None) -> dict[str, str]:
    """Return the workers' environment variables.

    Settings of NCCL's algorithms that this process has are among them, and ``share`` (who may read the run's files)
    becomes one.
    """
    of_nccl = {name: os.environ[name] for name in NCCL_VARIABLES if name in os.environ}
    checked = of_nccl | checks.variables("environment", value or {})
    if share is None:
        return checked
    privacy.share_mode(checks.text("share", share))
    return {**checked, privacy.VARIABLE: share}


def check_evaluator(size: int) -> None:
    """Raise RuleError for fewer than three workers, of which the last one becomes the evaluator."""
    if size < 3:
        raise RuleError(
            f"evaluator=True needs at least 3 workers, since the last one becomes the evaluator; there are {size}"
        )


def check_servers(size: int, roles: Roles) -> None:
    """Raise NotEnoughSlots if ``size`` slots are too few for a chief, one worker, and these roles."""
    least = 2 + roles.parameter_servers + int(roles.evaluator)
    if size < least:
        beside = " and the evaluator" if roles.evaluator else ""
        raise NotEnoughSlots(
            f"num_ps={roles.parameter_servers} needs at least {least} slots: the chief, one worker, the parameter servers"
            f"{beside}; there are {size}"
        )


def keyword_arguments(function: Callable[..., Any], args: Mapping[str, Any] | None, verb: str) -> dict[str, Any]:
    """Return ``args`` as keyword arguments of ``function``; raises ArgumentTypeError for unknown or missing names."""
    if args is None:
        args = {}
    if not isinstance(args, Mapping):
        raise ArgumentTypeError(
            f"{verb}(): args={args!r:.80} is a {type(args).__name__}; it must be a dict of arguments by name"
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return dict(args)
    try:
        signature.bind(**args)
    except TypeError as error:
        name = getattr(function, "__name__", repr(function))
        given = ", ".join(sorted(map(str, args))) or "no arguments"
        strange = [each for each in args if each not in signature.parameters]
        meant = suggestions.similar_names(str(strange[0]), signature.parameters) if strange else []
        remedy = f"did you mean {' or '.join(meant)}?" if meant else f"change {verb}(..., args=), or the function"
        raise ArgumentTypeError(
            f"{verb}(): {name}{signature} cannot be called with {given}: {error}; {remedy}"
        ) from error
    return dict(args)


_WITHOUT_EFFECT = {"cleanup_generations": "the folders of all generations are stored"}


def ignored_argument_notes(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a sentence for each of the predecessor's arguments that was given and is ignored."""
    return tuple(
        f"{name}={given[name]!r:.80} has no effect: {reason}"
        for name, reason in _WITHOUT_EFFECT.items()
        if given.get(name)
    )


_Parameters = ParamSpec("_Parameters")
_Options = TypeVar("_Options")
_Outcome = TypeVar("_Outcome")
_Handle = TypeVar("_Handle")
_Outcome_co = TypeVar("_Outcome_co", covariant=True)
_Handle_co = TypeVar("_Handle_co", covariant=True)
_FUNCTION = "train_fn"  # the first field of every class
_OLDER = {"checkpoint_every": "checkpoint_every_s"}  # arguments of several verbs that have another name now
_OLD_FUNCTION = ("map_fun", "objective_function")  # its name in the predecessor's releases


_SUBMIT = """Start ``{verb}`` and return at once with a handle.

The handle has ``result(timeout)``, ``cancel()``, ``status()``, ``logs(rank)``, ``on_message(function)`` and
``send(value)``, and, for an elastic run, ``resize(size)``. ``experiment.submit_evaluation(function, run)`` evaluates its
checkpoints beside it.

Raises:
    ArgumentError, ArgumentTypeError, StorageError: as ``{verb}``; the handle's ``result`` raises RunError.
"""


class VerbWithSubmit(Protocol[_Parameters, _Outcome_co, _Handle_co]):
    """Verb that blocks, and whose attribute ``submit`` has the same parameters and returns a handle at once."""

    __name__: str

    def __call__(self, *positional: _Parameters.args, **named: _Parameters.kwargs) -> _Outcome_co:
        """Start it, wait for its end, and return the outcome."""
        ...

    @property
    def submit(self) -> Callable[_Parameters, _Handle_co]:
        """Function that starts it and returns a handle at once."""
        ...


class Verb(Generic[_Parameters, _Options]):
    """Decorator for a function of one options object: makes it callable with the fields of the object's class.

    A type checker, ``help`` and a notebook's Shift-Tab show these fields as the verb's parameters. At run time the
    spellings of the predecessor's releases are accepted as well.

    Args:
        options: the options class.
        called: the verb's name in messages.
        orders: names of the positional arguments after the training function, in several releases; the order of the
            class is tried last.
        renamed: older names of arguments, and their present names.
        absent: names that other verbs have and this one does not, and what to use instead.
    """

    def __init__(
        self,
        options: Callable[_Parameters, _Options],
        called: str,
        *,
        orders: Sequence[Sequence[str]] = (),
        renamed: Mapping[str, str] | None = None,
        absent: Mapping[str, str] | None = None,
    ) -> None:
        self._kind, self._called = options, called
        self._signature = _signature(options)
        in_order = [name for name, one in self._signature.parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
        self._orders = (*orders, in_order[1:])
        self._renamed, self._absent = dict(renamed or {}), dict(absent or {})

    def __call__(self, function: Callable[[_Options], _Outcome]) -> Callable[_Parameters, _Outcome]:
        """Return a verb that calls ``function`` with its arguments as one options object."""

        @functools.wraps(function)
        def call(*positional: _Parameters.args, **named: _Parameters.kwargs) -> _Outcome:
            options = self.options(*positional, **named)
            applications.set_profile_variables(
                getattr(options, "profile", None)
            )  # before reading settings that the profile sets
            return function(options)

        returned = inspect.signature(function).return_annotation
        vars(call)["__signature__"] = self._signature.replace(return_annotation=returned)
        del vars(call)["__wrapped__"]
        call.__doc__ = _with_arguments(function.__doc__ or "", self._kind)
        return call

    def with_submit(
        self, start: Callable[[_Options], _Handle]
    ) -> Callable[[Callable[[_Options], _Outcome]], VerbWithSubmit[_Parameters, _Outcome, _Handle]]:
        """Return a decorator like this one, for a blocking function; the verb's ``submit`` calls ``start``.

        Args:
            start: function of the same options object, which returns a handle at once.
        """

        def decorate(function: Callable[[_Options], _Outcome]) -> VerbWithSubmit[_Parameters, _Outcome, _Handle]:
            call, submit = self(function), self(start)
            submit.__doc__ = _with_arguments(_SUBMIT.format(verb=self._called), self._kind)
            submit.__name__, submit.__qualname__ = "submit", f"{call.__qualname__}.submit"
            vars(call)["submit"] = submit
            return cast("VerbWithSubmit[_Parameters, _Outcome, _Handle]", call)

        return decorate

    def options(self, *positional: _Parameters.args, **named: _Parameters.kwargs) -> _Options:
        """Return the arguments of a call as one object.

        Raises:
            ArgumentTypeError: (a TypeError) An argument is unknown, missing or repeated.
        """
        older = {old: name for old, name in _OLDER.items() if name in self._signature.parameters}
        given = present_names({self._renamed.get(name, name): value for name, value in named.items()}, older)
        function, rest = _training_function(positional, given, self._called)
        _take_by_position(self._called, rest, given, self._orders)
        self._check_names(given, function)
        return self._kind(function, **given)  # type: ignore[arg-type]

    def _check_names(self, given: Mapping[str, Any], function: Callable[..., Any]) -> None:
        known = [name for name in self._signature.parameters if name != _FUNCTION]
        for name, value in given.items():
            if name not in known:
                meant = self._absent.get(_OLDER.get(name, name)) or _meant(self._called, name, value, known, function)
                raise ArgumentTypeError(f"{self._called}() has no argument '{name}': {meant}")
        for name in known:
            if name not in given and self._signature.parameters[name].default is inspect.Parameter.empty:
                raise ArgumentTypeError(
                    f"{self._called}() needs the argument '{name}' after the function; see "
                    f"help(experiment.{self._called})"
                )


def _signature(options: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of the options class, its own fields before inherited ones."""
    known = inspect.signature(options).parameters
    order = [name for kind in _classes(options) for name in vars(kind)["__annotations__"] if name in known]
    ordered = [known[name] for name in dict.fromkeys(order)]
    return inspect.Signature(sorted(ordered, key=lambda one: one.kind))


def _classes(options: Any) -> Iterator[type]:
    return (kind for kind in options.__mro__ if kind is not object)


def _with_arguments(text: str, options: Callable[..., Any]) -> str:
    """Return a function's documentation, followed by that of the arguments from the options classes."""
    described = [inspect.cleandoc(kind.__doc__ or "").partition("Args:\n")[2] for kind in _classes(options)]
    head, mark, raises = inspect.cleandoc(text).partition("\nRaises:\n")
    return f"{head.rstrip()}\n\nArgs:\n" + "\n".join(text.rstrip() for text in described if text) + "\n" + mark + raises


def _meant(verb: str, name: str, value: Any, known: Collection[str], function: Any) -> str:
    """Return a hint for an unknown argument: a similar name, or that it is the training function's parameter."""
    if name not in (parameters_of(function) or ()):
        return suggestions.suggestion_text(name, known, f"help(experiment.{verb}) lists those that it has")
    handed_on = f"args_dict={{{name!r}: [...]}}" if "args_dict" in known else f"args={{{name!r}: {value!r:.40}}}"
    return f"did you mean {handed_on}, for {getattr(function, '__name__', 'the function')}()?"


def _training_function(
    positional: tuple[Any, ...], named: dict[str, Any], verb: str
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the function and the positional arguments after it; remove it from ``named`` if it is there."""
    if positional and checks.is_spark_session(positional[0]):
        positional = positional[1:]
    for spelling in (_FUNCTION, *_OLD_FUNCTION):
        if spelling in named:
            return _callable(named.pop(spelling), verb), positional
    if not positional:
        raise ArgumentTypeError(f"{verb}() needs the training function as its first argument")
    return _callable(positional[0], verb), positional[1:]


def _callable(value: Any, verb: str) -> Callable[..., Any]:
    if isinstance(value, (str, bytes)):
        raise ArgumentTypeError(
            f"{verb}({value!r:.80}): the training function must be a function, not a path; put the training code of "
            "the notebook or script into a function, with hopsml.tensorflow.strategy() instead of hvd.init(), and "
            "pass it"
        )
    if not callable(value):
        raise ArgumentTypeError(
            f"{verb}(): the training function is {value!r:.80}, a {type(value).__name__}; pass the function itself, "
            f"not its result: {verb}(train), without parentheses after train"
        )
    if inspect.iscoroutinefunction(value):
        raise ArgumentTypeError(
            f"{verb}(): {value.__name__} is a coroutine; the training function must be an ordinary one"
        )
    if inspect.isgeneratorfunction(value) or inspect.isasyncgenfunction(value):
        raise ArgumentTypeError(
            f"{verb}(): {value.__name__} is a generator function (it contains a yield), which does not run when it "
            "is called; the training function must be an ordinary one, with return"
        )
    return value  # type: ignore[no-any-return]


def _take_by_position(verb: str, rest: Sequence[Any], named: dict[str, Any], orders: Sequence[Sequence[str]]) -> None:
    """Move positional arguments into ``named``, by the first of several orders in which their types fit.

    Releases of the predecessor had different orders; if none fits, the first is used for the error.
    """
    longest = max(len(order) for order in orders)
    if len(rest) > longest:
        raise ArgumentTypeError(
            f"{verb}() takes at most {longest} arguments after the training function by position, got {len(rest)}"
        )
    fitting = [
        order
        for order in orders
        if len(rest) <= len(order) and all(_fits(name, value) for name, value in zip(order, rest, strict=False))
    ]
    order = next(iter(fitting), next(order for order in orders if len(rest) <= len(order)))
    for name, value in zip(order, rest, strict=False):
        if name in named:
            raise ArgumentTypeError(f"{verb}() got '{name}' twice: by position and by name")
        named[name] = value


_KINDS: Mapping[str, tuple[type, ...]] = {
    "name": (str,),
    "description": (str, type(None)),
    "metric_key": (str, type(None)),
    "optimization_key": (str,),
    "direction": (str,),
    "local_logdir": (bool,),
    "evaluator": (bool,),
    "cleanup_generations": (bool,),
    "versioned_resources": (list, tuple, type(None)),
    "samples": (int,),
    "generations": (int,),
    "population": (int,),
}


def _fits(name: str, value: Any) -> bool:
    kinds = _KINDS.get(name)
    return kinds is None or (isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool)))
