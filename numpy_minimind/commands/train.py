"""Train a model on the toy language, on Python's documentation, or on a text, texts or conversations of yours.

Everything goes into the folder --out: metrics.jsonl, summary.json, loss.png, model/ (for generate, eval and
from_pretrained), and one file to --resume from, bit for bit. Started by `mpiexec -n N`, N processes share each batch.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from numpy_minimind import plotting
from numpy_minimind.backend import keep_freed_memory
from numpy_minimind.commands.common import add_device
from numpy_minimind.commands.nearby import suggesting
from numpy_minimind.commands.next_steps import next_steps
from numpy_minimind.commands.places import beside
from numpy_minimind.commands.progress import Progress, attempt, say, warn
from numpy_minimind.commands.train_defaults import CORPUS_DEFAULTS, DEFAULTS, INIT_FROM_DEFAULTS
from numpy_minimind.commands.train_profile import profile
from numpy_minimind.commands.train_resume import resumed_settings
from numpy_minimind.commands.train_settings import build, fresh_settings
from numpy_minimind.config import PRESETS
from numpy_minimind.data import toy_language, toy_report
from numpy_minimind.data.batches import IGNORE, Batch
from numpy_minimind.data.corpora import is_jsonl, short_name
from numpy_minimind.data.corpus import Corpus
from numpy_minimind.data.toy_corpus import ToyCorpus
from numpy_minimind.generation.loop import generate
from numpy_minimind.threads import one_blas_thread
from numpy_minimind.training.distributed import Ranks, digest_of, process_group
from numpy_minimind.training.interrupt import StopRequest
from numpy_minimind.training.run_folder import RunFolder, environment
from numpy_minimind.training.trainer import StepReport, Trainer, TrainingDiverged, evaluate

SIGNALS: dict[int, str] = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
QUESTION, QUESTION_END = "<|im_start|>user\n", "<|im_end|>"
SAMPLE_LINES = 6
QUICK_LOOK = 32  # held-out batches, spread evenly, of an evaluation on the way; the last one takes all


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `train`. Defaults are filled in later, so that --resume knows what was really given."""

    def add(flag: str, kind: Any, text: str, **more: Any) -> None:
        name = flag.strip("-").replace("-", "_")
        others = [f"{values[name]} for {kind}" for kind, values in CORPUS_DEFAULTS.items() if name in values]
        if INIT_FROM_DEFAULTS.get(name) is not None:
            others.append(f"{INIT_FROM_DEFAULTS[name]} with --init-from")
        note = "" if DEFAULTS[name] in (None, []) else f" (default {', '.join([str(DEFAULTS[name]), *others])})"
        parser.add_argument(flag, type=kind, help=text + note, **more)

    parser.add_argument("--out", metavar="DIR", help="folder of the run")
    add("--corpus", str, "what to train on", metavar="toy|pydoc|FILE|pretrain:JSONL|sft:JSONL")
    add("--tokenizer", str, "characters, N tokens learned from the corpus, or a folder with a tokenizer.json",
        metavar="char|bpe:N|FOLDER")  # fmt: skip
    add("--preset", str, f"size of the model: {', '.join(PRESETS)}")
    add("--set", str, "override a field of the preset; may be repeated", metavar="FIELD=VALUE", action="append")
    add("--init-from", str, "go on with the weights, config and tokenizer of this model", metavar="MODEL")
    add("--steps", int, "length of the schedule")
    parser.add_argument("--stop-after", type=int, metavar="N", help="save and end after step N of the schedule")
    add("--batch-size", int, "rows of a batch")
    add("--seq-len", int, "tokens of a row")
    add("--accumulate", int, "batches to one update")
    add("--lr", float, "largest learning rate")
    add("--warmup", int, "steps of linear rise")
    add("--weight-decay", float, "of matrices, not of gains")
    add("--clip", float, "largest global norm of the gradient")
    add("--seed", int, "of weights and batches")
    add("--threads", int, "threads that share each batch (default: one a processor, fewer for a small model or a GPU)")
    add("--log-every", int, "steps from one logged step to the next")
    add("--eval-every", int, "steps from one look at held-out text to the next")
    add("--save-every", int, "steps from one checkpoint to the next")
    parser.add_argument("--checkpoint-activations", action="store_true", default=None,
        help="keep the inputs of blocks alone and compute the blocks twice: less memory, more time")  # fmt: skip
    parser.add_argument("--profile", action="store_true",
        help="write nothing; measure some steps with one thread and print, by layer, where the time goes")  # fmt: skip
    parser.add_argument("--resume", action="store_true", help="continue the run in --out, with its own settings")
    parser.add_argument("--overwrite", action="store_true", help="start afresh in a folder that is in use")
    add_device(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Train; started by `mpiexec -n N`, as one of N processes."""
    if args.profile:
        return profile(args)
    with process_group() as ranks:
        if args.out is None:
            raise ValueError("--out DIR is missing: the folder of the run")
        result = _run(args, ranks)
    for line in result.pop("report"):  # here, where a terminal that was closed is no error
        say(line)
    return result


def _run(args: argparse.Namespace, ranks: Ranks) -> dict[str, Any]:
    folder = RunFolder(args.out)
    if args.resume and args.overwrite:
        raise ValueError("--resume continues a run and --overwrite deletes it: give one of them")
    if args.stop_after is not None and args.stop_after < 1:
        raise ValueError(f"--stop-after must be at least 1, got {args.stop_after}")
    with suggesting(folder.path, lambda place: RunFolder(place).resume.is_file()):
        arrays, stored = folder.load() if args.resume else ({}, {})
    settings = resumed_settings(args, stored, folder) if args.resume else fresh_settings(args, ranks)
    keep_freed_memory()
    with one_blas_thread():
        corpus, trainer = build(settings, ranks, stored, folder) if args.resume else build(settings, ranks)
        ranks.require_same("text", corpus.fingerprint)
        ranks.require_same("tokenizer", corpus.tokenizer.fingerprint())
        left_out = corpus.left_out(settings["seq_len"])
        if args.resume:
            _warn_of_changes({"processes": "1", **stored["environment"]}, _environment(ranks))
            trainer.load_state_dict(arrays, stored["trainer"])
            arrays.clear()
        else:
            left_out.require_known()
        ranks.broadcast(trainer)
        kind = _Run if ranks.rank == 0 else _Helper
        sitting = kind(folder, settings, corpus, trainer, ranks, stored.get("seconds", 0.0), left_out.notes)
        with StopRequest(sitting.announce_stop) as stop:
            if not args.resume:
                ranks.run_on_rank_0(lambda: folder.create(args.overwrite))
            return sitting.go(args.stop_after, stop)


def render(result: dict[str, Any]) -> str:
    """Return the table of --profile; of a training all has been said."""
    return "\n".join(result.get("report", []))


def exit_code(result: dict[str, Any]) -> int:
    """Return 128 + the number of the signal that ended the run, else 0."""
    return 128 + result["signal"] if result["signal"] else 0


def _environment(ranks: Ranks) -> dict[str, Any]:
    return {**environment(), "processes": str(ranks)}


def _warn_of_changes(then: dict[str, Any], now: dict[str, Any]) -> None:
    for name, value in then.items():
        if now.get(name) != value:
            warn(f"{name} was {value} and is {now.get(name)}: the result may differ in the last bits")


class _Run:
    """One sitting of a run: the loop, and what it logs, saves and shows."""

    def __init__(
        self,
        folder: RunFolder,
        settings: dict[str, Any],
        corpus: Corpus,
        trainer: Trainer,
        ranks: Ranks,
        seconds: float,
        notes: tuple[str, ...],
    ) -> None:
        self.folder, self.settings, self.corpus, self.trainer, self.ranks = folder, settings, corpus, trainer, ranks
        self.seconds = seconds  # of earlier sittings
        self.notes = notes  # what of the corpus does not reach the model
        self.began = time.perf_counter()
        self.held_out = corpus.held_out(settings["batch_size"], settings["seq_len"])
        self.val_loss: float | None = None
        self.step = trainer.t  # under way, or the last one
        self.saved = trainer.t  # step of the last checkpoint
        self.finishing = False

    def go(self, stop_after: int | None, stop: StopRequest) -> dict[str, Any]:
        """Train to the end, or to `stop_after`, or to a signal.

        The first thing is to save: a resumed run's model/ may be older than its resume file, and a folder that cannot
        be written is better known now. A finished run that is resumed gets its summary and pictures again.
        """
        trainer, steps = self.trainer, self.settings["steps"]
        first, last = trainer.t, steps if stop_after is None else min(stop_after, steps)
        self.introduce(first)
        try:
            with Progress(first, last) as progress:
                self.save()
                self.ranks.run_on_rank_0(lambda: self.clear(first))
                self.loop(last, stop, progress)
        except TrainingDiverged as error:
            where = f"the last good checkpoint, of step {self.saved}, is in {self.folder.path}"
            raise TrainingDiverged(f"{error}; {where}") from None
        self.finishing = True
        report = self.finish(self.ranks.agree(stop.signal), stop)
        return {"signal": self.ranks.agree(stop.signal), "report": report}

    def clear(self, first: int) -> None:
        """Leave of an earlier sitting what is true of step `first`."""
        damaged = self.folder.trim(lambda line: line["step"] <= first and self.is_planned(line["step"]))
        if damaged:
            lines = "1 line was" if damaged == 1 else f"{damaged:,} lines were"
            warn(f"{lines} no logged step in {self.folder.metrics} and left out; metrics.damaged is the file as it was")
        if first < self.settings["steps"]:
            self.folder.drop_reports()

    def loop(self, last: int, stop: StopRequest, progress: Progress) -> None:
        """Train; log and save on the way and, wherever it stops, at the end."""
        trainer, report, line = self.trainer, None, None
        while trainer.t < last and self.ranks.agree(stop.signal) is None:
            self.step = trainer.t + 1
            report = trainer.step()
            line = self.log(report) if self.is_planned(report.step) else None
            progress.update(report, line)
            if trainer.t % self.settings["save_every"] == 0:
                self.save()
        if report is not None and line is None:
            self.log(report)
        if self.saved != trainer.t:
            self.save()

    def announce_stop(self) -> None:
        """Say, in a signal handler, that the signal was heard: a step may take long."""
        what = f"finishing step {self.step}, then saving" if self.step else "saving"
        what = "saved; finishing the report" if self.finishing else what
        with contextlib.suppress(OSError):
            os.write(2, f"\n{what}; Ctrl-C again stops at once\n".encode())

    def introduce(self, first: int) -> None:
        """Say what is about to happen."""
        model, corpus = self.trainer.model, self.corpus
        steps = self.settings["steps"]
        say(
            f"{self.model_name()}, {model.num_parameters():,} parameters, vocabulary "
            f"{model.config.vocab_size}; corpus {short_name(corpus.name)}; "
            + (f"steps {first + 1} to {steps}" if first < steps else f"all {steps} steps are done already")
        )
        for note in (*corpus.notes, *self.notes):
            warn(note)
        if not self.held_out:
            warn("the corpus is too short to hold anything out, so there will be no val_loss")

    def model_name(self) -> str:
        """Return what the model is called: its preset, or where it comes from."""
        preset = self.settings["preset"]
        if preset is not None:
            return f"{preset} model"
        folder = Path(self.settings["init_from"])
        return f"model of {folder.parent.name if folder.name == 'model' else folder.name}"

    def is_planned(self, step: int) -> bool:
        """Whether an uninterrupted run logs this step."""
        return step == 1 or step % self.settings["log_every"] == 0 or self.is_evaluated(step)

    def is_evaluated(self, step: int) -> bool:
        """Whether an uninterrupted run looks at held-out text after this step."""
        return step == self.settings["steps"] or step % self.settings["eval_every"] == 0

    def log(self, report: StepReport) -> dict[str, Any]:
        """Write the step to metrics.jsonl, with a look at held-out text if it is time."""
        average = report.tokens / report.step  # labels of a step
        line = {**report._asdict(), "tokens_per_s": average / report.seconds}
        del line["seconds"]
        if self.held_out and self.is_evaluated(report.step):
            line["val_loss"] = self.val_loss = self.look(report.step)
        self.folder.log(line)
        return line

    def look(self, step: int) -> float:
        """Measure the loss on held-out text: all of it after the last step, some of it before."""
        every = 1 if step == self.settings["steps"] else max(1, len(self.held_out) // QUICK_LOOK)
        return evaluate(self.trainer.model, self.held_out[::every], self.trainer.threads.map)[0]

    def save(self) -> None:
        """Let rank 0 write a checkpoint, of weights that all ranks share."""
        if self.ranks.size > 1:
            self.ranks.require_same("set of weights", digest_of(self.trainer.model))
        self.ranks.run_on_rank_0(self.write)
        self.saved = self.trainer.t

    def write(self) -> None:
        """Write model and resume file, unless the weights have gone bad since the last step."""
        probe = self.held_out[:1] or [
            self.corpus.draw(np.random.default_rng(0), self.settings["batch_size"], self.settings["seq_len"])
        ]
        loss, _ = evaluate(self.trainer.model, probe)
        if not np.isfinite(loss):
            raise TrainingDiverged(
                f"the loss became {loss} after step {self.trainer.t}: try a smaller learning rate, or a warm-up"
            )
        extra = {
            "settings": self.settings,
            "beside": beside(self.settings, self.folder.path),
            "environment": _environment(self.ranks),
            "fingerprint": self.corpus.fingerprint,
            "tokenizer": self.corpus.tokenizer.fingerprint(),
            "config": self.trainer.model.config.to_dict(),
            "seconds": self.elapsed(),
        }
        self.folder.save(self.trainer, self.corpus.tokenizer, extra)

    def elapsed(self) -> float:
        """Seconds of training, earlier sittings included."""
        return self.seconds + time.perf_counter() - self.began

    def finish(self, why: int | None, stop: StopRequest) -> list[str]:
        """Write summary and pictures; return what to tell the user: `why` is the signal that ended the loop.

        All is saved by now: a part that fails is named and costs nothing else.
        """
        trainer = self.trainer
        report = []
        if trainer.t < self.settings["steps"]:
            stopped = "stopped" if why is None else f"stopped by {SIGNALS.get(why, why)}"
            command = f"python -m numpy_minimind train --resume --out {shlex.quote(str(self.folder.path))}"
            report.append(f"{stopped} after step {trainer.t} of {self.settings['steps']}; go on with\n  {command}")
        report += attempt("held-out loss", self.last_look)
        if trainer.skipped_steps:
            report.append(f"{trainer.skipped_steps} steps skipped: their gradient was not finite")
        unlabelled = getattr(self.corpus, "unlabelled", 0)
        if unlabelled:
            report.append(
                f"{unlabelled:,} rows had nothing to learn within --seq-len {self.settings['seq_len']} tokens"
            )
        seconds = self.elapsed()
        report += attempt("summary", lambda: self.summarise(seconds))
        pictures = [*attempt("pictures", self.draw_loss), *attempt("pictures", self.draw_attention)]
        report += dict.fromkeys(pictures)  # one reason is said once
        if stop.signal is None and trainer.t == self.settings["steps"]:
            report += attempt("sample", self.samples)
        report.append(f"{seconds:.0f} s in all; everything is in {self.folder.path}")
        if trainer.t == self.settings["steps"]:
            where, seq_len, held_out = self.folder.path, self.settings["seq_len"], bool(self.held_out)
            report += attempt("next steps", lambda: next_steps(where, self.corpus, seq_len, held_out))
        return report

    def last_look(self) -> list[str]:
        """Measure the held-out loss, unless that was done after this very step."""
        if self.held_out and (self.val_loss is None or not self.is_evaluated(self.trainer.t)):
            self.val_loss = None  # of an earlier step
            self.val_loss = self.look(self.trainer.t)
        if self.val_loss is None:
            return []
        oracle = self.corpus.oracle_loss
        against = "" if oracle is None else f" ({self.val_loss / oracle:.3f} times the oracle's {oracle:.4f})"
        return [f"held-out loss {self.val_loss:.4f} nats a token{against}"]

    def summarise(self, seconds: float) -> None:
        """Write summary.json."""
        trainer, corpus = self.trainer, self.corpus
        self.folder.write_summary(
            {
                "params": trainer.model.num_parameters(),
                "corpus": corpus.name,
                "steps": trainer.t,
                "val_loss": self.val_loss,
                "entropy_floor": corpus.entropy_floor,
                "oracle_loss": corpus.oracle_loss,
                "seconds": round(seconds, 3),
                "tokens_per_s": trainer.tokens / seconds,
                "skipped_steps": trainer.skipped_steps,
            }
        )

    def draw_loss(self) -> None:
        """Draw the loss curve."""
        corpus, metrics = self.corpus, self.folder.read_metrics()
        if metrics:
            plotting.loss_curve(
                self.folder.loss_picture,
                metrics,
                title=f"{short_name(corpus.name)} corpus, {self.model_name()}",
                entropy_floor=corpus.entropy_floor,
                oracle_loss=corpus.oracle_loss,
            )

    def draw_attention(self) -> None:
        """Draw, for the toy language, the head that copies."""
        if isinstance(self.corpus, ToyCorpus) and self.trainer.t:
            sentence = toy_report.a_quoting_sentence(np.random.default_rng(0), self.corpus.start)
            head = toy_report.copying_head(self.trainer.model, self.corpus.tokenizer, sentence)
            title = f"Layer {head.layer}, head {head.head}: {head.share:.0%} of its attention is on what to repeat"
            plotting.attention_map(self.folder.attention_picture, head.weights, head.tokens, title=title)

    def samples(self) -> list[str]:
        """Let the model write a little."""
        model, tokenizer, rng = self.trainer.model, self.corpus.tokenizer, np.random.default_rng(0)
        if isinstance(self.corpus, ToyCorpus):
            sentences = toy_report.write_sentences(model, tokenizer, 5, rng)
            return ["it writes:"] + [f"  {_mark(sentence, self.corpus.start)} {sentence}" for sentence in sentences]
        if not self.held_out:  # what it was trained on, it may know by heart
            return []
        prompt = _beginning(self.held_out[0])
        if not tokenizer.decode(prompt[0]).strip():
            return []
        room = model.config.max_position_embeddings - prompt.shape[1]
        end = model.config.eos_token_id if is_jsonl(self.corpus.name) else None
        ids = generate(
            model,
            prompt,
            max_new_tokens=min(200, room),
            eos_token_id=end,
            rng=rng,
            vocab_size=tokenizer.vocab_size,
        )
        text = tokenizer.decode(ids[0, prompt.shape[1] :]).strip("\n")
        lines = (text or "(nothing)").split("\n")[:SAMPLE_LINES] + (["..."] if text.count("\n") >= SAMPLE_LINES else [])
        if self.corpus.name.startswith("sft:"):
            begun = tokenizer.decode(prompt[0], skip_special_tokens=False)
            title = f"asked {begun.rpartition(QUESTION)[2].partition(QUESTION_END)[0]!r}, it answers:"
        else:
            title = f"it continues {tokenizer.decode(prompt[0])!r}:"
        return [title, *(f"  {line}" for line in lines)]


class _Helper(_Run):
    """The same sitting on a rank other than 0: it computes its share of each step, and neither speaks nor writes."""

    def announce_stop(self) -> None: ...

    def introduce(self, first: int) -> None: ...

    def log(self, report: StepReport) -> dict[str, Any]:
        return {}

    def finish(self, why: int | None, stop: StopRequest) -> list[str]:
        return []


def _beginning(batch: Batch) -> np.ndarray:
    """Return the ids (1, n) of row 0 up to what is learned; of a row learned from the start, half, at most 32."""
    labelled = np.flatnonzero(batch.targets[0] != IGNORE)
    first, length = (int(labelled[0]), len(labelled)) if len(labelled) else (0, batch.inputs.shape[1])
    return batch.inputs[:1, : first + 1 if first else min(32, max(1, length // 2))]


def _mark(sentence: str, start: toy_language.State) -> str:
    verdict = toy_language.check(sentence, start)
    return "\u2713" if verdict.grammatical and (verdict.copied or not verdict.has_quotation) else "\u2717"
