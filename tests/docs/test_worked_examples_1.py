"""The worked examples of linear, embedding, rmsnorm, rope, softmax and both attentions over heads, number by number.

A page's example is a table: name, where it comes from, numbers. Each number is asserted twice, and from the page
itself, so that page and test cannot drift apart: against its own "comes from" (an expression over earlier rows), and
against what the real layer returns in float64.
"""

import re
from pathlib import Path

import numpy as np
import pytest

from numpy_minimind.layers import Embedding, FlashAttention, Linear, RMSNorm, RotaryEmbedding, ScaledDotProduct, Softmax
from numpy_minimind.layers.rope import RotaryEmbeddingSaved, rotate

LAYERS = Path(__file__).parents[2] / "docs" / "en" / "layers"
ROW = re.compile(r"^\| `(\w+)` \| (?:given|`(.+)`) \| `([^`]+)` \|$", re.MULTILINE)

EXACT = 1e-12
PAGES = {  # page: how far a number may be from its expression; logarithms and cosines are shown rounded
    "linear": EXACT,
    "embedding": EXACT,
    "rmsnorm": EXACT,
    "rope": 0.51e-4,
    "softmax": 4e-7,
    "scaled_dot_product": 2e-6,
    "flash_attention": 2e-6,
}


def causal_softmax(s):
    e = np.exp(s) * np.tri(*s.shape)
    return e / e.sum(axis=-1, keepdims=True)


FUNCTIONS = {
    "array": np.array,
    "causal_softmax": causal_softmax,
    "concat": lambda *parts: np.concatenate(parts),
    "cos": np.cos,
    "exp": np.exp,
    "log": np.log,
    "max": np.max,
    "mean": lambda x: np.mean(x, axis=-1, keepdims=True),
    "outer": np.outer,
    "sin": np.sin,
    "sqrt": np.sqrt,
    "sum": np.sum,
    "sum_keys": lambda x: np.sum(x, axis=-1, keepdims=True),
    "sum_rows": lambda x: np.sum(x, axis=0),
}


def worked_example(page):
    """Return the example's numbers {name: float64 array} and its expressions {name: expression}, in order."""
    text = (LAYERS / f"{page}.md").read_text(encoding="utf-8")
    section = text.partition("## A worked example\n")[2].partition("\n## ")[0]
    rows = ROW.findall(section)
    assert len(rows) == len(re.findall(r"^\| `", section, re.MULTILINE)) >= 7, "a row of the table is not readable"
    numbers = {name: np.array(eval(value, {"__builtins__": {}}), np.float64) for name, _, value in rows}
    assert len(numbers) == len(rows), "a name occurs twice"
    return numbers, {name: expression for name, expression, _ in rows if expression}


def assert_close(actual, expected, atol=EXACT):
    assert np.shape(actual) == np.shape(expected)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("page", PAGES)
def test_every_number_comes_from_what_the_page_says(page):
    numbers, expressions = worked_example(page)
    names = {**numbers, **({"ids": numbers["ids"].astype(int)} if "ids" in numbers else {})}
    for name, expression in expressions.items():
        assert_close(eval(expression, {"__builtins__": {}, **FUNCTIONS}, names), numbers[name], PAGES[page])


def test_linear():
    n, _ = worked_example("linear")
    layer = Linear(3, 2, dtype=np.float64)
    layer.weight.data[...] = n["W"]
    y, saved = layer.forward(n["x"])
    dx = layer.backward(n["dy"], saved)
    assert_close(y, n["y"])
    assert_close(dx, n["dx"])
    assert_close(layer.weight.grad, n["dW"])
    assert_close(np.sum(dx * n["x"]), n["L"])
    assert_close(np.sum(layer.weight.grad * n["W"]), n["L"])


def test_embedding():
    n, _ = worked_example("embedding")
    ids = n["ids"].astype(int)
    layer = Embedding(4, 2, dtype=np.float64)
    layer.weight.data[...] = n["W"]
    y, saved = layer.forward(ids)
    assert layer.backward(n["dy"], saved) is None
    assert_close(y, n["y"])
    assert_close(n["X"] @ n["W"], n["y"])
    assert_close(layer.weight.grad, n["dW"])
    wrong = np.zeros((4, 2))
    wrong[ids] += n["dy"]  # the bug that the page shows
    assert_close(wrong, n["wrong"])


def test_rmsnorm():
    n, _ = worked_example("rmsnorm")
    layer = RMSNorm(2, eps=0.0, dtype=np.float64)
    layer.weight.data[...] = n["w"]
    y, saved = layer.forward(n["x"])
    dx = layer.backward(n["dy"], saved)
    assert_close(saved.r, n["r"])
    assert_close(y, n["y"])
    assert_close(dx, n["dx"])
    assert_close(layer.weight.grad, n["dw"])
    assert_close(np.sum(dx * n["x"], axis=-1), np.zeros(2))


