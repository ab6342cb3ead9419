import numpy as np
import pytest

from numpy_minimind.data.batches import (
    IGNORE,
    Batch,
    BatchStream,
    EpochStream,
    Row,
    cover,
    in_batches,
    pad_labelled,
    pad_rows,
    window_starts,
    windows_at,
)
from numpy_minimind.sharing import even_sizes


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


def test_what_has_no_label_is_not_padding():
    """In SFT most positions are read and not learned: they are attended to, and only padding is masked."""
    rows = [
        Row(np.array([1, 7, 8, 9, 4]), np.array([IGNORE, IGNORE, IGNORE, 9, IGNORE])),
        Row(np.array([1, 5, 6]), np.array([IGNORE, 5, IGNORE])),
    ]
    batch = pad_labelled(rows, pad=0)
    assert batch.inputs.tolist() == [[1, 7, 8, 9], [1, 5, 0, 0]]
    assert batch.targets.tolist() == [[IGNORE, IGNORE, 9, IGNORE], [5, IGNORE, IGNORE, IGNORE]]
    assert batch.attention_mask.tolist() == [[True] * 4, [True, True, False, False]]
    assert batch.n_tokens == 2
    assert pad_labelled(rows[:1], pad=0).attention_mask is None


@pytest.mark.parametrize(("n_rows", "batch_size"), [(7, 3), (6, 3), (2, 5), (1, 1)])
def test_a_round_takes_every_row_once(n_rows, batch_size):
    stream = EpochStream(lambda rows: Batch(rows, rows), n_rows, batch_size, np.random.default_rng(0))
    taken = np.concatenate([next(stream).inputs for _ in range(3 * n_rows)])
    assert taken.shape == (3 * n_rows * batch_size,)
    rounds = taken.reshape(-1, n_rows)
    assert all(sorted(one) == list(range(n_rows)) for one in rounds.tolist())
    assert n_rows < 6 or len({tuple(one) for one in rounds.tolist()}) > 1


@pytest.mark.parametrize("before", [0, 1, 2, 3, 7])
def test_a_stream_of_rounds_goes_on_where_its_state_was_taken(before):
    def stream(seed):
        return EpochStream(lambda rows: Batch(rows, rows), 7, 3, np.random.default_rng(seed))

    first, other = stream(3), stream(99)
    for _ in range(before):
        next(first)
    state = first.state_dict()
    expected = [next(first).inputs.tolist() for _ in range(9)]
    other.load_state_dict(state)
    assert [next(other).inputs.tolist() for _ in range(9)] == expected
    assert other.state_dict() == first.state_dict()


def test_a_stream_without_rows_is_refused():
    with pytest.raises(ValueError, match="at least one row"):
        EpochStream(lambda rows: Batch(rows, rows), 0, 3, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("rows", "parts", "sizes"), [(7, 3, [2, 2, 3]), (4, 2, [2, 2]), (3, 3, [1, 1, 1]), (5, 1, [5])]
)
@pytest.mark.parametrize("masked", [False, True])
def test_a_batch_is_split_by_rows_into_parts_as_equal_as_can_be(rows, parts, sizes, masked):
    inputs = np.arange(2 * rows).reshape(rows, 2)
    batch = Batch(inputs, inputs + 1, inputs % 3 > 0 if masked else None)
    found = batch.split(parts)
    assert [len(part.inputs) for part in found] == sizes == even_sizes(rows, parts)
    for field, whole in batch._asdict().items():
        cut = [getattr(part, field) for part in found]
        if whole is None:
            assert cut == [None] * parts
        else:
            np.testing.assert_array_equal(np.concatenate(cut), whole)
            assert all(np.shares_memory(part, whole) for part in cut)
