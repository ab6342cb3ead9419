"""The tokens that a folder adds to its tokenizer.json, and what they are for, as transformers 5 reads its files.

tokenizer_config.json may add tokens (`added_tokens_decoder`), list special ones (`extra_special_tokens`, in older
files `additional_special_tokens`) and give them roles (`eos_token`, or any other `..._token`). Two older files beside
it count only where it has no `added_tokens_decoder`: special_tokens_map.json, which goes before it, and
added_tokens.json.

What is not in tokenizer.json yet gets the next free ids, whatever ids are named: first `added_tokens_decoder` in their
order, then roles, then what is listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from numpy_minimind.files import CheckpointError
from numpy_minimind.text.char import TOKENIZER_CONFIG

ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
SPECIAL_TOKENS_MAP, ADDED_TOKENS = "special_tokens_map.json", "added_tokens.json"
FLAGS = ("special", "lstrip", "rstrip", "normalized", "single_word")
Token = str | dict[str, Any]  # the text alone, or {"content": text} with some of the flags


def content(token: Any) -> str | None:
    """Return the text of a special token, which stands there alone or with its properties."""
    return token.get("content") if isinstance(token, dict) else token


def merged(
    config: dict[str, Any], tokenizer: dict[str, Any], special_tokens_map: dict[str, Any], added_tokens: dict[str, Any]
) -> dict[str, Any]:
    """Return tokenizer_config.json with what the two older files say, so that they are needed no more."""
    if "added_tokens_decoder" in config or not (special_tokens_map or added_tokens):
        return config
    config = dict(config)
    if "additional_special_tokens" in config and not config.get("extra_special_tokens"):
        config["extra_special_tokens"] = config.pop("additional_special_tokens")
    said = {key: _written(key, value) for key, value in special_tokens_map.items()}
    before, extra = config.get("extra_special_tokens"), said.get("extra_special_tokens")
    if isinstance(before, list) and isinstance(extra, list):
        said["extra_special_tokens"] = before + [token for token in extra if token not in before]
    if before is not None:
        said.pop("additional_special_tokens", None)
    config |= said
    listed = config.get("extra_special_tokens") or []
    special = [content(token) for token in (*map(config.get, ROLES), *listed)]
    decoder = {
        _whole(index, token): {"content": token, "special": token in special, "normalized": token not in special}
        for token, index in added_tokens.items()
    }
    decoder |= tokens_of(tokenizer)
    config["added_tokens_decoder"] = {str(index): token for index, token in sorted(decoder.items())}
    return config


def _written(key: str, value: Any) -> Any:
    """Return what special_tokens_map.json says in the words of tokenizer_config.json."""
    if isinstance(value, list):
        return [_written(key, item) for item in value]
    if isinstance(value, dict) and isinstance(value.get("content"), str):
        return {"__type": "AddedToken", **value, "special": True}
    if isinstance(value, str) and key.endswith("_token") and key not in ROLES:
        return {"__type": "AddedToken", "content": value, "special": True}
    return value


def _whole(index: Any, token: str) -> int:
    if isinstance(index, int) and index >= 0:
        return index
    raise CheckpointError(f"{ADDED_TOKENS} has {token!r}: {index!r}, expected the token's id")


def tokens_to_add(tokenizer: dict[str, Any], config: dict[str, Any]) -> tuple[list[Token], dict[str, str]]:
    """Return the tokens to add to tokenizer.json, in order, and the text of each that has a role, by its role.

    A token that tokenizer.json has already is among the former too: a role makes it special.

    Raises
    ------
    CheckpointError
        For an entry of the config that is no token.
    """
    listed, told = tokens_of(tokenizer), config.get("added_tokens_decoder")
    decoder = listed if told is None else _decoder(told)
    extra, named = _extra(config)
    roles = {role: _token(token, role) for role, token in _roles(tokenizer, config, named)}
    texts = {role: str(content(token)) for role, token in roles.items()}
    tokens: list[Token] = [token for _, token in sorted(decoder.items())]
    known = {content(token) for token in (*listed.values(), *tokens)}
    tokens += [token for token in (*roles.values(), *extra) if content(token) not in known]
    return [_special(token) if content(token) in texts.values() else token for token in tokens], texts


def tokens_of(tokenizer: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Return the added tokens of tokenizer.json, by id."""
    added = tokenizer.get("added_tokens")
    tokens = [token for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    return {token["id"]: _flags(token) for token in tokens if {"id", "content"} <= token.keys()}


def _decoder(told: Any) -> dict[int, dict[str, Any]]:
    if not isinstance(told, dict):
        raise CheckpointError(
            f"added_tokens_decoder of {TOKENIZER_CONFIG} is {type(told).__name__}, expected an object"
        )
    tokens = {}
    for index, token in told.items():
        if not (str(index).isdecimal() and isinstance(token, dict)):
            raise CheckpointError(
                f"added_tokens_decoder of {TOKENIZER_CONFIG} has {index!r}: {token!r}, expected an id and an object "
                'such as "293": {"content": "<|call|>", "special": true}'
            )
        _token(token, f"added_tokens_decoder[{index}]")
        tokens[int(index)] = _flags(token)
    return tokens


def _extra(config: dict[str, Any]) -> tuple[list[Token], dict[str, Token]]:
    """Return the special tokens that are listed, and those that are named."""
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    if isinstance(extra, dict):
        listed, _ = _extra({"extra_special_tokens": config.get("additional_special_tokens")})
        return listed, {name: _token(token, f"extra_special_tokens[{name}]") for name, token in extra.items()}
    if not isinstance(extra, list):
        raise CheckpointError(
            f"extra_special_tokens of {TOKENIZER_CONFIG} is {type(extra).__name__}, expected a list or an object"
        )
    # transformers refuses an object without "__type", which older versions wrote: it is special, as all here
    tokens = [_token(token, "extra_special_tokens") for token in extra]
    return [token if isinstance(token, str) or "__type" in token else _special(token) for token in tokens], {}


def _roles(tokenizer: dict[str, Any], config: dict[str, Any], named: dict[str, Token]) -> Iterator[tuple[str, Token]]:
    """Yield each role and its token: the usual ones, then a model's own."""
    padding = tokenizer.get("padding")
    config = {"pad_token": padding.get("pad_token"), **config} if isinstance(padding, dict) else config
    yield from ((role, config[role]) for role in ROLES if config.get(role) is not None)
    own = {
        key: value
        for key, value in config.items()
        if key.endswith("_token") and key not in ROLES and isinstance(content(value), str)
    }
    yield from ((key, value) for key, value in own.items() if isinstance(value, dict))
    texts: dict[str, Token] = {key: value for key, value in own.items() if isinstance(value, str)}
    given = config.get("model_specific_special_tokens")
    yield from (texts | named or (given if isinstance(given, dict) else {})).items()


def _token(token: Any, where: str) -> Token:
    if isinstance(content(token), str):
        return token
    raise CheckpointError(
        f"{where} of {TOKENIZER_CONFIG} is {token!r}, expected a token: its text, or an object with it"
    )


def _flags(token: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a token's entry is about the token."""
    return {key: token[key] for key in ("content", *FLAGS) if key in token}


def _special(token: Any) -> Any:
    """Return a token as a special one, with its other properties."""
    return {**token, "special": True} if isinstance(token, dict) else token
