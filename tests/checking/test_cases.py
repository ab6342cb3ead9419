"""Every layer and model, in every named configuration: differences, complex step, float32."""

import pytest

from numpy_minimind.checking.cases import Case
from numpy_minimind.checking.contract import contract_faults
from numpy_minimind.checking.layers import select
from numpy_minimind.checking.report import EXPECTED_ZERO

CASES, ALL_MODEL_CASES = select(), select("model", full=True)


def by_id(cases):
    return pytest.mark.parametrize("case", cases, ids=[case.id for case in cases])


@pytest.mark.usefixtures("backend")
@pytest.mark.quick_on_host
@by_id(CASES)
def test_central_differences(case: Case):
    report = case.check(seed=0)
    assert report.ok, str(report)
    assert report.worst is None or report.worst.relative_error < 1e-8, str(report)  # a tenth of ABSOLUTE
    vanishing = {row.name for row in report.rows if row.verdict == EXPECTED_ZERO}
    assert vanishing == set(report.expected_zero)


@pytest.mark.usefixtures("backend")
@pytest.mark.quick_on_host
@by_id(CASES)
def test_complex_step(case: Case):
    report = case.check_complex_step(seed=0)
    assert report.ok, str(report)


@pytest.mark.usefixtures("backend")
@by_id(CASES)
def test_float32(case: Case):
    report = case.check_float32(seed=0)
    assert report.ok, str(report)


@pytest.mark.usefixtures("backend")
@pytest.mark.quick_on_host
@by_id(CASES)
def test_contract(case: Case):
    """Nothing given is changed, a second backward adds as much, inference gives what forward gives, and so on."""
    rng, point = case.draw(0)
    assert contract_faults(point.layer, *point.inputs, rng=rng, cotangents=point.options.get("cotangents")) == ()


@pytest.mark.slow
@by_id(ALL_MODEL_CASES)
def test_every_model(case: Case):
    report = case.check(seed=0)
    assert report.ok, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@by_id(CASES)
def test_other_seeds(case: Case, seed: int):
    report = case.check(seed)
    assert report.ok, str(report)


def test_ids_are_unique():
    ids = [case.id for case in select(full=True)]
    assert len(set(ids)) == len(ids)


def test_a_case_draws_the_same_numbers_whatever_ran_before():
    case = next(case for case in CASES if case.id == "attention/gqa")
    assert case.check(seed=3).to_dict() == case.check(seed=3).to_dict()
    assert case.check(seed=3).rows[0].numeric != case.check(seed=4).rows[0].numeric


def test_select():
    assert {case.layer for case in select("moe")} == {"moe"}
    assert len(select()) == len(CASES)
    assert len(select(full=True)) > len(CASES) + 100
    with pytest.raises(ValueError, match=r"unknown layer 'mow'.*moe"):
        select("mow")


def test_the_list_of_gradients_that_vanish():
    """Each has its reason in the case, and test_central_differences asserts that it is zero, and no other."""
    listed = {case.id: case.draw()[1].options.get("expected_zero", {}) for case in CASES}
    assert {id: len(names) for id, names in listed.items() if names} == {
        "softmax/one-entry": 1,
        "attention/one-token": 4,
        "moe/aux-alone": 12,
        "moe/dead-router": 1,
        "moe/idle-expert": 3,
        "moe/one-expert": 9,
        "cross_entropy/all-ignored": 1,
        "linear_cross_entropy/all-ignored": 2,
    }
    assert all(reason for names in listed.values() for reason in names.values())
