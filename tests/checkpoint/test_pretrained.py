"""Folders of models: here and back bit for bit, to transformers with the same logits, and every fault named."""

import dataclasses
import json
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numpy_minimind.checking.points import E, H, K, V
from tests.checkpoint.torch_files import write_pth
from tests.helpers import model_of
from tests.yarns import BARE, rotary

pytest.importorskip("safetensors")

import safetensors.numpy

from numpy_minimind import MiniMindConfig, MiniMindForCausalLM, from_pretrained, save_pretrained
from numpy_minimind.checkpoint import CheckpointError, DamagedFileError, pretrained
from numpy_minimind.checkpoint.huggingface import huggingface_config
from numpy_minimind.checkpoint.rope_scaling import transformers_scaling
from numpy_minimind.checkpoint.tensors import TensorFile, bfloat16_bits, stored_as, widen, write_tensors
from numpy_minimind.checkpoint.weights import open_weights
from numpy_minimind.text import CharTokenizer, load_tokenizer

YARN = {"type": "yarn", **BARE}
MODELS: dict[str, dict[str, Any]] = {
    "dense": {},
    "untied": {"tie_word_embeddings": False},
    "moe": {"use_moe": True},
    "moe untied k2": {"use_moe": True, "num_experts_per_tok": 2, "tie_word_embeddings": False},
    "moe k1 normalised": {"use_moe": True, "norm_topk_prob": True},
    "moe k2 not normalised": {"use_moe": True, "num_experts_per_tok": 2, "norm_topk_prob": False},
    "yarn, MiniMind's": {"rope_scaling": YARN},
    "yarn, MiniMind's, clamped": {"rope_scaling": YARN | {"original_max_position_embeddings": 60}, "rope_theta": 9.0},
    "yarn, MiniMind's, off": {"rope_scaling": YARN | {"original_max_position_embeddings": 64}},
    "yarn, transformers'": {"rope_scaling": {"rope_type": "yarn", **BARE}},
    "several end marks": {"eos_token_id": [0, 2]},
    "without ids": {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None},
}
each_model = pytest.mark.parametrize("fields", MODELS.values(), ids=MODELS.keys())


def model(dtype: Any = np.float32, **fields: Any) -> MiniMindForCausalLM:
    widths = {"hidden_size": 16, "moe_intermediate_size": 12}  # torch's grouped products want multiples of 16 bytes
    return model_of(dtype, **{**widths, **fields})


def same_weights(a: MiniMindForCausalLM, b: MiniMindForCausalLM) -> bool:
    ours, theirs = dict(a.named_parameters()), dict(b.named_parameters())
    return ours.keys() == theirs.keys() and all(np.array_equal(ours[name].data, theirs[name].data) for name in ours)


def rewrite(folder: Path, change: Callable[[dict[str, np.ndarray]], Any]) -> None:
    """Let `change` alter the tensors of a saved model in place."""
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    change(tensors)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")


