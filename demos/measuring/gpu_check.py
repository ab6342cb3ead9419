"""The GPU against NumPy: the same results? constant memory? and from which size on is it faster?

    python demos/measuring/gpu_check.py --picture crossover.png --json gpu.json    everything, in a few minutes
    python demos/measuring/gpu_check.py --presets tiny --widths 32,64              smaller

Exit code 0 when every result agrees, 1 when one does not, 2 when there is no GPU. Times are medians of `--repeat` runs.
If PyTorch finds the same GPU, minimind3 is trained (and, with transformers, decoded) by both, in float32.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from peers.gpu import against_pytorch, known_presets, possible_widths, presets, verdicts, widths

from numpy_minimind import MiniMindConfig, MiniMindForCausalLM
from numpy_minimind.backend import get_array_module, to_device
from numpy_minimind.checking.devices import CASES, TOLERANCES, compare_case
from numpy_minimind.measuring.machine import cores, cpu_name, device_name
from numpy_minimind.training import AdamW, clip_grad_norm

SMALL = MiniMindConfig.preset("tiny", vocab_size=97, use_moe=True, num_experts=4, num_experts_per_tok=2)


def main(argv=None):
    args = arguments(argv)
    try:
        pool = get_array_module(to_device(np.zeros(1), "cuda")).get_default_memory_pool()
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"device: {device_name('cuda')}; beside it {cpu_name()}, {cores()} cores", flush=True)
    checks = [*layers(), training(), generation(), memory(pool)]
    result = {"device": device_name("cuda"), "cpu": cpu_name(), "checks": dict(checks)}
    result |= {"presets": presets(args), "widths": widths(args)}
    if "minimind3" in args.presets:
        result["pytorch"] = against_pytorch(args.batch_size, args.seq_len, args.tokens, args.repeat)
        print("\n".join(verdicts(result["pytorch"])))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    failed = [name for name, good in checks if not good]
    print(f"FAILED: {', '.join(failed)}" if failed else f"all checks passed on {device_name('cuda')}")
    return 1 if failed else 0


def said(name, good, what):
    print(f"{'ok  ' if good else 'FAIL'} {name}: {what}", flush=True)
    return name, bool(good)


def layers():
    """Every layer, forward and backward, in both precisions."""
    for dtype, tolerance in TOLERANCES.items():
        errors = {f"{case.id} {name}": e for case in CASES for name, e in compare_case(case, dtype=dtype).items()}
        bad = [name for name, error in errors.items() if not error <= tolerance]
        worst = max(errors, key=errors.get)
        what = f"{len(errors)} tensors of {len(CASES)} cases, the worst ({worst}) differs by {errors[worst]:.1e}"
        yield said(f"layers in {dtype}", not bad, "; ".join([what, *bad[:5]]))


def model_on(device):
    return MiniMindForCausalLM(SMALL, rng=np.random.default_rng(0)).to(device)


def losses(model, steps):
    """The losses of so many steps on one batch, as train_toy.py takes them."""
    optimizer = AdamW(model.named_parameters(), lr=1e-3)
    ids = np.random.default_rng(1).integers(97, size=(4, 33))
    for _ in range(steps):
        model.zero_grad()
        yield model.loss_and_grad(ids, ids).loss
        clip_grad_norm(model.named_parameters(), 1.0)
        optimizer.step()


def training():
    pairs = list(zip(losses(model_on("cpu"), 10), losses(model_on("cuda"), 10)))
    worst = max(abs(a - b) / abs(a) for a, b in pairs)
    return said("ten training steps", worst < 1e-4, f"loss {pairs[0][0]:.3f} to {pairs[-1][0]:.3f}, within {worst:.1e}")


def generation():
    prompt = np.random.default_rng(2).integers(97, size=(2, 7))
    cpu, gpu = (model_on(d).generate(prompt, 40, temperature=0, eos_token_id=None) for d in ("cpu", "cuda"))
    return said("greedy generation", np.array_equal(cpu, gpu), f"{int((cpu == gpu).sum())} of {cpu.size} ids equal")


def memory(pool):
    """Bytes in use after each step and each generation: what one leaves behind would add up."""
    model, used = model_on("cuda"), []
    steps = losses(model, 10)
    for _ in range(9):
        next(steps)
        model.generate([[5, 6, 7]], 5, temperature=0, eos_token_id=None)
        used.append(pool.used_bytes())
    return said("constant memory", len(set(used[2:])) == 1, f"{used[2]:,} to {used[-1]:,} bytes in use")


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--presets", type=known_presets, default=["tiny", "toy", "minimind3"], help="default tiny,toy,minimind3")
    add("--widths", type=possible_widths, default=[32, 64, 128, 256, 512], help="default 32,64,128,256,512")
    add("--batch-size", type=int, default=4, help="rows of a training step (default 4)")
    add("--seq-len", type=int, default=256, help="tokens of a row (default 256)")
    add("--tokens", type=int, default=64, help="to be written (default 64)")
    add("--repeat", type=int, default=3, help="runs that count, after one that does not (default 3)")
    add("--picture", type=Path, metavar="PNG", help="draw speed against width")
    add("--json", type=Path, metavar="FILE", help="write every number")
    args = parser.parse_args(argv)
    if min(args.batch_size, args.seq_len, args.tokens, args.repeat) < 1:
        parser.error("--batch-size, --seq-len, --tokens and --repeat must be at least 1")
    return args


if __name__ == "__main__":
    sys.exit(main())
