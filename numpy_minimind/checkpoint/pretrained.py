"""A model on disk: `from_pretrained` reads it, whoever wrote it; `save_pretrained` writes it, for transformers too.

A folder is as Hugging Face lays it out, config.json and model.safetensors: transformers loads it as Qwen3 or Qwen3-MoE,
whose arithmetic MiniMind's is. A .pth is MiniMind's own.
"""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any, cast

import numpy as np

from numpy_minimind.checkpoint.huggingface import GENERATION, huggingface_config, read_config
from numpy_minimind.checkpoint.tensors import stored_as, write_tensors
from numpy_minimind.checkpoint.weights import CONFIG, INDEX, SAFETENSORS, Tensors, fields_of, fit, open_weights
from numpy_minimind.config import MiniMindConfig
from numpy_minimind.files import (
    CheckpointError,
    PathLike,
    UnchangedFile,
    file_not_found,
    model_folder,
    read_json,
    replacing_folder,
    resolve,
)
from numpy_minimind.foreign import adapter_kind, missing
from numpy_minimind.model import MiniMindForCausalLM
from numpy_minimind.text.char import OLDER, TOKENIZER, token_count
from numpy_minimind.text.tokenizer import Tokenizer

STORAGE = ("float32", "float16", "bfloat16")
OUTVOTING = (
    GENERATION, "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin",
    "quantize_config.json", "quant_config.json", "hf_quant_config.json",
)  # fmt: skip


# -- loading -----------------------------------------------------------------------------------------------------


def from_pretrained(
    path: PathLike, config: MiniMindConfig | None = None, dtype: Any = np.float32
) -> MiniMindForCausalLM:
    """Load a model from a folder of Hugging Face's or MiniMind's, or from a .pth of MiniMind's. Nothing is executed.

    Parameters
    ----------
    path : path
        Of a folder with config.json and model.safetensors (or its shards, or pytorch_model.bin, or one .pth), of a
        training run, or of a .pth file. ``~`` is the home folder. Nothing is downloaded.
    config : MiniMindConfig, optional
        Used instead of config.json, which a .pth may have beside it.
    dtype : dtype
        Of weights and arithmetic, whatever the file's is (float32, float16, bfloat16, float64).

    Raises
    ------
    FileNotFoundError
        For a folder or file that is not there.
    CheckpointError
        For a file that is damaged or asks to execute something; for weights that do not fit the config, naming every
        one that is missing, not expected or of another shape. Nothing is half loaded.
    ValueError
        For a config that asks for arithmetic that is not implemented.

    Warns
    -----
    UserWarning
        When the config has a dropout: the model computes as it does when it is asked, but it cannot be trained so.
    """
    # Links are not followed: what stands beside a link is what belongs to it.
    place, dtype = model_folder(path, CONFIG), _compute_dtype(dtype)
    _check_place(place, path)
    if config is not None and not isinstance(config, MiniMindConfig):
        raise TypeError(f"config must be a MiniMindConfig, got {type(config).__name__}")
    beside = place / CONFIG if place.is_dir() else place.with_name(CONFIG)
    file = UnchangedFile(beside) if config is None and beside.exists() else None
    config = read_config(beside) if file else config
    weights = open_weights(place)
    if file:
        file.check()  # a save that came between the two files
    if config is None:
        raise _without_config(place, weights)
    try:
        weights = fit(weights, config)
    except ValueError as error:
        raise CheckpointError(f"{place}: {error}") from error
    if config.dropout:
        warnings.warn(f"{path}: dropout {config.dropout} is not implemented; training will ask for 0", stacklevel=2)
    # The stand-in gives zeros, so each number is written once more only: from the file, one tensor at a time.
    model = MiniMindForCausalLM(config, rng=cast(np.random.Generator, _Undrawn()), dtype=dtype)
    for name, parameter in model.named_parameters():
        parameter.data[...] = weights[name]
    return model


class _Undrawn:
    """Stands in for a Generator when weights are about to be loaded: zeros, in the memory of one number."""

    def normal(self, mean: float, std: float, shape: tuple[int, ...]) -> np.ndarray:
        return np.broadcast_to(np.float32(0), shape)


def _compute_dtype(dtype: Any) -> np.dtype:
    try:
        dtype = np.dtype(dtype)
    except TypeError:
        dtype = np.dtype(object)
    if dtype not in (np.float16, np.float32, np.float64):
        raise ValueError("dtype must be float32, float16 or float64: what NumPy computes in (bfloat16 it cannot)")
    return dtype


