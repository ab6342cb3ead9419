"""The evidence for `MoE`: where it is differenced, what it must give, which bugs must be noticed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from numpy_minimind.checking.differences import Effort
from numpy_minimind.checking.lab.mutation import BACKWARD, CONSISTENT, Edit, Mutant
from numpy_minimind.checking.oracle_points import (
    EXPERTS,
    FIELDS,
    MASK,
    cotangent,
    fingerprints,
    from_oracle,
    hidden,
    waved,
)
from numpy_minimind.checking.points import (
    PADS,
    B,
    Build,
    D,
    E,
    Point,
    Rng,
    T,
    config,
    padding_mask,
    redraw_parameters,
    routed,
)
from numpy_minimind.checking.reference import array, known, with_weights
from numpy_minimind.config import MiniMindConfig
from numpy_minimind.layers import MoE

# -- points ----------------------------------------------------------------------------------------------------------

NO_TOKEN = "no token chose this expert"
NO_DY = "dy = 0, and the auxiliary loss does not see the experts"
DEAD_ROUTER = "k = 1 normalised: the weight is p / p = 1, so only the auxiliary loss reaches the router"


def point(k: int, normalised: bool, side: str | None = None, **options: Any) -> Build:
    def build(rng: Rng) -> Point:
        layer = redraw_parameters(MoE(config(num_experts_per_tok=k, norm_topk_prob=normalised), rng=rng), rng)
        counted = None if side is None else padding_mask(T, **{side: PADS})
        return Point(layer, (rng.normal(size=(B, T, D)), counted), options)

    return lambda rng: routed(lambda: build(rng))


def biased(k: int, bias: Sequence[float], idle: Sequence[int]) -> Build:
    """Move every token's router logits by the same numbers: the first coordinate of x is 1 for all."""

    def build(rng: Rng) -> Point:
        layer = redraw_parameters(MoE(config(num_experts_per_tok=k, norm_topk_prob=k > 1), rng=rng), rng)
        layer.gate.weight.data[:, 0] = bias
        x = rng.normal(size=(B, T, D))
        x[..., 0] = 1
        return Point(layer, (x, None), {"expected_zero": expert_weights(NO_TOKEN, idle)})

    return lambda rng: routed(lambda: build(rng), all_used=False)


def expert_weights(reason: str, experts: Sequence[int] = range(E)) -> dict[str, str]:
    """Return {name: reason} of every weight of these experts."""
    parts = ("gate_proj", "up_proj", "down_proj")
    return {f"experts.{e}.{part}.weight": reason for e in experts for part in parts}


CASES = {
    "k1": point(1, False),
    "k1-normalised": point(1, True),
    "k2": point(2, False),
    "k2-normalised": point(2, True),
    "k2-left-padded": point(2, True, side="left"),
    "all-chosen": point(E, False),
    "aux-alone": point(2, True, cotangents=[0, 1], expected_zero=expert_weights(NO_DY)),
    "dead-router": point(1, True, cotangents=[None, 0], expected_zero={"gate.weight": DEAD_ROUTER}),
    "idle-expert": biased(2, [0, 0, -12, 0], idle=[2]),
    "one-expert": biased(1, [0, 0, 0, 6], idle=[0, 1, 2]),
}

MUTANTS_AT = ("k2-normalised", "k2-left-padded", "k1")  # of these cases
MUTANTS_EFFORT = Effort(4, 4, 2)  # of a large layer a few elements and directions
TRAINED_AS = "experts"  # the small model of two weak checks

# -- known values ----------------------------------------------------------------------------------------------------


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


def waved_moe(k: int, normalised: bool) -> Any:
    fields = {**FIELDS, **EXPERTS, "num_experts_per_tok": k, "norm_topk_prob": normalised}
    return waved(MoE(MiniMindConfig(**fields)))


