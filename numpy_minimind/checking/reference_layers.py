"""Known values that fit on paper: one or more a layer, each small enough to be computed with a pocket calculator.

Many are the smallest inputs on which users of other projects met a fault; the issues are named beside them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from numpy_minimind.checking.reference import BY_HAND, ReferenceValue, gradients, with_weights
from numpy_minimind.config import MiniMindConfig
from numpy_minimind.layers import (
    CrossEntropyLoss,
    Embedding,
    FlashAttention,
    Linear,
    LinearCrossEntropy,
    MoE,
    RMSNorm,
    RotaryEmbedding,
    ScaledDotProduct,
    Softmax,
    SwiGLU,
)
from numpy_minimind.yarn import YARN, read_yarn


def known(name: str, compute: Callable[[], Any], expected: Any, source: str = BY_HAND, tolerance: float = 1e-9) -> Any:
    return ReferenceValue(name, compute, expected, tolerance, source)


def array(*numbers: Any) -> np.ndarray:
    return np.array(numbers, np.float64)


# -- the points ------------------------------------------------------------------------------------------------------


def linear(name: str) -> Any:
    layer = with_weights(Linear(2, 2), weight=[[1, 2], [3, 4]])
    return gradients(layer, (array([1, 1], [0, 2]),), array([1, -1], [2, 0]))[name]


def embedding(name: str) -> Any:
    layer = with_weights(Embedding(3, 2), weight=[[1, 0], [0, 1], [1, 1]])
    return gradients(layer, (np.array([2, 2, 0, 2]),), np.ones((4, 2)))[name]


def tied_head(name: str) -> Any:
    """Embedding and head share a table; nothing stands between them: ids [1, 1], targets [2, 0], mean loss."""
    table = with_weights(Embedding(3, 2), weight=[[1, 0], [0, 1], [1, 1]])
    head, loss = Linear(2, 3, weight=table.weight), CrossEntropyLoss()
    x, ids = table.forward(np.array([1, 1]))
    logits, head_saved = head.forward(x)
    value, saved = loss.forward(logits, np.array([2, 0]))
    table.backward(head.backward(loss.backward(1.0, saved), head_saved), ids)
    return value if name == "loss" else table.weight.grad


def norm(name: str, x: Any, dy: Any, gain: Any = 1.0, eps: float = 1e-6) -> Any:
    return gradients(with_weights(RMSNorm(len(x), eps), weight=gain), (array(*x),), array(*dy))[name]


def rope(name: str) -> Any:
    return gradients(RotaryEmbedding(4, 1e6), (array([1, 2, 3, 4]), np.array([1])), array([1, 0, 0, 1]))[name][0]


def stretched(H: int, theta: float, **changes: Any) -> RotaryEmbedding:
    """With MiniMind's YaRN, or a changed one."""
    return RotaryEmbedding(H, theta, read_yarn({**YARN, **changes}, H, theta, 32768))


def yarn_factor_in_backward() -> Any:
    """A rotation by 0 and the factor 3: the transpose multiplies by 3 as well."""
    layer = stretched(2, 1e6, original_max_position_embeddings=4, attention_factor=3.0)
    return gradients(layer, (array([1, 2]), np.array([0])), array([1, -1]))["dx"][0]


def softmax(name: str, x: Any, dy: Any = (1, 0, 0), visible: Any = None) -> Any:
    mask = None if visible is None else np.array(visible, bool)
    found = gradients(Softmax(), (np.atleast_2d(array(*x)), mask), np.atleast_2d(array(*dy)))[name]
    return found.reshape(np.shape(x))


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


def flash_heads(name: str) -> Any:
    """As `heads_of_two_groups`."""
    q, k, v = np.zeros((1, 4, 1, 1)), np.zeros((1, 2, 1, 1)), array(10, 20).reshape(1, 2, 1, 1)
    found = gradients(FlashAttention(), (q, k, v), array(1, 2, 3, 4).reshape(1, 4, 1, 1))
    return np.ravel(found["y"] if name == "y" else found["dx"][2])


