"""PyTorch's files without PyTorch: what torch.save writes comes back bit for bit, and a model loads from it."""

import json
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numpy_minimind import MiniMindForCausalLM, from_pretrained
from numpy_minimind.checkpoint import CheckpointError, read_pth
from numpy_minimind.checkpoint.tensors import bfloat16_bits, widen
from tests.checkpoint.torch_files import (
    ORDERED_DICT,
    members_of,
    number,
    pickle_of,
    storage,
    tensor,
    text,
    tuple_of,
    write_pth,
    zip_of,
)
from tests.helpers import model_of


def arrays_of(model: MiniMindForCausalLM, dtype: str) -> dict[str, np.ndarray]:
    """A state dict as MiniMind saves it: rounded, the tied head under its own name too."""
    state = dict(model.state_dict())
    if model.config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    return {name: bfloat16_bits(a) if dtype == "bfloat16" else a.astype(dtype) for name, a in state.items()}


def written(path: Path, model: MiniMindForCausalLM, dtype: str = "float16", **options: Any) -> Path:
    return write_pth(path, arrays_of(model, dtype), **options)


# -- without torch -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
@pytest.mark.parametrize("byteorder", ["little", "big", None])
def test_tensors_come_back_bit_for_bit(
    tmp_path: Path, rng: np.random.Generator, dtype: str, byteorder: str | None
) -> None:
    arrays = {"w": rng.normal(size=(3, 5)), "empty": np.zeros((2, 0, 3)), "point": np.array(1.5)}
    bits = {name: bfloat16_bits(a) if dtype == "bfloat16" else a.astype(dtype) for name, a in arrays.items()}
    tensors = read_pth(write_pth(tmp_path / "m.pth", bits, byteorder))
    assert list(tensors) == list(arrays)
    for name, stored in bits.items():
        array = tensors[name].read()
        expected = widen(stored) if dtype == "bfloat16" else stored
        assert array.dtype == ("float32" if dtype == "bfloat16" else dtype)
        assert array.dtype.isnative
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert array.shape == tensors[name].shape == arrays[name].shape
        assert np.array_equal(array, expected)


def test_the_format_byte_by_byte(tmp_path: Path) -> None:
    """Half a page of hexadecimal, so that writer and reader of these tests cannot be wrong in the same way."""
    program = (
        "8002 63 636f6c6c656374696f6e730a 4f726465726564446963740a 7100 29 52 7101 28"  # OrderedDict()
        "58 01000000 77 7102 63 746f7263682e5f7574696c730a 5f72656275696c645f74656e736f725f76320a 7103 28"
        "28 58 07000000 73746f72616765 7104 63 746f7263680a 48616c6653746f726167650a 7105"  # 'storage' HalfStorage
        "58 01000000 30 7106 58 06000000 637564613a30 7107 4b06 74 7108 51"  # '0' 'cuda:0' 6
        "4b00 4b02 4b03 86 7109 4b03 4b01 86 710a 89 6800 29 52 710b 74 710c 52 710d 75 2e"  # 0 (2,3) (3,1) False
    )
    numbers = bytes.fromhex("003c 0040 0042 00bc 0000 007c")
    path = tmp_path / "m.pth"
    path.write_bytes(zip_of(members_of(bytes.fromhex(program), {"0": numbers}, folder="full_sft_768")))
    assert np.array_equal(read_pth(path)["w"].read(), [[1, 2, 3], [-1, 0, np.inf]])


