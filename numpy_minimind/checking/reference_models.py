"""Known values of attention, experts, blocks and whole models: too long for paper, hence from the oracle.

Inputs and weights are waves (`reference.wave`), so that anybody can make them again. Outputs are given for the last
token, gradients as one number each (`reference.fingerprint`); tests compute them anew with PyTorch where it is
installed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from numpy_minimind.checking.reference import ORACLE, ReferenceValue, fingerprint, gradients, wave, waved
from numpy_minimind.config import MiniMindConfig
from numpy_minimind.layer import Context
from numpy_minimind.layers import Attention, Block, MoE, RotaryEmbedding
from numpy_minimind.model import MiniMindForCausalLM

FIELDS: dict[str, Any] = {
    "hidden_size": 6,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "vocab_size": 7,
    "intermediate_size": 5,
    "max_position_embeddings": 64,
}
EXPERTS: dict[str, Any] = {"use_moe": True, "num_experts": 3, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.3}
T = 5
IDS = np.array([[1, 5, 2, 2, 6], [0, 0, 3, 1, 4]])
MASK = np.array([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])  # the second row is padded on the left
LABELS = np.array([[1, 5, -100, 2, 6], [-100, -100, -100, 1, 4]])
# The tied table, the first and the last layer, the final norm.
WATCHED = (
    "model.embed_tokens.weight",
    "model.layers.0.self_attn.k_proj.weight",
    "model.layers.1.self_attn.q_norm.weight",
    "model.layers.1.post_attention_layernorm.weight",
    "model.norm.weight",
)
ITEMS = 9  # labels of the larger batch of which this is a part: five here


def hidden() -> np.ndarray:
    return wave(2, T, FIELDS["hidden_size"])


def cotangent() -> np.ndarray:
    return wave(2, T, FIELDS["hidden_size"], phase=2.0)


def padded_context() -> Context:
    """Positions, visibility and counted tokens of `MASK`, written out."""
    positions = np.array([[0, 1, 2, 3, 4], [0, 0, 0, 1, 2]])[:, None]  # (B, 1, T)
    cos, sin = RotaryEmbedding(FIELDS["head_dim"]).table(positions, np.float64)
    visible = np.tri(T, dtype=bool) & (MASK == 1)[:, None, None, :]
    return Context(cos, sin, visible, MASK == 1)


def fingerprints(layer: Any, inputs: tuple[Any, ...], *cotangents: Any) -> list[float]:
    """Return the fingerprint of dx and of every parameter's gradient."""
    found = gradients(layer, inputs, *cotangents)
    return [fingerprint(value) for name, value in found.items() if name != "y"]


def attention() -> Any:
    return waved(Attention(MiniMindConfig(**FIELDS)))


def block(**fields: Any) -> Any:
    return waved(Block(MiniMindConfig(**FIELDS, **fields)))


def moe(k: int, normalised: bool) -> Any:
    fields = {**FIELDS, **EXPERTS, "num_experts_per_tok": k, "norm_topk_prob": normalised}
    return waved(MoE(MiniMindConfig(**fields)))


def model(**fields: Any) -> Any:
    return waved(MiniMindForCausalLM(MiniMindConfig(**FIELDS, **fields)))


def loss_terms(items: int | None, **fields: Any) -> list[float]:
    found = model(**fields).loss_and_grad(IDS, LABELS, MASK, items)
    return [found.loss, found.ce_loss, found.aux_loss, found.n_tokens]


def loss_gradients(items: int | None, **fields: Any) -> list[float]:
    own = model(**fields)
    own.loss_and_grad(IDS, LABELS, MASK, items)
    found = dict(own.named_parameters())
    return [fingerprint(found[name].grad) for name in WATCHED]


def in_pieces(*lengths: int, mask: Any = None) -> Any:
    """Return the logits of the last token, of a text that is read piece by piece through the cache."""
    own, start, logits = model(), 0, None
    cache = own.new_cache(len(IDS), T)
    for length in lengths:
        piece = slice(start, start + length)
        padded = mask is not None and not mask[:, piece].all()  # told once: the cache remembers it
        logits = own(IDS[:, piece], mask[:, piece] if padded else None, cache)
        start += length
    assert logits is not None
    return logits[:, -1]