KNOWN = [
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
    from_oracle(
        "y of the last token, k = 1",
        lambda: waved_moe(1, False).forward(hidden(), MASK == 1)[0].y[:, -1],
        [
            [0.0282770883, -0.04026609788, 0.01773678973, -0.1492951165, 0.1340163105, 0.01732415283],
            [-0.002223326107, 0.008620505154, 0.0003431929464, 0.009080209395, -0.009719477109, -0.001176088018],
        ],
    ),
    from_oracle(
        "auxiliary loss with padding, k = 1",
        lambda: waved_moe(1, False).forward(hidden(), MASK == 1)[0].aux_loss,
        0.30049466,
    ),
    from_oracle(
        "gradients of x and every weight, k = 1",
        lambda: fingerprints(waved_moe(1, False), (hidden(), MASK == 1), cotangent(), 1.0),
        [
            0.2556406951,
            0.0941817506,
            -1.10115207,
            1.72479914,
            0.3282809953,
            0.0197043612,
            -0.7515071073,
            0.08501750004,
            1.137107914,
            -2.498221765,
            0.09700272175,
        ],
    ),
    from_oracle(
        "y of the last token, k = 2, normalised",
        lambda: waved_moe(2, True).forward(hidden(), MASK == 1)[0].y[:, -1],
        [
            [0.03303144683, -0.09095326047, 0.01668001102, 0.009132491043, 0.004445248429, -0.02639376082],
            [0.0139733724, 0.002697035926, -0.01499184145, 0.02502820703, -0.04735916189, -0.001658810786],
        ],
    ),
    from_oracle(
        "auxiliary loss with padding, k = 2, normalised",
        lambda: waved_moe(2, True).forward(hidden(), MASK == 1)[0].aux_loss,
        0.6016517096,
    ),
    from_oracle(
        "gradients of x and every weight, k = 2, normalised",
        lambda: fingerprints(waved_moe(2, True), (hidden(), MASK == 1), cotangent(), 1.0),
        [
            -0.4860244201,
            -0.03769013617,
            -2.064481569,
            -0.4191466185,
            0.6334645625,
            -0.3091276285,
            -1.549199386,
            0.1685276256,
            1.245823802,
            -2.696080671,
            0.111587741,
        ],
    ),
    from_oracle(
        "y of the last token, k = 2",
        lambda: waved_moe(2, False).forward(hidden(), MASK == 1)[0].y[:, -1],
        [
            [0.02762629516, -0.07606998363, 0.01395055173, 0.007638081808, 0.003717843357, -0.02207477712],
            [0.01191405253, 0.002299561393, -0.01278242513, 0.02133968556, -0.04037962536, -0.001414344245],
        ],
    ),
    from_oracle(
        "auxiliary loss with padding, k = 2",
        lambda: waved_moe(2, False).forward(hidden(), MASK == 1)[0].aux_loss,
        0.6016517096,
    ),
    from_oracle(
        "gradients of x and every weight, k = 2",
        lambda: fingerprints(waved_moe(2, False), (hidden(), MASK == 1), cotangent(), 1.0),
        [
            -0.3720696431,
            -0.03563589498,
            -1.705811024,
            -0.3802576582,
            0.5314696487,
            -0.2411448415,
            -1.453944497,
            0.1619156647,
            1.121980735,
            -2.415929189,
            0.09237007899,
        ],
    ),
]

# -- mutants ---------------------------------------------------------------------------------------------------------

MOE = "layers.moe:MoE."
WEIGHTS = "layers.moe:token_weights"

