"""Cached greedy decoding, token for token what `transformers.generate` writes."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from peers.bridge import Arrays, our_model, shapes_of, their_model, top_two_margin, write_ours, write_theirs
from peers.parity_cases import Case, case_of, mask_of, weights
from peers.parity_rows import compare

NEW = 30
MODELS = {
    "dense": {"layers": "3"},
    "dense, untied, MQA": {"heads": "MQA", "head": "untied"},
    "k=1": {"mlp": "k=1"},
    "k=2 normalised": {"mlp": "k=2 normalised", "layers": "3"},
    "YaRN": {"positions": "YaRN"},
    "YaRN, MiniMind's numbers": {"positions": "YaRN, MiniMind's numbers", "mlp": "k=2"},
}
every_model = pytest.mark.parametrize("chosen", MODELS.values(), ids=MODELS.keys())
every_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])


def drawn(case: Case) -> tuple[Arrays, np.ndarray]:
    rng = np.random.default_rng(case.seed)
    return weights(shapes_of(case), rng), rng.integers(0, case.fields["vocab_size"], (3, 6))


def written(case: Case, dtype: str, mask: np.ndarray | None, eos: int | None) -> tuple[Any, Any]:
    state, prompt = drawn(case)
    ours = write_ours(our_model(case.fields, state, np.dtype(dtype)), prompt, mask, NEW, eos)
    theirs = write_theirs(their_model(case.fields, state, getattr(torch, dtype)), prompt, mask, NEW, eos)
    return ours, theirs


@every_model
@every_dtype
@pytest.mark.parametrize("padding", ["none", "left"])
def test_the_same_ids_and_the_same_logits_at_each_step(chosen: dict[str, str], dtype: str, padding: str) -> None:
    ours, theirs = written(case_of(3, **chosen), dtype, mask_of(padding, 3, 6), None)
    assert np.array_equal(ours.ids, theirs.ids)
    (row,) = compare({"logits": ours.logits}, {"logits": theirs.logits}, "logits of each step")
    assert row.error <= 1e-5
    # Had two ids been so near to each other, the same ids would have been luck, and others no mistake.
    assert top_two_margin(theirs.logits) > 2 * row.error


@every_model
def test_rows_that_end(chosen: dict[str, str]) -> None:
    """Some id that the first row writes becomes the end mark: rows end at different steps, the rest goes on."""
    case = case_of(3, **chosen)
    mask = mask_of("left", 3, 6)
    without_end = written(case, "float64", mask, None)[0].ids[:, 6:]
    step = max(t for t in range(NEW) if without_end[0, t] not in without_end[0, :t])
    eos = int(without_end[0, step])
    ours, theirs = written(case, "float64", mask, eos)
    assert np.array_equal(ours.ids, theirs.ids)
    new = ours.ids[0, 6:]
    assert (new[: step + 1] == without_end[0, : step + 1]).all()  # the end mark itself is kept
    assert (new[step:] == eos).all()
