"""The numbers of the worked examples, from attention to the loss: the real layers, in float64, compute each of them.

A test says what a page says, `page.says(computed, numbers)`; at its end, `page.is_complete()` asserts that the
section holds no decimal number that was not said.
"""

import re
from pathlib import Path

import numpy as np
import pytest

from numpy_minimind.config import MiniMindConfig
from numpy_minimind.layer import Context
from numpy_minimind.layers import Attention, Block, CrossEntropyLoss, KVCache, Linear, LinearCrossEntropy, MoE, SwiGLU
from numpy_minimind.layers.kv_cache import LayerCache
from numpy_minimind.layers.linear import LinearSaved
from numpy_minimind.layers.rope import rotate
from numpy_minimind.layers.softmax import SoftmaxSaved
from numpy_minimind.layers.swiglu import sigmoid

LAYER_PAGES = Path(__file__).parents[2] / "docs" / "en" / "layers"


class Page:
    """A page's worked example, and the numbers of it that have been asserted."""

    def __init__(self, stem):
        text = (LAYER_PAGES / f"{stem}.md").read_text(encoding="utf-8")
        self.section = re.search(r"^## A worked example\n(.*?)^## ", text, re.MULTILINE | re.DOTALL).group(1)
        self.said = []

    def says(self, computed, numbers):
        """Assert that the layer computes these numbers, which the page gives to at most six decimals."""
        numbers = np.asarray(numbers, float)
        np.testing.assert_allclose(np.squeeze(computed), np.squeeze(numbers), rtol=0, atol=5.1e-7)
        self.said.extend(numbers.reshape(-1))

    def is_given(self, parameter, numbers):
        """Set a weight to what the page gives."""
        parameter.data[...] = np.reshape(numbers, parameter.shape)
        self.said.extend(np.ravel(numbers))

    def is_complete(self):
        # Of an equation between numbers, which test_pages computes, only the result is looked for.
        text = re.sub(r"`[^`\n]*=([^`\n]*)`", r"\1", self.section)
        decimals = re.findall(r"(?<![\w.])(-?\d+\.\d+)", text)
        assert len(decimals) > 5
        unsaid = {number for number in decimals if not np.isclose(self.said, float(number), rtol=0, atol=1e-12).any()}
        assert not unsaid, f"no test asserts {sorted(unsaid)}"


def silu_slope(g):
    return sigmoid(g) * (1 + g * (1 - sigmoid(g)))


def test_the_guard_notices_a_number_that_nobody_asserts():
    page = Page("swiglu")
    with pytest.raises(AssertionError, match="no test asserts"):
        page.is_complete()


# --- attention and its cache ----------------------------------------------------------------------------------


def attention_example(page):
    """Return (layer, x, context) of attention.md."""
    config = MiniMindConfig(hidden_size=2, num_attention_heads=1, num_key_value_heads=1, head_dim=2, rms_norm_eps=1e-13)
    layer = Attention(config, dtype=np.float64)
    page.is_given(layer.q_proj.weight, [[1, 7], [1, 1]])
    page.is_given(layer.k_proj.weight, [[1, -1], [7, 1]])
    page.is_given(layer.v_proj.weight, [[1, 3], [2, -1]])
    page.is_given(layer.o_proj.weight, [[1, 2], [0, 1]])
    page.is_given(layer.q_norm.weight, [1, 2])
    page.is_given(layer.k_norm.weight, [1, 0.5])
    quarter_turns = np.array([[1.0], [0.0]]), np.array([[0.0], [1.0]])  # cos and sin of positions 0 and 1
    return layer, np.eye(2)[None], Context(*quarter_turns, np.tril(np.ones((2, 2), bool)))


