"""Folders and files of another kind: each is refused in one line, which says what it is and what to take instead."""

import gzip
import io
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import model_of

pytest.importorskip("safetensors")

import safetensors.numpy

from numpy_minimind import from_pretrained, load_tokenizer, save_pretrained
from numpy_minimind.checkpoint import CheckpointError
from numpy_minimind.cli import main
from numpy_minimind.text import CharTokenizer
from numpy_minimind.training.run_folder import RunFolder

ONE = {"model_type": "qwen3"}


def refused(path: Path, load: Callable[[Path], Any] = from_pretrained) -> str:
    """The error, which is one line and names the path."""
    with pytest.raises((CheckpointError, FileNotFoundError)) as caught:
        load(path)
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    return message


def put(folder: Path, files: dict[str, Any]) -> Path:
    for name, contents in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        data = contents if isinstance(contents, bytes) else json.dumps(contents).encode()
        (folder / name).write_bytes(data)
    return folder


# -- folders -----------------------------------------------------------------------------------------------------

ADAPTER = {"base_model_name_or_path": "jingyaogong/MiniMind-3", "peft_type": "LORA"}
TOKENIZER: dict[str, Any] = {"tokenizer.json": {}, "tokenizer_config.json": {}}
FOLDERS: dict[str, tuple[dict[str, Any], str]] = {
    "adapter": (
        {"adapter_config.json": ADAPTER, "adapter_model.safetensors": b""},
        r"holds an adapter for jingyaogong/MiniMind-3 \(LoRA .* merge_and_unload\(\) of PEFT",
    ),
    "adapter with a tokenizer": ({"adapter_config.json": [], **TOKENIZER}, r"holds an adapter \(LoRA"),
    "adapter with a config": ({"adapter_config.json": {}, "config.json": {}}, r"holds an adapter \(LoRA"),
    "gguf": ({"model-q4_k_m.gguf": b"GGUF"}, r"holds model-q4_k_m\.gguf, a file of llama\.cpp: take the folder of the"),
    "gguf with a config": ({"m.gguf": b"GGUF", "config.json": {}, **TOKENIZER}, r"a file of llama\.cpp"),
    "onnx": ({"model.onnx": b"", "config.json": {}}, r"holds model\.onnx, a program of ONNX"),
    "onnx, as optimum writes it": ({"onnx/model.onnx": b"", "config.json": {}}, r"onnx/model\.onnx, a program of ONNX"),
    "tensorflow": ({"tf_model.h5": b"", "config.json": {}}, r"holds tf_model\.h5, a model of TensorFlow"),
    "flax": ({"flax_model.msgpack": b"", "config.json": {}}, "weights of Flax: have transformers write them as model"),
    "openvino": ({"openvino_model.xml": b"", "config.json": {}}, "OpenVINO"),
    "mlc": ({"mlc-chat-config.json": {}, "params_shard_0.bin": b""}, "compiled by MLC"),
    "diffusers": ({"model_index.json": {}, "unet/config.json": {}}, "a pipeline of diffusers"),
    "a download that was broken off": ({"config.json": {}, "model.safetensors.part": b""}, "download is not complete"),
    "deepspeed": ({"zero_to_fp32.py": b"", "global_step1/a.pt": b""}, "its zero_to_fp32.py makes one file of them"),
    "torch.distributed": ({".metadata": b"", "__0_0.distcp": b""}, "torch.distributed.checkpoint makes one file"),
    "an archive": ({"minimind-3.tar.gz": b""}, r"holds minimind-3\.tar\.gz, a packed archive: unpack it"),
    "a data set": ({"sft_512.jsonl": {}, "README.md": b""}, r"holds sft_512\.jsonl: it is a data set and no model"),
    "the source code": (
        {"model/model_minimind.py": b"", "dataset/a.py": b""},
        "source code: its weights lie elsewhere",
    ),
    "a tokenizer": (TOKENIZER, "holds a tokenizer and no model"),
    "one file of another name": ({"last.ckpt": b""}, r"holds last\.ckpt: give that file itself"),
    "what a trainer keeps beside a model": ({"optimizer.pt": b""}, r"in this folder, which holds optimizer\.pt$"),
    "trainer": (
        {f"checkpoint-{n}/config.json": {} for n in (500, 1000, 50)},
        r"is not the folder of a model, but holds one: give .*checkpoint-1000$",
    ),
    "nothing": ({"a/b": b""}, r"no config\.json and no model\.safetensors in this folder, which holds a$"),
}


@pytest.mark.parametrize(("files", "said"), FOLDERS.values(), ids=FOLDERS.keys())
def test_folders(tmp_path: Path, files: dict[str, Any], said: str) -> None:
    folder = put(tmp_path / "theirs", files)
    if "config.json" in files:
        (folder / "config.json").write_text(json.dumps(ONE), "utf-8")
    assert re.search(said, refused(folder))


