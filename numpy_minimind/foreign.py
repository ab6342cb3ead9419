"""What a folder or a file is that holds no model for us, and what to take in its place: a line for each kind."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from numpy_minimind.files import METRICS, contents, file_not_found

ORIGINAL = "take the folder of the model from which it was made, with config.json and model.safetensors"
TEXT = "is a text or a data set, and no model: it may be given to train as --corpus"

# Patterns of names, and what a folder is that holds one of them: the first that fits.
FOLDERS = (
    (("*.gguf",), f"holds {{}}, a file of llama.cpp: {ORIGINAL}"),
    (("*.onnx", "onnx/*.onnx"), f"holds {{}}, a program of ONNX: {ORIGINAL}"),
    (("flax_model*.msgpack",), "holds {}, weights of Flax: have transformers write them as model.safetensors"),
    (("*.h5", "*.keras", "saved_model.pb", "*.tflite"), f"holds {{}}, a model of TensorFlow: {ORIGINAL}"),
    (("openvino_*.xml", "openvino/*.xml"), f"holds {{}}, a program of OpenVINO: {ORIGINAL}"),
    (("mlc-chat-config.json",), f"holds {{}}, of a model compiled by MLC: {ORIGINAL}"),
    (("*.engine", "*.plan"), f"holds {{}}, a program of TensorRT: {ORIGINAL}"),
    (("*.mlpackage", "*.mlmodelc"), f"holds {{}}, a program of Core ML: {ORIGINAL}"),
    (("model_index.json",), "holds {}, of a pipeline of diffusers, which makes no text"),
    (("*.incomplete", "*.part", "*.crdownload", "*.aria2"), "holds {}, whose download is not complete: go on with it"),
    (("zero_to_fp32.py",), "holds shards of DeepSpeed: its {} makes one file of them"),
    (("*.distcp", "*/*.distcp"), "holds {}, a shard: torch.distributed.checkpoint makes one file of all of them"),
    (("*.zip", "*.tar", "*.tar.gz", "*.tgz", "*.7z", "*.rar"), "holds {}, a packed archive: unpack it"),
    (("model_minimind.py", "model/model_minimind.py"), "holds {}, MiniMind's source code: its weights lie elsewhere"),
    (("*.jsonl", "*.parquet", "*.arrow", "dataset_dict.json"), "holds {}: it is a data set and no model"),
)  # fmt: skip

# How files begin, and what they are.
FILES = (
    ((b"GGUF", b"lmgg", b"tjgg"), f"is a file of llama.cpp: {ORIGINAL}"),
    ((b"\x89HDF",), f"is a model of TensorFlow (HDF5): {ORIGINAL}"),
    ((b"\x1f\x8b", b"7z\xbc\xaf", b"Rar!", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd"), "is a packed archive: unpack it"),
    ((b"\x93NUMPY",), "is an array of NumPy and no model"),
    ((b"<!", b"<h", b"<H", b"<?xml"), "is a web page, saved under the name of a model: download the file itself"),
    ((b"{", b"[", b"PAR1", b"ARROW1"), TEXT),
)
SUFFIXES = {
    ".gguf": FILES[0][1],
    ".h5": FILES[1][1],
    ".onnx": f"is a program of ONNX: {ORIGINAL}",
    ".tflite": f"is a model of TensorFlow: {ORIGINAL}",
    ".msgpack": "holds weights of Flax: have transformers write them as model.safetensors",
    **dict.fromkeys((".txt", ".md", ".csv", ".tsv", ".json", ".jsonl", ".parquet", ".arrow"), TEXT),
}
NO_WEIGHTS = ("optimizer", "scheduler")  # of a Trainer of transformers
OLDER_TOKENIZERS = ("vocab.json", "tokenizer.model", "spiece.model", "tekken.json")


def missing(folder: Path, *names: str) -> FileNotFoundError:
    """Return the error for files that a model's folder lacks: what it is instead, or else what it holds."""
    return _error(folder, names, folder_kind(folder))


def missing_tokenizer(folder: Path, name: str) -> FileNotFoundError:
    """Return the error for a folder that lacks a tokenizer."""
    older = next((other for other in OLDER_TOKENIZERS if (folder / other).exists()), None)
    command = "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
    kind = older and f"holds {older}, a tokenizer in an older form: have transformers write {name}, {command}"
    return _error(folder, [name], _downloads(folder) or kind)


