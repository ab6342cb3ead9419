"""The harness must fail on every known way of being wrong. Each layer below is wrong in one of them."""

import numpy as np
import pytest

from numpy_minimind.checking import Effort, check_layer
from numpy_minimind.checking.report import SUMMARY_HEADER, GradReport, LayerSummary, TensorRow
from numpy_minimind.layer import Layer, Parameter
from numpy_minimind.layers import RMSNorm, Softmax
from tests.checking.toys import BehindZero, Gated, Scores, X, normal, verdicts


def test_a_right_layer_passes():
    report = check_layer(Gated(), X)
    assert report.ok, str(report)
    assert verdicts(report) == {"x": "ok", "weight": "ok", "gain": "ok"}
    assert report.elements == 15 + 12 + 4
    assert 0 < report.worst.relative_error < 1e-9


# -- wrong numbers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0.0, -1.0, 2.0, 1.00001])
def test_wrong_gradient_of_an_input(factor):
    class Wrong(Gated):
        def backward(self, dy, saved):
            return factor * super().backward(dy, saved)

    assert verdicts(check_layer(Wrong(), X)) == {"x": "WRONG", "weight": "ok", "gain": "ok"}


def test_wrong_gradient_of_one_parameter():
    class Wrong(Gated):
        def backward(self, dy, saved):
            dx = super().backward(dy, saved)
            self.gain.grad += 1e-5 * dy.sum(axis=0)
            return dx

    assert verdicts(check_layer(Wrong(), X)) == {"x": "ok", "weight": "ok", "gain": "WRONG"}


def test_parameter_gradient_forgotten():
    class Wrong(Gated):
        def backward(self, dy, saved):
            _, h = saved
            return (dy * self.gain.data * (1 - h * h)) @ self.weight.data

    assert verdicts(check_layer(Wrong(), X)) == {"x": "ok", "weight": "WRONG", "gain": "WRONG"}


@pytest.mark.parametrize("scale", [1.0, 0.02, 1e-4])
def test_transposed_dk_fails_at_every_scale_of_the_weights(scale):
    class Transposed(Scores):
        def backward(self, ds, saved):
            q, k = saved
            return ds @ k, ds @ q

    q, k = normal(4, 6, scale=scale), normal(4, 6, scale=scale, seed=8)
    assert check_layer(Scores(), q, k).ok
    assert verdicts(check_layer(Transposed(), q, k)) == {"q": "ok", "k": "WRONG"}


class ZeroSoftmax(Softmax):
    def backward(self, dy, saved):
        return dy * 0


def test_zero_gradient_of_a_softmax():
    assert verdicts(check_layer(ZeroSoftmax(), X)) == {"x": "WRONG"}


def test_an_all_ones_cotangent_cannot_pass_a_zero_gradient():
    """Rows of a softmax sum to one: under ones the gradient vanishes, whichever backward is asked."""
    for layer in (Softmax(), ZeroSoftmax()):
        assert verdicts(check_layer(layer, X, cotangents=[1])) == {"x": "ZERO"}


def test_missing_cross_term():
    class Wrong(RMSNorm):
        def backward(self, dy, saved):
            super().backward(dy, saved)
            return dy * self.weight.data * saved.r

    assert verdicts(check_layer(Wrong(3, dtype=np.float64), X)) == {"x": "WRONG", "weight": "ok"}


def test_epsilon_left_out_shows_near_sqrt_epsilon():
    class Wrong(RMSNorm):
        def backward(self, dy, saved):
            without = 1 / np.sqrt(np.mean(saved.x**2, axis=-1, keepdims=True))
            return super().backward(dy, saved._replace(r=without))

    layer = Wrong(3, dtype=np.float64)
    near = {"independent_rows": ["x"], "smallest_scale": 1e-3}
    assert RMSNorm(3).eps == 1e-6
    assert check_layer(RMSNorm(3, dtype=np.float64), X * 1e-3, **near).ok
    assert verdicts(check_layer(layer, X * 1e-3, **near)) == {"x": "WRONG", "weight": "WRONG"}


def test_an_all_zero_row():
    x = X.copy()
    x[2] = 0
    rows = {"independent_rows": ["x"], "smallest_scale": 1e-3}
    assert check_layer(RMSNorm(3, dtype=np.float64), x, **rows).ok
    assert not check_layer(RMSNorm(3, dtype=np.float64), x).ok  # at the ordinary step, the bend at 0 is overstepped


def test_a_small_row_beside_a_large_one():
    """Judged by the largest gradient of the tensor, the small gradients of the large row could be anything."""

    class Wrong(RMSNorm):
        def backward(self, dy, saved):
            dx = super().backward(dy, saved)
            dx[-1] *= 1.001
            return dx

    x = X * np.array([1e-2, 1e-2, 1, 1, 1e5])[:, None]
    assert verdicts(check_layer(Wrong(3, dtype=np.float64), x, independent_rows=["x"]))["x"] == "WRONG"


@pytest.mark.parametrize("scale", [1e-4, 1e-2, 1.0, 1e3])
def test_right_and_slightly_wrong_at_every_scale_of_the_input(scale):
    class Cube(Layer):
        def __init__(self, factor):
            self.factor = factor

        def forward(self, x):
            return x**3, x

        def backward(self, dy, saved):
            return self.factor * 3 * saved**2 * dy

    assert check_layer(Cube(1.0), X * scale).ok
    assert not check_layer(Cube(1.00001), X * scale).ok


