"""demos/measuring/benchmark.py: its peers compute what this package computes, and its table can be made."""

import importlib
import json
from pathlib import Path

import pytest

import numpy_minimind as nm

ROOT = Path(__file__).parents[2]
CONFIG = nm.MiniMindConfig.preset("tiny", vocab_size=31, rope_theta=100.0)


@pytest.fixture
def demo():
    """Import a module as the demo does."""
    return importlib.import_module


def test_pytorch_s_losses_over_three_steps_are_ours(demo):
    pytest.importorskip("torch")
    assert demo("peers.torch_minimind").training_differs_by(CONFIG, 3, 20, 1) < 1e-6


def test_transformers_logits_are_ours_and_its_bare_loop_writes_the_same_tokens(demo):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    qwen3 = demo("peers.qwen3")
    assert qwen3.logits_differ_by(CONFIG, 20, 1) < 1e-5
    work = qwen3.transformers_decode(CONFIG, 5, 6, 1)
    assert work() > 0
    theirs = [int(t) for t in work.written]
    model = nm.MiniMindForCausalLM(CONFIG)
    state = {name: w.numpy() for name, w in work.model.state_dict().items()}
    model.load_state_dict(state)
    ids = model.generate(work.ids.numpy(), max_new_tokens=7, temperature=0, eos_token_id=None)
    assert ids[0, 5:].tolist() == theirs


def test_every_target_of_a_line_names_programs_of_that_line(demo):
    lines = demo("peers.lines")
    table = list(lines.lines(lines.WORKS, list(lines.SIZES), 2))
    assert len(table) == 11
    for line in table:
        assert line.targets and next(iter(line.programs)) == line.targets[-1].ours
        for target in line.targets:
            assert {target.ours, *target.others} <= set(line.programs)


def test_judging(demo):
    benchmark, Target = demo("benchmark"), demo("peers.lines").Target
    results = {
        name: {"seconds": {"median": s}, "tokens_per_s": 100 / s, "peak_bytes": b}
        for name, s, b in (("numpy", 2.0, 50), ("x", 4.0, 40), ("y", 5.0, 60))
    }
    time = benchmark.judge(Target("time", ("x", "y", "absent"), 0.5), results)
    assert (time["best"], time["ratio"]) == ("x", 0.5) and time["text"].endswith("target at most 0.5: reached")
    speed = benchmark.judge(Target("speed", ("x", "y"), 2.1), results)
    assert (speed["best"], speed["ratio"]) == ("x", 2.0) and speed["text"].endswith("target at least 2.1: missed")
    assert benchmark.judge(Target("memory", ("x", "y"), 1.2), results)["ratio"] == 1.25
    assert benchmark.judge(Target("memory", ("absent",), 1.2), results) is None


@pytest.mark.parametrize("flags", [["--sizes", "7x7"], ["--against", "jax"], ["--repeat", "0"]])
def test_bad_flags_are_refused(demo, flags, capsys):
    with pytest.raises(SystemExit) as exit_:
        demo("benchmark").main(flags)
    assert exit_.value.code == 2 and flags[0] in capsys.readouterr().err


def test_a_program_that_fails_says_why_and_the_others_go_on(demo):
    turns = demo("peers.turns")
    programs = {"sum": ("functools:partial", (sum, [1, 2])), "bad": ("math:no_such_function", ())}
    results, failed = turns.in_turns(programs, 2, 1)
    assert results["sum"][0] == [3, 3] and list(results) == ["sum"]
    assert failed["bad"].startswith("AttributeError")


def test_the_experts_that_a_token_uses_are_as_large_as_the_dense_layer(demo):
    config = nm.MiniMindConfig.preset("tiny", use_moe=True, num_experts_per_tok=2)
    programs = demo("peers.programs")
    experts, dense = (programs.feed_forward_layer(config, chosen) for chosen in (True, False))
    assert 2 * experts.experts[0].num_parameters() == dense.num_parameters()
    assert all(programs.feed_forward(config, 2, 5, chosen)() > 0 for chosen in (True, False))


@pytest.mark.slow
def test_the_whole_demo_at_the_smallest_size(demo, tmp_path, capsys):
    files = ["--json", str(tmp_path / "b.json"), "--picture", str(tmp_path / "b.png")]
    assert demo("benchmark").main(["--sizes", "64x2", "--work", "train,memory", "--repeat", "1", *files]) == 0
    out = capsys.readouterr().out
    assert "train 64x2" in out and "products, by shards" in out and "torch" not in out.split("\n", 1)[1]
    lines = json.loads((tmp_path / "b.json").read_text(encoding="utf-8"))["lines"]
    assert [line["title"].split()[0] for line in lines] == ["train", "memory"]
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("absent", "extra"), [("threadpoolctl", "train"), ("torch", "parity")])
def test_what_is_not_installed_is_named_with_its_extra(demo, absent, extra, capsys, monkeypatch):
    benchmark = demo("benchmark")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else "found")
    with pytest.raises(SystemExit):
        benchmark.arguments(["--against", "torch"])
    assert f"{absent} is not installed: pip install -e '.[{extra}]'" in capsys.readouterr().err
