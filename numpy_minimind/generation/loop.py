"""The loop that writes: run the model, choose a token, feed it back.

The prompt goes through the model once ("prefill"), a part at a time, and fills the key/value cache; after that each
step feeds only the token just chosen ("decoding"). Arguments are checked once, here, before anything is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from numpy_minimind.backend import to_numpy
from numpy_minimind.config import check_special_ids, end_marks
from numpy_minimind.generation.prefill import prefill
from numpy_minimind.generation.sampling import check_settings, next_ids
from numpy_minimind.layers.embedding import check_ids

CONFIG_EOS: Literal["config"] = "config"  # "the config's", where None means "never stop"


def generate(
    model: Any,
    input_ids: Any,
    max_new_tokens: int = 32,
    temperature: float = 0.85,
    top_k: int = 50,
    top_p: float = 0.85,
    repetition_penalty: float = 1.0,
    eos_token_id: int | Sequence[int] | Literal["config"] | None = CONFIG_EOS,
    rng: np.random.Generator | None = None,
    on_token: Callable[[np.ndarray], Any] | None = None,
    attention_mask: Any = None,
    cache: Any = None,
    vocab_size: int | None = None,
) -> np.ndarray:
    """Continue each prompt of a batch by at most `max_new_tokens` tokens.

    Parameters
    ----------
    model : MiniMindForCausalLM
        Or anything with ``new_cache(batch, max_tokens)``,
        ``model(ids, attention_mask=, cache=, logits_to_keep=)`` and a ``config`` with `vocab_size`,
        `eos_token_id` and `max_position_embeddings`.
    input_ids : array of integers (B, T)
        The prompts, shorter ones padded on the left and the padding marked in `attention_mask`.
    max_new_tokens : int
        0 returns the prompt.
    temperature, top_k, top_p, repetition_penalty
        See `numpy_minimind.generation.sampling`, whose filters run in the order temperature, repetition
        penalty, top-k, top-p. Temperature 0 takes the most likely id (the lowest on ties); top_k 0, top_p 1
        and repetition_penalty 1 switch that filter off. The penalty falls on every id of the row's prompt and
        output, padding excluded.
    eos_token_id : int, sequence of int, or None
        The id that ends a row, or several, any of which does; by default the config's. It is kept in the output. One
        in the prompt does not count. None: never stop.
    rng : numpy.random.Generator, optional
        The source of the draws; None takes a fresh seed. It seeds one generator a row, so that the uniform
        numbers of row b depend on `rng` and b alone: not on the size of the batch, nor on which rows have
        ended. Not used at temperature 0.
    on_token : callable, optional
        Called with the new ids, a host array (B,), after each step, the last one included.
    attention_mask : array of bool or of 0 and 1 (B, T), optional
        Which positions of `input_ids` are prompt and not padding; by default all. The last column must be:
        pad on the left. At temperature 0 a left-padded row gets the ids that it would get alone.
    cache : KVCache, optional
        One that holds the first ``cache.length`` tokens of the prompts already, from an earlier call: only the rest
        goes through the model. It takes in all but the last of the new ids too.
    vocab_size : int, optional
        Ids from this one on are never chosen: what the tokenizer holds, where the model's table is larger.

    Returns
    -------
    host array of int64 (B, T + n)
        Prompts and new ids, n <= max_new_tokens. A row that has ended repeats the end mark that it ended with until
        all have ended, and then generation stops.

    Raises
    ------
    TypeError
        For ids that are not integers and an rng that is no Generator.
    ValueError
        For an argument out of range, a prompt that is empty, of the wrong rank, with ids outside the
        vocabulary or padded on the right, a mask that does not fit, T + max_new_tokens beyond the model's
        positions: all before anything is computed. And for logits that are not finite.
    """
    ids, mask = _check_prompt(input_ids, attention_mask, model.config.vocab_size)
    check_settings(temperature, top_k, top_p, repetition_penalty)
    eos = _check_eos(eos_token_id, model.config)
    batch, prompt = ids.shape
    _check_length(prompt, max_new_tokens, model.config.max_position_embeddings)
    vocab_size = _check_vocab_size(vocab_size, model.config.vocab_size)
    generators = _row_generators(rng, batch) if temperature > 0 else []

    output = np.concatenate([ids, np.zeros((batch, max_new_tokens), np.int64)], axis=1)  # (B, T + n)
    seen = _seen(ids, mask, model.config.vocab_size)  # (B, V)
    finished = np.zeros(batch, dtype=bool)
    if cache is None:
        cache = model.new_cache(batch, prompt + max_new_tokens)
    else:
        _check_cache(cache, prompt, max_new_tokens)
        ids = ids[:, cache.length :]
    for end in range(prompt, prompt + max_new_tokens):
        if end == prompt:
            logits = prefill(model, ids, cache, None if mask.all() else mask)  # (B, 1, V)
        else:  # decoding; the cache remembers the prompt's mask
            logits = model(output[:, end - 1 : end], cache=cache, logits_to_keep=1)  # (B, 1, V)
        new = next_ids(
            logits[:, -1, :vocab_size],
            seen[:, :vocab_size],
            generators,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            repetition_penalty=repetition_penalty,
        )  # (B,)
        if eos is not None:
            new = np.where(finished, output[:, end - 1], new)  # its end mark once more
            finished |= np.isin(new, eos)
        output[:, end] = new
        seen[np.arange(batch), new] = True
        if on_token is not None:
            on_token(new)
        if finished.all():
            return output[:, : end + 1]
    return output


def _row_generators(rng: np.random.Generator | None, batch: int) -> list[np.random.Generator]:
    # Seeds are drawn in order, so the first rows of a larger batch get the same ones.
    if rng is None:
        rng = np.random.default_rng()
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"rng is {rng!r}; expected a numpy.random.Generator, for instance default_rng(0)")
    return [np.random.default_rng(seed) for seed in rng.integers(2**63, size=batch)]


def _seen(ids: np.ndarray, mask: np.ndarray, vocab_size: int) -> np.ndarray:
    """Return (B, V): does the row's prompt hold this id, padding not counted?"""
    seen = np.zeros((len(ids), vocab_size), dtype=bool)
    rows, columns = np.nonzero(mask)
    seen[rows, ids[rows, columns]] = True
    return seen


