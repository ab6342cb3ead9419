"""What every rank of test_distributed.py's runs does: `mpiexec -n N python mpi_worker.py WHAT FOLDER`."""

import json
import signal
import sys
import time
from pathlib import Path

import numpy as np

from numpy_minimind.checking.points import V, padding_mask
from numpy_minimind.data.batches import Batch, BatchStream
from numpy_minimind.threads import Threads
from numpy_minimind.training.adamw import AdamW
from numpy_minimind.training.distributed import DistributedGradients, Ranks, digest_of, process_group
from numpy_minimind.training.parallel import ThreadedGradients
from numpy_minimind.training.trainer import Trainer
from tests.helpers import gradients_of, model_of

MOE = {"use_moe": True, "num_experts_per_tok": 2}
CASES = {
    "tied": {},
    "untied": {"tie_word_embeddings": False},
    "experts": {**MOE, "router_aux_loss_coef": 0.0},
    "auxiliary": {**MOE, "router_aux_loss_coef": 0.3},
}
ROWS = 5


def batch_of(rng: np.random.Generator) -> Batch:
    """Rows with unequal numbers of labels, some of them padded."""
    targets = np.where(rng.random((ROWS, 6)) < 0.3, -100, rng.integers(0, V, (ROWS, 6)))
    return Batch(rng.integers(0, V, (ROWS, 6)), targets, padding_mask(6, (0, 2, 0, 0, 0), (0, 0, 1, 0, 0)))


def gradients(ranks: Ranks, folder: Path) -> None:
    """Save losses and gradients of every case, of every rank."""
    batch = batch_of(np.random.default_rng(5))
    for case, fields in CASES.items():
        for dtype in ("float64", "float32"):
            for threads in (1, 2):
                model = model_of(**fields)
                ours = DistributedGradients(ThreadedGradients(model, Threads(threads)), model, ranks)
                ours(batch, batch.n_tokens)
                model.astype(dtype)  # replaces the gradients
                model.zero_grad()
                once = ours(batch, batch.n_tokens)
                saved = {name: gradient.copy() for name, gradient in gradients_of(model).items()}
                ours(batch, 50)
                saved.update({f"twice.{name}": gradient for name, gradient in gradients_of(model).items()})
                path = folder / f"{case}-{dtype}-{threads}-{ranks.rank}.npz"
                np.savez(path, numbers=np.array(once), **saved)


def training(ranks: Ranks, folder: Path) -> None:
    """Train from weights and a place in the data that differ from rank to rank until they are shared; save hashes."""
    model = model_of(np.float32, seed=ranks.rank, **CASES["auxiliary"])
    optimizer = AdamW(model.named_parameters(), lr=1e-2)
    stream = BatchStream(batch_of, np.random.default_rng(ranks.rank))
    threads = Threads(2)
    gradients_of = DistributedGradients(ThreadedGradients(model, threads), model, ranks)
    settings = {"steps": 9, "lr": 1e-2, "clip": 0.5, "accumulate": 2}
    trainer = Trainer(model, optimizer, stream, threads=threads, gradients_of=gradients_of, **settings)
    ranks.broadcast(trainer)
    digests = [digest_of(model)]
    for _ in range(8):
        trainer.step()
        digests.append(digest_of(model))
        ranks.require_same("set of weights", digests[-1])
    (folder / f"{ranks.rank}.json").write_text(json.dumps(digests), encoding="utf-8")


def agreements(ranks: Ranks, folder: Path) -> None:
    """What only some ranks know reaches all, also when the first takes its time."""
    assert ranks.agree(None) is None
    assert ranks.agree(signal.SIGINT if ranks.rank == 1 else None) == signal.SIGINT
    assert ranks.agree(signal.SIGINT + ranks.rank) == signal.SIGINT + ranks.size - 1
    called = []
    ranks.run_on_rank_0(lambda: (time.sleep(0.5), called.append(ranks.rank)))
    assert called == ([0] if ranks.rank == 0 else [])
    try:
        ranks.run_on_rank_0(lambda: 1 / 0)
    except ZeroDivisionError:
        called.append("refused")
    try:
        ranks.require_same("text", str(min(ranks.rank, 1)))
    except ValueError as error:
        assert str(error) == f"rank 1 of {ranks.size} has another text than rank 0: 1, not 0"
        called.append("different")
    assert called[-2:] == ["refused", "different"]
    assert ranks.threads() >= 1
    print("only rank 0 says this")
    (folder / f"{ranks.rank}.json").write_text("[]", encoding="utf-8")


def failure(ranks: Ranks, folder: Path) -> None:
    """The last rank fails while the others wait for it."""
    if ranks.rank == ranks.size - 1:
        raise ValueError("this machine has no such file")
    ranks.agree(None)


def bug(ranks: Ranks, folder: Path) -> None:
    """Rank 0 fails in a way that nobody has thought of."""
    if ranks.rank == 0:
        raise KeyError("nobody thought of this")
    ranks.agree(None)


if __name__ == "__main__":
    with process_group() as all_ranks:
        globals()[sys.argv[1]](all_ranks, Path(sys.argv[2]))
