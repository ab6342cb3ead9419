"""The checks are checked: every planted bug is noticed by its own layer's checks, and right code by none."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from numpy_minimind.checking import MUTANTS, check_layer
from numpy_minimind.checking.contract import contract_faults
from numpy_minimind.checking.lab import kill_matrix as matrix
from numpy_minimind.checking.lab.kill_matrix import STRONG, WEAK, kill_matrix, unmutated
from numpy_minimind.checking.lab.mutation import BACKWARD, CONSISTENT, CONTRACT, FORMS, TRAINING, Edit, Mutant
from numpy_minimind.checking.layers import MODULES
from numpy_minimind.cli import main
from numpy_minimind.layers import Softmax
from numpy_minimind.training import adamw, trainer
from tests.checking.toys import Gated

PAGE = Path(__file__).parents[2] / "docs" / "en" / "gradient-checks.md"


def mutant(name):
    return next(m for m in MUTANTS if m.name == name)


@pytest.fixture(scope="module")
def rows_by_name():
    return {row.name: row for row in kill_matrix()}


# -- the list --------------------------------------------------------------------------------------------------------


def test_the_mutants_are_many_named_and_documented():
    assert len(MUTANTS) >= 25
    assert len({m.name for m in MUTANTS}) == len(MUTANTS)
    for m in MUTANTS:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", m.name)
        assert m.form in FORMS and m.changes and all([m.description, m.why, m.seen]), m.name
    assert {m.layer for m in MUTANTS} == set(MODULES)
    assert {m.form for m in MUTANTS if m.layer != "optimizer"} == {BACKWARD, CONSISTENT, CONTRACT}
    assert all((m.form == TRAINING) == (m.layer == "optimizer") for m in MUTANTS)


@pytest.mark.parametrize("m", MUTANTS, ids=lambda m: m.name)
def test_a_mutant_is_gone_after_its_block(m):
    before = holdings(m)
    with m.apply():
        assert all(now is not then for now, then in zip(holdings(m), before))
    assert all(now is then for now, then in zip(holdings(m), before))


def holdings(m):
    """The functions that a mutant replaces, as they stand in the package now."""
    import importlib

    found = []
    for change in m.changes:
        module, _, path = change.function.partition(":")
        owner = importlib.import_module(f"numpy_minimind.{module}")
        *outer, name = path.split(".")
        for part in outer:
            owner = getattr(owner, part)
        found.append(vars(owner)[name])
    return found


def test_a_mutant_is_gone_after_an_exception():
    right = Softmax.backward
    with pytest.raises(KeyError), mutant("softmax-no-row-sum").apply():
        raise KeyError
    assert Softmax.backward is right


def test_a_function_is_exchanged_wherever_it_was_imported():
    with mutant("clip-scales-up").apply():
        assert trainer.scale_down is adamw.scale_down
        assert adamw.scale_down.__code__.co_filename.startswith("<")
    assert not adamw.scale_down.__code__.co_filename.startswith("<")


def test_a_mutant_whose_text_is_gone_says_so():
    edit = Edit("layers.linear:Linear.backward", "no such line", "")
    with (
        pytest.raises(LookupError, match=r"layers.linear:Linear.backward no longer holds the text 'no such line'"),
        Mutant("old", "linear", BACKWARD, "", "", "", (edit,)).apply(),
    ):
        pass


# -- the matrix ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_mutant_is_killed_by_the_checks_of_its_own_layer(rows_by_name):
    assert matrix.survivors(list(rows_by_name.values())) == []


@pytest.mark.slow
def test_no_mutant_dies_of_an_exception_alone(rows_by_name):
    """A bug that makes everything crash would need no check, and a typing error here would look like one."""
    for row in rows_by_name.values():
        assert any(not row.outcomes[column].crashed for column in row.killed_by), row.name


@pytest.mark.slow
@pytest.mark.parametrize("m", MUTANTS, ids=lambda m: m.name)
def test_the_column_whose_task_it_is_kills(m, rows_by_name):
    column = {BACKWARD: STRONG[0], CONSISTENT: STRONG[2], CONTRACT: STRONG[3], TRAINING: STRONG[4]}[m.form]
    assert column in rows_by_name[m.name].killed_by


@pytest.mark.slow
def test_a_gradient_that_is_wrong_is_also_seen_by_the_complex_step(rows_by_name):
    assert [row.name for row in rows_by_name.values() if row.form == BACKWARD and STRONG[1] not in row.killed_by] == []


@pytest.mark.slow
def test_no_difference_can_see_most_consistent_mutants(rows_by_name):
    """That is why there are reference values.

    The exceptions leave a gradient that is zero or a loss of its own, or spoil a forward that backward computes again.
    """
    seen = [row.name for row in rows_by_name.values() if row.form == CONSISTENT and STRONG[0] in row.killed_by]
    assert set(seen) == {
        "rmsnorm-gain-left-out",
        "softmax-hidden-row-is-uniform",
        "attention-q-norm-left-out",
        "flash-sum-not-rescaled",
        "flash-output-not-rescaled",
        "block-one-norm-used-twice",
        "model-aux-share-forgotten",
        "model-labels-shifted-twice",
        "model-labels-not-shifted",
    }


@pytest.mark.slow
@pytest.mark.parametrize("layer", MODULES)
def test_right_code_passes_every_column_the_weak_ones_too(layer):
    [row] = unmutated([layer])
    assert {column: o.fault for column, o in row.outcomes.items() if o.killed} == {}
    if matrix.mutated_cases(layer):
        weak = WEAK[:3] if layer == "flash_attention" else WEAK
        assert set(row.outcomes) == {*STRONG[:4], *weak}


def test_a_row_says_what_noticed_and_what_did_not():
    [row] = kill_matrix([mutant("softmax-no-gradient")])
    assert row.killed_by == ["differences", "complex step", "reference values"]
    assert row.survived == ["ones cotangent", "it trains"]
    assert str(row).split()[:3] == ["softmax-no-gradient", "backward", "only"]
    assert max(map(len, [str(row), *matrix.header()])) <= 110
    assert "x" in row.outcomes["differences"].fault  # the tensor's name


def test_a_check_that_raises_counts_as_noticing_and_is_marked():
    outcome = matrix.outcome_of(lambda: 1 / 0)
    assert outcome.killed and outcome.crashed and "ZeroDivisionError" in outcome.fault


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_other_seeds_kill_as_well(seed):
    assert [row.name for row in unmutated(seed=seed) if row.noticed] == []
    assert matrix.survivors(list(kill_matrix(weak=False, seed=seed))) == []


@pytest.mark.slow
def test_the_numbers_of_the_page_are_those_of_the_matrix(rows_by_name):
    rows = rows_by_name.values()
    for column in WEAK:
        counts = []
        for form in ([BACKWARD], FORMS):
            tried = [row for row in rows if row.form in form and column in row.outcomes]
            counts += [sum(column in row.survived for row in tried), len(tried)]
        told = re.search(rf"^\| {column} \|.*\| (\d+) of (\d+) \| (\d+) of (\d+) \|$", PAGE.read_text("utf-8"), re.M)
        assert told is not None, column
        assert [int(n) for n in told.groups()] == counts, column


# -- the command -----------------------------------------------------------------------------------------------------


def test_the_command_prints_the_matrix(capsys):
    assert main(["gradcheck", "--layer", "linear", "--mutants"]) == 0
    out = capsys.readouterr().out
    assert "linear-gradient-overwritten" in out and "3 of 3 mutants killed" in out and "all gradients are right" in out
    assert max(map(len, out.split("\n"))) <= 120


@pytest.mark.slow
def test_the_command_in_json(capsys):
    assert main(["gradcheck", "--layer", "optimizer", "--mutants", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["failed"] == 0 and result["survivors"] == [] and result["checks"] == []
    assert result["mutants"]["adamw-betas-swapped"]["killed_by"] == ["optimizer"]
    assert result["mutants"]["adamw-betas-swapped"]["survived"] == ["it trains"]


def test_the_command_exits_with_1_when_a_mutant_survives(capsys, monkeypatch):
    harmless = Mutant(
        "linear-harmless", "linear", BACKWARD, "-", "-", "-", (Edit("layers.linear:rows", "-1, x", "-1, x"),)
    )
    monkeypatch.setattr("numpy_minimind.commands.gradcheck.MUTANTS", (harmless,))
    assert main(["gradcheck", "--layer", "linear", "--mutants"]) == 1
    assert "SURVIVED, so a check is missing: linear-harmless" in capsys.readouterr().out


def test_check_layer_knows_nothing_of_an_applied_mutant_afterwards(rng):
    x = rng.normal(size=(4, 6))
    with mutant("softmax-no-row-sum").apply():
        assert not check_layer(Softmax(), x).ok
    assert check_layer(Softmax(), x).ok


# -- the contract as a check of its own ------------------------------------------------------------------------------


def test_contract_faults_name_what_was_promised(rng):
    x = rng.normal(size=(5, 3))
    assert contract_faults(Gated(), x) == ()

    class Forgetful(Gated):
        def forward(self, x):
            y, saved = super().forward(x)
            self.saved = saved
            return y, ()

        def backward(self, dy, saved):
            return super().backward(dy, self.saved)

    faults = contract_faults(Forgetful(), x)
    assert "the gradient of x is another one when forward was called again before backward" in faults

    class Other(Gated):
        def __call__(self, x):
            return self.forward(x)[0] + 1

    assert contract_faults(Other(), x) == ("inference gives another output than forward",)

    class Double(Gated):
        def forward(self, x):
            y, saved = super().forward(x)
            return y.astype(np.float64), saved

    assert contract_faults(Double(), x) == ("float32 output 0 comes out as float64",)
