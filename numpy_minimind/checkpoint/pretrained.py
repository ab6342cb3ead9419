"""A model in a folder, as Hugging Face lays it out: config.json and model.safetensors.

What is saved here, transformers loads as Qwen3 or Qwen3-MoE, whose arithmetic MiniMind's is.
"""

from __future__ import annotations

import errno
import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from numpy_minimind.checkpoint.files import CheckpointError, PathLike, contents, read_json, replacing_folder, resolve
from numpy_minimind.checkpoint.tensors import StoredTensor, TensorFile, stored_as, write_tensors
from numpy_minimind.config import MiniMindConfig
from numpy_minimind.layers.rope import rope_frequencies
from numpy_minimind.model import MiniMindForCausalLM

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
OWN = "numpy_minimind"  # the field of config.json with what transformers' fields cannot say
STORAGE = ("float32", "float16", "bfloat16")


# -- loading -----------------------------------------------------------------------------------------------------


def from_pretrained(
    path: PathLike, config: MiniMindConfig | None = None, dtype: Any = np.float32
) -> MiniMindForCausalLM:
    """Load a model from a folder with config.json and model.safetensors (or its shards and their index).

    Parameters
    ----------
    path : path
        ``~`` is the home folder. Nothing is downloaded.
    config : MiniMindConfig, optional
        Used instead of config.json.
    dtype : dtype
        Of weights and arithmetic, whatever the file's is (float32, float16, bfloat16, float64).

    Raises
    ------
    FileNotFoundError
        For a folder or file that is not there.
    CheckpointError
        For a file that is damaged; for weights that do not fit the config, naming every one that is missing, not
        expected or of another shape. Nothing is half loaded.
    ValueError
        For a config that asks for arithmetic that is not implemented.
    """
    folder, dtype = resolve(path), _compute_dtype(dtype)
    _check_folder(folder, str(path))
    if config is None:
        config = read_config(folder / CONFIG)
    if not isinstance(config, MiniMindConfig):
        raise TypeError(f"config must be a MiniMindConfig, got {type(config).__name__}")
    weights = open_weights(folder)
    # The stand-in gives zeros, so each number is written once more only: from the file, one tensor at a time.
    model = MiniMindForCausalLM(config, rng=cast(np.random.Generator, _Undrawn()), dtype=dtype)
    try:
        model.load_state_dict(weights)
    except ValueError as error:
        raise CheckpointError(f"{folder}: {error}") from error
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


def _check_folder(folder: Path, given: str) -> None:
    if folder.is_file():
        raise CheckpointError(f"{given} is a file, expected a folder with {CONFIG} and {WEIGHTS}")
    if not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such model folder (nothing is downloaded)", given)


def open_weights(folder: Path) -> dict[str, StoredTensor]:
    """Return every tensor of a model folder by name, still in its file."""
    if (folder / WEIGHTS).exists():
        tensors = TensorFile(folder / WEIGHTS).tensors
    elif (folder / INDEX).exists():
        tensors = _open_shards(folder)
    else:
        raise _missing(folder, WEIGHTS)
    for name, tensor in tensors.items():
        if tensor.stored not in ("F32", "F16", "BF16", "F64"):
            raise CheckpointError(f"{tensor.file.path}: {name} is stored as {tensor.stored}, expected floats")
    return tensors


def _open_shards(folder: Path) -> dict[str, StoredTensor]:
    places = read_json(folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(shard, str) for shard in places.values()):
        raise CheckpointError(f"{folder / INDEX} has no weight_map from names to files")
    tensors: dict[str, StoredTensor] = {}
    for shard in sorted(set(places.values())):
        if Path(shard).name != shard:
            raise CheckpointError(f"{folder / INDEX} names {shard!r}, which is not a file of the same folder")
        tensors.update(TensorFile(folder / shard).tensors)
    absent = [f"{name} (in {shard})" for name, shard in places.items() if name not in tensors]
    if absent:
        raise CheckpointError(f"{folder / INDEX} names tensors that the files lack: {', '.join(absent)}")
    return tensors


def _missing(folder: Path, name: str) -> FileNotFoundError:
    hint = f"; did you mean {folder / 'model'}?" if (folder / "model" / CONFIG).exists() else ""
    return FileNotFoundError(
        errno.ENOENT, f"no {name} in this folder, which holds {contents(folder)}{hint}", str(folder)
    )


