"""Runs that earlier programs began load, write, are evaluated, and go on as those programs would have gone on.

Beside this file lie two, stopped after step 10 of 20: `first_edition`, of the time before the toy language had likings,
goes on with the language that it was begun with; `before_the_move` (experts, two threads, two batches a step, blocks
computed twice) is of the time when a run lived in the command. The values are those that the program of its time gave.
Files are held to the bit, and so are the batches, by the state of their generator and the number of their labels; what
is computed, to the rounding that differs from one machine to another. The weights that it came to in the end are in
`at_the_end.safetensors`.
"""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import numpy_minimind as nm
from numpy_minimind.checkpoint.resume import load_resume, save_resume
from numpy_minimind.checkpoint.tensors import TensorFile
from numpy_minimind.cli import main
from numpy_minimind.data import toy_report


class Earlier(NamedTuple):
    """What the program of its time said of a run."""

    params: int
    entropy_floor: float
    oracle_loss: float
    tokens: int  # of its 20 steps
    generator: int  # its state after them
    losses: list[float]  # of the steps 1, 5, 10, 15 and 20
    held_out: list[float]  # after the steps 10 and 20
    evaluated: list[float]  # from step 10, as the flags of `EVALUATIONS` say
    evaluated_tokens: int
    prompts: dict[str, list[int]]  # ids that it wrote, from step 10
    unknown: dict[str, str]  # prompt: the warning
    written: str  # among the samples at the end
    shown: str  # the sentence whose attention is drawn
    mark: str  # of 猫喜欢我, a sentence of today's language


ATOL = 1e-7  # of weights; the kernels of an older processor (OPENBLAS_CORETYPE=Prescott) differ by 4e-9
EVALUATIONS = [
    ("", []),
    ("model", ["--seq-len", "64", "--batch-size", "2"]),
    ("model", ["--seq-len", "25", "--batch-size", "100"]),
]
EARLIER = {
    "first_edition": Earlier(
        params=1352,
        entropy_floor=0.5647371907372587,
        oracle_loss=0.5672173651335936,
        tokens=1794,
        generator=340119199939564017998234264382529714212,
        losses=[4.530280113220215, 4.509758472442627, 4.484428882598877, 4.478054523468018, 4.473007678985596],
        held_out=[4.485544024431948, 4.4686129751360495],
        evaluated=[4.484148193199533, 4.483923943885026, 4.4836560551647855],
        evaluated_tokens=114_339,
        prompts={
            "小明": [21, 52, 12, 86, 65, 30, 70, 74, 28, 23, 55, 66, 46, 6, 60, 59, 83, 18, 16, 48, 65, 21, 89, 40],
            "我喜欢": [14, 46, 14, 81, 69, 30, 71, 72, 21, 14, 49, 72, 43, 6, 60, 59, 83, 18, 16, 48, 65, 21, 89, 40],
        },
        unknown={"我喜欢": "3 characters are unknown to the model's tokenizer, 100% of the text: '我', '喜', '欢'"},
        written="  ✗ 想说怕说爱星猫杯l梦马eesc山o月等明猫 tu虎兔n”说两一云书w，看梦\n  ✗ tnT看\n",
        shown="小红小声说：“龙画雨”，小鸟也说：「龙画雨」",
        mark="✗",
    ),
    "before_the_move": Earlier(
        params=1416,
        entropy_floor=0.5878820951902662,
        oracle_loss=0.590742486462485,
        tokens=6795,
        generator=79969517384916344357124764599759828756,
        losses=[4.588159843111848, 4.565285140726543, 4.5320542102877, 4.509335175522244, 4.506828009814328],
        held_out=[4.526072212671961, 4.5040849455918455],
        evaluated=[4.525792911407635, 4.525406228111961, 4.525068423218846],
        evaluated_tokens=108_646,
        prompts={
            "小明": [23, 47, 17, 84, 76, 41, 74, 84, 34, 24, 50, 70, 52, 2],
            "我喜欢": [41, 56, 18, 86, 64, 31, 80, 80, 27, 27, 57, 62, 45, 2],
        },
        unknown={},
        written="  ✗ 想虎座说歌换牛杯l条马gguc小p明笑找牛Awu茶你n「说书两兔他w龙的杯\n  ✗ uoa的\n",
        shown="小红小声说：“龙画雨”，小鸟也说：「龙画雨」",
        mark="✓",
    ),
}


@pytest.fixture(params=EARLIER)
def run(request):
    """Its folder, and what it was."""
    return Path(__file__).parent / request.param, EARLIER[request.param]


@pytest.fixture
def old(run, tmp_path):
    """A copy of its folder, and what it was."""
    return Path(shutil.copytree(run[0], tmp_path / "old")), run[1]


FIRST_EDITION = pytest.mark.parametrize("run", ["first_edition"], indirect=True)


def summary(folder):
    return json.loads((folder / "summary.json").read_text(encoding="utf-8"))


def assert_went_on(folder, earlier):
    """To the end of its schedule, as the program of its time did."""
    arrays, state = load_resume(folder / "resume.safetensors")
    assert (state["trainer"]["t"], state["trainer"]["tokens"]) == (20, earlier.tokens)
    assert state["trainer"]["batches"]["state"]["state"] == earlier.generator
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["step"] for line in lines] == [1, 5, 10, 15, 20]
    assert [line["loss"] for line in lines] == pytest.approx(earlier.losses, rel=1e-5)
    assert [line["val_loss"] for line in lines if "val_loss" in line] == pytest.approx(earlier.held_out, rel=1e-5)
    for name, right in TensorFile(folder / "at_the_end.safetensors").tensors.items():
        np.testing.assert_allclose(arrays[f"model.{name}"], right.read(), rtol=0, atol=ATOL, err_msg=name)
    told = summary(folder)
    assert told["val_loss"] == pytest.approx(earlier.held_out[-1], rel=1e-5)
    assert (told["params"], told["entropy_floor"], told["oracle_loss"]) == earlier[:3]


