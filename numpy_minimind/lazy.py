"""Names of a package that have moved to another one: they go on working, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any


def attributes(package: str, moved: dict[str, str]) -> Callable[[str], Any]:
    """Return a package's ``__getattr__`` (PEP 562): `moved` says in which package each old name of it lies now."""

    def __getattr__(name: str) -> Any:
        if name not in moved:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        warnings.warn(f"{package}.{name} is {moved[name]}.{name} now", DeprecationWarning, stacklevel=2)
        return getattr(__import__(moved[name], fromlist=[name]), name)

    return __getattr__