def _error(folder: Path, names: Iterable[str], kind: str | None) -> FileNotFoundError:
    if kind is not None:
        return file_not_found(f"this folder {kind}", folder)
    return file_not_found(f"no {' and no '.join(names)} in this folder, which holds {contents(folder)}", folder)


# -- folders -----------------------------------------------------------------------------------------------------


def folder_kind(folder: Path) -> str | None:
    """Say what a folder is that is no model's, and what to take instead; None if that is not known."""
    kind = _downloads(folder) or _run(folder) or adapter_kind(folder)
    if kind:
        return kind
    for patterns, text in FOLDERS:
        found = sorted(path for pattern in patterns for path in folder.glob(pattern))
        if found:
            return text.format(found[0].relative_to(folder).as_posix())
    files = [path for path in folder.iterdir() if path.suffix in (".pt", ".ckpt") and path.stem not in NO_WEIGHTS]
    if len(files) == 1:
        return f"holds {files[0].name}: give that file itself"
    return None if (folder / "config.json").exists() else _without_config(folder)


def _without_config(folder: Path) -> str | None:
    inside = sorted((path.parent for path in folder.glob("*/config.json")), key=_numbers)
    if inside:
        return f"is not the folder of a model, but holds one: give {inside[-1]}"
    if (folder / "tokenizer.json").exists():
        return "holds a tokenizer and no model: config.json and the weights are missing"
    return None


def _numbers(path: Path) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", path.name)]  # checkpoint-1000 comes after checkpoint-500


def _downloads(folder: Path) -> str | None:
    """Recognise what huggingface_hub keeps: models--ORGANISATION--NAME with snapshots/ inside, and folders of such."""
    root = folder.parent if folder.name in ("snapshots", "blobs", "refs") else folder
    if (root / "snapshots").is_dir():
        return f"is a cache of Hugging Face's downloads: {_snapshot(root)}"
    for place in (folder, folder / "hub"):
        models = sorted(path for path in place.glob("models--*") if (path / "snapshots").is_dir())
        if models:
            return f"is the cache of Hugging Face's downloads: {_snapshot(models[0])}" + (
                f", or of another of its {len(models)} models" if len(models) > 1 else ""
            )
    return None


def _snapshot(root: Path) -> str:
    snapshots = sorted(
        (path for path in (root / "snapshots").iterdir() if path.is_dir()), key=lambda p: p.stat().st_mtime
    )
    main = root / "refs" / "main"
    named = main.read_text("utf-8", errors="replace").strip() if main.is_file() else ""
    current = [path for path in snapshots if path.name == named] or snapshots[-1:]
    return f"take {current[0]}" if current else "its snapshots/ is empty, download the model again"


def _run(folder: Path) -> str | None:
    if not (folder / METRICS).exists():
        return None
    if (folder / "resume.safetensors").exists():
        return f"is a training run whose model/ is not there: go on with it, train --resume --out {folder}"
    return "is a training run that has saved no model yet: it does so every --save-every steps, and when it is stopped"


def adapter_kind(folder: Path) -> str | None:
    """Recognise an adapter of PEFT, and say of which model."""
    file = folder / "adapter_config.json"
    if not file.exists():
        return None
    try:
        base = json.loads(file.read_text("utf-8")).get("base_model_name_or_path")
    except (AttributeError, ValueError):
        base = None
    of = f" for {base}" if isinstance(base, str) and base.isprintable() else ""
    return (
        f"holds an adapter{of} (LoRA or the like), small changes to a model's weights: merge it into its model, with "
        "merge_and_unload() of PEFT, and load what that saves"
    )


# -- files -------------------------------------------------------------------------------------------------------


def is_safetensors(first: bytes) -> bool:
    """Say whether a file begins as safetensors files do: with the length of a header in JSON, then the header."""
    return first[4:9] == b"\0\0\0\0{"


def file_kind(path: Path, first: bytes) -> str | None:
    """Say what a file is that holds no weights, by how it begins and what it is called; None if that is not known."""
    if is_safetensors(first) or first.startswith(b"PK\x03\x04"):
        return None
    for beginnings, text in FILES:
        if first.startswith(beginnings):
            return text
    return SUFFIXES.get(path.suffix.lower())
