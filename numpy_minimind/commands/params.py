"""Say what a model costs: parameters by module, operations, bytes for training and for inference."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from numpy_minimind import accounting
from numpy_minimind.checkpoint.pretrained import read_config
from numpy_minimind.config import PRESETS, MiniMindConfig

HELP = "parameters, FLOPs and bytes of a model"
EXAMPLE = "params minimind3 --batch 8 --tokens 512"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `params`."""
    parser.add_argument("model", metavar="PRESET|MODEL", help=f"{', '.join(PRESETS)}, or the folder of a model")
    parser.add_argument("--batch", type=int, default=1, metavar="B")
    parser.add_argument("--tokens", type=int, default=512, metavar="T")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Count."""
    if args.batch < 1 or args.tokens < 1:
        raise ValueError(f"--batch and --tokens must be at least 1, got {args.batch} and {args.tokens}")
    config = config_of(args.model)
    return {
        "model": args.model,
        **accounting.parameters(config),
        "batch": args.batch,
        "tokens": args.tokens,
        "flops": accounting.flops(config, args.batch, args.tokens),
        "bytes": accounting.memory(config, args.batch, args.tokens),
    }


def config_of(name: str) -> MiniMindConfig:
    """Return the config of a preset, or of a folder (a model's or a run's)."""
    if name in PRESETS:
        return MiniMindConfig.preset(name)
    for path in (Path(name).expanduser(), Path(name).expanduser() / "model"):
        if (path / "config.json").is_file():
            return read_config(path / "config.json")
    raise ValueError(f"{name!r} is neither a preset ({', '.join(PRESETS)}) nor a folder with a config.json")


def render(result: dict[str, Any]) -> str:
    """Format the counts as a table."""
    size, work, modules = result["bytes"], result["flops"], result["by_module"]
    lines = [f"{'parameters':<28}{result['total']:>16,}"]
    lines += [f"  {name:<26}{count:>16,}" for name, count in modules.items() if count]
    lines += [f"  {'active for one token':<26}{result['active']:>16,}"]
    lines += ["", f"{result['batch']} x {result['tokens']} tokens in float32"]
    lines += [f"  {'FLOPs forward':<26}{work['forward']:>16,}", f"  {'FLOPs backward':<26}{work['backward']:>16,}"]
    for name in ("weights", "gradients", "moments", "activations", "training", "kv_cache", "inference"):
        lines.append(f"  {'bytes ' + name.replace('_', ' '):<26}{size[name]:>16,}")
    return "\n".join(lines)
