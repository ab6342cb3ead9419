"""A run without a command around it: what it does, in which order, and what of it each rank does."""

import json
import signal
from dataclasses import replace

import numpy as np
import pytest

import numpy_minimind as nm
from numpy_minimind.checkpoint.resume import load_resume
from numpy_minimind.data.text_corpus import TextCorpus
from numpy_minimind.training import TrainingDiverged
from numpy_minimind.training.build import new_config, new_model, new_trainer
from numpy_minimind.training.distributed import Ranks
from numpy_minimind.training.interrupt import StopRequest
from numpy_minimind.training.run import Reporter, Run
from numpy_minimind.training.run_folder import RunFolder, RunState
from numpy_minimind.training.run_report import report
from numpy_minimind.training.settings import TrainSettings

TEXT = "".join(f"{i} foxes jump over {i * i} dogs. " for i in range(80))
SETTINGS = TrainSettings(
    "t.txt", preset="tiny", steps=6, batch_size=2, seq_len=16, warmup=0, threads=1, log_every=2, eval_every=3
)


class Listener(Reporter):
    """Writes down what it is told; `at` is called with each step."""

    def __init__(self, at=lambda step: None):
        self.told, self.at = [], at

    def begin(self, first, last):
        self.told.append((first, last))

    def step(self, report, line):
        self.told.append((report.step, None if line is None else "val_loss" in line))
        self.at(report.step)

    def end(self):
        self.told.append("end")

    def warn(self, text):
        self.told.append(text)

    def stopping(self, text):
        self.told.append(text)


@pytest.fixture
def new_run(tmp_path):
    """Make a run in a folder of its own."""

    def make(reporter=None, ranks=None, **changes):
        settings, corpus = replace(SETTINGS, **changes), TextCorpus("t.txt", TEXT)
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16}
        model = new_model(new_config("tiny", corpus.tokenizer, sizes), settings.seed)
        ranks = ranks or Ranks()
        folder = RunFolder(tmp_path / "run")
        if ranks.rank == 0:
            folder.create(overwrite=True)
        return Run(folder, settings, corpus, new_trainer(settings, corpus, model, ranks), ranks, reporter or Reporter())

    return make


def steps_saved(run):
    return load_resume(run.folder.resume)[1]["trainer"]["t"]


def test_it_is_told_step_by_step_and_saves_at_the_end(new_run):
    listener = Listener()
    run = new_run(listener)
    assert run.go(StopRequest()) is None and run.is_complete
    steps = [(1, False), (2, False), (3, True), (4, False), (5, None), (6, True)]
    assert listener.told == [(0, 6), *steps, "end"]
    assert [line["step"] for line in run.folder.read_metrics()] == [1, 2, 3, 4, 6]
    assert steps_saved(run) == run.saved == 6


def test_it_saves_on_the_way_and_ends_early_with_a_logged_step(new_run):
    saved = []
    run = new_run(Listener(lambda step: saved.append(steps_saved(run))), save_every=2, log_every=9, eval_every=9)
    run.go(StopRequest(), stop_after=5)
    assert saved == [0, 0, 2, 2, 4] and steps_saved(run) == 5
    assert [line["step"] for line in run.folder.read_metrics()] == [1, 5]


def test_a_signal_ends_it_after_the_step_that_is_under_way(new_run):
    stop = StopRequest()
    listener = Listener(lambda step: setattr(stop, "signal", signal.SIGTERM if step == 3 else None))
    run = new_run(listener)
    assert run.go(stop) == signal.SIGTERM and steps_saved(run) == 3
    assert listener.told[-1] == "end"


def test_what_is_being_done_when_a_signal_comes(new_run):
    listener = Listener(lambda step: run.announce_stop() if step == 2 else None)
    run = new_run(listener)
    run.announce_stop()
    run.go(StopRequest(), stop_after=2)
    run.announce_stop()
    said = [text for text in listener.told if isinstance(text, str)]
    assert said == ["saving", "finishing step 2, then saving", "end", "saved; finishing the report"]


def test_it_goes_on_from_its_folder_as_if_it_had_never_stopped(new_run, tmp_path):
    whole = new_run()
    whole.go(StopRequest())
    (tmp_path / "run").rename(tmp_path / "whole")
    new_run().go(StopRequest(), stop_after=3)
    run = new_run()
    arrays, state = run.folder.load()
    run.trainer.load_state_dict(arrays, state.trainer)
    assert state.settings == SETTINGS and state.seconds > 0
    run.go(StopRequest())
    right = load_resume(tmp_path / "whole" / "resume.safetensors")
    found = load_resume(run.folder.resume)
    assert found[1]["trainer"] == right[1]["trainer"]
    assert {name: a.tobytes() for name, a in found[0].items()} == {name: a.tobytes() for name, a in right[0].items()}


