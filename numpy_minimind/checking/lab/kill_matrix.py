"""The kill matrix: every mutant against every check, the checks of this project and the weak ones.

A mutant counts as killed only by the checks of its own layer (a fault of training by the optimizer's). A mutant that
survives those is a missing check. What it survives among the weak checks is the lesson.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from numpy_minimind.checking.cases import Case
from numpy_minimind.checking.complex_step import complex_step_check
from numpy_minimind.checking.contract import contract_faults
from numpy_minimind.checking.differences import Effort
from numpy_minimind.checking.gradcheck import check_layer
from numpy_minimind.checking.lab import weak_checks
from numpy_minimind.checking.lab.mutation import Mutant
from numpy_minimind.checking.layers import CASES, KNOWN, MODULES, MUTANTS, reference_faults
from numpy_minimind.checking.layers.optimizer import optimizer_faults
from numpy_minimind.checking.points import Point
from numpy_minimind.checking.report import GradReport

DIFFERENCES, COMPLEX, REFERENCE, CONTRACT, OPTIMIZER = (
    "differences",
    "complex step",
    "reference values",
    "contract",
    "optimizer",
)
STRONG = (DIFFERENCES, COMPLEX, REFERENCE, CONTRACT, OPTIMIZER)
WEAK = ("ones cotangent", "small weights", "float32 differences", "one direction", "it trains")
COLUMNS = (*STRONG, *WEAK)


@dataclass(frozen=True)
class Outcome:
    """What one check said: the first fault, or none. `crashed`: it was an exception."""

    fault: str | None = None
    crashed: bool = False

    @property
    def killed(self) -> bool:
        return self.fault is not None


@dataclass(frozen=True)
class Row:
    """A mutant, or the code as it is, and what each column said of it; a column that does not apply is absent."""

    name: str
    layer: str
    form: str
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    @property
    def killed_by(self) -> list[str]:
        """Columns of the layer itself that notice."""
        return [c for c in STRONG if c in self.outcomes and self.outcomes[c].killed]

    @property
    def survived(self) -> list[str]:
        """Weak checks that do not."""
        return [c for c in WEAK if c in self.outcomes and not self.outcomes[c].killed]

    @property
    def noticed(self) -> list[str]:
        """All columns that notice."""
        return [c for c in COLUMNS if c in self.outcomes and self.outcomes[c].killed]

    def __str__(self) -> str:
        return f"{self.name:<44} {self.form:<13}" + "".join(f"{_mark(self.outcomes.get(c)):^5}" for c in COLUMNS)


def _mark(outcome: Outcome | None) -> str:
    if outcome is None:
        return ""
    return ("!" if outcome.crashed else "x") if outcome.killed else "."


def header() -> list[str]:
    """Return the two lines above the rows, and the rule below them."""
    over = f"{'':<58}{'checks of its own layer':^25}{'weak checks':^25}"
    shorts = ("diff", "cplx", "ref", "contr", "opt", "ones", "0.02", "f32", "dir", "train")
    return [over, f"{'mutant':<44} {'form':<13}" + "".join(f"{s:^5}" for s in shorts), "-" * 108]


LEGEND = (
    "x noticed   ! noticed by an exception   . not noticed   (blank: does not apply)\n"
    "diff central differences, cplx complex step, ref reference values, contr contract, opt optimizer reference;\n"
    "ones all-ones cotangent, 0.02 fresh weights and 1e-4, f32 float32 differences, dir whole model in one direction,\n"
    "train the loss goes down"
)


# -- running ---------------------------------------------------------------------------------------------------------


def kill_matrix(mutants: Iterable[Mutant] = MUTANTS, weak: bool = True, seed: int = 0) -> Iterator[Row]:
    """Yield the row of each mutant.

    Parameters
    ----------
    mutants : iterable of Mutant
    weak : bool
        Run the weak checks, too.
    seed : int
        Of weights, inputs and cotangents.

    Examples
    --------
    >>> [row] = kill_matrix([m for m in MUTANTS if m.name == "softmax-no-gradient"])
    >>> row.killed_by
    ['differences', 'complex step', 'reference values']
    >>> "ones cotangent" in row.survived
    True
    """
    for mutant in mutants:
        yield _row(mutant.name, mutant.layer, mutant.form, weak, seed, mutant)


def unmutated(layers: Iterable[str] = tuple(MODULES), seed: int = 0) -> Iterator[Row]:
    """Yield a row for each layer as it is: every column must pass."""
    for layer in layers:
        yield _row(layer, layer, "as it is", True, seed, None)


def _row(name: str, layer: str, form: str, weak: bool, seed: int, mutant: Mutant | None) -> Row:
    checks = columns(layer, weak, seed)  # draws the points, before the bug is there
    if mutant is None:
        return Row(name, layer, form, {column: outcome_of(check) for column, check in checks.items()})
    with mutant.apply():
        return Row(name, layer, form, {column: outcome_of(check) for column, check in checks.items()})


def outcome_of(check: Callable[[], str | None]) -> Outcome:
    """Run one check; an exception is a fault, too."""
    try:
        with np.errstate(all="ignore"):
            return Outcome(check())
    except Exception as error:
        return Outcome(f"{type(error).__name__}: {error}", crashed=True)


def columns(layer: str, weak: bool, seed: int) -> dict[str, Callable[[], str | None]]:
    """Return {column: function that returns a fault or None} for the columns that apply to a layer."""
    cases, effort = mutated_cases(layer), getattr(MODULES[layer], "MUTANTS_EFFORT", None)
    found: dict[str, Callable[[], str | None]] = {}
    if cases:
        found[DIFFERENCES] = _first_of([_differences(*case.draw(seed), effort) for case in cases])
        found[COMPLEX] = _first_of([_complex_step(*case.draw(seed), effort) for case in cases])
    if layer in KNOWN:
        found[REFERENCE] = lambda: _first(reference_faults(layer))
    if cases:
        found[CONTRACT] = _first_of([_contract(*case.draw(seed)) for case in cases])
    if layer == "optimizer":
        found[OPTIMIZER] = lambda: _first(optimizer_faults())
    if weak:
        found.update(_weak_columns(layer, cases, seed))
    return found


def mutated_cases(layer: str) -> list[Case]:
    """List the cases at which the mutants of a layer are tried, the first one also by the weak checks."""
    cases = {case.id: case for case in CASES.get(layer, ())}
    return [cases[f"{layer}/{name}"] for name in getattr(MODULES[layer], "MUTANTS_AT", ())]


def _weak_columns(layer: str, cases: Sequence[Case], seed: int) -> dict[str, Callable[[], str | None]]:
    """Only what runs the layer at all: no weak check here reads through a cache."""
    if layer == "optimizer":
        return {WEAK[4]: weak_checks.the_loop_trains}
    if not cases:
        return {}
    checks = (weak_checks.ones_cotangent, weak_checks.small_weights, weak_checks.float32_differences)
    effort = getattr(MODULES[layer], "MUTANTS_EFFORT", weak_checks.EFFORT)
    found = {column: _at_point(check, *cases[0].draw(seed), effort) for column, check in zip(WEAK, checks)}
    model = getattr(MODULES[layer], "TRAINED_AS", "dense")
    if model is not None:
        found[WEAK[3]] = lambda: weak_checks.one_direction(model == "experts")
        found[WEAK[4]] = lambda: weak_checks.it_trains(model == "experts")
    return found


def _differences(rng: np.random.Generator, point: Point, effort: Effort | None) -> Callable[[], str | None]:
    return lambda: _row_fault(check_layer(point.layer, *point.inputs, rng=rng, effort=effort, **point.options))


def _complex_step(rng: np.random.Generator, point: Point, effort: Effort | None) -> Callable[[], str | None]:
    options = {k: v for k, v in point.options.items() if k not in ("smallest_scale", "strided")}
    return lambda: _row_fault(complex_step_check(point.layer, *point.inputs, rng=rng, effort=effort, **options))


def _contract(rng: np.random.Generator, point: Point) -> Callable[[], str | None]:
    cotangents = point.options.get("cotangents")
    return lambda: _first(contract_faults(point.layer, *point.inputs, rng=rng, cotangents=cotangents))


def _at_point(
    check: Callable[..., str | None], rng: np.random.Generator, point: Point, effort: Effort
) -> Callable[[], str | None]:
    return lambda: check(point, rng, effort)


def _row_fault(found: GradReport) -> str | None:
    """Only the numbers: what `check_layer` says about the contract has a column of its own."""
    return found.failed[0].fault if found.failed else None


def _first(faults: Sequence[str]) -> str | None:
    return faults[0] if faults else None


def _first_of(checks: Sequence[Callable[[], str | None]]) -> Callable[[], str | None]:
    """Run checks until one sees a fault."""
    return lambda: next((fault for check in checks if (fault := check()) is not None), None)


# -- reporting -------------------------------------------------------------------------------------------------------


def to_dict(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Return {name: what is known of the mutant}, as JSON takes it; `survived` are weak checks."""
    return {
        row.name: {
            "killed_by": row.killed_by,
            "survived": row.survived,
            "weak_noticed": [column for column in row.noticed if column in WEAK],
            "layer": row.layer,
            "form": row.form,
        }
        for row in rows
    }


def survivors(rows: Sequence[Row]) -> list[str]:
    """Name the mutants that no check of their own layer notices."""
    return [row.name for row in rows if not row.killed_by]
