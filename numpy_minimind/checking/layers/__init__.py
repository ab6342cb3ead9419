"""What is known of each layer, a file a layer under the name of its own file; they are found by looking.

A file may hold

* ``CASES``: {name: function that draws a `Point`}, at which the layer is differenced;
* ``KNOWN``: a list of `ReferenceValue`, which come from elsewhere;
* ``MUTANTS``: bugs that these checks must notice, tried at the cases ``MUTANTS_AT``.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

from numpy_minimind import layers
from numpy_minimind.checking.cases import Case
from numpy_minimind.checking.lab.mutation import Mutant
from numpy_minimind.checking.reference import ReferenceValue
from numpy_minimind.messages import did_you_mean

# layers/__init__ imports in this order.
READING_ORDER = [value.__module__.rpartition(".")[2] for value in vars(layers).values() if isinstance(value, type)]


def _modules() -> dict[str, ModuleType]:
    """Import every file here: those of the layers in reading order, then the others."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    ordered = [name for name in dict.fromkeys(READING_ORDER) if name in names]
    return {name: importlib.import_module(f"{__name__}.{name}") for name in dict.fromkeys([*ordered, *names])}


def _cases(name: str, module: ModuleType, attribute: str = "CASES") -> tuple[Case, ...]:
    effort = getattr(module, "EFFORT", None)
    return tuple(Case(f"{name}/{case}", build, effort) for case, build in getattr(module, attribute, {}).items())


MODULES = _modules()
CASES: dict[str, tuple[Case, ...]] = {name: _cases(name, m) for name, m in MODULES.items() if hasattr(m, "CASES")}
KNOWN: dict[str, list[ReferenceValue]] = {name: m.KNOWN for name, m in MODULES.items() if hasattr(m, "KNOWN")}
MUTANTS: tuple[Mutant, ...] = tuple(mutant for m in MODULES.values() for mutant in m.MUTANTS)


def select(layer: str | None = None, full: bool = False) -> list[Case]:
    """Return the cases of one layer ("attention", ..., "model"), or all; `full`: the product of all models.

    Raises
    ------
    ValueError
        For an unknown layer; the message lists the known ones.
    """
    if layer is not None and layer not in CASES:
        raise ValueError(f"unknown layer {layer!r}: choose one of {', '.join(CASES)}{did_you_mean(layer, CASES)}")
    found = {**CASES, "model": _cases("model", MODULES["model"], "ALL_CASES")} if full else CASES
    return [case for name, cases in found.items() if layer in (None, name) for case in cases]


def reference_faults(layer: str) -> tuple[str, ...]:
    """Name every known value of a layer that it does not compute; an empty tuple when it computes all.

    A difference check compares backward with forward. A formula that is wrong in both, no 1/sqrt(H) say, is a different
    function with a right gradient. Only a number that comes from somewhere else shows it.

    Examples
    --------
    >>> reference_faults("rmsnorm")
    ()
    """
    return tuple(fault for value in KNOWN[layer] if (fault := value.fault()) is not None)