def test_lines_that_are_no_logged_steps_are_left_out_with_a_warning(new_run):
    listener = Listener()
    run = new_run(listener)
    run.folder.metrics.write_text('{"step": 0}\n[1]\n{"step": 8}\n', encoding="utf-8")
    run.go(StopRequest(), stop_after=1)
    assert [line["step"] for line in run.folder.read_metrics()] == [0, 1]
    assert listener.told[1].startswith("1 line was no logged step in ")


def test_weights_that_have_gone_bad_are_not_saved(new_run):
    def spoil(step):
        if step == 2:
            run.trainer.model.model.norm.weight.data[:] = np.nan

    listener = Listener(spoil)
    run = new_run(listener, save_every=1)
    with pytest.raises(TrainingDiverged, match=r"nan after step 2: try .* the last good checkpoint, of step 1, is in"):
        run.go(StopRequest())
    assert steps_saved(run) == 1 and listener.told[-1] == "end"
    assert np.isfinite(nm.from_pretrained(run.folder.model).model.norm.weight.data).all()


def test_other_ranks_train_and_neither_write_nor_look_at_held_out_text(new_run, monkeypatch):
    ranks = Ranks()
    ranks.rank = 1
    alone, helper = new_run(), new_run(ranks=ranks)
    alone.go(StopRequest())
    monkeypatch.setattr(Run, "look", lambda run: 1 / 0)
    before = {path: path.read_bytes() for path in alone.folder.path.rglob("*") if path.is_file()}
    helper.go(StopRequest())
    assert {path: path.read_bytes() for path in alone.folder.path.rglob("*") if path.is_file()} == before
    for name, data in alone.trainer.model.state_dict().items():
        np.testing.assert_array_equal(helper.trainer.model.state_dict()[name], data, err_msg=name)


@pytest.mark.parametrize("begins", [True, False])
def test_the_tokenizer_that_is_saved_says_how_rows_begin_and_the_corpus_keeps_its_own(new_run, begins):
    run = new_run()
    run.corpus.begins_with_bos, run.corpus.tokenizer.begins_with_bos = begins, not begins
    run.go(StopRequest(), stop_after=1)
    assert nm.load_tokenizer(run.folder.model).begins_with_bos is begins
    assert run.corpus.tokenizer.begins_with_bos is not begins


def test_a_state_of_an_earlier_program_has_less_in_it(new_run):
    run = new_run()
    run.go(StopRequest(), stop_after=1)
    stored = load_resume(run.folder.resume)[1]
    assert RunState.from_json(stored).to_json() == stored
    first = {name: stored[name] for name in ("settings", "trainer", "environment", "fingerprint")}
    state = RunState.from_json(first)
    assert (state.tokenizer, dict(state.beside), dict(state.config), state.seconds) == (None, {}, {}, 0.0)


# -- the report ------------------------------------------------------------------------------------------------------


def test_the_report_of_a_complete_run(new_run, monkeypatch):
    run = new_run()
    run.go(StopRequest())
    monkeypatch.setattr(Run, "look", lambda run: 1 / 0)  # the last step was looked at already
    run.trainer.skipped_steps, run.corpus.unlabelled, run.corpus.oracle_loss = 2, 1234, run.val_loss / 2
    lines = report(run, StopRequest())
    assert lines[:3] == [
        f"held-out loss {run.val_loss:.4f} nats a token (2.000 times the oracle's {run.val_loss / 2:.4f})",
        "2 steps skipped: their gradient was not finite",
        "1,234 rows had nothing to learn within --seq-len 16 tokens",
    ]
    assert lines[3].startswith("it continues ") and lines[-1].endswith(f" s in all; everything is in {run.folder.path}")
    told = json.loads(run.folder.summary.read_text(encoding="utf-8"))
    assert (told["steps"], told["val_loss"], told["skipped_steps"]) == (6, run.val_loss, 2)


def test_whoever_stopped_it_is_not_kept_waiting_and_gets_the_loss_of_where_it_stands(new_run):
    stop = StopRequest()
    run = new_run(Listener(lambda step: setattr(stop, "signal", signal.SIGINT if step == 4 else None)))
    run.go(stop)
    earlier = run.val_loss
    lines = report(run, stop)
    assert run.val_loss != earlier and lines[0] == f"held-out loss {run.val_loss:.4f} nats a token"
    assert not any(line.startswith("it continues") for line in lines) and run.folder.loss_picture.exists()
