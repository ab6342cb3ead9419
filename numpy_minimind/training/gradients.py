"""What a trainer asks for: the gradient of a batch, whoever computes it.

The model itself does (`add_gradients`); threads of this process do, and the processes that MPI started: each takes some
rows (`Batch.split`), and the parts' gradients are added in the order of the rows. So the same number of parts gives the
same result bit for bit, another number one that differs by rounding.

With experts, a part is what a micro-batch is: the auxiliary loss, a product of means over tokens, is taken over the
tokens of the part and weighted by the part's share of the labels.
"""

from __future__ import annotations

from collections.abc import Callable

from numpy_minimind.data.batches import Batch
from numpy_minimind.model import LossAndGrad, MiniMindForCausalLM

# From a batch and the number of labels of all batches of the step to the losses, which may still be computed on a
# device; the gradient is added to those of the model's parameters.
GradientsOf = Callable[[Batch, int], LossAndGrad]


def add_gradients(model: MiniMindForCausalLM, batch: Batch, n: int) -> LossAndGrad:
    """Let the model compute the batch alone."""
    return model.loss_and_grad_shifted(batch.inputs, batch.targets, batch.attention_mask, n, read=False)
