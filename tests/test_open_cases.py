"""Faults that users of other projects reported, as small inputs for ours: those that no other test module holds yet.

`docs/en/open-cases.md` lists every case, what we do, and the tests that hold it; the first tests here keep that page
true.
"""

import ast
import json
import math
import os
import re
import subprocess
import sys
import tracemalloc
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

import numpy_minimind as nm
from numpy_minimind import MiniMindConfig, MiniMindForCausalLM
from numpy_minimind.checking import check_layer
from numpy_minimind.checking.points import V, config
from numpy_minimind.data import Batch, BatchStream
from numpy_minimind.layer import Layer
from numpy_minimind.layers import RMSNorm
from numpy_minimind.text import CharTokenizer
from numpy_minimind.training import AdamW, Trainer, evaluate
from tests.helpers import assert_close, gradients_of, model_of
from tests.yarns import MINIMIND, as_transformers, rotary

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "en" / "open-cases.md"
CASES = [
    *("N01", "N03", "N04", "N05", "N06", "R01", "R03", "R04", "R06", "A01", "A03", "A04", "A05", "A07"),
    *("L01", "L02", "L05", "M02", "M03", "M04", "M05", "M06", "T01", "T02", "T05", "T06", "T07", "O01", "O02", "O04"),
    *("D02", "D03", "D04", "G01", "G02", "G03", "G04", "C01", "C02", "C04", "C05", "K01", "K03", "K04"),
    *(f"Q{number:02}" for number in range(1, 18)),
]


# -- the page --------------------------------------------------------------------------------------------------


def rows() -> list[list[str]]:
    """The cells of each line of the table that begins with a case."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return [cells for cells in table if re.fullmatch(r"[A-Z]\d\d", cells[0])]


@cache
def functions_of(file: str) -> set[str]:
    """The names of the functions of a file."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def named_tests(text: str) -> list[tuple[str, str]]:
    return re.findall(r"(tests/[\w/]+\.py)::(test_\w+)", text)


def test_every_case_has_one_row_of_four_cells():
    assert [cells[0] for cells in rows()] == CASES
    assert all(len(cells) == 4 and all(cells) for cells in rows())


def test_every_case_names_a_test_and_every_named_test_exists():
    for case, _, _, tests in rows():
        named = named_tests(tests)
        assert named, f"{case} names no test"
        missing = [f"{file}::{test}" for file, test in named if test not in functions_of(file)]
        assert not missing, f"{case}: {missing}"
        rest = re.sub(r"`tests/[\w/]+\.py::test_\w+`", "", tests).replace(",", "").strip()
        assert not rest or rest.startswith("comes with"), f"{case}: {rest}"


def test_every_test_that_the_invariants_name_exists():
    text = (ROOT / "tests/properties/test_invariants.py").read_text(encoding="utf-8")
    assert len(named_tests(text)) > 5
    assert not [pair for pair in named_tests(text) if pair[1] not in functions_of(pair[0])]


# -- N: numerics -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_N01_a_row_that_is_all_padding_is_finite_where_added_masks_overflow(dtype):
    """Our masks are booleans, combined before they are used once; two added ones would be minus infinity."""
    lowest = np.finfo(dtype).min
    with np.errstate(over="ignore"):
        assert lowest + lowest == -np.inf
        assert np.float16(-65504) + np.float16(-16) == -np.inf and np.float64(-1e9).astype(np.float16) == -np.inf
    model, ids = model_of(dtype), np.arange(12).reshape(2, 6) % V
    mask = np.array([[0] * 6, [1] * 6])
    assert np.isfinite(model(ids, mask)).all()
    found = model.loss_and_grad(ids, np.where(mask == 1, ids, -100), mask)
    assert math.isfinite(found.loss) and found.n_tokens == 5
    assert all(np.isfinite(g).all() for g in gradients_of(model).values())


def test_N04_all_five_kinds_of_norm_take_epsilon_from_the_config():
    """Input, post-attention, q, k and final."""

    def norms(layer, path=""):
        for name, child in layer.children():
            if isinstance(child, RMSNorm):
                yield f"{path}{name}", child.eps
            yield from norms(child, f"{path}{name}.")

    found = dict(norms(model_of(rms_norm_eps=0.25)))
    assert {name.rpartition(".")[2] for name in found} == {
        "input_layernorm", "post_attention_layernorm", "q_norm", "k_norm", "norm",
    }  # fmt: skip
    assert len(found) == 2 * 4 + 1 and set(found.values()) == {0.25}


