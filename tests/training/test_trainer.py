import math

import numpy as np
import pytest

import numpy_minimind as nm
from numpy_minimind.data import Batch, BatchStream
from numpy_minimind.model import LossAndGrad
from numpy_minimind.training import AdamW, Trainer, TrainingDiverged, cosine_lr, evaluate

pytestmark = pytest.mark.usefixtures("backend")


def make_trainer(seed=0, moe=False, **options):
    extra = {"use_moe": True, "num_experts": 3} if moe else {}
    config = nm.MiniMindConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=19,
        intermediate_size=20,
        **extra,
    )
    model = nm.MiniMindForCausalLM(config, rng=np.random.default_rng([seed, 0]))

    def draw(rng):
        ids = rng.integers(3, 19, (3, 9))
        targets = np.where(rng.random((3, 8)) < 0.2, -100, ids[:, 1:])
        return Batch(ids[:, :-1], targets)

    stream = BatchStream(draw, np.random.default_rng([seed, 1]))
    return Trainer(model, AdamW(model.named_parameters()), stream, **{"steps": 10, "lr": 1e-2, **options})


def test_a_step_is_the_open_loop():
    """The trainer against the loop written out, as the demo shows it."""
    trainer, other = make_trainer(accumulate=1), make_trainer()
    model, stream = other.model, other.batches
    for t in range(1, 4):
        report = trainer.step()
        batch = next(stream)
        out, saved = model.forward(batch.inputs, batch.attention_mask)
        loss, loss_saved = model.cross_entropy.forward(out.logits, batch.targets)
        model.zero_grad()
        model.backward(model.cross_entropy.backward(1.0, loss_saved), saved)
        nm.training.clip_grad_norm(model.named_parameters(), 1.0)
        other.optimizer.step(lr=cosine_lr(t, 10, 1e-2))
        assert report.step == t and report.loss == pytest.approx(float(loss), rel=1e-6)
        assert report.lr == cosine_lr(t, 10, 1e-2)
    for name, data in trainer.model.state_dict().items():
        np.testing.assert_array_equal(data, model.state_dict()[name], err_msg=name)


@pytest.mark.parametrize("moe", [False, True])
def test_accumulated_gradient_is_that_of_the_big_batch(moe):
    trainer = make_trainer(moe=moe, accumulate=4)
    trainer.model.astype(np.float64)
    trainer.optimizer = AdamW(trainer.model.named_parameters())
    rng = np.random.default_rng([0, 1])
    batches = [trainer.batches.draw(rng) for _ in range(4)]
    n = sum(batch.n_tokens for batch in batches)
    report = trainer.step()
    grads = {name: p.grad.copy() for name, p in trainer.model.named_parameters()}
    fresh = make_trainer(moe=moe).model.astype(np.float64)
    if moe:  # the auxiliary loss is a mean a micro-batch, weighted by its share of the labels
        for batch in batches:
            fresh.loss_and_grad_shifted(batch.inputs, batch.targets, batch.attention_mask, n)
    else:
        joined = Batch(
            np.concatenate([batch.inputs for batch in batches]), np.concatenate([batch.targets for batch in batches])
        )
        result = fresh.loss_and_grad_shifted(joined.inputs, joined.targets, joined.attention_mask)
        assert report.ce_loss == pytest.approx(result.ce_loss, rel=1e-12)
    nm.training.clip_grad_norm(fresh.named_parameters(), 1.0)
    for name, p in fresh.named_parameters():
        np.testing.assert_allclose(grads[name], p.grad, rtol=1e-10, atol=1e-14, err_msg=name)


def test_who_computes_the_gradients_is_an_argument():
    """It is asked once a batch, with the labels of the whole step, whose losses and gradient it gives."""
    asked = []

    def gradients_of(batch, n):
        asked.append((batch.n_tokens, n))
        model.model.norm.weight.grad += 3.0
        return LossAndGrad(2.0, 1.5, 0.5, batch.n_tokens)

    trainer = make_trainer(accumulate=2, gradients_of=gradients_of)
    model = trainer.model
    report = trainer.step()
    assert [n for _, n in asked] == [sum(own for own, _ in asked)] * 2 == [report.tokens] * 2
    assert (report.loss, report.ce_loss, report.grad_norm) == (4.0, 3.0, 6.0 * math.sqrt(16))


@pytest.mark.parametrize("accumulate", [1, 4])
def test_the_accumulated_gradient_is_clipped_once_and_to_the_norm_asked_for(accumulate):
    trainer = make_trainer(accumulate=accumulate, clip=1e-3)
    assert trainer.step().grad_norm > 1e-2
    norm = math.sqrt(sum(float((p.grad.astype(np.float64) ** 2).sum()) for _, p in trainer.model.named_parameters()))
    assert norm == pytest.approx(1e-3, rel=1e-5)


def test_continuing_from_the_state_is_bit_for_bit_the_same():
    whole, first, second = make_trainer(), make_trainer(), make_trainer(seed=5)
    whole.skipped_steps = first.skipped_steps = 2
    reports = [whole.step() for _ in range(6)]
    again = [first.step() for _ in range(3)]
    arrays, numbers = first.state_dict()
    second.load_state_dict({name: array.copy() for name, array in arrays.items()}, numbers)
    again += [second.step() for _ in range(3)]
    assert [r._replace(seconds=0) for r in again] == [r._replace(seconds=0) for r in reports]
    for name, array in whole.state_dict()[0].items():
        np.testing.assert_array_equal(array, second.state_dict()[0][name], err_msg=name)
    assert whole.state_dict()[1] == second.state_dict()[1]


