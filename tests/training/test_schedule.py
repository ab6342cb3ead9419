"""The learning-rate schedule: MiniMind's values, its end, the warm-up, and what is refused."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numpy_minimind.training.schedule import cosine_lr

NAN = float("nan")


@pytest.mark.parametrize(
    ("t", "expected"),
    [(0, 5e-4), (1, 4.889877e-4), (5, 2.75e-4), (10, 5e-5), (11, 5e-5), (15, 5e-5), (1000, 5e-5)],
)
def test_minimind_values_and_the_floor_after_the_end(t, expected):
    assert cosine_lr(t, 10, 5e-4) == pytest.approx(expected, rel=1e-6)


def test_equals_minimind_formula_at_every_step():
    for t in range(1, 38):
        expected = 3e-3 * (0.1 + 0.45 * (1 + math.cos(math.pi * t / 37)))
        assert cosine_lr(t, 37, 3e-3) == pytest.approx(expected, rel=1e-14)


def test_one_step_in_all_ends_at_the_floor():
    assert cosine_lr(1, 1, 1.0) == pytest.approx(0.1)


def test_warmup_rises_linearly_to_base_then_the_cosine_has_the_remaining_steps():
    rates = [cosine_lr(t, 24, 1.0, warmup=4) for t in range(25)]
    assert rates[:5] == pytest.approx([0, 0.25, 0.5, 0.75, 1.0])
    assert rates[14] == pytest.approx(0.55)  # half way between step 4 and step 24
    assert rates[24] == pytest.approx(0.1)
    assert rates[5:] == pytest.approx([cosine_lr(t, 20, 1.0) for t in range(1, 21)])


@settings(deadline=None)
@given(
    total=st.integers(1, 10_000),
    base=st.floats(1e-8, 1.0),
    t=st.integers(0, 20_000),
    share=st.floats(0, 0.99),
)
def test_stays_between_zero_and_base_and_never_rises_after_the_warmup(total, base, t, share):
    warmup = int(share * total)
    now, later = cosine_lr(t, total, base, warmup), cosine_lr(t + 1, total, base, warmup)
    assert 0 <= now <= base * (1 + 1e-15)
    if t >= warmup:
        assert later <= now
        assert now >= 0.1 * base * (1 - 1e-12)
    else:
        assert later > now


@pytest.mark.parametrize("base", [1, np.float64(1), np.float32(1)])
@pytest.mark.parametrize("t", [1, np.int64(2), np.int64(9)])
def test_gives_a_python_float_whatever_it_gets(t, base):
    assert type(cosine_lr(t, 10, base, warmup=5)) is float


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((1, 0, 1e-3), "total"),
        ((1, -5, 1e-3), "total"),
        ((1, NAN, 1e-3), "total"),
        ((-1, 10, 1e-3), "t is -1"),
        ((NAN, 10, 1e-3), "t is nan"),
        ((1, 10, 0.0), "base"),
        ((1, 10, -1e-3), "base"),
        ((1, 10, NAN), "base"),
        ((1, 10, 1e-3, 10), "warmup"),
        ((1, 10, 1e-3, -1), "warmup"),
        ((1, 10, 1e-3, NAN), "warmup"),
    ],
)
def test_refuses_what_has_no_meaning(arguments, named):
    with pytest.raises(ValueError, match=named):
        cosine_lr(*arguments)
