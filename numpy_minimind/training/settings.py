"""The settings of a training run: their defaults, and what a resume file holds of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from numpy_minimind.data.jsonl_corpus import KINDS

# What a corpus changes. The toy language is learned sooner in many small steps.
CORPUS_DEFAULTS: dict[str, dict[str, Any]] = {
    "toy": {"steps": 1200, "batch_size": 8},
    **{name: {"seq_len": kind.seq_len} for name, kind in KINDS.items()},
}
INIT_FROM_DEFAULTS = {"lr": 1e-5, "preset": None, "tokenizer": None}  # of that model; and it is to change gently


@dataclass(frozen=True)
class TrainSettings:
    """What is chosen once for a whole run, by the names of `train`'s flags.

    Raises
    ------
    ValueError
        For a number that is too small.
    """

    corpus: str = "toy"
    tokenizer: str | None = "char"  # None: that of the model in `init_from`
    preset: str | None = "toy"
    set: tuple[str, ...] = ()  # FIELD=VALUE, of the config
    init_from: str | None = None
    steps: int = 1500
    batch_size: int = 16
    seq_len: int = 128
    accumulate: int = 1
    lr: float = 2e-3
    warmup: int = 20
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 0
    threads: int | None = None  # None: as many as are worth it, see `training.build.settled`
    device: str | None = None
    checkpoint_activations: bool = False
    log_every: int = 10
    eval_every: int = 200
    save_every: int = 500

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "seq_len", "accumulate", "log_every", "eval_every", "save_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{flag(name)} must be at least 1, got {getattr(self, name)}")
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"--threads must be at least 1, got {self.threads}")
        if self.seed < 0:
            raise ValueError(f"--seed must not be negative, got {self.seed}")

    @classmethod
    def of_new_run(cls, given: Mapping[str, Any]) -> TrainSettings:
        """Return what is given and, for the rest, the defaults: of the corpus, or of going on from a model."""
        if "init_from" in given and "preset" in given:
            raise ValueError("--preset makes a new model and --init-from continues one: give one of them")
        settings = {**defaults_of(given.get("corpus", cls.corpus), "init_from" in given), **given}
        if "steps" in given and "warmup" not in given:
            settings["warmup"] = min(cls.warmup, settings["steps"] // 10)
        return cls.from_json(settings)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> TrainSettings:
        """Return what `to_json` gave, or an earlier program's, which knew fewer settings.

        Raises
        ------
        ValueError
            For one that is not known here.
        """
        unknown = [name for name in stored if name not in DEFAULTS]
        if unknown:
            raise ValueError(f"the run has settings that this version does not know: {', '.join(unknown)}")
        return cls(**{**stored, "set": tuple(stored.get("set", ()))})

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON has them, in their order."""
        return {**asdict(self), "set": list(self.set)}

    @property
    def model_name(self) -> str:
        """What the model is called: its preset, or where it comes from."""
        if self.init_from is None:
            return f"{self.preset} model"
        folder = Path(self.init_from)
        return f"model of {folder.parent.name if folder.name == 'model' else folder.name}"

    def is_logged(self, step: int) -> bool:
        """Whether an uninterrupted run logs this step."""
        return step == 1 or step % self.log_every == 0 or self.is_evaluated(step)

    def is_evaluated(self, step: int) -> bool:
        """Whether an uninterrupted run looks at held-out text after this step."""
        return step == self.steps or step % self.eval_every == 0


DEFAULTS = TrainSettings().to_json()


def defaults_of(corpus: str, from_model: bool) -> dict[str, Any]:
    """Return the defaults of a run on this corpus, with a new model or from one that there is."""
    return {
        **DEFAULTS,
        **CORPUS_DEFAULTS.get(corpus.partition(":")[0], {}),
        **(INIT_FROM_DEFAULTS if from_model else {}),
    }


def flag(name: str) -> str:
    """Return the flag that gives a setting."""
    return f"--{name.replace('_', '-')}"