@pytest.mark.parametrize("what", ["missing", "unexpected", "shape", "dtype", "counter", "moments"])
def test_a_state_that_does_not_fit_changes_nothing(what):
    trainer, other = make_trainer(), make_trainer(seed=5)
    trainer.step()
    arrays, numbers = trainer.state_dict()
    state, name = dict(arrays), "optimizer.v.model.norm.weight"
    if what == "missing":
        del state[name]
    elif what == "unexpected":
        state["model.extra"] = np.zeros(2)
    elif what == "shape":
        state[name] = np.zeros(3, np.float32)
    elif what == "dtype":
        state[name] = state[name].astype(np.float64)
    elif what == "moments":
        state = {key: value for key, value in state.items() if not key.startswith("optimizer.")}
    else:
        numbers = {key: value for key, value in numbers.items() if key != "skipped_steps"}
    before = {key: value.copy() for key, value in other.state_dict()[0].items()}, other.state_dict()[1]
    with pytest.raises(ValueError, match="does not fit this trainer"):
        other.load_state_dict(state, numbers)
    assert other.state_dict()[1] == before[1]
    for key, value in other.state_dict()[0].items():
        np.testing.assert_array_equal(value, before[0][key], err_msg=key)


def test_a_gradient_that_is_not_finite_skips_the_step(monkeypatch):
    trainer = make_trainer()
    before = {name: data.copy() for name, data in trainer.model.state_dict().items()}
    original = trainer.model.loss_and_grad_shifted

    def poisoned(*args, **options):
        result = original(*args, **options)
        trainer.model.model.norm.weight.grad[0] = math.inf
        return result

    monkeypatch.setattr(trainer.model, "loss_and_grad_shifted", poisoned)
    report = trainer.step()
    assert report.grad_norm == math.inf and trainer.skipped_steps == 1 and trainer.optimizer.t == 0
    for name, data in trainer.model.state_dict().items():
        np.testing.assert_array_equal(data, before[name])
    monkeypatch.undo()
    assert math.isfinite(trainer.step().grad_norm) and trainer.skipped_steps == 1 and trainer.optimizer.t == 1


def test_a_loss_that_is_nan_stops_and_says_at_which_step():
    trainer = make_trainer()
    trainer.step()
    trainer.model.model.norm.weight.data[0] = np.nan
    before = {name: data.copy() for name, data in trainer.model.state_dict().items()}
    with pytest.raises(TrainingDiverged, match="nan at step 2"):
        trainer.step()
    assert trainer.t == trainer.optimizer.t == 1
    for name, data in trainer.model.state_dict().items():
        np.testing.assert_array_equal(data, before[name])


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_step_that_diverged_leaves_the_whole_state_as_it_was(accumulate):
    """All but the place in the data: its batches have been drawn."""
    trainer = make_trainer(accumulate=accumulate)
    trainer.step()
    trainer.model.model.norm.weight.data[0] = np.nan
    arrays, numbers = trainer.state_dict()
    before = {name: array.copy() for name, array in arrays.items()}
    with pytest.raises(TrainingDiverged):
        trainer.step()
    after, numbers_after = trainer.state_dict()
    assert {**numbers_after, "batches": None} == {**numbers, "batches": None}
    assert after.keys() == before.keys()
    for name, array in after.items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


def test_everything_stays_float32():
    trainer = make_trainer(moe=True)
    trainer.step()
    arrays, _ = trainer.state_dict()
    assert {array.dtype for name, array in arrays.items() if name != "optimizer.t"} == {np.dtype(np.float32)}
    assert {p.grad.dtype for _, p in trainer.model.named_parameters()} == {np.dtype(np.float32)}


def test_evaluate_weights_every_label_alike():
    trainer = make_trainer()
    rng = np.random.default_rng(4)
    batches = [trainer.batches.draw(rng) for _ in range(3)]
    loss, tokens = evaluate(trainer.model, batches)
    sums = []
    for batch in batches:
        logits = trainer.model(batch.inputs, batch.attention_mask).astype(np.float64)
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        rows, columns = np.nonzero(batch.targets != -100)
        sums.extend(-log_p[rows, columns, batch.targets[rows, columns]])
    assert tokens == len(sums) and loss == pytest.approx(np.mean(sums), rel=1e-5)
    assert evaluate(trainer.model, iter(batches)) == (loss, tokens)  # batches that come one at a time
    unlabelled = Batch(batches[0].inputs, np.full_like(batches[0].targets, -100))
    assert evaluate(trainer.model, [unlabelled, *batches]) == (loss, tokens)
    with pytest.raises(ValueError, match="nothing to predict"):
        evaluate(trainer.model, [])
    with pytest.raises(ValueError, match="nothing to predict"):
        evaluate(trainer.model, [unlabelled])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "at least 1"),
        ({"accumulate": 0}, "at least 1"),
        ({"clip": 0.0}, "clip must be positive"),
        ({"lr": 0.0}, "positive"),
        ({"lr": math.nan}, "positive"),
        ({"warmup": 10}, "warmup"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_computed(options, message):
    with pytest.raises(ValueError, match=message):
        make_trainer(**options)
