"""The loop around the model, with a stub whose logits are forced: what is fed, when it stops, what is refused."""

from types import SimpleNamespace

import numpy as np
import pytest

from numpy_minimind.backend import to_device
from numpy_minimind.generation import generate

pytestmark = pytest.mark.usefixtures("backend")

NAN = float("nan")
V, EOS, PAD = 10, 2, 0


class Stub:
    """A model that forgets all but the step: at step s row b wants ``script[b][s]`` (by `gap` logits).

    It keeps what it was called with, as the cache does. Its logits lie on the device of the test's backend.
    """

    device = "cpu"

    def __init__(self, script, gap=50.0, eos=EOS, positions=64, dtype=np.float32):
        self.script, self.gap, self.dtype = np.asarray(script), gap, dtype
        self.config = SimpleNamespace(
            vocab_size=V, eos_token_id=eos, pad_token_id=PAD, max_position_embeddings=positions
        )
        self.calls, self.caches = [], []

    def new_cache(self, batch, max_tokens):
        self.caches.append((batch, max_tokens))
        return self.caches[-1]

    def __call__(self, ids, attention_mask=None, cache=None, logits_to_keep=0):
        assert cache is self.caches[-1] and logits_to_keep == 1
        wanted = self.script[:, len(self.calls)]
        self.calls.append((ids.copy(), None if attention_mask is None else attention_mask.copy()))
        logits = np.zeros((len(ids), 1, V), self.dtype)
        logits[np.arange(len(ids)), 0, wanted] = self.gap
        return to_device(logits, self.device)


@pytest.fixture(autouse=True)
def device(backend, monkeypatch):
    monkeypatch.setattr(Stub, "device", "cuda" if backend == "strict" else "cpu")


def greedy(model, ids, n, **options):
    return generate(model, ids, max_new_tokens=n, temperature=0.0, **options)


# -- the loop --------------------------------------------------------------------------------------------------


def test_returns_prompt_and_new_ids_and_feeds_each_one_back():
    model = Stub([[7, 8, 9], [3, 4, 5]])
    prompt = np.array([[1, 6], [1, 7]], dtype=np.int32)
    output = greedy(model, prompt, 3)
    assert output.tolist() == [[1, 6, 7, 8, 9], [1, 7, 3, 4, 5]]
    assert type(output) is np.ndarray and output.dtype == np.int64
    assert [ids.tolist() for ids, _ in model.calls] == [prompt.tolist(), [[7], [3]], [[8], [4]]]
    assert model.caches == [(2, 5)]


def test_takes_lists_and_any_integer_type():
    assert greedy(Stub([[7]]), [[1, 6]], 1).tolist() == [[1, 6, 7]]
    for dtype in (np.uint8, np.uint64):
        output = greedy(Stub([[7]]), np.array([[1, 6]], dtype), 1)
        assert output.tolist() == [[1, 6, 7]] and output.dtype == np.int64


def test_no_new_tokens_returns_the_prompt_without_running_the_model():
    model, prompt = Stub([[7]]), np.array([[1, 6]])
    output = generate(model, prompt, max_new_tokens=0)
    assert output.tolist() == [[1, 6]] and not model.calls
    output[0, 0] = 9
    assert prompt[0, 0] == 1


def test_the_prompt_is_not_changed():
    prompt = np.array([[1, 6]])
    greedy(Stub([[7, 8]]), prompt, 2)
    assert prompt.tolist() == [[1, 6]]


def test_on_token_gets_each_step_as_it_comes_the_last_one_too():
    heard, model = [], Stub([[7, EOS, 9], [7, 8, EOS]])
    output = greedy(model, [[1], [1]], 3, on_token=lambda ids: heard.append((ids.tolist(), len(model.calls))))
    assert heard == [([7, 7], 1), ([EOS, 8], 2), ([EOS, EOS], 3)]
    assert output[:, 1:].T.tolist() == [ids for ids, _ in heard]


def test_what_on_token_does_to_its_argument_does_not_reach_the_output():
    def spoil(ids):
        ids[:] = 9

    assert greedy(Stub([[7, 8]]), [[1]], 2, on_token=spoil).tolist() == [[1, 7, 8]]


def test_the_mask_goes_with_the_prefill_only_and_not_at_all_when_nothing_is_padded():
    mask = [[0, 1, 1], [1, 1, 1]]
    model = Stub([[7, 8], [7, 8]])
    greedy(model, [[PAD, 1, 6], [1, 6, 6]], 2, attention_mask=mask)
    assert model.calls[0][1].astype(int).tolist() == mask and model.calls[1][1] is None
    model = Stub([[7, 8], [7, 8]])
    greedy(model, [[1, 6], [1, 6]], 2, attention_mask=np.ones((2, 2)))
    assert [seen for _, seen in model.calls] == [None, None]


# -- the end mark ----------------------------------------------------------------------------------------------


