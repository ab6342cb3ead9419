"""A package's names, imported when they are first asked for (PEP 562): nobody waits for what is not used."""

from __future__ import annotations

import pkgutil
import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def attributes(
    package: str, exported: Mapping[str, str], moved: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and the ``__dir__`` of a package. Each of its modules is an attribute, too.

    Parameters
    ----------
    package : str
        Its ``__name__``.
    exported : mapping from name to module
        In which module each name stands that it exports.
    moved : mapping from name to package, optional
        In which package each name lies by now that it once had: it goes on working, with a warning.
    """
    moved = moved or {}

    def __getattr__(name: str) -> Any:
        if name in moved:
            warnings.warn(f"{package}.{name} is {moved[name]}.{name} now", DeprecationWarning, stacklevel=2)
            return getattr(import_module(moved[name]), name)
        if name in exported:
            value = getattr(import_module(exported[name]), name)
        elif find_spec(f"{package}.{name}") is not None:
            value = import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)  # from now on it is an attribute like any other
        return value

    def __dir__() -> list[str]:
        module = sys.modules[package]
        modules = [found.name for found in pkgutil.iter_modules(module.__path__) if not found.name.startswith("_")]
        return sorted({*vars(module), *exported, *modules})

    return __getattr__, __dir__
