"""Prove the gradients: every layer and a few whole models against central differences, one row a tensor."""

from __future__ import annotations

import argparse
import math
import sys
import time
from typing import Any

from numpy_minimind.checking.model_cases import select
from numpy_minimind.checking.report import HEADER, GradReport

HELP = "check every hand-derived gradient"
EXAMPLE = "gradcheck --layer attention"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `gradcheck`."""
    parser.add_argument("--layer", metavar="NAME", help="check one layer only: linear, rmsnorm, attention, ..., model")
    parser.add_argument("--full", action="store_true", help="check whole models in every configuration, not in six")
    parser.add_argument("--seed", type=int, default=0, help="of the weights, inputs and directions")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Check; print each case as soon as it is done, unless JSON was asked for."""
    if args.seed < 0:
        raise ValueError(f"--seed must not be negative, got {args.seed}")
    began, reports = time.perf_counter(), []
    for case in select(args.layer, args.full):
        report = case.check(args.seed)
        reports.append(report)
        if not args.json:
            print("\n".join(_table(report)), flush=True)
        elif sys.stderr.isatty():
            print(f"\r{case.id:<60}", end="", file=sys.stderr, flush=True)
    rows = [row for report in reports for row in report.rows]
    worst = max((report.worst.relative_error for report in reports if report.worst), default=0.0)
    return {
        "checks": [report.to_dict() for report in reports],
        "worst": worst if math.isfinite(worst) else None,
        "cases": len(reports),
        "tensors": len(rows),
        "elements": sum(row.checked for row in rows),
        "failed": sum(not report.ok for report in reports),
        "seconds": round(time.perf_counter() - began, 3),
    }


def _table(report: GradReport) -> list[str]:
    lines = str(report).split("\n")
    return [f"\n{lines[0]}", *lines[1:]] if not report.ok else ["", report.name, HEADER, *lines[2:]]


def render(result: dict[str, Any]) -> str:
    """Sum up; name the cases that failed."""
    lines = [
        "",
        f"{result['cases']} cases, {result['tensors']} tensors, {result['elements']:,} elements compared one by one; "
        f"worst relative error {result['worst'] or math.inf:.1e}; {result['seconds']:.0f} s",
    ]
    failed = [check["name"] for check in result["checks"] if not check["ok"]]
    lines.append(f"FAILED: {', '.join(failed)}" if failed else "all gradients are right")
    return "\n".join(lines)


def exit_code(result: dict[str, Any]) -> int:
    """Return 1 if anything failed."""
    return 1 if result["failed"] else 0