def read_config(path: Path) -> MiniMindConfig:
    """Read config.json, and what of it only this package understands."""
    if not path.exists():
        raise _missing(path.parent, path.name)
    d = read_json(path)
    try:
        config = MiniMindConfig.from_dict(d)
        own = d.get(OWN)
        if not isinstance(own, dict):
            return config
        # Whoever edits a field of the file means it: ours count only while they do not contradict the others.
        exact = replace(config, **{name: own[name] for name in config.to_dict() if name in own})
        return exact if MiniMindConfig.from_dict(_transformers_fields(exact)) == config else config
    except (AttributeError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from error


# -- saving ------------------------------------------------------------------------------------------------------


def save_pretrained(
    model: MiniMindForCausalLM, path: PathLike, dtype: Any = np.float32, *, tokenizer: Any = None
) -> None:
    """Save a model as a folder that `from_pretrained` and transformers' AutoModelForCausalLM load.

    The folder appears, or takes the place of an older one, whole or not at all. Other files of an older folder are
    kept, its tokenizer among them.

    Parameters
    ----------
    model : MiniMindForCausalLM
    path : path
        Of the folder; missing folders above it are made.
    dtype : "float32", "float16", "bfloat16" or NumPy dtype
        What the weights are rounded to (to nearest, even on ties). Float32 weights come back bit for bit.
    tokenizer : optional
        Saved along, by its ``save(folder)``.

    Raises
    ------
    OSError
        Naming the folder, when it cannot be written.
    ValueError
        For another dtype, for a weight that is too large for it, for a scaling of rotary positions that
        transformers cannot express.
    """
    name = _storage_dtype(dtype)
    config = huggingface_config(model.config, name)
    stored = {key: stored_as(key, array, name) for key, array in model.state_dict().items()}
    with replacing_folder(path, replaced=_is_weights) as folder:
        text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
        (folder / CONFIG).write_text(text, encoding="utf-8")
        write_tensors(folder / WEIGHTS, stored, {"format": "pt"})  # transformers asks for the format
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


def _is_weights(name: str) -> bool:
    """Say whether a file of an older folder is replaced by the new weights: shards and their index."""
    return name in (INDEX, WEIGHTS) or re.fullmatch(r"model-\d+-of-\d+\.safetensors", name) is not None


def huggingface_config(config: MiniMindConfig, dtype: str) -> dict[str, Any]:
    """Return config.json's dict: transformers' fields, and under one name of ours what they cannot say."""
    fields = _transformers_fields(config)
    again = MiniMindConfig.from_dict(fields).to_dict()
    own = {name: value for name, value in config.to_dict().items() if again[name] != value}
    return {**fields, "torch_dtype": dtype, **({OWN: own} if own else {})}


def _transformers_fields(config: MiniMindConfig) -> dict[str, Any]:
    scaling = transformers_scaling(config)
    fields = {
        "architectures": ["Qwen3MoeForCausalLM" if config.use_moe else "Qwen3ForCausalLM"],
        "model_type": "qwen3_moe" if config.use_moe else "qwen3",
        **{name: getattr(config, name) for name in SHARED_FIELDS},
        # Flat for transformers 4, nested for transformers 5.
        "rope_theta": config.rope_theta,
        "rope_scaling": scaling,
        "rope_parameters": {"rope_theta": config.rope_theta, **(scaling or {"rope_type": "default"})},
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_sliding_window": False,
    }
    if config.use_moe:
        fields.update({name: getattr(config, name) for name in MOE_FIELDS})
        fields.update({"decoder_sparse_step": 1, "mlp_only_layers": []})
    return fields


SHARED_FIELDS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "intermediate_size",
    "hidden_act",
    "rms_norm_eps",
    "max_position_embeddings",
    "tie_word_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)
MOE_FIELDS = (
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "norm_topk_prob",
    "router_aux_loss_coef",
)


def transformers_scaling(config: MiniMindConfig) -> dict[str, Any] | None:
    """Return the scaling of rotary positions in transformers' spelling, with the same frequencies.

    MiniMind's own spelling is off for short models, has a factor of one unless given, and clamps the upper end of
    the ramp at H/2 - 1 (transformers at H - 1): there a `beta_slow` is written that ends the ramp at that very pair, or
    two betas that keep it out of sight.
    """
    scaling = config.rope_scaling
    if scaling is None or "rope_type" in scaling:
        return None if scaling is None else dict(scaling)
    original, H = scaling["original_max_position_embeddings"], config.head_dim
    if config.max_position_embeddings <= original:
        return None
    assert H is not None
    given = scaling.get("attention_factor")
    written = {
        "rope_type": "yarn",
        "factor": scaling["factor"],
        "original_max_position_embeddings": original,
        "beta_fast": scaling.get("beta_fast") or 32,
        "beta_slow": scaling.get("beta_slow") or 1,
        "attention_factor": 1.0 if given is None else float(given),
        **({"truncate": scaling["truncate"]} if "truncate" in scaling else {}),
    }

    def beta(pair: float) -> float:
        return original / (2 * math.pi) * config.rope_theta ** (-2 * pair / H)

    rounded = 0.5 if written.get("truncate", True) else 0.0
    at_the_end = {"beta_slow": beta(H / 2 - 1 - rounded)}  # the ramp ends at the last pair
    nowhere = {"beta_fast": beta(H / 2 + 0.5), "beta_slow": beta(H / 2 + 0.75)}  # it begins after the last pair
    for change in ({}, at_the_end, nowhere):
        if _same_frequencies(config, {**written, **change}):
            return {**written, **change}
    raise ValueError(f"rope_scaling {dict(scaling)} gives frequencies that transformers cannot express")


def _same_frequencies(config: MiniMindConfig, scaling: Mapping[str, Any]) -> bool:
    assert config.head_dim is not None

    def frequencies(s: Mapping[str, Any] | None) -> tuple[np.ndarray, float]:
        return rope_frequencies(config.head_dim or 0, config.rope_theta, s, config.max_position_embeddings)

    (omega, factor), (omega2, factor2) = frequencies(config.rope_scaling), frequencies(scaling)
    return factor == factor2 and np.allclose(omega, omega2, rtol=1e-12, atol=0)
