"""Bugs of attention, with and without its projections."""

from __future__ import annotations

from numpy_minimind.checking.lab.mutation import BACKWARD, CONSISTENT, Edit, Mutant

ATTEND = "layers.scaled_dot_product:ScaledDotProduct."
ATTENTION = "layers.attention:Attention."

SCALE = "1 / math.sqrt(q.shape[-1])"
DK = "dk = grouped(ds, k).swapaxes(-1, -2) @ grouped(q * scale, k)"
DV = "dv = grouped(p, k).swapaxes(-1, -2) @ grouped(do, k)"
EACH_HEAD_DK = "(ds.swapaxes(-1, -2) @ (q * scale))"
Q_PROJ = "self.q_norm.forward(split(self.q_proj(x), self.head_dim))"
DQ_NORM = "dq = self.q_norm.backward(rotate(dq, cos, -sin), q_norm)"
DK_NORM = "dk = self.k_norm.backward(rotate(dk, cos, -sin), k_norm)"
# Query heads in the order of the key heads that a tiled (not repeated) key serves, and the way back.
TILE = "order = [n for j in range(k.shape[1]) for n in range(j, q.shape[1], k.shape[1])]"
UNTILE = "sorted(range(len(order)), key=order.__getitem__)"

ATTENTION_MUTANTS = (
    # -- scaled dot product ------------------------------------------------------------------------------------
    Mutant(
        "attend-dk-transposed",
        "scaled_dot_product",
        BACKWARD,
        "dk = ds q instead of ds^T q",
        "with as many queries as keys the shapes fit; with small weights it is an error of 1e-5 in absolute terms",
        "published NumPy transformers, under green checks",
        (Edit(ATTEND + "backward", DK, DK.replace("grouped(ds, k)", "grouped(ds.swapaxes(-1, -2), k)")),),
    ),
    Mutant(
        "attend-dk-not-scaled",
        "scaled_dot_product",
        BACKWARD,
        "1/sqrt(H) is missing from dk",
        "the scale stands with q in forward, and is easily given to dq alone",
        "common",
        (Edit(ATTEND + "backward", DK, DK.replace("q * scale", "q")),),
    ),
    Mutant(
        "attend-group-not-summed",
        "scaled_dot_product",
        BACKWARD,
        "dk of a key head comes from the first query head of its group only",
        "keys were copied for the group in forward, and the copies' gradients are not added",
        "common",
        (Edit(ATTEND + "backward", DK, f"dk = {EACH_HEAD_DK}[:, :: q.shape[1] // k.shape[1]]"),),
    ),
    Mutant(
        "attend-group-averaged",
        "scaled_dot_product",
        BACKWARD,
        "dv is a mean over the query heads of the group, not a sum",
        "averaging looks symmetric; with one query head a key head it is right",
        "common",
        (Edit(ATTEND + "backward", DV, f"{DV} / (q.shape[1] // k.shape[1])"),),
    ),
    Mutant(
        "attend-softmax-skipped-in-backward",
        "scaled_dot_product",
        BACKWARD,
        "ds = p * dp, without the subtraction of the row's sum",
        "the softmax inside attention is differentiated a second time, by hand, wrongly",
        "common",
        (Edit(ATTEND + "backward", "ds = self.softmax.backward(dp, SoftmaxSaved(p))", "ds = p * dp"),),
    ),
    Mutant(
        "attend-no-scale",
        "scaled_dot_product",
        CONSISTENT,
        "scores are not divided by sqrt(H)",
        "normalised queries and keys train all the same",
        "common",
        (Edit(ATTEND + "forward", SCALE, "1.0"), Edit(ATTEND + "backward", SCALE, "1.0")),
    ),
    Mutant(
        "attend-scaled-by-width",
        "scaled_dot_product",
        CONSISTENT,
        "scores are divided by H, not by its root",
        "the root is lost when the formula is copied",
        "common; NVIDIA/TensorRT-LLM#5912 scales by another width",
        (Edit(ATTEND + "forward", SCALE, "1 / q.shape[-1]"), Edit(ATTEND + "backward", SCALE, "1 / q.shape[-1]")),
    ),
    Mutant(
        "attend-mask-after-softmax",
        "scaled_dot_product",
        CONSISTENT,
        "weights of hidden keys are set to zero after the softmax: rows no longer sum to one",
        "multiplying by the mask looks the same as masking",
        "common",
        (
            Edit(ATTEND + "forward", "forward(s, visible)", "forward(s)"),
            Edit(
                ATTEND + "forward",
                "o = (grouped(p, k)",
                "m = True if visible is None else visible\n    o = (grouped(p * m, k)",
            ),
            Edit(ATTEND + "forward", "Saved(q, k, v, p)", "Saved(q, k, v, (p, m))"),
            Edit(ATTEND + "backward", "q, k, v, p = saved", "q, k, v, (p, m) = saved"),
            Edit(ATTEND + "backward", "dv = grouped(p, k)", "dv = grouped(p * m, k)"),
            Edit(ATTEND + "backward", "backward(dp, ", "backward(dp * m, "),
        ),
    ),
    Mutant(
        "attend-mask-multiplied",
        "scaled_dot_product",
        CONSISTENT,
        "scores are multiplied by the mask: a hidden key gets the score 0, and with it an average weight",
        "in other layers a mask is a factor",
        "common",
        (
            Edit(ATTEND + "forward", SCALE, SCALE + "; self.m = True if visible is None else visible"),
            Edit(ATTEND + "forward", "self.softmax.forward(s, visible)", "self.softmax.forward(s * self.m)"),
            Edit(ATTEND + "backward", "SoftmaxSaved(p))", "SoftmaxSaved(p)) * self.m"),
        ),
    ),
    Mutant(
        "attend-keys-tiled",
        "scaled_dot_product",
        CONSISTENT,
        "query head n reads key head n mod K, not n // G",
        "np.tile for np.repeat; invisible for K = 1 and K = N",
        "onnx/onnx#7274, apple/axlearn#842, ekzhang/jax-js#180",
        (
            Edit(ATTEND + "forward", "scale = 1", f"{TILE}; q = q[:, order]; scale = 1"),
            Edit(ATTEND + "forward", "return o, ", f"return o[:, {UNTILE}], "),
            Edit(ATTEND + "backward", "scale = 1", f"{TILE}; do = do[:, order]; scale = 1"),
            Edit(ATTEND + "backward", "return dq, ", f"return dq[:, {UNTILE}], "),
        ),
    ),
    # -- attention ---------------------------------------------------------------------------------------------
    Mutant(
        "attention-q-norm-skipped-in-backward",
        "attention",
        BACKWARD,
        "the gradient passes q's norm as if it were not there",
        "q- and k-norm were added to a backward written before",
        "common",
        (Edit(ATTENTION + "backward", DQ_NORM, "dq = rotate(dq, cos, -sin)"),),
    ),
    Mutant(
        "attention-k-not-turned-back",
        "attention",
        BACKWARD,
        "dk is turned by the same angle, not the opposite one",
        "one of two sign changes is forgotten",
        "common",
        (Edit(ATTENTION + "backward", DK_NORM, DK_NORM.replace("-sin", "sin")),),
    ),
    Mutant(
        "attention-k-norm-copied-from-q",
        "attention",
        BACKWARD,
        "dk goes back through q's norm: k's gain learns nothing, q's twice",
        "copy and paste",
        "common",
        (Edit(ATTENTION + "backward", DK_NORM, DK_NORM.replace("self.k_norm", "self.q_norm")),),
    ),
    Mutant(
        "attention-v-path-dropped",
        "attention",
        BACKWARD,
        "dx misses the path through v",
        "three paths lead to x; the weight of v still gets its gradient",
        "common",
        (Edit(ATTENTION + "backward", "+ self.v_proj", "+ 0 * self.v_proj"),),
    ),
    Mutant(
        "attention-q-norm-left-out",
        "attention",
        CONSISTENT,
        "queries are not normalised, in forward and backward",
        "Llama has no such norm; its gain is then never read",
        "common",
        (
            Edit(ATTENTION + "heads", Q_PROJ, "split(self.q_proj(x), self.head_dim), None"),
            Edit(ATTENTION + "backward", DQ_NORM, "dq = rotate(dq, cos, -sin)"),
        ),
    ),
    Mutant(
        "attention-v-rotated",
        "attention",
        CONSISTENT,
        "values are turned like keys",
        "q, k and v are handled in one loop",
        "common",
        (
            Edit(ATTENTION + "heads", "return q, k, v", "v = rotate(v, context.cos, context.sin); return q, k, v"),
            Edit(ATTENTION + "backward", "merge(dv)", "merge(rotate(dv, cos, -sin))"),
        ),
    ),
    Mutant(
        "attention-norm-after-rotation",
        "attention",
        CONSISTENT,
        "queries are turned first and normalised then: the gain meets other coordinates",
        "with a gain of ones both orders are equal",
        "common",
        (
            Edit(
                ATTENTION + "heads",
                Q_PROJ,
                Q_PROJ.replace("self.head_dim)", "self.head_dim), context.cos, context.sin)").replace(
                    "split(", "rotate(split("
                ),
            ),
            Edit(ATTENTION + "heads", "q = rotate(q, context.cos, context.sin)", "pass"),
            Edit(ATTENTION + "backward", DQ_NORM, "dq = rotate(self.q_norm.backward(dq, q_norm), cos, -sin)"),
        ),
    ),
    Mutant(
        "attention-heads-merged-untransposed",
        "attention",
        CONSISTENT,
        "(B, N, T, H) is reshaped to (B, T, N * H) without exchanging heads and tokens",
        "the shapes fit; tokens of one head become heads of one token",
        "common",
        (
            Edit(ATTENTION + "forward", "o = merge(o)", "o = o.reshape(*x.shape[:2], -1)"),
            Edit(
                ATTENTION + "__call__",
                "merge(self.way(context)(q, k, v, context.visible))",
                "self.way(context)(q, k, v, context.visible).reshape(*x.shape[:2], -1)",
            ),
            Edit(
                ATTENTION + "backward",
                "do = split(self.o_proj.backward(dy, LinearSaved(o)), self.head_dim)",
                "do = self.o_proj.backward(dy, LinearSaved(o)).reshape(attend.q.shape)",
            ),
        ),
    ),
)
