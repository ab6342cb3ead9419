"""Qwen3 and Qwen3-MoE of transformers, and the float64 oracle: logits, loss, hidden states, every gradient."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from peers import bridge
from peers.bridge import (
    FLOAT32,
    FLOAT64,
    ORACLE,
    OUR_ROUNDING,
    ROUTING_MARGIN,
    THEIR_ROUNDING,
    THEIR_ROUNDING64,
    Arrays,
    Rows,
    draw,
    fused,
    measure,
    our_model,
    run_ours,
    run_theirs,
    their_config,
    their_model,
    unfused,
)
from peers.parity_cases import CASES, PAIRWISE, Case, all_pairs, case_of, pairs_of
from peers.parity_rows import by_kind, compare, worst
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from numpy_minimind import MiniMindConfig
from numpy_minimind.layers import Embedding, RMSNorm

MEASURED: dict[str, Rows] = {}  # of the first cases, for the test of all of them together


def name_of(case: Case) -> str:
    return case.name


def check(case: Case, **sizes: int) -> Rows:
    """In float64: 1e-10 to the oracle; 1e-5 to transformers, or as much as transformers' own float32 norms explain."""
    found = measure(case, **sizes)
    assert worst(found[ORACLE]).error <= 1e-10, worst(found[ORACLE])
    for kind, rows in by_kind(found[FLOAT64]).items():
        theirs = by_kind(found[THEIR_ROUNDING64]).get(kind)
        bound = max(1e-5, worst(theirs).error + 1e-10 if theirs else 0.0)
        assert worst(rows).error <= bound, (worst(rows), bound)
    return found


def check_float32(found: list[Rows]) -> None:
    """Both sides round, so no single tensor says who is right: over all of them, ours must not be the worse.

    The bound of a single difference is measured: twice the largest rounding of transformers' own float32 in these
    cases, a share for each side.
    """
    together = {which: [row for rows in found for row in rows[which]] for which in found[0]}
    bound = max(1e-5, 2 * worst(together[THEIR_ROUNDING]).error)
    assert worst(together[FLOAT32]).error <= bound, (worst(together[FLOAT32]), bound)

    def mean(which: str) -> float:  # geometric, of the gradients
        logs = [math.log(row.error) for row in by_kind(together[which])["gradients"] if row.error]
        return math.exp(sum(logs) / len(logs))

    assert mean(OUR_ROUNDING) <= mean(THEIR_ROUNDING)


def test_the_first_cases_hold_every_pair_of_choices() -> None:
    seen = set().union(*(pairs_of(tuple(case.chosen.values())) for case in CASES[:PAIRWISE]))
    assert seen == all_pairs()


@pytest.mark.parametrize("case", CASES[:PAIRWISE], ids=name_of)
def test_every_pair_of_choices(case: Case) -> None:
    MEASURED[case.name] = check(case)


def test_float32_on_every_pair_of_choices() -> None:
    check_float32([MEASURED.get(case.name) or measure(case) for case in CASES[:PAIRWISE]])


def test_in_half_precision_qwen3_rounds_before_the_gain_and_this_package_after() -> None:
    """As rmsnorm.md says: MiniMind multiplies in float32, transformers in the model's dtype, which rounds twice."""
    rng, D = np.random.default_rng(0), 768
    x, w = rng.normal(size=(1000, D)).astype(np.float16), rng.uniform(0.5, 2, D).astype(np.float16)
    norm, theirs = RMSNorm(D, dtype=np.float16), Qwen3RMSNorm(D, eps=1e-6).half()
    norm.weight.data[...], theirs.weight.data[:] = w, torch.from_numpy(w)
    y, y_theirs = norm(x), theirs(torch.from_numpy(x)).detach().numpy()
    wide = x.astype(np.float64)
    minimind = w * (wide / np.sqrt(np.mean(wide**2, axis=-1, keepdims=True) + 1e-6))
    assert np.mean(y != minimind.astype(np.float16)) < 1e-4  # float32 inside: now and then a number on the edge
    assert f"{np.mean(y != y_theirs):.0%}" == "26%"
    assert np.abs(y.view(np.int16).astype(int) - y_theirs.view(np.int16)).max() == 1  # the last place


@pytest.mark.slow
def test_two_hundred_configurations() -> None:
    check_float32([check(case) for case in CASES[:200]])


@st.composite
def drawn_cases(draw_from: st.DrawFn) -> Case:
    """Sizes that the list above keeps fixed."""
    whole = st.integers
    shared, groups, E = draw_from(whole(1, 3)), draw_from(whole(1, 3)), draw_from(whole(1, 5))
    k = draw_from(whole(1, E))
    case = case_of(draw_from(whole(0, 2**16)), padding=draw_from(st.sampled_from(["none", "left", "right"])))
    fields = {
        "num_attention_heads": shared * groups,
        "num_key_value_heads": shared,
        "head_dim": 2 * draw_from(whole(2, 6)),
        "hidden_size": draw_from(whole(5, 20)),
        "vocab_size": draw_from(whole(5, 40)),
        "intermediate_size": draw_from(whole(2, 20)),
        "moe_intermediate_size": draw_from(whole(2, 12)),
        "num_hidden_layers": draw_from(whole(1, 3)),
        "use_moe": draw_from(st.booleans()),
        "num_experts": E,
        "num_experts_per_tok": k,
        "norm_topk_prob": draw_from(st.booleans()),
        "tie_word_embeddings": draw_from(st.booleans()),
        "rope_theta": draw_from(st.sampled_from([20.0, 1e4, 1e6])),
    }
    return case._replace(fields={**case.fields, **fields})