def edit_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | fields), "utf-8")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder with a small dense model."""
    save_pretrained(model(), tmp_path / "model")
    return tmp_path / "model"


# -- here and back -----------------------------------------------------------------------------------------------


@each_model
def test_a_round_trip_in_float32_is_exact(tmp_path: Path, fields: dict[str, Any]) -> None:
    m = model(**fields)
    save_pretrained(m, tmp_path / "m")
    again = from_pretrained(tmp_path / "m")
    assert again.config == m.config
    assert same_weights(again, m)
    for _, parameter in again.named_parameters():
        assert parameter.data.dtype == np.float32
        assert parameter.data.flags.c_contiguous
        assert parameter.data.flags.writeable
    ids = np.arange(10).reshape(2, 5)
    assert np.array_equal(again(ids), m(ids))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("compute", [np.float32, np.float16, np.float64])
def test_weights_are_rounded_once_and_read_in_any_dtype(tmp_path: Path, dtype: str, compute: Any) -> None:
    m = model()
    save_pretrained(m, tmp_path / "m", dtype)
    again = from_pretrained(tmp_path / "m", dtype=compute)
    for (name, parameter), (_, original) in zip(again.named_parameters(), m.named_parameters()):
        rounded = widen(bfloat16_bits(original.data)) if dtype == "bfloat16" else original.data.astype(dtype)
        assert parameter.data.dtype == compute, name
        assert np.array_equal(parameter.data, rounded.astype(compute)), name


def test_saving_changes_nothing_and_takes_weights_in_any_layout(tmp_path: Path) -> None:
    m = model()
    for _, parameter in m.named_parameters():
        parameter.data = np.asfortranarray(parameter.data)
    m.model.norm.weight.data = np.repeat(m.model.norm.weight.data, 2)[::2]
    before = {name: array.copy() for name, array in m.state_dict().items()}
    for dtype in (np.float32, "bfloat16", np.float16):
        save_pretrained(m, tmp_path / "m", dtype)
    save_pretrained(m, tmp_path / "m")
    assert same_weights(from_pretrained(tmp_path / "m"), m)
    assert all(np.array_equal(array, before[name]) for name, array in m.state_dict().items())


def test_a_float64_model_is_stored_as_float32(tmp_path: Path) -> None:
    save_pretrained(model(np.float64), tmp_path / "m")
    assert same_weights(from_pretrained(tmp_path / "m"), model(np.float64).astype(np.float32))


def test_the_tied_table_is_stored_once(saved: Path) -> None:
    names = set(safetensors.numpy.load_file(saved / "model.safetensors"))
    assert names == set(model().state_dict())
    assert "lm_head.weight" not in names


def test_tokenizer_and_other_files_stay_with_the_model(tmp_path: Path) -> None:
    tokenizer = CharTokenizer("abc")
    save_pretrained(model(), tmp_path / "m", tokenizer=tokenizer)
    for name in ("README.md", "model-00001-of-00002.safetensors", "model.safetensors.index.json"):
        (tmp_path / "m" / name).write_text("older", "utf-8")
    save_pretrained(model(), tmp_path / "m")
    names = {path.name for path in (tmp_path / "m").iterdir()}
    assert names == {"README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert load_tokenizer(tmp_path / "m").encode("cab") == tokenizer.encode("cab")


def test_home_and_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    save_pretrained(model(), "~/m")
    assert same_weights(from_pretrained("m"), model())
    assert same_weights(from_pretrained("~/m/"), model())


def test_a_link_to_a_folder(tmp_path: Path, saved: Path) -> None:
    (tmp_path / "link").symlink_to(saved)
    assert same_weights(from_pretrained(tmp_path / "link"), model())


def test_links_in_a_folder(tmp_path: Path, saved: Path) -> None:
    """Hugging Face's cache of downloads is made of links to files whose names are checksums."""
    (tmp_path / "snapshot").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "snapshot" / name).symlink_to(saved / name)
    assert same_weights(from_pretrained(tmp_path / "snapshot"), model())


def test_loading_draws_nothing_and_holds_the_weights_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = MiniMindConfig.preset("tiny", num_hidden_layers=12, vocab_size=512)
    m = MiniMindForCausalLM(config)
    size = 4 * m.num_parameters()
    for dtype in ("float32", "float16", "bfloat16"):
        save_pretrained(m, tmp_path / dtype, dtype)

    def refuse(*_: Any) -> None:
        raise AssertionError("weights that are about to be loaded were drawn")

    monkeypatch.setattr(np.random, "default_rng", refuse)
    for dtype in ("float32", "float16", "bfloat16"):
        tracemalloc.start()
        from_pretrained(tmp_path / dtype)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1.2 * size


# -- config.json -------------------------------------------------------------------------------------------------


def test_the_config_is_transformers_form() -> None:
    d = huggingface_config(model(use_moe=True).config, "bfloat16")
    assert (d["architectures"], d["model_type"], d["torch_dtype"]) == (["Qwen3MoeForCausalLM"], "qwen3_moe", "bfloat16")
    assert (d["num_experts"], d["moe_intermediate_size"], d["norm_topk_prob"]) == (E, 12, False)
    assert (d["decoder_sparse_step"], d["mlp_only_layers"]) == (1, [])
    dense = huggingface_config(model().config, "float32")
    assert (dense["architectures"], dense["model_type"]) == (["Qwen3ForCausalLM"], "qwen3")
    assert "num_experts" not in dense  # some loaders take whatever has it for a mixture
    assert (dense["use_sliding_window"], dense["attention_bias"], dense["tie_word_embeddings"]) == (False, False, True)
    assert dense["rope_theta"] == dense["rope_parameters"]["rope_theta"] == 100.0


def test_an_edited_config_counts(tmp_path: Path) -> None:
    """What only we can say is said in a field of our own, which must not outvote a field that somebody edited."""
    folder = tmp_path / "m"
    save_pretrained(model(rope_scaling=YARN, num_experts=9), folder)
    assert from_pretrained(folder).config.rope_scaling == YARN
    edit_config(folder, rms_norm_eps=1e-5, eos_token_id=7)
    config = from_pretrained(folder).config
    assert (config.rms_norm_eps, config.eos_token_id, config.num_experts) == (1e-5, 7, 9)
    scaling = {"rope_type": "yarn", **BARE, "factor": 2.0}
    edit_config(folder, rope_scaling=scaling)
    with pytest.raises(
        CheckpointError, match=r"rope_scaling\.factor = 2\.0 and rope_parameters\.factor = 4\.0 contradict"
    ):
        from_pretrained(folder)
    edit_config(folder, rope_parameters=scaling)
    assert from_pretrained(folder).config.rope_scaling == scaling


