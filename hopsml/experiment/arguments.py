"""Checks of a verb's arguments before anything is started; the predecessor's ignored arguments are listed here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from hopsml.cluster.shared import checks
from hopsml.cluster.shared.spec import Roles
from hopsml.core import suggestions
from hopsml.errors import ArgumentError, ArgumentTypeError, NotEnoughSlots
from hopsml.storage import privacy


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
            raise ArgumentError(f"num_workers={wanted} and max_workers={largest} disagree; give one of them")
        largest = wanted
    smallest = 1 if smallest is None else smallest
    if largest is not None and smallest > largest:
        raise ArgumentError(f"min_workers={smallest} is more than max_workers={largest}; it must not be")
    return largest, smallest


def environment(value: Mapping[str, str] | None, share: str | None) -> dict[str, str]:
    """Return the workers' environment variables; ``share`` (who may read the run's files) becomes one of them."""
    checked = checks.variables("environment", value or {})
    if share is None:
        return checked
    privacy.mode_of(checks.text("share", share))
    return {**checked, privacy.VARIABLE: share}


def check_evaluator(size: int) -> None:
    """Raise ArgumentError for fewer than three workers, of which the last one becomes the evaluator."""
    if size < 3:
        raise ArgumentError(
            f"evaluator=True needs at least 3 workers, the last becomes the evaluator; there are {size}"
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
    """Return a sentence for each of the predecessor's arguments that was given and is ignored."""
    return tuple(
        f"{name}={given[name]!r:.80} has no effect: {reason}"
        for name, reason in _WITHOUT_EFFECT.items()
        if given.get(name)
    )