def test_not_a_number():
    class Wrong(Gated):
        def backward(self, dy, saved):
            dx = super().backward(dy, saved)
            dx[1, 2] = np.nan
            return dx

    report = check_layer(Wrong(), X)
    assert report.row("x").verdict == "WRONG"
    assert report.worst.name == "x"
    assert report.row("x").worst_index == (1, 2)


# -- tensors too large to compare element by element -----------------------------------------------------------


class Table(Layer):
    def __init__(self):
        self.weight = Parameter(normal(90, 40, seed=3))

    def forward(self, x):
        return np.tanh(x @ self.weight.data.T), x

    def backward(self, dy, saved):
        da = dy * (1 - np.tanh(saved @ self.weight.data.T) ** 2)
        self.weight.grad += da.T @ saved
        return da @ self.weight.data


def test_a_large_tensor_is_sampled_and_passes():
    row = check_layer(Table(), normal(6, 40, scale=0.3)).row("weight")
    assert row.ok and 0 < row.checked <= 64 and row.directions == 4


def test_one_wrong_row_of_a_large_tensor_shows_in_the_directions():
    class Wrong(Table):
        def backward(self, dy, saved):
            before = self.weight.grad[17].copy()
            dx = super().backward(dy, saved)
            self.weight.grad[17] = before + 1.01 * (self.weight.grad[17] - before)
            return dx

    for seed in range(5):  # whichever coordinates are drawn
        report = check_layer(Wrong(), normal(6, 40, scale=0.3), rng=seed, effort=Effort(directions=4, coordinates=2))
        assert report.row("weight").verdict == "WRONG"
        assert "seed" in report.row("weight").fault


# -- nothing to compare ----------------------------------------------------------------------------------------


def test_identically_zero_gradients_fail():
    report = check_layer(BehindZero(), X)
    assert set(verdicts(report).values()) == {"ZERO"}
    assert "nothing was compared" in str(report)


def test_zero_gradients_pass_when_listed_and_the_report_prints_the_reason():
    reasons = {name: f"the projection behind {name} is zero" for name in ("x", "weight", "gain")}
    report = check_layer(BehindZero(), X, expected_zero=reasons)
    assert report.ok
    assert all(reason in str(report) for reason in reasons.values())


def test_a_listed_gradient_that_is_not_zero_fails():
    report = check_layer(Gated(), X, expected_zero={"gain": "it is said to be"})
    assert verdicts(report) == {"x": "ok", "weight": "ok", "gain": "WRONG"}
    assert "must be zero (it is said to be)" in str(report)


def test_rounding_noise_larger_than_the_gradient_is_unresolvable():
    class Offset(Layer):
        def forward(self, x):
            return 1e6 + 1e-6 * x, None

        def backward(self, dy, saved):
            return 1e-6 * dy  # right, but no difference in float64 can show it

    assert verdicts(check_layer(Offset(), X)) == {"x": "UNRESOLVABLE"}


def test_a_layer_without_anything_to_differentiate_is_an_error():
    class Nothing(Layer):
        not_differentiable = ("x",)

        def forward(self, x):
            return x, None

    with pytest.raises(ValueError, match="nothing to check"):
        check_layer(Nothing(), X)
    with pytest.raises(ValueError, match="empty"):
        check_layer(Gated(), np.zeros((0, 3)))


# -- gradients that are not there ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "returned, missing",
    [
        (lambda dq, dk: None, {"q": "MISSING", "k": "MISSING"}),
        (lambda dq, dk: dq, {"q": "ok", "k": "MISSING"}),
        (lambda dq, dk: (dq, None), {"q": "ok", "k": "MISSING"}),
        (lambda dq, dk: (dq[0], dk), {"q": "MISSING", "k": "ok"}),
    ],
)
def test_missing_gradients(returned, missing):
    class Wrong(Scores):
        def backward(self, ds, saved):
            return returned(*super().backward(ds, saved))

    report = check_layer(Wrong(), normal(4, 6), normal(4, 6, seed=8))
    assert verdicts(report) == missing
    assert not report.ok


def test_too_many_gradients():
    class Wrong(Scores):
        def backward(self, ds, saved):
            return (*super().backward(ds, saved), np.ones(3))

    report = check_layer(Wrong(), normal(4, 6), normal(4, 6, seed=8))
    assert report.faults == ("backward returned 3 gradients for 2 differentiable inputs (q, k)",)


# -- the summary of a layer ------------------------------------------------------------------------------------


def report_of(case, *errors):
    return GradReport(case, "", 0, tuple(TensorRow("x", (2,), "ok", 2, relative_error=error) for error in errors))


def test_a_summary_counts_and_names_the_worst():
    summary = LayerSummary("toy", (report_of("toy/a", 1e-9, 3e-8), report_of("toy/b"), report_of("toy/c", 2e-9)), 1.26)
    assert str(summary) == "toy                        3        3         6  3.0e-08      1.3 ok"
    assert len(str(summary)) - len(" ok") == len(SUMMARY_HEADER)
    with_nan = LayerSummary("toy", (report_of("toy/a", 1e-9), report_of("toy/b", np.nan), report_of("toy/c", 1e-7)), 0)
    assert np.isnan(with_nan.worst)
    assert LayerSummary("toy", (), 0).worst == 0
