"""A toy run of the time before the language had likings goes on with the language that it was begun with.

Beside this file lies such a run, stopped after step 10 of 20. The values are those that the program of that time gave.
Files are held to the bit, and so are the batches, by the state of their generator and the number of their labels; what
is computed, to the rounding that differs from one machine to another.
"""

import json
import shutil
from pathlib import Path

import pytest

import numpy_minimind as nm
from numpy_minimind.checkpoint.resume import load_resume, save_resume
from numpy_minimind.cli import main
from numpy_minimind.data import toy_report

RUN = Path(__file__).parent / "first_edition"
FLOOR, ORACLE = 0.5647371907372587, 0.5672173651335936
AT_THE_END = {
    "t": 20,
    "tokens": 1794,
    "skipped_steps": 0,
    "batches": {
        "bit_generator": "PCG64",
        "state": {"state": 340119199939564017998234264382529714212, "inc": 159503441853545908714793740543692941767},
        "has_uint32": 0,
        "uinteger": 0,
    },
}
LOSSES = {
    1: 4.530280113220215,
    5: 4.509758472442627,
    10: 4.484428882598877,
    15: 4.478054523468018,
    20: 4.473007678985596,
}
HELD_OUT = {10: 4.485544024, 20: 4.468612975}


@pytest.fixture
def old(tmp_path):
    return Path(shutil.copytree(RUN, tmp_path / "old"))


def summary(folder):
    return json.loads((folder / "summary.json").read_text(encoding="utf-8"))


def assert_went_on(folder):
    """To the end of its schedule, as the program of its time did."""
    assert load_resume(folder / "resume.safetensors")[1]["trainer"] == AT_THE_END
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {line["step"]: line["loss"] for line in lines} == pytest.approx(LOSSES, rel=1e-5)
    assert {line["step"]: line["val_loss"] for line in lines if "val_loss" in line} == pytest.approx(HELD_OUT, rel=1e-5)
    told = summary(folder)
    assert told["val_loss"] == pytest.approx(HELD_OUT[20], rel=1e-5)
    assert (told["params"], told["entropy_floor"], told["oracle_loss"]) == (1352, FLOOR, ORACLE)


def test_it_is_loaded_and_saved_again_to_the_bit(old):
    assert main(["train", "--resume", "--stop-after", "10", "--out", str(old)]) == 0
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        assert (old / "model" / name).read_bytes() == (RUN / "model" / name).read_bytes()
    (arrays, state), (right, right_state) = (load_resume(folder / "resume.safetensors") for folder in (old, RUN))
    assert {name: a.tobytes() for name, a in arrays.items()} == {name: a.tobytes() for name, a in right.items()}
    unlike = {"environment", "seconds", "beside"}
    assert {k: v for k, v in state.items() if k not in unlike} == {
        k: v for k, v in right_state.items() if k not in unlike
    }


@pytest.mark.parametrize(
    ("prompt", "ids", "warning"),
    [
        ("小明", [21, 52, 12, 86, 65, 30, 70, 74, 28, 23, 55, 66, 46, 6, 60, 59, 83, 18, 16, 48, 65, 21, 89, 40], ""),
        (
            "我喜欢",  # three characters that it does not know
            [14, 46, 14, 81, 69, 30, 71, 72, 21, 14, 49, 72, 43, 6, 60, 59, 83, 18, 16, 48, 65, 21, 89, 40],
            "warning: 3 characters are unknown to the model's tokenizer, 100% of the text: '我', '喜', '欢'\n",
        ),
    ],
)
def test_it_writes_the_same(prompt, ids, warning, capsys):
    flags = ["--prompt", prompt, "--seed", "1", "--max-new-tokens", "24", "--json"]
    assert main(["generate", str(RUN), *flags]) == 0
    said = capsys.readouterr()
    assert (json.loads(said.out)["ids"], said.err) == (ids, warning)


@pytest.mark.parametrize(
    ("folder", "flags", "loss"),
    [
        (RUN, [], 4.484148193199533),
        (RUN / "model", ["--seq-len", "64", "--batch-size", "2"], 4.483923943885026),
        (RUN / "model", ["--seq-len", "25", "--batch-size", "100"], 4.4836560551647855),
    ],
)
def test_it_is_evaluated_on_its_own_held_out_text(folder, flags, loss, capsys):
    assert main(["eval", str(folder), "--corpus", "toy", "--json", *flags]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["loss"] == pytest.approx(loss, rel=1e-6) and result["tokens"] == 114_339


def test_it_is_resumed(old, capsys, monkeypatch):
    shown = []
    found, written = toy_report.copying_head, toy_report.write_sentences
    liking = "猫爱狗"  # spelled with characters of the first edition, and a sentence of today's
    monkeypatch.setattr(toy_report, "write_sentences", lambda *args: [*written(*args), liking])
    monkeypatch.setattr(toy_report, "copying_head", lambda *args: shown.append(args[2]) or found(*args))
    assert main(["train", "--resume", "--out", str(old)]) == 0
    assert_went_on(old)
    said = capsys.readouterr().out
    assert f"{HELD_OUT[20] / ORACLE:.3f} times the oracle's 0.5672" in said
    assert "  ✗ 想说怕说爱星猫杯l梦马eesc山o月等明猫 tu虎兔n”说两一云书w，看梦\n  ✗ tnT看\n" in said
    assert f"  ✗ {liking}\n" in said
    assert shown == ["小红小声说：“龙画雨”，小鸟也说：「龙画雨」"]


@pytest.mark.slow
def test_it_is_resumed_from_the_resume_file_alone(old):
    """Nor does that need the tokenizer's fingerprint, which the first resume files did not have."""
    shutil.rmtree(old / "model")
    arrays, state = load_resume(old / "resume.safetensors")
    del state["tokenizer"]
    save_resume(old / "resume.safetensors", arrays, state)
    assert main(["train", "--resume", "--out", str(old)]) == 0
    assert_went_on(old)


def test_a_language_of_no_edition_is_refused(old, capsys):
    arrays, state = load_resume(old / "resume.safetensors")
    save_resume(old / "resume.safetensors", arrays, {**state, "fingerprint": "0" * 64})
    assert main(["train", "--resume", "--out", str(old)]) == 2
    assert "the text of corpus toy is no longer the text that this run was begun with" in capsys.readouterr().err


@pytest.mark.slow
def test_a_new_run_goes_on_from_its_model_and_is_resumed(old, tmp_path):
    flags = ["--init-from", str(RUN), "--steps", "2", "--batch-size", "2", "--seq-len", "64", "--threads", "1"]
    new = tmp_path / "new"
    assert main(["train", *flags, "--stop-after", "1", "--out", str(new)]) == 0
    assert main(["train", "--resume", "--out", str(new)]) == 0
    assert (summary(new)["steps"], summary(new)["oracle_loss"]) == (2, ORACLE)
    assert nm.load_tokenizer(new).characters == nm.load_tokenizer(RUN).characters


def test_a_run_that_takes_its_folder_learns_the_language_of_today(old):
    size = ["--preset", "tiny", "--set", "hidden_size=8", "--set", "num_hidden_layers=1", "--seq-len", "64"]
    assert main(["train", *size, "--steps", "1", "--threads", "1", "--overwrite", "--out", str(old)]) == 0
    assert summary(old)["oracle_loss"] != ORACLE
    assert not {*"我喜欢"} & {*nm.load_tokenizer(RUN).characters}
    assert {*"我喜欢"} <= {*nm.load_tokenizer(old).characters}
