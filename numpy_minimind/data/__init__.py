"""Everything that makes rows of ids to train on: the toy language, texts, JSON lines, conversations; and their batches.

corpora.py is where each begins: it opens what `--corpus` names.
"""

from typing import TYPE_CHECKING

from numpy_minimind.lazy import attributes

if TYPE_CHECKING:
    from numpy_minimind.data.batches import Batch, BatchStream, EpochStream
    from numpy_minimind.data.convert import to_jsonl
    from numpy_minimind.data.corpora import load_corpus
else:
    __getattr__, __dir__ = attributes(
        __name__,
        {
            "Batch": "numpy_minimind.data.batches",
            "BatchStream": "numpy_minimind.data.batches",
            "EpochStream": "numpy_minimind.data.batches",
            "load_corpus": "numpy_minimind.data.corpora",
            "to_jsonl": "numpy_minimind.data.convert",
        },
    )

__all__ = ["Batch", "BatchStream", "EpochStream", "load_corpus", "to_jsonl"]
