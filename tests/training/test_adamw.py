"""AdamW and clipping: known values, an independent loop over single numbers, dtypes, exact resume, bad input."""

import math
import tracemalloc

import numpy as np
import pytest

from numpy_minimind.layer import Parameter
from numpy_minimind.training import adamw
from numpy_minimind.training.adamw import AdamW, clip_grad_norm

pytestmark = pytest.mark.usefixtures("backend")

NAN = float("nan")


def make_parameters(seed=0, dtype=np.float64):
    """A matrix, a gain and a three-axis array with random data and gradients."""
    rng = np.random.default_rng(seed)
    shapes = {"weight": (3, 4), "gain": (5,), "experts": (2, 3, 2)}
    return [
        (name, Parameter(rng.standard_normal(shape).astype(dtype), rng.standard_normal(shape).astype(dtype)))
        for name, shape in shapes.items()
    ]


def one(data, grad, dtype=np.float64, shape=(1, 1)):
    return Parameter(np.full(shape, data, dtype), np.full(shape, grad, dtype))


# -- AdamW: values ---------------------------------------------------------------------------------------------


def test_known_values_of_two_steps():
    p = one(1.0, 0.1)
    optimizer = AdamW([("p", p)], lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
    optimizer.step()
    assert p.data.item() == pytest.approx(0.989000001, abs=1e-12)
    optimizer.step()
    assert p.data.item() == pytest.approx(0.978011002, abs=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("decay", "decay_all"), [(0.0, False), (0.1, False), (0.1, True)])
def test_in_place_and_in_pieces_it_is_the_formula_bit_for_bit(dtype, decay, decay_all, monkeypatch, rng):
    monkeypatch.setattr(adamw, "PIECE", 7)
    parameters = {"matrix": Parameter(rng.standard_normal((5, 6)).astype(dtype)), "gain": Parameter(np.ones(3, dtype))}
    right = {name: (p.data.copy(), np.zeros_like(p.data), np.zeros_like(p.data)) for name, p in parameters.items()}
    optimizer = AdamW(parameters.items(), betas=(0.8, 0.95), eps=1e-3, weight_decay=decay, decay_all=decay_all)
    for t in range(1, 6):
        for name, p in parameters.items():
            p.grad[...] = rng.standard_normal(p.shape)
            d = decay if decay_all or name == "matrix" else 0.0
            w, m, v = right[name]
            right[name] = adamw.adamw(w, p.grad, m, v, t, 1e-2 / t, optimizer.betas, optimizer.eps, d)
        optimizer.step(lr=1e-2 / t)
    for name, (w, m, v) in right.items():
        for ours, formula in ((parameters[name].data, w), (optimizer.m[name], m), (optimizer.v[name], v)):
            assert ours.dtype == dtype and ours.tobytes() == formula.tobytes(), name


def test_eps_stands_outside_the_corrected_root():
    p = one(1.0, 1e-8)
    AdamW([("p", p)], lr=0.01, weight_decay=0.0, eps=1e-8).step()
    assert 1.0 - p.data.item() == pytest.approx(0.5 * 0.01, rel=1e-6)


def test_decays_matrices_and_leaves_gains_alone():
    gain, matrix, experts = one(1.0, 0.0, shape=(3,)), one(1.0, 0.0), one(1.0, 0.0, shape=(2, 2, 2))
    named = [("gain", gain), ("matrix", matrix), ("experts", experts)]
    AdamW(named, lr=0.01, weight_decay=0.1).step()
    assert (gain.data == 1.0).all()
    np.testing.assert_allclose(matrix.data, 0.999, rtol=1e-15)
    np.testing.assert_allclose(experts.data, 0.999, rtol=1e-15)


def test_decay_all_decays_gains_too():
    gain = one(1.0, 0.0, shape=(3,))
    AdamW([("gain", gain)], lr=0.01, weight_decay=0.1, decay_all=True).step()
    np.testing.assert_allclose(gain.data, 0.999, rtol=1e-15)


def reference_loop(w, gradients, rates, beta1, beta2, eps, decay):
    """AdamW for one number, in Python's own float64, written from the paper."""
    m = v = 0.0
    for t, (g, lr) in enumerate(zip(gradients, rates), start=1):
        w = w - lr * decay * w
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
        w = w - lr * m_hat / (math.sqrt(v_hat) + eps)
    return w


@pytest.mark.parametrize("decay_all", [False, True])
@pytest.mark.parametrize("piece", [1, 7, 1 << 15])
def test_equals_a_plain_loop_over_single_numbers(decay_all, piece, monkeypatch):
    monkeypatch.setattr(adamw, "PIECE", piece)  # 1 and 7 cut every array into several pieces
    rng, steps, settings = np.random.default_rng(1), 6, {"eps": 1e-3, "weight_decay": 0.3}
    named = make_parameters()
    rates = [float(lr) for lr in rng.uniform(0.001, 0.1, steps)]
    start = {name: p.data.copy() for name, p in named}
    gradients = {name: rng.standard_normal((steps, *p.shape)) for name, p in named}
    optimizer = AdamW(named, betas=(0.8, 0.95), decay_all=decay_all, **settings)
    for t in range(steps):
        for name, p in named:
            p.grad[...] = gradients[name][t]
        optimizer.step(lr=rates[t])
    for name, p in named:
        decay = settings["weight_decay"] if decay_all or p.data.ndim >= 2 else 0.0
        for index in np.ndindex(p.shape):
            history = [float(g) for g in gradients[name][(slice(None), *index)]]
            expected = reference_loop(float(start[name][index]), history, rates, 0.8, 0.95, settings["eps"], decay)
            assert p.data[index] == pytest.approx(expected, rel=1e-12, abs=1e-13)


def test_cutting_into_pieces_changes_no_bit(monkeypatch):
    results = []
    for piece in (10, 1 << 15):
        monkeypatch.setattr(adamw, "PIECE", piece)
        named = make_parameters(2, np.float32)
        optimizer = AdamW(named)
        for _ in range(3):
            optimizer.step()
        results.append([p.data.copy() for _, p in named])
    for in_pieces, whole in zip(*results):
        assert in_pieces.tobytes() == whole.tobytes()


@pytest.mark.host
def test_a_step_and_a_norm_need_no_more_memory_than_a_piece():
    p = one(1.0, 1.0, np.float32, (1000, 1000))
    optimizer = AdamW([("p", p)])
    tracemalloc.start()
    optimizer.step()
    step = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    clip_grad_norm([("p", p)], 1.0)
    norm = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert step < 1.2 * 4 * adamw.PIECE  # one scratch array in float32; the weight itself takes 15 of them
    assert norm < 2.4 * 8 * adamw.PIECE  # float64, the old copy and the new one


def test_updates_data_in_place_and_leaves_gradients_alone():
    named = make_parameters()
    before = {name: (p.data, p.data.copy(), p.grad.copy()) for name, p in named}
    AdamW(named).step()
    for name, p in named:
        data, values, grad = before[name]
        assert p.data is data
        assert (p.data != values).all()
        assert p.grad.tobytes() == grad.tobytes()


def test_updates_a_transposed_view_where_it_lies(monkeypatch):
    monkeypatch.setattr(adamw, "PIECE", 4)
    base = np.ones((3, 4))
    AdamW([("view", Parameter(base.T, np.ones((4, 3))))], lr=0.1, weight_decay=0.0).step()
    np.testing.assert_allclose(base, 0.9, rtol=1e-6)


def test_accepts_a_single_number_and_an_array_without_any():
    scalar, empty = one(1.0, 1.0, shape=()), one(1.0, 1.0, shape=(0, 3))
    AdamW([("scalar", scalar), ("empty", empty)], lr=0.1).step()
    assert scalar.data == pytest.approx(0.9)
    assert clip_grad_norm([("scalar", scalar), ("empty", empty)], 0.5) == 1.0
    assert scalar.grad == 0.5


def test_a_tied_parameter_is_updated_once():
    tied, alone = one(1.0, 0.1), one(1.0, 0.1)
    twice = AdamW([("embed", tied), ("head", tied)], lr=0.01, weight_decay=0.1)
    twice.step()
    AdamW([("embed", alone)], lr=0.01, weight_decay=0.1).step()
    assert tied.data == alone.data
    assert list(twice.m) == ["embed"]


def test_an_idle_weight_keeps_its_state_and_its_moments_become_zero_not_subnormal():
    idle = one(1.0, 1.0, np.float32, (2, 2))
    optimizer = AdamW([("idle", idle)], weight_decay=0.1)
    optimizer.step()
    idle.zero_grad()
    tiny = float(np.finfo(np.float32).tiny)
    for _ in range(1199):  # 0.9 ** 1199 is far below float32; without a flush rounding stops at 4 times 1.4e-45
        optimizer.step()
    assert optimizer.t % adamw.FLUSH_EVERY == 0
    assert (optimizer.m["idle"] == 0).all()
    assert (optimizer.v["idle"] > tiny).all()
    assert np.isfinite(idle.data).all()


# -- AdamW: dtypes and state -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_data_gradients_and_moments_keep_the_dtype(dtype):
    named = make_parameters(dtype=dtype)
    optimizer = AdamW(named)
    clip_grad_norm(named, 0.1)
    optimizer.step()
    for name, p in named:
        assert {p.data.dtype, p.grad.dtype, optimizer.m[name].dtype, optimizer.v[name].dtype} == {np.dtype(dtype)}


def test_numpy_scalars_as_settings_change_no_bit():
    # They would make NumPy compute each float32 product in float64 and round it afterwards.
    results = []
    for number in (float, np.float64):
        named = make_parameters(4, np.float32)
        clip_grad_norm(named, number(0.1))
        optimizer = AdamW(named, number(0.1), (number(0.9), number(0.99)), number(1e-3), weight_decay=number(0.3))
        optimizer.step()
        optimizer.step(lr=number(0.03))
        results.append(b"".join(p.data.tobytes() + p.grad.tobytes() for _, p in named))
    assert results[0] == results[1]


def test_float32_equals_float64_to_rounding():
    results = {}
    for dtype in (np.float32, np.float64):
        named = make_parameters(3, dtype)
        optimizer = AdamW(named, lr=0.1)
        for _ in range(5):
            optimizer.step()
        results[dtype] = named
    for (_, single), (_, double) in zip(results[np.float32], results[np.float64]):
        np.testing.assert_allclose(single.data, double.data, rtol=1e-5, atol=1e-6)


def run(optimizer, named, steps, seed):
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        for _, p in named:
            p.grad[...] = rng.standard_normal(p.shape)
        optimizer.step()


def test_state_round_trip_continues_bit_for_bit():
    named = make_parameters(dtype=np.float32)
    optimizer = AdamW(named, lr=0.05)
    run(optimizer, named, 3, seed=5)
    state = {key: value.copy() for key, value in optimizer.state_dict().items()}
    resumed_named = [(name, Parameter(p.data.copy())) for name, p in named]
    resumed = AdamW(resumed_named, lr=0.05)
    resumed.load_state_dict(state)
    assert resumed.t == 3
    run(optimizer, named, 4, seed=6)
    run(resumed, resumed_named, 4, seed=6)
    for (_, p), (_, q) in zip(named, resumed_named):
        assert p.data.tobytes() == q.data.tobytes()
    for key, value in optimizer.state_dict().items():
        assert value.tobytes() == resumed.state_dict()[key].tobytes()


def test_state_is_a_flat_dict_of_arrays():
    named = make_parameters()
    state = AdamW(named).state_dict()
    assert set(state) == {"t"} | {f"{kind}.{name}" for kind in "mv" for name, _ in named}
    assert all(isinstance(value, np.ndarray) for value in state.values())
    assert state["t"].shape == () and state["t"] == 0


def test_loading_copies():
    optimizer, named = AdamW(make_parameters()), make_parameters()
    state = AdamW(named).state_dict()
    optimizer.load_state_dict(state)
    optimizer.step()
    assert (state["m.weight"] == 0).all()


def test_a_state_that_does_not_fit_is_refused_whole():
    optimizer = AdamW(make_parameters())
    optimizer.step()
    before = {key: value.copy() for key, value in optimizer.state_dict().items()}
    bad = {key: value + 1 for key, value in before.items()}
    del bad["m.gain"]
    bad["m.other"] = np.zeros(3)
    bad["v.gain"] = np.zeros(4)
    bad["v.weight"] = bad["v.weight"].astype(np.float32)
    bad["t"] = np.array(-1)
    with pytest.raises(ValueError) as caught:
        optimizer.load_state_dict(bad)
    for fault in (
        "missing: m.gain",
        "unexpected: m.other",
        "wrong shape: v.gain is (4,), expected (5,)",
        "wrong dtype: v.weight is float32, expected float64",
        "t is -1",
    ):
        assert fault in str(caught.value)
    assert all(before[key].tobytes() == value.tobytes() for key, value in optimizer.state_dict().items())


@pytest.mark.parametrize("t", [np.array(2.5), np.array(NAN), None])
def test_a_state_without_a_whole_step_count_is_refused(t):
    optimizer = AdamW(make_parameters())
    state = {key: value for key, value in optimizer.state_dict().items() if key != "t" or t is not None}
    if t is not None:
        state["t"] = t
    with pytest.raises(ValueError, match=r"missing: t|t is (2\.5|nan)"):
        optimizer.load_state_dict(state)


# -- AdamW: refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"lr": 0.0}, "lr is 0"),
        ({"lr": -1e-3}, "lr is -0.001"),
        ({"lr": NAN}, "lr is nan"),
        ({"lr": math.inf}, "lr is inf"),
        ({"betas": (1.0, 0.999)}, "betas"),
        ({"betas": (0.9, -0.1)}, "betas"),
        ({"betas": (NAN, 0.999)}, "betas"),
        ({"eps": 0.0}, "eps is 0"),
        ({"eps": -1e-8}, "eps"),
        ({"eps": NAN}, "eps"),
        ({"weight_decay": -0.1}, "weight_decay"),
        ({"weight_decay": NAN}, "weight_decay"),
    ],
)
def test_refuses_settings_without_meaning(settings, named):
    with pytest.raises(ValueError, match=named):
        AdamW(make_parameters(), **settings)