def test_attention():
    page = Page("attention")
    layer, x, context = attention_example(page)
    y, saved = layer.forward(x, context)
    q, k, v, p = saved.attend
    page.says(saved.q_norm.x, [[1, 1], [7, 1]])
    page.says(saved.q_norm.r, [1, 0.2])
    page.says(saved.q_norm.x * saved.q_norm.r, [[1, 1], [1.4, 0.2]])
    page.says(saved.q_norm.x * saved.q_norm.r * [1, 2], [[1, 2], [1.4, 0.4]])
    page.says(q, [[1, 2], [-0.4, 1.4]])
    page.says(saved.k_norm.x, [[1, 7], [-1, 1]])
    page.says(saved.k_norm.r, [0.2, 1])
    page.says(saved.k_norm.x * saved.k_norm.r, [[0.2, 1.4], [-1, 1]])
    page.says(saved.k_norm.x * saved.k_norm.r * [1, 0.5], [[0.2, 0.7], [-1, 0.5]])
    page.says(k, [[0.2, 0.7], [-0.5, -1]])
    page.says(v, [[1, 2], [3, -1]])
    s = np.squeeze(q @ k.swapaxes(-1, -2))
    page.says(s[0, 0], 1.6)
    page.says(s[1], [0.9, -1.2])
    page.says(s[0, 0] / np.sqrt(2), 1.131371)
    page.says(s[1] / np.sqrt(2), [0.636396, -0.848528])
    page.says(p, [[1, 0], [0.815315, 0.184685]])
    page.says(saved.o, [[1, 2], [1.369370, 1.445946]])
    page.says(y, [[5, 2], [4.261261, 1.445946]])

    dy = np.array([[[1.0, -1.0], [2.0, 1.0]]])
    do = layer.o_proj.backward(dy, LinearSaved(saved.o))
    page.says(do, [[1, 1], [2, 5]])
    dq, dk, dv = layer.attend.backward(do[:, None], saved.attend)
    page.says(dv, [[2.630630, 5.076576], [0.369370, 0.923424]])
    dp = do[:, None] @ v.swapaxes(-1, -2)
    page.says(dp, [[3, 2], [12, 1]])
    page.says(layer.attend.softmax.backward(dp, SoftmaxSaved(p)), [[0, 0], [1.656340, -1.656340]])
    page.says(dq, [[0, 0], [0.819846, 1.991055]])
    page.says(dk, [[-0.468484, 1.639692], [0.468484, -1.639692]])
    dq, dk = (rotate(d, context.cos, -context.sin) for d in (dq, dk))
    page.says(dq, [[0, 0], [1.991055, -0.819846]])
    page.says(dk, [[-0.468484, 1.639692], [-1.639692, -0.468484]])
    dq, dk = layer.q_norm.backward(dq, saved.q_norm), layer.k_norm.backward(dk, saved.k_norm)
    page.says(dq, [[0, 0], [0.053876, -0.377129]])
    page.says(dk, [[-0.114778, 0.016397], [-0.936967, -0.936967]])
    assert abs(np.sum(dq[..., 1, :] * [7, 1])) < 1e-12
    page.says(dq[..., 1, :] @ layer.q_proj.weight.data, [-0.323254, 0])
    page.says(dk[..., 1, :] @ layer.k_proj.weight.data, [-7.495737, 0])
    page.says(dv[..., 1, :] @ layer.v_proj.weight.data, [2.216218, 0.184685])
    page.says(layer.backward(dy, saved), [[12.783782, 2.946491], [-5.602773, 0.184685]])
    page.is_complete()


def test_kv_cache():
    page = Page("kv_cache")
    layer, x, context = attention_example(page)
    whole, _ = layer.forward(x, context)
    cache = LayerCache(np.zeros((1, 1, 2, 2)), np.zeros((1, 1, 2, 2)), max_tokens=2)
    first = layer(x[:, :1], Context(context.cos[:1], context.sin[:1], attend="all"), cache, 0)
    page.says(cache.k[:, :, 0], [0.2, 0.7])
    page.says(cache.v[:, :, 0], [1, 2])
    page.says(first, [5, 2])
    second = layer(x[:, 1:], Context(context.cos[1:], context.sin[1:], attend="all"), cache, 1)
    q, _, _, _ = layer.heads(x[:, 1:], Context(context.cos[1:], context.sin[1:], attend="all"))
    page.says(q, [-0.4, 1.4])
    page.says(cache.k, [[0.2, 0.7], [-0.5, -1]])
    page.says(cache.v, [[1, 2], [3, -1]])
    s = np.squeeze(q @ cache.k.swapaxes(-1, -2)) / np.sqrt(2)
    page.says(s, [0.636396, -0.848528])
    p = layer.attend.softmax(s)
    page.says(p, [0.815315, 0.184685])
    page.says(p @ cache.v[0, 0], [1.369370, 1.445946])
    page.says(second, [4.261261, 1.445946])
    np.testing.assert_allclose(np.concatenate([first, second], axis=1), whole, rtol=0, atol=1e-14)

    wrong = Context(context.cos[:1], context.sin[:1], attend="all")  # the rotation of position 0, for token 1
    q, k, _, _ = layer.heads(x[:, 1:], wrong)
    page.says(q, [1.4, 0.4])
    page.says(k, [-1, 0.5])
    page.says(layer(x[:, 1:], wrong, cache, 1), [4.105391, 1.329043])
    page.is_complete()


