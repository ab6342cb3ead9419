"""What a check found, as data: a `TensorRow` a tensor, a `GradReport` a case, printed as a table, a line a layer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

OK = "ok"
EXPECTED_ZERO = "zero, expected"
WRONG = "WRONG"
ZERO = "ZERO"
UNRESOLVABLE = "UNRESOLVABLE"
CHOICES_MOVED = "CHOICES MOVED"
MISSING = "MISSING"

HEADER = f"{'tensor':<34} {'shape':<14} {'checked':>9} {'|analytic|':>10} {'|numeric|':>10} {'error':>8} relative"
SUMMARY_HEADER = f"{'layer':<22} {'cases':>5} {'tensors':>8} {'elements':>9} {'worst':>8} {'seconds':>8}"


@dataclass(frozen=True)
class TensorRow:
    """The verdict on the gradient of one input or parameter.

    Attributes
    ----------
    name : str
        An argument of forward, or a parameter.
    shape : tuple of int
    verdict : str
        "ok" or "zero, expected" when it passed; WRONG, ZERO, UNRESOLVABLE, CHOICES MOVED or MISSING when not.
    checked : int
        Elements compared one by one.
    directions : int
        Random directions compared besides.
    max_analytic : float
        Largest magnitude in the whole gradient that backward gave.
    max_numeric, max_error : float
        Largest magnitude, and largest difference, among the compared elements.
    relative_error : float
        max_error / max_numeric, or a direction's error / the gradient's norm when that is larger.
    worst_index : tuple of int or None
        Where error / tolerance is largest; `analytic`, `numeric` and `h` (the step) belong to it.
    fault : str
        A sentence that is enough to reproduce the one number by hand; empty when the row passed.
    """

    name: str
    shape: tuple[int, ...]
    verdict: str
    checked: int = 0
    directions: int = 0
    max_analytic: float = 0.0
    max_numeric: float = 0.0
    max_error: float = 0.0
    relative_error: float = 0.0
    worst_index: tuple[int, ...] | None = None
    analytic: float = 0.0
    numeric: float = 0.0
    h: float = 0.0
    fault: str = ""

    @property
    def ok(self) -> bool:
        return self.verdict in (OK, EXPECTED_ZERO)

    def __str__(self) -> str:
        checked = f"{self.checked}+{self.directions}d" if self.directions else str(self.checked)
        shape = "(" + ", ".join(map(str, self.shape)) + ")"
        return (
            f"{shorten(self.name, 34):<34} {shape:<14} {checked:>9} {self.max_analytic:>10.2e} "
            f"{self.max_numeric:>10.2e} {self.max_error:>8.1e} {self.relative_error:>8.1e} {self.verdict}"
        )


@dataclass(frozen=True)
class GradReport:
    """Everything that one check found, of a layer at one point.

    Attributes
    ----------
    name : str
        Of the layer or the case.
    method : str
        "central differences", "complex step" or "float32 against float64".
    seed : object
        What `numpy.random.default_rng` was given.
    rows : tuple of TensorRow
    faults : tuple of str
        Of the layer as a whole: an argument changed, a gradient that overwrites instead of adding, ...
    expected_zero : mapping from tensor name to reason
        Gradients that must vanish in this case. Every report prints them: nothing is waved through in silence.
    """

    name: str
    method: str
    seed: Any
    rows: tuple[TensorRow, ...]
    faults: tuple[str, ...] = ()
    expected_zero: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.faults and all(row.ok for row in self.rows)

    @property
    def failed(self) -> tuple[TensorRow, ...]:
        return tuple(row for row in self.rows if not row.ok)

    @property
    def worst(self) -> TensorRow | None:
        """The row with the largest relative error, a NaN counting as the largest; None without rows."""
        compared = [row for row in self.rows if row.verdict != EXPECTED_ZERO]
        return max(compared, key=lambda row: _nan_last(row.relative_error), default=None)

    @property
    def complaints(self) -> list[str]:
        """A sentence for each tensor that failed and for each fault of the layer as a whole."""
        return [f"{row.verdict}: {row.fault}" for row in self.failed] + [f"FAULT: {fault}" for fault in self.faults]

    @property
    def elements(self) -> int:
        """Number of elements compared one by one."""
        return sum(row.checked for row in self.rows)

    def row(self, name: str) -> TensorRow:
        """Return the row of one tensor."""
        return next(row for row in self.rows if row.name == name)

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, numbers and strings, as ``json.dumps`` takes them; a NaN or infinity becomes None."""
        plain = asdict(self)
        plain["rows"] = [_finite({**asdict(row), "ok": row.ok}) for row in self.rows]
        plain["expected_zero"] = dict(self.expected_zero)
        plain["seed"] = str(self.seed)
        return {**plain, "ok": self.ok, "elements": self.elements}

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.name}: {self.method}, seed {self.seed}: {'ok' if self.ok else 'FAILED'}"
        yield HEADER
        yield from (str(row) for row in self.rows)
        yield from (f"  {name} must be zero: {reason}" for name, reason in self.expected_zero.items())
        yield from (f"  {complaint}" for complaint in self.complaints)


@dataclass(frozen=True)
class LayerSummary:
    """What the checks of one layer found together; `str` of it is a line under `SUMMARY_HEADER`."""

    layer: str
    reports: tuple[GradReport, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        return all(report.ok for report in self.reports)

    @property
    def worst(self) -> float:
        """The largest relative error; a NaN counts as the largest."""
        rows = [report.worst for report in self.reports if report.worst]
        return max((row.relative_error for row in rows), key=_nan_last, default=0.0)

    def faults(self, most: int = 3) -> list[str]:
        """Say which tensors failed and why; of what is beyond `most`, how to see it."""
        found = [f"  {report.name}: {complaint}" for report in self.reports for complaint in report.complaints]
        more = f"  and {len(found) - most} more: gradcheck --layer {self.layer} shows them"
        return found if len(found) <= most else [*found[:most], more]

    def __str__(self) -> str:
        tensors = sum(len(report.rows) for report in self.reports)
        elements = sum(report.elements for report in self.reports)
        return (
            f"{self.layer:<22} {len(self.reports):>5} {tensors:>8,} {elements:>9,} {self.worst:>8.1e} "
            f"{self.seconds:>8.1f} {'ok' if self.ok else 'FAILED'}"
        )


def shorten(name: str, width: int) -> str:
    """Keep the end of a long name: that is where parameters differ."""
    return name if len(name) <= width else "…" + name[1 - width :]


def _nan_last(x: float) -> float:
    return math.inf if math.isnan(x) else x


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
