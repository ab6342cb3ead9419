"""Measure how fast a model trains, reads and writes here, against what the machine could do at best.

The floor is the time of the matrix products alone: those of the same work, by the same library, on arrays that are
there already. For decoding it is the reading of every weight once a token. Work and floor are measured in turns, the
peak memory in a process of its own. On a GPU each call waits until it is done; its memory is what CuPy's pool holds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

from numpy_minimind.commands.common import add_device, device_of, require_one_thread, status
from numpy_minimind.commands.fields import field_and_value
from numpy_minimind.config import PRESETS, MiniMindConfig
from numpy_minimind.measuring.clocks import Task, interleaved, spread
from numpy_minimind.measuring.floors import DecodeFloor, Floor, prefill_floors, training_floors
from numpy_minimind.measuring.machine import (
    default_threads,
    device_name,
    limit_blas,
    machine,
    peak_bytes,
    peak_device_bytes,
)
from numpy_minimind.measuring.workloads import Decode, Prefill, TrainStep
from numpy_minimind.products import forward_products, training_products
from numpy_minimind.threads import available_threads
from numpy_minimind.training.distributed import launched
from numpy_minimind.training.parallel import worthwhile_threads

WORKS = {
    "train": "training steps",
    "prefill": "reading a prompt",
    "decode": "writing tokens after a prompt",
}
# Flags that hold a number of things, with the works that they belong to and their defaults.
COUNTS: dict[str, tuple[dict[str, int], str]] = {
    "batch_size": ({"train": 2, "prefill": 1, "decode": 1}, "rows"),
    "seq_len": ({"train": 512}, "tokens of a row"),
    "prompt": ({"decode": 64}, "tokens of the prompt"),
    "tokens": ({"prefill": 1024, "decode": 100}, "tokens to read, or to write"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `bench`."""
    works = parser.add_subparsers(dest="work", metavar="train|prefill|decode", required=True)
    for work, text in WORKS.items():
        example = f"example:\n  python -m numpy_minimind bench {work} --preset toy --repeat 9"
        sub = works.add_parser(
            work,
            help=text,
            description=f"Measure {text}.",
            epilog=example,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.add_argument(
            "--preset", default="minimind3", help=f"size of the model: {', '.join(PRESETS)} (default minimind3)"
        )
        sub.add_argument(
            "--set", action="append", default=[], metavar="FIELD=VALUE", help="override a field of the preset"
        )
        for name, (defaults, text) in COUNTS.items():
            if work in defaults:
                _add_count(sub, name, text, defaults[work])
        chosen = "as train would choose" if work == "train" else "the BLAS library's own choice"
        _add_count(sub, "threads", "threads to compute with", chosen)
        add_device(sub)
        _add_count(sub, "repeat", "times that count, after one that does not", 5)
        sub.add_argument("--json", action="store_true", help="print one JSON object")


def _add_count(parser: argparse.ArgumentParser, name: str, text: str, default: int | str) -> None:
    """Add a flag for a number; a default in words is worked out later."""
    flag, number = f"--{name.replace('_', '-')}", default if isinstance(default, int) else None
    parser.add_argument(flag, type=int, default=number, metavar="N", help=f"{text} (default {default})")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure."""
    counts = {name: getattr(args, name) for name in (*COUNTS, "threads", "repeat") if hasattr(args, name)}
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {count}")
    config = MiniMindConfig.preset(args.preset, **dict(field_and_value(text) for text in args.set))
    device = device_of(args)
    require_one_thread(device, counts["threads"] or 1)
    if launched()[1] > 1:
        raise ValueError("bench measures one process: start it without mpiexec")
    if args.work == "train" and (counts["threads"] or 1) > counts["batch_size"]:
        raise ValueError(f"--threads {counts['threads']} share {counts['batch_size']} rows: each needs one")
    counts["threads"] = counts["threads"] or threads_of(args.work, config, counts, device)
    check_length(config, counts)
    with limit_blas(counts["threads"]):
        measured = MEASURES[args.work](config, **counts, device=device)
    status("")
    about = {"device": device, "device_name": device_name(device), "machine": machine()}
    return {"work": args.work, "preset": args.preset, "set": args.set, **counts, **measured, **about}


def threads_of(work: str, config: MiniMindConfig, counts: dict[str, Any], device: str) -> int:
    """Return how many threads the work has by default: training what `train` would choose."""
    if device != "cpu":
        return 1
    if work == "train":
        return worthwhile_threads(config, counts["batch_size"], counts["seq_len"], available_threads())
    return default_threads()


def check_length(config: MiniMindConfig, counts: dict[str, Any]) -> None:
    """Refuse more tokens than the model has positions."""
    length = sum(counts.get(name, 0) for name in ("seq_len", "prompt", "tokens"))
    limit = config.max_position_embeddings
    if length + ("prompt" in counts) > limit:
        raise ValueError(f"{length} tokens a row are more than max_position_embeddings {limit} allows")


def measure_train(
    config: MiniMindConfig, batch_size: int, seq_len: int, threads: int, repeat: int, device: str = "cpu"
) -> dict[str, Any]:
    """Measure training steps and, on the CPU, where their time goes."""
    if config.dropout:
        raise ValueError(f"dropout {config.dropout} is not implemented in training: leave it at 0")
    peak = peak_of(device, train_step, config, batch_size, seq_len, threads)
    step = TrainStep(config, batch_size, seq_len, threads, device)
    floors = training_floors(config, batch_size, seq_len, threads, device)
    inside: dict[str, list[float]] = {"attention": [], "optimizer": []}

    def timed_step() -> float:
        seconds = step()
        inside["attention"].append(step.attention_seconds)
        inside["optimizer"].append(step.optimizer_seconds)
        return seconds

    result = against_floors(timed_step, floors, repeat, batch_size * seq_len)
    attention, optimizer = (spread(seconds[1:])["median"] for seconds in inside.values())
    products = result["floor_seconds"] - result.pop("attention_products_seconds")
    whole = result["seconds"]["median"]
    if device == "cpu":
        result["parts"] = {
            "products": products,
            "attention": attention,
            "optimizer": optimizer,
            "element_wise": whole - products - attention - optimizer,
        }
    flops = sum(p.flops for p in training_products(config, batch_size, seq_len))
    return {**result, "flops": flops, "flops_per_s": flops / whole, "peak_bytes": peak}


def measure_prefill(
    config: MiniMindConfig, batch_size: int, tokens: int, threads: int, repeat: int, device: str = "cpu"
) -> dict[str, Any]:
    """Measure the reading of a prompt."""
    peak = peak_of(device, prefill, config, batch_size, tokens, threads)
    floors = prefill_floors(config, batch_size, tokens, threads, device)
    result = against_floors(Prefill(config, batch_size, tokens, device), floors, repeat, batch_size * tokens)
    del result["attention_products_seconds"]
    flops = sum(p.flops for p in forward_products(config, batch_size, tokens, logits=1))
    return {**result, "flops": flops, "flops_per_s": flops / result["seconds"]["median"], "peak_bytes": peak}


def measure_decode(
    config: MiniMindConfig, batch_size: int, prompt: int, tokens: int, threads: int, repeat: int, device: str = "cpu"
) -> dict[str, Any]:
    """Measure the writing of tokens."""
    peak = peak_of(device, decode, config, batch_size, prompt, tokens, threads)
    floor = DecodeFloor(config, batch_size, prompt, tokens, device)
    work = Decode(config, batch_size, prompt, tokens, device)
    seconds = interleaved({"work": work, "floor": floor}, repeat, partial(show_turn, repeat))
    times, floor_times = spread(seconds["work"]), spread(seconds["floor"])
    return {
        "tokens_per_s": batch_size * tokens / times["median"],
        "seconds": times,
        "floor_seconds": floor_times["median"],
        "floor": floor_times,
        "share_of_floor": floor_times["median"] / times["median"],
        "bytes_per_step": floor.bytes_per_step,
        "bytes_per_s": floor.bytes_per_step * tokens / times["median"],
        "peak_bytes": peak,
    }


MEASURES: dict[str, Callable[..., dict[str, Any]]] = {
    "train": measure_train,
    "prefill": measure_prefill,
    "decode": measure_decode,
}


def against_floors(work: Task, floors: dict[str, Floor], repeat: int, tokens: int) -> dict[str, Any]:
    """Measure work and floors in turns; the floor is the better cut."""
    seconds = interleaved({"work": work, **floors}, repeat, partial(show_turn, repeat))
    cuts = {name: spread(seconds[name]) for name in floors}
    best = min(cuts, key=lambda name: cuts[name]["median"])
    times = spread(seconds["work"])
    return {
        "tokens_per_s": tokens / times["median"],
        "seconds": times,
        "floor_seconds": cuts[best]["median"],
        "floor_cut": best,
        "floors": cuts,
        "share_of_floor": cuts[best]["median"] / times["median"],
        "attention_products_seconds": floors[best].by_part["attention"],
    }


def peak_of(device: str, make_work: Callable[..., Task], *arguments: Any) -> int:
    """Measure memory: in a process of its own or, on a GPU, in the pool that the arrays come from."""
    status("the work alone, for its memory ...")
    return (peak_bytes if device == "cpu" else peak_device_bytes)(make_work, *arguments, device)


def show_turn(repeat: int, turn: int) -> None:
    """Say which turn has come; one that does not count comes first."""
    status(f"work and floor in turns: {f'turn {turn} of {repeat}' if turn else 'warming up'} ...")


# What measures memory calls, in another process: the work alone, without floors.


def train_step(config: MiniMindConfig, batch_size: int, seq_len: int, threads: int, device: str) -> Task:
    """Return a training step with its threads."""
    return limited(TrainStep(config, batch_size, seq_len, threads, device), threads)


def prefill(config: MiniMindConfig, batch_size: int, tokens: int, threads: int, device: str) -> Task:
    """Return the reading of a prompt with its threads."""
    return limited(Prefill(config, batch_size, tokens, device), threads)


def decode(config: MiniMindConfig, batch_size: int, prompt: int, tokens: int, threads: int, device: str) -> Task:
    """Return the writing of tokens with its threads."""
    return limited(Decode(config, batch_size, prompt, tokens, device), threads)


def limited(work: Task, threads: int) -> Task:
    """Return the work as it runs with so many BLAS threads."""

    def with_threads() -> float:
        with limit_blas(threads):
            return work()

    return with_threads


def render(result: dict[str, Any]) -> str:
    """Format the measurement."""
    seconds, about = result["seconds"], result["machine"]
    per = {"train": "step", "prefill": "prompt", "decode": "run"}[result["work"]]
    floor = "floor, reading alone" if result["work"] == "decode" else "floor, products alone"
    cut = {"whole": ", the whole batch at once", "shards": ", a share of the batch a thread"}
    how = cut.get(result.get("floor_cut", ""), "")
    sizes = ", ".join(f"{name.replace('_', ' ')} {result[name]}" for name in (*COUNTS, "threads") if name in result)
    lines = [
        f"bench {result['work']} {' '.join([result['preset'], *result['set']])}: {sizes}",
        f"{'tokens/s':<24}{result['tokens_per_s']:>12,.1f}",
        f"{'seconds a ' + per:<24}{seconds['median']:>12.4f}   ({seconds['min']:.4f} to {seconds['max']:.4f})",
        f"{floor:<24}{result['floor_seconds']:>12.4f}   {result['share_of_floor']:.0%} of the time{how}",
    ]
    for part, value in result.get("parts", {}).items():
        lines.append(f"  {part.replace('_', '-'):<22}{value:>12.4f}   {value / seconds['median']:.0%}")
    if "bytes_per_s" in result:
        lines.append(f"{'GB/s of weights, cache':<24}{result['bytes_per_s'] / 1e9:>12.1f}")
    if "flops_per_s" in result:
        lines.append(f"{'GFLOP/s':<24}{result['flops_per_s'] / 1e9:>12.1f}")
    lines.append(f"{'peak memory, MiB':<24}{result['peak_bytes'] / 2**20:>12,.0f}")
    gpu = f"GPU {result['device_name']}; " if result["device"] != "cpu" else ""
    lines.append(f"{gpu}{about['cpu']}, {about['cores']} cores; NumPy {about['numpy']}, {about['blas']}")
    return "\n".join(lines)
