"""Train a model on the toy language, on Python's documentation, or on a text, texts or conversations of yours.

Everything goes into the folder --out: metrics.jsonl, summary.json, loss.png, model/ (for generate, eval and
from_pretrained), and one file to --resume from, bit for bit. Started by `mpiexec -n N`, N processes share each batch.
"""

from __future__ import annotations

import argparse
import shlex
import signal
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from numpy_minimind.backend import keep_freed_memory
from numpy_minimind.commands.common import add_device
from numpy_minimind.commands.nearby import suggesting
from numpy_minimind.commands.next_steps import next_steps
from numpy_minimind.commands.progress import Terminal, say, warn
from numpy_minimind.commands.train_inputs import fresh_inputs, resumed_inputs
from numpy_minimind.commands.train_profile import profile
from numpy_minimind.commands.train_settings import fresh_settings, resumed_settings
from numpy_minimind.config import PRESETS
from numpy_minimind.data.corpora import short_name
from numpy_minimind.messages import attempt
from numpy_minimind.threads import one_blas_thread
from numpy_minimind.training.build import new_trainer, settled
from numpy_minimind.training.distributed import Ranks, process_group
from numpy_minimind.training.interrupt import StopRequest
from numpy_minimind.training.run import Reporter, Run, environment_of
from numpy_minimind.training.run_folder import RunFolder, RunState
from numpy_minimind.training.run_report import report
from numpy_minimind.training.settings import CORPUS_DEFAULTS, DEFAULTS, INIT_FROM_DEFAULTS

SIGNALS: dict[int, str] = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


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
        if args.resume and args.overwrite:
            raise ValueError("--resume continues a run and --overwrite deletes it: give one of them")
        if args.stop_after is not None and args.stop_after < 1:
            raise ValueError(f"--stop-after must be at least 1, got {args.stop_after}")
        keep_freed_memory()
        with one_blas_thread():
            result = _train(args, RunFolder(args.out), ranks)
    for line in result.pop("report"):  # here, where a terminal that was closed is no error
        say(line)
    return result


def _train(args: argparse.Namespace, folder: RunFolder, ranks: Ranks) -> dict[str, Any]:
    this_run, notes = _prepared(args, folder, ranks)
    with StopRequest(this_run.announce_stop) as stop:
        if not args.resume:
            ranks.run_on_rank_0(lambda: folder.create(args.overwrite))
        _introduce(this_run, notes)
        why = this_run.go(stop, args.stop_after)
        lines: list[str] = []
        if ranks.rank == 0:
            lines = [*_how_to_go_on(this_run, why), *report(this_run, stop), *_what_to_try(this_run)]
        return {"signal": ranks.agree(stop.signal), "report": lines}


def render(result: dict[str, Any]) -> str:
    """Return the table of --profile; of a training all has been said."""
    return "\n".join(result.get("report", []))


def exit_code(result: dict[str, Any]) -> int:
    """Return 128 + the number of the signal that ended the run, else 0."""
    return 128 + result["signal"] if result["signal"] else 0


def _prepared(args: argparse.Namespace, folder: RunFolder, ranks: Ranks) -> tuple[Run, tuple[str, ...]]:
    """Return the run that the flags name, new or to be resumed, and what of its text does not reach the model."""
    state: RunState | None = None
    if args.resume:
        with suggesting(folder.path, lambda place: RunFolder(place).resume.is_file()):
            arrays, state = folder.load()
        settings = resumed_settings(args, state, folder)
        corpus, model = resumed_inputs(settings, state, folder)
    else:
        settings = fresh_settings(args)
        corpus, model = fresh_inputs(settings)
    settings = settled(replace(settings, corpus=corpus.name), model.config, ranks)
    trainer = new_trainer(settings, corpus, model, ranks)
    ranks.require_same("text", corpus.fingerprint)
    ranks.require_same("tokenizer", corpus.tokenizer.fingerprint())
    left_out = corpus.left_out(settings.seq_len)
    if state is None:
        left_out.require_known()
    else:
        _warn_of_changes({"processes": "1", **state.environment}, environment_of(ranks))
        trainer.load_state_dict(arrays, state.trainer)
    ranks.broadcast(trainer)
    reporter = Terminal() if ranks.rank == 0 else Reporter()
    seconds = 0.0 if state is None else state.seconds
    return Run(folder, settings, corpus, trainer, ranks, reporter, seconds), left_out.notes


def _warn_of_changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name, value in then.items():
        if now.get(name) != value:
            warn(f"{name} was {value} and is {now.get(name)}: the result may differ in the last bits")


def _introduce(this_run: Run, notes: tuple[str, ...]) -> None:
    """Say what is about to happen."""
    model, first, steps = this_run.trainer.model, this_run.trainer.t, this_run.settings.steps
    say(
        f"{this_run.settings.model_name}, {model.num_parameters():,} parameters, vocabulary "
        f"{model.config.vocab_size}; corpus {short_name(this_run.corpus.name)}; "
        + (f"steps {first + 1} to {steps}" if first < steps else f"all {steps} steps are done already")
    )
    for note in (*this_run.corpus.notes, *notes):
        warn(note)
    if not this_run.held_out:
        warn("the corpus is too short to hold anything out, so there will be no val_loss")


def _how_to_go_on(this_run: Run, why: int | None) -> list[str]:
    """Say it of a run that ended early: `why` is the signal, if it was one."""
    if this_run.is_complete:
        return []
    stopped = "stopped" if why is None else f"stopped by {SIGNALS.get(why, why)}"
    command = f"python -m numpy_minimind train --resume --out {shlex.quote(str(this_run.folder.path))}"
    return [f"{stopped} after step {this_run.trainer.t} of {this_run.settings.steps}; go on with\n  {command}"]


def _what_to_try(this_run: Run) -> list[str]:
    """Return commands for a run that is complete."""
    if not this_run.is_complete:
        return []
    where, seq_len, held_out = this_run.folder.path, this_run.settings.seq_len, bool(this_run.held_out)
    return attempt("next steps", lambda: next_steps(where, this_run.corpus, seq_len, held_out))
