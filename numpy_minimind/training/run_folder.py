"""The folder of a training run: metrics, summary, loss picture, model, and the one file to resume from."""

from __future__ import annotations

import errno
import json
import math
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from numpy_minimind.checkpoint.pretrained import save_pretrained
from numpy_minimind.checkpoint.resume import load_resume, save_resume
from numpy_minimind.checkpoint.tensors import library
from numpy_minimind.files import METRICS, os_error, write_bytes, write_json, write_text
from numpy_minimind.model import MiniMindForCausalLM
from numpy_minimind.text.tokenizer import Tokenizer
from numpy_minimind.threads import blas_name, blas_threads
from numpy_minimind.training.settings import TrainSettings


class RunState(NamedTuple):
    """What a resume file holds beside the arrays. Earlier programs wrote fewer of these: what has a default."""

    settings: TrainSettings
    trainer: dict[str, Any]  # the numbers of `Trainer.state_dict`
    environment: dict[str, Any]
    fingerprint: str  # of the corpus
    tokenizer: str | None = None  # its fingerprint
    beside: Mapping[str, str] = MappingProxyType({})  # paths among the settings, as they are seen from the folder
    config: Mapping[str, Any] = MappingProxyType({})  # of the model
    seconds: float = 0.0  # of training

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> RunState:
        """Return what `to_json` gave."""
        known = {name: stored[name] for name in cls._fields if name in stored}
        return cls(**{**known, "settings": TrainSettings.from_json(stored["settings"])})

    def to_json(self) -> dict[str, Any]:
        """Return it as a resume file has it."""
        return {**self._asdict(), "settings": self.settings.to_json()}


class RunFolder:
    """Files of one run under one folder.

    Parameters
    ----------
    path : path
    """

    def __init__(self, path: str | Path) -> None:
        if not str(path):
            raise ValueError("--out needs the name of a folder")
        self.path = Path(path).expanduser()
        self.metrics = self.path / METRICS
        self.summary = self.path / "summary.json"
        self.loss_picture = self.path / "loss.png"
        self.attention_picture = self.path / "attention.png"
        self.model = self.path / "model"
        self.resume = self.path / "resume.safetensors"

    def create(self, overwrite: bool) -> None:
        """Make the folder, or with `overwrite` take one that is in use.

        Nothing of an earlier run is lost before there is something to put in its place: the first `save` replaces its
        checkpoint and its model, `trim` its metrics, the end of the run the rest. Files of others stay.

        Raises
        ------
        ValueError
            When it is in use and `overwrite` is False, or when it is a file.
        OSError
            When it cannot be written.
        ImportError
            Without the library that checkpoints need.
        """
        library()  # says now, and not at the first checkpoint, if there is nothing to write it with
        if self.path.is_file():
            raise ValueError(f"{self.path} is a file: --out needs a folder")
        if not overwrite and self._in_use():
            resume = ", or --resume to continue that run" if self.resume.exists() else ""
            raise ValueError(
                f"{self.path} is already in use: choose another folder{resume}, or --overwrite to start afresh"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        self.metrics.touch()  # says now, not after an hour, that the folder cannot be written

    def _in_use(self) -> bool:
        """Whether it holds more than the empty metrics file of a run that never began."""
        return self.path.exists() and any(path != self.metrics or path.stat().st_size for path in self.path.iterdir())

    # -- metrics -------------------------------------------------------------------------------------------------

    def log(self, line: Mapping[str, Any]) -> None:
        """Append one object to metrics.jsonl."""
        with open(self.metrics, "a", encoding="utf-8") as file:
            file.write(json.dumps(_finite(line)) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the logged steps; a line that is none (cut short by a crash, edited by hand) is left out."""
        return [step for line in self._metrics_lines() if (step := _logged_step(line)) is not None]

    def _metrics_lines(self) -> list[bytes]:
        return self.metrics.read_bytes().splitlines(keepends=True) if self.metrics.exists() else []

    def trim(self, keep: Callable[[dict[str, Any]], bool]) -> int:
        """Drop the logged steps for which `keep` is False; return how many whole lines were no logged steps.

        These are dropped as well, and the file with them is kept beside it, as metrics.damaged.
        """
        before = self._metrics_lines()
        damaged = [line for line in before if line.endswith(b"\n") and _logged_step(line) is None]
        if damaged:
            write_bytes(self.metrics.with_suffix(".damaged"), b"".join(before))
        write_text(self.metrics, "".join(json.dumps(line) + "\n" for line in self.read_metrics() if keep(line)))
        return len(damaged)

    def drop_reports(self) -> None:
        """Remove summary and pictures, which are of another moment."""
        for path in (self.summary, self.loss_picture, self.attention_picture):
            if not path.is_dir():
                path.unlink(missing_ok=True)

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def save(
        self, model: MiniMindForCausalLM, tokenizer: Tokenizer, arrays: Mapping[str, np.ndarray], state: RunState
    ) -> None:
        """Write the model folder and the resume file, each atomically.

        The model comes first: a run that can be resumed has a tokenizer.
        """
        save_pretrained(model, self.model, tokenizer=tokenizer)
        save_resume(self.resume, arrays, state.to_json())

    def load(self) -> tuple[dict[str, np.ndarray], RunState]:
        """Read the resume file.

        Raises
        ------
        FileNotFoundError, ValueError
            When there is none, or it is damaged.
        """
        if not self.resume.exists():
            begin = "leave out --resume to begin one"
            if self.model.exists():
                begin = f"it holds a model, with which --init-from {self.model} begins one in another folder"
            raise os_error(errno.ENOENT, f"{self.path} holds no run to resume; {begin}")
        arrays, state = load_resume(self.resume)
        if not {"settings", "trainer", "environment", "fingerprint"} <= state.keys():
            raise ValueError(f"{self.resume} was not written by a training run: there is nothing in it to resume")
        return arrays, RunState.from_json(state)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json."""
        write_json(self.summary, _finite(summary))


def _logged_step(line: bytes) -> dict[str, Any] | None:
    """Return the object of a line of metrics.jsonl, None when it is no logged step."""
    try:
        step = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return step if isinstance(step, dict) and isinstance(step.get("step"), int) else None


def _finite(line: Mapping[str, Any]) -> dict[str, Any]:
    """Replace numbers that JSON does not have by null."""
    return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in line.items()}


def environment() -> dict[str, Any]:
    """Say on what bit-for-bit equality depends: versions, the BLAS library and its threads, the machine."""
    return {
        "numpy": np.__version__,
        "blas": blas_name(),
        "blas_threads": blas_threads(),
        "machine": platform.machine(),
        "system": platform.system(),
    }
