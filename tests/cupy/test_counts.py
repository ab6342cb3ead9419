"""How many calls of a layer start a kernel on the device, and how often the host waits for it.

A layer that fetches its input, computes with NumPy and moves the result back gives the right numbers in the right
arrays: only the counts tell. So they stand here, and whoever changes a layer changes them and sees what the change
costs. Views, and questions about shapes and dtypes, cost nothing.
"""

import numpy as np
import pytest

from numpy_minimind import MiniMindForCausalLM
from numpy_minimind.checking.points import V
from numpy_minimind.training import evaluate
from tests.cupy import strict_cupy
from tests.cupy.on_device import CASES, drawn, stream, to_the_device, trainer
from tests.helpers import model_of

EXPERTS = {"use_moe": True, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.3}

# Calls that start a kernel, in forward and in backward, in float32. When a layer was changed on purpose,
# ``python -m tests.cupy.test_counts`` prints what it does now.
KERNELS = {
    "linear/plain": (1, 3),
    "embedding/repeated-ids": (1, 1),
    "rmsnorm/plain": (7, 9),
    "rope/from-200": (15, 8),
    "softmax/left-padded": (12, 3),
    "scaled_dot_product/left-padded": (15, 9),
    "flash_attention/left-padded": (138, 149),
    "attention/left-padded": (49, 65),
    "swiglu/plain": (8, 12),
    "moe/k1": (90, 102),
    "moe/k1-normalised": (92, 106),
    "moe/k2": (90, 106),
    "moe/k2-normalised": (92, 110),
    "moe/k2-left-padded": (95, 110),
    "block/gqa-left-padded": (74, 97),
    "block/moe-k2-right-padded": (160, 195),
    "cross_entropy/part-of-a-batch": (15, 5),
    "linear_cross_entropy/part-of-a-batch": (89, 3),
    "model/gqa-tied-dense-left-padded": (176, 207),
    "model/gqa-tied-moe-k1-left-padded": (312, 345),
}

# Where the host waits. A layer that is given labels on the device must ask which count; a model's lie on the host.
WAITS = {
    **{name: ["get"] for name in KERNELS if "moe" in name},
    "linear_cross_entropy/part-of-a-batch": ["flatnonzero"],
    "model/gqa-tied-moe-k1-left-padded": ["get", "get"],
}

# Kernels of one step of training: two layers, four rows of six tokens, one batch or two of them.
STEP = {
    ("dense", 1): 917,
    ("dense", 2): 1337,
    ("experts", 1): 1701,
    ("experts", 2): 2485,
}

dense_and_experts = pytest.mark.parametrize("fields", [{}, EXPERTS], ids=["dense", "experts"])


@pytest.fixture(autouse=True)
def device():
    with strict_cupy.install():
        yield


def counted(name: str) -> tuple[int, int, list[str]]:
    """Return the kernels of forward, those of backward, and the waits of both."""
    layer, inputs, dy = to_the_device(*drawn(CASES[name], np.float32))
    for _, parameter in layer.named_parameters():
        parameter.grad.fill(0)  # comes to be at first use
    with strict_cupy.recording() as forward:
        _, saved = layer.forward(*inputs)
    with strict_cupy.recording() as back:
        layer.backward(*dy, saved)
    return forward.kernels, back.kernels, [*forward.reads, *back.reads]


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_and_waits_of_every_layer(name):
    forward, backward, waits = counted(name)
    assert (forward, backward) == KERNELS[name]
    assert waits == WAITS.get(name, [])


# -- a step of training, a token of text -------------------------------------------------------------------------------


def experts_and_waits(fields: dict[str, object]) -> tuple[MiniMindForCausalLM, list[str]]:
    """A model of two layers on the device, and one wait for each layer of experts."""
    return model_of(np.float32, **fields).to("cuda"), ["get"] * (2 if fields else 0)


def recorded_step(model: MiniMindForCausalLM, accumulate: int) -> strict_cupy.Record:
    """The second step: gradients have come to be in the first."""
    step = trainer(model, accumulate=accumulate).step
    step()
    with strict_cupy.recording() as record:
        step()
    return record


@dense_and_experts
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_waits_once_for_losses_and_norm_and_once_for_each_layer_of_experts(fields, accumulate):
    model, waits = experts_and_waits(fields)
    record = recorded_step(model, accumulate)
    assert record.reads == waits * accumulate + ["get"]
    assert record.kernels == STEP["experts" if fields else "dense", accumulate]


@dense_and_experts
def test_only_ids_labels_and_masks_move_to_the_device(fields):
    """Ids, the mask, and of the labels which count and what they are; and the frequencies of the rotation."""
    model, _ = experts_and_waits(fields)
    ids = np.random.default_rng(1).integers(0, V, (3, 6))
    model.loss_and_grad(ids, ids)
    with strict_cupy.recording() as record:
        model.loss_and_grad(ids, ids, np.tri(3, 6, 3))
    assert len(record.uploads) == 5


@dense_and_experts
def test_a_batch_of_evaluation_waits_once_and_once_for_each_layer_of_experts(fields):
    model, waits = experts_and_waits(fields)
    with strict_cupy.recording() as record:
        evaluate(model, [next(stream()) for _ in range(3)])
    assert record.reads == [*waits, "float"] * 3


@dense_and_experts
@pytest.mark.parametrize(("temperature", "of_choice"), [(0.0, 2), (0.8, 2)])
def test_a_token_waits_for_its_probabilities_and_whether_they_are_finite(fields, temperature, of_choice):
    model, waits = experts_and_waits(fields)
    with strict_cupy.recording() as record:
        model.generate(np.ones((2, 3), int), 4, temperature=temperature, eos_token_id=None)
    assert len(record.reads) == 4 * (len(waits) + of_choice)


if __name__ == "__main__":
    with strict_cupy.install():
        for case in KERNELS:
            print(f'    "{case}": {counted(case)[:2]},')
        for (kind, fields), number in [((k, f), n) for k, f in (("dense", {}), ("experts", EXPERTS)) for n in (1, 2)]:
            print(f'    ("{kind}", {number}): {recorded_step(experts_and_waits(fields)[0], number).kernels},')