@pytest.mark.parametrize("lr", [0.0, -1.0, NAN, math.inf])
def test_a_step_with_a_bad_rate_changes_nothing(lr):
    named = make_parameters()
    optimizer = AdamW(named)
    before = [p.data.copy() for _, p in named]
    with pytest.raises(ValueError, match="lr is"):
        optimizer.step(lr=lr)
    assert optimizer.t == 0
    assert all((p.data == data).all() for (_, p), data in zip(named, before))


def test_refuses_parameters_converted_after_it_was_made():
    named = make_parameters(dtype=np.float32)
    optimizer = AdamW(named)
    named[1][1].map(lambda a: a.astype(np.float64))
    before = named[0][1].data.copy()
    with pytest.raises(ValueError, match="gain was moved or converted"):
        optimizer.step()
    assert (named[0][1].data == before).all() and optimizer.t == 0


def test_refuses_half_precision_no_parameters_and_equal_names():
    with pytest.raises(ValueError, match="weight is float16"):
        AdamW(make_parameters(dtype=np.float16))
    with pytest.raises(ValueError, match="no parameters"):
        AdamW(iter([]))
    with pytest.raises(ValueError, match="name 'p'"):
        AdamW([("p", one(1.0, 0.0)), ("p", one(2.0, 0.0))])


