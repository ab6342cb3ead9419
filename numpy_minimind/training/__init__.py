"""Training: the optimizer, the schedule, the corpora and the loop."""

from numpy_minimind.training.adamw import AdamW, clip_grad_norm
from numpy_minimind.training.batches import Batch, BatchStream, EpochStream
from numpy_minimind.training.schedule import cosine_lr
from numpy_minimind.training.trainer import Trainer, TrainingDiverged, evaluate

__all__ = [
    "AdamW",
    "Batch",
    "BatchStream",
    "EpochStream",
    "Trainer",
    "TrainingDiverged",
    "clip_grad_norm",
    "cosine_lr",
    "evaluate",
]
