"""The sampling filters one by one: known values, ties, edges, and properties over random logits."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from numpy_minimind.generation.sampling import (
    apply_repetition_penalty,
    apply_temperature,
    check_settings,
    draw,
    keep_top_k,
    keep_top_p,
    next_ids,
    softmax,
)

pytestmark = pytest.mark.usefixtures("backend")

NAN = float("nan")
OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}


def row(*values):
    return np.array([values], dtype=np.float64)


def kept(z):
    return [np.flatnonzero(np.isfinite(line)).tolist() for line in z]


def choose(logits, seed=0, seen=None, **changed):
    logits = np.asarray(logits)
    seen = np.zeros(logits.shape, bool) if seen is None else seen
    generators = [np.random.default_rng([seed, b]) for b in range(len(logits))]
    return next_ids(logits, seen, generators, **{**OFF, **changed})


logit_rows = hnp.arrays(
    np.float32, st.tuples(st.integers(1, 4), st.integers(1, 12)), elements=st.floats(-30, 30, width=32)
)
# Few different values: many ties.
tied_rows = hnp.arrays(
    np.float64, st.tuples(st.integers(1, 3), st.integers(1, 8)), elements=st.sampled_from([-1.0, 0.0, 0.5, 2.0])
)


# -- temperature and penalty -----------------------------------------------------------------------------------


def test_temperature_divides_and_leaves_the_logits_alone():
    logits = row(1.0, -2.0, 0.0)
    assert apply_temperature(logits, 0.5).tolist() == [[2.0, -4.0, 0.0]]
    assert logits.tolist() == [[1.0, -2.0, 0.0]]


def test_penalty_known_values_each_seen_id_once():
    logits, seen = row(2.0, -2.0, 0.0), np.array([[True, True, False]])
    assert apply_repetition_penalty(logits, seen, 2.0).tolist() == [[1.0, -4.0, 0.0]]
    assert logits.tolist() == [[2.0, -2.0, 0.0]]


def test_penalty_of_one_is_the_identity_and_unseen_ids_keep_their_logits():
    logits = row(2.0, -2.0, 3.0)
    assert apply_repetition_penalty(logits, np.ones((1, 3), bool), 1.0).tolist() == logits.tolist()
    assert apply_repetition_penalty(logits, np.zeros((1, 3), bool), 5.0).tolist() == logits.tolist()


@settings(deadline=None)
@given(logits=logit_rows, penalty=st.floats(1.0, 10.0))
def test_penalty_never_rewards_and_its_inverse_undoes_it(logits, penalty):
    z, seen = logits.astype(np.float64), np.ones(logits.shape, bool)
    penalised = apply_repetition_penalty(z, seen, penalty)
    assert (penalised <= z).all()
    np.testing.assert_allclose(apply_repetition_penalty(penalised, seen, 1 / penalty), z, rtol=1e-12)


# -- top-k -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("logits", "k", "expected"),
    [
        ((1, 3, 2), 1, [1]),
        ((1, 3, 2), 2, [1, 2]),
        ((1, 3, 2), 3, [0, 1, 2]),
        ((1, 3, 2), 5, [0, 1, 2]),  # clamped to V
        ((1, 3, 2), 0, [0, 1, 2]),  # off
        ((1, 1, 1, 0), 2, [0, 1, 2]),  # tied with the second largest
        ((5, 1, 1, 0), 2, [0, 1, 2]),
        ((5, 5, 1, 1), 2, [0, 1]),
    ],
)
def test_top_k(logits, k, expected):
    z = row(*logits)
    filtered = keep_top_k(z, k)
    assert kept(filtered) == [expected]
    assert filtered[0, expected].tolist() == z[0, expected].tolist()


@settings(deadline=None)
@given(z=tied_rows, k=st.integers(1, 10))
def test_top_k_keeps_exactly_those_with_fewer_than_k_larger(z, k):
    larger = (z[:, None, :] > z[:, :, None]).sum(axis=-1)
    assert kept(keep_top_k(z, k)) == [np.flatnonzero(line < k).tolist() for line in larger]


# -- top-p -----------------------------------------------------------------------------------------------------


def test_top_p_keeps_probabilities_in_their_original_positions():
    z = np.log(row(0.2, 0.5, 0.3))
    np.testing.assert_allclose(softmax(keep_top_p(z, 0.6)), [[0, 0.625, 0.375]], rtol=1e-14)


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [(0.0, [1]), (1e-9, [1]), (0.49, [1]), (0.51, [1, 2]), (0.79, [1, 2]), (0.81, [0, 1, 2]), (1.0, [0, 1, 2])],
)
def test_top_p_takes_the_smallest_set_that_reaches_it(top_p, expected):
    assert kept(keep_top_p(np.log(row(0.2, 0.5, 0.3)), top_p)) == [expected]


def test_top_p_takes_the_lower_id_first_on_ties():
    z = row(0.0, 1.0, 1.0, 1.0, 0.0)
    assert kept(keep_top_p(z, 0.0)) == [[1]]
    assert kept(keep_top_p(z, 0.5)) == [[1, 2]]  # 0.27 each of the three


def test_top_p_that_is_reached_exactly_takes_no_further_id():
    z = row(0.0, 0.0, 0.0, 0.0)  # 1/4 each, exact in binary
    assert [kept(keep_top_p(z, p)) for p in (0.25, 0.5, 0.75)] == [[[0]], [[0, 1]], [[0, 1, 2]]]


def test_top_p_of_one_keeps_even_what_rounding_hides():
    assert kept(keep_top_p(row(0.0, -80.0), 1.0)) == [[0, 1]]  # the first id alone sums to 1.0


def test_each_row_has_its_own_set():
    z = np.log(np.array([[0.2, 0.5, 0.3], [0.98, 0.01, 0.01]]))
    assert kept(keep_top_p(z, 0.6)) == [[1, 2], [0]]
    assert kept(keep_top_k(z, 1)) == [[1], [0]]


@settings(deadline=None)
@given(logits=logit_rows, top_p=st.floats(0, 1))
def test_top_p_set_reaches_top_p_and_is_smallest(logits, top_p):
    z = logits.astype(np.float64)
    for p, chosen in zip(softmax(z), kept(keep_top_p(z, top_p))):
        assert chosen
        assert p[chosen].sum() >= top_p - 1e-12
        if top_p < 1:
            rest = np.delete(p, chosen)
            assert rest.size == 0 or rest.max() <= p[chosen].min()
            # Dropping the least likely of the set falls short.
            assert len(chosen) == 1 or p[chosen].sum() - p[chosen].min() < top_p + 1e-12


# -- draw: on the host, whichever device computed the probabilities --------------------------------------------


@pytest.mark.host
@pytest.mark.parametrize(("u", "expected"), [(0.0, 1), (0.24, 1), (0.26, 3), (0.99, 3), (1 - 2**-53, 3)])
def test_draw_inverts_the_distribution_function_and_skips_zeros(u, expected):
    p = row(0.0, 0.25, 0.0, 0.75, 0.0)
    assert draw(p, np.array([u])).tolist() == [expected]


@pytest.mark.host
@settings(deadline=None)
@given(
    p=hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(0, 1, width=32, allow_subnormal=False)).filter(
        lambda p: p.sum() > 0
    ),
    u=st.floats(0, 1, exclude_max=True),
)
def test_draw_never_raises_and_never_takes_what_is_impossible(p, u):
    (chosen,) = draw(p[None], np.array([u]))  # not normalised: any scale will do
    assert p[chosen] > 0


@pytest.mark.host
def test_draw_over_a_fine_grid_gives_the_probabilities():
    p = np.array([0.1, 0.6, 0.0, 0.3])
    u = (np.arange(1000) + 0.5) / 1000
    drawn = draw(np.tile(p, (1000, 1)), u)
    assert np.bincount(drawn, minlength=4).tolist() == [100, 600, 0, 300]


@pytest.mark.host
def test_draw_sums_float32_probabilities_in_float64():
    # 1 + 1e-8 is 1 in float32: there the other ids, together 0.01 of the mass, could never be drawn.
    p = np.full((1, 1_000_001), 1e-8, np.float32)
    p[0, 0] = 1.0
    assert draw(p, np.array([0.995]))[0] == pytest.approx(492_500, rel=0.01)


# Seeds on which Generator.multinomial refuses the float32 softmax of 3 * normal, 6,400 wide (open case G04).
@pytest.mark.parametrize("seed", [37, 104, 122, 154, 169, 234, 276])
def test_draws_from_float32_probabilities_that_multinomial_refuses(seed):
    logits = (3 * np.random.default_rng(seed).standard_normal((1, 6400))).astype(np.float32)
    p = softmax(logits)
    assert p.dtype == np.float32
    for u in (0.0, 0.5, 1 - 2**-53):
        assert 0 <= draw(p, np.array([u]))[0] < 6400
    assert 0 <= choose(logits, seed)[0] < 6400


# -- all of it -------------------------------------------------------------------------------------------------


def test_temperature_zero_is_the_lowest_of_the_largest():
    assert choose([[0.0, 2.0, 2.0], [5.0, 5.0, 1.0]], temperature=0.0).tolist() == [1, 0]


def test_temperature_zero_comes_after_the_penalty_and_uses_no_generator():
    seen = np.array([[False, True, False]])
    chosen = next_ids(row(0.0, 2.0, 1.5), seen, [], **{**OFF, "temperature": 0.0, "repetition_penalty": 2.0})
    assert chosen.tolist() == [2]


@pytest.mark.parametrize("temperature", [1e-6, 1e-38, 5e-324])
def test_small_temperatures_are_finite_and_take_the_largest(temperature):
    logits = np.array([[-3e38, 1.0, 1.0 + 2**-23, 3e38], [1e-45, 0.0, -1e-45, 0.0]], np.float32)
    assert choose(logits, temperature=temperature)[0] == 3
    assert temperature > 1e-6 or choose(logits[:1, :3], temperature=1e-12)[0] == 2


def test_large_temperatures_are_nearly_uniform():
    drawn = [choose([[0.0, 5.0, -5.0]], seed, temperature=1e6)[0] for seed in range(600)]
    assert (np.bincount(drawn, minlength=3) > 150).all()


def test_the_penalty_comes_before_top_k():
    # Penalised first, id 0 falls to 1.0 and is cut; top-k first would keep it alone.
    seen = np.array([[True, False, False]])
    assert choose(row(2.0, 1.9, 0.0), seen=seen, top_k=1, repetition_penalty=2.0).tolist() == [1]


def test_the_temperature_comes_before_top_p():
    # At temperature 0.1 id 0 has all the mass and stands alone; at temperature 1 two ids would be needed for 0.7.
    drawn = {choose(row(1.0, 0.5, 0.0), seed, temperature=0.1, top_p=0.7)[0] for seed in range(50)}
    assert drawn == {0}


def test_top_k_comes_before_top_p():
    # Within the two that top-k keeps, id 0 has 0.67 of the mass, enough for 0.6; of all four it has 0.4.
    p = row(0.4, 0.2, 0.2 - 1e-6, 0.2 - 1e-6)
    drawn = {choose(np.log(p), seed, top_k=2, top_p=0.6)[0] for seed in range(50)}
    assert drawn == {0}


@pytest.mark.quick_on_host
def test_frequencies_follow_the_probabilities():
    p = np.array([0.1, 0.2, 0.7])
    drawn = [choose(np.log(p)[None], seed)[0] for seed in range(2000)]
    np.testing.assert_allclose(np.bincount(drawn, minlength=3) / 2000, p, atol=0.04)


@settings(deadline=None)
@given(
    logits=logit_rows,
    temperature=st.floats(0, 100) | st.sampled_from([0.0, 1e-300, 1e-6]),
    top_k=st.integers(0, 15),
    top_p=st.floats(0, 1),
    penalty=st.floats(0.1, 10),
    seed=st.integers(0, 1000),
)
def test_always_gives_an_id_that_every_filter_keeps(logits, temperature, top_k, top_p, penalty, seed):
    before, seen = logits.copy(), logits > 0
    ids = choose(logits, seed, seen, temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=penalty)
    assert ids.dtype == np.int64 and ids.shape == (len(logits),)
    assert logits.tobytes() == before.tobytes()
    z = apply_repetition_penalty(logits.astype(np.float64), seen, penalty)
    chosen = np.take_along_axis(z, ids[:, None], axis=1)[:, 0]
    if temperature == 0 or top_k == 1 or top_p == 0:
        assert np.allclose(chosen, z.max(axis=1), rtol=1e-12)
    if top_k:
        assert ((z > chosen[:, None]).sum(axis=1) < top_k).all()


@pytest.mark.parametrize("value", [NAN, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_an_error_that_names_the_row(value, temperature):
    with pytest.raises(ValueError, match="row 1 are not all finite"):
        choose([[0.0, 1.0], [0.0, value]], temperature=temperature)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"temperature": -1.0}, "temperature is -1"),
        ({"temperature": NAN}, "temperature is nan"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_k": 2.5}, "top_k is 2.5"),
        ({"top_p": -0.1}, "top_p is -0.1"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"top_p": NAN}, "top_p is nan"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0"),
        ({"repetition_penalty": -2.0}, "repetition_penalty is -2"),
        ({"repetition_penalty": NAN}, "repetition_penalty is nan"),
        ({"repetition_penalty": math.inf}, "repetition_penalty is inf"),
    ],
)
def test_refuses_settings_without_meaning(changed, named):
    with pytest.raises(ValueError, match=named):
        check_settings(**{**OFF, **changed})


def test_accepts_the_edges():
    check_settings(0, 0, 0, 1e-3)
    check_settings(2.0, np.int64(5), 1, 10)
