"""Training: the optimizer, the schedule and the loop."""

from typing import TYPE_CHECKING

from numpy_minimind.lazy import attributes
from numpy_minimind.training.adamw import AdamW, clip_grad_norm
from numpy_minimind.training.schedule import cosine_lr
from numpy_minimind.training.trainer import Trainer, TrainingDiverged, evaluate

__all__ = [
    "AdamW",
    "Trainer",
    "TrainingDiverged",
    "clip_grad_norm",
    "cosine_lr",
    "evaluate",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attributes(
        __name__,
        {},
        moved=dict.fromkeys(
            ("Batch", "BatchStream", "EpochStream", "toy_language", "toy_report"), "numpy_minimind.data"
        ),
    )
