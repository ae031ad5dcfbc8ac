"""Checks of what a user passes to a verb, before anything is started; old spellings are accepted here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from hopsml import suggestions
from hopsml.cluster.preflight.gate import MODES, Mode
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.storage import privacy


def whole_number(name: str, value: Any, at_least: int = 1) -> int:
    """An int that is no bool, not below ``at_least``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentTypeError(
            f"{name}={value!r} is a {type(value).__name__}; it must be a whole number, at least {at_least}"
        )
    if value < at_least:
        raise ArgumentError(f"{name}={value} is too small; it must be at least {at_least}")
    return value


def seconds(name: str, value: Any, above: float = 0.0) -> float:
    """A duration in seconds, more than ``above``."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ArgumentTypeError(f"{name}={value!r} is a {type(value).__name__}; it must be a number of seconds")
    if not value > above:
        raise ArgumentError(f"{name}={value!r} is too small; it must be more than {above:g} seconds")
    return float(value)


def group_size(num_workers: Any, min_workers: Any, max_workers: Any) -> tuple[int | None, int | None]:
    """How many workers, and the fewest of a group that may change: ``(most, fewest)``.

    ``most`` None: as many as the cluster has. ``fewest`` None: a group of fixed size, whose run ends with its first loss.
    """
    smallest = None if min_workers is None else whole_number("min_workers", min_workers)
    largest = None if max_workers is None else whole_number("max_workers", max_workers)
    wanted = None if num_workers is None else whole_number("num_workers", num_workers)
    if smallest is None and largest is None:
        return wanted, None
    if wanted is not None:
        if largest is not None and largest != wanted:
            raise ArgumentError(f"num_workers={wanted} and max_workers={largest} disagree; give one of them")
        largest = wanted
    smallest = 1 if smallest is None else smallest
    if largest is not None and smallest > largest:
        raise ArgumentError(f"min_workers={smallest} is more than max_workers={largest}; it must not be")
    return largest, smallest


def merge_scope(value: Any) -> int | str:
    """1 for no merging, n for n gradients a collective, "all" for one."""
    if value == "all":
        return "all"
    if isinstance(value, str):
        raise ArgumentError(f"merge_scope={value!r} is not known; it must be a whole number from 1, or 'all'")
    return whole_number("merge_scope", value)


def preflight(value: Any) -> Mode:
    """How slots are looked at before they train."""
    for mode in MODES:
        if value == mode:
            return mode
    raise ArgumentError(f"preflight={value!r}: it must be one of {', '.join(map(repr, MODES))}")


def text(name: str, value: Any) -> str:
    """A str."""
    if not isinstance(value, str):
        raise ArgumentTypeError(f"{name}={value!r:.80} is a {type(value).__name__}; it must be text")
    return value


def model_name(name: str, value: Any) -> str | None:
    """A name in a model registry, or None; MLflow refuses some letters in URLs and queries."""
    if value is None:
        return None
    if not text(name, value).strip() or any(letter in value for letter in "/:'\"%"):
        raise ArgumentError(f"{name}={value!r}: a model's name must not be empty or hold any of / : ' \" %")
    return str(value)


def modules(name: str, value: Any) -> tuple[str, ...]:
    """Names of modules; a single str would be taken for the list of its letters."""
    if isinstance(value, (list, tuple)) and all(isinstance(module, str) for module in value):
        return tuple(value)
    raise ArgumentTypeError(f"{name}={value!r:.80} must be a list of module names, for instance ['numpy']")


def environment(value: Mapping[str, str] | None, share: str | None) -> dict[str, str]:
    """The variables that a call gives to its workers; who may read its run is one of them."""
    checked = variables("environment", value or {})
    if share is None:
        return checked
    privacy.mode_of(text("share", share))
    return {**checked, privacy.VARIABLE: share}


def variables(name: str, value: Any) -> dict[str, str]:
    """Environment variables as the operating system takes them."""
    if not isinstance(value, Mapping):
        raise ArgumentTypeError(f"{name}={value!r:.80} is a {type(value).__name__}; it must be a dict of variables")
    for variable, content in value.items():
        if not isinstance(variable, str) or not isinstance(content, str):
            raise ArgumentTypeError(f"{name}[{variable!r:.80}]={content!r:.80}: name and value must both be str")
        if not variable or "=" in variable or "\0" in variable + content:
            raise ArgumentError(
                f"{name}[{variable!r:.80}]: a variable's name must not be empty or hold '=', and neither may hold NUL"
            )
    return dict(value)


def check_evaluator(size: int) -> None:
    """The last of at least three workers becomes the evaluator."""
    if size < 3:
        raise ArgumentError(
            f"evaluator=True needs at least 3 workers, the last becomes the evaluator; there are {size}"
        )


def keyword_arguments(function: Callable[..., Any], args: Mapping[str, Any] | None, verb: str) -> dict[str, Any]:
    """``args`` as keyword arguments of the function; unknown and missing names are errors."""
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
        meant = suggestions.similar(str(strange[0]), signature.parameters) if strange else []
        raise ArgumentTypeError(
            f"{verb}(): {name}{signature} cannot be called with {given}: {error}"
            + (f"; did you mean {' or '.join(meant)}?" if meant else "")
        ) from error
    return dict(args)


_WITHOUT_EFFECT = {
    "versioned_resources": "nothing is copied: hopsml.tracking.data(path) in the function notes an input with its checksum",
    "cleanup_generations": "the folders of all generations stay",
}


def without_effect(given: Mapping[str, Any]) -> tuple[str, ...]:
    """One sentence for each of the predecessor's arguments that was given and changes nothing."""
    return tuple(
        f"{name}={given[name]!r:.80} has no effect: {reason}"
        for name, reason in _WITHOUT_EFFECT.items()
        if given.get(name)
    )
