"""`train --profile`: some steps of the run that the flags describe, measured layer by layer. Nothing is written."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from numpy_minimind.backend import keep_freed_memory
from numpy_minimind.commands.common import device_asked_for
from numpy_minimind.commands.train_inputs import fresh_inputs
from numpy_minimind.commands.train_settings import fresh_settings
from numpy_minimind.measuring.profiler import EXPLANATION, profile_steps, table
from numpy_minimind.threads import one_blas_thread
from numpy_minimind.training.build import new_trainer, settled
from numpy_minimind.training.distributed import Ranks, launched

WARM_UP, STEPS = 2, 5


def profile(args: argparse.Namespace) -> dict[str, Any]:
    """Measure with one thread, and return the table as the command's report."""
    if args.resume:
        raise ValueError("--profile measures the run that the other flags describe, and --resume has none: drop one")
    if launched()[1] > 1:
        raise ValueError("--profile measures one process: start it without mpiexec")
    if device_asked_for(args) != "cpu":
        raise ValueError("--profile measures on the processor: its stopwatches do not wait for a GPU (--device cpu)")
    if (args.threads or 1) > 1:
        raise ValueError("--profile measures with one thread, so that times add up: leave --threads out")
    settings = replace(fresh_settings(args), threads=1)
    keep_freed_memory()
    with one_blas_thread():
        corpus, model = fresh_inputs(settings)
        trainer = new_trainer(settled(settings, model.config, Ranks()), corpus, model, Ranks())
        measured = profile_steps(trainer, STEPS, WARM_UP)
    config = trainer.model.config
    what = f"{config.num_hidden_layers} layers of width {config.hidden_size}, vocabulary {config.vocab_size:,}"
    size = f"{settings.batch_size} rows of at most {settings.seq_len} tokens"
    size += f", {settings.accumulate} times a step" if settings.accumulate > 1 else ""
    title = f"{what}; {size}; one thread; mean of {STEPS} steps after {WARM_UP} to warm up"
    return {"signal": None, "report": [title, "", *table(measured), "", EXPLANATION]}
