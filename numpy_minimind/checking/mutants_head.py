"""Bugs of head and loss in chunks: what can only go wrong because the logits are never there together."""

from __future__ import annotations

from numpy_minimind.checking.lab.mutation import BACKWARD, CONSISTENT, CONTRACT, Edit, Mutant

HEAD = "layers.linear_cross_entropy:LinearCrossEntropy."

HEAD_MUTANTS = (
    # -- the gradient that forward computes ----------------------------------------------------------------------
    Mutant(
        "head-loss-cotangent-ignored",
        "linear_cross_entropy",
        BACKWARD,
        "backward hands out what forward computed, without multiplying by dloss",
        "the gradients are there already, and dloss is 1 in training",
        "common",
        (Edit(HEAD + "backward", "dW * dloss", "dW"), Edit(HEAD + "backward", "dh * dloss", "dh * 1.0")),
    ),
    Mutant(
        "head-loss-dw-of-last-chunk",
        "linear_cross_entropy",
        BACKWARD,
        "each chunk overwrites what the chunks before it gave to dW",
        "with one chunk = and += are the same",
        "common",
        (Edit(HEAD + "forward", "add_product(dW, dx, h_m)", "dW = dx.T @ h_m"),),
    ),
    Mutant(
        "head-loss-gradient-added-in-forward",
        "linear_cross_entropy",
        BACKWARD,
        "forward adds dW into .grad itself: dloss never reaches it, and measuring a loss changes it",
        "it saves an array of the size of the head",
        "common",
        (Edit(HEAD + "forward", "add_product(dW, dx, h_m)", "add_product(self.weight.grad, dx, h_m)"),),
    ),
    Mutant(
        "head-loss-rows-moved-together",
        "linear_cross_entropy",
        BACKWARD,
        "dh of the rows that count is written side by side, as if the others did not exist",
        "the chunks are cut from the rows that count, and their places there are at hand",
        "common",
        (Edit(HEAD + "chunks", "yield m,", "yield slice(start, start + len(t_m)),"),),
    ),
    Mutant(
        "head-loss-ignored-rows-left-over",
        "linear_cross_entropy",
        BACKWARD,
        "dh is written over a copy of h, and the rows that do not count keep it",
        "every row is about to be written, so any array of that shape will do",
        "common",
        (Edit(HEAD + "forward", "xp.zeros_like(rows(h))", "rows(h).copy()"),),
    ),
    # -- chunks --------------------------------------------------------------------------------------------------
    Mutant(
        "head-loss-mean-of-each-chunk",
        "linear_cross_entropy",
        CONSISTENT,
        "each chunk is divided by its own labels: the loss is a sum of means",
        "the loss layer does so by itself when nobody tells it n",
        "common",
        (Edit(HEAD + "chunks", "t_m, n", "t_m, len(t_m)"),),
    ),
    Mutant(
        "head-loss-remainder-dropped",
        "linear_cross_entropy",
        CONSISTENT,
        "only whole chunks are computed, the rows left over at the end have no loss",
        "len // chunk is the number of chunks, if the batch is as even as in the first try",
        "common",
        (Edit(HEAD + "chunks", "range(0, len(counted),", "range(0, len(counted) // self.chunk * self.chunk,"),),
    ),
    # -- promises ------------------------------------------------------------------------------------------------
    Mutant(
        "head-loss-saved-scaled-in-place",
        "linear_cross_entropy",
        CONTRACT,
        "backward multiplies the saved dh in place: a second backward is wrong",
        "it saves an array of the size of the hidden states",
        "common",
        (Edit(HEAD + "backward", "return dh * dloss", "dh *= dloss; return dh"),),
    ),
)
