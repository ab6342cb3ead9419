"""From text to ids and back: the tokenizer of a model folder, whichever it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np

from numpy_minimind.checkpoint.char_tokenizer import (
    SPECIAL_TOKENS,
    TOKENIZER,
    TOKENIZER_CONFIG,
    CharTokenizer,
    characters_of,
    check_ids,
)
from numpy_minimind.checkpoint.files import (
    CheckpointError,
    DamagedFileError,
    PathLike,
    file_not_found,
    model_folder,
    read_json,
)
from numpy_minimind.checkpoint.foreign import missing_tokenizer
from numpy_minimind.checkpoint.pretrained_tokenizer import ROLES, PretrainedTokenizer, content

__all__ = [
    "ROLES",
    "SPECIAL_TOKENS",
    "TOKENIZER",
    "TOKENIZER_CONFIG",
    "CharTokenizer",
    "PretrainedTokenizer",
    "Tokenizer",
    "check_ids",
    "load_tokenizer",
]

CHAT_TEMPLATE_FILE = "chat_template.jinja"
WEIGHTS = (".pth", ".pt", ".ckpt", ".bin", ".safetensors")  # beside a file of these a tokenizer may stand


class Tokenizer(Protocol):
    """What every tokenizer here offers."""

    vocab_size: int
    bos_token_id: int | None
    eos_token_id: int | None
    pad_token_id: int | None
    unk_token_id: int | None
    add_bos_token: bool  # a prompt is to begin with the bos token: for who writes prompts, encode never adds one

    def encode(self, text: str) -> list[int]: ...
    def encode_array(self, text: str) -> np.ndarray: ...
    def unknown(self, text: str) -> str: ...
    def decode(self, ids: Any, skip_special_tokens: bool = True) -> str: ...
    def save(self, folder: PathLike) -> None: ...


def load_tokenizer(path: PathLike) -> CharTokenizer | PretrainedTokenizer:
    """Load the tokenizer of a model folder or of a training run, the one beside a file of weights, or a tokenizer.json.

    Beside tokenizer.json may stand tokenizer_config.json and chat_template.jinja, whose template goes before that of
    the former. A file that `CharTokenizer.save` wrote needs NumPy alone, any other the package tokenizers.

    Raises
    ------
    FileNotFoundError
        When there is none, saying what the folder holds.
    DamagedFileError, CheckpointError
        Naming the file that cannot be used.
    """
    file = _tokenizer_file(path)
    tokenizer = read_json(file)
    beside = file.with_name(TOKENIZER_CONFIG)
    config = read_json(beside) if beside.exists() else {}
    characters = characters_of(tokenizer)
    if characters is None:
        template = file.with_name(CHAT_TEMPLATE_FILE)
        if template.exists():
            config = {**config, "chat_template": _read_template(template)}
        return PretrainedTokenizer(tokenizer, config, name=str(file))
    bos_token = content(config.get("bos_token")) or SPECIAL_TOKENS[1]
    if bos_token not in SPECIAL_TOKENS:
        raise CheckpointError(f"{beside} names {bos_token!r} as its bos_token, which {file} does not hold")
    return CharTokenizer(characters, bos_token=bos_token, add_bos_token=bool(config.get("add_bos_token", False)))


def _tokenizer_file(given: PathLike) -> Path:
    path = Path(given).expanduser()
    if path.is_file():
        if path.suffix not in WEIGHTS:
            return path
        path = path.parent
    if not path.is_dir():
        raise file_not_found("there is no such tokenizer file or folder (nothing is downloaded)", given)
    file = model_folder(path, TOKENIZER) / TOKENIZER
    if not file.exists():
        raise missing_tokenizer(path, TOKENIZER)
    return file


def _read_template(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise DamagedFileError(f"{path} is not UTF-8: byte 0x{byte:02X} at offset {error.start}") from error
