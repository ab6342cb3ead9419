"""What `train` takes where no flag says otherwise."""

from __future__ import annotations

from typing import Any

from numpy_minimind.data.jsonl_corpus import KINDS

DEFAULTS: dict[str, Any] = {
    "corpus": "toy",
    "tokenizer": "char",
    "preset": "toy",
    "set": [],
    "init_from": None,
    "steps": 1500,
    "batch_size": 16,
    "seq_len": 128,
    "accumulate": 1,
    "lr": 2e-3,
    "warmup": 20,
    "weight_decay": 0.01,
    "clip": 1.0,
    "seed": 0,
    "threads": None,
    "device": None,
    "checkpoint_activations": False,
    "log_every": 10,
    "eval_every": 200,
    "save_every": 500,
}
# What a corpus changes. The toy language is learned sooner in many small steps.
CORPUS_DEFAULTS: dict[str, dict[str, Any]] = {
    "toy": {"steps": 1200, "batch_size": 8},
    **{name: {"seq_len": kind.seq_len} for name, kind in KINDS.items()},
}
INIT_FROM_DEFAULTS = {"lr": 1e-5, "preset": None, "tokenizer": None}  # of MODEL; and it is to change gently
