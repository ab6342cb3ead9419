"""NumPy against PyTorch on this machine: training, reading, writing, attention, experts; medians of runs in turns.

    python demos/measuring/benchmark.py --against torch,torch-compile,transformers      everything; about half an hour
    python demos/measuring/benchmark.py --sizes 64x2 --work train --against torch       one line of it, in half a minute

Each program runs in a process of its own, with the same number of threads, one at a time, A B A B. Where our training
takes fewer by itself, because the model is small, the peers run with as few, too. Before that, they are compared:
the same weights must give the same losses and the same logits. `peak` is the memory that the work adds to its process.
"""

import argparse
import importlib.util
import json
import sys
from importlib.metadata import version
from pathlib import Path

from peers.lines import PEERS, SIZES, WORKS, lines
from peers.turns import apart, in_turns

from numpy_minimind import MiniMindConfig, plotting
from numpy_minimind.measuring.clocks import spread
from numpy_minimind.measuring.machine import cores, machine
from numpy_minimind.messages import install_command


def main(argv=None):
    args = arguments(argv)
    about = machine() | {name: version(name) for name in ("torch", "transformers") if importlib.util.find_spec(name)}
    print(", ".join(f"{name} {value}" for name, value in about.items()), f"threads {args.threads}", sep=", ")
    results = [measure(line, args) for line in lines(args.work, args.sizes, args.threads)]
    if args.json:
        args.json.write_text(json.dumps({"machine": about, "lines": results}, indent=1) + "\n", encoding="utf-8")
    if args.picture:
        parts, steps = "peers.programs:parts_of_a_step", {}
        for size in args.sizes:
            fields, B, T, _ = SIZES[size]
            steps[size] = apart(parts, MiniMindConfig(**fields), B, T, args.threads, args.repeat)
        print(f"saved {plotting.step_parts(args.picture, steps)}")
    return 0 if any(line["programs"] for line in results) else 1


def measure(line, args):
    """Measure one line, and print it as soon as it is there."""
    print(f"\n{line.title}", flush=True)
    ours = next(iter(line.programs))
    absent = set(PEERS) - set(args.against)
    programs = {name: made for name, made in line.programs.items() if name.split(",")[0] not in absent}
    if line.check and args.against:
        difference = apart(*line.check)
        print(f"  same weights, same results: they differ by {difference:.1e}")
        if not difference < 1e-4:
            sys.exit("the programs do not compute the same thing: there is nothing to compare")
    measured, failed = in_turns(programs, args.repeat, args.threads)
    print(f"  {'':<28}{'ms':>9} {'min':>9} {'max':>9} {'tokens/s':>10} {'peak MiB':>9}   time of {ours} / its time")
    results = {}
    for name, (seconds, peak) in measured.items():
        s = spread(seconds)
        results[name] = {"seconds": s, "tokens_per_s": line.tokens / s["median"], "peak_bytes": peak}
        ms = " ".join(f"{1e3 * s[key]:>9,.1f}" for key in ("median", "min", "max"))
        ratio = results[ours]["seconds"]["median"] / s["median"]
        print(f"  {name:<28}{ms} {line.tokens / s['median']:>10,.1f} {peak / 2**20:>9,.0f} {ratio:>8.2f}")
    for name, why in failed.items():
        print(f"  {name:<28}did not run: {why}")
    targets = [found for target in line.targets if (found := judge(target, results))]
    for found in targets:
        print(f"  {found['text']}", flush=True)
    return {"title": line.title, "programs": results, "failed": failed, "targets": targets}


def judge(target, results):
    """Compare a program of ours with the best of the others that ran; None if none did."""
    others = [name for name in target.others if name in results]
    if not others or target.ours not in results:
        return None

    def value(name):
        r = results[name]
        return {"time": r["seconds"]["median"], "speed": r["tokens_per_s"], "memory": r["peak_bytes"]}[target.what]

    best = (max if target.what == "speed" else min)(others, key=value)
    ratio = value(target.ours) / value(best)
    reached = ratio >= target.limit if target.what == "speed" else ratio <= target.limit
    bound = "at least" if target.what == "speed" else "at most"
    text = f"{target.what} of {target.ours}: {ratio:.2f} of {best}; target {bound} {target.limit:g}: "
    return {**target._asdict(), "best": best, "ratio": ratio, "text": text + ("reached" if reached else "missed")}


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--against", type=some_of(PEERS), default=[], help=f"of {','.join(PEERS)} (default: only our own)")
    add("--sizes", type=some_of(SIZES), default=list(SIZES), help=f"of {','.join(SIZES)} (default: all)")
    add("--work", type=some_of(WORKS), default=list(WORKS), help=f"of {','.join(WORKS)} (default: all)")
    add("--repeat", type=int, default=9, help="turns that count (default 9)")
    add("--threads", type=int, default=cores(), help="of every program (default: the cores)")
    add("--json", type=Path, metavar="FILE", help="write every number")
    add("--picture", type=Path, metavar="FILE", help="draw what the time of a training step goes into")
    args = parser.parse_args(argv)
    if args.repeat < 1 or args.threads < 1:
        parser.error("--repeat and --threads must be at least 1")
    needed = {"threadpoolctl": "train", **{name.removesuffix("-compile"): "parity" for name in args.against}}
    for name, extra in needed.items():
        if not importlib.util.find_spec(name):
            parser.error(f"{name} is not installed: {install_command(extra)}")
    return args


def some_of(names):
    def words(text):
        chosen = text.split(",")
        if unknown := [word for word in chosen if word not in names]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is not one of {', '.join(names)}")
        return chosen

    return words


if __name__ == "__main__":
    sys.exit(main())
