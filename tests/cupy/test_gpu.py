"""NumPy against CuPy on a GPU, where there is one; the same tests on the stand-in, so that they are known to work."""

import copy
from contextlib import nullcontext

import numpy as np
import pytest

from numpy_minimind import MiniMindConfig, MiniMindForCausalLM
from numpy_minimind.backend import get_array_module, to_device, to_numpy
from numpy_minimind.checking.devices import CASES, TOLERANCES, compare_case, compare_devices, difference
from numpy_minimind.layers import Linear
from numpy_minimind.training import AdamW, clip_grad_norm
from tests.cupy import strict_cupy

SIZES = {"vocab_size": 61, "max_position_embeddings": 400}
MODELS = {
    "dense": {},
    "experts": {"use_moe": True, "num_experts": 4, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.1},
    "untied": {"tie_word_embeddings": False},
}
DEVICES = ["stand-in", pytest.param("GPU", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES, autouse=True)
def device(request):
    """The module that computes on "cuda": the stand-in's, or CuPy's."""
    if request.param == "GPU":
        try:
            to_device(np.zeros(1), "cuda")
        except RuntimeError as error:
            pytest.skip(str(error))
    with strict_cupy.install() if request.param == "stand-in" else nullcontext():
        yield get_array_module(to_device(np.zeros(1), "cuda"))


def model_of(name, dtype=np.float32):
    config = MiniMindConfig.preset("tiny", **SIZES, **MODELS[name])
    model = MiniMindForCausalLM(config, rng=np.random.default_rng(0), dtype=dtype)
    for _, p in model.named_parameters():
        if p.data.ndim == 2:
            p.data *= 4  # trained sizes: logits far apart
    return model


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_every_layer_forward_and_backward(case, dtype):
    errors = compare_case(case, dtype=dtype)
    assert errors and max(errors.values()) <= TOLERANCES[dtype], errors


@pytest.mark.parametrize("tokens", [20, 300])
@pytest.mark.parametrize("name", MODELS)
def test_training_steps(name, tokens):
    """Losses, the norm, and the weights after three steps, a padded batch among them."""
    rng = np.random.default_rng(1)
    ids = rng.integers(3, 61, (2, tokens))
    mask = np.ones_like(ids)
    mask[1, :5] = 0
    found = []
    for where in ("cpu", "cuda"):
        model = model_of(name).to(where)
        optimizer = AdamW(model.named_parameters(), lr=1e-3)
        numbers = []
        for attention_mask in (None, mask, None):
            model.zero_grad()
            result = model.loss_and_grad(ids, np.where(mask, ids, -100), attention_mask)
            numbers += [*result, clip_grad_norm(model.named_parameters(), 1.0)]
            optimizer.step()
        assert all(type(number) in (float, int) for number in numbers)
        found.append((numbers, model.state_dict()))
    (numbers, weights), (expected, expected_weights) = found[1], found[0]
    np.testing.assert_allclose(numbers, expected, rtol=1e-4, atol=1e-7)
    for key, w in expected_weights.items():
        # Adam's first steps are lr times the sign of a gradient, however small, so a rounding error of it can show.
        assert difference(key, w, weights[key]) <= 2e-3, key


@pytest.mark.parametrize("name", MODELS)
def test_generation(name):
    """Greedy and sampled ids of a left-padded batch, through a cache that grows; logits."""
    model = model_of(name)
    ids = np.random.default_rng(2).integers(3, 61, (2, 250))
    mask = np.ones_like(ids)
    mask[1, :100] = 0
    there = copy.deepcopy(model).to("cuda")
    logits = [to_numpy(m(ids, mask, logits_to_keep=1)) for m in (model, there)]
    assert difference("logits", *logits) <= 1e-4
    for settings in ({"temperature": 0}, {"temperature": 0.7, "top_k": 9, "repetition_penalty": 1.2}):
        cpu, gpu = (
            m.generate(ids, 10, eos_token_id=None, attention_mask=mask, rng=np.random.default_rng(3), **settings)
            for m in (model, there)
        )
        assert type(gpu) is np.ndarray and gpu.dtype == np.int64
        np.testing.assert_array_equal(gpu, cpu)


def test_memory_in_use_stays_the_same(device):
    pool = device.get_default_memory_pool()
    model = model_of("experts").to("cuda")
    optimizer = AdamW(model.named_parameters())
    ids = np.random.default_rng(4).integers(3, 61, (2, 9))
    used = []
    for _ in range(5):
        model.zero_grad()
        model.loss_and_grad(ids, ids)
        clip_grad_norm(model.named_parameters(), 1.0)
        optimizer.step()
        model.generate(ids, 3, eos_token_id=None, rng=np.random.default_rng(0))
        used.append(pool.used_bytes())
    assert len(set(used[1:])) == 1, used


def test_a_difference_is_noticed(monkeypatch):
    """The comparison itself can fail: another result, another dtype, a result that came back to the host."""

    def compared():
        return compare_devices(Linear(3, 4).astype(np.float64), np.ones((2, 3)), dtype="float32")

    assert max(compared().values()) < 1e-6
    right = Linear.forward

    def planted(change):
        def forward(self, x):
            y, saved = right(self, x)
            return (y if isinstance(x, np.ndarray) else change(y)), saved

        monkeypatch.setattr(Linear, "forward", forward)

    planted(lambda y: y + 1e-3)
    assert compared()["output 0"] > TOLERANCES["float32"]
    for change in (lambda y: y.astype(np.float64), to_numpy):
        planted(change)
        with pytest.raises(AssertionError, match=r"on the device|not on cuda"):
            compared()
