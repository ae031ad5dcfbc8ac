"""What a user registered with Keras by ``register_keras_serializable`` is registered as such where it arrives, too.

The decorator ran in the driver; a class or function that is pickled by value comes without its call.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

LIBRARIES = ("keras", "tf_keras")


def registrations(obj: Any) -> Iterator[tuple[str, str]]:
    """Library and name (package>name) of what this process has registered; imports no library to find out."""
    for library in LIBRARIES:
        saving = getattr(sys.modules.get(library), "saving", None)
        name = obj.__name__ if saving is None else saving.get_registered_name(obj)
        if name != obj.__name__:
            yield library, name


def registering(set_state: Callable[[Any, Any], Any], library: str, name: str) -> Callable[[Any, Any], Any]:
    """The last step of unpickling, ``set_state(obj, state)``, with the registration behind it; it can be pickled."""
    return functools.partial(_set_and_register, set_state, library, name)


def _set_and_register(set_state: Callable[[Any, Any], Any], library: str, name: str, obj: Any, state: Any) -> None:
    set_state(obj, state)
    try:
        saving = importlib.import_module(library).saving
    except ImportError:
        return  # without Keras there is nothing that would look for it
    package, _, own = name.partition(">")
    saving.register_keras_serializable(package, own)(obj)