def test_views_of_one_storage(tmp_path: Path) -> None:
    """Tied, sliced and transposed tensors, and numbers that only one of them uses."""
    data = np.arange(24, dtype=np.float32)
    place = storage(b"FloatStorage", "0", 24)
    pickle = pickle_of(
        {
            "whole": tensor(place, 0, [4, 6], [6, 1]),
            "tied": tensor(place, 0, [4, 6], [6, 1]),
            "transposed": tensor(place, 0, [6, 4], [1, 6]),
            "rows": tensor(place, 6, [2, 6], [6, 1]),
            "every other": tensor(place, 1, [4, 3], [6, 2]),
            "three": tensor(place, 2, [2, 3, 2], [12, 2, 1]),
            "diagonal": tensor(place, 0, [4], [7]),
            "last": tensor(place, 23, [], []),
        }
    )
    (tmp_path / "m.pth").write_bytes(zip_of(members_of(pickle, {"0": data.tobytes()})))
    tensors = read_pth(tmp_path / "m.pth")
    table = data.reshape(4, 6)
    expected = {
        "whole": table,
        "tied": table,
        "transposed": table.T,
        "rows": table[1:3],
        "every other": table[:, 1::2],
        "three": np.stack([np.stack([row[2:4], row[4:6], np.r_[row[6:8]]]) for row in (np.r_[0:12], np.r_[12:24])]),
        "diagonal": table.diagonal(),
        "last": np.float32(23),
    }
    for name, array in expected.items():
        assert np.array_equal(tensors[name].read(), array), name
        assert tensors[name].read().flags.c_contiguous, name


def test_parts_stay_in_the_file(tmp_path: Path) -> None:
    data = np.arange(60, dtype=np.float16).reshape(3, 4, 5)
    stored = read_pth(write_pth(tmp_path / "m.pth", {"w": data}))["w"]
    for index in (1, -1, (2, slice(1, 3)), (0, slice(None, 2)), slice(1, None), (slice(0, 3, 2), 1), (1, 2, 3)):
        assert np.array_equal(stored[index].read(), data[index]), index
        assert stored[index].shape == data[index].shape, index
    assert np.array_equal(stored[1:][0][2:, 1::2].read(), data[1:][0][2:, 1::2])
    assert np.array_equal(np.asarray(stored, dtype=np.float64), data)
    with pytest.raises(IndexError):
        stored[3]


def test_a_state_dict_inside_a_file_for_resuming(tmp_path: Path) -> None:
    """What MiniMind's lm_checkpoint writes: model, optimizer, counts."""
    place = storage(b"FloatStorage", "0", 2)
    state = ORDERED_DICT + b"(" + text("w") + tensor(place, 0, [2], [1]) + b"u"
    moments = b"}(" + number(0) + b"}(" + text("exp_avg") + tensor(place, 0, [2], [1]) + b"uu"
    groups = b"](}(" + text("lr") + b"G?PbM\xd2\xf1\xa9\xfc" + text("betas") + tuple_of([number(0), b"N"]) + b"ue"
    optimizer = b"}(" + text("state") + moments + text("param_groups") + groups + b"u"
    pickle = pickle_of({"model": state, "optimizer": optimizer, "epoch": number(1), "wandb_id": b"N"})
    (tmp_path / "m.pth").write_bytes(zip_of(members_of(pickle, {"0": np.float32([1, 2]).tobytes()})))
    tensors = read_pth(tmp_path / "m.pth")
    assert list(tensors) == ["w"]
    assert np.array_equal(tensors["w"].read(), [1, 2])


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ({}, "holds a dict of 0, expected a state dict"),
        ({"epoch": number(3), "lr": b"N"}, r"holds epoch \(a int\), lr \(a NoneType\), expected a state dict"),
        ({"model": number(1)}, r"holds model \(a int\), expected a state dict"),
        ({"model": b"}(" + text("a") + b"]u"}, r"holds a \(a list of 0\), expected a state dict"),
        (
            {"model": b"}(" + number(1) + tensor(storage(b"HalfStorage", "0", 1), 0, [1], [1]) + b"u"},
            "holds numbers as names",
        ),
    ],
)
def test_other_contents_are_named(tmp_path: Path, items: dict[str, bytes], message: str) -> None:
    (tmp_path / "m.pth").write_bytes(zip_of(members_of(pickle_of(items), {"0": bytes(2)})))
    with pytest.raises(CheckpointError, match=rf"m\.pth {message}"):
        read_pth(tmp_path / "m.pth")


