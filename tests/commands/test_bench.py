"""bench train, prefill and decode as a user runs them."""

import json

import pytest

import numpy_minimind as nm
from numpy_minimind import accounting
from numpy_minimind.cli import main
from numpy_minimind.commands import bench

TINY = ["--preset", "tiny", "--set", "num_hidden_layers=1", "--set", "vocab_size=40", "--repeat", "3"]
WORKS = {
    "train": ["--batch-size", "4", "--seq-len", "24", "--threads", "2"],
    "prefill": ["--batch-size", "2", "--tokens", "30", "--threads", "2"],
    "decode": ["--prompt", "5", "--tokens", "12", "--threads", "1"],
}
SHARED = {
    "work", "preset", "set", "batch_size", "threads", "repeat", "tokens_per_s", "seconds", "floor_seconds",
    "share_of_floor", "peak_bytes", "device", "device_name", "machine",
}  # fmt: skip
OWN = {
    "train": {"seq_len", "floors", "floor_cut", "parts", "flops", "flops_per_s"},
    "prefill": {"tokens", "floors", "floor_cut", "flops", "flops_per_s"},
    "decode": {"prompt", "tokens", "floor", "bytes_per_step", "bytes_per_s"},
}
CONFIG = nm.MiniMindConfig.preset("tiny", num_hidden_layers=1, vocab_size=40)


@pytest.fixture(scope="module")
def results():
    """What each work gives with --json, measured once."""
    return {}


@pytest.fixture
def result_of(results, capsys):
    def measured(work):
        if work not in results:
            assert main(["bench", work, *TINY, *WORKS[work], "--json"]) == 0
            printed = capsys.readouterr()
            assert printed.out.count("\n") == 1 and printed.err == ""
            results[work] = json.loads(printed.out)
        return results[work]

    return measured


@pytest.mark.parametrize("work", WORKS)
def test_json_has_its_fields_and_they_agree_with_each_other(work, result_of):
    result = result_of(work)
    assert set(result) == SHARED | OWN[work]
    seconds = result["seconds"]
    assert set(seconds) == {"median", "min", "max"} and 0 < seconds["min"] <= seconds["median"] <= seconds["max"]
    tokens = {"train": 4 * 24, "prefill": 2 * 30, "decode": 12}[work]
    assert result["tokens_per_s"] == pytest.approx(tokens / seconds["median"])
    assert result["share_of_floor"] == pytest.approx(result["floor_seconds"] / seconds["median"])
    assert result["work"] == work and result["preset"] == "tiny" and result["set"] == [TINY[3], TINY[5]]
    assert result["machine"]["cores"] >= 1


@pytest.mark.parametrize("work", ["train", "prefill"])
def test_the_floor_is_the_better_of_two_cuts(work, result_of):
    result = result_of(work)
    assert set(result["floors"]) == {"whole", "shards"}
    best = min(result["floors"], key=lambda cut: result["floors"][cut]["median"])
    assert result["floor_cut"] == best and result["floor_seconds"] == result["floors"][best]["median"]


def test_the_parts_of_a_step_add_up_to_it(result_of):
    result = result_of("train")
    assert set(result["parts"]) == {"products", "attention", "optimizer", "element_wise"}
    assert sum(result["parts"].values()) == pytest.approx(result["seconds"]["median"])
    assert min(result["parts"][part] for part in ("products", "attention", "optimizer")) > 0
    formula = accounting.flops(CONFIG, 4, 24)
    assert result["flops"] == formula["forward"] + formula["backward"]


def test_the_turn_that_does_not_count_counts_in_no_part(monkeypatch):
    class Step:
        attention_seconds, optimizer_seconds = 100.0, 100.0

        def __init__(self, *sizes):
            self.calls = 0

        def __call__(self):
            self.calls += 1
            self.attention_seconds = self.optimizer_seconds = 100.0 if self.calls == 1 else 2.0
            return 300.0 if self.calls == 1 else 7.0

    monkeypatch.setattr(bench, "TrainStep", Step)
    monkeypatch.setattr(bench, "peak_bytes", lambda *work: 1)
    result = bench.measure_train(CONFIG, 2, 5, 1, repeat=1)
    assert result["seconds"] == {"median": 7.0, "min": 7.0, "max": 7.0}
    assert (result["parts"]["attention"], result["parts"]["optimizer"]) == (2.0, 2.0)


def test_the_peak_of_training_holds_at_least_what_accounting_counts(result_of):
    memory = accounting.memory(CONFIG, 4, 24)
    assert result_of("train")["peak_bytes"] > memory["weights"] + memory["gradients"] + memory["moments"]


@pytest.mark.parametrize(("rows", "threads"), [("1", 1), ("8", 2)])
def test_training_has_by_default_the_threads_that_train_would_choose(rows, threads, capsys, monkeypatch):
    monkeypatch.setattr(bench, "available_threads", lambda: 2)
    monkeypatch.setitem(bench.MEASURES, "train", lambda config, **counts: {"given": counts["threads"]})
    assert main(["bench", "train", "--preset", "tiny", "--seq-len", "128", "--batch-size", rows, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["threads"], result["given"]) == (threads, threads)


@pytest.mark.parametrize("work", WORKS)
def test_a_person_can_read_it(work, capsys):
    assert main(["bench", work, *TINY[:-1], "1", *WORKS[work]]) == 0
    out = capsys.readouterr().out
    for words in ("tokens/s", "floor", "peak memory, MiB", "threads", "NumPy"):
        assert words in out
    assert ("element-wise" in out) == (work == "train") and ("GB/s" in out) == (work == "decode")


def test_on_a_terminal_it_says_what_it_waits_for(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr(bench, "peak_bytes", lambda *work: 1)
    assert main(["bench", "decode", *TINY[:-1], "2", *WORKS["decode"]]) == 0
    said = [line.strip() for line in capsys.readouterr().err.split("\r") if line]
    turns = [f"work and floor in turns: {turn} ..." for turn in ("warming up", "turn 1 of 2", "turn 2 of 2")]
    assert said == ["the work alone, for its memory ...", *turns, ""]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--batch-size", "0"], "--batch-size must be at least 1"),
        (["train", "--repeat", "0"], "--repeat must be at least 1"),
        (["decode", "--threads", "-2"], "--threads must be at least 1"),
        (["train", "--preset", "huge"], "unknown preset 'huge'"),
        (["prefill", "--set", "depth=3"], "unknown config field depth"),
        (["prefill", "--set", "depth"], "--set needs FIELD=VALUE"),
        (["train", "--set", "dropout=0.1"], "dropout"),
        (["prefill", "--tokens", "32769"], "max_position_embeddings"),
        (["decode", "--prompt", "32000", "--tokens", "768"], "max_position_embeddings"),
    ],
)
def test_bad_input_is_refused_before_anything_is_measured(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr(bench, "peak_bytes", lambda *work: pytest.fail("measured"))
    assert main(["bench", *arguments]) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.out == ""


@pytest.mark.parametrize("arguments", [[], ["sleep"], ["decode", "--seq-len", "3"], ["train", "--tokens", "3"]])
def test_flags_of_another_work_are_refused(arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["bench", *arguments])
    assert exit_.value.code == 2 and "usage:" in capsys.readouterr().err
