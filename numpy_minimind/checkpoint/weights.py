"""From whatever holds a model's weights to one tensor for each of its parameters, all checked and none read yet.

A folder holds model.safetensors, or its shards and their index, or the same as pytorch_model.bin, or a single .pth;
a .pth may also stand alone.
Experts may be stored one by one or fused.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from numpy_minimind.checkpoint.names import plain_names
from numpy_minimind.checkpoint.pth import read_pth
from numpy_minimind.checkpoint.tensors import FLOATS, StoredTensor, TensorFile
from numpy_minimind.config import MiniMindConfig
from numpy_minimind.files import CheckpointError, read_json
from numpy_minimind.foreign import missing
from numpy_minimind.messages import misfits
from numpy_minimind.shapes import HEAD, TABLE, Shape, parameter_shapes

CONFIG = "config.json"
SAFETENSORS, TORCH = "model.safetensors", "pytorch_model.bin"
INDEX = ".index.json"

# Tables of rotary positions that older files hold; here they are computed from the config.
COMPUTED = re.compile(r"(.*\.)?(rotary_emb\.inv_freq|freqs_cos|freqs_sin)")

FUSED = re.compile(r"(.*\.mlp\.experts\.)(gate_up_proj|down_proj)")  # as transformers 5 holds experts

MAX_FAULTS = 200  # a config may ask for a billion layers
MAX_EXPERTS = 4096  # and a file may hold a billion experts without a number in any

Tensors = dict[str, StoredTensor]


# -- where they lie ----------------------------------------------------------------------------------------------


def open_weights(path: Path) -> Tensors:
    """Return every tensor of a model folder, or of one file of PyTorch, by the name of its parameter."""
    file = path if path.is_file() else _file_of_weights(path)
    return plain_names(file, _open_shards(file) if file.name.endswith(INDEX) else _open_file(file))


def _file_of_weights(path: Path) -> Path:
    """Return the file that holds a folder's weights, or says which files do."""
    for name in (SAFETENSORS, SAFETENSORS + INDEX, TORCH, TORCH + INDEX):
        if (path / name).exists():
            return path / name
    files = sorted(path.glob("*.pth"))
    if len(files) == 1:
        return files[0]
    if files:
        raise CheckpointError(f"{path} holds {len(files)} models, give one of them: {', '.join(map(str, files))}")
    raise missing(path, *(name for name in (CONFIG, SAFETENSORS) if not (path / name).exists()))


def _open_file(path: Path) -> Tensors:
    tensors = TensorFile(path).tensors if path.suffix == ".safetensors" else read_pth(path)
    _check_names(path, tensors)
    return tensors


def _check_names(path: Path, names: Iterable[str]) -> None:
    """Refuse a name that would steer the terminal on which an error shows it."""
    for name in names:
        if not name.isprintable():
            raise CheckpointError(f"{path}: a tensor's name has unprintable characters, {name!r:.80}")


def _open_shards(index: Path) -> Tensors:
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(shard, str) for shard in places.values()):
        raise CheckpointError(f"{index} has no weight_map from names to files")
    _check_names(index, places)
    tensors: Tensors = {}
    found: dict[str, str] = {}
    for shard in sorted(set(places.values())):
        if not shard or Path(shard).name != shard or not shard.isprintable():
            raise CheckpointError(f"{index} names {shard!r}, which is not a file of the same folder")
        for name, tensor in _open_file(index.with_name(shard)).items():
            if name in found:
                raise CheckpointError(f"{index}: both {found[name]} and {shard} hold {name}: which one counts?")
            tensors[name], found[name] = tensor, shard
    wrong = [f"{name} (in {shard})" for name, shard in places.items() if found.get(name) != shard]
    if wrong:
        more = f" and {len(wrong) - MAX_FAULTS} more" if len(wrong) > MAX_FAULTS else ""
        raise CheckpointError(f"{index} names tensors that the files lack: {', '.join(wrong[:MAX_FAULTS])}{more}")
    return tensors


# -- what a model needs ------------------------------------------------------------------------------------------