# -- models ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"use_moe": True}, {"tie_word_embeddings": False}])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_model_from_a_pth(tmp_path: Path, fields: dict[str, Any], dtype: str) -> None:
    m = model_of(np.float32, **fields)
    path = written(tmp_path / "full_sft_14.pth", m, dtype)
    again = from_pretrained(path, config=m.config)
    assert again.config == m.config
    expected = arrays_of(m, dtype)
    for name, parameter in again.named_parameters():
        rounded = widen(expected[name]) if dtype == "bfloat16" else expected[name].astype(np.float32)
        assert parameter.data.dtype == np.float32, name
        assert np.array_equal(parameter.data, rounded), name


def test_the_config_beside_a_pth_is_read(tmp_path: Path) -> None:
    m = model_of(np.float32)
    path = written(tmp_path / "m.pth", m, "float32")
    (tmp_path / "config.json").write_text(json.dumps(m.config.to_dict() | {"model_type": "minimind"}), "utf-8")
    assert from_pretrained(path).config == m.config
    ids = np.arange(6).reshape(1, 6)
    assert np.array_equal(from_pretrained(path)(ids), m(ids))


def test_a_folder_with_one_pth_is_a_model_and_with_two_none(tmp_path: Path) -> None:
    m = model_of(np.float32)
    path = written(tmp_path / "full_sft_768.pth", m, "float32")
    (tmp_path / "config.json").write_text(json.dumps(m.config.to_dict() | {"model_type": "minimind"}), "utf-8")
    ids = np.arange(6).reshape(1, 6)
    assert np.array_equal(from_pretrained(tmp_path)(ids), m(ids))
    written(tmp_path / "pretrain_768.pth", m, "float32")
    with pytest.raises(CheckpointError, match=r"holds 2 models, give one of them: .*full_sft_768\.pth, .*pretrain_768"):
        from_pretrained(tmp_path)
    assert np.array_equal(from_pretrained(path)(ids), m(ids))


@pytest.mark.parametrize("fields", [{}, {"use_moe": True}])
def test_without_a_config_the_error_says_what_to_give(tmp_path: Path, fields: dict[str, Any]) -> None:
    m = model_of(np.float32, **fields)
    path = written(tmp_path / "m.pth", m)
    with pytest.raises(CheckpointError, match=r"m\.pth has no config\.json beside it") as caught:
        from_pretrained(path)
    told = str(caught.value).split("\n")[1].strip()  # a line of its own, to be copied
    given = json.loads(told)
    assert given.pop("model_type") == "minimind"
    assert all(getattr(m.config, name) == value for name, value in given.items())
    (tmp_path / "config.json").write_text(told, "utf-8")
    assert from_pretrained(path).config.hidden_size == m.config.hidden_size
    names = {"hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads", "num_key_value_heads", "head_dim"}
    assert given.keys() == names | (
        {"use_moe", "num_experts", "moe_intermediate_size"} if fields else {"intermediate_size"}
    )
    assert "rope_theta" in str(caught.value)


def test_a_pth_that_does_not_fit_the_config(tmp_path: Path) -> None:
    m = model_of(np.float32)
    arrays = arrays_of(m, "float16")
    arrays["model.norm.wieght"] = arrays.pop("model.norm.weight")
    with pytest.raises(CheckpointError) as caught:
        from_pretrained(write_pth(tmp_path / "m.pth", arrays), config=m.config)
    assert "missing: model.norm.weight\n  unexpected: model.norm.wieght" in str(caught.value)


def test_a_pth_needs_numpy_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("safetensors", "torch", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    m = model_of(np.float32)
    assert from_pretrained(written(tmp_path / "m.pth", m), config=m.config).config == m.config


# -- with torch --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
def test_what_torch_saves(tmp_path: Path, dtype: str) -> None:
    """A module's state_dict() with its _metadata, tied; transposed, sliced and expandable tensors; parameters."""
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype)
    module = torch.nn.ModuleDict({"embed": torch.nn.Embedding(7, 5), "head": torch.nn.Linear(5, 7, bias=False)})
    module["head"].weight = module["embed"].weight
    state = module.to(kind).state_dict()
    assert state._metadata
    x = torch.randn(40, dtype=torch.float32).to(kind)
    extra = {
        "transposed": x[:12].reshape(3, 4).T,
        "sliced": x[3:33].reshape(5, 6)[1:4, 2:5],
        "strided": x[::3],
        "parameter": torch.nn.Parameter(x[:4].clone()),
        "none": x[:0],
        "point": x[5],
    }
    for held in (state, OrderedDict(extra), {**state, **extra}, {k: v.half().cpu() for k, v in state.items()}):
        torch.save(held, tmp_path / "m.pth")
        tensors = read_pth(tmp_path / "m.pth")
        assert list(tensors) == list(held)
        for name, value in held.items():
            expected = value.detach().to(torch.float32).numpy()
            assert np.array_equal(np.asarray(tensors[name], np.float32), expected), name


