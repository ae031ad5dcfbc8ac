"""Run a function right after a module has been imported for the first time; this module imports nothing itself."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

Action = Callable[[ModuleType], None]


class PostImportFinder(MetaPathFinder):
    """Meta path finder that finds nothing itself: it adds the waiting actions to what other finders found."""

    def __init__(self) -> None:
        self._actions: dict[str, list[Action]] = {}
        self._searching = threading.local()

    def add_action(self, name: str, action: Action) -> None:
        """Run ``action(module)`` after the import of ``name``, in the order of these calls."""
        self._actions.setdefault(name, []).append(action)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the specification of a module that actions wait for, None for any other, as importlib requires."""
        if fullname not in self._actions or getattr(self._searching, "name", None) == fullname:
            return None
        self._searching.name = fullname  # the search below calls this function again
        try:
            spec = find_spec(fullname)
        finally:
            self._searching.name = None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_then_act(module: ModuleType) -> None:
            execute(module)
            for action in self._actions.pop(fullname, []):
                action(module)

        # A loader belongs to one module: patching the instance preserves its class, and with it data files and
        # sources.
        spec.loader.exec_module = execute_then_act  # type: ignore[method-assign]
        return spec


_finder: PostImportFinder | None = None


def after_import(name: str, action: Action) -> None:
    """Run ``action(module)`` once: now if ``name`` is imported already, else right after its import."""
    global _finder
    module = sys.modules.get(name)
    if module is not None and not _is_initializing(module):
        action(module)
        return
    if _finder is None:
        _finder = PostImportFinder()
        sys.meta_path.insert(0, _finder)
    _finder.add_action(name, action)


def _is_initializing(module: ModuleType) -> bool:
    """Return True while a module is being imported."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
