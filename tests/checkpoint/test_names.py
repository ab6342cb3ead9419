"""What stands before the names of a file's tensors: undone where all agree, else one line for all of them."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoint.torch_files import (
    ORDERED_DICT,
    members_of,
    number,
    pickle_of,
    storage,
    tensor,
    text,
    write_pth,
    zip_of,
)
from tests.helpers import model_of

pytest.importorskip("safetensors")

import safetensors.numpy

from numpy_minimind import MiniMindForCausalLM, from_pretrained, save_pretrained
from numpy_minimind.checkpoint import CheckpointError, ForeignFileError, read_pth
from numpy_minimind.checkpoint.names import plain_names

Arrays = dict[str, np.ndarray]
FILE = Path("m.pth")


def model(**fields: object) -> MiniMindForCausalLM:
    return model_of(np.float32, hidden_size=16, moe_intermediate_size=12, **fields)


def same(a: MiniMindForCausalLM, b: MiniMindForCausalLM) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return ours.keys() == theirs.keys() and all(np.array_equal(ours[name], theirs[name]) for name in ours)


def bare(name: str) -> str:
    return name.removeprefix("model.")


WRAPPED: dict[str, Callable[[str], str]] = {
    "torch.compile": lambda name: f"_orig_mod.{name}",
    "DataParallel": lambda name: f"module.{name}",
    "DDP of a compiled model": lambda name: f"module._orig_mod.{name}",
    "a compiled DDP": lambda name: f"_orig_mod.module.{name}",
    "FSDP": lambda name: f"_fsdp_wrapped_module.{name}",
    "PEFT, merged": lambda name: f"base_model.model.{name}",
    "Lightning": lambda name: f"model.{name}",
    "an attribute of any name": lambda name: f"net.student.{name}",
    "without its head": bare,
    "without its head, compiled": lambda name: f"_orig_mod.{bare(name)}",
    "transformer.": lambda name: name if name.startswith("lm_head") else f"transformer.{bare(name)}",
    "only the blocks are compiled": lambda name: re.sub(r"(layers\.\d+\.)", r"\1_orig_mod.", name),
    "only the body is compiled": lambda name: name.replace("model.", "model._orig_mod."),
    "its attention is wrapped": lambda name: f"module.{name}".replace("self_attn.", "self_attn.module."),
}
each_wrapper = pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED.keys())


def write(folder: Path, container: str, arrays: Arrays) -> Path:
    """Write arrays as one kind of file; return what is given to from_pretrained."""
    if container == "shards":
        names = list(arrays)
        parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
        for shard, held in parts.items():
            safetensors.numpy.save_file({name: arrays[name] for name in held}, folder / shard)
        index = {"weight_map": {name: shard for shard, held in parts.items() for name in held}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
    elif container.endswith(".safetensors"):
        safetensors.numpy.save_file(arrays, folder / container)
    else:
        write_pth(folder / container, arrays)
    return folder / container if container.endswith(".pth") else folder


# -- undone ------------------------------------------------------------------------------------------------------


@each_wrapper
@pytest.mark.parametrize("fields", [{}, {"tie_word_embeddings": False}, {"use_moe": True}], ids=["", "untied", "moe"])
def test_what_stands_before_all_names_is_left_out(wrap: Callable[[str], str], fields: dict[str, bool]) -> None:
    names = [*model(**fields).state_dict(), "lm_head.weight", "freqs_cos", "model.rotary_emb.inv_freq"]
    wrapped = {wrap(name): name for name in names[:-2]} | {name: name for name in names[-2:]}
    assert {old: new for new, old in plain_names(FILE, wrapped).items() if old not in names[-2:]} == {
        name: name for name in names[:-2]
    }


@each_wrapper
@pytest.mark.parametrize("container", ["m.pth", "pytorch_model.bin", "model.safetensors", "shards"])
def test_a_wrapped_model_is_loaded(tmp_path: Path, wrap: Callable[[str], str], container: str) -> None:
    """Its tied head, which PyTorch stores too, under the same words."""
    m = model()
    state = {**m.state_dict(), "lm_head.weight": m.state_dict()["model.embed_tokens.weight"].copy()}
    place = write(tmp_path, container, {wrap(name): array for name, array in state.items()})
    assert same(from_pretrained(place, config=m.config), m)
    with pytest.raises(CheckpointError, match=r"has no config\.json (in|beside) it") as caught:
        from_pretrained(place)
    # What the error suggests is the model's config, whatever stands before its names.
    (tmp_path / "config.json").write_text(str(caught.value).splitlines()[1], "utf-8")
    assert same(from_pretrained(place), m)


def test_a_suggested_config_knows_a_head_of_its_own(tmp_path: Path) -> None:
    m = model(tie_word_embeddings=False)
    write_pth(tmp_path / "m.pth", {f"_orig_mod.{name}": array for name, array in m.state_dict().items()})
    with pytest.raises(CheckpointError, match=r"has no config\.json") as caught:
        from_pretrained(tmp_path / "m.pth")
    (tmp_path / "config.json").write_text(str(caught.value).splitlines()[1], "utf-8")
    assert same(from_pretrained(tmp_path / "m.pth"), m)


def test_faults_are_named_without_the_words_of_a_wrapper(tmp_path: Path) -> None:
    m = model()
    state = {f"_orig_mod.{name}": array for name, array in m.state_dict().items()}
    state["_orig_mod.model.norm.wieght"] = state.pop("_orig_mod.model.norm.weight")
    write_pth(tmp_path / "m.pth", state)
    with pytest.raises(CheckpointError, match=r"missing: model\.norm\.weight\n  unexpected: model\.norm\.wieght$"):
        from_pretrained(tmp_path / "m.pth", config=m.config)


@pytest.mark.parametrize(
    "path",
    [["model"], ["state_dict"], ["model_state_dict"], ["module"], ["weights of mine"], ["model", "state_dict"]],
    ids="/".join,
)
def test_a_state_dict_inside_what_a_training_script_saves(tmp_path: Path, path: list[str]) -> None:
    place = storage(b"FloatStorage", "0", 2)
    held = ORDERED_DICT + b"(" + text("_orig_mod.w") + tensor(place, 0, [2], [1]) + b"u"
    for key in path[:0:-1]:
        held = b"}(" + text(key) + held + b"u"
    moments = b"}(" + number(0) + b"}(" + text("exp_avg") + tensor(place, 0, [2], [1]) + b"uu"
    optimizer = b"}(" + text("state") + moments + text("param_groups") + b"]u"
    pickle = pickle_of({"epoch": number(1), "optimizer": optimizer, path[0]: held, "config": b"}(" + text("a") + b"Nu"})
    (tmp_path / "m.pth").write_bytes(zip_of(members_of(pickle, {"0": np.float32([1, 2]).tobytes()})))
    assert list(read_pth(tmp_path / "m.pth")) == ["_orig_mod.w"]


# -- one line ----------------------------------------------------------------------------------------------------


def one_line(names: list[str]) -> str:
    with pytest.raises(CheckpointError) as caught:
        plain_names(FILE, dict.fromkeys(names))
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("m.pth")
    return message


@each_wrapper
def test_a_mixture_is_one_line(wrap: Callable[[str], str]) -> None:
    names = list(model().state_dict())
    wrapped = [wrap(name) if i % 3 else name for i, name in enumerate(names)]
    if wrap in (WRAPPED["only the blocks are compiled"], WRAPPED["only the body is compiled"]):
        assert set(plain_names(FILE, dict.fromkeys(wrapped))) == set(names)  # parts may be wrapped one by one
        return
    message = one_line(wrapped)
    assert "what wrapped the model must stand before all of them" in message
    assert wrapped[0] in message
    assert wrapped[1] in message


@pytest.mark.parametrize("before", ["ema.", "module.", "model."])
def test_two_models_in_one_file_are_one_line(before: str) -> None:
    names = list(model().state_dict())
    assert "such as" in one_line([*names, *(before + name for name in names)])


def test_a_head_that_stands_elsewhere() -> None:
    names = list(model().state_dict())
    for head in ("module.lm_head.weight", "model.layers.0.lm_head.weight"):
        assert f"and 1 such as {head}" in one_line([*names, head])
    assert "model.my_lm_head.weight" in plain_names(FILE, dict.fromkeys([*names, "model.my_lm_head.weight"]))


def test_names_that_become_one_are_named() -> None:
    names = list(model().state_dict())
    doubled = "model.layers.0._orig_mod.mlp.up_proj.weight"
    message = one_line([*names, doubled])
    assert message == (
        f"m.pth: model.layers.0.mlp.up_proj.weight and {doubled} are the same parameter, "
        "model.layers.0.mlp.up_proj.weight: which one counts?"
    )


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.q_proj.lora.A.weight",  # MiniMind
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",  # PEFT
        "base_model.model.model.layers.0.self_attn.q_proj.lora_B.default.weight",
        "model.embed_tokens.lora_embedding_A",
        "lora.A.weight",
    ],
)
def test_a_lora_is_called_one(name: str) -> None:
    message = one_line([name, name.replace("A", "B")])
    assert message.startswith("m.pth is a LoRA file")
    assert "merge_lora" in message
    assert "merge_and_unload" in message
    assert "holds a LoRA that is not merged" in one_line([*model().state_dict(), name])


@pytest.mark.parametrize(
    "part", ["qweight", "g_idx", "scales", "biases", "weight.absmax", "weight.quant_state.bitsandbytes__nf4", "SCB"]
)
def test_quantised_weights_are_called_so(part: str) -> None:
    message = one_line([*model().state_dict(), f"model.layers.0.self_attn.q_proj.{part}"])
    assert "holds quantised weights" in message
    assert "float32, float16 or bfloat16" in message


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["tok_embeddings.weight", "layers.0.attention.wq.weight"], "none of its 2 tensors .*tok_embeddings.weight"),
        (["transformer.wte.weight", "transformer.h.0.attn.c_attn.weight"], "none of its 2 tensors"),
        ([], "none of its 0 tensors has a name such as model.embed_tokens.weight$"),
        (["model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight"], "without self_attn.q_norm"),
    ],
)
def test_models_of_other_architectures(names: list[str], said: str) -> None:
    assert re.search(said, one_line(names))


def test_the_line_comes_before_that_of_a_missing_config(tmp_path: Path) -> None:
    with pytest.raises(ForeignFileError, match=r"m\.pth is a LoRA file"):
        from_pretrained(write_pth(tmp_path / "m.pth", {"lora.A.weight": np.zeros((2, 2), np.float16)}))
    save_pretrained(model(), tmp_path / "m")
    safetensors.numpy.save_file({"h.0.weight": np.zeros(2, np.float32)}, tmp_path / "m" / "model.safetensors")
    with pytest.raises(ForeignFileError, match=r"model\.safetensors holds no model that is known here"):
        from_pretrained(tmp_path / "m")
