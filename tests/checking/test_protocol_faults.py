"""Faults that no difference shows: overwriting, aliasing, changed arguments, near ties, dtypes; and the report."""

import json
from typing import NamedTuple

import numpy as np
import pytest

from numpy_minimind.checking import check_layer, compare_float32, complex_step_check
from numpy_minimind.layer import Layer
from numpy_minimind.layers import RMSNorm
from tests.checking.toys import Gated, X, verdicts

# -- the protocol ----------------------------------------------------------------------------------------------


def test_backward_that_overwrites_instead_of_adding():
    class Wrong(Gated):
        def backward(self, dy, saved):
            self.gain.grad = np.zeros(4)
            return super().backward(dy, saved)

    report = check_layer(Wrong(), X)
    assert set(verdicts(report).values()) == {"ok"}
    assert not report.ok and "does not add into gain.grad" in report.faults[0]


def test_backward_that_gives_another_answer_the_second_time():
    class Wrong(Gated):
        calls = 0

        def backward(self, dy, saved):
            self.calls += 1
            return super().backward(dy, saved) * self.calls

    assert check_layer(Wrong(), X).faults == ("a second backward gives another gradient of x",)


class ForwardChangesInput(Gated):
    def forward(self, x):
        y, (_, h) = super().forward(x)
        saved = (x.copy(), h)
        x[0, 0] = 0.0
        return y, saved


class BackwardChangesCotangent(Gated):
    def backward(self, dy, saved):
        dx = super().backward(dy, saved)
        dy *= 1.5
        return dx


class BackwardChangesSaved(Gated):
    def backward(self, dy, saved):
        dx = super().backward(dy, saved)
        saved[1][0, 0] = 0.0
        return dx


class BackwardChangesWeight(Gated):
    def backward(self, dy, saved):
        dx = super().backward(dy, saved)
        self.weight.data[0, 0] += 1e-14
        return dx


@pytest.mark.parametrize(
    "layer, fault",
    [
        (ForwardChangesInput(), "forward changed argument 0"),
        (BackwardChangesCotangent(), "backward changed cotangent 0"),
        (BackwardChangesSaved(), "backward changed saved 1"),
        (BackwardChangesWeight(), "backward changed parameter weight"),
    ],
)
def test_what_must_not_change(layer, fault):
    report = check_layer(layer, X)
    assert fault in report.faults
    assert not report.ok


def test_shared_memory():
    class Sum(Layer):
        def forward(self, a, b):
            return a + b, None

        def backward(self, dy, saved):
            return dy, dy

    report = check_layer(Sum(), X, X)
    assert "backward returned gradient 0 sharing memory with gradient 1" in report.faults
    assert "backward returned gradient 0 sharing memory with cotangent 0" in report.faults


def test_precision_lost_inside():
    class Wrong(Gated):
        def forward(self, x):
            y, saved = super().forward(x)
            return y.astype(np.float32), saved

    assert "output 0 is float32" in check_layer(Wrong(), X).faults[0]


def test_everything_is_left_as_it_was():
    layer, x = Gated(), X.copy()
    held = [(p, p.data, p.grad, p.data.copy()) for _, p in layer.named_parameters()]
    held[0][2][...] = 5.0
    for check in (check_layer, complex_step_check, compare_float32):
        assert check(layer, x).ok
        assert np.array_equal(x, X)
        for parameter, data, grad, values in held:
            assert parameter.data is data and parameter.grad is grad
            assert np.array_equal(data, values)
        assert np.all(held[0][2] == 5.0) and not held[1][2].any()


# -- discrete choices ------------------------------------------------------------------------------------------


class MaxSaved(NamedTuple):
    chosen: np.ndarray
    shape: tuple


class Max(Layer):
    def forward(self, x):
        i = x.argmax(axis=-1)
        return np.take_along_axis(x, i[:, None], axis=-1)[:, 0], MaxSaved(i, x.shape)

    def backward(self, dy, saved):
        dx = np.zeros(saved.shape)
        np.put_along_axis(dx, saved.chosen[:, None], dy[:, None], axis=-1)
        return dx


class MaxSayingItsChoices(Max):
    def forward(self, x):
        y, (i, shape) = super().forward(x)
        return y, (i, shape)

    def backward(self, dy, saved):
        return super().backward(dy, MaxSaved(*saved))

    def choices(self, saved):
        return saved[0]


@pytest.mark.parametrize("layer", [Max(), MaxSayingItsChoices()])
def test_a_near_tie_is_reported(layer):
    clear = np.array([[1.0, 3.0, 2.0], [0.5, -1.0, 0.2]])
    assert check_layer(layer, clear).ok
    tie = clear.copy()
    tie[0, 2] = 3.0 - 1e-7
    assert verdicts(check_layer(layer, tie)) == {"x": "CHOICES MOVED"}


