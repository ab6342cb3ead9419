"""Going on from a cache that holds the beginning of the prompt, and ids that are never chosen."""

import numpy as np
import pytest
from helpers import V, config, settled

from numpy_minimind import MiniMindForCausalLM
from numpy_minimind.generation.generate import generate

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
    prompts = np.array([[5, 3], [7, 4], [22, 21]])
    settings = {"max_new_tokens": 30, "temperature": 3.0, "top_k": 0, "top_p": 1.0, "eos_token_id": None}
    free = generate(model, prompts, rng=np.random.default_rng(0), **settings)[:, 2:]
    bounded = generate(model, prompts, rng=np.random.default_rng(0), vocab_size=10, **settings)[:, 2:]
    assert free.max() >= 10 > bounded.max()
    assert set(bounded.ravel()) == set(range(10))


@pytest.mark.parametrize("size", [0, V + 1, 2.5])
def test_a_vocabulary_that_the_model_does_not_have(model, size):
    with pytest.raises(ValueError, match=f"vocab_size is {size}; expected at most the model's {V}"):
        generate(model, PROMPT, vocab_size=size)