def test_several_end_marks_come_back_from_a_save_and_from_its_json(tmp_path: Path) -> None:
    save_pretrained(model(eos_token_id=[7, 2]), tmp_path / "m")
    assert json.loads((tmp_path / "m" / "config.json").read_text("utf-8"))["eos_token_id"] == [7, 2]
    edit_config(tmp_path / "m", eos_token_id=[0, 2])
    save_pretrained(from_pretrained(tmp_path / "m"), tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text("utf-8"))["eos_token_id"] == [0, 2]


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({"eos_token_id": [0, 2]}, [0, 2]),
        ({"eos_token_id": 5}, 5),
        ({"eos_token_id": None}, None),
        ({"eos_token_id": []}, None),
        ({"temperature": 0.6, "top_k": 20}, 7),  # it says nothing of ends: config.json does
        ({}, 7),
    ],
)
def test_end_marks_of_generation_config_go_before(saved: Path, generation: dict[str, Any], expected: Any) -> None:
    edit_config(saved, eos_token_id=7)
    (saved / "generation_config.json").write_text(json.dumps(generation), "utf-8-sig")
    m = from_pretrained(saved)
    assert m.config.eos_token_id == expected
    assert from_pretrained(saved, config=model().config).config.eos_token_id == 2  # the argument goes before all
    save_pretrained(m, saved)  # the older generation_config.json does not outvote the model either
    assert from_pretrained(saved).config.eos_token_id == expected
    assert not (saved / "generation_config.json").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"eos_token_id": [2, 500]}', rf"eos_token_id must be an integer in \[0, {V}\), .*, got \[2, 500\]"),
        ('{"eos_token_id": true}', "eos_token_id must be .*, got True"),
        ("[2]", "holds list, expected a JSON object"),
        ("{", "is not JSON"),
    ],
)
def test_a_bad_generation_config_is_named(saved: Path, text: str, message: str) -> None:
    (saved / "generation_config.json").write_text(text, "utf-8")
    with pytest.raises(CheckpointError, match=rf"generation_config\.json:? {message}"):
        from_pretrained(saved)


@pytest.mark.parametrize("theta", [4.0, 9.0, 1e4])
@pytest.mark.parametrize("original", [16, 40, 2048])
@pytest.mark.parametrize("given", [{}, {"beta_fast": 9, "attention_factor": 1.5}, {"truncate": False}])
def test_scaling_in_transformers_spelling_gives_the_same_frequencies(
    theta: float, original: int, given: dict[str, Any]
) -> None:
    scaling = {**YARN, "original_max_position_embeddings": original, **given}
    config = MiniMindConfig(head_dim=12, rope_theta=theta, rope_scaling=scaling)
    written = transformers_scaling(config)
    assert written is not None
    assert written["rope_type"] == "yarn"
    ours, theirs = (rotary(12, theta, s, config.max_position_embeddings) for s in (scaling, written))
    np.testing.assert_allclose(theirs.frequencies, ours.frequencies, rtol=1e-12)
    assert theirs.factor == ours.factor


def test_a_dropout_is_reported_and_kept(tmp_path: Path) -> None:
    """Without training it does nothing: a model that had one is loaded, and whoever trains it is told by an error."""
    save_pretrained(model(dropout=0.1), tmp_path / "m")
    with pytest.warns(UserWarning, match=r"/m: dropout 0\.1 is not implemented; training will ask for 0"):
        again = from_pretrained(tmp_path / "m")
    assert again.config.dropout == 0.1
    assert same_weights(again, model())
    with pytest.raises(ValueError, match=r"dropout 0\.1 is not implemented in training"):
        again.loss_and_grad(np.arange(4)[None], np.arange(4)[None])
    assert huggingface_config(again.config, "float32")["attention_dropout"] == 0.1


def test_config_argument(saved: Path) -> None:
    (saved / "config.json").unlink()
    assert same_weights(from_pretrained(saved, config=model().config), model())
    with pytest.raises(TypeError, match="config must be a MiniMindConfig, got dict"):
        from_pretrained(saved, config=model().config.to_dict())  # type: ignore[arg-type]


