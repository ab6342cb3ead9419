"""What is made of a run when its steps are done: the last look at held-out text, summary.json, pictures, samples."""

from __future__ import annotations

from typing import Any

from numpy_minimind import plotting
from numpy_minimind.data.corpora import short_name
from numpy_minimind.messages import attempt
from numpy_minimind.training.interrupt import StopRequest
from numpy_minimind.training.run import Run


def report(run: Run, stop: StopRequest) -> list[str]:
    """Write summary and pictures; return lines for the user.

    All is saved by now: a part that fails is named and costs nothing else. Whoever has asked to stop is not kept
    waiting for samples.
    """
    lines = attempt("held-out loss", lambda: last_look(run))
    if run.trainer.skipped_steps:
        lines.append(f"{run.trainer.skipped_steps} steps skipped: their gradient was not finite")
    if run.corpus.unlabelled:
        lines.append(
            f"{run.corpus.unlabelled:,} rows had nothing to learn within --seq-len {run.settings.seq_len} tokens"
        )
    seconds = run.elapsed()
    lines += attempt("summary", lambda: run.folder.write_summary(summary(run, seconds)))
    pictures = [*attempt("pictures", lambda: draw_loss(run)), *attempt("pictures", lambda: draw_attention(run))]
    lines += dict.fromkeys(pictures)  # one reason is said once
    if stop.signal is None and run.is_complete:
        lines += attempt("sample", lambda: run.corpus.samples(run.trainer.model, run.held_out))
    return [*lines, f"{seconds:.0f} s in all; everything is in {run.folder.path}"]


def last_look(run: Run) -> list[str]:
    """Measure the held-out loss, unless that was done after this very step."""
    if not run.held_out:
        return []
    loss, oracle = run.val_loss, run.corpus.oracle_loss
    if loss is None or not run.settings.is_evaluated(run.trainer.t):
        run.val_loss = None  # of an earlier step
        loss = run.look()
    against = "" if oracle is None else f" ({loss / oracle:.3f} times the oracle's {oracle:.4f})"
    return [f"held-out loss {loss:.4f} nats a token{against}"]


def summary(run: Run, seconds: float) -> dict[str, Any]:
    """Return what summary.json holds."""
    trainer, corpus = run.trainer, run.corpus
    return {
        "params": trainer.model.num_parameters(),
        "corpus": corpus.name,
        "steps": trainer.t,
        "val_loss": run.val_loss,
        "entropy_floor": corpus.entropy_floor,
        "oracle_loss": corpus.oracle_loss,
        "seconds": round(seconds, 3),
        "tokens_per_s": trainer.tokens / seconds,
        "skipped_steps": trainer.skipped_steps,
    }


def draw_loss(run: Run) -> None:
    """Draw the loss curve."""
    metrics = run.folder.read_metrics()
    if metrics:
        plotting.loss_curve(
            run.folder.loss_picture,
            metrics,
            title=f"{short_name(run.corpus.name)} corpus, {run.settings.model_name}",
            entropy_floor=run.corpus.entropy_floor,
            oracle_loss=run.corpus.oracle_loss,
        )


def draw_attention(run: Run) -> None:
    """Draw what the corpus has to show of a model that has learned something of it."""
    shown = run.corpus.attention(run.trainer.model) if run.trainer.t else None
    if shown is not None:
        plotting.attention_map(run.folder.attention_picture, shown.weights, shown.tokens, title=shown.title)