@settings(max_examples=8, derandomize=True)
@given(case=drawn_cases(), rows=st.integers(1, 3), tokens=st.integers(7, 12))
def test_drawn_sizes(case: Case, rows: int, tokens: int) -> None:
    check(case, rows=rows, tokens=tokens)


@pytest.mark.parametrize("mlp", ["dense", "k=1", "k=2 normalised"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_eager_attention_is_the_same(mlp: str, dtype: torch.dtype) -> None:
    """Where it can be asked: without padding on the left (see `their_model`)."""
    case = case_of(5, mlp=mlp, layers="3", padding="right")
    state, b, _ = draw(case)
    ours = run_ours(our_model(case.fields, state, np.float32 if dtype == torch.float32 else np.float64), b)
    theirs = run_theirs(their_model(case.fields, state, dtype, attention="eager"), b)
    assert worst(compare(ours.outputs, theirs.outputs, "outputs")).error <= 1e-5
    assert worst(compare(ours.gradients, theirs.gradients, "gradients")).error <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["plain", "YaRN, MiniMind's numbers"])
def test_positions_up_to_2047(positions: str) -> None:
    """Their angles are float32 products, off by 1e-4 at the last position."""
    case = case_of(1, positions=positions)
    case = case._replace(fields={**case.fields, "max_position_embeddings": 32768})
    state, b, _ = draw(case, rows=1, tokens=2048)
    ours, theirs = run_ours(our_model(case.fields, state), b), run_theirs(their_model(case.fields, state), b)
    assert worst(compare(ours.outputs, theirs.outputs, "outputs")).error <= 1e-5
    assert worst(compare(ours.gradients, theirs.gradients, "gradients")).error <= 1e-5


def test_choices_of_experts_are_clear() -> None:
    assert min(draw(case).margin for case in CASES[:PAIRWISE] if case.is_moe) > ROUTING_MARGIN


def test_fused_experts_and_back() -> None:
    case = case_of(0, mlp="k=2", layers="3")
    state = draw(case).state
    assert compare(unfused(fused(state)), state, "weights")
    assert worst(compare(unfused(fused(state)), state, "weights")).difference == 0


@pytest.mark.parametrize("case", CASES[:PAIRWISE], ids=name_of)
def test_our_reading_of_their_config(case: Case) -> None:
    read, meant = MiniMindConfig.from_dict(their_config(case.fields).to_dict()), MiniMindConfig(**case.fields)
    arithmetic = set(case.fields) - {"rope_scaling"}
    if not case.is_moe:
        arithmetic -= {"moe_intermediate_size", "router_aux_loss_coef"}
    assert {name: getattr(read, name) for name in arithmetic} == {name: getattr(meant, name) for name in arithmetic}
    assert dict(meant.rope_scaling or {}).items() <= dict(read.rope_scaling or {}).items()


# --- The comparison can fail: mistakes that it must see -----------------------------------------------------------


def error_of(case: Case, wrong: dict[str, Any] | None = None) -> float:
    """The worst error of outputs and gradients, our model built from a config with something `wrong`."""
    state, b, _ = draw(case)
    theirs = run_theirs(their_model(case.fields, state), b)
    ours = run_ours(our_model({**case.fields, **(wrong or {})}, state), b)
    return max(worst(compare(getattr(ours, of), getattr(theirs, of), of)).error for of in ("outputs", "gradients"))


def test_it_sees_gate_and_up_exchanged_in_the_fused_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    def exchanged(state: Arrays) -> Arrays:
        theirs = fused(state)
        for name, a in theirs.items():
            if name.endswith("gate_up_proj"):
                theirs[name] = np.concatenate(np.split(a, 2, axis=1)[::-1], axis=1)
        return theirs

    case = case_of(0, mlp="k=1")
    assert error_of(case) <= 1e-5
    monkeypatch.setattr(bridge, "fused", exchanged)
    assert error_of(case) > 0.1


@pytest.mark.parametrize(
    "chosen, wrong",
    [
        ({"mlp": "k=2 normalised"}, {"norm_topk_prob": False}),
        ({"mlp": "k=2"}, {"norm_topk_prob": True}),
        ({"mlp": "k=1"}, {"norm_topk_prob": True}),
    ],
)
def test_it_sees_a_wrong_normalisation(chosen: dict[str, str], wrong: dict[str, bool]) -> None:
    sees_a_wrong_config(case_of(0, **chosen), wrong)


@pytest.mark.parametrize(
    "positions, wrong",
    [
        ("YaRN", {"attention_factor": 1.0}),
        ("YaRN", {"factor": 2.0}),
        ("YaRN, all given", {"beta_slow": 1.0}),
        ("YaRN, MiniMind's numbers", {"attention_factor": None}),
    ],
)
def test_it_sees_wrong_yarn(positions: str, wrong: dict[str, float | None]) -> None:
    case = case_of(0, positions=positions)
    sees_a_wrong_config(case, {"rope_scaling": {**case.fields["rope_scaling"], **wrong}})


def sees_a_wrong_config(case: Case, wrong: dict[str, Any]) -> None:
    assert error_of(case) <= 1e-5
    assert error_of(case, wrong) > 1e-3


def test_it_sees_a_tied_table_without_its_second_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of(0, head="tied")
    assert error_of(case) <= 1e-5
    monkeypatch.setattr(Embedding, "backward", lambda self, dy, saved: None)
    assert error_of(case) > 0.1