# -- other people's folders --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_shards(tmp_path: Path, dtype: str) -> None:
    m = model()
    arrays = {name: (bfloat16_bits(a) if dtype == "bfloat16" else a) for name, a in m.state_dict().items()}
    names = list(arrays)
    shards = {"model-00001-of-00002.safetensors": names[:5], "model-00002-of-00002.safetensors": names[5:]}
    for shard, held in shards.items():
        write_tensors(tmp_path / shard, {name: (dtype, arrays[name]) for name in held}, {"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: shard for shard, held in shards.items() for name in held}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
    (tmp_path / "config.json").write_text(json.dumps(m.config.to_dict()), "utf-8-sig")  # with a byte order mark
    again = from_pretrained(tmp_path)
    expected = {name: widen(a) if dtype == "bfloat16" else a for name, a in arrays.items()}
    assert all(np.array_equal(a, expected[name]) for name, a in again.state_dict().items())

    (tmp_path / "model-00002-of-00002.safetensors").rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match=r"model-00002-of-00002\.safetensors"):
        from_pretrained(tmp_path)


def fused(arrays: dict[str, np.ndarray], config: MiniMindConfig) -> dict[str, np.ndarray]:
    """A state dict as transformers 5 holds it in memory, spelled out here once more."""
    rest = {name: a for name, a in arrays.items() if ".experts." not in name}
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}.mlp.experts."
        gate, up, down = (
            np.stack([arrays[f"{prefix}{e}.{part}_proj.weight"] for e in range(config.num_experts)])
            for part in ("gate", "up", "down")
        )
        rest[prefix + "gate_up_proj"] = np.concatenate((gate, up), axis=1)  # (E, 2F, D)
        rest[prefix + "down_proj"] = down  # (E, D, F)
    return rest


@pytest.mark.parametrize("container", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_fused_experts(tmp_path: Path, container: str, dtype: str) -> None:
    m = model(use_moe=True)
    save_pretrained(m, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    arrays = {name: stored_as(name, a, dtype)[1] for name, a in fused(m.state_dict(), m.config).items()}
    if container.endswith("bin"):
        write_pth(tmp_path / container, arrays)
    else:
        write_tensors(tmp_path / container, {name: (dtype, a) for name, a in arrays.items()}, {"format": "pt"})
    again = from_pretrained(tmp_path)
    for name, array in again.state_dict().items():
        stored = stored_as(name, m.state_dict()[name], dtype)[1]
        assert np.array_equal(array, widen(stored) if dtype == "bfloat16" else stored.astype(np.float32)), name


def test_experts_both_alone_and_fused_are_refused(tmp_path: Path) -> None:
    save_pretrained(model(use_moe=True), tmp_path / "m")
    fused = np.zeros((E, 16, 12), np.float32)
    rewrite(tmp_path / "m", lambda t: t.update({"model.layers.0.mlp.experts.down_proj": fused}))
    message = rf"twice: model\.layers\.0\.mlp\.experts\.{E - 1}\.down_proj\.weight, alone and in a fused tensor"
    with pytest.raises(CheckpointError, match=message):
        from_pretrained(tmp_path / "m")


def test_fused_experts_of_another_shape_are_named(tmp_path: Path) -> None:
    m = model(use_moe=True)
    save_pretrained(m, tmp_path)
    name = "model.layers.1.mlp.experts.gate_up_proj"

    def spoil(t: dict[str, np.ndarray]) -> None:
        whole = fused(t, m.config)
        t.clear()
        t.update(whole)
        t[name] = t[name].swapaxes(1, 2).copy()  # (E, D, 2F), as some other models have it
        t["model.layers.0.mlp.experts.down_proj"] = t["model.layers.0.mlp.experts.down_proj"][0].copy()

    rewrite(tmp_path, spoil)
    with pytest.raises(CheckpointError) as caught:
        from_pretrained(tmp_path)
    message = str(caught.value)
    assert "wrong shape: model.layers.1.mlp.experts.0.gate_proj.weight is (8, 24), expected (12, 16)" in message
    assert "unexpected: model.layers.0.mlp.experts.down_proj" in message


def test_a_billion_experts_without_a_number(tmp_path: Path) -> None:
    m = model(use_moe=True)
    save_pretrained(m, tmp_path)
    name = "model.layers.0.mlp.experts.down_proj"
    rewrite(tmp_path, lambda t: t.update({name: np.zeros((10**9, 0, 5), np.float32)}))
    with pytest.raises(CheckpointError, match=f"unexpected: {name}"):
        from_pretrained(tmp_path)


def test_shards_of_pytorch(tmp_path: Path) -> None:
    m = model()
    save_pretrained(m, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    names = list(m.state_dict())
    shards = {"pytorch_model-00001-of-00002.bin": names[:7], "pytorch_model-00002-of-00002.bin": names[7:]}
    for shard, held in shards.items():
        write_pth(tmp_path / shard, {name: m.state_dict()[name] for name in held})
    index = {"weight_map": {name: shard for shard, held in shards.items() for name in held}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index), "utf-8")
    assert same_weights(from_pretrained(tmp_path), m)
    save_pretrained(model(seed=3), tmp_path)  # takes the place of all of them
    assert {p.name for p in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
    assert same_weights(from_pretrained(tmp_path), model(seed=3))


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({}, "has no weight_map"),
        ({"weight_map": {"a": 1}}, "has no weight_map"),
        ({"weight_map": {"a": "../model.safetensors"}}, "not a file of the same folder"),
        ({"weight_map": {"a": ""}}, "names '', which is not a file of the same folder"),
        ({"weight_map": {"a": "\x1b[2J"}}, r"names '\\x1b\[2J', which is not a file of the same folder"),
        ({"weight_map": {"\x1b[2J": "one.safetensors"}}, r"name has unprintable characters, '\\x1b\[2J'"),
        ({"weight_map": {"a": "one.safetensors"}}, r"names tensors that the files lack: a \(in one\.safetensors\)"),
    ],
)
def test_bad_indices(saved: Path, index: dict[str, Any], message: str) -> None:
    (saved / "model.safetensors").rename(saved / "one.safetensors")
    (saved / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
    with pytest.raises(CheckpointError, match=message):
        from_pretrained(saved)


def in_two_shards(saved: Path, places: dict[str, str], extra: str | None = None) -> None:
    """Put the embedding into a.safetensors (and `extra` too), the rest into b; `places` changes the index."""
    tensors = safetensors.numpy.load_file(saved / "model.safetensors")
    (saved / "model.safetensors").unlink()
    first = {name for name in tensors if name in ("model.embed_tokens.weight", extra)}
    safetensors.numpy.save_file({name: tensors[name] for name in first}, saved / "a.safetensors")
    rest = {name: array for name, array in tensors.items() if name not in first or name == extra}
    safetensors.numpy.save_file(rest, saved / "b.safetensors")
    index = {**dict.fromkeys(rest, "b.safetensors"), **dict.fromkeys(first, "a.safetensors"), **places}
    (saved / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}), "utf-8")


