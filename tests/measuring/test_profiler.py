"""The profiler: whose time and whose bytes, on layers with a clock of their own and on real models."""

import numpy as np
import pytest

import numpy_minimind as nm
from numpy_minimind import accounting
from numpy_minimind.data import Batch
from numpy_minimind.layer import Layer
from numpy_minimind.layers import FlashAttention, Linear, LinearCrossEntropy, ScaledDotProduct
from numpy_minimind.measuring import profiler
from numpy_minimind.measuring.profiler import Profile, flops_of_call, profile_steps, table
from numpy_minimind.training import AdamW, Trainer, adamw


class Clock:
    now = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(profiler, "time", clock)
    return clock


class Inner(Layer):
    def __init__(self, clock):
        self.clock = clock

    def forward(self, x):
        self.clock.now += 1
        return x + 1, (x,)

    def backward(self, dy, saved):
        self.clock.now += 10
        return dy


class Outer(Inner):
    def __init__(self, clock):
        super().__init__(clock)
        self.first, self.parts = Inner(clock), [Inner(clock), Inner(clock)]

    def forward(self, x):
        self.clock.now += 100
        x, first = self.first.forward(x)
        kept = []
        for part in self.parts:
            x = part(x)  # dropped
            x, saved = part.forward(x)
            kept.append(saved)
        return x, (first, kept, np.zeros(3))

    def backward(self, dy, saved):
        self.clock.now += 1000
        for part, kept in zip(self.parts, saved[1]):
            dy = part.backward(dy, kept)
        return self.first.backward(dy, saved[0])


class Model(Layer):
    def __init__(self, clock):
        self.outer = Outer(clock)


def test_the_time_of_a_layer_is_its_own_without_that_of_the_layers_inside(clock):
    model = Model(clock)
    with Profile(model).running() as profile:
        y, saved = model.outer.forward(np.zeros(5))
        model.outer.backward(y, saved)
    found = {path: (row.calls, row.forward, row.backward, row.inside, row.depth) for path, row in profile.rows.items()}
    assert found == {
        "outer": (1, 100, 1000, 1 + 4 + 30, 0),
        "outer/first": (1, 1, 10, 0, 1),
        "outer/parts.*": (4, 4, 20, 0, 1),
    }
    assert sum(row.own for row in profile.rows.values()) == clock.now


def test_bytes_count_where_they_are_kept_once_and_not_if_they_were_dropped(clock):
    model = Model(clock)
    with Profile(model).running() as profile:
        model.outer.forward(np.zeros(5))
    assert {path: row.saved for path, row in profile.rows.items()} == {
        "outer": 3 * 8,
        "outer/first": 5 * 8,
        "outer/parts.*": 2 * 5 * 8,
    }


def test_an_error_in_a_layer_leaves_no_stopwatch_behind_and_no_time_in_the_wrong_place(clock):
    model = Model(clock)
    profile = Profile(model)
    with pytest.raises(TypeError), profile.running():
        model.outer.forward("no array")
    assert profile._inside == []
    for layer in (model.outer, model.outer.first, *model.outer.parts):
        assert not {"forward", "backward"} & vars(layer).keys()
    assert profile.rows["outer"].forward == 100 and profile.rows["outer/first"].forward == 1


class Stream:
    def __init__(self, tokens):
        self.batch = Batch(*np.random.default_rng(0).integers(0, 50, (2, 3, tokens)))

    def __next__(self):
        return self.batch


def trainer_of(tokens=12, threads=1, **overrides):
    config = nm.MiniMindConfig.preset("tiny", vocab_size=50, **overrides)
    model = nm.MiniMindForCausalLM(config, rng=np.random.default_rng(0))
    return Trainer(model, AdamW(model.named_parameters()), Stream(tokens), steps=9, lr=1e-3, threads=threads)


def paths_of(trainer):
    profile = Profile(trainer.model)
    with profile.running():
        trainer.step()
    return profile, list(profile.rows)


def test_rows_stand_in_the_order_of_the_forward_pass_and_only_what_was_used_has_one():
    _, paths = paths_of(trainer_of(use_moe=True))
    block = "model/layers.*"
    assert paths == [
        "model", "model/embed_tokens", block, f"{block}/input_layernorm", f"{block}/self_attn",
        *[f"{block}/self_attn/{name}" for name in ("q_proj", "q_norm", "k_proj", "k_norm", "v_proj", "attend",
                                                   "attend/softmax", "o_proj")],
        f"{block}/post_attention_layernorm", f"{block}/mlp",
        *[f"{block}/mlp/{name}" for name in ("gate", "softmax", "experts.*", "experts.*/gate_proj",
                                             "experts.*/up_proj", "experts.*/down_proj")],
        "model/norm", "linear_cross_entropy", "linear_cross_entropy/cross_entropy",
    ]  # fmt: skip
    _, paths = paths_of(trainer_of(tokens=256))
    assert f"{block}/self_attn/flash" in paths and f"{block}/self_attn/attend" not in paths


def test_calls_of_all_blocks_and_experts_add_up():
    profile, _ = paths_of(trainer_of(use_moe=True))
    assert profile.rows["model/layers.*"].calls == 2
    assert profile.rows["model/layers.*/mlp/experts.*/up_proj"].calls == 2 * 4