def test_rmsnorm_of_a_row_of_zeros():
    layer = RMSNorm(2, eps=1e-6, dtype=np.float64)
    layer.weight.data[...] = [2, 0.5]
    dy = np.array([[3.0, -1.0]])
    y, saved = layer.forward(np.zeros((1, 2)))
    assert_close(y, np.zeros((1, 2)))
    assert_close(saved.r, [[1000.0]], 1e-9)
    assert_close(layer.backward(dy, saved), 1000 * dy * [2, 0.5], 1e-8)


def test_rope():
    n, _ = worked_example("rope")
    layer = RotaryEmbedding(4, rope_theta=100.0)
    positions = n["positions"].astype(int)
    cos, sin = layer.table(positions, np.float64)
    assert_close(layer.frequencies, n["frequencies"])
    assert_close(positions[:, None] * layer.frequencies, n["angles"])
    assert_close(cos, n["cosines"], 0.51e-4)
    assert_close(sin, n["sines"], 0.51e-4)

    assert_close(rotate(n["x"], n["c"], n["s"]), n["y"])
    dx = layer.backward(n["dy"], RotaryEmbeddingSaved(n["c"], n["s"]))
    assert_close(dx, n["dx"])
    assert_close(np.sum(dx * n["x"]), n["L"])


def test_rope_forward_turns_by_the_angles_of_the_page():
    n, _ = worked_example("rope")
    layer = RotaryEmbedding(4)
    layer.frequencies = np.arctan2(n["s"], n["c"])  # so that position 1 turns by the page's angles
    y, saved = layer.forward(n["x"][None], np.array([1]))
    assert_close(y[0], n["y"])
    assert_close(layer.backward(n["dy"][None], saved)[0], n["dx"])


def test_angles_in_float32_would_miss_in_the_fourth_decimal():
    frequencies = RotaryEmbedding(96).frequencies
    exact = 32767 * frequencies
    rounded = np.float32(32767) * frequencies.astype(np.float32)
    assert 0.0003 < np.max(np.abs(rounded - exact)) <= 0.0004
    assert np.max(np.abs(np.cos(rounded) - np.cos(exact))) > 0.0001


def test_softmax():
    n, _ = worked_example("softmax")
    assert_close(n["x"][:3], np.log([1, 2, 5]), 5.1e-7)
    layer = Softmax()
    y, saved = layer.forward(n["x"], n["visible"].astype(bool))
    dx = layer.backward(n["dy"], saved)
    assert_close(y, n["y"], 2e-6)
    assert_close(dx, n["dx"], 2e-6)
    assert_close(np.sum(dx), 0.0)
    assert y[3] == dx[3] == 0


def test_scaled_dot_product():
    n, _ = worked_example("scaled_dot_product")
    assert_close([n["q0"][1, 1], n["q1"][1, 0]], np.log([3, 4]), 5.1e-7)
    layer = ScaledDotProduct()
    q, do = (np.stack([n[f"{name}0"], n[f"{name}1"]])[None] for name in ("q", "do"))  # (B, N, T, H)
    k, v = n["k"][None, None], n["v"][None, None]  # (B, K, S, H)
    o, saved = layer.forward(q, k, v, np.tri(2, dtype=bool))
    dq, dk, dv = layer.backward(do, saved)
    for head in (0, 1):
        assert_close(saved.p[0, head], n[f"p{head}"], 2e-6)
        assert_close(o[0, head], n[f"o{head}"], 5e-6)
        assert_close(dq[0, head], n[f"dq{head}"], 5e-6)
    assert_close(dk[0, 0], n["dk"], 5e-6)
    assert_close(dv[0, 0], n["dv"], 5e-6)


def test_flash_attention():
    n, _ = worked_example("flash_attention")
    layer = FlashAttention(query_block=1, key_block=1)
    for keys in (1, 2, 3):
        o, saved = layer.forward(*(n[x][None, None] for x in "q"), *(n[x][None, None, :keys] for x in "kv"))
        assert_close(o.item(), n[f"a{keys}"] / n[f"z{keys}"], 2e-6)
        assert_close(saved.lse.item(), n[f"m{keys}"] + np.log(n[f"z{keys}"]), 2e-6)
    assert_close(o[0, 0], n["o"], 2e-6)
    assert_close(saved.lse.item(), n["lse"], 2e-6)
    for found, name in zip(layer.backward(n["do"][None, None], saved), ("dq", "dk", "dv")):
        assert_close(found[0, 0], n[name], 2e-6)
