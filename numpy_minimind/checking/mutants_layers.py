"""Bugs of the linear map, the embedding and the norm."""

from __future__ import annotations

from numpy_minimind.checking.lab.mutation import BACKWARD, CONSISTENT, CONTRACT, Edit, Mutant

LINEAR = "layers.linear:Linear.backward"
TABLE = "layers.embedding:Embedding."
NORM = "layers.rmsnorm:RMSNorm."


LAYER_MUTANTS = (
    # -- linear ------------------------------------------------------------------------------------------------
    Mutant(
        "linear-averaged-over-rows",
        "linear",
        BACKWARD,
        "the weight's gradient is a mean over the rows of the batch, not a sum",
        "the loss is a mean, so a mean looks right here too; but the loss has already divided",
        "common",
        (Edit(LINEAR, "rows(dy).T @ rows(x)", "rows(dy).T @ rows(x) / len(rows(x))"),),
    ),
    Mutant(
        "linear-one-row-counts",
        "linear",
        BACKWARD,
        "only the first sequence of the batch adds to the weight's gradient",
        "derived for one sequence, then run with a batch",
        "common",
        (Edit(LINEAR, "rows(dy).T @ rows(x)", "rows(dy[:1]).T @ rows(x[:1])"),),
    ),
    Mutant(
        "linear-gradient-overwritten",
        "linear",
        CONTRACT,
        "the gradient is assigned, not added",
        "right as long as every weight is used once a step; wrong with accumulation and with a tied head",
        "common; chainer/chainer#1920",
        (Edit(LINEAR, "self.weight.grad += ", "self.weight.grad[...] = "),),
    ),
    # -- embedding ---------------------------------------------------------------------------------------------
    Mutant(
        "embedding-repeated-ids-lost",
        "embedding",
        BACKWARD,
        "grad[ids] += dy keeps one row of those that share an id",
        "it reads like an addition; NumPy evaluates it as read, add, write",
        "numpy/numpy#7776, numpy/numpy#16790, chainer/chainer#1920",
        (
            Edit(
                TABLE + "backward",
                "scatter_add(self.weight.grad, ids.reshape(-1), rows(dy))",
                "self.weight.grad[ids.reshape(-1)] += rows(dy)",
            ),
        ),
    ),
    Mutant(
        "embedding-times-root-of-width",
        "embedding",
        CONSISTENT,
        "rows are multiplied by sqrt(D)",
        "Vaswani et al. and Gemma do so; MiniMind and Qwen3 do not",
        "common",
        (
            Edit(TABLE + "forward", "self.weight.data[ids]", "self.weight.data[ids] * self.weight.shape[1] ** 0.5"),
            Edit(TABLE + "backward", "rows(dy))", "rows(dy) * self.weight.shape[1] ** 0.5)"),
        ),
    ),
    # -- rmsnorm -----------------------------------------------------------------------------------------------
    Mutant(
        "rmsnorm-no-cross-term",
        "rmsnorm",
        BACKWARD,
        "dx = r * dn: the scale is taken for a constant",
        "r looks like a coefficient; it depends on every x of the row",
        "common",
        (Edit(NORM + "backward", " - n * mean_product(dn, n)", ""),),
    ),
    Mutant(
        "rmsnorm-epsilon-left-out-of-backward",
        "rmsnorm",
        BACKWARD,
        "backward computes the scale again, without epsilon",
        "at unit scale it is a relative error of 1e-6: every loose check lets it pass",
        "common",
        (Edit(NORM + "backward", "x, r = saved", "x, r = saved.x, 1 / xp.sqrt(mean_product(saved.x, saved.x))"),),
    ),
    Mutant(
        "rmsnorm-gain-gradient-from-x",
        "rmsnorm",
        BACKWARD,
        "dw = sum(dy * x), with x before it was normalised",
        "x is what was saved; n must be built again",
        "common",
        (Edit(NORM + "backward", "rows(n)", "rows(x)"),),
    ),
    Mutant(
        "rmsnorm-gain-forgotten-in-backward",
        "rmsnorm",
        BACKWARD,
        "dn = dy: the gain is left out",
        "gains start at one, so a check of a fresh model cannot see it",
        "common",
        (Edit(NORM + "backward", "dn = dy * w", "dn = dy"),),
    ),
    Mutant(
        "rmsnorm-epsilon-outside-root",
        "rmsnorm",
        CONSISTENT,
        "1 / (sqrt(mean) + eps), differentiated correctly",
        "both forms are found in textbooks",
        "apache/tvm#15856, huggingface/transformers#48762",
        (
            Edit(
                NORM + "forward", "xp.sqrt(mean_product(u, u) + self.eps)", "(xp.sqrt(mean_product(u, u)) + self.eps)"
            ),
            Edit(NORM + "backward", "n * mean_product(dn, n)", "n * mean_product(dn, n) / (1 - self.eps * r)"),
        ),
    ),
    Mutant(
        "rmsnorm-epsilon-fixed",
        "rmsnorm",
        CONSISTENT,
        "epsilon is 1e-5 whatever the configuration says",
        "the default of another model, written into the formula",
        "paiml/aprender#1606, osaurus-ai/vmlx-swift#374",
        (Edit(NORM + "forward", "self.eps", "1e-5"),),
    ),
    Mutant(
        "rmsnorm-sum-for-mean",
        "rmsnorm",
        CONSISTENT,
        "1 / sqrt(sum + eps), without the division by D, differentiated correctly",
        "L2 normalisation is what the name suggests; the gain makes up for sqrt(D), and epsilon counts D times less",
        "common",
        (Edit("layers.rmsnorm:mean_product", " / a.shape[-1]", ""),),
    ),
    Mutant(
        "rmsnorm-no-epsilon",
        "rmsnorm",
        CONSISTENT,
        "epsilon is left out, in forward and backward",
        "it does nothing, until a row is small",
        "apache/tvm#15856",
        (Edit(NORM + "forward", " + self.eps", ""),),
    ),
    Mutant(
        "rmsnorm-gain-left-out",
        "rmsnorm",
        CONSISTENT,
        "y = n: the gain is never read, and learns nothing",
        "gains start at one, so nothing changes at first",
        "common",
        (
            Edit(NORM + "forward", "u * r * w", "u * r"),
            Edit(NORM + "backward", "self.weight.grad += ", "self.weight.grad += 0 * "),
            Edit(NORM + "backward", "dn = dy * w", "dn = dy"),
        ),
    ),
    Mutant(
        "rmsnorm-subtracts-the-mean",
        "rmsnorm",
        CONSISTENT,
        "the row's mean is subtracted first, as in layer normalisation",
        "habit",
        "common",
        (
            Edit(NORM + "forward", "u = at_least_float32(x)", "u = x = x - xp.mean(x, axis=-1, keepdims=True)"),
            Edit(
                NORM + "backward",
                "(r * (dn - n * mean_product(dn, n)))",
                "((dx := r * (dn - n * mean_product(dn, n))) - xp.mean(dx, axis=-1, keepdims=True))",
            ),
        ),
    ),
    Mutant(
        "rmsnorm-one-plus-gain",
        "rmsnorm",
        CONSISTENT,
        "y = n * (1 + w), as Gemma has it",
        "code is copied from a model whose gains start at zero",
        "common",
        (
            Edit(NORM + "forward", "u * r * w", "u * r * (1 + w)"),
            Edit(NORM + "backward", "dn = dy * w", "dn = dy * (1 + w)"),
        ),
    ),
)