def test_a_tensor_in_two_shards_is_refused(saved: Path) -> None:
    in_two_shards(saved, {}, extra="model.norm.weight")
    with pytest.raises(CheckpointError, match=r"both a\.safetensors and b\.safetensors hold model\.norm\.weight"):
        from_pretrained(saved)


def test_a_tensor_in_another_shard_than_the_index_says_is_refused(saved: Path) -> None:
    in_two_shards(saved, {"model.norm.weight": "a.safetensors"})
    with pytest.raises(CheckpointError, match=r"that the files lack: model\.norm\.weight \(in a\.safetensors\)"):
        from_pretrained(saved)


def test_a_name_that_would_steer_a_terminal_is_shown_as_what_it_is(saved: Path) -> None:
    rewrite(saved, lambda t: t.update({"\x1b[2Jevil": np.zeros(1, np.float32)}))
    with pytest.raises(CheckpointError, match=r"name has unprintable characters, '\\x1b\[2Jevil'"):
        from_pretrained(saved)


# -- a load that a save overtakes --------------------------------------------------------------------------------


def test_a_load_that_a_save_overtakes_mixes_no_models(saved: Path) -> None:
    tensors = open_weights(saved)
    assert np.array_equal(tensors["model.norm.weight"].read(), model().state_dict()["model.norm.weight"])
    save_pretrained(model(seed=3), saved)
    with pytest.raises(
        DamagedFileError, match=r"model\.safetensors was replaced or changed while it was read: load it"
    ):
        tensors["model.embed_tokens.weight"].read()


def test_the_config_is_that_of_the_weights(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def overtaken(place: Path) -> Any:
        save_pretrained(model(rms_norm_eps=1e-3), saved)
        return open_weights(place)

    monkeypatch.setattr(pretrained, "open_weights", overtaken)
    with pytest.raises(DamagedFileError, match="was replaced or changed while it was read"):
        from_pretrained(saved)


def test_an_equal_head_of_a_tied_model_is_accepted(saved: Path) -> None:
    rewrite(saved, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].copy()}))
    assert same_weights(from_pretrained(saved), model())


def test_an_equal_head_may_hold_what_equals_nothing(saved: Path) -> None:
    def spoil(t: dict[str, np.ndarray]) -> None:
        t["model.embed_tokens.weight"][2, 3] = np.nan
        t["lm_head.weight"] = t["model.embed_tokens.weight"].copy()

    rewrite(saved, spoil)
    assert np.isnan(from_pretrained(saved).model.embed_tokens.weight.data[2, 3])


def test_the_head_alone_of_a_tied_model_is_accepted(saved: Path) -> None:
    rewrite(saved, lambda t: t.update({"lm_head.weight": t.pop("model.embed_tokens.weight")}))
    assert same_weights(from_pretrained(saved), model())


# -- bfloat16 ----------------------------------------------------------------------------------------------------


def test_bfloat16_as_the_format_has_it(tmp_path: Path) -> None:
    bits = np.frombuffer(bytes.fromhex("803F 48C0 0000 807F"), "<u2")
    write_tensors(tmp_path / "x", {"pad": ("int8", np.zeros(3, np.int8)), "w": ("bfloat16", bits)}, {})
    tensor = TensorFile(tmp_path / "x").tensors["w"]
    assert tensor.read().dtype == np.float32
    assert np.array_equal(tensor.read(), [1.0, -3.125, 0.0, np.inf])
    assert np.array_equal(np.asarray(tensor, dtype=np.float64), [1.0, -3.125, 0.0, np.inf])