# -- clipping --------------------------------------------------------------------------------------------------


def test_scales_all_gradients_together_to_max_norm():
    a = Parameter(np.zeros(2), np.array([3.0, 0.0]))
    b = Parameter(np.zeros((1, 1)), np.array([[4.0]]))
    norm = clip_grad_norm([("a", a), ("b", b)], 1.0)
    assert type(norm) is float and norm == 5.0
    np.testing.assert_allclose(a.grad, [0.6, 0.0], rtol=1e-15)
    np.testing.assert_allclose(b.grad, [[0.8]], rtol=1e-15)


@pytest.mark.parametrize("max_norm", [5.0, 6.0, math.inf])
def test_leaves_gradients_within_the_norm_alone(max_norm):
    a = Parameter(np.zeros(2), np.array([3.0, 4.0]))
    assert clip_grad_norm([("a", a)], max_norm) == 5.0
    assert a.grad.tolist() == [3.0, 4.0]


def tied_gradient():
    """Open case T01: the two parts of a tied embedding's gradient, added, one row a token id."""
    table, ids, targets = np.array([[1.0, 0], [0, 1], [1, 1]]), [1, 1], [2, 0]
    h = table[ids]
    p = np.exp(h @ table.T)
    p /= p.sum(axis=1, keepdims=True)
    p[[0, 1], targets] -= 1
    dlogits = p / 2
    from_head, from_input = dlogits.T @ h, np.zeros_like(table)
    np.add.at(from_input, ids, dlogits @ table)
    return from_head, from_input


