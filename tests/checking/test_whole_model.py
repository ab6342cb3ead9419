"""`check_model` and the loss adapter must fail when a right set of layers is put together wrongly."""

import numpy as np
import pytest

from numpy_minimind.checking import check_model
from numpy_minimind.checking.layers import CASES
from numpy_minimind.checking.layers.model import build_model
from numpy_minimind.layers.linear import rows

IDS = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])


@pytest.fixture
def model():
    return build_model("gqa", True, "dense", "", np.random.default_rng(5))


def failed(report):
    return {row.name for row in report.failed}


def test_a_right_model_passes_with_a_row_for_every_parameter(model):
    report = check_model(model, IDS)
    assert report.ok, str(report)
    assert [row.name for row in report.rows] == [name for name, _ in model.named_parameters()]
    assert all(row.checked <= 8 for row in report.rows)


def test_the_tied_gradient_of_the_head_dropped(model):
    model.lm_head.backward = lambda dy, saved: dy @ model.lm_head.weight.data
    assert failed(check_model(model, IDS)) == {"model.embed_tokens.weight"}


def test_the_gradient_of_the_last_norm_skipped(model):
    model.model.norm.backward = lambda dy, saved: dy
    assert "model.layers.0.self_attn.q_proj.weight" in failed(check_model(model, IDS))


def test_the_head_overwrites_what_is_there(model):
    def backward(dy, saved):
        model.lm_head.weight.grad[...] = rows(dy).T @ rows(saved.x)
        return dy @ model.lm_head.weight.data

    model.lm_head.backward = backward
    report = check_model(model, IDS)
    assert "does not add into model.embed_tokens.weight.grad" in report.faults[0]


def test_a_model_in_float32_is_refused(model):
    with pytest.raises(TypeError, match=r"float32.*astype"):
        check_model(model.astype(np.float32), IDS)


@pytest.mark.parametrize("fault", ["labels shifted once more", "auxiliary loss not weighted by its share"])
def test_the_loss_case_sees_the_assembly_of_loss_and_grad(fault, monkeypatch):
    case = next(case for case in CASES["model"] if "loss" in case.id)
    _, point = case.draw()
    model, right = type(point.layer.model), point.layer.model.loss_and_grad

    def wrong(self, ids, labels, mask, items):
        if "labels" in fault:
            return right(ids, np.concatenate([labels[:, 1:], np.full((len(labels), 1), -100)], axis=1), mask, items)
        backward = self.backward
        monkeypatch.setattr(self, "backward", lambda dy, saved, share, **kw: backward(dy, saved, 1.0, **kw))
        return right(ids, labels, mask, items)

    monkeypatch.setattr(model, "loss_and_grad", wrong)
    assert not case.check().ok