@pytest.mark.parametrize("given", ["", "snapshots", "blobs", "..", "../.."])
def test_the_cache_of_downloads(tmp_path: Path, given: str) -> None:
    """As huggingface_hub lays it out: the snapshot that refs/main names is to be taken."""
    save_pretrained(model_of(np.float32), tmp_path / "m", tokenizer=CharTokenizer("ab"))
    root = tmp_path / "huggingface" / "hub" / "models--jingyaogong--minimind-3"
    put(
        root,
        {"refs/main": b"b2", "blobs/sha": b"", "snapshots/c3/config.json": {}, ".no_exist/b2/added_tokens.json": {}},
    )
    (tmp_path / "m").rename(root / "snapshots" / "b2")
    for load in (from_pretrained, load_tokenizer):
        message = refused((root / given).resolve(), load)
        assert "Hugging Face's downloads: take " in message
        assert load(Path(message.rpartition("take ")[2]))
    assert from_pretrained(root / "snapshots" / "b2")


def test_an_empty_cache_and_one_of_several_models(tmp_path: Path) -> None:
    (tmp_path / "models--a--b" / "snapshots").mkdir(parents=True)
    assert "its snapshots/ is empty, download the model again" in refused(tmp_path / "models--a--b")
    put(tmp_path, {"models--a--b/snapshots/1/config.json": {}, "models--c--d/snapshots/2/config.json": {}})
    assert re.search(r"take .*models--a--b/snapshots/1, or of another of its 2 models$", refused(tmp_path))


