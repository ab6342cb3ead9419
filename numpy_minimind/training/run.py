"""The life of a run: it trains, logs, looks at held-out text and saves, until its schedule ends or it is stopped."""

from __future__ import annotations

import copy
import time
from typing import Any

import numpy as np

from numpy_minimind.data.corpus import Corpus
from numpy_minimind.training.distributed import Ranks, digest_of
from numpy_minimind.training.interrupt import StopRequest
from numpy_minimind.training.paths import beside
from numpy_minimind.training.run_folder import RunFolder, RunState, environment
from numpy_minimind.training.settings import TrainSettings
from numpy_minimind.training.trainer import StepReport, Trainer, TrainingDiverged, evaluate

QUICK_LOOK = 32  # held-out batches, spread evenly, of an evaluation on the way; the last one takes all


class Reporter:
    """Is told how a run goes on. This one keeps silent, as all ranks but the first should."""

    def begin(self, first: int, last: int) -> None:
        """Steps after `first` are to be done, to `last`."""

    def step(self, report: StepReport, line: dict[str, Any] | None) -> None:
        """One is done; `line` is what was logged of it, if anything."""

    def end(self) -> None:
        """No more steps will come."""

    def warn(self, text: str) -> None:
        """Something is not as it should be."""

    def stopping(self, text: str) -> None:
        """A signal was heard. This is called in the signal's handler."""


class Run:
    """A run, from the step at which its trainer stands.

    Parameters
    ----------
    folder : RunFolder
    settings : TrainSettings
    corpus : Corpus
    trainer : Trainer
    ranks : Ranks
        All of them train. The first one alone writes, and looks at held-out text.
    reporter : Reporter
    seconds : float
        Of training before.

    Attributes
    ----------
    held_out : list of Batch
    val_loss : float or None
        Of the last look at them.
    step, saved : int
        Under way, or the last one; that of the last checkpoint.
    """

    def __init__(
        self,
        folder: RunFolder,
        settings: TrainSettings,
        corpus: Corpus,
        trainer: Trainer,
        ranks: Ranks,
        reporter: Reporter,
        seconds: float = 0.0,
    ) -> None:
        self.folder, self.settings, self.corpus, self.trainer = folder, settings, corpus, trainer
        self.ranks, self.reporter, self.seconds = ranks, reporter, seconds
        self.began = time.perf_counter()
        self.held_out = corpus.held_out(settings.batch_size, settings.seq_len)
        self.val_loss: float | None = None
        self.step = self.saved = trainer.t
        self.ended = False

    @property
    def is_complete(self) -> bool:
        """Whether all steps of the schedule are done."""
        return self.trainer.t == self.settings.steps

    def elapsed(self) -> float:
        """Seconds of training, those before included."""
        return self.seconds + time.perf_counter() - self.began

    def announce_stop(self) -> None:
        """Say, in a signal handler, that the signal was heard: a step may take long."""
        what = f"finishing step {self.step}, then saving" if self.step else "saving"
        self.reporter.stopping("saved; finishing the report" if self.ended else what)

    def go(self, stop: StopRequest, stop_after: int | None = None) -> int | None:
        """Train to the end, or to step `stop_after`, or to a signal, which is returned.

        The first thing is to save: a resumed run's model/ may be older than its resume file, and a folder that cannot
        be written is better known now.

        Raises
        ------
        TrainingDiverged
            When the loss, or a weight, is no longer a finite number; the last good checkpoint stays.
        """
        first, steps = self.trainer.t, self.settings.steps
        last = steps if stop_after is None else min(stop_after, steps)
        self.reporter.begin(first, last)
        try:
            self.save()
            self.ranks.run_on_rank_0(lambda: self.clear(first))
            return self.loop(last, stop)
        except TrainingDiverged as error:
            where = f"the last good checkpoint, of step {self.saved}, is in {self.folder.path}"
            raise TrainingDiverged(f"{error}; {where}") from None
        finally:
            self.ended = True
            self.reporter.end()

    def loop(self, last: int, stop: StopRequest) -> int | None:
        """Train; log and save on the way and, wherever it stops, at the end."""
        trainer, settings = self.trainer, self.settings
        signal, report, line = None, None, None
        while trainer.t < last and (signal := self.ranks.agree(stop.signal)) is None:
            self.step = trainer.t + 1
            report = trainer.step()
            line = self.log(report) if settings.is_logged(report.step) else None
            self.reporter.step(report, line)
            if trainer.t % settings.save_every == 0:
                self.save()
        if report is not None and line is None:
            self.log(report)
        if self.saved != trainer.t:
            self.save()
        return signal

    def clear(self, first: int) -> None:
        """Leave of an earlier time what is true of step `first`."""
        damaged = self.folder.trim(lambda line: line["step"] <= first and self.settings.is_logged(line["step"]))
        if damaged:
            lines = "1 line was" if damaged == 1 else f"{damaged:,} lines were"
            self.reporter.warn(
                f"{lines} no logged step in {self.folder.metrics} and left out; metrics.damaged is the file as it was"
            )
        if first < self.settings.steps:
            self.folder.drop_reports()

    # -- metrics -------------------------------------------------------------------------------------------------

    def log(self, report: StepReport) -> dict[str, Any]:
        """Let rank 0 write the step to metrics.jsonl, with a look at held-out text if it is time."""
        if self.ranks.rank != 0:
            return {}
        line = {**report._asdict(), "tokens_per_s": report.tokens_per_s}
        del line["seconds"]
        if self.held_out and self.settings.is_evaluated(report.step):
            line["val_loss"] = self.look()
        self.folder.log(line)
        return line

    def look(self) -> float:
        """Measure the loss on held-out text: all of it after the last step, some of it before."""
        every = 1 if self.is_complete else max(1, len(self.held_out) // QUICK_LOOK)
        self.val_loss = evaluate(self.trainer.model, self.held_out[::every], self.trainer.threads.map)[0]
        return self.val_loss

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Let rank 0 write a checkpoint, of weights that all ranks share and that are of use."""
        if self.ranks.size > 1:
            self.ranks.require_same("set of weights", digest_of(self.trainer.model))
        self.ranks.run_on_rank_0(self.require_finite)
        self.ranks.run_on_rank_0(self.write)
        self.saved = self.trainer.t

    def require_finite(self) -> None:
        """Refuse weights that the last step has spoiled: nothing has been computed with them yet."""
        settings = self.settings
        probe = self.held_out[:1] or [self.corpus.draw(np.random.default_rng(0), settings.batch_size, settings.seq_len)]
        loss, _ = evaluate(self.trainer.model, probe)
        if not np.isfinite(loss):
            raise TrainingDiverged(
                f"the loss became {loss} after step {self.trainer.t}: try a smaller learning rate, or a warm-up"
            )

    def write(self) -> None:
        """Write model and resume file."""
        arrays, numbers = self.trainer.state_dict()
        tokenizer = copy.copy(self.corpus.tokenizer)
        tokenizer.begins_with_bos = self.corpus.begins_with_bos  # and so should a prompt
        state = RunState(
            settings=self.settings,
            trainer=numbers,
            environment=environment_of(self.ranks),
            fingerprint=self.corpus.fingerprint,
            tokenizer=tokenizer.fingerprint(),
            beside=beside(self.settings, self.folder.path),
            config=self.trainer.model.config.to_dict(),
            seconds=self.elapsed(),
        )
        self.folder.save(self.trainer.model, tokenizer, arrays, state)


def environment_of(ranks: Ranks) -> dict[str, Any]:
    """Say on what bit-for-bit equality depends, the number of processes included."""
    return {**environment(), "processes": str(ranks)}
