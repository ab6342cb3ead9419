"""From ids to batches: windows of running text, rows of whole sentences, and a stream whose place can be saved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

IGNORE = -100  # the label of a position that does not count


class Batch(NamedTuple):
    """What a step of training sees. Targets are already shifted: targets[b, t] follows inputs[b, t]."""

    inputs: np.ndarray  # (B, T) ids
    targets: np.ndarray  # (B, T) ids, or -100 where there is nothing to predict

    @property
    def attention_mask(self) -> np.ndarray | None:
        """(B, T) bool, False for padding at the end of a row; None where every position counts."""
        counted = self.targets != IGNORE
        return None if counted.all() else counted

    @property
    def n_tokens(self) -> int:
        """Labels that count."""
        return int((self.targets != IGNORE).sum())


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
    """Put rows of ids side by side: inputs padded on the right with `pad`, targets with -100."""
    T = max(len(row) for row in rows) - 1
    inputs = np.full((len(rows), T), pad, np.int64)
    targets = np.full((len(rows), T), IGNORE, np.int64)
    for b, row in enumerate(rows):
        inputs[b, : len(row) - 1] = row[:-1]
        targets[b, : len(row) - 1] = row[1:]
    return Batch(inputs, targets)


def in_batches(rows: Sequence[np.ndarray], batch_size: int, pad: int) -> list[Batch]:
    """Pad `rows` in groups of `batch_size`, in order; the last group may be smaller."""
    return [pad_rows(rows[i : i + batch_size], pad) for i in range(0, len(rows), batch_size)]
