r"""Three that must agree: SymPy's derivative, the formula that a docstring states, and the layer's backward.

For each layer, at a size small enough to write out, ``L = sum(y * dy)`` is built from the docstring's *Forward*
with symbols for every number; SymPy differentiates it; the docstring's *Backward* is written with the same symbols,
and the difference of the two simplifies to 0. That is a proof, not a sample: it holds for all numbers at once. Then
the stated formula, evaluated at numbers, is compared with what backward returns there.

`states` ties each proof to the docstring: when the formula there is edited, the proof has to be read again.
"""

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from numpy_minimind.checking.points import config
from numpy_minimind.layer import Layer, Parameter
from numpy_minimind.layers import (
    CrossEntropyLoss,
    Linear,
    MoE,
    RMSNorm,
    RotaryEmbedding,
    ScaledDotProduct,
    Softmax,
    SwiGLU,
)
from tests.helpers import settled
from tests.yarns import SHORT, rotary

sp = pytest.importorskip("sympy")

Array = np.ndarray  # of symbols or expressions, so that @ and broadcasting work as in the layers


# -- tools -----------------------------------------------------------------------------------------------------


def symbols(name: str, *shape: int, **assumptions: bool) -> Array:
    """An array of symbols: name_0_1, ..."""
    a = np.empty(shape, object)
    for index in np.ndindex(shape):
        a[index] = sp.Symbol("_".join([name, *map(str, index)]), real=True, **assumptions)
    return a


def apply(function: Any, a: Array) -> Array:
    return np.vectorize(function, otypes=[object])(a)


def gradient(L: Any, a: Array) -> Array:
    """SymPy's derivative of L by every symbol of `a`."""
    return apply(lambda symbol: sp.diff(L, symbol), a)


def is_zero(expression: Any) -> bool:
    """Whether it simplifies to 0: over one denominator, which is fast and mostly enough, or by every means."""
    numerator, _ = sp.fraction(sp.together(expression))
    return sp.expand(numerator) == 0 or sp.simplify(sp.expand(expression)) == 0


def assert_equal(stated: Array, derived: Array) -> None:
    """The difference of every entry simplifies to 0."""
    assert stated.shape == derived.shape
    for index in np.ndindex(stated.shape):
        assert is_zero(stated[index] - derived[index]), (index, stated[index], derived[index])


def at(values: dict[str, np.ndarray], given: dict[str, Array], expression: Array) -> np.ndarray:
    """`expression` with numbers for symbols."""
    arguments = [symbol for a in given.values() for symbol in a.ravel()]
    numbers = [float(x) for name in given for x in np.ravel(values[name])]
    function = sp.lambdify(arguments, [sp.sympify(e) for e in expression.ravel()], "math")
    return np.array(function(*numbers), float).reshape(expression.shape)


def numbers_for(given: dict[str, Array], seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(0.0, 1.0, a.shape) for name, a in given.items()}


def states(layer: type[Layer], *formulas: str) -> None:
    """Assert that the docstring holds these formulas, line breaks and spaces aside."""
    text = "".join((layer.__doc__ or "").split())
    for formula in formulas:
        assert "".join(formula.split()) in text, f"{layer.__name__} no longer states {formula}: read its proof again"


def assert_close(found: Any, right: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), right, rtol=1e-12, atol=1e-13)


def total(terms: Any) -> Any:
    return sum(terms, sp.Integer(0))


def softmax(x: Sequence[Any], visible: Sequence[bool] | None = None, m: Any = 0) -> Array:
    """The docstring's formula for one row; m is any constant."""
    e = [sp.exp(a - m) if see else sp.Integer(0) for a, see in zip(x, visible or [True] * len(x))]
    return np.array([a / total(e) for a in e])


# -- linear ----------------------------------------------------------------------------------------------------