def test_it_is_loaded_and_saved_again_to_the_bit(run, old):
    (given, _), (folder, _) = run, old
    assert main(["train", "--resume", "--stop-after", "10", "--out", str(folder)]) == 0
    for name in ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (folder / "model" / name).read_bytes() == (given / "model" / name).read_bytes()
    (arrays, state), (right, right_state) = (load_resume(f / "resume.safetensors") for f in (folder, given))
    assert {name: a.tobytes() for name, a in arrays.items()} == {name: a.tobytes() for name, a in right.items()}
    unlike = {"environment", "seconds", "beside"}
    assert {k: v for k, v in state.items() if k not in unlike} == {
        k: v for k, v in right_state.items() if k not in unlike
    }
    assert list(state["settings"]) == list(right_state["settings"])


@pytest.mark.parametrize("prompt", ["小明", "我喜欢"])
def test_it_writes_the_same(run, prompt, capsys):
    folder, earlier = run
    flags = ["--prompt", prompt, "--seed", "1", "--max-new-tokens", "24", "--json"]
    assert main(["generate", str(folder), *flags]) == 0
    said = capsys.readouterr()
    warning = f"warning: {earlier.unknown[prompt]}\n" if prompt in earlier.unknown else ""
    assert (json.loads(said.out)["ids"], said.err) == (earlier.prompts[prompt], warning)


@pytest.mark.parametrize("case", range(len(EVALUATIONS)))
def test_it_is_evaluated_on_its_own_held_out_text(run, case, capsys):
    (folder, earlier), (inside, flags) = run, EVALUATIONS[case]
    assert main(["eval", str(folder / inside), "--corpus", "toy", "--json", *flags]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["loss"] == pytest.approx(earlier.evaluated[case], rel=1e-6)
    assert result["tokens"] == earlier.evaluated_tokens


def test_it_is_resumed(old, capsys, monkeypatch):
    (folder, earlier), shown = old, []
    found, written = toy_report.copying_head, toy_report.write_sentences
    liking = "猫喜欢我"
    monkeypatch.setattr(toy_report, "write_sentences", lambda *args: [*written(*args), liking])
    monkeypatch.setattr(toy_report, "copying_head", lambda *args: shown.append(args[2]) or found(*args))
    assert main(["train", "--resume", "--out", str(folder)]) == 0
    assert_went_on(folder, earlier)
    said = capsys.readouterr().out
    times, loss = earlier.held_out[-1] / earlier.oracle_loss, earlier.oracle_loss
    assert f"{times:.3f} times the oracle's {loss:.4f}" in said
    assert earlier.written in said
    assert f"  {earlier.mark} {liking}\n" in said
    assert shown == [earlier.shown]


@pytest.mark.slow
def test_it_is_resumed_from_the_resume_file_alone(old):
    """Nor does that need the tokenizer's fingerprint, which the first resume files did not have."""
    folder, earlier = old
    shutil.rmtree(folder / "model")
    arrays, state = load_resume(folder / "resume.safetensors")
    del state["tokenizer"]
    save_resume(folder / "resume.safetensors", arrays, state)
    assert main(["train", "--resume", "--out", str(folder)]) == 0
    assert_went_on(folder, earlier)


def test_a_language_of_no_edition_is_refused(old, capsys):
    folder, _ = old
    arrays, state = load_resume(folder / "resume.safetensors")
    save_resume(folder / "resume.safetensors", arrays, {**state, "fingerprint": "0" * 64})
    assert main(["train", "--resume", "--out", str(folder)]) == 2
    assert "the text of corpus toy is no longer the text that this run was begun with" in capsys.readouterr().err


@pytest.mark.slow
def test_a_new_run_goes_on_from_its_model_and_is_resumed(run, tmp_path):
    (given, earlier), new = run, tmp_path / "new"
    flags = ["--init-from", str(given), "--steps", "2", "--batch-size", "2", "--seq-len", "64", "--threads", "1"]
    assert main(["train", *flags, "--stop-after", "1", "--out", str(new)]) == 0
    assert main(["train", "--resume", "--out", str(new)]) == 0
    assert (summary(new)["steps"], summary(new)["oracle_loss"]) == (2, earlier.oracle_loss)
    assert nm.load_tokenizer(new).characters == nm.load_tokenizer(given).characters


@FIRST_EDITION
def test_a_run_that_takes_its_folder_learns_the_language_of_today(run, old):
    (given, earlier), (folder, _) = run, old
    size = ["--preset", "tiny", "--set", "hidden_size=8", "--set", "num_hidden_layers=1", "--seq-len", "64"]
    assert main(["train", *size, "--steps", "1", "--threads", "1", "--overwrite", "--out", str(folder)]) == 0
    assert summary(folder)["oracle_loss"] != earlier.oracle_loss
    assert not {*"我喜欢"} & {*nm.load_tokenizer(given).characters}
    assert {*"我喜欢"} <= {*nm.load_tokenizer(folder).characters}