def known(name: str, compute: Callable[[], Any], expected: Any) -> ReferenceValue:
    return ReferenceValue(name, compute, expected, 1e-8, ORACLE)


# fmt: off
PLAIN = [
    [-0.7644306378, -0.3775493987, 1.871381405, -0.8844684686, -0.1810513048, 1.283902303, 1.32949423],
    [-0.19485839, 1.186522837, 0.2773027694, -1.89718425, 2.214728544, 1.097706316, 2.01265856],
]
PADDED = [
    [-0.7644306378, -0.3775493987, 1.871381405, -0.8844684686, -0.1810513048, 1.283902303, 1.32949423],
    [0.01426512826, 1.089446469, 0.05708738478, -1.757157732, 2.131954116, 1.297495566, 2.138527364],
]
ATTENTION = [
    [0.1456676064, -0.1493229782, 0.1246731906, 0.13481694, 0.1899900914, -0.2315064339],
    [-0.2861146431, 0.2831704781, 0.4774486071, 0.2542150547, 0.0248902789, 0.0313286164],
]
BLOCK = [
    [0.5960099258, -1.13253122, 1.580532486, 1.378331486, -1.923023714, 1.938270636],
    [-0.08507489769, 0.6707019714, -0.7733568896, 0.9280322231, 0.5503191673, -1.239442065],
]

