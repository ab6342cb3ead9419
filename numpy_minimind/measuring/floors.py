"""The floor: the time of the products alone, on arrays that are there already.

No program that computes these products with the same library can be faster. How they are cut makes a difference: the
library's threads on the whole batch, or a thread of ours for each share of the batch. The floor is the better one.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from numpy_minimind.backend import get_array_module, synchronize, to_device
from numpy_minimind.config import MiniMindConfig
from numpy_minimind.products import Operand, Product, forward_products, training_products
from numpy_minimind.sharing import even_sizes
from numpy_minimind.threads import Threads, one_blas_thread

Arrays = dict[tuple[str, int | None], Any]


class Floor:
    """Products, cut into one list a thread, ready to run.

    Parameters
    ----------
    shards : sequence of lists of Product
        One list: on the caller's thread, with the BLAS library's own threads. Several: a thread each, with one BLAS
        thread.
    weights : dict
        Arrays of the weights, shared by all threads (and by several floors); filled on the way.
    device : str
        Where the arrays are.

    Attributes
    ----------
    by_part : dict from part to seconds
        Of the last call, the mean of the threads; on a GPU, which computes later than it is told to, they say nothing.
    """

    def __init__(self, shards: Sequence[Sequence[Product]], weights: Arrays | None = None, device: str = "cpu") -> None:
        weights = {} if weights is None else weights
        self.threads = Threads(len(shards))
        self.shards = [prepared(products, weights, device) for products in shards]
        self.by_part: dict[str, float] = {}

    def __call__(self) -> float:
        """Compute all products; return the seconds."""
        began = time.perf_counter()
        with one_blas_thread(len(self.shards) > 1):
            parts = self.threads.map(run, self.shards)
        seconds = time.perf_counter() - began
        self.by_part = {part: sum(p[part] for p in parts) / len(parts) for part in parts[0]}
        return seconds


def prepared(products: Sequence[Product], weights: Arrays, device: str = "cpu") -> list[tuple[str, Any, Any, Any]]:
    """Return (part, a, b, out) of arrays for each product."""
    arrays: Arrays = {}

    def array(operand: Operand) -> Any:
        shared = weights if operand.is_weight else arrays
        key = (operand.name, operand.layer)
        if key not in shared:
            shared[key] = to_device(np.random.default_rng(len(shared)).random(operand.shape, np.float32), device)
        return shared[key].swapaxes(-1, -2) if operand.transposed else shared[key]

    return [(p.part, array(p.a), array(p.b), array(p.out)) for p in products]


def run(products: Sequence[tuple[str, Any, Any, Any]]) -> Mapping[str, float]:
    """Compute the products; return the seconds of each part."""
    seconds: defaultdict[str, float] = defaultdict(float)
    matmul = get_array_module(products[0][1]).matmul
    for part, a, b, out in products:
        began = time.perf_counter()
        matmul(a, b, out=out)
        seconds[part] += time.perf_counter() - began
    synchronize(products[-1][-1])
    return seconds


def training_floors(
    config: MiniMindConfig, batch: int, tokens: int, threads: int, device: str = "cpu"
) -> dict[str, Floor]:
    """Return the floor of a training step, for each way to cut it."""
    return _cut(lambda rows: training_products(config, rows, tokens), batch, threads, device)


def prefill_floors(
    config: MiniMindConfig, batch: int, tokens: int, threads: int, device: str = "cpu"
) -> dict[str, Floor]:
    """Return the floor of reading a prompt, the logits of its last token included, for each way to cut it."""
    return _cut(lambda rows: forward_products(config, rows, tokens, logits=1), batch, threads, device)


def _cut(products: Callable[[int], list[Product]], batch: int, threads: int, device: str) -> dict[str, Floor]:
    """Return {"whole": all rows at once} and, if there is more than one of both, "shards": some rows a thread."""
    weights: Arrays = {}
    floors = {"whole": Floor([products(batch)], weights, device)}
    if min(threads, batch) > 1:
        floors["shards"] = Floor([products(rows) for rows in even_sizes(batch, min(threads, batch))], weights)
    return floors


class DecodeFloor:
    """Reading every weight once a token, and the cache: matrix-vector products alone.

    Parameters
    ----------
    config : MiniMindConfig
    batch : int
    prompt, tokens : int
        The cache grows from one to the sum of both. Here it stays at the middle: the mean work is the same.
    device : str

    Attributes
    ----------
    bytes_per_step : int
        Read for one new token of every row.
    """

    def __init__(self, config: MiniMindConfig, batch: int, prompt: int, tokens: int, device: str = "cpu") -> None:
        products = forward_products(config, batch, 1, keys=prompt + (tokens + 1) // 2)
        self.tokens = tokens
        self.bytes_per_step = 4 * sum(int(np.prod(p.b.shape)) for p in products)
        triples = [(a, b, out) for _, a, b, out in prepared(products, {}, device)]
        # W @ x for a single x: many times faster than x @ W.T with one row.
        self.triples = [(b.T, a[0], out[0]) if a.ndim == 2 and len(a) == 1 else (a, b, out) for a, b, out in triples]

    def __call__(self) -> float:
        """Compute the products of all tokens; return the seconds."""
        matmul = get_array_module(self.triples[0][0]).matmul
        began = time.perf_counter()
        for _ in range(self.tokens):
            for a, b, out in self.triples:
                matmul(a, b, out=out)
        synchronize(self.triples[-1][-1])
        return time.perf_counter() - began