@pytest.mark.parametrize(
    "overrides", [{}, {"tokens": 256}, {"use_moe": True}, {"use_moe": True, "num_experts_per_tok": 2}]
)
def test_the_bytes_of_all_rows_are_those_that_a_step_keeps(overrides):
    trainer = trainer_of(**overrides)
    profile, _ = paths_of(trainer)
    model, batch = trainer_of(**overrides).model, trainer.batches.batch
    (hidden, _), saved = model.model.forward(batch.inputs)
    _, head = model.linear_cross_entropy.forward(hidden, batch.targets)
    assert sum(row.saved for row in profile.rows.values()) == accounting.array_bytes((saved, head))


def test_with_blocks_computed_again_the_model_keeps_their_inputs_alone():
    trainer = trainer_of()
    trainer.model.model.checkpoint_activations = True
    profile, _ = paths_of(trainer)
    assert profile.rows["model/layers.*"].calls == 4
    assert {path for path, row in profile.rows.items() if row.saved} == {
        "model", "model/embed_tokens", "model/norm", "linear_cross_entropy",
    }  # fmt: skip


def test_a_measured_step_computes_what_it_would_have_computed():
    measured, plain = trainer_of(), trainer_of()
    profile_steps(measured, steps=2, warm_up=1)
    for _ in range(3):
        plain.step()
    for name, weight in plain.model.state_dict().items():
        np.testing.assert_array_equal(weight, measured.model.state_dict()[name])
    assert not {"step"} & vars(measured.optimizer).keys()
    assert all(getattr(profiler.training_loop, name) is getattr(adamw, name) for name in ("global_norm", "scale_down"))


def test_everything_adds_up_to_the_whole_step():
    profile = profile_steps(trainer_of(), steps=2, warm_up=1)
    assert list(profile.others) == ["clip_grad_norm", "AdamW.step", "batches, zero_grad, the rest"]
    assert min(profile.others.values()) > 0
    parts = sum(row.own for row in profile.rows) + sum(profile.others.values())
    assert parts == pytest.approx(profile.seconds)
    assert all(row.forward > 0 and row.backward >= 0 for row in profile.rows)


def test_two_threads_or_no_steps_are_refused():
    with pytest.raises(ValueError, match="one thread"):
        profile_steps(trainer_of(threads=2))
    with pytest.raises(ValueError, match="at least 1"):
        profile_steps(trainer_of(), steps=0)


def test_the_table_fits_a_page_and_its_shares_are_of_the_step():
    lines = table(profile_steps(trainer_of(use_moe=True), steps=2, warm_up=1))
    assert max(map(len, lines)) <= 94
    assert any(line.startswith("      experts.*") for line in lines)
    own = [float(line[59:67].rstrip("% ")) for line in lines if "%" in line and not line.startswith("all layers")]
    assert own[-1] == 100 and sum(own[:-1]) == pytest.approx(100, abs=0.05 * len(own))


# -- operations ------------------------------------------------------------------------------------------------------


class Recorder(np.ndarray):
    """Counts the operations of every matrix product in which one takes part; so do all results."""

    flops = 0

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
        inputs = [np.asarray(x) if isinstance(x, np.ndarray) else x for x in inputs]
        if out is not None:
            options["out"] = tuple(np.asarray(x) for x in out)
        result = getattr(ufunc, method)(*inputs, **options)
        if ufunc is np.matmul:
            Recorder.flops += 2 * inputs[0].size * inputs[1].shape[-1]
        return out[0] if out is not None else result.view(Recorder) if isinstance(result, np.ndarray) else result


def random(*shape):
    return np.random.default_rng(0).standard_normal(shape).view(Recorder)


TARGETS = np.array([[1, 2, -100, 4], [0, -100, 3, 5]])
CALLS = {
    "linear": (Linear(6, 5, dtype=np.float64), (random(2, 4, 6),)),
    "attention": (ScaledDotProduct(), (random(2, 4, 7, 6), random(2, 2, 7, 6), random(2, 2, 7, 6))),
    "attention in blocks": (FlashAttention(4, 4), (random(2, 4, 11, 6), random(2, 2, 11, 6), random(2, 2, 11, 6))),
    "blocks behind a cache": (FlashAttention(4, 100), (random(1, 2, 5, 6), random(1, 2, 9, 6), random(1, 2, 9, 6))),
}


@pytest.mark.parametrize("name", CALLS)
def test_operations_of_a_call_are_those_of_its_products(name):
    layer, args = CALLS[name]
    Recorder.flops = 0
    y, saved = layer.forward(*args)
    assert Recorder.flops == flops_of_call(layer, "forward", args) > 0
    Recorder.flops = 0
    dy = random(*y.shape)
    layer.backward(dy, saved)
    assert Recorder.flops == flops_of_call(layer, "backward", (dy, saved)) > 0


def test_operations_of_the_head_are_those_of_the_labels_that_count():
    linear = Linear(6, 9, dtype=np.float64)
    linear.weight.data = linear.weight.data.view(Recorder)
    head, args = LinearCrossEntropy(linear.weight, chunk=4), (random(2, 4, 6), TARGETS)
    Recorder.flops = 0
    _, saved = head.forward(*args)
    assert Recorder.flops == flops_of_call(head, "forward", args) == 3 * 2 * 6 * 6 * 9
    Recorder.flops = 0
    head.backward(1.0, saved)
    assert Recorder.flops == flops_of_call(head, "backward", (1.0, saved)) == 0
