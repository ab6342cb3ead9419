"""Prove the gradients: every layer and a few whole models against central differences, one row a tensor.

A line a layer sums up: its cases, tensors and elements, and the worst error relative to a tensor's largest number.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import traceback
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from numpy_minimind.checking.cases import Case
from numpy_minimind.checking.lab import kill_matrix as matrix
from numpy_minimind.checking.lab.error_curves import KINDS, error_table, step_size_curves
from numpy_minimind.checking.lab.mutation import BACKWARD, CONSISTENT
from numpy_minimind.checking.layers import MUTANTS, select
from numpy_minimind.checking.report import HEADER, SUMMARY_HEADER, GradReport, LayerSummary
from numpy_minimind.commands.common import status
from numpy_minimind.messages import attempt

MUTANTS_HEADER = f"{'layer':<22} {'mutants':>7} {'killed':>7} {'seconds':>8}"
PACKAGE = Path(__file__).parents[1]
NO_GRADIENT = ("kv_cache", "optimizer")  # have mutants, but no gradient to difference


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `gradcheck`."""
    parser.add_argument("--layer", metavar="NAME", help="check one layer only: linear, rmsnorm, attention, ..., model")
    parser.add_argument("--brief", action="store_true", help="print the summary alone, a line a layer")
    parser.add_argument("--full", action="store_true", help="check whole models in every configuration, not in six")
    parser.add_argument("--mutants", action="store_true", help="check the checks, too: print which of them kill what")
    parser.add_argument("--picture", metavar="FOLDER", help="write pictures of what was found into this folder")
    parser.add_argument("--seed", type=int, default=0, help="of the weights, inputs and directions")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Check; print each case, or with --brief each layer, as soon as it is done, unless JSON was asked for."""
    if args.seed < 0:
        raise ValueError(f"--seed must not be negative, got {args.seed}")
    began = time.perf_counter()
    if args.picture:
        Path(args.picture).mkdir(parents=True, exist_ok=True)  # says now, not after the checks, that it cannot be
    reports = [report for summary in _summaries(args) for report in summary.reports]
    rows = [row for report in reports for row in report.rows]
    worst = max((report.worst.relative_error for report in reports if report.worst), default=0.0)
    result: dict[str, Any] = {
        "checks": [report.to_dict() for report in reports],
        "worst": worst if math.isfinite(worst) else None,
        "cases": len(reports),
        "tensors": len(rows),
        "elements": sum(row.checked for row in rows),
        "failed": sum(not report.ok for report in reports),
    }
    mutants: list[matrix.Row] = []
    if args.mutants:
        mutants, wrongly = _kill_matrix(args)
        result["mutants"] = matrix.to_dict(mutants)
        result["survivors"] = matrix.survivors(mutants)
        result["wrongly_noticed"] = wrongly
    _progress(args, "")
    if args.picture:
        paths = result["pictures"] = []
        for why in attempt("pictures", lambda: draw(paths, Path(args.picture), reports, mutants, args.seed)):
            print(why, file=sys.stderr)
    return {**result, "seconds": round(time.perf_counter() - began, 3)}


def _summaries(args: argparse.Namespace) -> list[LayerSummary]:
    """Check layer by layer; print tables as cases are done and a summary last, with --brief that as it grows."""
    if args.layer in NO_GRADIENT:
        if args.mutants:
            return []
        raise ValueError(
            f"{args.layer} has no gradient to check: --mutants shows which of its other checks notice what"
        )
    cases_by_layer = groupby(select(args.layer, args.full), key=lambda case: case.layer)
    summaries = []
    if args.brief:
        _say(args, SUMMARY_HEADER)
    for layer, cases in cases_by_layer:
        began, reports = time.perf_counter(), []
        for case in cases:
            _progress(args, case.id)
            reports.append(checked(case, args.seed))
            if not args.brief:
                _say(args, *_table(reports[-1]))
        summaries.append(LayerSummary(layer, tuple(reports), time.perf_counter() - began))
        if args.brief:
            _say(args, summaries[-1], *summaries[-1].faults())
    if not args.brief:
        _say(args, "", SUMMARY_HEADER, *summaries)
    return summaries


def checked(case: Case, seed: int) -> GradReport:
    """Return what the check of a case found; a layer that raises an error has failed it."""
    try:
        return case.check(seed)
    except Exception as error:
        *_, at = (f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_relative_to(PACKAGE))
        fault = f"{type(error).__name__}: {error} ({Path(at.filename).name}, line {at.lineno})"
        return GradReport(case.id, "central differences", seed, (), (fault,))


def _kill_matrix(args: argparse.Namespace) -> tuple[list[matrix.Row], list[str]]:
    """Return the rows of all mutants, and "layer: column" of every check that fails on the code as it is."""
    chosen = [mutant for mutant in MUTANTS if args.layer in (None, mutant.layer)]
    _say(args, "", *([MUTANTS_HEADER] if args.brief else matrix.header()))
    wrongly = []
    for row in matrix.unmutated(dict.fromkeys(mutant.layer for mutant in chosen), args.seed):
        _progress(args, row.name)
        wrongly += [f"{row.layer}: {column}" for column in row.noticed]
    rows: list[matrix.Row] = []
    for layer, mutants in groupby(chosen, key=lambda mutant: mutant.layer):
        began, first = time.perf_counter(), len(rows)
        for row in matrix.kill_matrix(mutants, seed=args.seed):
            _progress(args, row.name)
            rows.append(row)
            if not args.brief:
                _say(args, row)
        if args.brief:
            _say(args, _mutants_line(layer, rows[first:], time.perf_counter() - began))
    if not args.brief:
        _say(args, "", matrix.LEGEND)
    return rows, wrongly


def _mutants_line(layer: str, rows: Sequence[matrix.Row], seconds: float) -> str:
    survivors = matrix.survivors(rows)
    verdict = f"SURVIVED: {', '.join(survivors)}" if survivors else "ok"
    return f"{layer:<22} {len(rows):>7} {len(rows) - len(survivors):>7} {seconds:>8.1f} {verdict}"


def _say(args: argparse.Namespace, *lines: object) -> None:
    """Print lines at once, unless JSON was asked for."""
    _progress(args, "")
    if not args.json:
        print(*lines, sep="\n", flush=True)


def _progress(args: argparse.Namespace, name: str) -> None:
    """Where little is printed, show what is being checked."""
    if args.brief or args.json:
        status(name)


def draw(
    paths: list[str], folder: Path, reports: Sequence[GradReport], mutants: Sequence[matrix.Row], seed: int
) -> None:
    """Write the pictures; put the path of each into `paths` when it is there."""
    from numpy_minimind import plotting

    paths.append(str(plotting.step_sizes(folder / "gradcheck-step-size.png", **step_size_curves(seed=seed))))
    if reports:
        path = folder / "gradcheck-errors.png"
        paths.append(str(plotting.error_heat_map(path, error_table(reports), list(KINDS))))
    if mutants:
        cells = {row.name: {column: o.killed for column, o in row.outcomes.items()} for row in mutants}
        groups = {row.name: row.layer for row in mutants}
        alike = [row.name for row in mutants if row.form == CONSISTENT]
        path = folder / "kill-matrix.png"
        paths.append(str(plotting.kill_matrix(path, cells, groups, alike, matrix.STRONG, matrix.WEAK)))


def _table(report: GradReport) -> list[str]:
    lines = str(report).split("\n")
    return [f"\n{lines[0]}", *lines[1:]] if not report.ok else ["", report.name, HEADER, *lines[2:]]


def render(result: dict[str, Any]) -> str:
    """Sum up; name the cases that failed and the mutants that survived."""
    lines = [""]
    if "mutants" in result:
        lines += [*_verdict_on_checks(result), ""]
    worst = math.inf if result["worst"] is None else result["worst"]
    lines.append(
        f"{result['cases']} cases, {result['tensors']} tensors, {result['elements']:,} elements compared one by one; "
        f"worst relative error {worst:.1e}; {result['seconds']:.0f} s"
        if result["cases"]
        else f"{result['seconds']:.0f} s"
    )
    lines += [f"wrote {path}" for path in result.get("pictures", [])]
    failed = [check["name"] for check in result["checks"] if not check["ok"]]
    if failed:
        lines.append(f"FAILED: {', '.join(failed)}")
    elif result["cases"]:
        lines.append("all gradients are right: every backward fits its forward")
    return "\n".join(lines)


def _verdict_on_checks(result: dict[str, Any]) -> list[str]:
    mutants, survivors, wrongly = result["mutants"], result["survivors"], result["wrongly_noticed"]
    lines = [f"{len(mutants) - len(survivors)} of {len(mutants)} mutants killed by the checks of their own layer"]
    for column in matrix.WEAK:
        if any(column in (*found["survived"], *found["weak_noticed"]) for found in mutants.values()):
            lines.append(f"  {column}: {_survive(mutants, column, BACKWARD)}; {_survive(mutants, column)}")
    if survivors:
        lines.append(f"SURVIVED, so a check is missing: {', '.join(survivors)}")
    if wrongly:
        lines.append(f"FAILED on the code as it is: {', '.join(wrongly)}")
    return lines


def _survive(mutants: dict[str, Any], column: str, form: str | None = None) -> str:
    of_form = [found for found in mutants.values() if form in (None, found["form"])]
    survived = sum(column in found["survived"] for found in of_form)
    tried = survived + sum(column in found["weak_noticed"] for found in of_form)
    kind = "all forms" if form is None else form
    return f"{survived} of {tried} survive, {kind}"


def exit_code(result: dict[str, Any]) -> int:
    """Return 1 if anything failed, or a mutant survived."""
    return 1 if result["failed"] or result.get("survivors") or result.get("wrongly_noticed") else 0
