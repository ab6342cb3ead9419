"""The models that parity is shown for: configurations, weights of order one, batches. NumPy only."""

from collections.abc import Iterator
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np

from numpy_minimind.checking.points import padding_mask
from numpy_minimind.yarn import YARN

# Sizes pairwise different where they may be, so that no two axes can be mistaken for each other.
B, T, D, N, F, V = 3, 9, 24, 4, 10, 23

SHORT = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
MINIMIND = {"rope_type": "yarn", **{name: value for name, value in YARN.items() if name != "type"}}

# What a configuration chooses. Small theta and short original lengths make wrong angles show within nine tokens.
CHOICES: dict[str, dict[str, dict[str, Any]]] = {
    "heads": {
        "GQA": {"num_key_value_heads": 2},
        "MQA": {"num_key_value_heads": 1},
        "MHA": {"num_key_value_heads": 4},
    },
    "head_dim": {"hidden / heads": {"head_dim": D // N}, "wider": {"head_dim": 10}, "narrower": {"head_dim": 4}},
    "head": {"tied": {"tie_word_embeddings": True}, "untied": {"tie_word_embeddings": False}},
    "layers": {"1": {"num_hidden_layers": 1}, "3": {"num_hidden_layers": 3}},
    "mlp": {
        "dense": {},
        "k=1": {"use_moe": True, "num_experts": 7, "norm_topk_prob": False},
        "k=1 normalised": {"use_moe": True, "num_experts": 3, "norm_topk_prob": True},
        "k=2": {"use_moe": True, "num_experts": 5, "num_experts_per_tok": 2, "norm_topk_prob": False},
        "k=2 normalised": {"use_moe": True, "num_experts": 7, "num_experts_per_tok": 2, "norm_topk_prob": True},
    },
    "positions": {
        "plain": {},
        "theta 50": {"rope_theta": 50.0},
        "YaRN": {"rope_theta": 100.0, "rope_scaling": SHORT},
        "YaRN, all given": {
            "rope_theta": 100.0,
            "rope_scaling": {**SHORT, "factor": 8.0, "beta_fast": 3.0, "beta_slow": 0.5, "attention_factor": 1.2},
        },
        "YaRN, MiniMind's numbers": {"max_position_embeddings": 32768, "rope_scaling": MINIMIND},
    },
    "padding": {"none": {}, "left": {}, "right": {}, "both": {}},
    "eps": {"1e-6": {}, "1e-2": {"rms_norm_eps": 1e-2}},
}


class Case(NamedTuple):
    """One configuration: what was chosen, and MiniMind's config fields."""

    chosen: dict[str, str]
    fields: dict[str, Any]
    seed: int

    @property
    def name(self) -> str:
        return ", ".join(self.chosen.values())

    @property
    def is_moe(self) -> bool:
        return bool(self.fields["use_moe"])


class Batch(NamedTuple):
    input_ids: np.ndarray  # (B, T)
    labels: np.ndarray  # (B, T), -100 where padded, and at some other places
    attention_mask: np.ndarray | None  # (B, T)


def case_of(seed: int = 0, **chosen: str) -> Case:
    """A configuration by its choices; what is left out takes the first one."""
    chosen = {what: chosen.get(what, next(iter(options))) for what, options in CHOICES.items()}
    fields: dict[str, Any] = {
        "hidden_size": D,
        "num_attention_heads": N,
        "vocab_size": V,
        "intermediate_size": F,
        "moe_intermediate_size": F - 1,
        "use_moe": False,
        "num_experts_per_tok": 1,
        "max_position_embeddings": 64,
        "rope_theta": 1e6,
        "rms_norm_eps": 1e-6,
        "pad_token_id": None,
        "router_aux_loss_coef": 0.0,  # transformers pools its layers before it multiplies, so it cannot be compared
    }
    for what, option in chosen.items():
        fields.update(CHOICES[what][option])
    return Case(chosen, fields, seed)


def all_cases() -> list[Case]:
    """Every combination, in an order fixed by a seed: first a few that hold every pair of choices, then the rest.

    So the first `PAIRWISE` ones are a fair selection, and any longer beginning is a fairer one.
    """
    everything = list(product(*CHOICES.values()))
    order = [everything[i] for i in np.random.default_rng(0).permutation(len(everything))]
    missing = all_pairs()
    first = []
    while missing:
        # Among the next few hundred, the one that brings most pairs that were not there yet.
        best = max(order[:400], key=lambda combination: len(pairs_of(combination) & missing))
        if not pairs_of(best) & missing:
            best = next(combination for combination in order if pairs_of(combination) & missing)
        order.remove(best)
        first.append(best)
        missing -= pairs_of(best)
    return [case_of(seed, **dict(zip(CHOICES, combination))) for seed, combination in enumerate(first + order)]


def pairs_of(combination: tuple[str, ...]) -> set[Any]:
    return set(combinations(enumerate(combination), 2))


def all_pairs() -> set[Any]:
    """Every choice beside every choice of another kind."""
    options = [[(i, name) for name in names] for i, names in enumerate(CHOICES.values())]
    return {pair for one, other in combinations(options, 2) for pair in product(one, other)}


CASES = all_cases()
PAIRWISE = 30  # the first so many hold every pair; test_qwen3.py checks it


def weights(shapes: dict[str, tuple[int, ...]], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Weights of order one, where every non-linearity bends: matrices N(0, f / sqrt(fan in)), gains in [0.5, 1.5]."""
    drawn = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            drawn[name] = rng.uniform(0.5, 1.5, shape)
        else:
            drawn[name] = rng.normal(0.0, rng.uniform(0.8, 1.5) / np.sqrt(shape[-1]), shape)
    return {name: a.astype(np.float32).astype(np.float64) for name, a in drawn.items()}  # exact in either precision


def mask_of(padding: str, rows: int = B, tokens: int = T) -> np.ndarray | None:
    """Ones (rows, tokens) with zeros on one side or both, row by row more of them; the first row is whole."""
    row = np.arange(rows)
    left, right = 2 * row * (padding in ("left", "both")), row * (padding in ("right", "both"))
    return None if padding == "none" else padding_mask(tokens, left, right).astype(np.int64)


def batch(case: Case, rng: np.random.Generator, rows: int = B, tokens: int = T) -> Batch:
    """Random ids; a fifth of the labels is ignored, and those of padding."""
    ids = rng.integers(0, case.fields["vocab_size"], (rows, tokens))
    mask = mask_of(case.chosen["padding"], rows, tokens)
    labels = np.where(rng.random(ids.shape) < 0.2, -100, ids)
    labels[0, 1] = ids[0, 1]  # at least one counts
    return Batch(ids, labels if mask is None else np.where(mask == 1, labels, -100), mask)


def generators(case: Case, attempts: int = 50) -> Iterator[np.random.Generator]:
    """To draw weights and batches from, one after the other until the experts are chosen with a margin."""
    for attempt in range(attempts):
        yield np.random.default_rng([case.seed, attempt])
    raise RuntimeError(f"{attempts} draws of {case.name}, and never a margin")