def test_linear():
    states(Linear, r"y = x W^\top", r"dx = dy\, W, \qquad dW = dy^\top x")
    x, W, dy = symbols("x", 2, 3), symbols("W", 2, 3), symbols("dy", 2, 2)
    L = np.sum(x @ W.T * dy)
    dx, dW = dy @ W, dy.T @ x
    assert_equal(dx, gradient(L, x))
    assert_equal(dW, gradient(L, W))

    given = {"x": x, "W": W, "dy": dy}
    v = numbers_for(given)
    layer = Linear(3, 2, weight=Parameter(v["W"]))
    _, saved = layer.forward(v["x"])
    assert_close(layer.backward(v["dy"], saved), at(v, given, dx))
    assert_close(layer.weight.grad, at(v, given, dW))


# -- RMSNorm ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("D", [1, 2, 3])
def test_rmsnorm(D):
    states(
        RMSNorm,
        r"r = \frac{1}{\sqrt{\frac{1}{D}\sum_j x_j^2 + \varepsilon}}, \qquad n = x r, \qquad y = n w",
        r"dw = \sum_{rows} dy\, n, \qquad dn = dy\, w, \qquad dx = r \left( dn - n \cdot \tfrac{1}{D} \sum_j dn_j n_j",
        r"\partial r / \partial x_j = -r^3 x_j / D",
    )
    x, w, dy, eps = symbols("x", 2, D), symbols("w", D), symbols("dy", 2, D), symbols("eps", positive=True)
    r = np.array([1 / sp.sqrt(total(row**2) / D + eps.item()) for row in x])[:, None]
    n = x * r
    L = np.sum(n * w * dy)
    dn = dy * w
    dx = r * (dn - n * (np.sum(dn * n, axis=-1, keepdims=True) / D))
    dw = np.sum(dy * n, axis=0)
    assert_equal(np.array([-(r[0, 0] ** 3) * x[0, j] / D for j in range(D)]), gradient(r[0, 0], x[0]))  # the key step
    assert_equal(dx, gradient(L, x))
    assert_equal(dw, gradient(L, w))

    given = {"x": x, "w": w, "dy": dy, "eps": eps}
    v = numbers_for(given) | {"eps": np.array(0.3)}
    layer = RMSNorm(D, 0.3)
    layer.weight = Parameter(v["w"])
    y, saved = layer.forward(v["x"])
    assert_close(y, at(v, given, n * w))
    assert_close(layer.backward(v["dy"], saved), at(v, given, dx))
    assert_close(layer.weight.grad, at(v, given, dw))


# -- rotation --------------------------------------------------------------------------------------------------


def turn(x: Sequence[Any], cos: Sequence[Any], sin: Sequence[Any]) -> Array:
    """The docstring's formula for one vector: pairs i and i + H/2."""
    h = len(x) // 2
    first = [x[i] * cos[i] - x[i + h] * sin[i] for i in range(h)]
    return np.array([*first, *(x[i + h] * cos[i] + x[i] * sin[i] for i in range(h))])


ROTATION = (
    r"y_i = x_i \cos\phi - x_{i+H/2} \sin\phi, \qquad y_{i+H/2} = x_{i+H/2} \cos\phi + x_i \sin\phi",
    r"dx = \mathrm{rotate}(dy, \cos\phi, -\sin\phi)",
    r"\omega_i = \theta^{-2i/H}",
)


