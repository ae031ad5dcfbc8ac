"""Transfer of Keras registrations (``register_keras_serializable``) to the process in which an object is unpickled.

The decorator ran in the driver; a class or function that is pickled by value arrives without its effect.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

LIBRARIES = ("keras", "tf_keras")


def registrations(obj: Any) -> Iterator[tuple[str, str]]:
    """Yield the library and the registered name (package>name) of an object, without importing a library."""
    for library in LIBRARIES:
        saving = getattr(sys.modules.get(library), "saving", None)
        name = obj.__name__ if saving is None else saving.get_registered_name(obj)
        if name != obj.__name__:
            yield library, name


def registering(set_state: Callable[[Any, Any], Any], library: str, name: str) -> Callable[[Any, Any], Any]:
    """Return a callable for the last step of unpickling: ``set_state(obj, state)``, then the registration."""
    return functools.partial(_set_and_register, set_state, library, name)


def _set_and_register(set_state: Callable[[Any, Any], Any], library: str, name: str, obj: Any, state: Any) -> None:
    """Set the state of an unpickled object, and register it with Keras if that is installed."""
    set_state(obj, state)
    try:
        saving = importlib.import_module(library).saving
    except ImportError:
        return  # without Keras no code needs the registration
    package, _, own = name.partition(">")
    saving.register_keras_serializable(package, own)(obj)
