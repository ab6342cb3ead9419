"""What a mutant is: a named bug that can be put into the package and taken out again.

An `Edit` names a text of a function and what it becomes; the function is compiled anew from the changed text. When the
text is no longer there, because the layer was rewritten, the mutant says so instead of silently changing nothing. It
takes effect for the length of a ``with`` block, and no file is touched.
"""

from __future__ import annotations
import __future__

import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

BACKWARD = "backward only"  # forward is right: differences see it
CONSISTENT = "consistent"  # wrong in forward and backward alike: only values known from elsewhere show it
CONTRACT = "contract"  # right numbers from a layer that breaks its promises
TRAINING = "training"  # of the optimizer, the schedule or the loop
FORMS = (BACKWARD, CONSISTENT, CONTRACT, TRAINING)

PACKAGE = "numpy_minimind"


@dataclass(frozen=True)
class Edit:
    """Every occurrence of `old` in the source of `function` ("layers.rmsnorm:RMSNorm.backward") becomes `new`."""

    function: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """A realistic bug.

    Attributes
    ----------
    name : str
    layer : str
        The file stem of the layer whose checks must notice it; "model" or "optimizer" beside the layers.
    form : str
        One of `FORMS`.
    description : str
        What is wrong.
    why : str
        Why people make this mistake.
    seen : str
        Where: issues of other projects as owner/name#number, or "common".
    changes : tuple of Edit
    """

    name: str
    layer: str
    form: str
    description: str
    why: str
    seen: str
    changes: tuple[Edit, ...]

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Put the bug into the package for the length of the block.

        Examples
        --------
        >>> import numpy as np
        >>> from numpy_minimind.checking import MUTANTS, check_layer
        >>> from numpy_minimind.layers import Softmax
        >>> x = np.random.default_rng(0).normal(size=(3, 5))
        >>> with next(m for m in MUTANTS if m.name == "softmax-no-row-sum").apply():
        ...     check_layer(Softmax(), x).ok
        False
        >>> check_layer(Softmax(), x).ok
        True
        """
        with ExitStack() as stack:
            for name in dict.fromkeys(change.function for change in self.changes):
                stack.enter_context(_replaced(name, [c for c in self.changes if c.function == name]))
            yield


@contextmanager
def _replaced(name: str, edits: Sequence[Edit]) -> Iterator[None]:
    """Let every holder of the function hold the wrong one."""
    module_name, _, path = name.partition(":")
    *outer, attribute = path.split(".")
    owner: Any = importlib.import_module(f"{PACKAGE}.{module_name}")
    for part in outer:
        owner = getattr(owner, part)
    right = vars(owner)[attribute]
    wrong = edited(right, edits)
    holders = [(owner, attribute)] if outer else list(_importers(right))
    try:
        for holder, held_as in holders:
            setattr(holder, held_as, wrong)
        yield
    finally:
        for holder, held_as in holders:
            setattr(holder, held_as, right)


def _importers(function: FunctionType) -> Iterator[tuple[Any, str]]:
    """Find every module of the package that imported the function by name."""
    for module_name, module in list(sys.modules.items()):
        if module is not None and module_name.partition(".")[0] == PACKAGE:
            yield from ((module, name) for name, value in list(vars(module).items()) if value is function)


def edited(function: FunctionType, edits: Sequence[Edit]) -> Callable[..., Any]:
    """Compile the function again from its source with the edits made.

    Raises
    ------
    LookupError
        When a text to replace is not there.
    """
    source = textwrap.dedent(inspect.getsource(function))
    for edit in edits:
        if edit.old not in source:
            raise LookupError(f"{edit.function} no longer holds the text {edit.old!r}: bring the mutant up to date")
        source = source.replace(edit.old, edit.new)
    code = compile(source, f"<{edits[0].function}, mutated>", "exec", __future__.annotations.compiler_flag, True)
    namespace: dict[str, Any] = {}
    exec(code, inspect.unwrap(function).__globals__, namespace)
    return namespace[function.__name__]