# -- R: rotation -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [{"rope_theta": 1e4}, {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}],
    ids=["flat", "nested"],
)
def test_R04_a_model_turns_by_the_theta_of_its_config(fields):
    d = {key: value for key, value in config().to_dict().items() if not key.startswith("rope")}
    model = MiniMindForCausalLM(MiniMindConfig.from_dict({**d, "head_dim": 4, **fields}))
    np.testing.assert_allclose(model.model.rotary_emb.frequencies, [1, 0.01], rtol=1e-14)


def test_R06_both_spellings_of_yarn_agree_for_minimind_s_head_width():
    ours, theirs = (rotary(96, 1e6, scaling) for scaling in (MINIMIND, as_transformers(MINIMIND)))
    np.testing.assert_allclose(ours.frequencies, theirs.frequencies, rtol=1e-14)
    assert ours.factor == theirs.factor == 1.0


# -- A: attention ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("masked", [True, False], ids=["with a mask", "without"])
def test_A07_padding_on_the_right_changes_nothing_and_its_row_learns_nothing(masked):
    """[4, 5, 6] and [4, 5, 6, pad, pad]: causality alone keeps the padding out of a dense model."""
    model = model_of(tie_word_embeddings=False)
    text, padded = np.array([[4, 5, 6]]), np.array([[4, 5, 6, 0, 0]])
    right, logits = model.loss_and_grad(text, text), model(text)
    gradients = {name: g.copy() for name, g in gradients_of(model).items()}
    model.zero_grad()
    mask = np.array([[1, 1, 1, 0, 0]]) if masked else None
    found = model.loss_and_grad(padded, np.where(padded == 0, -100, padded), mask)
    assert found.loss == pytest.approx(right.loss, rel=1e-14)
    assert_close(model(padded, mask)[:, :3], logits, 1e-13)
    assert_close(gradients_of(model), gradients, 1e-12)
    assert not model.model.embed_tokens.weight.grad[0].any()


# -- L: loss ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("backend")
def test_L02_the_optimizer_survives_a_batch_without_labels():
    model, ids = model_of(np.float32, use_moe=True), np.arange(8).reshape(2, 4)
    optimizer = AdamW(model.named_parameters(), weight_decay=0.0)
    before = {name: a.copy() for name, a in model.state_dict().items()}
    assert model.loss_and_grad(ids, np.full_like(ids, -100)).n_tokens == 0
    assert nm.training.clip_grad_norm(model.named_parameters(), 1.0) == 0.0
    optimizer.step()
    assert not any(moment.any() for moments in (optimizer.m, optimizer.v) for moment in moments.values())
    for name, a in model.state_dict().items():
        np.testing.assert_array_equal(a, before[name])


def trainer_of(accumulate, **fields):
    """A trainer in float64 that notes every batch it draws."""
    drawn = []

    def draw(rng):
        ids = rng.integers(0, V, (2, 6))
        drawn.append(Batch(ids[:, :-1], np.where(rng.random((2, 5)) < 0.3, -100, ids[:, 1:])))
        return drawn[-1]

    model = model_of(**fields)
    stream = BatchStream(draw, np.random.default_rng(0))
    optimizer = AdamW(model.named_parameters())
    return Trainer(model, optimizer, stream, steps=9, lr=1e-3, clip=1e9, accumulate=accumulate), drawn


@pytest.mark.usefixtures("backend")
def test_L05_an_update_takes_exactly_its_micro_batches_and_nothing_leaks_into_the_next():
    """Batches never run out, so none is left over: every update is of `accumulate` batches, with their mean."""
    trainer, drawn = trainer_of(accumulate=4)
    trainer.step()
    assert len(drawn) == 4
    weights = {name: a.copy() for name, a in trainer.model.state_dict().items()}
    trainer.step()
    assert (len(drawn), trainer.optimizer.t, trainer.t) == (8, 2, 2)
    fresh = model_of()
    fresh.load_state_dict(weights)
    n = sum(batch.n_tokens for batch in drawn[4:])
    for batch in drawn[4:]:
        fresh.loss_and_grad_shifted(batch.inputs, batch.targets, batch.attention_mask, n)
    assert_close(gradients_of(trainer.model), gradients_of(fresh), 1e-12)


