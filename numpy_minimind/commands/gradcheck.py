"""Prove the gradients: every layer and a few whole models against central differences, one row a tensor."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy_minimind.checking import kill_matrix as matrix
from numpy_minimind.checking.error_curves import KINDS, error_table, step_size_curves
from numpy_minimind.checking.model_cases import select
from numpy_minimind.checking.mutants import MUTANTS
from numpy_minimind.checking.mutation import BACKWARD, CONSISTENT
from numpy_minimind.checking.report import HEADER, GradReport
from numpy_minimind.commands.progress import attempt

HELP = "check every hand-derived gradient"
EXAMPLE = "gradcheck --layer attention"
NO_GRADIENT = ("kv_cache", "optimizer")  # have mutants, but no gradient to difference


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `gradcheck`."""
    parser.add_argument("--layer", metavar="NAME", help="check one layer only: linear, rmsnorm, attention, ..., model")
    parser.add_argument("--full", action="store_true", help="check whole models in every configuration, not in six")
    parser.add_argument("--mutants", action="store_true", help="check the checks, too: print which of them kill what")
    parser.add_argument("--picture", metavar="FOLDER", help="write pictures of what was found into this folder")
    parser.add_argument("--seed", type=int, default=0, help="of the weights, inputs and directions")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Check; print each case as soon as it is done, unless JSON was asked for."""
    if args.seed < 0:
        raise ValueError(f"--seed must not be negative, got {args.seed}")
    began = time.perf_counter()
    if args.picture:
        Path(args.picture).mkdir(parents=True, exist_ok=True)  # says now, not after the checks, that it cannot be
    reports = _reports(args)
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
    if args.picture:
        paths = result["pictures"] = []
        for why in attempt("pictures", lambda: draw(paths, Path(args.picture), reports, mutants, args.seed)):
            print(why, file=sys.stderr)
    return {**result, "seconds": round(time.perf_counter() - began, 3)}


def _reports(args: argparse.Namespace) -> list[GradReport]:
    if args.mutants and args.layer in NO_GRADIENT:
        return []
    reports = []
    for case in select(args.layer, args.full):
        report = case.check(args.seed)
        reports.append(report)
        _show(args, "\n".join(_table(report)), case.id)
    return reports


def _kill_matrix(args: argparse.Namespace) -> tuple[list[matrix.Row], list[str]]:
    """Return the rows of all mutants, and "layer: column" of every check that fails on the code as it is."""
    chosen = [mutant for mutant in MUTANTS if args.layer in (None, mutant.layer)]
    _show(args, "\n".join(["", *matrix.header()]), "")
    wrongly = []
    for row in matrix.unmutated(dict.fromkeys(mutant.layer for mutant in chosen), args.seed):
        wrongly += [f"{row.layer}: {column}" for column in row.noticed]
    rows = []
    for row in matrix.kill_matrix(chosen, seed=args.seed):
        rows.append(row)
        _show(args, str(row), row.name)
    return rows, wrongly


def _show(args: argparse.Namespace, text: str, name: str) -> None:
    """Print what was found; with --json, the name of the check on a terminal's standard error."""
    if not args.json:
        print(text, flush=True)
    elif sys.stderr.isatty():
        print(f"\r{name:<60}", end="", file=sys.stderr, flush=True)


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
        lines += [matrix.LEGEND, "", *_verdict_on_checks(result), ""]
    lines.append(
        f"{result['cases']} cases, {result['tensors']} tensors, {result['elements']:,} elements compared one by one; "
        f"worst relative error {result['worst'] or math.inf:.1e}; {result['seconds']:.0f} s"
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
