"""The matrix products of a model, listed: what is left of a step when everything else costs nothing.

Each product names its operands. Weights, and activations that a backward reads again, are arrays of their own in every
layer, as in the model; what a product writes is scratch that the next layer overwrites.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from numpy_minimind.config import MiniMindConfig
from numpy_minimind.sharing import even_sizes


class Operand(NamedTuple):
    """A factor of a product. Two of the same name and layer are the same array."""

    name: str
    layer: int | None  # None: scratch, or outside the blocks
    shape: tuple[int, ...]  # as it lies in memory
    is_weight: bool = False
    transposed: bool = False

    @property
    def T(self) -> Operand:
        return self._replace(transposed=not self.transposed)

    @property
    def rows(self) -> int:
        return self.shape[-1 if self.transposed else -2]

    @property
    def columns(self) -> int:
        return self.shape[-2 if self.transposed else -1]

    @property
    def gradient(self) -> Operand:
        """Of the same shape; a weight's stays until the optimizer comes, an activation's is soon overwritten."""
        return Operand("d" + self.name, self.layer if self.is_weight else None, self.shape)


class Product(NamedTuple):
    """out = a @ b, over stacks of matrices if there are leading axes."""

    part: str  # of the model, as `accounting.flops` names it
    a: Operand
    b: Operand
    out: Operand

    @property
    def flops(self) -> int:
        """Two for each pair of numbers, a multiplication and an addition."""
        return 2 * math.prod(self.a.shape) * self.b.columns


def product(part: str, a: Operand, b: Operand) -> Product:
    """Return a @ b, written to scratch."""
    return Product(part, a, b, Operand(f"{a.name} {b.name}", None, (*a.shape[:-2], a.rows, b.columns)))


def backward(p: Product) -> tuple[Product, Product]:
    """Return the two products behind one: dout bᵀ for a, and aᵀ dout for b, in the layout of b."""
    dout = p.out.gradient
    db = (dout.T, p.a) if p.b.transposed else (p.a.T, dout)
    return Product(p.part, dout, p.b.T, p.a.gradient), Product(p.part, *db, p.b.gradient)


def forward_products(
    config: MiniMindConfig, batch: int, tokens: int, keys: int | None = None, logits: int | None = None
) -> list[Product]:
    """List the products of a forward pass.

    Parameters
    ----------
    config : MiniMindConfig
        With experts, every expert gets the same number of tokens (to one).
    batch, tokens : int
        B and T.
    keys : int, optional
        S, those in the cache and the new ones; by default T.
    logits : int, optional
        Tokens of each row that go through the head; by default T.
    """
    S, heads = tokens if keys is None else keys, tokens if logits is None else logits
    blocks = [p for l in range(config.num_hidden_layers) for p in _block(config, l, batch, tokens, S)]
    hidden = Operand("hidden", None, (batch * heads, config.hidden_size))
    return [*blocks, _linear("lm_head", hidden, "table", None, config.vocab_size)]


def training_products(config: MiniMindConfig, batch: int, tokens: int) -> list[Product]:
    """List the products of a training step, in their order."""
    forward = forward_products(config, batch, tokens)
    return forward + [p for f in reversed(forward) for p in backward(f)]


def _block(config: MiniMindConfig, layer: int, B: int, T: int, S: int) -> Iterator[Product]:
    """Yield the products of one block, forward."""
    D, N, K, H = config.hidden_size, config.num_attention_heads, config.num_key_value_heads, config.head_dim
    x = Operand("x", layer, (B * T, D))
    for name, heads in (("q_proj", N), ("k_proj", K), ("v_proj", K)):
        yield _linear("projections", x, name, layer, heads * H)
    queries = N // K * T  # rows that share a key head
    q, p = Operand("q", layer, (B, K, queries, H)), Operand("p", layer, (B, K, queries, S))
    yield product("attention", q, Operand("k", layer, (B, K, S, H)).T)
    yield product("attention", p, Operand("v", layer, (B, K, S, H)))
    yield _linear("projections", Operand("o", layer, (B * T, N * H)), "o_proj", layer, D)
    yield from _feed_forward(config, layer, B * T)


def _feed_forward(config: MiniMindConfig, layer: int, M: int) -> Iterator[Product]:
    """Yield the products of SwiGLU, or of the router and its experts."""
    D, F, served = config.hidden_size, config.intermediate_size, [M]
    if config.use_moe:
        F, served = config.moe_intermediate_size, even_sizes(M * config.num_experts_per_tok, config.num_experts)
        yield _linear("mlp", Operand("m", layer, (M, D)), "router", layer, config.num_experts)
    for e, m in enumerate(served):
        if m:
            x, h = Operand(f"m{e}", layer, (m, D)), Operand(f"h{e}", layer, (m, F))
            yield _linear("mlp", x, f"gate_proj{e}", layer, F)
            yield _linear("mlp", x, f"up_proj{e}", layer, F)
            yield _linear("mlp", h, f"down_proj{e}", layer, D)


def _linear(part: str, x: Operand, name: str, layer: int | None, out: int) -> Product:
    """Return x @ W.T."""
    return product(part, x, Operand(name, layer, (out, x.shape[-1]), is_weight=True).T)