def test_torch_files_of_the_other_byteorder(tmp_path: Path) -> None:
    """torch.load turns the bytes of such a file; so do we."""
    torch = pytest.importorskip("torch")
    path = write_pth(tmp_path / "m.pth", {"w": np.float32([1.5, -2e-7])}, "big")
    theirs = torch.load(path, weights_only=True)["w"].numpy()
    assert np.array_equal(read_pth(path)["w"].read(), theirs)


def test_our_hand_written_files_are_what_torch_reads(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    arrays = arrays_of(model_of(np.float32), "float16")
    theirs = torch.load(write_pth(tmp_path / "m.pth", arrays), weights_only=True)
    assert all(np.array_equal(theirs[name].numpy(), array) for name, array in arrays.items())


def test_a_whole_resume_file_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(3, 2, bias=False)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    module(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    half = {name: value.half().cpu() for name, value in module.state_dict().items()}
    held = {
        "model": half,
        "optimizer": optimizer.state_dict(),
        "epoch": 0,
        "step": 1,
        "world_size": 1,
        "wandb_id": None,
    }
    torch.save(held, tmp_path / "m_resume.pth")
    tensors = read_pth(tmp_path / "m_resume.pth")
    assert list(tensors) == ["weight"]
    assert np.array_equal(tensors["weight"].read(), half["weight"].numpy())


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint8", "bool"])
def test_other_dtypes_of_torch_are_refused_by_name(tmp_path: Path, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.zeros(2, dtype=getattr(torch, dtype))}, tmp_path / "m.pth")
    kind = {"float64": "Double", "int64": "Long", "uint8": "Byte", "bool": "Bool"}[dtype]
    with pytest.raises(CheckpointError, match=rf"m\.pth: its pickle asks for 'torch\.{kind}Storage', which is none of"):
        read_pth(tmp_path / "m.pth")


def test_the_old_format_of_torch_is_refused_by_name(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.zeros(2)}, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    with pytest.raises(
        CheckpointError, match=r"old\.pth is in the old format of PyTorch before 1\.6.*weights_only=True"
    ):
        read_pth(tmp_path / "old.pth")
    torch.save(torch.load(tmp_path / "old.pth", weights_only=True), tmp_path / "new.pth")  # as the message says
    assert np.array_equal(read_pth(tmp_path / "new.pth")["w"].read(), [0, 0])


def test_a_file_of_torch_without_checksums_is_refused(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if not hasattr(torch.serialization, "set_crc32_options"):
        pytest.skip("this torch always writes them")
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"w": torch.arange(99.0)}, tmp_path / "m.pth")
    finally:
        torch.serialization.set_crc32_options(True)
    with pytest.raises(CheckpointError, match=r"m\.pth is damaged: .* \(or PyTorch was told, by set_crc32_options"):
        read_pth(tmp_path / "m.pth")


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_other_protocols_of_torch_are_refused(tmp_path: Path, protocol: int) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.zeros(2)}, tmp_path / "m.pth", pickle_protocol=protocol)
    with pytest.raises(CheckpointError, match=rf"is of protocol {protocol}, and torch\.save writes protocol 2"):
        read_pth(tmp_path / "m.pth")


def test_a_whole_module_is_refused(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save(torch.nn.Linear(2, 2), tmp_path / "m.pth")
    with pytest.raises(CheckpointError, match=r"asks for 'torch\.nn\.modules\.linear\.Linear'"):
        read_pth(tmp_path / "m.pth")