def shares(scores: Any, queries: int = 1, mask: Any = None, blocks: tuple[int, int] = (1, 1)) -> Any:
    """Shares of the keys in each query: values are rows of the identity matrix, and queries are all alike."""
    S = len(scores)
    q, k, v = np.zeros((queries, S)), np.zeros((S, S)), np.eye(S)
    q[:, 0], k[:, 0] = math.sqrt(S), scores
    keys = None if mask is None else np.array([mask], bool)
    return FlashAttention(*blocks)(q[None, None], k[None, None], v[None, None], keys)[0, 0]


def two_keys_in_blocks(name: str) -> Any:
    """As `two_keys`, one key a block."""
    one, zero = np.ones((1, 1, 1, 4)), np.zeros((1, 1, 1, 4))
    keys = np.concatenate((one, zero), axis=2)
    found = gradients(FlashAttention(1, 1), (one, keys, keys.copy()), array(1, 0, 0, 0).reshape(1, 1, 1, 4))
    return found["y"][0, 0, 0] if name == "y" else np.ravel(found["dx"][["q", "k", "v"].index(name)])[::4]


def swiglu(name: str) -> Any:
    layer = with_weights(SwiGLU(1, 1), gate_proj__weight=2, up_proj__weight=3, down_proj__weight=0.5)
    return np.ravel(gradients(layer, (array([1]),), array([1]))[name])


def silu(name: str) -> Any:
    """Silu in float32, where the exponential overflows at 89; NaN if it does."""
    layer = SwiGLU(1, 1)
    with_weights(layer, gate_proj__weight=1, up_proj__weight=1, down_proj__weight=1).astype(np.float32)
    x = np.array([[-1000], [-20], [0], [20]], np.float32)
    try:
        with np.errstate(over="raise", invalid="raise"):
            y, saved = layer.forward(x)
            layer.backward(np.ones_like(x), saved)
    except FloatingPointError:
        return np.nan
    return np.ravel(y) / np.array([1, -20, 1, 20]) if name == "y" else np.ravel(layer.down_proj.weight.grad)


def router(k: int, normalised: bool) -> Any:
    """Router logits [2, 1, 0, -1]: the router's matrix is the identity."""
    config = MiniMindConfig(
        hidden_size=4,
        num_attention_heads=1,
        num_key_value_heads=1,
        use_moe=True,
        num_experts_per_tok=k,
        norm_topk_prob=normalised,
        moe_intermediate_size=1,
        router_aux_loss_coef=0.01,
    )
    return with_weights(MoE(config), gate__weight=np.eye(4))


LOGITS = array([2, 1, 0, -1])


def aux_loss(k: int, x: Any, counted: Any = None) -> Any:
    mask = None if counted is None else np.array(counted, bool)
    return router(k, True).forward(array(*x), mask)[0].aux_loss


def loss(name: str, logits: Any, targets: Any, items: int | None = None, dloss: float = 1.0) -> Any:
    return gradients(CrossEntropyLoss(), (array(*logits), np.array(targets), items), dloss)[name]


def head_loss(name: str, h: Any, targets: Any, items: int | None = None, dloss: float = 1.0, chunk: int = 1) -> Any:
    """A hidden state is one number, the head is (0, 1, 2): the logits of ln 2 are the logarithms of 1, 2, 4."""
    head = with_weights(Linear(1, 3), weight=[[0], [1], [2]])
    layer = LinearCrossEntropy(head.weight, chunk=chunk)
    return np.ravel(gradients(layer, (array(*h)[:, None], np.array(targets), items), dloss)[name])


# -- the values ------------------------------------------------------------------------------------------------------

LN2 = math.log(2)
TWO_OF_THREE = ([[1, 2, 3], [5, 1, 1], [0, 0, 0]], [0, -100, 2])  # the second label is ignored
TWO_ROWS = ([LN2, 3, LN2], [1, -100, 0])  # as above

