"""Names that have moved to another package go on working, with a warning that says where they are."""

import importlib

import pytest

import numpy_minimind

MOVED = {
    "numpy_minimind.training": ["Batch", "BatchStream", "EpochStream", "toy_language", "toy_report"],
    "numpy_minimind.checkpoint": ["CharTokenizer", "PretrainedTokenizer", "load_tokenizer"],
}


@pytest.mark.parametrize(("package", "name"), [(p, name) for p, names in MOVED.items() for name in names])
def test_an_old_name_is_the_new_one(package, name):
    with pytest.warns(DeprecationWarning, match=rf"{package}.{name} is (numpy_minimind\.\w+)\.{name} now") as warned:
        old = getattr(importlib.import_module(package), name)
    assert warned[0].filename == __file__
    namespace = {}
    exec(f"from {str(warned[0].message).split()[2].rpartition('.')[0]} import {name}", namespace)
    assert old is namespace[name]


def test_a_name_that_never_was_is_not_there():
    with pytest.raises(AttributeError, match=r"module 'numpy_minimind\.training' has no attribute 'optimizer'"):
        numpy_minimind.training.optimizer  # noqa: B018