def test_bfloat16_rounds_to_nearest_even(rng: np.random.Generator) -> None:
    assert [hex(b) for b in bfloat16_bits(np.array([1 + 2**-8, 1 + 3 * 2**-8]))] == ["0x3f80", "0x3f82"]
    x = np.concatenate((rng.integers(0, 2**32, 20_000, np.uint32), np.arange(2**16, dtype=np.uint32) << 16 | 0x8000))
    x = x.view(np.float32)
    x = x[np.isfinite(x)]
    below = (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)  # towards zero
    above = (below.view(np.uint32) + np.uint32(0x10000)).view(np.float32)
    wide = [a.astype(np.float64) for a in (x, below, above)]
    beyond = np.sign(wide[1]) * 2.0**128  # infinity is the next number after the largest, as far as rounding goes
    wide[2] = np.where(np.isinf(wide[2]), beyond, wide[2])
    down, up = abs(wide[0] - wide[1]), abs(wide[2] - wide[0])
    even = below.view(np.uint32) >> np.uint32(16) & np.uint32(1) == 0
    expected = np.where((down < up) | ((down == up) & even), below, above)
    assert np.array_equal(widen(bfloat16_bits(x)).view(np.uint32), expected.view(np.uint32))


def test_bfloat16_keeps_nan_infinity_and_zero() -> None:
    x = np.array([0x7F800001, 0xFFFFFFFF, 0x7FC00000, 0x7F800000, 0xFF800000, 0x80000000], np.uint32).view(np.float32)
    y = widen(bfloat16_bits(x))
    assert np.array_equal(np.isnan(y), [True, True, True, False, False, False])
    assert np.array_equal(y[3:], [np.inf, -np.inf, 0.0])
    assert np.signbit(y[5])


@pytest.mark.parametrize(("dtype", "value"), [("float16", 70000.0), ("bfloat16", 3.4e38)])
def test_a_weight_too_large_for_the_dtype_is_named(tmp_path: Path, dtype: str, value: float) -> None:
    m = model()
    m.model.norm.weight.data[3] = value
    with pytest.raises(ValueError, match=rf"model\.norm\.weight holds .*, which is too large for {dtype}"):
        save_pretrained(m, tmp_path / "m", dtype)
    assert not list(tmp_path.iterdir())
    m.model.norm.weight.data[3] = np.inf  # is infinite before, too
    save_pretrained(m, tmp_path / "m", dtype)


# -- faults ------------------------------------------------------------------------------------------------------


def test_every_fault_of_the_weights_is_in_one_message(saved: Path) -> None:
    def spoil(t: dict[str, np.ndarray]) -> None:
        t["model.layers.0.self_attn.q_porj.weight"] = t.pop("model.layers.0.self_attn.q_proj.weight")
        t["model.layers.1.self_attn.k_proj.weight"] = t["model.layers.1.self_attn.k_proj.weight"][:6].copy()

    rewrite(saved, spoil)
    with pytest.raises(CheckpointError) as caught:
        from_pretrained(saved)
    message = str(caught.value)
    assert str(saved) in message
    assert "missing: model.layers.0.self_attn.q_proj.weight" in message
    assert "unexpected: model.layers.0.self_attn.q_porj.weight" in message
    assert f"wrong shape: model.layers.1.self_attn.k_proj.weight is (6, 16), expected ({K * H}, 16)" in message


def test_more_layers_than_the_config_says(tmp_path: Path) -> None:
    save_pretrained(model(num_hidden_layers=3), tmp_path / "m")
    edit_config(tmp_path / "m", num_hidden_layers=2)
    with pytest.raises(CheckpointError, match=r"unexpected: model\.layers\.2\.") as caught:
        from_pretrained(tmp_path / "m")
    assert str(caught.value).count("unexpected") == 11


