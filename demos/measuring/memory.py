"""The memory of a training step, predicted by formula and measured: the table of docs/en/memory.md.

    python demos/measuring/memory.py                        every line; a minute or two, and 5 GB
    python demos/measuring/memory.py --presets tiny,toy     some of them, in seconds

Measured is the peak of tracemalloc, which sees every array of NumPy's. Threads reach their largest moments together
only by chance, so with two of them the largest of several steps is taken.
"""

import argparse
import sys
import tracemalloc

import numpy as np

from numpy_minimind import MiniMindConfig, MiniMindForCausalLM, accounting
from numpy_minimind.data.batches import Batch, BatchStream
from numpy_minimind.training.adamw import AdamW
from numpy_minimind.training.trainer import Trainer

SIZES = {  # preset: (rows, tokens) of its lines; the small ones have a vocabulary of 256
    "tiny": [(8, 128)],
    "toy": [(16, 128), (4, 512)],
    "toy-moe": [(16, 128)],
    "minimind3": [(2, 512)],
    "minimind3-moe": [(2, 512)],
}
WAYS = [(1, False), (2, False), (1, True)]  # threads, blocks computed again
HEAD = ("preset", "rows x tokens", "threads", "blocks computed again", "predicted", "measured", "difference")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", default=",".join(SIZES), help="of %(default)s")
    chosen = parser.parse_args(argv).presets.split(",")
    if unknown := [name for name in chosen if name not in SIZES]:
        parser.error(f"{', '.join(unknown)} is not one of {', '.join(SIZES)}")
    measured(MiniMindConfig.preset("tiny", vocab_size=256), 1, 8, 1, False, 1)  # what is imported on first use
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    for preset in chosen:
        config = MiniMindConfig.preset(preset, **({} if preset.startswith("minimind3") else {"vocab_size": 256}))
        for rows, tokens in SIZES[preset]:
            for threads, again in WAYS:
                predicted = accounting.memory(config, rows, tokens, 4, threads, again)["training"]
                peak = measured(config, rows, tokens, threads, again, steps=6 if threads > 1 else 1)
                how = f"{preset} | {rows} x {tokens} | {threads} | {'yes' if again else 'no'}"
                mib = f"{predicted / 2**20:,.1f} | {peak / 2**20:,.1f} | {round(predicted / peak - 1, 3) + 0:+.1%}"
                print(f"| {how} | {mib} |", flush=True)
    return 0


def measured(config, rows, tokens, threads, checkpoint_activations, steps):
    """Return the peak bytes of `steps` training steps, after one that makes the gradients."""

    def draw(rng):
        ids = rng.integers(config.vocab_size, size=(rows, tokens))
        return Batch(ids, ids, None)

    tracemalloc.start()
    model = MiniMindForCausalLM(config, rng=np.random.default_rng(0))
    model.model.checkpoint_activations = checkpoint_activations
    batches = BatchStream(draw, np.random.default_rng(1))
    trainer = Trainer(model, AdamW(model.named_parameters()), batches, steps=steps + 1, lr=1e-3, threads=threads)
    trainer.step()
    tracemalloc.reset_peak()
    for _ in range(steps):
        trainer.step()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


if __name__ == "__main__":
    sys.exit(main())
