"""From the names that a file gives its tensors to those of a model's parameters.

What wraps a model puts words before its names: torch.compile ``_orig_mod.``, DataParallel and DDP ``module.``, a class
that holds the model the name of its attribute; a model that was saved without its head lacks ``model.``. As long as all
names agree on it, it is undone. If they do not, or if the file holds no model that is known here, the error is one line
that says so, and not a line for each name.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeVar

from numpy_minimind.files import CheckpointError, ForeignFileError
from numpy_minimind.shapes import HEAD, TABLE

T = TypeVar("T")

# What stands before a parameter's name, whether "model." is part of that, and the name.
NAME = re.compile(
    r"((?:[^.]+\.)*?)(?:lm_head\.weight|(model\.)?(?:embed_tokens\.weight|norm\.weight"
    r"|layers\.\d+\.(?:self_attn|mlp|input_layernorm|post_attention_layernorm)\..+))"
)
# Words of wrappers, which may stand inside a name too, where a part of the model was wrapped; no part is called so.
WRAPPERS = re.compile(r"(?:(?<![^.])(?:_orig_mod|module|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.)+")
LORA = re.compile(r"(?<![^.])(?:lora_\w+|lora)(?:\.|$)")
QUANTISED = re.compile(
    r"\.(?:qweight|qzeros|g_idx|scales|biases|SCB|absmax|quant_map|weight_(?:packed|scale\w*|zero_point))$|\.quant_state\."
)


def plain_names(path: Path, tensors: dict[str, T]) -> dict[str, T]:
    """Return the tensors of a file under the names of a model's parameters.

    Raises
    ------
    ForeignFileError
        For a LoRA, for quantised weights, for a model of another architecture.
    CheckpointError
        When names do not agree on what stands before them, or two become one.
    """
    _check_kind(path, tensors)
    names = {name: _without_inner_wrappers(name) for name in tensors}
    before, bare = _agreed(path, list(names.values()))
    plain: dict[str, T] = {}
    origin: dict[str, str] = {}
    for name, tensor in tensors.items():
        new = names[name].removeprefix(before)
        if f".{new}".endswith(f".{HEAD}"):
            new = HEAD  # it may stand further out than the rest
        elif bare:
            new = f"model.{new}"
        if new in plain:
            raise CheckpointError(f"{path}: {origin[new]} and {name} are the same parameter, {new}: which one counts?")
        plain[new], origin[new] = tensor, name
    if not any("self_attn.q_norm." in name for name in plain):
        raise ForeignFileError(
            f"{path} holds a model without self_attn.q_norm.weight: Llama, MiniMind-2 or another of that kind, and not "
            "MiniMind-3 or Qwen3, which normalise queries and keys and are all that is implemented here"
        )
    return plain


def _check_kind(path: Path, tensors: dict[str, T]) -> None:
    lora = [name for name in tensors if LORA.search(name)]
    if lora:
        what = "is a LoRA file" if len(lora) == len(tensors) else "holds a LoRA that is not merged into its model"
        raise ForeignFileError(
            f"{path} {what} ({lora[0]}): small changes to a model's weights. Merge it into its model, with "
            "merge_lora of MiniMind's model_lora.py or merge_and_unload() of PEFT, and load what that saves"
        )
    quantised = next((name for name in tensors if QUANTISED.search(name)), None)
    if quantised:
        raise ForeignFileError(
            f"{path} holds quantised weights ({quantised}), which are not implemented here: take the model from which "
            "they were made, in float32, float16 or bfloat16"
        )


def _without_inner_wrappers(name: str) -> str:
    """Return the name with the wrappers' words at its beginning alone."""
    match = WRAPPERS.match(name)
    first = match.end() if match else 0
    return name[:first] + WRAPPERS.sub("", name[first:])


def _agreed(path: Path, names: list[str]) -> tuple[str, bool]:
    """Return what stands before all names, and whether they lack ``model.`` after it."""
    groups: dict[str, list[str]] = {}
    heads: list[str] = []
    for name in names:
        match = NAME.fullmatch(name)
        if match and name.endswith(HEAD):
            heads.append(name)
        elif match:
            groups.setdefault(match[1] + (match[2] or ""), []).append(name)
    if not groups:
        raise ForeignFileError(
            f"{path} holds no model that is known here: none of its {len(names)} tensors has a name such as {TABLE}"
            + (f" (the first is {names[0]})" if names else "")
        )
    beginning = max(groups, key=lambda each: len(groups[each]))
    bare = not (beginning == "model." or beginning.endswith(".model."))
    before = beginning if bare else beginning.removesuffix("model.")
    others = [name for each, group in groups.items() if each != beginning for name in group]
    others += [name for name in heads if not before.startswith(name.removesuffix(HEAD))]
    if others:
        raise CheckpointError(
            f"{path}: {len(groups[beginning])} of its tensors have names such as {groups[beginning][0]}, and "
            f"{len(others)} such as {others[0]}: what wrapped the model must stand before all of them, or before none"
        )
    return before, bare
