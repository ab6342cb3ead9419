"""Every layer has its evidence: a file of its own name in checking/layers, found by looking."""

import re
from pathlib import Path

import pytest

from numpy_minimind import layers
from numpy_minimind.checking.layers import CASES, KNOWN, MODULES, MUTANTS

FILES = {path.stem for path in Path(layers.__file__).parent.glob("*.py")} - {"__init__"}
NOT_LAYERS = {"model", "optimizer"}


def test_each_file_of_a_layer_has_one_here_and_no_other_has():
    assert set(MODULES) == FILES | NOT_LAYERS


@pytest.mark.parametrize("name", MODULES)
def test_it_holds_points_known_values_and_bugs(name):
    assert (name in CASES) == (name not in {"kv_cache", "optimizer"})  # a cache has no gradient, nor has an optimizer
    assert (name in KNOWN) == (name != "optimizer")  # whose reference is a loop over plain floats
    assert [mutant for mutant in MUTANTS if mutant.layer == name] == list(MODULES[name].MUTANTS)
    assert set(getattr(MODULES[name], "MUTANTS_AT", ())) <= {case.id.partition("/")[2] for case in CASES.get(name, ())}


def test_they_come_in_the_order_in_which_one_reads():
    imports = re.findall(r"^from numpy_minimind\.layers\.(\w+) import", Path(layers.__file__).read_text("utf-8"), re.M)
    assert [name for name in MODULES if name in FILES] == imports
