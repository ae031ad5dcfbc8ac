"""An extension of griffe: what our docstrings and signatures mean, for the site's reference.

Verbs get their signature and the list of their arguments when they are imported, out of the classes of their options, so
they are looked at as Python sees them. ``first, second: text`` in a list of arguments stands for two of them.
"""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import griffe

_SEVERAL = re.compile(r"^( {4})(\*{0,2}\w+(?:, \*{0,2}\w+)+): (.*(?:\n {8}.*)*)", re.M)


class RealSignatures(griffe.Extension):
    """Looks at each function after it was read."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Take its real signature and documentation; let each argument have a line."""
        if func.decorators:
            _as_python_sees_it(func)
        if func.docstring is not None:
            func.docstring.value = one_by_one(func.docstring.value)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """The same for the arguments that a class's own documentation lists."""
        if cls.docstring is not None:
            cls.docstring.value = one_by_one(cls.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """A name that a package exports is the function, not the module of the same name that it comes from."""
        for module in (pkg, *(one for one in pkg.modules.values() if not one.is_alias)):
            for name in module.exports or ():
                behind = module.members.get(str(name))
                if isinstance(behind, griffe.Module) and str(name) in behind.functions:
                    module.members[str(name)] = behind.members[str(name)]
                    module.members[str(name)].parent = module


def one_by_one(docstring: str) -> str:
    """``name, description: text`` as two arguments, the second of which points to the first."""
    head, mark, rest = docstring.partition("Args:\n")
    listed, end, behind = rest.partition("\n\n")

    def apart(found: re.Match[str]) -> str:
        margin, names, text = found.groups()
        first, *others = names.split(", ")
        return "\n".join([f"{margin}{first}: {text}", *(f"{margin}{name}: see ``{first}``." for name in others)])

    return head + mark + _SEVERAL.sub(apart, listed) + end + behind


def _as_python_sees_it(function: griffe.Function) -> None:
    """Where the module gives the function a signature of its own."""
    if function.parent is None or not function.parent.is_module:
        return
    found = getattr(importlib.import_module(function.parent.path), function.name, None)
    signature = vars(found).get("__signature__") if inspect.isfunction(found) else None
    if signature is None:
        return
    function.parameters = griffe.Parameters(*(_parameter(one) for one in signature.parameters.values()))
    function.returns = _text(signature.return_annotation)
    function.decorators = []
    if function.docstring is not None:
        function.docstring.value = inspect.getdoc(found) or ""


def _parameter(one: inspect.Parameter) -> griffe.Parameter:
    default = None if one.default is one.empty else repr(one.default)
    kind = griffe.ParameterKind(one.kind.description)
    return griffe.Parameter(one.name, annotation=_text(one.annotation), kind=kind, default=default)


def _text(annotation: Any) -> str | None:
    if annotation is inspect.Parameter.empty:
        return None
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