@pytest.mark.usefixtures("backend")
def test_L05_a_lone_micro_batch_has_a_full_size_gradient():
    trainer, drawn = trainer_of(accumulate=1)
    before = {name: a.copy() for name, a in trainer.model.state_dict().items()}
    report = trainer.step()
    fresh = model_of()
    fresh.load_state_dict(before)
    found = fresh.loss_and_grad_shifted(*drawn[0], drawn[0].attention_mask)
    assert report.loss == pytest.approx(found.loss, rel=1e-14)
    assert_close(gradients_of(trainer.model), gradients_of(fresh), 1e-13)


# -- M: mixture of experts -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("backend")
def test_M02_evaluation_does_not_count_the_auxiliary_loss(rng):
    model, ids = model_of(use_moe=True, router_aux_loss_coef=5.0), rng.integers(0, V, (2, 6))
    found = model.loss_and_grad(ids, ids)
    assert found.aux_loss > 1 and found.loss == found.ce_loss + found.aux_loss
    assert evaluate(model, [Batch(ids[:, :-1], ids[:, 1:])]) == (pytest.approx(found.ce_loss, rel=1e-12), 10)


@pytest.mark.usefixtures("backend")
def test_M03_the_auxiliary_losses_of_two_layers_are_not_pooled():
    """Layer 0 sends everything to expert 0, layer 1 to expert 1: 2 + 2, where a pooled load would give 1."""
    model = model_of(use_moe=True, num_experts=2, router_aux_loss_coef=1.0, num_hidden_layers=2)
    ids = np.full((1, 4), 3)  # one id: every token is the same vector
    for i, favourite in enumerate((1, -1)):
        _, saved = model.forward(ids)
        x = saved.model.blocks[i].mlp.x[0]
        model.model.layers[i].mlp.gate.weight.data[...] = np.outer([favourite, -favourite], 50 * x / (x @ x))
    out, saved = model.forward(ids)
    assert [block.mlp.load.tolist() for block in saved.model.blocks] == [[1, 0], [0, 1]]
    assert out.aux_loss == pytest.approx(4.0, rel=1e-12)


# -- D: data and files -----------------------------------------------------------------------------------------


def opens_text(node: ast.Call) -> bool:
    """Whether the call opens a file as text: open, read_text, write_text, not in binary mode."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in ("read_text", "write_text"):
        own = isinstance(node.func, ast.Name)  # a function of ours, which decides itself
        return not own
    if name != "open" or (isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") == "os"):
        return False
    modes = [a.value for a in [*node.args, *(k.value for k in node.keywords)] if isinstance(a, ast.Constant)]
    return not any(isinstance(mode, str) and "b" in mode and len(mode) <= 3 for mode in modes)


def says_encoding(node: ast.Call) -> bool:
    positional = {"read_text": 0, "write_text": 1, "open": 3}
    name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
    given = len(node.args) > positional[name]
    return given or any(keyword.arg == "encoding" for keyword in node.keywords)


@pytest.mark.parametrize("folder", ["numpy_minimind", "demos", "tests"])
def test_D03_every_text_file_is_opened_with_an_encoding(folder):
    """The platform's default is another one on another machine."""
    silent, seen = [], 0
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and opens_text(node):
                seen += 1
                if not says_encoding(node):
                    silent.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not silent
    assert seen or folder == "demos"


CHINESE_FILES = """
import sys
import numpy_minimind as nm
from pathlib import Path
from numpy_minimind.data.corpora import load_corpus
folder = Path(sys.argv[1])
text = "\\u72d0\\u72f8 fox\\n" * 40
(folder / "t.txt").write_bytes(b"\\xef\\xbb\\xbf" + text.replace("\\n", "\\r\\n").encode())
corpus = load_corpus(str(folder / "t.txt"))
assert corpus.tokenizer.characters == "".join(sorted(set(text)))
corpus.tokenizer.save(folder)
assert nm.load_tokenizer(folder).decode(corpus.tokenizer.encode(text)) == text
"""