def test_kv_cache_bytes_and_room():
    cfg = MiniMindConfig.preset("minimind3")
    cache = KVCache(np.zeros(0, np.float32), cfg.num_hidden_layers, 1, cfg.num_key_value_heads, 600, cfg.head_dim)
    layer = cache.layers[0]
    a_token = np.zeros((1, 4, 1, 96), np.float32)
    numbers = 2 * sum(one.k[:, :, 0].size for one in cache.layers)
    assert (numbers, numbers * layer.k.itemsize) == (6144, 24576)
    room = []
    for t in range(600):
        k, _ = layer.write(a_token, a_token, t)
        assert k.shape == (1, 4, t + 1, 96)
        room.append(layer.k.shape[2])
    assert [room[t - 1] for t in (1, 256, 257, 512, 513, 600)] == [256, 256, 512, 512, 600, 600]


# --- feed-forward ---------------------------------------------------------------------------------------------


def test_swiglu():
    page = Page("swiglu")
    layer = SwiGLU(1, 2, dtype=np.float64)
    page.is_given(layer.gate_proj.weight, [1, -0.5])
    page.is_given(layer.up_proj.weight, [1.5, 2])
    page.is_given(layer.down_proj.weight, [1, -2])
    y, saved = layer.forward(np.array([2.0]))
    _, u, sigma, silu = saved
    g = layer.gate_proj(saved.x)
    page.says(g, [2, -1])
    page.says(u, [3, 4])
    page.says(sigma, [0.880797, 0.268941])
    page.says(silu, [1.761594, -0.268941])
    page.says(silu * u, [5.284782, -1.075766])
    page.says(y, 7.436314)

    dy = np.array([0.5])
    dx = layer.backward(dy, saved)
    dh = dy @ layer.down_proj.weight.data
    page.says(dh, [0.5, -1])
    page.says(dh * silu, [0.880797, 0.268941])
    page.says(silu_slope(g), [1.090784, 0.072329])
    dg = dh * u * silu_slope(g)
    page.says(dg, [1.636176, -0.289318])
    page.says(layer.down_proj.weight.grad, [2.642391, -0.537883])
    page.says(layer.gate_proj.weight.grad, [3.272353, -0.578636])
    page.says(layer.up_proj.weight.grad, [1.761594, 0.537883])
    page.says(dg @ layer.gate_proj.weight.data, 1.780835)
    page.says(dh * silu @ layer.up_proj.weight.data, 1.859078)
    page.says(dx, 3.639914)
    page.is_complete()


def moe_example(page, k, norm, coef):
    """Return the layer of moe.md."""
    config = MiniMindConfig(
        hidden_size=2,
        num_attention_heads=1,
        num_key_value_heads=1,
        use_moe=True,
        num_experts=3,
        num_experts_per_tok=k,
        norm_topk_prob=norm,
        moe_intermediate_size=1,
        router_aux_loss_coef=coef,
    )
    layer = MoE(config, dtype=np.float64)
    layer.gate.weight.data[...] = np.log([[5, 3], [3, 2], [2, 5]])
    for expert, o in zip(layer.experts, ([1, 0], [0, 1], [-1, 1])):
        page.is_given(expert.gate_proj.weight, [20, 20])
        page.is_given(expert.up_proj.weight, [0.05, 0.05])
        page.is_given(expert.down_proj.weight, o)
    return layer