# -- what it takes and gives -----------------------------------------------------------------------------------


def test_float32_is_refused():
    with pytest.raises(TypeError, match=r"input x is float32.*float64"):
        check_layer(Gated(), X.astype(np.float32))
    with pytest.raises(TypeError, match=r"parameter weight is float32.*layer\.astype\(np\.float64\)"):
        check_layer(Gated().astype(np.float32), X)
    with pytest.raises(TypeError, match=r"input x is int64.*not_differentiable"):
        check_layer(Gated(), np.ones((5, 3), np.int64))


def test_unknown_names_are_refused():
    class Wrong(Gated):
        not_differentiable = ("mask",)

    with pytest.raises(ValueError, match="mask"):
        check_layer(Wrong(), X)
    with pytest.raises(ValueError, match="no tensor is called wieght: there are x, weight, gain"):
        check_layer(Gated(), X, expected_zero={"wieght": "a slip"})
    with pytest.raises(ValueError, match="2 cotangents given for 1 outputs"):
        check_layer(Gated(), X, cotangents=[None, None])


def test_strided_inputs():
    class Seen(Gated):
        def forward(self, x):
            self.contiguous = x.flags.c_contiguous
            return super().forward(x)

    layer = Seen()
    assert check_layer(layer, X, strided=True).ok and not layer.contiguous
    assert check_layer(layer, X).ok and layer.contiguous


def test_numbered_arguments_masks_and_several_outputs():
    class Both(NamedTuple):
        total: np.ndarray
        scalar: float

    class SumOf(Layer):
        not_differentiable = ("mask",)

        def forward(self, mask, *xs):
            total = sum(xs) * mask
            return Both(total, float((xs[0] ** 2).sum())), (mask, xs)

        def backward(self, dtotal, dscalar, saved):
            mask, xs = saved
            return tuple(dtotal * mask + 2 * x * dscalar * (i == 0) for i, x in enumerate(xs))

    report = check_layer(SumOf(), np.arange(3) != 1, X, 2 * X, 3 * X)
    assert report.ok, str(report)
    assert list(verdicts(report)) == ["xs[0]", "xs[1]", "xs[2]"]


def test_the_message_is_enough_to_compute_the_number_again():
    class Wrong(Gated):
        def backward(self, dy, saved):
            dx = super().backward(dy, saved)
            dx[3, 1] *= 1.5
            return dx

    layer = Wrong()
    report = check_layer(layer, X, rng=42, name="gated")
    row = report.row("x")
    assert row.worst_index == (3, 1)
    text = str(report)
    assert "gated" in text and "x[3, 1]" in text and "seed [42, 1]" in text and f"{row.h:.3e}" in text

    dy = np.random.default_rng(report.seed).standard_normal((5, 4))
    move = np.zeros_like(X)
    move[3, 1] = row.h
    plus, minus = layer.forward(X + move)[0], layer.forward(X - move)[0]
    assert row.numeric == pytest.approx((((plus - minus) * dy).sum()) / (2 * row.h), rel=1e-9)
    assert row.analytic == layer.backward(dy, layer.forward(X)[1])[3, 1]


def test_the_same_seed_gives_the_same_report():
    one, two, other = (check_layer(Gated(), X, rng=seed).to_dict() for seed in (3, 3, 4))
    assert one == two != other
    generator = check_layer(Gated(), X, rng=np.random.default_rng([3, 1])).to_dict()
    assert generator["rows"] == one["rows"] and generator["seed"] == one["seed"] == "[3, 1]"


def test_inputs_drawn_with_the_same_seed_are_not_the_cotangents():
    """With dy = x the gradient of a norm vanishes: there is nothing along x to learn."""
    x = np.random.default_rng(0).standard_normal((4, 6))
    for check in (check_layer, complex_step_check):
        assert check(RMSNorm(6, dtype=np.float64), x, rng=0).row("x").max_numeric > 0.1


def test_the_report_is_plain_data_and_a_narrow_table():
    class Wrong(Gated):
        def backward(self, dy, saved):
            dx = super().backward(dy, saved)
            dx[0, 0] = np.nan
            return dx

    report = check_layer(Wrong(), X)
    plain = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert plain["ok"] is False and plain["rows"][1]["name"] == "weight" and plain["rows"][1]["ok"] is True
    table = str(report).splitlines()[: 2 + len(report.rows)]
    assert all(len(line) <= 110 for line in table)
