"""The evidence for `ScaledDotProduct`: where it is differenced, what it must give, which bugs must be noticed."""

from __future__ import annotations

from typing import Any

import numpy as np

from numpy_minimind.checking.lab.mutation import BACKWARD, CONSISTENT, Edit, Mutant
from numpy_minimind.checking.points import CAUSAL, LATER, LEFT_PADDED, B, Build, H, K, N, Point, Rng, S, T
from numpy_minimind.checking.reference import array, gradients, known
from numpy_minimind.layers import ScaledDotProduct

# -- points ----------------------------------------------------------------------------------------------------------


def point(kv_heads: int, queries: int, keys: int, visible: Any, **options: Any) -> Build:
    def build(rng: Rng) -> Point:
        q, k, v = (
            rng.normal(size=(B, heads, length, H))
            for heads, length in ((N, queries), (kv_heads, keys), (kv_heads, keys))
        )
        return Point(ScaledDotProduct(), (q, k, v, visible), options)

    return build


CASES = {
    "mha": point(N, T, T, CAUSAL),
    "gqa": point(K, T, T, CAUSAL),
    "mqa": point(1, T, T, CAUSAL),
    "later-queries": point(K, T, S, LATER),
    "left-padded": point(K, T, S, LEFT_PADDED),
    "one-query": point(K, 1, S, None),
    "strided": point(K, T, S, LATER, strided=True),
}

MUTANTS_AT = ("gqa", "left-padded")  # of these cases

# -- known values ----------------------------------------------------------------------------------------------------


def heads_of_two_groups(name: str) -> Any:
    """Four query heads, two key heads, one token: v is 10 and 20, dO is 1, 2, 3, 4."""
    q, k, v = np.zeros((1, 4, 1, 1)), np.zeros((1, 2, 1, 1)), array(10, 20).reshape(1, 2, 1, 1)
    found = gradients(ScaledDotProduct(), (q, k, v), array(1, 2, 3, 4).reshape(1, 4, 1, 1))
    return np.ravel(found["y"] if name == "y" else found["dx"][2])


def two_keys(name: str) -> Any:
    """One query of ones, keys of ones and of zeros: scores 4 / sqrt(4) = 2 and 0. The second value is zero."""
    one, zero = np.ones((1, 1, 1, 4)), np.zeros((1, 1, 1, 4))
    keys = np.concatenate((one, zero), axis=2)
    do = array(1, 0, 0, 0).reshape(1, 1, 1, 4)
    found = gradients(ScaledDotProduct(), (one, keys, keys.copy()), do)
    return found["y"][0, 0, 0] if name == "y" else np.ravel(found["dx"][["q", "k", "v"].index(name)])[::4]


def hidden_rows(name: str) -> Any:
    """Two queries, two keys; the first query sees nothing, the second one only the first key."""
    one = array([1, 1], [1, 1]).reshape(1, 1, 2, 2)
    v, visible = array([3, 5], [7, 9]).reshape(1, 1, 2, 2), np.array([[False, False], [True, False]])
    found = gradients(ScaledDotProduct(), (one, one.copy(), v, visible), np.ones((1, 1, 2, 2)))
    return found["y"][0, 0] if name == "y" else found["dx"][2][0, 0]


KNOWN = [
    known("heads 0 and 1 read key head 0", lambda: heads_of_two_groups("y"), [10, 10, 20, 20], "onnx/onnx#7274"),
    known("dv sums over the group", lambda: heads_of_two_groups("dv"), [3, 7]),
    known("scores over sqrt(H)", lambda: two_keys("y"), [0.880797078] * 4),
    known("dq", lambda: two_keys("q"), [0.0524967927]),
    known("dk", lambda: two_keys("k"), [0.0524967927, -0.0524967927]),
    known("dv", lambda: two_keys("v"), [0.880797078, 0.119202922]),
    known("a query that sees nothing gets 0", lambda: hidden_rows("y"), [[0, 0], [3, 5]], "pytorch/pytorch#41508"),
    known("and gives nothing", lambda: hidden_rows("dv"), [[1, 1], [0, 0]]),
]

# -- mutants ---------------------------------------------------------------------------------------------------------

ATTEND = "layers.scaled_dot_product:ScaledDotProduct."
SCALE = "1 / math.sqrt(q.shape[-1])"
DK = "dk = grouped(ds, k).swapaxes(-1, -2) @ grouped(q * scale, k)"
DV = "dv = grouped(p, k).swapaxes(-1, -2) @ grouped(do, k)"
EACH_HEAD_DK = "(ds.swapaxes(-1, -2) @ (q * scale))"
# Query heads in the order of the key heads that a tiled (not repeated) key serves, and the way back.
TILE = "order = [n for j in range(k.shape[1]) for n in range(j, q.shape[1], k.shape[1])]"
UNTILE = "sorted(range(len(order)), key=order.__getitem__)"

MUTANTS = (
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
            Edit(ATTEND + "forward", "forward(s, visible)", "forward(s * (m := True if visible is None else visible))"),
            Edit(ATTEND + "forward", "Saved(q, k, v, p)", "Saved(q, k, v, (p, m))"),
            Edit(ATTEND + "backward", "q, k, v, p = saved", "q, k, v, (p, m) = saved"),
            Edit(ATTEND + "backward", "SoftmaxSaved(p))", "SoftmaxSaved(p)) * m"),
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
)
