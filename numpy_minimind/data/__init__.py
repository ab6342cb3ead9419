"""Everything that makes rows of ids to train on: the toy language, texts, JSON lines, conversations; and their batches.

corpora.py is where each begins: it opens what `--corpus` names.
"""

from numpy_minimind.data.batches import Batch, BatchStream, EpochStream

__all__ = ["Batch", "BatchStream", "EpochStream"]