def _check_place(place: Path, given: PathLike) -> None:
    if not place.exists():
        raise file_not_found("there is no such model folder or file (nothing is downloaded)", given)
    if place.is_dir():
        return
    if place.name.startswith("adapter_") and adapter_kind(place.parent):
        raise missing(place.parent)
    if place.name == CONFIG or place.name.endswith(INDEX) or place.suffix == ".safetensors":
        raise CheckpointError(f"{given} is a file, expected the folder that holds it (or a .pth)")


def _without_config(place: Path, weights: Tensors) -> CheckpointError:
    """Return the error for weights without a config.json: what to write into one, as far as the tensors tell."""
    told = fields_of(weights)
    text = json.dumps({"model_type": "minimind", **told})
    here = "in it" if place.is_dir() else "beside it"
    return CheckpointError(
        f"{place} has no {CONFIG} {here}, and does not itself say how its numbers are used. Put one there "
        f"(what the tensors tell):\n  {text}\nor, in Python, give config=MiniMindConfig.from_dict(...) of the same. If "
        "its other settings are not MiniMind's, add rope_theta, rope_scaling, rms_norm_eps, num_experts_per_tok, "
        "norm_topk_prob and the ids of special tokens"
    )


# -- saving ------------------------------------------------------------------------------------------------------


def save_pretrained(
    model: MiniMindForCausalLM, path: PathLike, dtype: Any = np.float32, *, tokenizer: Tokenizer | None = None
) -> None:
    """Save a model as a folder that `from_pretrained` and transformers' AutoModelForCausalLM load.

    The folder appears, or takes the place of an older one, whole or not at all. What of an older folder would be loaded
    in place of the new files, or with them, is replaced: its weights in other files, an adapter,
    generation_config.json, and with `tokenizer` whatever belonged to the older tokenizer. Everything else is kept,
    without `tokenizer` the older tokenizer, too.

    Parameters
    ----------
    model : MiniMindForCausalLM
    path : path
        Of the folder; missing folders above it are made.
    dtype : "float32", "float16", "bfloat16" or NumPy dtype
        What the weights are rounded to (to nearest, even on ties). Float32 weights come back bit for bit.
    tokenizer : Tokenizer, optional
        Saved along, by its ``save(folder)``.

    Raises
    ------
    OSError
        Naming the folder, when it cannot be written.
    ValueError
        For another dtype, for a weight that is too large for it, for a scaling of rotary positions that
        transformers cannot express.

    Warns
    -----
    UserWarning
        When the older tokenizer, which is kept, has more tokens than the model knows.
    """
    name = _storage_dtype(dtype)
    config = huggingface_config(model.config, name)
    stored = {key: stored_as(key, array, name) for key, array in model.state_dict().items()}
    if tokenizer is None:
        _check_kept_tokenizer(resolve(path) / TOKENIZER, model.config.vocab_size)
    older = OLDER if tokenizer is not None else ()
    with replacing_folder(path, replaced=lambda name: _outvotes(name) or name in older) as folder:
        text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
        (folder / CONFIG).write_text(text, encoding="utf-8")
        write_tensors(folder / SAFETENSORS, stored, {"format": "pt"})  # transformers asks for the format
        if tokenizer is not None:
            tokenizer.save(folder)


def _storage_dtype(dtype: Any) -> str:
    try:
        name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    except TypeError:
        name = repr(dtype)
    if name not in STORAGE:
        raise ValueError(f"dtype must be one of {', '.join(STORAGE)}, got {name}")
    return name


def _check_kept_tokenizer(file: Path, vocab_size: int) -> None:
    try:
        tokens = token_count(read_json(file)) if file.exists() else 0
    except CheckpointError:  # not ours to judge
        return
    if tokens > vocab_size:
        warnings.warn(
            f"{file.parent} keeps a tokenizer of {tokens:,} tokens, and the model saved there knows only "
            f"{vocab_size:,}: save its own, tokenizer=..., or remove that one",
            stacklevel=3,
        )


def _outvotes(name: str) -> bool:
    """Say whether a file of an older folder would be loaded in place of the new ones, or with them, by some reader."""
    weights = re.fullmatch(r"(model|pytorch_model)(-\d+-of-\d+)?\.(safetensors|bin)(\.index\.json)?", name)
    return weights is not None or name in OUTVOTING