MUTANTS = (
    Mutant(
        "moe-renormalisation-taken-for-constant",
        "moe",
        BACKWARD,
        "the divisor of the k weights is not differentiated",
        "it looks like a scale; it is the sum of what is differentiated",
        "pytorch/torchtitan#1448, NVIDIA/Megatron-LM#1593",
        (Edit(MOE + "backward", "dw = (dw - xp.sum(dw * w, axis=-1, keepdims=True)) / z", "dw = dw / z"),),
    ),
    Mutant(
        "moe-router-gets-aux-gradient-only",
        "moe",
        BACKWARD,
        "the experts' weights pass no gradient to the router",
        "a detach too many: the dead router, which no loss curve shows",
        "jingyaogong/minimind#858, jingyaogong/minimind#859",
        (Edit(MOE + "backward", "dp + dw[:, slot, None]", "dp + 0 * dw[:, slot, None]"),),
    ),
    Mutant(
        "moe-aux-gradient-dropped",
        "moe",
        BACKWARD,
        "the auxiliary loss is reported but never differentiated",
        "it is computed beside the output and forgotten on the way back",
        "jingyaogong/minimind#110, jingyaogong/minimind#140",
        (Edit(MOE + "backward", "dp = (daux_loss * self.coef", "dp = (0.0 * self.coef"),),
    ),
    Mutant(
        "moe-expert-gradient-not-weighted",
        "moe",
        BACKWARD,
        "experts receive dy, not w dy",
        "the weight is applied to the output in forward, and forgotten in backward",
        "common",
        (Edit(MOE + "backward", "expert.backward(w[token, slot, None] * dy_e,", "expert.backward(dy_e,"),),
    ),
    Mutant(
        "moe-last-expert-wins",
        "moe",
        BACKWARD,
        "dx of a token is assigned by each of its experts, not added",
        "right for k = 1",
        "common",
        (Edit(MOE + "backward", "dx[token] += expert.backward", "dx[token] = expert.backward"),),
    ),
    Mutant(
        "moe-not-renormalised",
        "moe",
        CONSISTENT,
        "the k weights are not divided by their sum",
        "norm_topk_prob is not read",
        "pytorch/torchtitan#1448, NVIDIA/TensorRT-LLM#2752",
        (Edit(MOE + "route", "return p, chosen, w / z, z", "return p, chosen, w, None"),),
    ),
    Mutant(
        "moe-always-renormalised",
        "moe",
        CONSISTENT,
        "the k weights are divided by their sum whatever norm_topk_prob says; for k = 1 that kills the router",
        "norm_topk_prob is not read",
        "jingyaogong/minimind#859",
        (Edit(MOE + "route", "if not self.norm:", "if False:"),),
    ),
    Mutant(
        "moe-aux-not-averaged",
        "moe",
        CONSISTENT,
        "load and probability are sums over tokens: aux grows with the square of the batch",
        "a sum where the paper has a fraction",
        "huggingface/transformers#43775",
        (Edit(WEIGHTS, "1 / max(p.shape[0], 1)", "1.0"), Edit(WEIGHTS, " / xp.maximum(xp.sum(counted), 1.0)", "")),
    ),
    Mutant(
        "moe-aux-without-number-of-experts",
        "moe",
        CONSISTENT,
        "the factor E is missing: the balanced value is coef / E, not coef",
        "the paper's alpha N is read as alpha",
        "common",
        (
            Edit(MOE + "forward", "self.coef * len(self.experts) *", "self.coef *"),
            Edit(MOE + "backward", "self.coef * len(self.experts))", "self.coef)"),
        ),
    ),
    Mutant(
        "moe-aux-divided-by-k",
        "moe",
        CONSISTENT,
        "the load is a mean over the k choices, not their sum",
        "either convention exists; MiniMind and Hugging Face sum",
        "jingyaogong/minimind#797",
        (Edit(MOE + "forward", "load = self.load(chosen, counted)", "load = self.load(chosen, counted) / self.k"),),
    ),
    Mutant(
        "moe-padding-counted",
        "moe",
        CONSISTENT,
        "padding counts in the load and in the mean probability",
        "the router sees rows, and does not know which of them are tokens",
        "huggingface/transformers#28255, huggingface/transformers#28517, QwenLM/Qwen3#1418",
        (Edit(MOE + "forward", "token_weights(counted, p)", "token_weights(None, p)"),),
    ),
    Mutant(
        "moe-ties-to-the-last-expert",
        "moe",
        CONSISTENT,
        "equal scores are given to the highest expert, not the lowest",
        "an ascending sort is reversed",
        "scikit-learn/scikit-learn#12977, cupy/cupy#3287",
        (
            Edit(
                "backend:top_k",
                'xp.argsort(-x, axis=-1, kind="stable")',
                'xp.argsort(x, axis=-1, kind="stable")[..., ::-1]',
            ),
        ),
    ),
)