def _check_prompt(input_ids: Any, attention_mask: Any, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ids (int64) and mask (bool), checked on the host: a GPU would let a wrong id wrap silently."""
    ids = to_numpy(input_ids)
    if ids.ndim != 2 or ids.size == 0:
        raise ValueError(
            f"input_ids have shape {ids.shape}; expected (batch, tokens) with at least one of each "
            "(instead of an empty prompt give the bos token)"
        )
    check_ids(ids, vocab_size)
    mask = np.ones(ids.shape, bool) if attention_mask is None else to_numpy(attention_mask)
    if mask.shape != ids.shape:
        raise ValueError(f"attention_mask has shape {mask.shape}; expected that of input_ids, {ids.shape}")
    if not np.isin(mask, (0, 1)).all():
        raise ValueError("attention_mask holds other values than 0 (padding) and 1 (prompt)")
    mask = mask.astype(bool)
    if not mask[:, -1].all():
        raise ValueError(
            f"row {int(np.argmin(mask[:, -1]))} ends in padding: new tokens follow the last column, "
            "so pad shorter prompts on the left"
        )
    return ids.astype(np.int64), mask


def _check_length(prompt: int, max_new_tokens: int, positions: int) -> None:
    if not (isinstance(max_new_tokens, (int, np.integer)) and max_new_tokens >= 0):
        raise ValueError(f"max_new_tokens is {max_new_tokens!r}; expected a whole number of at least 0")
    if prompt + max_new_tokens > positions:
        raise ValueError(
            f"a prompt of {prompt} tokens and max_new_tokens {max_new_tokens} need {prompt + max_new_tokens} "
            f"positions; the model has {positions} (max_position_embeddings)"
        )


def _check_vocab_size(vocab_size: Any, whole: int) -> int:
    if vocab_size is None:
        return whole
    if not (isinstance(vocab_size, (int, np.integer)) and 1 <= vocab_size <= whole):
        raise ValueError(f"vocab_size is {vocab_size!r}; expected at most the model's {whole}, or None for all of it")
    return int(vocab_size)


def _check_cache(cache: Any, prompt: int, max_new_tokens: int) -> None:
    if cache.length >= prompt:
        raise ValueError(
            f"the cache holds {cache.length} tokens and the prompt has {prompt}: "
            "at least its last token must go through the model"
        )
    if prompt + max_new_tokens > cache.max_tokens:
        raise ValueError(
            f"a prompt of {prompt} tokens and max_new_tokens {max_new_tokens} need a cache for "
            f"{prompt + max_new_tokens}; this one is for {cache.max_tokens}"
        )


def _check_eos(eos_token_id: Any, config: Any) -> Any:
    from_config = isinstance(eos_token_id, str) and eos_token_id == CONFIG_EOS
    eos = end_marks(config.eos_token_id if from_config else eos_token_id)
    check_special_ids("eos_token_id", eos, config.vocab_size)
    return eos
