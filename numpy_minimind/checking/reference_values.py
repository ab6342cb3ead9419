"""Values known from elsewhere: what a difference check cannot see, these see.

A difference check compares backward with forward. A formula that is wrong in both, no 1/sqrt(H) say, is a different
function with a right gradient. Only a number that comes from somewhere else shows it.
"""

from __future__ import annotations

from numpy_minimind.checking.reference import ReferenceValue
from numpy_minimind.checking.reference_layers import LAYER_REFERENCES
from numpy_minimind.checking.reference_models import MODEL_REFERENCES

REFERENCE_VALUES: dict[str, list[ReferenceValue]] = {
    layer: [*LAYER_REFERENCES.get(layer, []), *MODEL_REFERENCES.get(layer, [])]
    for layer in dict.fromkeys([*LAYER_REFERENCES, *MODEL_REFERENCES])
}


def reference_faults(layer: str) -> tuple[str, ...]:
    """Name every known value of a layer that it does not compute; an empty tuple when it computes all.

    Examples
    --------
    >>> reference_faults("rmsnorm")
    ()
    """
    return tuple(fault for value in REFERENCE_VALUES[layer] if (fault := value.fault()) is not None)
