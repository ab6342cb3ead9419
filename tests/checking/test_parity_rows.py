"""Comparing two dicts of arrays: the error of each, what cannot be compared, the tables made of it."""

import math

import numpy as np
import pytest

from numpy_minimind.checking.parity import TENSORS, ParityRow, by_kind, by_layer, compare, format_table, worst


def test_errors_are_relative_to_the_largest_expected_value() -> None:
    (row,) = compare({"w": np.array([[1.0, -3.5]])}, {"w": np.array([[1.0, -4.0]])}, "weights")
    assert row == ParityRow("w", "weights", (1, 2), 4.0, 0.5, 0.125)


def test_where_nothing_but_zeros_is_expected_the_difference_itself_counts() -> None:
    assert compare({"w": np.array([0.25])}, {"w": np.zeros(1)}, "gradients")[0].error == 0.25


def test_what_vanishes_is_measured_by_the_largest_of_all() -> None:
    ours = {"router": np.array([1e-9]), "w": np.array([10.0])}
    theirs = {"router": np.array([-1e-9]), "w": np.array([10.0])}
    assert compare(ours, theirs, "gradients")[0].error == 2.0
    assert compare(ours, theirs, "gradients", vanishing=["router"])[0].error == pytest.approx(2e-10)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_number_that_is_not_finite_never_agrees(bad: float) -> None:
    for ours, theirs in ((bad, 1.0), (1.0, bad), (bad, 0.0)):
        with np.errstate(invalid="ignore"):
            (row,) = compare({"w": np.array([ours])}, {"w": np.array([theirs])}, "weights")
        assert row.error == math.inf


def test_float32_is_subtracted_in_float64() -> None:
    ours, theirs = np.array([1 + 2**-23], np.float32), np.array([1.0])
    assert compare({"w": ours}, {"w": theirs}, "weights")[0].error == 2**-23


def test_everything_that_cannot_be_compared_is_listed() -> None:
    ours, theirs = {"a": np.zeros(2), "b": np.zeros(3)}, {"b": np.zeros((3, 1)), "c": np.zeros(1)}
    with pytest.raises(ValueError, match="the gradients cannot be compared") as caught:
        compare(ours, theirs, "gradients", vanishing=["d"])
    for fault in (
        "missing: c",
        "unexpected: a",
        "wrong shape: b is (3,), expected (3, 1)",
        "d is called vanishing, but there is none",
    ):
        assert fault in str(caught.value)


def row(name: str, error: float, kind: str = "gradients") -> ParityRow:
    return ParityRow(name, kind, (1,), 1.0, error, error)


def test_layers_in_order_and_the_experts_of_a_layer_in_one_cell() -> None:
    rows = [
        row("lm_head.output", 1e-3, "logits"),
        row("model.norm.weight", 2e-3),
        row("model.layers.10.self_attn.q_proj.weight", 3e-3),
        row("model.layers.2.mlp.experts.0.up_proj.weight", 5e-3),
        row("model.layers.2.mlp.experts.1.up_proj.weight", 4e-3),
        row("model.layers.2.mlp.gate.weight", 6e-3),
        row("model.layers.2.output", 7e-3, "hidden states"),
        row("model.embed_tokens.weight", 8e-3),
    ]
    table = by_layer(rows)
    assert list(table) == ["embed", "layer 2", "layer 10", "norm", "head"]
    assert table["layer 2"] == {"up_proj": 5e-3, "router": 6e-3, "output": 7e-3}
    assert {tensor for cells in table.values() for tensor in cells} <= set(TENSORS)
    assert worst(rows).name == "model.embed_tokens.weight"
    assert list(by_kind(rows)) == ["logits", "gradients", "hidden states"]


def test_the_table_aligns_its_columns() -> None:
    lines = [("logits", 1200, 1.234e-7), ("loss", 3, None)]
    assert format_table(("", "tensors", "error"), lines).splitlines() == [
        "        tensors    error",
        "------  -------  -------",
        "logits    1,200  1.2e-07",
        "loss          3        -",
    ]
