"""Formulas are written whole: in `layers/` nothing takes the place of something else, but for what is named here."""

import ast
from pathlib import Path

import pytest

import numpy_minimind.layers

# (file, function, line): why it is not written as an expression.
EXCEPTIONS = {
    (
        "cross_entropy",
        "forward",
        "xp.exp(x, out=x)",
    ): "logits are large: whole, a small model takes a quarter more memory",
    ("cross_entropy", "forward", "xp.divide(e, z, out=e)"): "likewise",
    ("flash_attention", "backward", "dv[b, :, keys] += p @ do_i"): "a sum over blocks",
    ("flash_attention", "backward", "dk[b, :, keys] += ds @ q_i"): "a sum over blocks",
    ("flash_attention", "backward", "dq_i += turned(ds) @ k[b, :, keys]"): "a sum over blocks",
    ("flash_attention", "scores", "by_head[:, :, first - keys.start:] += hidden"): "a part of the scores is hidden",
    ("flash_attention", "exp_in_place", "s -= m"): "scores stay in the processor's cache; its name says the formula",
    ("flash_attention", "exp_in_place", "get_array_module(s).exp(s, out=s)"): "as the line before",
    ("flash_attention", "ds_in_place", "dp -= delta"): "as in exp_in_place: in a whole step, a hundredth of the time",
    ("flash_attention", "ds_in_place", "dp *= p"): "likewise",
    ("kv_cache", "advance", "self.length += tokens"): "a number, not an array",
    ("linear_cross_entropy", "add_product", "part += dx[:, start:start + WORDS].T @ h"): "a sum over chunks",
    ("moe", "forward", "y[token] += w[token, slot, None] * o"): "a sum over experts, each of some rows",
    ("moe", "backward", "dx[token] += expert.backward(w[token, slot, None] * dy_e, expert_saved)"): "likewise",
    ("moe", "__call__", "y[token] += w[token, slot, None] * expert(x[token])"): "likewise",
}


def is_gradient(target: ast.expr) -> bool:
    """Whether it is the gradient of a parameter: those always add."""
    return isinstance(target, ast.Attribute) and target.attr == "grad"


def in_place(tree: ast.AST) -> list[tuple[str, str]]:
    """List (function, line) of the augmented assignments that are not to a `.grad`, and of the calls with `out=`."""
    found = []
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                augmented = isinstance(node, ast.AugAssign) and not is_gradient(node.target)
                out = isinstance(node, ast.Call) and any(keyword.arg == "out" for keyword in node.keywords)
                if augmented or out:
                    found.append((function.name, ast.unparse(node)))
    return found


def test_formulas_are_whole_but_for_the_named_lines():
    found = {
        (path.stem, function, line)
        for path in Path(numpy_minimind.layers.__file__).parent.glob("*.py")
        for function, line in in_place(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == set(EXCEPTIONS)


@pytest.mark.parametrize("line", ["y *= w", "y[0] += 1", "xp.exp(y, out=y)", "self.weight.data -= y"])
def test_a_formula_in_pieces_is_found(line):
    assert in_place(ast.parse(f"def forward(self, y):\n    {line}")) == [("forward", line)]
    assert not in_place(ast.parse("def backward(self, dy):\n    self.weight.grad += dy"))