MODEL_REFERENCES: dict[str, list[ReferenceValue]] = {
    "attention": [
        known(
            "y of the last token, one row padded",
            lambda: attention().forward(hidden(), padded_context())[0][:, -1],
            ATTENTION,
        ),
        known(
            "y of the last token, inference",
            lambda: attention()(hidden(), padded_context())[:, -1],
            ATTENTION,
        ),
        known(
            "gradients of x and every weight",
            lambda: fingerprints(attention(), (hidden(), padded_context()), cotangent()),
            [0.4354792726, 0.4342912638, -0.1704830243, -13.00420512, -2.590906448, 0.2071545711, 0.3598079205],
        ),
    ],
    "moe": [
        known(
            "y of the last token, k = 1",
            lambda: moe(1, False).forward(hidden(), MASK == 1)[0].y[:, -1],
            [
                [0.0282770883, -0.04026609788, 0.01773678973, -0.1492951165, 0.1340163105, 0.01732415283],
                [
                    -0.002223326107, 0.008620505154, 0.0003431929464, 0.009080209395, -0.009719477109,
                    -0.001176088018,
                ],
            ],
        ),
        known(
            "auxiliary loss with padding, k = 1",
            lambda: moe(1, False).forward(hidden(), MASK == 1)[0].aux_loss,
            0.30049466,
        ),
        known(
            "gradients of x and every weight, k = 1",
            lambda: fingerprints(moe(1, False), (hidden(), MASK == 1), cotangent(), 1.0),
            [
                0.2556406951, 0.0941817506, -1.10115207, 1.72479914, 0.3282809953, 0.0197043612, -0.7515071073,
                0.08501750004, 1.137107914, -2.498221765, 0.09700272175,
            ],
        ),
        known(
            "y of the last token, k = 2, normalised",
            lambda: moe(2, True).forward(hidden(), MASK == 1)[0].y[:, -1],
            [
                [0.03303144683, -0.09095326047, 0.01668001102, 0.009132491043, 0.004445248429, -0.02639376082],
                [0.0139733724, 0.002697035926, -0.01499184145, 0.02502820703, -0.04735916189, -0.001658810786],
            ],
        ),
        known(
            "auxiliary loss with padding, k = 2, normalised",
            lambda: moe(2, True).forward(hidden(), MASK == 1)[0].aux_loss,
            0.6016517096,
        ),
        known(
            "gradients of x and every weight, k = 2, normalised",
            lambda: fingerprints(moe(2, True), (hidden(), MASK == 1), cotangent(), 1.0),
            [
                -0.4860244201, -0.03769013617, -2.064481569, -0.4191466185, 0.6334645625, -0.3091276285,
                -1.549199386, 0.1685276256, 1.245823802, -2.696080671, 0.111587741,
            ],
        ),
        known(
            "y of the last token, k = 2",
            lambda: moe(2, False).forward(hidden(), MASK == 1)[0].y[:, -1],
            [
                [0.02762629516, -0.07606998363, 0.01395055173, 0.007638081808, 0.003717843357, -0.02207477712],
                [0.01191405253, 0.002299561393, -0.01278242513, 0.02133968556, -0.04037962536, -0.001414344245],
            ],
        ),
        known(
            "auxiliary loss with padding, k = 2",
            lambda: moe(2, False).forward(hidden(), MASK == 1)[0].aux_loss,
            0.6016517096,
        ),
        known(
            "gradients of x and every weight, k = 2",
            lambda: fingerprints(moe(2, False), (hidden(), MASK == 1), cotangent(), 1.0),
            [
                -0.3720696431, -0.03563589498, -1.705811024, -0.3802576582, 0.5314696487, -0.2411448415,
                -1.453944497, 0.1619156647, 1.121980735, -2.415929189, 0.09237007899,
            ],
        ),
    ],
    "block": [
        known(
            "y of the last token, one row padded",
            lambda: block().forward(hidden(), padded_context())[0].y[:, -1],
            BLOCK,
        ),
        known(
            "y of the last token, inference",
            lambda: block()(hidden(), padded_context())[:, -1],
            BLOCK,
        ),
        known(
            "gradients of x and every weight",
            lambda: fingerprints(block(), (hidden(), padded_context()), cotangent(), 0.0),
            [
                2.19254108, 0.4979873453, -6.541950368, 6.026766638, 1.619125261, -4.376955721, 0.08181997011,
                1.278695293, -6.993540716, 8.274427766, -1.326623342, 5.038990663,
            ],
        ),
        known(
            "auxiliary loss, two experts a token",
            lambda: block(**EXPERTS).forward(hidden(), padded_context())[0].aux_loss,
            0.6028300768,
        ),
        known(
            "gradients of x and every weight, experts",
            lambda: fingerprints(block(**EXPERTS), (hidden(), padded_context()), cotangent(), 1.0),
            [
                1.249703626, 6.657864174, -5.038242226, -1.645573835, 4.735215718, -2.920454953, -2.326620581,
                0.4986016444, 0.6576845259, 0.7091029999, -2.385540525, 0.8122219777, 3.425903078, 3.560449592,
                1.810045575, 2.498333978, -0.2002661917, 0.6406919183, 0.7580050968,
            ],
        ),
    ],
    "model": [
        known(
            "logits of the last token, one row padded",
            lambda: model().forward(IDS, MASK)[0].logits[:, -1],
            PADDED,
        ),
        known(
            "logits of the last token, nothing padded",
            lambda: model().forward(IDS)[0].logits[:, -1],
            PLAIN,
        ),
        known(
            "losses and labels of a part of a batch, dense",
            lambda: loss_terms(ITEMS),
            [1.444893669, 1.444893669, 0.0, 5],
        ),
        known(
            "gradients of that loss, dense",
            lambda: loss_gradients(ITEMS),
            [1.345946881, -0.009572447976, 0.01416117732, -0.2736432098, -0.01127054933],
        ),
        known(
            "losses and labels of a part of a batch, experts",
            lambda: loss_terms(ITEMS, **EXPERTS),
            [2.156468705, 1.360026738, 0.7964419677, 5],
        ),
        known(
            "gradients of that loss, experts",
            lambda: loss_gradients(ITEMS, **EXPERTS),
            [0.4329932418, 0.03856328389, -0.0128484583, 0.01499645868, -0.1024819942],
        ),
    ],
    "kv_cache": [
        known(f"last logits, {padded}, read in pieces of {pieces}", partial(in_pieces, *pieces, mask=mask), expected)
        for pieces in ((5,), (3, 2), (1, 4), (2, 1, 2), (1, 1, 1, 1, 1))
        for padded, mask, expected in (("nothing padded", None, PLAIN), ("one row padded", MASK, PADDED))
    ],
}
# fmt: on