def test_a_different_head_of_a_tied_model_is_refused(saved: Path) -> None:
    rewrite(saved, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"] + 1}))
    with pytest.raises(CheckpointError, match=r"lm_head\.weight differs"):
        from_pretrained(saved)


def test_an_untied_model_needs_its_head(saved: Path) -> None:
    edit_config(saved, tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match=r"missing: lm_head\.weight"):
        from_pretrained(saved)


def test_faults_of_every_kind_stand_together(saved: Path) -> None:
    def spoil(t: dict[str, np.ndarray]) -> None:
        t["lm_head.weight"] = t["model.embed_tokens.weight"] + 1
        t["model.layers.0.self_attn.q_norm.weight"] = np.ones(H, np.int32)
        del t["model.norm.weight"]

    rewrite(saved, spoil)
    with pytest.raises(CheckpointError) as caught:
        from_pretrained(saved)
    assert str(caught.value).splitlines() == [
        f"{saved}: the weights do not fit the config:",
        "  not tied: lm_head.weight differs from model.embed_tokens.weight, and the config says that they are one "
        "(to load them as two, give a config with tie_word_embeddings False)",
        "  missing: model.norm.weight",
        "  wrong dtype: model.layers.0.self_attn.q_norm.weight is stored as I32, expected floats",
    ]


def test_a_head_of_its_own_is_loaded_as_the_message_says(saved: Path) -> None:
    rewrite(saved, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"] + 1}))
    config = dataclasses.replace(model().config, tie_word_embeddings=False)
    m = from_pretrained(saved, config=config)
    assert np.array_equal(m.lm_head.weight.data, m.model.embed_tokens.weight.data + 1)


def test_a_head_of_another_shape(saved: Path) -> None:
    rewrite(saved, lambda t: t.update({"lm_head.weight": np.zeros((3, 16), np.float32)}))
    with pytest.raises(CheckpointError, match="not tied: lm_head"):
        from_pretrained(saved)


@pytest.mark.parametrize(
    "fields",
    [
        {"hidden_size": 10**9, "head_dim": 10**9},
        {"vocab_size": 10**12},
        {"intermediate_size": 10**12},
        {"num_hidden_layers": 10**12},
        {"num_attention_heads": 10**12, "num_key_value_heads": 10**12},
    ],
)
def test_a_config_far_larger_than_its_weights_costs_nothing(saved: Path, fields: dict[str, int]) -> None:
    edit_config(saved, **fields)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=r"do not fit the config:\n  (wrong shape|missing): model\."):
        from_pretrained(saved)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 << 20


def test_a_number_of_experts_far_larger_than_its_weights(tmp_path: Path) -> None:
    save_pretrained(model(use_moe=True), tmp_path / "m")
    edit_config(tmp_path / "m", num_experts=10**12)
    with pytest.raises(CheckpointError, match=r"missing: model\.layers\.0\.mlp\.experts\.7\..*(.|\n)*  and more$"):
        from_pretrained(tmp_path / "m")


@pytest.mark.parametrize(
    "name",
    ["model.rotary_emb.inv_freq", "model.layers.0.self_attn.rotary_emb.inv_freq", "freqs_cos", "model.freqs_sin"],
)
def test_tables_of_positions_in_older_files_are_ignored(saved: Path, name: str) -> None:
    rewrite(saved, lambda t: t.update({name: np.zeros(3, np.float32)}))
    assert same_weights(from_pretrained(saved), model())


@pytest.mark.parametrize("name", ["model.inv_freq", "freqs_cos.weight", "rotary_emb.inv_freq.bias"])
def test_other_names_like_theirs_are_not(saved: Path, name: str) -> None:
    rewrite(saved, lambda t: t.update({name: np.zeros(3, np.float32)}))
    with pytest.raises(CheckpointError, match=f"unexpected: {name}"):
        from_pretrained(saved)


@pytest.mark.parametrize("part", [0.01, 0.5, 0.999])
def test_weights_cut_short(saved: Path, part: float) -> None:
    weights = saved / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(DamagedFileError, match=r"model\.safetensors is cut short or is not a safetensors file"):
        from_pretrained(saved)


def test_a_file_cut_short_after_it_was_opened(saved: Path) -> None:
    weights = saved / "model.safetensors"
    tensors = TensorFile(weights).tensors
    weights.write_bytes(weights.read_bytes()[:2000])
    with pytest.raises(DamagedFileError, match=r"model\.safetensors was replaced or changed while it was read"):
        tensors["model.norm.weight"].read()


def header(fields: dict[str, Any], data: bytes = b"") -> bytes:
    text = json.dumps(fields).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", r"is empty \(0 bytes\)"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "is a Git LFS pointer"),
        (b"PK\x03\x04" + bytes(99), "is not a safetensors file"),
        (b"\xff" * 99, "is not a safetensors file"),
        (
            header({"w": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}, bytes(12)),
            "is not a safetensors file",
        ),
        (header({"w": {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}}, bytes(8)), "is not a safetensors file"),
        (header({"w": {"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}}, bytes(8)), "w is stored as F8_E4M3"),
    ],
)
def test_weights_that_are_none(saved: Path, contents: bytes, message: str) -> None:
    (saved / "model.safetensors").write_bytes(contents)
    with pytest.raises(CheckpointError, match=rf"model\.safetensors.* {message}"):
        from_pretrained(saved)


def test_missing_folders_and_files(saved: Path) -> None:
    with pytest.raises(
        FileNotFoundError,
        match=r"^jingyaogong/minimind: there is no such model folder or file \(nothing is downloaded\)$",
    ):
        from_pretrained("jingyaogong/minimind")
    for name in ("config.json", "model.safetensors"):
        with pytest.raises(CheckpointError, match="is a file, expected the folder that holds it"):
            from_pretrained(saved / name)
    (saved / "model.safetensors").rename(saved / "m")
    with pytest.raises(FileNotFoundError, match=r"no model\.safetensors in this folder, which holds config\.json, m$"):
        from_pretrained(saved)
    (saved / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"no config\.json and no model\.safetensors in .* holds m$"):
        from_pretrained(saved)


def test_the_folder_of_a_training_run_stands_for_its_model(saved: Path) -> None:
    assert saved.name == "model"
    CharTokenizer("ab").save(saved)
    ids = np.array([[1, 2]])
    assert np.array_equal(from_pretrained(saved.parent)(ids), from_pretrained(saved)(ids))
    assert load_tokenizer(saved.parent).encode("ab") == [3, 4]
    CharTokenizer("xyz").save(saved.parent)  # a folder's own file goes before
    assert load_tokenizer(saved.parent).encode("xyz") == [3, 4, 5]
    (saved.parent / "metrics.jsonl").touch()  # unless a run has begun there since
    assert load_tokenizer(saved.parent).encode("ab") == [3, 4]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ('{"model_type": "llama"}', "model_type 'llama' is not supported"),
        ('{"model_type": "qwen3", "sliding_window": 4, "use_sliding_window": true}', "use_sliding_window = True"),
        ('{"hidden_size": "64"}', "hidden_size must be an integer"),
        ('{"layer_types": 5}', "layer_types = 5 are not implemented"),
    ],
)
def test_a_bad_config_is_named(saved: Path, text: str, message: str) -> None:
    (saved / "config.json").write_text(text, "utf-8")
    with pytest.raises(CheckpointError, match=rf"config\.json.*{message}"):
        from_pretrained(saved)


@pytest.mark.parametrize("dtype", ["bfloat16", np.int32, "nonsense", complex])
def test_dtypes_that_cannot_compute(saved: Path, dtype: Any) -> None:
    with pytest.raises(ValueError, match="dtype must be float32, float16 or float64"):
        from_pretrained(saved, dtype=dtype)


@pytest.mark.parametrize("dtype", ["int8", np.float64, "nonsense", object()])
def test_dtypes_that_cannot_be_stored(tmp_path: Path, dtype: Any) -> None:
    with pytest.raises(ValueError, match="dtype must be one of float32, float16, bfloat16"):
        save_pretrained(model(), tmp_path / "m", dtype)


def test_saving_where_one_cannot(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious", "utf-8")
    with pytest.raises(FileExistsError, match=re.escape(f"cannot write {tmp_path / 'file'}: there is a file of that")):
        save_pretrained(model(), tmp_path / "file")
    with pytest.raises(OSError, match=r"cannot write .*/file/m: "):
        save_pretrained(model(), tmp_path / "file" / "m")
    assert (tmp_path / "file").read_text("utf-8") == "precious"


def test_a_failed_save_leaves_the_older_model(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise safetensors.SafetensorError("No space left on device")

    monkeypatch.setattr(safetensors, "serialize_file", fail)
    with pytest.raises(OSError, match=r"cannot write .*/model: No space left"):
        save_pretrained(model(seed=2), saved)
    assert same_weights(from_pretrained(saved), model())
    assert [path.name for path in saved.parent.iterdir()] == ["model"]


# -- transformers ------------------------------------------------------------------------------------------------

their_warnings = pytest.mark.filterwarnings("ignore::EncodingWarning")  # transformers opens files without an encoding


@their_warnings
@each_model
def test_transformers_computes_the_same(tmp_path: Path, rng: np.random.Generator, fields: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    m = model(**fields)
    ids = rng.integers(0, m.config.vocab_size, (2, 40))
    save_pretrained(m, tmp_path / "ours")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert type(theirs).__name__ == ("Qwen3MoeForCausalLM" if m.config.use_moe else "Qwen3ForCausalLM")
    assert theirs.dtype == torch.float32
    with torch.no_grad():
        logits = theirs(torch.from_numpy(ids)).logits.numpy()
    np.testing.assert_allclose(m(ids), logits, rtol=0, atol=1e-5 * np.abs(logits).max())

    theirs.save_pretrained(tmp_path / "theirs")
    again = from_pretrained(tmp_path / "theirs")
    assert same_weights(again, m)
    assert again.config == m.config


@their_warnings
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_transformers_reads_the_same_rounded_weights(tmp_path: Path, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    m = model(use_moe=True)
    save_pretrained(m, tmp_path / "ours", dtype)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert theirs.dtype == getattr(torch, dtype)
    for name, array in m.state_dict().items():
        expected = torch.from_numpy(array).to(getattr(torch, dtype))
        if ".experts." not in name:  # transformers holds those fused
            assert torch.equal(theirs.state_dict()[name], expected), name
    theirs.save_pretrained(tmp_path / "theirs")
    assert same_weights(from_pretrained(tmp_path / "theirs"), from_pretrained(tmp_path / "ours"))