def test_a_tied_parameter_counts_once_with_the_sum_of_its_gradients():
    from_head, from_input = tied_gradient()
    tied = Parameter(np.zeros((3, 2)), from_head + from_input)
    norm = clip_grad_norm([("embed", tied), ("head", tied)], 0.5)
    assert norm == pytest.approx(0.944132, abs=1e-6)
    assert np.linalg.norm(tied.grad) == pytest.approx(0.5)
    apart = [("head", Parameter(np.zeros((3, 2)), from_head)), ("in", Parameter(np.zeros((3, 2)), from_input))]
    assert clip_grad_norm(apart, 9.0) == pytest.approx(0.774784, abs=1e-6)  # what must not come out


@pytest.mark.parametrize("piece", [100, 1 << 15])
def test_float32_gradients_of_1e20_do_not_overflow(piece, monkeypatch):
    monkeypatch.setattr(adamw, "PIECE", piece)
    p = one(0.0, 1e20, np.float32, (20, 50))
    assert clip_grad_norm([("p", p)], 1.0) == pytest.approx(1e20 * math.sqrt(1000), rel=1e-6)
    assert p.grad.dtype == np.float32
    np.testing.assert_allclose(p.grad, 1 / math.sqrt(1000), rtol=1e-6)


def test_the_sum_is_float64_where_float32_would_lose_it():
    p = one(0.0, 1e-4, np.float32, (1_000_000,))
    p.grad[0] = 1.0  # 1 + 1e-8 is 1 in float32
    assert clip_grad_norm([("p", p)], 10.0) == pytest.approx(math.sqrt(1.01 - 1e-8), rel=1e-9)


@pytest.mark.parametrize("value", [NAN, math.inf, -math.inf])
def test_a_norm_that_is_not_finite_leaves_gradients_bit_for_bit(value):
    named = make_parameters(dtype=np.float32)
    named[1][1].grad[2] = value
    before = [p.grad.copy() for _, p in named]
    norm = clip_grad_norm(named, 1e-3)
    assert not math.isfinite(norm)
    assert math.isnan(norm) == math.isnan(value)
    assert all(p.grad.tobytes() == grad.tobytes() for (_, p), grad in zip(named, before))


def test_a_float64_norm_that_overflows_is_infinite_and_leaves_gradients_alone():
    p = one(0.0, 1e200)
    assert clip_grad_norm([("p", p)], 1.0) == math.inf
    assert p.grad.item() == 1e200


@pytest.mark.parametrize("max_norm", [0.0, -1.0, NAN])
def test_clipping_refuses_a_norm_without_meaning(max_norm):
    with pytest.raises(ValueError, match="max_norm"):
        clip_grad_norm(make_parameters(), max_norm)
