"""Block: two residual branches, each on a normalised copy."""

import numpy as np
import pytest

from numpy_minimind.checking.points import B, D, H, T, config
from numpy_minimind.layer import Context
from numpy_minimind.layers import Block, RotaryEmbedding
from tests.helpers import assert_close, gradients_of, settled
from tests.layers import against_pytorch

pytestmark = pytest.mark.usefixtures("backend")

CONTEXT = Context(*RotaryEmbedding(H, 100.0).table(np.arange(T), np.float64), np.tri(T, dtype=bool))


@pytest.mark.parametrize("use_moe", [False, True])
def test_without_its_last_projections_a_block_is_the_identity(use_moe, rng):
    block, x = settled(Block(config(use_moe=use_moe))), rng.standard_normal((B, T, D))
    for name, parameter in block.named_parameters():
        if "o_proj" in name or "down_proj" in name:
            parameter.data[...] = 0.0
    (y, _), saved = block.forward(x, CONTEXT)
    dy = rng.standard_normal(x.shape)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(block.backward(dy, 0.0, saved), dy)


def test_it_is_written_out_in_its_parts(rng):
    block, x = settled(Block(config())), rng.standard_normal((B, T, D))
    h = x + block.self_attn(block.input_layernorm(x), CONTEXT)
    assert_close(block(x, CONTEXT), h + block.mlp(block.post_attention_layernorm(h)), 1e-14)


def test_both_norms_take_epsilon_from_the_config():
    block = Block(config(rms_norm_eps=0.25))
    norms = (
        block.input_layernorm,
        block.post_attention_layernorm,
        block.self_attn.q_norm,
        block.self_attn.k_norm,
    )
    assert [norm.eps for norm in norms] == [0.25] * 4


@pytest.mark.parametrize("use_moe", [False, True])
def test_only_experts_have_an_auxiliary_loss(use_moe, rng):
    block = settled(Block(config(use_moe=use_moe)))
    (y, aux), saved = block.forward(rng.standard_normal((B, T, D)), CONTEXT)
    block.backward(np.zeros_like(y), 1.0, saved)
    assert np.shape(aux) == ()
    assert (aux > 0) == use_moe
    assert any(g.any() for g in gradients_of(block).values()) == use_moe


def test_only_counted_tokens_enter_the_auxiliary_loss(rng):
    block, x = settled(Block(config(use_moe=True))), rng.standard_normal((B, T, D))
    counted = np.ones((B, T), bool)
    counted[1:] = False
    some = block.forward(x, CONTEXT._replace(counted=counted))[0].aux_loss
    alone = block.forward(x[:1], CONTEXT)[0].aux_loss
    assert some == pytest.approx(alone, rel=1e-12)


def test_names_are_those_of_the_state_dict():
    names = [name for name, _ in Block(config()).named_parameters()]
    assert names == [
        "input_layernorm.weight",
        "self_attn.q_proj.weight",
        "self_attn.k_proj.weight",
        "self_attn.v_proj.weight",
        "self_attn.o_proj.weight",
        "self_attn.q_norm.weight",
        "self_attn.k_norm.weight",
        "post_attention_layernorm.weight",
        "mlp.gate_proj.weight",
        "mlp.up_proj.weight",
        "mlp.down_proj.weight",
    ]


# -- against PyTorch -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"use_moe": True, "router_aux_loss_coef": 0.3},
        {"use_moe": True, "router_aux_loss_coef": 0.3, "num_experts_per_tok": 2},
    ],
    ids=["dense", "k=1", "k=2"],
)
@against_pytorch.every_mask
def test_against_pytorch(fields, mask, oracles, rng):
    cfg = config(rope_theta=100.0, rms_norm_eps=1e-3, **fields)
    layer = settled(Block(cfg))
    x, dy = rng.standard_normal((2, B, T, D))
    daux = np.array(-1.3)
    context, positions, visible = against_pytorch.at(oracles, cfg, mask)
    (y, aux), saved = layer.forward(x, context)
    dx = layer.backward(dy, daux, saved)
    frequencies, factor = oracles.rope_inverse_frequencies(H, cfg.rope_theta)
    (y_right, aux_right), (dx_right, dw_right, _) = oracles.gradients(
        lambda x, w, counted: oracles.block(
            x, w, positions, visible, frequencies, factor, cfg.rms_norm_eps, cfg.num_experts_per_tok,
            cfg.norm_topk_prob, 0.3, counted,
        ),
        x, layer.state_dict(), mask, cotangents=[dy, daux],
    )  # fmt: skip
    assert_close(y, y_right)
    assert_close(aux, aux_right)
    assert_close(dx, dx_right)
    assert_close(gradients_of(layer), dw_right)
