"""Say what a model costs: parameters by module, operations, bytes for training and for inference."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from numpy_minimind import accounting
from numpy_minimind.commands.fields import field_and_value
from numpy_minimind.config import PRESETS, MiniMindConfig
from numpy_minimind.messages import did_you_mean

LABELS = {"working": "working set", "training": "peak of a step", "kv_cache": "KV cache", "inference": "together"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `params`."""
    parser.add_argument("model", metavar="PRESET|MODEL", help=f"{', '.join(PRESETS)}, or a model: folder or .pth file")
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="override a field of the preset"
    )
    parser.add_argument("--batch", type=int, default=1, metavar="B", help="rows of a batch (default 1)")
    parser.add_argument("--tokens", type=int, default=512, metavar="T", help="tokens of a row (default 512)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="that share a batch (default 1)")
    parser.add_argument("--checkpoint-activations", action="store_true", help="as in `train`: blocks computed twice")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Count."""
    for name in ("batch", "tokens", "threads"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(args, name)}")
    if args.threads > args.batch:
        raise ValueError(f"--threads {args.threads} share {args.batch} rows: each needs one, so give --batch, too")
    config = config_of(args.model, dict(field_and_value(text) for text in args.set))
    return {
        "model": args.model,
        "set": args.set,
        **accounting.parameters(config),
        "batch": args.batch,
        "tokens": args.tokens,
        "flops": accounting.flops(config, args.batch, args.tokens),
        "threads": args.threads,
        "checkpoint_activations": args.checkpoint_activations,
        "bytes": accounting.memory(
            config,
            args.batch,
            args.tokens,
            threads=args.threads,
            checkpoint_activations=args.checkpoint_activations,
        ),
    }


def config_of(name: str, fields: dict[str, Any]) -> MiniMindConfig:
    """Return the config of a preset, of a folder (a model's or a run's), or that stands beside a file of weights."""
    if name in PRESETS:
        return MiniMindConfig.preset(name, **fields)
    if fields:
        raise ValueError(f"--set changes a preset ({', '.join(PRESETS)}); the config of {name} is what it is")
    return _config_beside(name)


def _config_beside(name: str) -> MiniMindConfig:
    from numpy_minimind.checkpoint.pretrained import CONFIG, missing, model_folder, read_config  # a preset needs none

    path = Path(name).expanduser()
    folder = path.parent if path.is_file() else model_folder(path, CONFIG)
    if (folder / CONFIG).is_file():
        return read_config(folder / CONFIG)
    if path.is_file():
        raise ValueError(f"there is no config.json beside {name}: put the model's there")
    if path.is_dir():
        raise missing(folder, CONFIG)
    near = did_you_mean(name, PRESETS)
    raise ValueError(f"{name!r} is neither a preset ({', '.join(PRESETS)}) nor a folder with a config.json{near}")


def render(result: dict[str, Any]) -> str:
    """Format the counts as a table."""
    size, work, modules = result["bytes"], result["flops"], result["by_module"]
    lines = [f"{'parameters':<28}{result['total']:>18,}"]
    lines += [f"  {name:<26}{count:>18,}" for name, count in modules.items() if count]
    lines += [f"  {'active for one token':<26}{result['active']:>18,}"]
    lines += ["", f"FLOPs of {result['batch']} x {result['tokens']} tokens"]
    lines += [f"  {way:<26}{work[way]:>18,}" for way in ("forward", "backward")]
    threads = "1 thread" if result["threads"] == 1 else f"{result['threads']} threads"
    again = ", blocks computed twice" if result["checkpoint_activations"] else ""
    lines += ["", f"{'memory in float32':<28}{'bytes':>18}{'MiB':>11}"]
    lines += [f"  training, {threads}{again}"]
    for name in ("weights", "gradients", "moments", "activations", "working", "training"):
        lines.append(_bytes(LABELS.get(name, name), size[name]))
    lines += ["  inference"]
    lines += [_bytes(LABELS.get(name, name), size[name]) for name in ("weights", "kv_cache", "inference")]
    return "\n".join(lines)


def _bytes(label: str, count: int) -> str:
    return f"    {label:<24}{count:>18,}{count / 2**20:>11,.1f}"
