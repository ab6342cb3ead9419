"""What the package does on a device, all of it once, at small sizes: what `replay` records."""

from itertools import count
from typing import Any

import numpy as np

from numpy_minimind import MiniMindForCausalLM
from numpy_minimind.backend import to_device, to_numpy
from numpy_minimind.checking.cases import Case
from numpy_minimind.checking.points import V, config
from numpy_minimind.data.batches import Batch
from numpy_minimind.measuring.floors import DecodeFloor, prefill_floors, training_floors
from numpy_minimind.measuring.workloads import Decode, Prefill, TrainStep
from numpy_minimind.training import AdamW, Trainer, clip_grad_norm
from numpy_minimind.training.adamw import FLUSH_EVERY
from numpy_minimind.training.trainer import evaluate
from numpy_minimind.trees import map_arrays
from tests.cupy.on_device import CASES, drawn, everything
from tests.helpers import settled
from tests.yarns import SHORT

LONG = {"max_position_embeddings": 600}
EXPERTS = {"use_moe": True, "num_experts": 4, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.1}
MODELS: dict[str, dict[str, Any]] = {
    "dense": {},
    "experts": EXPERTS,
    "best expert": {**EXPERTS, "num_experts_per_tok": 1, "norm_topk_prob": False, "tie_word_embeddings": False},
    "yarn": {"rope_scaling": SHORT},
}


def on_device(tree: Any) -> Any:
    """The same nesting with its arrays on the device."""
    return map_arrays(tree, lambda a: to_device(a, "cuda"))


def model_of(dtype: Any = np.float32, **overrides: Any) -> MiniMindForCausalLM:
    model = settled(MiniMindForCausalLM(config(**overrides)), dtype=dtype)
    model.to("cuda")
    return model


def ids_and_mask(rows: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    mask = np.ones((rows, tokens), np.int64)
    mask[0, :3] = 0
    return rng.integers(3, V, (rows, tokens)), mask


def run_layer(case: Case, dtype: Any) -> None:
    """Forward, backward and inference of one layer."""
    layer, inputs, dy = drawn(case, dtype)
    everything(layer.to("cuda"), on_device(inputs), on_device(dy))


def run_training(overrides: dict[str, Any], tokens: int, checkpoint: bool = False) -> None:
    """Steps with padding, clipping and AdamW up to the flush of subnormal moments."""
    model = model_of(**LONG, **overrides)
    model.model.checkpoint_activations = checkpoint
    ids, mask = ids_and_mask(3, tokens)
    labels = np.where(mask, ids, -100)
    optimizer = AdamW(model.named_parameters(), lr=1e-3)
    optimizer.t = FLUSH_EVERY - 2
    for attention_mask in (None, mask):
        model.zero_grad()
        model.loss_and_grad(ids, labels, attention_mask)
        clip_grad_norm(model.named_parameters(), 1e-3)
        optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    model.load_state_dict(model.state_dict())
    out, saved = model.forward(ids, mask)
    model.backward(out.logits, saved)
    model.astype(np.float64)


def run_trainer() -> None:
    model = model_of()
    ids, mask = ids_and_mask(3, 9)
    batches = [Batch(ids, ids), Batch(ids, np.where(mask, ids, -100), mask.astype(bool))]
    stream: Any = (batches[i % 2] for i in count())
    optimizer = AdamW(model.named_parameters())
    trainer = Trainer(model, optimizer, stream, steps=4, lr=1e-3, clip=0.1, accumulate=2)
    trainer.step()
    evaluate(model, batches)


def run_generation(overrides: dict[str, Any]) -> None:
    model = model_of(**LONG, **overrides)
    ids, mask = ids_and_mask(2, 12)
    model.generate(ids, max_new_tokens=3, temperature=0, eos_token_id=None)
    model.generate(
        ids,
        max_new_tokens=3,
        temperature=0.8,
        top_k=7,
        top_p=0.9,
        repetition_penalty=1.3,
        rng=np.random.default_rng(0),
        attention_mask=mask,
    )
    to_numpy(model(ids, mask))


def run_long_generation() -> None:
    """A prompt that FlashAttention reads, in a cache that grows."""
    model = model_of(**LONG)
    ids, mask = ids_and_mask(2, 300)
    model.generate(ids[:, :255], max_new_tokens=4, temperature=0, eos_token_id=None)
    model.generate(ids, max_new_tokens=2, temperature=0, eos_token_id=None, attention_mask=mask)


def run_measurements() -> None:
    """What `bench --device cuda` times: the work, and its products alone."""
    c = config()
    work: list[Any] = [TrainStep(c, 2, 9, device="cuda"), Prefill(c, 2, 9, device="cuda"), Decode(c, 1, 5, 2, "cuda")]
    work += training_floors(c, 2, 9, 1, "cuda").values()
    work += [*prefill_floors(c, 2, 9, 1, "cuda").values(), DecodeFloor(c, 1, 5, 2, "cuda")]
    for task in work:
        task()


def run_everything() -> None:
    for case in CASES.values():
        for dtype in (np.float32, np.float64):
            run_layer(case, dtype)
    for overrides in MODELS.values():
        run_training(overrides, 11)
        run_generation(overrides)
    run_training({}, 300)
    run_training({}, 11, checkpoint=True)
    run_trainer()
    run_measurements()
    run_long_generation()
