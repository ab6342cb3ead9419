"""From text to ids and back: the tokenizer of a model folder, whichever it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy_minimind.files import DamagedFileError, PathLike, file_not_found, model_folder, read_json
from numpy_minimind.foreign import missing_tokenizer
from numpy_minimind.text.added_tokens import ADDED_TOKENS, SPECIAL_TOKENS_MAP, content, merged
from numpy_minimind.text.char import (
    BEGINS_WITH_BOS,
    SPECIAL_TOKENS,
    TOKENIZER,
    TOKENIZER_CONFIG,
    CharTokenizer,
    characters_of,
)
from numpy_minimind.text.pretrained import PretrainedTokenizer
from numpy_minimind.text.tokenizer import Tokenizer

CHAT_TEMPLATE_FILE, CHAT_TEMPLATE_FOLDER = "chat_template.jinja", "additional_chat_templates"
CHAT_TEMPLATE_JSON = "chat_template.json"  # of older processors: the last place to look
WEIGHTS = (".pth", ".pt", ".ckpt", ".bin", ".safetensors")  # beside a file of these a tokenizer may stand


def load_tokenizer(path: PathLike) -> Tokenizer:
    """Load the tokenizer of a model folder or of a training run, the one beside a file of weights, or a tokenizer.json.

    What stands beside tokenizer.json is read as transformers reads it: tokenizer_config.json, the older files
    special_tokens_map.json and added_tokens.json, and templates in files of their own, which go before those of the
    config. A file that `CharTokenizer.save` wrote needs NumPy alone, any other the package tokenizers.

    Raises
    ------
    FileNotFoundError
        When there is none, saying what the folder holds.
    DamagedFileError, CheckpointError
        Naming the file that cannot be used.
    """
    file = _tokenizer_file(path)
    tokenizer = read_json(file)
    config, *older = [_beside(file, name) for name in (TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP, ADDED_TOKENS)]
    config = merged(config, tokenizer, *older)
    characters = characters_of(tokenizer)
    if characters is None or not _is_ours(config):
        return PretrainedTokenizer(tokenizer, _with_templates(config, file.parent), name=str(file))
    bos_token = content(config.get("bos_token")) or SPECIAL_TOKENS[1]
    return CharTokenizer(characters, bos_token=bos_token, begins_with_bos=bool(config.get(BEGINS_WITH_BOS, False)))


def _beside(file: Path, name: str) -> dict[str, Any]:
    """Return what the JSON file of that name beside tokenizer.json holds; nothing if it is not there."""
    beside = file.with_name(name)
    return read_json(beside) if beside.exists() else {}


def _is_ours(config: dict[str, Any]) -> bool:
    """Whether a config says nothing of tokens but what `CharTokenizer` can say."""
    ours = {"eos_token": SPECIAL_TOKENS[2], "pad_token": SPECIAL_TOKENS[0], "unk_token": SPECIAL_TOKENS[0]}
    roles = {key: content(value) for key, value in config.items() if key.endswith("_token")}
    told = {role: token for role, token in roles.items() if isinstance(token, str)}  # not add_bos_token, nor null
    bos_token = told.pop("bos_token", None)
    more = [config.get(key) for key in ("added_tokens_decoder", "extra_special_tokens", "additional_special_tokens")]
    return bos_token in (None, *SPECIAL_TOKENS) and told.items() <= ours.items() and not any(more)


def _with_templates(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the config with the templates that stand in files of their own, if there are any: they replace its own."""
    several = sorted((folder / CHAT_TEMPLATE_FOLDER).glob("*.jinja"))
    templates = {file.name.removesuffix(".jinja"): _read_template(file) for file in several}
    if (folder / CHAT_TEMPLATE_FILE).exists():
        templates = {"default": _read_template(folder / CHAT_TEMPLATE_FILE), **templates}
    if list(templates) == ["default"]:
        return {**config, "chat_template": templates["default"]}
    if templates:
        listed = [{"name": name, "template": template} for name, template in templates.items()]
        return {**config, "chat_template": listed}
    if config.get("chat_template") is None and (folder / CHAT_TEMPLATE_JSON).exists():
        return {**config, "chat_template": read_json(folder / CHAT_TEMPLATE_JSON).get("chat_template")}
    return config


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