def test_a_run_that_has_no_model(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.create(overwrite=False)
    assert "is a training run that has saved no model yet" in refused(run.path)
    run.resume.touch()
    assert f"train --resume --out {run.path}" in refused(run.path)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"quantization": {"group_size": 64, "bits": 4}}, "quantization = MLX, 4 bits: quantised weights"),
        (
            {"quantization": {"group_size": 64, "bits": 4}, "quantization_config": {"group_size": 64, "bits": 4}},
            "= MLX, 4 bits",
        ),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantization_config = gptq, 4 bits: quantised"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "= awq, 4 bits"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}, "= bitsandbytes, 8 bits"),
        ({"quantization_config": {"quant_method": "fp8"}}, "= fp8: quantised .* float32, float16 or bfloat16"),
        (
            {"model_type": "llama"},
            "model_type 'llama' is not supported.* another architecture; transformers may know it",
        ),
        ({"model_type": "qwen2"}, "model_type 'qwen2' is not supported"),
        (
            {"model_type": "qwen3_vl", "text_config": {}, "vision_config": {}},
            "another architecture, of pictures and text",
        ),
        (
            {"model_type": None, "architectures": ["LlamaForCausalLM"]},
            "architecture 'LlamaForCausalLM' is not supported",
        ),
    ],
)
def test_configs_of_another_kind(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    put(tmp_path / "theirs", {"config.json": {**ONE, **fields}, "model.safetensors": b""})
    assert re.search(rf"config\.json: .*{said}", refused(tmp_path / "theirs"))


def test_quantised_weights_of_mlx_without_its_config(tmp_path: Path) -> None:
    save_pretrained(model_of(np.float32), tmp_path / "m")
    tensors = safetensors.numpy.load_file(tmp_path / "m" / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj."
    tensors |= {name + "weight": np.zeros((12, 1), np.uint32), name + "scales": np.zeros((12, 1), np.float16)}
    safetensors.numpy.save_file(tensors, tmp_path / "m" / "model.safetensors")
    assert "holds quantised weights (model.layers.0.self_attn.q_proj.scales)" in refused(tmp_path / "m")


def test_pointers_of_git_in_place_of_files(tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    for name in ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "m.pth"):
        folder = put(tmp_path / name, {"config.json": ONE, name: pointer})
        assert "is a Git LFS pointer, not the file itself: fetch it with 'git lfs pull'" in refused(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        folder = put(tmp_path / f"with {name}", {"tokenizer.json": {}, name: pointer})
        assert f"{name} is a Git LFS pointer" in refused(folder, load_tokenizer)


def test_tokenizers_of_another_kind(tmp_path: Path) -> None:
    for name in ("vocab.json", "tokenizer.model"):
        folder = put(tmp_path / name, {name: b"", "merges.txt": b"", "tokenizer_config.json": {}})
        message = refused(folder, load_tokenizer)
        assert f"holds {name}, a tokenizer in an older form: have transformers write tokenizer.json" in message


# -- files -------------------------------------------------------------------------------------------------------


def packed(**files: bytes) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in files.items():
            file.writestr(name, data)
    return held.getvalue()


FILES: dict[str, tuple[bytes, str]] = {
    "m-q4.gguf": (b"GGUF\x03\0\0\0" + bytes(99), r"is a file of llama\.cpp: take the folder of the model"),
    "m.bin": (b"GGUF\x03\0\0\0" + bytes(99), r"is a file of llama\.cpp"),
    "m.onnx": (b"\x08\x07\x12\x07pytorch", "is a program of ONNX"),
    "tf_model.h5": (b"\x89HDF\r\n\x1a\n" + bytes(99), "is a model of TensorFlow"),
    "flax_model.msgpack": (b"\x81\xa5model", "holds weights of Flax"),
    "minimind-3.zip": (
        packed(config=b"{}", weights=bytes(9999)),
        "is a zip file without data.pkl.* unpack that and give it",
    ),
    "minimind-3.tar.gz": (gzip.compress(bytes(99)), "is a packed archive: unpack it"),
    "data.jsonl": (b'{"text": "hello"}\n{"text": "you"}\n', "is a text or a data set, and no model: .* --corpus"),
    "data.json": (b'[{"text": "hello"}]', "is a text or a data set"),
    "data.txt": ("从前有一只狐狸。".encode() * 99, "is a text or a data set"),
    "data.parquet": (b"PAR1" + bytes(99), "is a text or a data set"),
    "m.npy": (b"\x93NUMPY\x01\0" + bytes(99), "is an array of NumPy"),
    "m.pth": (b"<html><title>404</title>", "is a web page"),
    "full_sft_768.pth": (
        safetensors.numpy.save({"w": np.zeros(2)}),
        "is a safetensors file: call it model.safetensors",
    ),
    "model.safetensors": (safetensors.numpy.save({"w": np.zeros(2)}), "is a file, expected the folder that holds it"),
}


@pytest.mark.parametrize(
    ("name", "contents", "said"), [(name, *rest) for name, rest in FILES.items()], ids=FILES.keys()
)
def test_files(tmp_path: Path, name: str, contents: bytes, said: str) -> None:
    put(tmp_path, {name: contents})
    assert re.search(said, refused(tmp_path / name))


def test_what_is_no_safetensors_file_is_named_too(tmp_path: Path) -> None:
    folder = put(tmp_path / "m", {"config.json": ONE, "model.safetensors": b"GGUF" + bytes(99)})
    with pytest.raises(CheckpointError, match=r"model\.safetensors is a file of llama\.cpp"):
        from_pretrained(folder)


@pytest.mark.parametrize("size", [0x3C21, 0x7B, 0x5B, 0x8B1F, 0x4B50])
def test_the_length_of_a_header_is_not_taken_for_the_beginning_of_another_file(tmp_path: Path, size: int) -> None:
    """It may spell ``{``, ``<!`` or what gzip begins with."""
    m = model_of(np.float32)
    save_pretrained(m, tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    size += -(-max(0, length - size) // 0x10000) * 0x10000
    file.write_bytes(size.to_bytes(8, "little") + data[8 : 8 + length].ljust(size) + data[8 + length :])
    assert np.array_equal(from_pretrained(tmp_path / "m")([[1, 2]]), m([[1, 2]]))


def test_an_adapter_s_own_file(tmp_path: Path) -> None:
    put(tmp_path / "theirs", {"adapter_config.json": ADAPTER, "adapter_model.safetensors": b""})
    with pytest.raises(FileNotFoundError, match="this folder holds an adapter for jingyaogong"):
        from_pretrained(tmp_path / "theirs" / "adapter_model.safetensors")


def test_a_training_state_of_lightning(tmp_path: Path) -> None:
    """Its weights are found in it, as long as it holds nothing but numbers and words."""
    torch = pytest.importorskip("torch")
    m = model_of(np.float32)
    state = {f"model.{name}": torch.from_numpy(array) for name, array in m.state_dict().items()}
    held = {"epoch": 3, "pytorch-lightning_version": "2.5.0", "state_dict": state, "hyper_parameters": {"lr": 1e-3}}
    torch.save(held, tmp_path / "last.ckpt")
    assert np.array_equal(from_pretrained(tmp_path / "last.ckpt", config=m.config)([[1, 2]]), m([[1, 2]]))
    torch.save({**held, "hyper_parameters": {"path": Path("a")}}, tmp_path / "last.ckpt")
    assert "save the weights alone: torch.save(model.state_dict(), FILE)" in refused(tmp_path / "last.ckpt")


@pytest.mark.parametrize("command", ["generate", "chat", "params", "eval", "train"])
def test_every_command_says_so_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    root = put(tmp_path / "models--a--b", {"refs/main": b"1", "snapshots/1/config.json": ONE})
    flags = {"generate": ["--prompt", "a"], "eval": ["--corpus", "toy"], "train": ["--out", str(tmp_path / "run")]}
    given = ["--init-from", str(root)] if command == "train" else [str(root)]
    assert main([command, *given, *flags.get(command, [])]) == 2
    assert capsys.readouterr().err == (
        f"error: {root}: this folder is a cache of Hugging Face's downloads: take {root / 'snapshots' / '1'}\n"
    )
