"""Two programs, one model: their arrays compared by name, and the comparison as a table.

Which programs they are is no business of this file: it sees two dicts of NumPy arrays. The tests and
`demos/measuring/parity.py` fill one of them from PyTorch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from numpy_minimind.messages import misfits

# The columns of `by_layer`, in the order of the forward pass.
TENSORS = (
    "output",
    "weight",
    "input_layernorm",
    "q_proj",
    "k_proj",
    "v_proj",
    "q_norm",
    "k_norm",
    "o_proj",
    "post_attention_layernorm",
    "router",
    "gate_proj",
    "up_proj",
    "down_proj",
)


class ParityRow(NamedTuple):
    """How far one array of one program is from the array of that name of the other."""

    name: str
    kind: str  # "logits", "gradients", ...
    shape: tuple[int, ...]
    largest: float  # magnitude in the expected array
    difference: float  # the largest one
    error: float  # difference / largest; the difference itself where nothing but zeros is expected; inf for a NaN


def compare(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], kind: str, *, vanishing: Collection[str] = ()
) -> list[ParityRow]:
    """Compare two dicts of arrays name by name.

    Parameters
    ----------
    ours, theirs : mapping from name to array
        Of the same names and shapes. Errors are relative to the largest value of `theirs`.
    kind : str
        What the arrays are; written into each row.
    vanishing : collection of str
        Names of arrays that are zero in exact arithmetic and may hold rounding on either side: for these an error is
        relative to the largest value of *all* of `theirs`.

    Returns
    -------
    list of ParityRow
        In the order of `theirs`.

    Raises
    ------
    ValueError
        Listing every name that only one side has, and every array of another shape.
    """
    faults = misfits(ours, theirs, _other_shape)
    faults += [f"{name} is called vanishing, but there is none" for name in vanishing if name not in theirs]
    if faults:
        raise ValueError(f"the {kind} cannot be compared; ours, held against theirs:\n  " + "\n  ".join(faults))
    overall = max((_largest(array) for array in theirs.values()), default=0.0)
    return [
        _row(name, kind, np.asarray(ours[name]), np.asarray(array), overall if name in vanishing else None)
        for name, array in theirs.items()
    ]


def _other_shape(ours: Any, theirs: Any) -> tuple[str, Any, Any] | None:
    return None if np.shape(ours) == np.shape(theirs) else ("shape", np.shape(ours), np.shape(theirs))


def _row(name: str, kind: str, ours: np.ndarray, theirs: np.ndarray, scale: float | None) -> ParityRow:
    largest = _largest(theirs)
    difference = _largest(ours.astype(np.float64) - theirs.astype(np.float64))
    scale = largest if scale is None else scale
    error = difference / scale if scale else difference
    return ParityRow(name, kind, theirs.shape, largest, difference, error if math.isfinite(error) else math.inf)


def _largest(array: Any) -> float:
    return float(np.max(np.abs(array), initial=0.0))


def worst(rows: Iterable[ParityRow]) -> ParityRow:
    """Return the row of the largest error."""
    return max(rows, key=lambda row: row.error)


def by_kind(rows: Iterable[ParityRow]) -> dict[str, list[ParityRow]]:
    """Return {kind: rows}, in the order in which the kinds appear."""
    kinds: dict[str, list[ParityRow]] = {}
    for row in rows:
        kinds.setdefault(row.kind, []).append(row)
    return kinds


def by_layer(rows: Iterable[ParityRow]) -> dict[str, dict[str, float]]:
    """Return {layer: {tensor: worst error}}, embedding first, head last: what the heat map draws.

    Names are those of a state dict, ``model.layers.3.mlp.experts.1.up_proj.weight``; an ``.output`` in place of
    ``.weight`` is what the module hands on. The experts of a layer share a cell.
    """
    table: dict[str, dict[str, float]] = {}
    for row in rows:
        layer, tensor = _place(row.name)
        cells = table.setdefault(layer, {})
        cells[tensor] = max(row.error, cells.get(tensor, 0.0))
    return {layer: table[layer] for layer in sorted(table, key=_depth)}


def _place(name: str) -> tuple[str, str]:
    """Return (layer, tensor) of a name of the state dict."""
    module, _, leaf = name.rpartition(".")
    match = re.match(r"model\.layers\.(\d+)", module)
    if match is None:
        return {"embed_tokens": "embed", "norm": "norm", "lm_head": "head"}[module.rpartition(".")[2]], leaf
    if leaf == "output":
        return f"layer {match[1]}", leaf
    return f"layer {match[1]}", "router" if module.endswith("mlp.gate") else module.rpartition(".")[2]


def _depth(layer: str) -> tuple[int, int]:
    order = {"embed": 0, "norm": 2, "head": 3}
    return (order[layer], 0) if layer in order else (1, int(layer.split()[1]))


def format_table(header: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """Return lines of columns under a header: text to the left, numbers to the right, floats as 1.2e-07."""
    cells = [[_text(cell) for cell in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(header, *cells)]
    rule = "  ".join("-" * width for width in widths)
    return "\n".join([_line(header, widths), rule, *(_line(line, widths) for line in cells)])


def _text(cell: Any) -> str:
    if cell is None:
        return "-"
    return f"{cell:.1e}" if isinstance(cell, float) else f"{cell:,}" if isinstance(cell, int) else str(cell)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(cells, widths)))
    return "  ".join([first, *rest]).rstrip()