def test_moe():
    page = Page("moe")
    layer = moe_example(page, k=2, norm=True, coef=0.1)
    page.says(layer.coef, 0.1)
    (y, aux), saved = layer.forward(np.eye(2))
    page.says(saved.p, [[0.5, 0.3, 0.2], [0.3, 0.2, 0.5]])
    np.testing.assert_array_equal(saved.chosen, [[0, 1], [2, 0]])
    page.says(saved.z, [0.8, 0.8])
    page.says(saved.w, [[0.625, 0.375], [0.625, 0.375]])
    page.says(saved.experts[0].o, [[1, 0], [1, 0]])
    page.says(saved.experts[1].o, [0, 1])
    page.says(saved.experts[2].o, [-1, 1])
    page.says(y, [[0.625, 0.375], [-0.25, 0.625]])
    page.says(saved.load, [1, 0.5, 0.5])
    page.says(saved.p.mean(axis=0), [0.4, 0.25, 0.35])
    page.says(aux, 0.21)

    dy = np.array([[1.0, -1.0], [2.0, 1.0]])
    o = np.array([[[1, 0], [0, 1]], [[-1, 1], [1, 0]]])  # by token and slot
    dw = np.sum(dy[:, None] * o, axis=-1)
    page.says(dw, [[1, -1], [-1, 2]])
    mean = np.sum(dw * saved.w, axis=-1, keepdims=True)
    page.says(mean, [0.25, 0.125])
    dchosen = (dw - mean) / saved.z
    page.says(dchosen, [[0.9375, -1.5625], [-1.40625, 2.34375]])
    from_aux = layer.coef * 3 / 2 * saved.load
    page.says(0.1 * 3 / 2, 0.15)
    page.says(from_aux, [0.15, 0.075, 0.075])
    dp = from_aux + np.array([[0.9375, -1.5625, 0], [2.34375, 0, -1.40625]])
    page.says(dp, [[1.0875, -1.4875, 0.075], [2.49375, 0.075, -1.33125]])
    page.says(np.sum(dp * saved.p, axis=-1), [0.1125, 0.0975])
    da = layer.softmax.backward(dp, SoftmaxSaved(saved.p))
    page.says(da, [[0.4875, -0.48, -0.0075], [0.718875, -0.0045, -0.714375]])
    from_router = da @ layer.gate.weight.data
    page.says(from_router, [[0.252068, 0.190792], [0.656874, -0.363096]])
    dx = layer.backward(dy, 1.0, saved)
    page.says(dx - from_router, [[0.5, 0.5], [0.25, 0.25]])
    page.says(dx, [[0.752068, 0.690792], [0.906874, -0.113096]])
    page.says(layer.gate.weight.grad, da.T)

    for norm, w, da in ((True, 1, [0, 0, 0]), (False, 0.5, [0.25, -0.15, -0.1])):
        layer = moe_example(page, k=1, norm=norm, coef=0.0)
        _, saved = layer.forward(np.eye(2)[:1])
        page.says(saved.w, w)
        assert saved.chosen == 0
        layer.backward(dy[:1], 1.0, saved)
        page.says(layer.gate.weight.grad[:, 0], da)
    page.is_complete()


# --- block and loss -------------------------------------------------------------------------------------------


