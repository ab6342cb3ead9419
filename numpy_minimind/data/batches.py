"""From ids to batches: windows of running text, rows of whole sentences, and a stream whose place can be saved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from numpy_minimind.sharing import even_sizes

IGNORE = -100  # the label of a position that does not count


class Batch(NamedTuple):
    """What a step of training sees. Targets are already shifted: targets[b, t] follows inputs[b, t].

    A position may be attended to and have nothing to predict (what the user said, in SFT), hence a mask of its own:
    targets do not tell padding from text.
    """

    inputs: np.ndarray  # (B, T) ids
    targets: np.ndarray  # (B, T) ids, or -100 where there is nothing to predict
    attention_mask: np.ndarray | None = None  # (B, T) bool, False for padding; None where nothing is padding

    @property
    def n_tokens(self) -> int:
        """Labels that count."""
        return int((self.targets != IGNORE).sum())

    def split(self, parts: int) -> list[Batch]:
        """Cut the batch by rows, into parts as equal as can be."""
        cuts = np.cumsum(even_sizes(len(self.inputs), parts))[:-1]
        arrays = [[None] * parts if array is None else np.split(array, cuts) for array in self]
        return [Batch(*part) for part in zip(*arrays)]


class Row(NamedTuple):
    """Ids and their labels, side by side and not shifted: labels[t] is ids[t], or -100 where it is not learned."""

    ids: np.ndarray  # (n,)
    labels: np.ndarray  # (n,)


class BatchStream(Iterator[Batch]):
    """Endless batches from one generator: its state is the whole of the place in the data.

    Parameters
    ----------
    draw : callable
        From a generator to a batch.
    rng : numpy.random.Generator
        Used by nothing else.
    """

    def __init__(self, draw: Callable[[np.random.Generator], Batch], rng: np.random.Generator) -> None:
        self.draw, self.rng = draw, rng

    def __next__(self) -> Batch:
        return self.draw(self.rng)

    def state_dict(self) -> dict[str, Any]:
        """Return the generator's state: plain numbers and strings."""
        return dict(self.rng.bit_generator.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken."""
        self.rng.bit_generator.state = state


class EpochStream(Iterator[Batch]):
    """Endless batches of numbered rows: every row once, in a random order, then every row again in another.

    All batches are of one size: one may hold the last rows of a round and the first of the next. The whole of the
    place in the data is the generator's state at the beginning of the round, from which its order follows, and the
    number of rows taken since.

    Parameters
    ----------
    batch_of : callable
        From row numbers to a batch.
    n_rows, batch_size : int
    rng : numpy.random.Generator
        Used by nothing else.
    """

    def __init__(
        self, batch_of: Callable[[np.ndarray], Batch], n_rows: int, batch_size: int, rng: np.random.Generator
    ) -> None:
        if n_rows < 1 or batch_size < 1:
            raise ValueError(f"there must be at least one row, and one row a batch, got {n_rows} and {batch_size}")
        self.batch_of, self.n_rows, self.batch_size, self.rng = batch_of, n_rows, batch_size, rng
        self._begin_round()

    def _begin_round(self) -> None:
        self.state_at_begin, self.taken = dict(self.rng.bit_generator.state), 0
        self.order = self.rng.permutation(self.n_rows)

    def __next__(self) -> Batch:
        rows: list[np.ndarray] = []
        missing = self.batch_size
        while missing:
            if self.taken == self.n_rows:
                self._begin_round()
            rows.append(self.order[self.taken : self.taken + missing])
            self.taken += len(rows[-1])
            missing -= len(rows[-1])
        return self.batch_of(np.concatenate(rows))

    def state_dict(self) -> dict[str, Any]:
        """Return {"rng", "taken"}: plain numbers and strings."""
        return {"rng": self.state_at_begin, "taken": self.taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken."""
        self.rng.bit_generator.state = state["rng"]
        self._begin_round()
        self.taken = state["taken"]


def window_starts(lengths: Sequence[int], seq_len: int) -> np.ndarray:
    """Return every start of a window of seq_len + 1 ids that lies within one of the segments laid end to end.

    >>> window_starts([18, 5, 17], 16)
    array([ 0,  1, 23])
    """
    ends = np.cumsum(lengths)
    starts = [np.arange(end - length, end - seq_len) for length, end in zip(lengths, ends)]
    return np.concatenate(starts) if starts else np.arange(0)


def windows_at(ids: np.ndarray, starts: np.ndarray, seq_len: int) -> Batch:
    """Cut windows of seq_len + 1 ids: all but the last are inputs, all but the first are targets."""
    window = ids[starts[:, None] + np.arange(seq_len + 1)]  # (B, seq_len + 1)
    return Batch(window[:, :-1], window[:, 1:])


def cover(segments: Sequence[np.ndarray], seq_len: int) -> list[np.ndarray]:
    """Cut each segment into windows that share their edge id, so that all ids but the first are predicted once."""
    return [
        segment[start : start + seq_len + 1] for segment in segments for start in range(0, len(segment) - 1, seq_len)
    ]


def pad_rows(rows: Sequence[np.ndarray], pad: int) -> Batch:
    """Put rows of ids side by side, every id but the first to be predicted."""
    return pad_labelled([Row(row, row) for row in rows], pad)


def pad_labelled(rows: Sequence[Row], pad: int) -> Batch:
    """Put rows side by side: inputs padded on the right with `pad`, which is masked, and targets with -100."""
    T = max(len(row.ids) for row in rows) - 1
    inputs = np.full((len(rows), T), pad, np.int64)
    targets = np.full((len(rows), T), IGNORE, np.int64)
    mask = np.zeros((len(rows), T), bool)
    for b, row in enumerate(rows):
        n = len(row.ids) - 1
        inputs[b, :n], targets[b, :n], mask[b, :n] = row.ids[:-1], row.labels[1:], True
    return Batch(inputs, targets, None if mask.all() else mask)


def in_batches(rows: Sequence[np.ndarray], batch_size: int, pad: int) -> list[Batch]:
    """Pad `rows` in groups of `batch_size`, in order; the last group may be smaller."""
    return [pad_rows(rows[i : i + batch_size], pad) for i in range(0, len(rows), batch_size)]