@pytest.mark.parametrize("factor", [1.0, 1.3])
def test_rotation(factor):
    states(RotaryEmbedding, *ROTATION)
    H = 4
    x, dy, w, t = symbols("x", H), symbols("dy", H), symbols("w", H // 2), symbols("t")
    c = sp.Rational(str(factor))  # of YaRN: "the transpose keeps it"
    cos, sin = (np.array([c * f(t.item() * a) for a in w]) for f in (sp.cos, sp.sin))
    y = turn(x, cos, sin)
    dx = turn(dy, cos, -sin)
    assert_equal(dx, gradient(np.sum(y * dy), x))
    assert is_zero(np.sum(y * y) - c**2 * np.sum(x * x))  # the length is kept, up to the factor

    given = {"x": x, "dy": dy, "w": w, "t": t}
    layer = rotary(H, 100.0, {**SHORT, "attention_factor": factor}, 64)
    v = numbers_for(given) | {"t": np.array(5.0), "w": layer.frequencies}
    found, saved = layer.forward(v["x"][None], np.array([5]))
    assert_close(found[0], at(v, given, y))
    assert_close(layer.backward(v["dy"][None], saved)[0], at(v, given, dx))


def test_the_score_of_two_turned_vectors_depends_on_the_distance_alone():
    q, k, w, s, t = symbols("q", 4), symbols("k", 4), symbols("w", 2), *(sp.Symbol(n, real=True) for n in "st")

    def turned(x: Array, position: Any) -> Array:
        return turn(x, [sp.cos(position * a) for a in w], [sp.sin(position * a) for a in w])

    score = np.sum(turned(q, s) * turned(k, t))
    by_distance = np.sum(turned(q, s - t) * k)
    assert is_zero(sp.expand_trig(sp.expand(score - by_distance)))


def test_frequencies_without_yarn():
    frequencies = [float(sp.Integer(100) ** sp.Rational(-2 * i, 6)) for i in range(3)]
    assert_close(RotaryEmbedding(6, 100.0).frequencies, frequencies)


# -- softmax ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("visible", [(True, True, True), (True, False, True), (False, True, False), (False,) * 3])
def test_softmax(visible):
    states(
        Softmax,
        r"y_s = \frac{e^{x_s - m}}{\sum_{s'} e^{x_{s'} - m}}, \qquad m = \max_{s'} x_{s'}",
        r"\partial y_s / \partial x_{s'} = y_s (\delta_{ss'} - y_{s'})",
        r"dx_s = y_s \Bigl( dy_s - \sum_{s'} dy_{s'} y_{s'} \Bigr)",
    )
    x, dy = symbols("x", 3), symbols("dy", 3)
    y = softmax(x, visible) if any(visible) else np.array([sp.Integer(0)] * 3)
    dx = y * (dy - np.sum(y * dy))
    assert_equal(dx, gradient(np.sum(y * dy), x))
    for s, other in product(range(3), repeat=2):
        assert_equal(np.array([y[s] * (int(s == other) - y[other])]), gradient(y[s], x[[other]]))

    given = {"x": x, "dy": dy}
    v = numbers_for(given)
    found, saved = Softmax().forward(v["x"], np.array(visible))
    assert_close(found, at(v, given, y))
    assert_close(Softmax().backward(v["dy"], saved), at(v, given, dx))


def test_subtracting_a_number_from_a_row_changes_no_share_nor_its_derivative():
    """So m may be the maximum, and a constant in the derivation."""
    x, m = symbols("x", 3), sp.Symbol("m", real=True)
    assert_equal(softmax(x, m=m), softmax(x))
    assert_equal(softmax(x, m=x[1]), softmax(x))  # m depends on x
    assert_equal(gradient(softmax(x, m=x[1])[0], x), gradient(softmax(x)[0], x))


# -- scaled dot product ----------------------------------------------------------------------------------------


def scaled_dot_product(q: Array, k: Array, v: Array, visible: np.ndarray) -> tuple[Array, Array]:
    """The docstring's forward, with loops in place of every trick: q (N, T, H), k and v (K, S, H)."""
    (N, T, H), (K, S, _) = q.shape, k.shape
    p, o = np.zeros((N, T, S), object), np.zeros((N, T, H), object)
    for n, t in product(range(N), range(T)):
        head = n // (N // K)
        s = [np.sum(q[n, t] * k[head, i]) / sp.sqrt(H) for i in range(S)]
        p[n, t] = softmax(s, list(visible[t]))
        o[n, t] = p[n, t] @ v[head]
    return p, o


@pytest.mark.parametrize(
    ("N", "K", "T", "S", "H"),
    [(1, 1, 1, 2, 2), (2, 1, 1, 2, 1), (2, 2, 1, 2, 1), (1, 1, 2, 2, 1)],
    ids=["one head", "K = 1", "K = N", "causal"],
)
def test_scaled_dot_product(N, K, T, S, H):
    states(
        ScaledDotProduct,
        r"s = \frac{q k^\top}{\sqrt{H}}, \qquad p = \mathrm{softmax}(s), \qquad o = p v",
        r"dv = p^\top do, \qquad dp = do\, v^\top, \qquad ds = p \odot \Bigl( dp - \sum_{keys} dp \odot p \Bigr)",
        r"dq = \frac{ds\, k}{\sqrt{H}}, \qquad dk = \frac{ds^\top q}{\sqrt{H}}",
        "dk and dv sum over the G query heads that share the key head",
    )
    q, do = symbols("q", N, T, H), symbols("do", N, T, H)
    k, v = symbols("k", K, S, H), symbols("v", K, S, H)
    visible = np.tri(T, S, S - T, dtype=bool)
    p, o = scaled_dot_product(q, k, v, visible)
    L = np.sum(o * do)
    dq, dk, dv = np.zeros(q.shape, object), np.zeros(k.shape, object), np.zeros(v.shape, object)
    for n in range(N):
        head = n // (N // K)
        dv[head] = dv[head] + p[n].T @ do[n]
        dp = do[n] @ v[head].T
        ds = p[n] * (dp - np.sum(dp * p[n], axis=-1, keepdims=True))
        dq[n] = ds @ k[head] / sp.sqrt(H)
        dk[head] = dk[head] + ds.T @ q[n] / sp.sqrt(H)
    assert_equal(dq, gradient(L, q))
    assert_equal(dk, gradient(L, k))
    assert_equal(dv, gradient(L, v))

    given = {"q": q, "k": k, "v": v, "do": do}
    numbers = numbers_for(given)
    layer = ScaledDotProduct()
    found, saved = layer.forward(*(numbers[name][None] for name in "qkv"), visible)
    assert_close(found[0], at(numbers, given, o))
    for g, stated in zip(layer.backward(numbers["do"][None], saved), (dq, dk, dv)):
        assert_close(g[0], at(numbers, given, stated))


# -- SwiGLU ----------------------------------------------------------------------------------------------------


def sigmoid(x: Any) -> Any:
    return 1 / (1 + sp.exp(-x))


def test_silu():
    states(SwiGLU, r"\mathrm{silu}(g) = g\,\sigma(g)", r"\sigma' = \sigma (1 - \sigma)")
    states(SwiGLU, r"\mathrm{silu}' = \sigma + g \sigma (1 - \sigma)")
    g = sp.Symbol("g", real=True)
    s = sigmoid(g)
    assert is_zero(sp.diff(s, g) - s * (1 - s))
    assert is_zero(sp.diff(g * s, g) - (s + g * s * (1 - s)))
    assert sp.limit(g * s, g, -sp.oo) == 0


def test_swiglu():
    states(
        SwiGLU,
        r"g = x W_g^\top, \qquad u = x W_u^\top, \qquad h = \mathrm{silu}(g) \odot u, \qquad y = h W_d^\top",
        r"dh = dy\, W_d, \qquad du = dh \odot \mathrm{silu}(g), \qquad"
        r"dg = dh \odot u \odot \bigl(\sigma(g) + \mathrm{silu}(g)\,(1 - \sigma(g))\bigr), \qquad"
        r"dx = dg\, W_g + du\, W_u",
    )
    M, D, F = 2, 2, 2
    x, dy = symbols("x", M, D), symbols("dy", M, D)
    W_g, W_u, W_d = symbols("Wg", F, D), symbols("Wu", F, D), symbols("Wd", D, F)
    g, u = x @ W_g.T, x @ W_u.T
    sigma = apply(sigmoid, g)
    L = np.sum((g * sigma * u) @ W_d.T * dy)
    dh = dy @ W_d
    du = dh * (g * sigma)
    dg = dh * u * (sigma + g * sigma * (1 - sigma))
    stated = {"x": dg @ W_g + du @ W_u, "Wg": dg.T @ x, "Wu": du.T @ x, "Wd": dy.T @ (g * sigma * u)}
    given = {"x": x, "Wg": W_g, "Wu": W_u, "Wd": W_d, "dy": dy}
    for name, formula in stated.items():
        assert_equal(formula, gradient(L, given[name]))

    v = numbers_for(given)
    layer = SwiGLU(D, F)
    for part, name in ((layer.gate_proj, "Wg"), (layer.up_proj, "Wu"), (layer.down_proj, "Wd")):
        part.weight = Parameter(v[name])
    _, saved = layer.forward(v["x"])
    assert_close(layer.backward(v["dy"], saved), at(v, given, stated["x"]))
    for part, name in ((layer.gate_proj, "Wg"), (layer.up_proj, "Wu"), (layer.down_proj, "Wd")):
        assert_close(part.weight.grad, at(v, given, stated[name]))


# -- mixture of experts ----------------------------------------------------------------------------------------


def test_top_k_renormalisation():
    """Through the division by the sum of the chosen, and without it."""
    states(MoE, r"dp_c = \frac{1}{z} \Bigl( dw_c - \sum_{c'} dw_{c'} w_{c'} \Bigr)", "(without it, dp_c = dw_c)")
    states(MoE, r"w_c = \begin{cases} p_c / \sum_{c' \in C} p_{c'} & \text{normalised} \\ p_c & \text{else}\end{cases}")
    p, dw = symbols("p", 3, positive=True), symbols("dw", 3)
    z = total(p)
    w = p / z
    assert_equal((dw - np.sum(dw * w)) / z, gradient(np.sum(w * dw), p))
    assert_equal(dw, gradient(np.sum(p * dw), p))


def test_one_chosen_expert_renormalised_teaches_the_router_nothing():
    """The dead router: w = p / p, and the formula gives (dw - dw * 1) / z = 0."""
    states(MoE, "For k = 1 with normalisation w = 1 whatever p is, and dp = 0")
    p, dw = sp.symbols("p dw", positive=True)
    assert sp.diff(p / p * dw, p) == 0
    assert (dw - dw * (p / p)) / p == 0


@pytest.mark.parametrize("normalised", [True, False])
def test_the_router(normalised):
    """Two tokens, three experts, the first two chosen by one and the last two by the other; y and aux."""
    states(
        MoE,
        r"y = \sum_{c \in C} w_c\, \mathrm{expert}_c(x)",
        r"aux = coef \cdot E \sum_e load_e\, \overline{p_e}",
        r"dw_c = \langle dy, o_c \rangle",
        r"daux \cdot coef \cdot E\, load_e / M_{counted}",
    )
    M, E, D, coef = 2, 3, 3, sp.Rational(3, 10)
    chosen = [[0, 1], [2, 1]]
    l, dw, daux = symbols("l", M, E), symbols("dw", M, E), symbols("daux")  # l: router logits; dw = <dy, o>
    load = [total(sp.Rational(1, M) for token in chosen if e in token) for e in range(E)]
    p = np.array([softmax(row) for row in l])
    w, dp = np.zeros((M, E), object), np.zeros((M, E), object)
    for m, C in enumerate(chosen):
        z = total(p[m, c] for c in C) if normalised else sp.Integer(1)
        w[m, C] = p[m, C] / z
        dp[m, C] = (dw[m, C] - np.sum(dw[m, C] * w[m, C])) / z if normalised else dw[m, C]
    aux = coef * E * total(load[e] * total(p[:, e]) / M for e in range(E))
    L = np.sum(w * dw) + daux.item() * aux
    dp = dp + np.array([daux.item() * coef * E * load[e] / M for e in range(E)])
    dl = p * (dp - np.sum(dp * p, axis=-1, keepdims=True))
    assert_equal(dl, gradient(L, l))

    given = {"l": l, "dw": dw, "daux": daux}
    layer = settled(MoE(config(hidden_size=D, num_experts=E, num_experts_per_tok=2, norm_topk_prob=normalised)))
    layer.coef = float(coef)
    x, dy = np.array([[1.0, 0.3, 0.0], [0.2, 1.0, 0.0]]), np.random.default_rng(5).standard_normal((M, D))
    logits = np.array([[1.0, 0.4, -0.6], [-0.7, 0.1, 0.9]])
    layer.gate.weight.data = np.concatenate((np.linalg.solve(x[:, :2], logits).T, [[0.0]] * E), axis=1)
    (_, found_aux), saved = layer.forward(x)
    np.testing.assert_array_equal(np.sort(saved.chosen), np.sort(chosen))
    v = {"l": logits, "daux": np.array(1.7)}
    v["dw"] = np.array([[expert(x[[m]])[0] @ dy[m] for expert in layer.experts] for m in range(M)])
    layer.backward(dy, 1.7, saved)
    assert_close(found_aux, at(v, given, np.array([aux]))[0])
    assert_close(layer.gate.weight.grad, at(v, given, dl).T @ x)


# -- cross-entropy ---------------------------------------------------------------------------------------------


def test_cross_entropy():
    states(
        CrossEntropyLoss,
        r"\ell_m = \log \sum_v e^{x_{mv} - c_m} - (x_{m t_m} - c_m), \qquad c_m = \max_v x_{mv}",
        r"L = \frac{1}{n} \sum_{m\ \text{counted}} \ell_m",
        r"dx_{mv} = \frac{dL}{n} \left( p_{mv} - \delta_{v t_m} \right), \qquad p = \mathrm{softmax}(x)",
        "for counted rows, 0 for the others. Each row sums to 0.",
    )
    targets, n = [2, -100, 0], 5  # an ignored row; n of a larger batch
    x, dL, c = symbols("x", 3, 3), symbols("dL"), symbols("c", 3)
    counted = [m for m, t in enumerate(targets) if t != -100]
    losses = [sp.log(total(sp.exp(a - c[m]) for a in x[m])) - (x[m, targets[m]] - c[m]) for m in counted]
    L = total(losses) / n
    dx = np.zeros((3, 3), object)
    for m in counted:
        dx[m] = dL.item() / n * (softmax(x[m]) - np.eye(3, dtype=int)[targets[m]])
        assert is_zero(total(dx[m]))
    assert_equal(dx, gradient(L * dL.item(), x))
    of_c = gradient(L, c)  # the value does not depend on c, so it may be the maximum
    assert all(is_zero(d) for d in of_c)
    same = total(-sp.log(softmax(x[m])[targets[m]]) for m in counted) / n
    assert is_zero(sp.expand_log(L - same, force=True))

    given = {"x": x, "dL": dL, "c": c}
    v = numbers_for(given) | {"dL": np.array(-1.4)}
    layer = CrossEntropyLoss()
    loss, saved = layer.forward(v["x"], np.array(targets), n)
    assert_close(loss, at(v, given, np.array([L]))[0])
    assert_close(layer.backward(-1.4, saved), at(v, given, dx))


def test_a_wrong_formula_is_not_proved():
    """The proofs can fail: softmax's gradient without the sum, and a sign."""
    x, dy = symbols("x", 2), symbols("dy", 2)
    y = softmax(x)
    with pytest.raises(AssertionError):
        assert_equal(y * dy, gradient(np.sum(y * dy), x))
    with pytest.raises(AssertionError):
        assert_equal(np.array([-sp.sin(x[0])]), gradient(sp.cos(x[0]) * -1, x[:1]))
    assert math.isclose(at({"x": np.array([1.0, 2.0])}, {"x": x}, y).sum(), 1.0)
