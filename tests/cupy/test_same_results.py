"""What a layer computes on the device: the numbers of NumPy, in arrays of the device, in the same dtypes."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from numpy_minimind import MiniMindForCausalLM
from numpy_minimind.backend import to_numpy
from numpy_minimind.checking.points import V, padding_mask
from numpy_minimind.layer import Parameter
from numpy_minimind.training import AdamW, TrainingDiverged, clip_grad_norm, evaluate
from tests.cupy import strict_cupy
from tests.cupy.on_device import CASES, assert_same, drawn, everything, moved, stream, to_the_device, trainer
from tests.helpers import model_of

EXPERTS = {"use_moe": True, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.3}
dense_and_experts = pytest.mark.parametrize("fields", [{}, EXPERTS], ids=["dense", "experts"])


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    with strict_cupy.install():
        yield


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CASES)
def test_forward_backward_and_inference_of_every_layer(name, dtype):
    """The same NumPy calls, so the same bits; where the backend takes another way (`scatter_add`), to rounding."""
    here = everything(*drawn(CASES[name], dtype))
    there = everything(*to_the_device(*drawn(CASES[name], dtype)))
    exact = CASES[name].layer not in ("embedding", "flash_attention", "model")
    for part, value in here.items():
        if value is None or (part == "gradients" and not value):
            assert not there[part]
        else:
            assert_same(there[part], value, exact, 8 * float(np.finfo(dtype).eps))


# -- a whole model -----------------------------------------------------------------------------------------------------


def pair(**fields: Any) -> tuple[MiniMindForCausalLM, MiniMindForCausalLM]:
    """Two equal models, the second on the device."""
    return model_of(np.float32, **fields), model_of(np.float32, **fields).to("cuda")


def text() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    ids, mask = rng.integers(0, V, (3, 6)), padding_mask(6, left=(0, 2, 0))
    return ids, np.where(mask & (rng.random(ids.shape) < 0.8), ids, -100), mask


@dense_and_experts
def test_losses_are_python_numbers_and_those_of_the_host(fields):
    here, there = pair(**fields)
    ours, theirs = (model.loss_and_grad(*text()) for model in (here, there))
    assert [type(x) for x in theirs] == [float, float, float, int]
    assert theirs == pytest.approx(ours, rel=1e-6)
    ids, targets, mask = text()
    assert there.loss_shifted(ids, targets, mask) == pytest.approx(here.loss_shifted(ids, targets, mask), rel=1e-6)


def test_ids_labels_and_masks_may_come_from_the_device():
    _, there = pair()
    expected = there.loss_and_grad(*text())
    assert there.loss_and_grad(*moved(text())) == expected
    bad = moved(np.full((1, 3), V))
    with pytest.raises(ValueError, match="ids must lie in"):
        there(bad)
    with pytest.raises(ValueError, match="labels must lie in"):
        there.loss_and_grad(moved(np.zeros((1, 3), int)), bad)
    for method in (there.loss_and_grad_shifted, there.loss_shifted):
        with pytest.raises(ValueError, match="labels must lie in"):
            method(moved(np.zeros((1, 3), int)), bad)


@dense_and_experts
@pytest.mark.parametrize("accumulate", [1, 2])
def test_ten_steps_of_training(fields, accumulate):
    here, there = (trainer(model, accumulate=accumulate) for model in pair(**fields))
    for _ in range(10 if accumulate == 1 else 2):
        ours, theirs = (t.step()._replace(seconds=0.0) for t in (here, there))
        assert [type(x) for x in theirs] == [type(x) for x in ours]
        assert theirs == pytest.approx(ours, rel=1e-5)
    assert {type(m) for m in there.optimizer.m.values()} == {strict_cupy.ndarray}
    for (name, ours), (_, theirs) in zip(here.model.named_parameters(), there.model.named_parameters()):
        assert theirs.data.dtype == np.float32
        np.testing.assert_allclose(to_numpy(theirs.data), ours.data, rtol=0, atol=2e-6, err_msg=name)


def test_a_trainer_s_state_is_on_the_host_and_continues_exactly():
    _, model = pair()
    first = trainer(model)
    first.step()
    arrays, numbers = first.state_dict()
    arrays = {name: a.copy() for name, a in arrays.items()}
    assert {type(a) for a in arrays.values()} == {np.ndarray}
    expected = first.step()
    _, model = pair(seed=2)
    second = trainer(model)
    second.load_state_dict(arrays, numbers)
    for moment in "mv":
        stored = {n.split(".", 2)[2]: a for n, a in arrays.items() if n.startswith(f"optimizer.{moment}.")}
        assert_same(getattr(second.optimizer, moment), stored)
        assert stored.keys() == getattr(second.optimizer, moment).keys()
    assert {type(p.data) for _, p in model.named_parameters()} == {strict_cupy.ndarray}
    assert second.step()._replace(seconds=0.0) == expected._replace(seconds=0.0)


def test_a_loss_that_is_not_finite_stops_before_anything_is_changed():
    _, model = pair()
    doomed = trainer(model)
    model.model.norm.weight.data.fill(np.nan)
    before = model.state_dict()
    with pytest.raises(TrainingDiverged, match="the loss became nan at step 1"):
        doomed.step()
    for name, array in model.state_dict().items():
        np.testing.assert_array_equal(array, before[name])
    assert (doomed.t, doomed.optimizer.t) == (0, 0)


@pytest.mark.parametrize(("value", "norm"), [(3.0, 3.0), (0.25, 0.25), (np.inf, np.inf), (np.nan, np.nan)])
def test_clipping_scales_to_the_norm_and_leaves_alone_what_is_not_finite(value, norm):
    gradient = moved(np.array([0.0, value], np.float32))
    parameter = Parameter(moved(np.zeros(2, np.float32)), gradient)
    assert clip_grad_norm([("p", parameter)], 0.5) == pytest.approx(norm, nan_ok=True)
    assert parameter.grad is gradient and gradient.dtype == np.float32
    np.testing.assert_array_equal(to_numpy(gradient)[1], 0.5 if value == 3 else value)


@dense_and_experts
@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"top_k": 7, "repetition_penalty": 1.3}], ids=str)
def test_generation_writes_the_same_ids(fields, settings):
    written = [
        model.generate(text()[0], 5, attention_mask=text()[2], rng=np.random.default_rng(1), **settings)
        for model in pair(**fields)
    ]
    assert type(written[1]) is np.ndarray and written[1].dtype == np.int64
    np.testing.assert_array_equal(*written)


def test_evaluation():
    here, there = pair()
    batches = [next(stream()) for _ in range(2)]
    assert evaluate(there, batches) == pytest.approx(evaluate(here, batches), rel=1e-6)


# -- moving and converting ---------------------------------------------------------------------------------------------


def test_a_model_goes_to_the_device_and_comes_back_with_gradients_and_ties():
    here, there = pair()
    there.loss_and_grad(*text())
    here.loss_and_grad(*text())
    assert {type(p.data) for _, p in there.named_parameters()} == {strict_cupy.ndarray}
    assert there.to("cuda") is there and there.to("cpu") is there
    assert there.lm_head.weight is there.model.embed_tokens.weight
    for (_, ours), (_, theirs) in zip(here.named_parameters(), there.named_parameters()):
        np.testing.assert_array_equal(theirs.data, ours.data)
        np.testing.assert_allclose(theirs.grad, ours.grad, rtol=1e-5, atol=1e-7)


def test_a_model_is_converted_on_the_device():
    here, there = pair()
    for model in (here, there):
        model.loss_and_grad(*text())  # so that there are gradients
        model.astype(np.float64)
    for (name, ours), (_, theirs) in zip(here.named_parameters(), there.named_parameters()):
        for array in (theirs.data, theirs.grad):
            assert (type(array), array.dtype) == (strict_cupy.ndarray, np.float64), name
        np.testing.assert_array_equal(to_numpy(theirs.data), ours.data)
        np.testing.assert_allclose(to_numpy(theirs.grad), ours.grad, rtol=1e-5, atol=1e-7)
    assert_same(there(text()[0]), here(text()[0]), exact=False, eps=1e-13)


def test_gradients_begin_and_are_cleared_on_the_device():
    parameter = Parameter(moved(np.ones((2, 3), np.float32)))
    parameter.zero_grad()
    assert parameter._grad is None
    held = parameter.grad
    assert_same(held, np.zeros((2, 3), np.float32))
    held += 1
    assert_same(parameter.grad, np.ones((2, 3), np.float32))
    parameter.zero_grad()
    assert parameter.grad is held
    assert_same(held, np.zeros((2, 3), np.float32))


def test_a_state_dict_that_does_not_fit_changes_nothing_on_the_device():
    _, model = pair()
    before = model.state_dict()
    with pytest.raises(ValueError, match=r"wrong shape: model.norm.weight"):
        model.load_state_dict({**before, "model.norm.weight": np.zeros(3)})
    for name, array in model.state_dict().items():
        np.testing.assert_array_equal(array, before[name])


def test_state_dicts_are_host_copies_and_load_from_either_side():
    here, there = pair()
    state = there.state_dict()
    assert {type(a) for a in state.values()} == {np.ndarray}
    for array in state.values():
        array.fill(0)  # a copy: the weights stay
    np.testing.assert_array_equal(there.state_dict()["model.norm.weight"], here.model.norm.weight.data)
    other = model_of(np.float32, seed=2).to("cuda")
    for source in (here.state_dict(), {name: p.data for name, p in there.named_parameters()}):
        other.load_state_dict(source)
        assert {type(p.data) for _, p in other.named_parameters()} == {strict_cupy.ndarray}
        np.testing.assert_array_equal(to_numpy(other(text()[0])), to_numpy(there(text()[0])))
        other.model.norm.weight.data.fill(3)


def test_an_optimizer_that_was_made_before_the_move_says_so():
    here, _ = pair()
    optimizer = AdamW(here.named_parameters())
    here.to("cuda")
    with pytest.raises(ValueError, match="make the optimizer last"):
        optimizer.step()


def test_a_saved_folder_is_that_of_the_host(tmp_path):
    pytest.importorskip("safetensors")
    import numpy_minimind as nm

    here, there = pair()
    nm.save_pretrained(here, tmp_path / "here")
    nm.save_pretrained(there, tmp_path / "there")
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("here", "there")]
    assert files[0] == files[1]