def fit(weights: Tensors, config: MiniMindConfig) -> Tensors:
    """Return exactly the tensors that a model of this config needs.

    Fused experts are taken apart; tables that are computed here are left out; the head of a tied model is, too, if it
    equals the table (or takes its place, if there is none).

    Raises
    ------
    ValueError
        Listing everything that is missing, not expected, there twice, or of another shape or dtype, and a head that is
        not tied.
    """
    faults = [f"twice: {name}, alone and in a fused tensor" for name in _experts_twice(weights)]
    weights = {name: tensor for name, tensor in split_experts(weights).items() if not COMPUTED.fullmatch(name)}
    if config.tie_word_embeddings and HEAD in weights:
        head = weights.pop(HEAD)
        if not _equal(head, weights.setdefault(TABLE, head)):
            faults.append(
                f"not tied: {HEAD} differs from {TABLE}, and the config says that they are one (to load them as two, "
                "give a config with tie_word_embeddings False)"
            )
    faults += _misfits(weights, config)
    if len(faults) > MAX_FAULTS:
        faults[MAX_FAULTS:] = ["and more"]
    if faults:
        raise ValueError("the weights do not fit the config:\n  " + "\n  ".join(faults))
    return weights


def _equal(a: StoredTensor, b: StoredTensor) -> bool:
    return a is b or (a.shape == b.shape and np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True))


def _misfits(weights: Tensors, config: MiniMindConfig) -> list[str]:
    # So few more than there are: what is cut off could only be missing, too.
    expected = dict(itertools.islice(parameter_shapes(config), len(weights) + MAX_FAULTS + 1))
    return misfits(weights, expected, _other_tensor)


def _other_tensor(tensor: StoredTensor, shape: Shape) -> tuple[str, Any, Any] | None:
    if tensor.shape != shape:
        return "shape", tensor.shape, shape
    return None if tensor.stored in FLOATS else ("dtype", f"stored as {tensor.stored}", "floats")


def split_experts(weights: Tensors) -> Tensors:
    """Take apart what transformers 5 fuses: ``gate_up_proj`` (E, 2F, D), gates first, and ``down_proj`` (E, D, F)."""
    split: Tensors = {}
    for name, tensor in weights.items():
        fused = FUSED.fullmatch(name)
        if fused is None or len(tensor.shape) != 3 or tensor.shape[0] > MAX_EXPERTS:
            split[name] = tensor
            continue
        prefix, kind = fused.groups()
        E, rows, _ = tensor.shape
        for e in range(E):
            if kind == "down_proj":
                split[f"{prefix}{e}.down_proj.weight"] = tensor[e]
            else:
                split[f"{prefix}{e}.gate_proj.weight"] = tensor[e, : rows // 2]
                split[f"{prefix}{e}.up_proj.weight"] = tensor[e, rows // 2 :]
    return split


def _experts_twice(weights: Tensors) -> list[str]:
    """Return the names of experts that are stored both one by one and fused."""
    fused = split_experts({name: tensor for name, tensor in weights.items() if FUSED.fullmatch(name)})
    return [name for name in fused if name in weights and not FUSED.fullmatch(name)]


def fields_of(weights: Mapping[str, StoredTensor]) -> dict[str, int | bool]:
    """Return those fields of a config that the tensors give away: a help for who has to write one."""
    weights = split_experts(dict(weights))
    first = "model.layers.0."
    names = [f"{first}{part}.weight" for part in ("self_attn.q_norm", "self_attn.q_proj", "self_attn.k_proj")]
    if not all(name in weights and weights[name].shape for name in [TABLE, *names]) or len(weights[TABLE].shape) != 2:
        return {}
    (V, D), (H, NH, KH) = weights[TABLE].shape, (weights[name].shape[0] or 1 for name in names)
    blocks = {match[1] for name in weights if (match := re.match(r"model\.layers\.(\d+)\.", name))}
    heads = {"num_attention_heads": NH // H, "num_key_value_heads": KH // H, "head_dim": H}
    fields: dict[str, int | bool] = {"hidden_size": D, "num_hidden_layers": len(blocks), "vocab_size": V, **heads}
    if HEAD in weights and not _equal(weights[HEAD], weights[TABLE]):
        fields["tie_word_embeddings"] = False
    router, gate = weights.get(f"{first}mlp.gate.weight"), weights.get(f"{first}mlp.gate_proj.weight")
    expert = weights.get(f"{first}mlp.experts.0.gate_proj.weight")
    if gate is not None:
        fields["intermediate_size"] = gate.shape[0]
    if router is not None and expert is not None:
        fields |= {"use_moe": True, "num_experts": router.shape[0], "moe_intermediate_size": expert.shape[0]}
    return fields
