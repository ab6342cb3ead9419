import numpy as np

from numpy_minimind.training.batches import (
    IGNORE,
    Batch,
    BatchStream,
    cover,
    in_batches,
    pad_rows,
    window_starts,
    windows_at,
)


def test_a_window_is_seq_len_plus_one_ids():
    """Open case D04: 17 tokens hold one window of context 16, 18 hold two, 16 none."""
    assert window_starts([16], 16).tolist() == []
    assert window_starts([17], 16).tolist() == [0]
    assert window_starts([18], 16).tolist() == [0, 1]


def test_no_window_crosses_from_one_segment_into_another():
    starts = window_starts([5, 2, 4], 3)
    assert starts.tolist() == [0, 1, 7]


def test_targets_are_the_inputs_one_later():
    batch = windows_at(np.arange(10), np.array([0, 3]), 4)
    assert batch.inputs.tolist() == [[0, 1, 2, 3], [3, 4, 5, 6]]
    assert batch.targets.tolist() == [[1, 2, 3, 4], [4, 5, 6, 7]]
    assert batch.attention_mask is None and batch.n_tokens == 8


def test_cover_predicts_every_id_but_the_first_exactly_once():
    segment = np.arange(23)
    batches = in_batches(cover([segment], 5), 2, pad=0)
    predicted = np.concatenate([b.targets[b.targets != IGNORE] for b in batches])
    assert predicted.tolist() == list(range(1, 23))
    assert cover([np.arange(1)], 5) == []


def test_padding_is_masked_and_not_labelled():
    batch = pad_rows([np.array([7, 8, 9, 4]), np.array([7, 5])], pad=0)
    assert batch.inputs.tolist() == [[7, 8, 9], [7, 0, 0]]
    assert batch.targets.tolist() == [[8, 9, 4], [5, IGNORE, IGNORE]]
    assert batch.attention_mask.tolist() == [[True] * 3, [True, False, False]]
    assert batch.n_tokens == 4


def test_a_stream_goes_on_where_its_state_was_taken():
    def draw(rng):
        return Batch(rng.integers(0, 9, (2, 3)), rng.integers(0, 9, (2, 3)))

    stream = BatchStream(draw, np.random.default_rng(3))
    next(stream)
    state = stream.state_dict()
    expected = [next(stream) for _ in range(3)]
    other = BatchStream(draw, np.random.default_rng(99))
    other.load_state_dict(state)
    for batch in expected:
        again = next(other)
        np.testing.assert_array_equal(again.inputs, batch.inputs)
        np.testing.assert_array_equal(again.targets, batch.targets)
