"""Compare this package with PyTorch: a float64 oracle in plain autograd, and transformers' Qwen3 and Qwen3-MoE.

    python demos/measuring/parity.py                                    a minute or two: a table
    python demos/measuring/parity.py --configurations 200               the same over more models
    python demos/measuring/parity.py --heat-map parity.png [--moe]  and a picture, layer x tensor, of one model

Every number is the worst error of its kind, relative to the largest value of the tensor that it stands in. `pytest
tests/parity` holds the same models to fixed bounds.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from peers.parity_cases import CASES, Case, case_of, mask_of, weights
from peers.parity_rows import TENSORS, by_kind, by_layer, format_table, worst

from numpy_minimind import plotting
from numpy_minimind.messages import install_command

try:
    import torch
    from peers import bridge
except ModuleNotFoundError as error:
    if error.name not in ("torch", "transformers"):
        raise
    print(f"error: {error.name} is not installed: {install_command('parity')}", file=sys.stderr)
    sys.exit(2)


def decode(cases: list[Case], new: int = 40) -> dict[str, float | int]:
    """Write greedily with both programs, in float32 and with their caches, from a left-padded batch of prompts."""
    found: dict[str, float | int] = {"tokens": 0, "equal": 0, "logit_error": 0.0, "margin": 1.0}
    for case in cases:
        rng = np.random.default_rng(case.seed)
        state, prompt = weights(bridge.shapes_of(case), rng), rng.integers(0, case.fields["vocab_size"], (3, 6))
        mask = mask_of("left", 3, 6)
        ours = bridge.write_ours(bridge.our_model(case.fields, state, np.float32), prompt, mask, new, None)
        theirs = bridge.write_theirs(bridge.their_model(case.fields, state, torch.float32), prompt, mask, new, None)
        found["tokens"] += theirs.ids[:, 6:].size
        found["equal"] += int((ours.ids == theirs.ids)[:, 6:].sum())
        error = float(np.abs(ours.logits - theirs.logits).max() / np.abs(theirs.logits).max())
        found["logit_error"] = max(found["logit_error"], error)
        found["margin"] = min(found["margin"], bridge.top_two_margin(theirs.logits))
    return found


def heat_map(path: str, moe: bool) -> Path:
    """Draw where in a model of eight layers a float32 difference arises: outputs of layers, gradients of weights."""
    case = case_of(4, mlp="k=2 normalised" if moe else "dense")
    case = case._replace(fields={**case.fields, "num_hidden_layers": 8})
    rows = bridge.measure(case)[bridge.FLOAT32]
    table = by_layer(row for row in rows if row.kind != "loss")
    name = "Qwen3-MoE" if moe else "Qwen3"
    title = f"float32, here and in transformers' {name}: relative difference of outputs and gradients, log10"
    return plotting.error_heat_map(path, table, TENSORS, title=title, span=(-8, -5))


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--configurations", type=int, default=60, metavar="N", help="how many models (default 60)")
parser.add_argument("--moe", action="store_true", help="only models with experts")
parser.add_argument("--heat-map", metavar="FILE", help="write a PNG")
parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
args = parser.parse_args()
if args.configurations < 1:
    parser.error(f"--configurations must be at least 1, got {args.configurations}")

cases = [case for case in CASES if case.is_moe or not args.moe][: args.configurations]
measured = [bridge.measure(case) for case in cases]
# A router whose one weight is p / p has no gradient but rounding, which Adam would blow up: it is not trained here.
trained = [case for case in cases[:30] if case.chosen["mlp"] != "k=1 normalised"][:12]
measured += [bridge.measure_training(case) for case in trained]
# Adam divides a gradient by its own size, and rounding with it; with a larger eps only the gradients speak.
for case in trained:
    rows = bridge.measure_training(case, bridge.Settings(eps=1e-3))
    kinds = ("weights after 10 steps", "first moments", "second moments")
    measured.append({w: [r._replace(kind=f"{r.kind}, eps 0.001") for r in rows[w] if r.kind in kinds] for w in rows})

columns = (bridge.ORACLE, bridge.FLOAT64, bridge.FLOAT32, bridge.OUR_ROUNDING, bridge.THEIR_ROUNDING)
together = {which: by_kind(row for rows in measured for row in rows[which]) for which in columns}
kinds = list(together[bridge.FLOAT32])
table = {
    kind: {"tensors": len(together[bridge.FLOAT32][kind])}
    | {which: worst(together[which][kind]).error if kind in together[which] else None for which in columns}
    for kind in kinds
}
written = decode(trained)
picture = heat_map(args.heat_map, args.moe) if args.heat_map else None

if args.json:
    counts = {"configurations": len(cases), "trained": len(trained)}
    print(json.dumps({**counts, "errors": table, "greedy": written, "picture": picture and str(picture)}))
    sys.exit(0)
print(f"{len(cases)} configurations, {len(trained)} of them trained for ten steps; torch {torch.__version__}, ", end="")
print(f"transformers {bridge.transformers.__version__}. Worst error relative to the largest value of the tensor:\n")
header = ("", "tensors", "float64, oracle", "float64, transf.", "float32, transf.", "our rounding", "their rounding")
print(format_table(header, [(kind, *cells.values()) for kind, cells in table.items()]))
print(f"\ngreedy decoding with caches: {written['equal']} of {written['tokens']} tokens equal, ", end="")
print(f"logits within {written['logit_error']:.1e}, the two best never nearer than {written['margin']:.1e}")
if picture:
    print(f"saved {picture}")
