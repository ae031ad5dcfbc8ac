"""griffe extension for the site's reference: real signatures, and one entry for each documented argument.

Verbs get their signature and the list of their arguments at import, from the classes of their options, so the extension
imports them. ``first, second: text`` in a list of arguments describes two of them.
"""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import griffe

_SEVERAL = re.compile(r"^( {4})(\*{0,2}\w+(?:, \*{0,2}\w+)+): (.*(?:\n {8}.*)*)", re.M)


class RealSignatures(griffe.Extension):
    """griffe extension that corrects functions, classes and packages after they were read."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Use the function's real signature and documentation; give each argument a line."""
        if func.decorators:
            _as_python_sees_it(func)
        if func.docstring is not None:
            func.docstring.value = one_by_one(func.docstring.value)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Give each argument in the documentation of a class a line."""
        if cls.docstring is not None:
            cls.docstring.value = one_by_one(cls.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Resolve an exported name to the function instead of its module of the same name."""
        for module in (pkg, *(one for one in pkg.modules.values() if not one.is_alias)):
            for name in module.exports or ():
                behind = module.members.get(str(name))
                if isinstance(behind, griffe.Module) and str(name) in behind.functions:
                    module.members[str(name)] = behind.members[str(name)]
                    module.members[str(name)].parent = module


def one_by_one(docstring: str) -> str:
    """Split ``name, description: text`` into two arguments, the second of which refers to the first."""
    head, mark, rest = docstring.partition("Args:\n")
    listed, end, behind = rest.partition("\n\n")

    def apart(found: re.Match[str]) -> str:
        margin, names, text = found.groups()
        first, *others = names.split(", ")
        return "\n".join([f"{margin}{first}: {text}", *(f"{margin}{name}: see ``{first}``." for name in others)])

    return head + mark + _SEVERAL.sub(apart, listed) + end + behind


def _as_python_sees_it(function: griffe.Function) -> None:
    """Replace the signature of a function whose module sets ``__signature__``."""
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