def test_a_finished_row_goes_on_with_eos_until_all_are_finished():
    model = Stub([[7, EOS, 9, 9, 9], [7, 8, 8, EOS, 9]])
    output = greedy(model, [[1], [1]], 5)
    assert output.tolist() == [[1, 7, EOS, EOS, EOS], [1, 7, 8, 8, EOS]]
    assert len(model.calls) == 4


@pytest.mark.parametrize("b", [0, 1])
def test_a_row_of_a_batch_equals_its_solo_run(b):
    script = [[7, EOS, 9, 9], [7, 8, 8, EOS]]
    together = greedy(Stub(script), [[1], [1]], 4)[b].tolist()
    alone = greedy(Stub([script[b]]), [[1]], 4)[0].tolist()
    assert together[: len(alone)] == alone and set(together[len(alone) :]) <= {EOS}


def test_an_eos_in_the_prompt_does_not_stop_a_row():
    assert greedy(Stub([[7, 8]]), [[1, EOS]], 2).tolist() == [[1, EOS, 7, 8]]


def test_eos_may_be_another_id_or_none():
    assert greedy(Stub([[7, EOS, 7]]), [[1]], 3, eos_token_id=7).tolist() == [[1, 7]]
    assert greedy(Stub([[7, EOS, 7]]), [[1]], 3, eos_token_id=np.int64(7)).tolist() == [[1, 7]]
    assert greedy(Stub([[7, EOS, 7]]), [[1]], 3, eos_token_id=None).tolist() == [[1, 7, EOS, 7]]
    assert greedy(Stub([[7, EOS, 7]], eos=None), [[1]], 3).tolist() == [[1, 7, EOS, 7]]
    assert greedy(Stub([[7, EOS, 7]]), [[1]], 3).tolist() == [[1, 7, EOS]]
    assert greedy(Stub([[7, PAD, 7]]), [[1]], 3, eos_token_id=0).tolist() == [[1, 7, PAD]]


@pytest.mark.parametrize("ends", [[7, EOS], (EOS, 7), {7, EOS}, np.array([7, EOS]), [np.int64(7), EOS, 7], "config"])
def test_any_of_several_end_marks_ends_a_row(ends):
    """Each row repeats the mark that it ended with, so that it is what it would be alone."""
    script = [[8, EOS, 9, 9, 9], [8, 8, 7, 9, 9], [8, 8, 8, EOS, 9]]
    heard, model = [], Stub(script, eos=[7, EOS])
    output = greedy(model, [[1]] * 3, 5, eos_token_id=ends, on_token=lambda ids: heard.append(ids.tolist()))
    assert output.tolist() == [[1, 8, EOS, EOS, EOS], [1, 8, 8, 7, 7], [1, 8, 8, 8, EOS]]
    assert heard == output[:, 1:].T.tolist()
    for row, alone in zip(output, script):
        solo = greedy(Stub([alone]), [[1]], 5, eos_token_id=[7, EOS])[0].tolist()
        assert row[: len(solo)].tolist() == solo


def test_several_end_marks_in_the_prompt_do_not_stop_a_row_and_none_at_all_never_do():
    assert greedy(Stub([[8, 9, 7]]), [[7, EOS]], 3, eos_token_id=[7, EOS]).tolist() == [[7, EOS, 8, 9, 7]]
    for nothing in ([], (), set(), None):
        assert greedy(Stub([[EOS, 7, 8]]), [[1]], 3, eos_token_id=nothing).tolist() == [[1, EOS, 7, 8]]


# -- sampling --------------------------------------------------------------------------------------------------


def flat(rows, steps=12, **options):
    """A stub that prefers nothing: every draw shows."""
    return Stub(np.zeros((rows, steps), int), gap=0.0, eos=None, **options)


SAMPLED = {"max_new_tokens": 12, "temperature": 1.0, "top_k": 0, "top_p": 1.0}


def test_one_seed_one_output_and_the_next_call_of_one_generator_another():
    first = generate(flat(2), [[1], [1]], rng=np.random.default_rng(5), **SAMPLED)
    rng = np.random.default_rng(5)
    assert (generate(flat(2), [[1], [1]], rng=rng, **SAMPLED) == first).all()
    assert (generate(flat(2), [[1], [1]], rng=rng, **SAMPLED) != first).any()


def test_no_generator_means_a_fresh_seed_each_time():
    assert (generate(flat(1), [[1]], **SAMPLED) != generate(flat(1), [[1]], **SAMPLED)).any()


def test_rows_draw_apart_and_their_draws_do_not_depend_on_the_batch():
    three = generate(flat(3), [[1]] * 3, rng=np.random.default_rng(5), **SAMPLED)
    two = generate(flat(2), [[1]] * 2, rng=np.random.default_rng(5), **SAMPLED)
    assert (three[:2] == two).all()
    assert (three[0] != three[1]).any()


