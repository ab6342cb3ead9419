"""The complex step, and float32 against float64, must fail too when something is wrong."""

import numpy as np

from numpy_minimind.checking import check_layer, compare_float32, complex_step_check
from numpy_minimind.layer import Layer
from tests.checking.toys import BehindZero, Gated, X, verdicts

# -- complex step ----------------------------------------------------------------------------------------------


def test_complex_step_sees_what_differences_cannot():
    class SlightlyWrong(Gated):
        def backward(self, dy, saved):
            return super().backward(dy, saved) * (1 + 1e-10)

    assert complex_step_check(Gated(), X).worst.relative_error < 1e-14
    assert check_layer(SlightlyWrong(), X).ok
    assert verdicts(complex_step_check(SlightlyWrong(), X)) == {"x": "WRONG", "weight": "ok", "gain": "ok"}


def test_complex_step_fails_on_zeros_unless_listed():
    assert set(verdicts(complex_step_check(BehindZero(), X)).values()) == {"ZERO"}
    reasons = dict.fromkeys(("x", "weight", "gain"), "zero behind")
    assert complex_step_check(BehindZero(), X, expected_zero=reasons).ok
    assert verdicts(complex_step_check(Gated(), X, expected_zero={"x": "no"}))["x"] == "WRONG"


def test_complex_step_fails_where_forward_is_not_analytic():
    class Absolute(Layer):
        def forward(self, x):
            return np.abs(x), x

        def backward(self, dy, saved):
            return np.sign(saved) * dy

    assert check_layer(Absolute(), X).ok
    assert not complex_step_check(Absolute(), X).ok


# -- float32 ---------------------------------------------------------------------------------------------------


def test_float32_agrees_with_float64():
    report = compare_float32(Gated(), X)
    assert report.ok, str(report)
    assert list(verdicts(report)) == ["output 0", "x", "weight", "gain"]
    assert 1e-9 < report.worst.relative_error < 1e-6


def test_float32_that_becomes_float64_fails():
    class Wrong(Gated):
        def forward(self, x):
            y, saved = super().forward(x)
            return y * np.float64(1.0), saved

    assert compare_float32(Wrong(), X).faults == ("float32 output 0 comes out as float64",)


def test_float32_arithmetic_that_cancels_fails():
    class Wrong(Gated):
        def backward(self, dy, saved):
            return (super().backward(dy, saved) + 1000) - 1000

    assert check_layer(Wrong(), X).ok
    assert verdicts(compare_float32(Wrong(), X))["x"] == "WRONG"
