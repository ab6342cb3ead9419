"""Going on from a cache that holds the beginning of the prompt, and ids that are never chosen."""

import numpy as np
import pytest

from numpy_minimind import MiniMindForCausalLM
from numpy_minimind.checking.points import V, config
from numpy_minimind.generation.loop import generate
from numpy_minimind.generation.prefill import prefill
from tests.helpers import assert_close, settled

pytestmark = pytest.mark.usefixtures("backend")

PROMPT = np.array([[5, 3, 9, 7, 4, 8]])


@pytest.fixture
def model():
    return settled(MiniMindForCausalLM(config(), dtype=np.float64))


@pytest.mark.parametrize("held", [0, 1, 3, 5])
def test_the_ids_do_not_depend_on_what_the_cache_held(model, held):
    whole = generate(model, PROMPT, max_new_tokens=8, temperature=0, repetition_penalty=1.3, eos_token_id=None)
    cache = model.new_cache(1, 20)
    if held:
        model(PROMPT[:, :held], cache=cache)
    rest = generate(
        model, PROMPT, max_new_tokens=8, temperature=0, repetition_penalty=1.3, eos_token_id=None, cache=cache
    )
    assert rest.tolist() == whole.tolist()
    assert cache.length == whole.shape[1] - 1  # the last id was chosen, not fed


def test_a_cache_can_be_taken_back_and_written_over(model):
    cache = model.new_cache(1, 40)
    generate(model, PROMPT, max_new_tokens=8, temperature=0, cache=cache)
    cache.length = 3
    other = np.array([[5, 3, 9, 2, 2, 6, 1]])
    again = generate(model, other, max_new_tokens=8, temperature=0, eos_token_id=None, cache=cache)
    assert again.tolist() == generate(model, other, max_new_tokens=8, temperature=0, eos_token_id=None).tolist()


def test_a_cache_that_leaves_nothing_to_do_or_no_room(model):
    cache = model.new_cache(1, 10)
    model(PROMPT, cache=cache)
    with pytest.raises(ValueError, match="holds 6 tokens and the prompt has 6: at least its last token"):
        generate(model, PROMPT, max_new_tokens=2, cache=cache)
    with pytest.raises(ValueError, match=r"7 tokens and max_new_tokens 4 need a cache for 11; this one is for 10"):
        generate(model, np.array([[1] * 7]), max_new_tokens=4, cache=cache)


def test_ids_beyond_the_tokenizer_s_are_never_chosen(model):
    prompts = np.array([[5, 3], [7, 4], [V - 1, V - 2]])
    settings = {"max_new_tokens": 30, "temperature": 3.0, "top_k": 0, "top_p": 1.0, "eos_token_id": None}
    free = generate(model, prompts, rng=np.random.default_rng(0), **settings)[:, 2:]
    bounded = generate(model, prompts, rng=np.random.default_rng(0), vocab_size=7, **settings)[:, 2:]
    assert free.max() >= 7 > bounded.max()
    assert set(bounded.ravel()) == set(range(7))


@pytest.mark.parametrize("size", [0, V + 1, 2.5])
def test_a_vocabulary_that_the_model_does_not_have(model, size):
    with pytest.raises(ValueError, match=f"vocab_size is {size}; expected at most the model's {V}"):
        generate(model, PROMPT, vocab_size=size)


# -- a long prompt goes in part by part ------------------------------------------------------------------------

LONG = np.array([[0, 0, 0, 0, 0, 6, 5, 3, 9, 7], [0, 0, 1, 8, 8, 4, 1, 2, 7, 7], [5, 3, 9, 7, 4, 8, 2, 10, 3, 1]])
MASK = np.array([[0] * 5 + [1] * 5, [0] * 2 + [1] * 8, [1] * 10])


def parts_of(size, monkeypatch, rows=3):
    monkeypatch.setattr("numpy_minimind.generation.prefill.PART", rows * size)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 9, 10])
@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "left-padded"])
def test_parts_give_the_logits_and_the_cache_of_the_whole(model, size, mask, monkeypatch):
    whole, cache = model.new_cache(3, 12), model.new_cache(3, 12)
    right = model(LONG, attention_mask=mask, cache=whole, logits_to_keep=1)
    parts_of(size, monkeypatch)
    assert_close(prefill(model, LONG, cache, mask), right)
    assert cache.length == whole.length == 10
    np.testing.assert_array_equal(cache.mask, whole.mask)
    rows, columns = np.nonzero(np.ones_like(MASK) if mask is None else mask)
    for layer, expected in zip(cache.layers, whole.layers):
        assert_close(layer.k[rows, :, columns], expected.k[rows, :, columns])
        assert_close(layer.v[rows, :, columns], expected.v[rows, :, columns])


@pytest.mark.parametrize("held", [0, 4])
@pytest.mark.parametrize("size", [1, 4])
def test_parts_give_the_same_ids(model, size, held, monkeypatch):
    settings = {"max_new_tokens": 8, "temperature": 0, "eos_token_id": None, "attention_mask": MASK}
    whole = generate(model, LONG, **settings)
    cache = model.new_cache(3, 20)
    if held:
        model(LONG[:, :held], attention_mask=MASK[:, :held], cache=cache)
    parts_of(size, monkeypatch)
    assert generate(model, LONG, cache=cache, **settings).tolist() == whole.tolist()


@pytest.mark.parametrize(("rows", "sizes"), [(1, [7, 7, 6]), (2, [4, 4, 4, 4, 4]), (3, [3] * 6 + [2])])
def test_a_part_is_so_many_tokens_of_all_rows_together(rows, sizes, monkeypatch):
    parts_of(7, monkeypatch, rows=1)
    fed = []

    def model(ids, attention_mask, cache, logits_to_keep):
        fed.append(ids.shape)

    prefill(model, np.full((rows, 20), 5), None)
    assert fed == [(rows, size) for size in sizes]