def test_D03_chinese_files_in_a_locale_that_is_not_utf8(tmp_path):
    """A mark before the text, CRLF, and Chinese: in the C locale, where a file opened without an encoding fails."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("LC_", "LANG", "PYTHONIOENC"))}
    env |= {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONPATH": str(ROOT)}
    flags = ["-X", "warn_default_encoding", "-W", "error::EncodingWarning"]
    subprocess.run([sys.executable, *flags, "-c", CHINESE_FILES, str(tmp_path)], check=True, env=env, timeout=120)


def test_D04_ids_beyond_16_bits_stay_what_they_are():
    """65541 in an unsigned 16-bit array would be 5."""
    tokenizer = CharTokenizer(map(chr, range(0x20000, 0x20000 + 65_541)))
    last = chr(0x20000 + 65_538)
    assert tokenizer.encode(last) == [65_541] == tokenizer.encode_array(last).tolist()
    ids = np.array([[65_541, 5]])
    model = MiniMindForCausalLM(config(vocab_size=65_542, hidden_size=2))
    assert model.loss_and_grad(ids, ids).n_tokens == 1
    assert model.model.embed_tokens.weight.grad[65_541].any()


# -- C: memory, on the host ------------------------------------------------------------------------------------


def test_C05_training_and_generating_again_hold_no_more_memory():
    trainer, drawn = trainer_of(accumulate=1, max_position_embeddings=256)
    prompt = np.array([[1, 2, 3]])

    def round_of_use():
        for _ in range(4):
            trainer.step()
        trainer.model.generate(prompt, max_new_tokens=200, eos_token_id=None, rng=np.random.default_rng(0))
        drawn.clear()

    round_of_use()
    tracemalloc.start()
    try:
        round_of_use()
        once = tracemalloc.get_traced_memory()[0]
        round_of_use()
        assert tracemalloc.get_traced_memory()[0] < once + 10_000
    finally:
        tracemalloc.stop()


# -- K: checks, tests, demo ------------------------------------------------------------------------------------


class Cube(Layer):
    """x to the third."""

    def forward(self, x):
        return x**3, x

    def backward(self, dy, saved):
        return 3 * saved**2 * dy


def test_K01_a_cube_at_one_has_the_slope_three():
    report = check_layer(Cube(), np.ones(1), cotangents=[np.ones(1)])
    assert report.ok and report.rows[0].numeric == pytest.approx(3.0, abs=1e-9)


def test_K01_whole_numbers_are_refused():
    """1 + 1e-5 in an array of integers is 1, and the slope 0."""
    with pytest.raises(TypeError, match="input x is int64, but gradients are checked in float64"):
        check_layer(Cube(), np.ones(1, np.int64))


def test_K03_no_property_has_a_time_limit():
    assert settings.default.deadline is None
    for name in ("dev", "ci", "nightly"):
        assert settings.get_profile(name).deadline is None
    assert settings.get_profile("ci").derandomize


SMALL_RUN = ["--preset", "tiny", "--set", "num_hidden_layers=1", "--batch-size", "2", "--seq-len", "16", "--steps", "1"]


@pytest.mark.parametrize("display", [None, ":99"], ids=["no display", "a display that is not there"])
def test_K03_a_run_draws_its_picture_without_a_display(tmp_path, monkeypatch, display, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.delenv("MPLBACKEND", raising=False)
    monkeypatch.delenv("DISPLAY", raising=False)
    if display:
        monkeypatch.setenv("DISPLAY", display)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # not even there: no global state, nothing to close
    assert trained(tmp_path) == 0, capsys.readouterr().err
    assert (tmp_path / "run/loss.png").read_bytes().startswith(b"\x89PNG")


def test_K03_a_missing_plot_library_does_not_stop_training(tmp_path, monkeypatch, capsys):
    for module in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"] or ["matplotlib"]:
        monkeypatch.setitem(sys.modules, module, None)
    assert trained(tmp_path) == 0, capsys.readouterr().err
    assert "pictures need matplotlib" in capsys.readouterr().out
    assert not (tmp_path / "run/loss.png").exists()
    assert json.loads((tmp_path / "run/summary.json").read_text(encoding="utf-8"))["steps"] == 1


def trained(folder: Path) -> int:
    """Train one step on a small text, in this process."""
    from numpy_minimind.cli import main

    (folder / "t.txt").write_text("the quick brown fox\n" * 30, encoding="utf-8")
    return main(["train", "--corpus", str(folder / "t.txt"), *SMALL_RUN, "--out", str(folder / "run")])