def test_block():
    page = Page("block")
    config = MiniMindConfig(
        hidden_size=2, num_attention_heads=1, num_key_value_heads=1, intermediate_size=1, rms_norm_eps=1e-13
    )
    block = Block(config, dtype=np.float64, rng=np.random.default_rng(0))
    attn, mlp = block.self_attn, block.mlp
    page.is_given(block.input_layernorm.weight, [1, 2])
    page.is_given(block.post_attention_layernorm.weight, [5, 2.5])
    page.is_given(attn.v_proj.weight, [[2, 0], [0, 1]])
    page.is_given(attn.o_proj.weight, [[0, -1], [3, 0]])
    page.is_given(mlp.gate_proj.weight, [1.5, 1])
    page.is_given(mlp.up_proj.weight, [0.5, 1])
    page.is_given(mlp.down_proj.weight, [0.5, -1])
    (y, _), saved = block.forward(np.array([[[1.0, 1.0]]]), Context(np.ones((1, 1)), np.zeros((1, 1)), attend="all"))
    norm1, norm2 = saved.input_layernorm, saved.post_attention_layernorm
    page.says(norm1.r, 1)
    page.says(saved.self_attn.x, [1, 2])
    page.says(saved.self_attn.o, [2, 2])
    page.says(attn.o_proj(saved.self_attn.o), [-2, 6])
    page.says(norm2.x, [-1, 7])
    page.says(norm2.r, 0.2)
    m, u, _, silu = saved.mlp
    g = mlp.gate_proj(m)
    page.says(m, [-1, 3.5])
    page.says(g, 2)
    page.says(u, 3)
    page.says(silu, 1.761594)
    page.says(silu * u, 5.284782)
    page.says(y - norm2.x, [2.642391, -5.284782])
    page.says(y, [1.642391, 1.715218])

    dy = np.array([[[1.0, -0.5]]])
    page.says(dy, [1, -0.5])
    page.says(dy @ mlp.down_proj.weight.data, 1)
    page.says(silu_slope(g), 1.090784)
    page.says(u * silu_slope(g), 3.272353)
    dm = mlp.backward(dy, saved.mlp)
    page.says(dm, [5.789326, 5.033947])
    dn, n = dm * [5, 2.5], norm2.x * norm2.r
    page.says(dn, [28.946631, 12.584867])
    page.says(n, [-0.2, 1.4])
    page.says(np.mean(dn * n), 5.914744)
    through_norm2 = block.post_attention_layernorm.backward(dm, norm2)
    page.says(through_norm2, [6.025916, 0.860845])
    dh = dy + through_norm2
    page.says(dh, [7.025916, 0.360845])
    page.says(dh @ attn.o_proj.weight.data, [1.082535, -7.025916])
    da = attn.backward(dh, saved.self_attn)
    page.says(da, [2.165071, -7.025916])
    dn = da * [1, 2]
    page.says(dn, [2.165071, -14.051832])
    page.says(np.mean(dn), -5.943381)
    through_norm1 = block.input_layernorm.backward(da, norm1)
    page.says(through_norm1, [8.108451, -8.108451])
    assert abs(np.sum(through_norm1)) < 1e-9 and abs(np.sum(through_norm2 * norm2.x)) < 1e-9

    block.zero_grad()
    page.says(block.backward(dy, 0.0, saved), [15.134367, -7.747606])
    for layer in (attn.q_proj, attn.k_proj, attn.q_norm, attn.k_norm):
        assert not layer.weight.grad.any()
    assert attn.v_proj.weight.grad.any()
    page.is_complete()


def test_cross_entropy():
    page = Page("cross_entropy")
    logits = np.log([[2.0, 1, 1], [1, 3, 1], [1, 1, 2]])
    page.says(logits[:2], [[0.693147, 0, 0], [0, 1.098612, 0]])
    targets = np.array([0, 2, -100])
    loss, saved = CrossEntropyLoss().forward(logits, targets)
    page.says(saved.p, [[0.5, 0.25, 0.25], [0.2, 0.6, 0.2], [0.25, 0.25, 0.5]])
    shifted = logits - logits.max(axis=-1, keepdims=True)
    page.says(shifted[:2], [[0, -0.693147, -0.693147], [-1.098612, 0, -1.098612]])
    z = np.exp(shifted).sum(axis=-1)
    page.says(z[:2], [2, 1.666667])
    page.says(np.log(z[1]), 0.510826)
    for m, loss_of_row in enumerate([0.693147, 1.609438]):
        page.says(CrossEntropyLoss().forward(logits[m], targets[m])[0], loss_of_row)
    page.says(loss, 1.151293)

    dx = CrossEntropyLoss().backward(1.0, saved)
    page.says(2 * dx[:2], [[-0.5, 0.25, 0.25], [0.2, 0.6, -0.8]])
    page.says(dx, [[-0.25, 0.125, 0.125], [0.1, 0.3, -0.4], [0, 0, 0]])
    page.is_complete()


def test_linear_cross_entropy():
    page = Page("linear_cross_entropy")
    head = Linear(1, 3, dtype=np.float64)
    page.is_given(head.weight, [0, 1, 2])
    h, targets = np.log([[2.0], [1.0]]), np.array([1, -100])
    page.says(h, [0.693147, 0])
    np.testing.assert_allclose(np.exp(head(h[0])), [1, 2, 4], rtol=1e-15)
    layer = LinearCrossEntropy(head.weight)
    loss, saved = layer.forward(h, targets)
    page.says(loss, 1.252763)
    _, of_logits = CrossEntropyLoss().forward(head(h[:1]), targets[:1])
    page.says(of_logits.p, [[1 / 7, 2 / 7, 4 / 7]])
    page.says(CrossEntropyLoss().backward(1.0, of_logits), [[0.142857, -0.714286, 0.571429]])
    page.says(layer.backward(1.0, saved), [0.428571, 0])
    page.says(head.weight.grad, [0.099021, -0.495105, 0.396084])
    page.is_complete()