def test_draws_do_not_depend_on_which_other_rows_have_ended():
    undisturbed = generate(flat(2), [[1]] * 2, rng=np.random.default_rng(5), **SAMPLED)
    ended = undisturbed[0, 3]  # the first row now stops at its third token (or before)
    stopped = generate(flat(2), [[1]] * 2, rng=np.random.default_rng(5), eos_token_id=int(ended), **SAMPLED)
    until = np.append(np.flatnonzero(undisturbed[1] == ended), 12)[0] + 1
    assert stopped[1, :until].tolist() == undisturbed[1, :until].tolist()
    assert (stopped[0, 3:] == ended).all()


def test_temperature_zero_leaves_the_generator_alone():
    rng = np.random.default_rng(5)
    before = rng.bit_generator.state
    greedy(Stub([[7]]), [[1]], 1, rng=rng)
    assert rng.bit_generator.state == before


def test_greedy_takes_the_lowest_id_on_ties():
    assert greedy(flat(1), [[1]], 2).tolist() == [[1, 0, 0]]


def test_the_penalty_falls_on_prompt_and_output_but_not_on_padding():
    # Nothing is preferred, but a seen id's logit of 1 becomes 0.5: greedy takes the lowest id not seen yet.
    class Ones(Stub):
        def __call__(self, ids, **options):
            return super().__call__(ids, **options) * 0 + 1

    model = Ones(np.zeros((2, 9), int), eos=None)
    ids, mask = [[PAD, 1, 1], [3, 1, 2]], [[0, 1, 1], [1, 1, 1]]
    output = greedy(model, ids, 4, attention_mask=mask, repetition_penalty=2.0)
    assert output[:, 3:].tolist() == [[0, 2, 3, 4], [0, 4, 5, 6]]


def test_the_default_settings_are_minimind_s():
    # Thirty equal logits would all survive top_k 50; top_p 0.85 of 10 equal ones keeps ids 0 to 8.
    drawn = generate(flat(1, 400, positions=1000), [[1]], 400, rng=np.random.default_rng(0))[0, 1:]
    assert set(drawn.tolist()) == set(range(9))


# -- refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"input_ids": [1, 6]}, ValueError, r"shape \(2,\)"),
        ({"input_ids": np.zeros((1, 0), int)}, ValueError, "empty prompt"),
        ({"input_ids": np.zeros((0, 3), int)}, ValueError, r"shape \(0, 3\)"),
        ({"input_ids": [[1.0, 6.0]]}, TypeError, "float64"),
        ({"input_ids": [[True]]}, TypeError, "bool"),
        ({"input_ids": [[1, V]]}, ValueError, "to 10"),
        ({"input_ids": [[-1, 1]]}, ValueError, "from -1"),
        ({"attention_mask": [[1, 1, 1]]}, ValueError, r"attention_mask has shape \(1, 3\)"),
        ({"attention_mask": [[2, 1]]}, ValueError, "other values"),
        ({"attention_mask": [[NAN, 1]]}, ValueError, "other values"),
        ({"attention_mask": [[1, 0]]}, ValueError, "row 0 ends in padding"),
        ({"attention_mask": [[0, 0]]}, ValueError, "row 0 ends in padding"),
        ({"max_new_tokens": -1}, ValueError, "max_new_tokens is -1"),
        ({"max_new_tokens": 2.0}, ValueError, "max_new_tokens is 2.0"),
        ({"max_new_tokens": 63}, ValueError, "need 65 positions; the model has 64"),
        ({"temperature": -0.5}, ValueError, "temperature"),
        ({"temperature": NAN}, ValueError, "temperature"),
        ({"top_k": -1}, ValueError, "top_k"),
        ({"top_p": 1.5}, ValueError, "top_p"),
        ({"repetition_penalty": 0}, ValueError, "repetition_penalty"),
        ({"eos_token_id": V}, ValueError, r"eos_token_id must be .* \[0, 10\), a list of such or None, got 10"),
        ({"eos_token_id": -1}, ValueError, "eos_token_id must be .* got -1"),
        ({"eos_token_id": "end"}, ValueError, "eos_token_id must be .* got 'end'"),
        ({"eos_token_id": True}, ValueError, "eos_token_id must be .* got True"),
        ({"eos_token_id": [EOS, V]}, ValueError, r"eos_token_id must be .* got \[2, 10\]"),
        ({"eos_token_id": [[EOS]]}, ValueError, r"eos_token_id must be .* got \[\[2\]\]"),
        ({"eos_token_id": np.array([2.0])}, ValueError, r"eos_token_id must be .* got \[2.0\]"),
        ({"rng": 42}, TypeError, "rng is 42"),
    ],
)
def test_refuses_bad_arguments_before_anything_is_computed(options, error, named):
    model = Stub([[7, 8, 9]])
    with pytest.raises(error, match=named):
        generate(model, **{"input_ids": [[1, 6]], "max_new_tokens": 3, **options})
    assert not model.calls and not model.caches


def test_the_last_position_may_be_used():
    assert greedy(Stub([[7] * 62]), [[1, 6]], 62).shape == (1, 64)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_an_error(temperature):
    with pytest.raises(ValueError, match="row 0 are not all finite"):
        generate(Stub([[7]], gap=NAN), [[1]], max_new_tokens=1, temperature=temperature)