LAYER_REFERENCES: dict[str, list[ReferenceValue]] = {
    "linear": [
        known("y = x W^T", lambda: linear("y"), [[3, 7], [4, 8]]),
        known("dx = dy W", lambda: linear("dx"), [[-2, -2], [2, 4]]),
        known("dW = dy^T x", lambda: linear("weight"), [[1, 5], [-1, -1]]),
    ],
    "embedding": [
        known("rows of the table", lambda: embedding("y"), [[1, 1], [1, 1], [1, 0], [1, 1]]),
        known("an id that occurs three times adds three rows", lambda: embedding("weight"), [[1, 1], [0, 0], [3, 3]]),
    ],
    "rmsnorm": [
        known("[3, 4]", lambda: norm("y", [3, 4], [1, 0]), [0.8485281035, 1.131370805]),
        known("[3, 4] backward", lambda: norm("dx", [3, 4], [1, 0]), [0.1810193369, -0.1357644857]),
        known("gain [2, -1]", lambda: norm("y", [3, 4], [1, 1], [2, -1]), [1.697056207, -1.131370805]),
        known("gain in dx", lambda: norm("dx", [3, 4], [1, 1], [2, -1]), [0.4978031595, -0.3733523583]),
        known("dw = dy n", lambda: norm("weight", [3, 4], [1, 1], [2, -1]), [0.8485281035, 1.131370805]),
        known(
            "rms of sqrt(epsilon)", lambda: norm("y", [1e-3] * 8, [1] * 8), [0.7071067812] * 8, "apache/tvm#15856"
        ),
        known("epsilon 1e-5", lambda: norm("y", [1e-3] * 8, [1] * 8, eps=1e-5), [0.3015113446] * 8),
        known("a row of zeros: dx = 1000 w dy", lambda: norm("dx", [0, 0], [1, -2], [2, 1]), [2000, -2000]),
    ],
    "rope": [
        known(
            "half-split layout at position 1",
            lambda: rope("y"),
            [-1.984110649, 1.995999001, 2.462377902, 4.001998],
            "cosines and sines of 1 and 0.001; the layouts: jingyaogong/minimind#449",
        ),
        known("turned back", lambda: rope("dx"), [0.5403023059, 0.0009999998333, -0.8414709848, 0.9999995]),
        known("frequencies of theta 1e6", lambda: RotaryEmbedding(4, 1e6).frequencies, [1, 0.001]),
        known(
            "angle at position 32,651",
            lambda: np.ravel(RotaryEmbedding(96).table(np.array([32651]), np.float64))[2::48],
            [0.03164982907, 0.9994990187],
            "mpmath, 40 digits; huggingface/transformers#29285",
        ),
        known(
            "YaRN, H 8, theta 1e6",
            lambda: stretched(8, 1e6).frequencies,
            [1, 0.01679960007, 6.25e-5, 1.976423538e-6],
            "the paper's formula; huggingface/transformers#38224",
        ),
        known(
            "YaRN, H 8, theta 100: the ramp ends at H/2 - 1",
            lambda: stretched(8, 100.0).frequencies,
            [1, 0.316227766, 0.1, 0.001976423538],
            "the paper's formula, clamped as MiniMind does",
        ),
        known("YaRN's factor stays in the transpose", yarn_factor_in_backward, [3, -3]),
    ],
    "softmax": [
        known("[1, 2, 3]", lambda: softmax("y", [1, 2, 3]), [0.09003057317, 0.2447284711, 0.6652409558]),
        known(
            "[1, 2, 3] backward", lambda: softmax("dx", [1, 2, 3]), [0.08192506906, -0.02203304452, -0.05989202454]
        ),
        known(
            "the second hidden",
            lambda: softmax("y", [1, 2, 3], visible=[1, 0, 1]),
            [0.119202922, 0, 0.880797078],
        ),
        known("all hidden", lambda: softmax("y", [1, 2, 3], visible=[0, 0, 0]), [0, 0, 0], "pytorch/pytorch#103749"),
        known("scores of 1000", lambda: softmax("y", [1000, 1000, 0]), [0.5, 0.5, 0]),
        known(
            "rows, not columns, sum to one",
            lambda: softmax("y", [[0, 0], [0, math.log(3)]], [[1, 0], [1, 0]]),
            [[0.5, 0.5], [0.25, 0.75]],
        ),
    ],
    "scaled_dot_product": [
        known("heads 0 and 1 read key head 0", lambda: heads_of_two_groups("y"), [10, 10, 20, 20], "onnx/onnx#7274"),
        known("dv sums over the group", lambda: heads_of_two_groups("dv"), [3, 7]),
        known("scores over sqrt(H)", lambda: two_keys("y"), [0.880797078] * 4),
        known("dq", lambda: two_keys("q"), [0.0524967927]),
        known("dk", lambda: two_keys("k"), [0.0524967927, -0.0524967927]),
        known("dv", lambda: two_keys("v"), [0.880797078, 0.119202922]),
        known("a query that sees nothing gets 0", lambda: hidden_rows("y"), [[0, 0], [3, 5]], "pytorch/pytorch#41508"),
        known("and gives nothing", lambda: hidden_rows("dv"), [[1, 1], [0, 0]]),
    ],
    "flash_attention": [
        known("heads 0 and 1 read key head 0", lambda: flash_heads("y"), [10, 10, 20, 20], "onnx/onnx#7274"),
        known("dv sums over the group", lambda: flash_heads("dv"), [3, 7]),
        known("scores over sqrt(H), two blocks", lambda: two_keys_in_blocks("y"), [0.880797078] * 4),
        known("dq", lambda: two_keys_in_blocks("q"), [0.0524967927]),
        known("dk", lambda: two_keys_in_blocks("k"), [0.0524967927, -0.0524967927]),
        known("dv", lambda: two_keys_in_blocks("v"), [0.880797078, 0.119202922]),
        known("rising scores", lambda: shares([1, 2, 3]), [[0.09003057317, 0.2447284711, 0.6652409558]]),
        known("falling scores", lambda: shares([3, 2, 1]), [[0.6652409558, 0.2447284711, 0.09003057317]]),
        known(
            "scores of -1e5",
            lambda: shares([-1e5, -1e5, -1e5]),
            [[0.3333333333] * 3],
            "Dao-AILab/flash-attention#2082, flashinfer-ai/flashinfer#4267",
        ),
        known("scores of 1e5", lambda: shares([-1e5, 1e5]), [[0, 1]]),
        known(
            "two queries are the last of four tokens",
            lambda: shares([0, 0, 0, 0], queries=2, blocks=(2, 2)),
            [[0.3333333333, 0.3333333333, 0.3333333333, 0], [0.25, 0.25, 0.25, 0.25]],
            "Dao-AILab/flash-attention#282",
        ),
        known("padding hidden", lambda: shares([0, 0, 5], mask=[0, 1, 0]), [[0, 1, 0]]),
        known(
            "a query that sees nothing gets 0",
            lambda: shares([2, 0], queries=2, mask=[0, 1], blocks=(2, 2)),
            [[0, 0], [0, 1]],
            "pytorch/pytorch#41508",
        ),
    ],
    "swiglu": [
        known("silu(2) 3 / 2", lambda: swiglu("y"), [2.642391234]),
        known("dx", lambda: swiglu("dx"), [5.91474398]),
        known("dW of gate", lambda: swiglu("gate_proj.weight"), [1.636176373]),
        known("dW of up", lambda: swiglu("up_proj.weight"), [0.880797078]),
        known("dW of down", lambda: swiglu("down_proj.weight"), [5.284782468]),
        known(
            "silu(x) x of -1000, -20, 0, 20 without a warning, over -20 and 20",
            lambda: silu("y"),
            [0, -4.122307e-8, 0, 20],
            "ahmedfgad/NumPyCNN#13",
            1e-6,
        ),
    ],
    "moe": [
        known("two of [2, 1, 0, -1]", lambda: router(2, True).route(LOGITS)[2][0], [0.7310585786, 0.2689414214]),
        known("not renormalised", lambda: router(2, False).route(LOGITS)[2][0], [0.6439142599, 0.2368828181]),
        known("one, not renormalised", lambda: router(1, False).route(LOGITS)[2][0], [0.6439142599]),
        known("one, renormalised", lambda: router(1, True).route(LOGITS)[2][0], [1]),
        known("ties: lowest", lambda: router(2, True).route(np.zeros((1, 4)))[1][0], [0, 1], "numpy/numpy#26716"),
        known("uniform router, k = 1: coef", lambda: aux_loss(1, np.zeros((3, 4))), 0.01, "jingyaogong/minimind#797"),
        known("uniform router, k = 2: 2 coef", lambda: aux_loss(2, np.zeros((3, 4))), 0.02, "jingyaogong/minimind#797"),
        known("coef E (p0 + p1) of one token", lambda: aux_loss(2, LOGITS), 0.03523188312),
        known("the mean of equal tokens is that of one", lambda: aux_loss(2, np.tile(LOGITS, (5, 1))), 0.03523188312),
        known(
            "padding does not count",
            lambda: aux_loss(1, [[2, 1, 0, -1], [0, 0, 9, 0]], [1, 0]),
            0.0257565704,
            "huggingface/transformers#28255",
        ),
    ],
    "cross_entropy": [
        known("uniform: ln 3", lambda: loss("y", [[0, 0, 0]], [1]), 1.098612289),
        known("[1000, 0, 0] against 1", lambda: loss("y", [[1000, 0, 0]], [1]), 1000, "borgwang/tinynn#7"),
        known("its gradient", lambda: loss("dx", [[1000, 0, 0]], [1]), [[1, -1, 0]], "borgwang/tinynn#7"),
        known("mean over two labels, one ignored", lambda: loss("y", *TWO_OF_THREE), 1.753109127),
        known(
            "gradient of that mean, dloss = 4",
            lambda: loss("dx", *TWO_OF_THREE, dloss=4.0)[:2],
            [[-1.819938854, 0.4894569422, 1.330481912], [0, 0, 0]],
        ),
        known("two of eight labels", lambda: loss("y", *TWO_OF_THREE, items=8), 0.4382772816),
        known("no label: 0", lambda: loss("y", [[1, 2, 3]], [-100]), 0, "pytorch/pytorch#116349"),
        known("no label: no gradient", lambda: loss("dx", [[1, 2, 3]], [-100]), [[0, 0, 0]], "pytorch/pytorch#70348"),
    ],
    "linear_cross_entropy": [
        known("one of two rows: ln 7/2", lambda: head_loss("y", [LN2, 0], [1, -100]), [1.252762968]),
        known("its dh", lambda: head_loss("dx", [LN2, 0], [1, -100]), [0.4285714286, 0]),
        known("its dW", lambda: head_loss("weight", [LN2, 0], [1, -100]), [0.09902102579, -0.495105129, 0.3960841032]),
        known("a chunk each for two rows, one ignored", lambda: head_loss("y", *TWO_ROWS), [1.599336559]),
        known("their dh, dloss = 4", lambda: head_loss("dx", *TWO_ROWS, dloss=4.0), [0.8571428571, 0, 2.857142857]),
        known(
            "dW sums over chunks, dloss = 4",
            lambda: head_loss("weight", *TWO_ROWS, dloss=4.0),
            [-0.9902102579, -0.5941261548, 1.584336413],
        ),
        known("two of eight labels", lambda: head_loss("y", *TWO_ROWS, items=8), [0.3998341397]),
        known("two rows, then one", lambda: head_loss("y", [LN2, 0, LN2], [1, 2, 0], chunk=2), [1.432428469]),
        known(
            "dh of two rows, then one",
            lambda: head_loss("dx", [LN2, 0, LN2], [1, 2, 0], chunk=2),
            [0.1428571429, -0.3333333333, 0.4761904762],
        ),
        known(
            "dW of two rows, then one",
            lambda: head_loss("weight", [LN2, 0, LN2], [1, 2, 0], chunk=2),
            [-0.165035043, -0.09902102579, 0.2640560688],
        ),
        known("logits 0, 1000, 2000 against 0", lambda: head_loss("y", [1000], [0]), [2000], "borgwang/tinynn#7"),
        known("their dh", lambda: head_loss("dx", [1000], [0]), [2]),
        known("no label: 0", lambda: head_loss("y", [1, 2], [-100, -100]), [0], "pytorch/pytorch#116349"),
        known("no label: no gradient", lambda: head_loss("weight", [1, 2], [-100, -100]), [0, 0, 0]),
    ],
    "model": [
        known("loss of a tied table alone", lambda: tied_head("loss"), 1.361994804, "NVIDIA/TransformerEngine#3437"),
        known(
            "the table's gradient from both of its uses",
            lambda: tied_head("gradient"),
            [[0, -0.3446376], [-0.4223188, 0.76695639], [0, -0.0776812]],
            "NVIDIA/TransformerEngine#3437; paiml/entrenar#314",
            1e-7,
        ),
    ],
}  # fmt: skip
