"""MiniMind-3: embedding, blocks, final norm, and the head that turns hidden states into logits.

`MiniMindModel` is the decoder; `MiniMindForCausalLM` adds the (tied) head, the loss and generation.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from numpy_minimind.backend import Array, get_array_module, read_numbers, to_numpy
from numpy_minimind.config import MiniMindConfig
from numpy_minimind.layer import Context, Layer
from numpy_minimind.layers.block import Block, BlockSaved
from numpy_minimind.layers.cross_entropy import CrossEntropyLoss, check_range, check_targets
from numpy_minimind.layers.embedding import Embedding, EmbeddingSaved
from numpy_minimind.layers.kv_cache import KVCache
from numpy_minimind.layers.linear import Linear, LinearSaved
from numpy_minimind.layers.linear_cross_entropy import LinearCrossEntropy
from numpy_minimind.layers.rmsnorm import RMSNorm, RMSNormSaved
from numpy_minimind.layers.rope import RotaryEmbedding
from numpy_minimind.shapes import HEAD, TABLE

# Tokens from which FlashAttention is faster than the table of all scores, as measured on its page.
LONG = 128


class ModelOutput(NamedTuple):
    """What `MiniMindModel.forward` returns."""

    hidden: Array  # (B, T, D)
    aux_loss: Array  # () summed over the blocks


class BlockInput(NamedTuple):
    """What is kept of a block that is computed a second time on the way back."""

    x: Array  # (B, T, D)
    context: Context


class ModelSaved(NamedTuple):
    """What `MiniMindModel.backward` needs. The list is emptied by `loss_and_grad`, which owns what it saved."""

    embed_tokens: EmbeddingSaved
    blocks: list[Any]  # BlockSaved each, or BlockInput with checkpoint_activations
    norm: RMSNormSaved


class CausalLMOutput(NamedTuple):
    """What `MiniMindForCausalLM.forward` returns."""

    logits: Array  # (B, T, V)
    aux_loss: Array  # () summed over the blocks; 0 for a dense model


class CausalLMSaved(NamedTuple):
    """What `MiniMindForCausalLM.backward` needs."""

    model: ModelSaved
    lm_head: LinearSaved


class LossAndGrad(NamedTuple):
    """What `MiniMindForCausalLM.loss_and_grad` returns: Python numbers."""

    loss: float  # ce_loss + aux_loss
    ce_loss: float
    aux_loss: float
    n_tokens: int  # labels that counted


class MiniMindModel(Layer):
    r"""The decoder without its head.

    Forward
        .. math:: x_0 = E_{ids}, \qquad x_{l+1} = \mathrm{block}_l(x_l), \qquad h = \mathrm{norm}(x_L)

    Shapes
        ids (B, T) integers, hidden (B, T, D).

    Backward
        The same chain from the end; the auxiliary losses of the blocks are a sum, so each gets the whole daux_loss.

    Parameters
    ----------
    config : MiniMindConfig
    rng : numpy.random.Generator, optional
    dtype : dtype

    Attributes
    ----------
    checkpoint_activations : bool
        Keep of each block its input alone, and compute the block again when backward comes to it: the memory of one
        block instead of all, for a third more time. Off by default. (Chen et al., 2016, "Training deep nets with
        sublinear memory cost".)
    """

    def __init__(
        self, config: MiniMindConfig, *, rng: np.random.Generator | None = None, dtype: Any = np.float32
    ) -> None:
        rng = np.random.default_rng() if rng is None else rng
        self.checkpoint_activations = False
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, rng=rng, dtype=dtype)
        self.layers = [Block(config, rng=rng, dtype=dtype) for _ in range(config.num_hidden_layers)]
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype)
        self.rotary_emb = RotaryEmbedding(config.head_dim, config.rope_theta, config.yarn)

    def forward(self, input_ids: Array, mask: np.ndarray | None = None) -> tuple[ModelOutput, ModelSaved]:
        x, embed_tokens = self.embed_tokens.forward(input_ids)  # (B, T, D)
        context = self.context(input_ids.shape[1], mask)
        aux_loss, blocks = 0.0, []
        for block in self.layers:
            (y, aux), saved = block.forward(x, context)
            aux_loss = aux_loss + aux
            blocks.append(BlockInput(x, context) if self.checkpoint_activations else saved)
            x = y
            del saved
        hidden, norm = self.norm.forward(x)
        return ModelOutput(hidden, aux_loss), ModelSaved(embed_tokens, blocks, norm)

    def backward(self, dhidden: Array, daux_loss: Array, saved: ModelSaved, release: bool = False) -> None:
        """Go back through the blocks; with `release`, drop what each one saved as soon as it is used."""
        dx = self.norm.backward(dhidden, saved.norm)  # (B, T, D)
        blocks = saved.blocks if release else list(saved.blocks)
        for block in reversed(self.layers):
            dx = backward_through(block, dx, daux_loss, blocks.pop())
        self.embed_tokens.backward(dx, saved.embed_tokens)

    def __call__(
        self, input_ids: Array, mask: np.ndarray | None = None, cache: KVCache | None = None, keep: int = 0
    ) -> Array:
        """Inference, one block's temporaries at a time; return the hidden states of the last `keep` tokens (0: all)."""
        x = self.embed_tokens(input_ids)  # (B, T, D)
        start = 0 if cache is None else cache.length
        context = self.context(input_ids.shape[1], mask, start)
        for i, block in enumerate(self.layers):
            x = block(x, context, None if cache is None else cache.layers[i], start)
        if cache is not None:
            cache.advance(input_ids.shape[1], mask)
        return self.norm(x[:, -keep:])

    def context(self, T: int, mask: np.ndarray | None, start: int = 0) -> Context:
        """Build what the blocks share. This is the one place where positions and visibility are decided.

        A row's positions count from its first token that is not padding, so that a left-padded prompt is computed as
        if it stood alone. A key is visible unless it lies in the future or is padding.

        Parameters
        ----------
        T : int
            New tokens.
        mask : bool array (B, S) on the host, or None
            False for padding, over all S = start + T tokens.
        start : int
            Tokens that the cache already holds.
        """
        table = self.embed_tokens.weight.data
        xp = get_array_module(table)
        positions = xp.arange(start, start + T)  # (T,)
        causal = None if T >= LONG else xp.arange(start + T) <= positions[:, None]  # (T, S)
        attend: Any = "blocks" if T >= LONG else "table"
        if mask is None:
            cos, sin = self.rotary_emb.table(positions, table.real.dtype)  # (T, H/2)
            return Context(cos, sin, attend="all") if T == 1 else Context(cos, sin, causal, attend=attend)
        key = xp.asarray(mask)  # (B, S)
        first = xp.argmax(key, axis=1)[:, None, None]  # (B, 1, 1)
        positions = xp.maximum(positions - first, 0)  # (B, 1, T)
        cos, sin = self.rotary_emb.table(positions, table.real.dtype)  # (B, 1, T, H/2)
        visible = key if causal is None else causal & key[:, None, None, :]  # (B, S) or (B, 1, T, S)
        return Context(cos, sin, visible, key[:, start:], attend)


def backward_through(block: Block, dy: Array, daux_loss: Array, kept: BlockSaved | BlockInput) -> Array:
    """Go back through one block, computing it again first if only its input was kept."""
    saved = block.forward(*kept)[1] if isinstance(kept, BlockInput) else kept
    return block.backward(dy, daux_loss, saved)


class MiniMindForCausalLM(Layer):
    r"""A MiniMind-3 language model: reads ids, gives the logits of each next token.

    Forward
        .. math:: logits = h\, W_{head}^\top

        with the decoder's hidden states h. Tied (MiniMind's default), W_head *is* the embedding table E: one
        `Parameter` in two places, whose gradient is the sum of both uses.

    Shapes
        input_ids (B, T) integers, attention_mask (B, T) of 0 and 1, logits (B, T, V).

    Parameters
    ----------
    config : MiniMindConfig
    rng : numpy.random.Generator, optional
        Draws the weights, N(0, 0.02) and gains of one; a fresh one by default.
    dtype : dtype
        Of weights and arithmetic.

    Examples
    --------
    >>> import numpy as np, numpy_minimind as nm
    >>> config = nm.MiniMindConfig.preset("tiny", vocab_size=97)
    >>> model = nm.MiniMindForCausalLM(config, rng=np.random.default_rng(0))
    >>> ids = np.arange(10).reshape(1, 10)
    >>> round(model.loss_and_grad(ids, ids).loss, 1)  # about ln 97
    4.6
    """

    def __init__(
        self, config: MiniMindConfig, *, rng: np.random.Generator | None = None, dtype: Any = np.float32
    ) -> None:
        rng = np.random.default_rng() if rng is None else rng
        self.config = config
        self.model = MiniMindModel(config, rng=rng, dtype=dtype)
        table = self.model.embed_tokens.weight if config.tie_word_embeddings else None
        self.lm_head = Linear(config.hidden_size, config.vocab_size, rng=rng, dtype=dtype, weight=table)
        self.cross_entropy = CrossEntropyLoss()
        self.linear_cross_entropy = LinearCrossEntropy(self.lm_head.weight)

    # -- training ------------------------------------------------------------------------------------------------

    def forward(self, input_ids: Array, attention_mask: Array | None = None) -> tuple[CausalLMOutput, CausalLMSaved]:
        """Return (logits and auxiliary loss, saved)."""
        ids, mask = self._check_inputs(input_ids, attention_mask)
        (hidden, aux_loss), model = self.model.forward(ids, mask)
        logits, lm_head = self.lm_head.forward(hidden)  # (B, T, V)
        return CausalLMOutput(logits, aux_loss), CausalLMSaved(model, lm_head)

    def backward(self, dlogits: Array, saved: CausalLMSaved, daux_loss: Array = 1.0, *, release: bool = False) -> None:
        """Add the gradient of ``sum(logits * dlogits) + aux_loss * daux_loss`` into every parameter.

        With `release`, what each block saved is dropped as it is used (and `saved` cannot be used again).
        """
        dhidden = self.lm_head.backward(dlogits, saved.lm_head)  # (B, T, D)
        self.model.backward(dhidden, daux_loss, saved.model, release)

    def loss_and_grad(
        self,
        input_ids: Array,
        labels: Array,
        attention_mask: Array | None = None,
        num_items_in_batch: int | None = None,
    ) -> LossAndGrad:
        r"""Compute the loss and add its gradient into every parameter.

        .. math::

            L = \frac{1}{n} \sum_{t\ \text{counted}} -\log p(labels_{t+1} \mid ids_{\le t}) + \frac{n_{here}}{n}\, aux

        Parameters
        ----------
        input_ids : integers (B, T)
        labels : integers (B, T)
            Aligned with `input_ids`: the shift happens here. -100 is ignored.
        attention_mask : (B, T) of 0 and 1, optional
            0 for padding.
        num_items_in_batch : int, optional
            n: the counted labels of *all* micro-batches whose gradients are accumulated. By default those of this
            call, n_here. The auxiliary loss is a mean of its own, weighted by this call's share.

        Returns
        -------
        LossAndGrad
            loss = ce_loss + aux_loss, and the number of counted labels. When no label counts, all losses and
            gradients are 0.

        Raises
        ------
        TypeError, ValueError
            For ids, labels or a mask of the wrong dtype, shape or range.
        """
        ids, _ = self._check_inputs(input_ids, attention_mask)
        return self.loss_and_grad_shifted(ids, self._shift(labels, ids.shape), attention_mask, num_items_in_batch)

    def loss_and_grad_shifted(
        self,
        input_ids: Array,
        targets: Array,
        attention_mask: Array | None = None,
        num_items_in_batch: int | None = None,
        read: bool = True,
    ) -> LossAndGrad:
        """As `loss_and_grad`, for targets that are shifted already: targets[b, t] follows input_ids[b, t].

        Without `read` the losses stay where the model is, as arrays of no axes in float64: a device goes on computing
        until somebody reads them.
        """
        ids, mask = self._check_inputs(input_ids, attention_mask)
        targets = to_numpy(targets)
        check_targets(targets, ids.shape)
        n_here = int((targets != self.cross_entropy.ignore_index).sum())
        n = n_here if num_items_in_batch is None else operator.index(num_items_in_batch)
        if n < n_here:
            raise ValueError(f"num_items_in_batch is {n}, but this batch alone has {n_here} counted labels")
        if self.config.dropout:
            raise ValueError(f"dropout {self.config.dropout} is not implemented in training: set it to 0")
        share = n_here / max(n, 1)

        (hidden, aux_loss), saved = self.model.forward(ids, mask)
        ce_loss, head = self.linear_cross_entropy.forward(hidden, targets, n)
        del hidden
        dhidden = self.linear_cross_entropy.backward(1.0, head)  # (B, T, D)
        del head
        self.model.backward(dhidden, share, saved, release=True)
        ce, aux = ce_loss.astype(np.float64), aux_loss.astype(np.float64) * share
        losses: Any = (ce + aux, ce, aux)
        loss, ce, aux = read_numbers(*losses) if read else losses
        return LossAndGrad(loss, ce, aux, n_here)

    def loss_shifted(self, input_ids: Array, targets: Array, attention_mask: Array | None = None) -> float:
        """Return the mean cross-entropy of targets that are shifted already; inference, no gradient."""
        ids, mask = self._check_inputs(input_ids, attention_mask)
        return float(self.linear_cross_entropy(self.model(ids, mask), to_numpy(targets)))

    # -- inference -----------------------------------------------------------------------------------------------

    def __call__(
        self,
        input_ids: Array,
        attention_mask: Array | None = None,
        cache: KVCache | None = None,
        logits_to_keep: int = 0,
    ) -> Array:
        """Return logits (B, T, V), or those of the last `logits_to_keep` tokens; nothing is saved for a backward.

        Parameters
        ----------
        input_ids : integers (B, T)
        attention_mask : optional
            0 for padding; over the new tokens (B, T), or over those in the cache and the new ones (B, S). The cache
            remembers it.
        cache : KVCache, optional
            From `new_cache`; holds the tokens before these and takes these in.
        logits_to_keep : int
            0 keeps all.
        """
        ids, mask = self._check_inputs(input_ids, attention_mask, cache)
        if operator.index(logits_to_keep) < 0:
            raise ValueError(f"logits_to_keep must not be negative (0 keeps all), got {logits_to_keep}")
        return self.lm_head(self.model(ids, mask, cache, logits_to_keep))

    def new_cache(self, batch_size: int, max_tokens: int) -> KVCache:
        """Return an empty cache for `batch_size` rows of at most `max_tokens` tokens."""
        limit = self.config.max_position_embeddings
        if batch_size < 1 or not 1 <= max_tokens <= limit:
            raise ValueError(
                f"a cache needs batch_size >= 1 and 1 <= max_tokens <= {limit} (max_position_embeddings), "
                f"got {batch_size} and {max_tokens}"
            )
        return KVCache(
            self.model.embed_tokens.weight.data,
            self.config.num_hidden_layers,
            batch_size,
            self.config.num_key_value_heads,
            max_tokens,
            self.config.head_dim,
        )

    def generate(self, input_ids: Array, *args: Any, **options: Any) -> np.ndarray:
        """Continue the prompts: ``numpy_minimind.generation.generate(model, input_ids, ...)``, which see.

        ``model.generate(input_ids, max_new_tokens=32, temperature=0.85, top_k=50, top_p=0.85, repetition_penalty=1.0,
        eos_token_id="config", rng=None, on_token=None, attention_mask=None, cache=None, vocab_size=None)``
        """
        from numpy_minimind.generation import generate  # above this module, which needs no loop to compute

        return generate(self, input_ids, *args, **options)

    # -- state ---------------------------------------------------------------------------------------------------

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """As `Layer.load_state_dict`; a tied model also accepts an equal ``lm_head.weight`` and refuses another."""
        if self.config.tie_word_embeddings and HEAD in state:
            if TABLE in state and not np.array_equal(to_numpy(state[HEAD]), to_numpy(state[TABLE]), equal_nan=True):
                raise ValueError(
                    f"{HEAD} differs from {TABLE}, but the config ties them (tie_word_embeddings): "
                    "load into an untied model, or drop one of them"
                )
            state = {TABLE: state[HEAD], **{name: value for name, value in state.items() if name != HEAD}}
        super().load_state_dict(state, strict)

    # -- the public boundary -------------------------------------------------------------------------------------

    def _check_inputs(
        self, input_ids: Array, attention_mask: Array, cache: KVCache | None = None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return (ids, mask (B, S) or None if nothing is padding), both on the host, or say what is wrong."""
        ids = to_numpy(input_ids)
        if ids.ndim != 2 or 0 in ids.shape:
            raise ValueError(f"input_ids must have shape (batch, tokens), neither of them 0, got shape {ids.shape}")
        B, T = ids.shape
        held = 0 if cache is None else cache.length
        limit = self.config.max_position_embeddings
        if held + T > limit:
            raise ValueError(f"{held + T} tokens are more than max_position_embeddings = {limit}")
        if cache is not None and (cache.batch_size != B or held + T > cache.max_tokens):
            raise ValueError(
                f"the cache was made for {cache.batch_size} rows of at most {cache.max_tokens} tokens, "
                f"got {B} rows and {held + T} tokens"
            )
        earlier = None if cache is None else cache.mask
        mask = None if attention_mask is None else check_mask(to_numpy(attention_mask), B, T, held)
        return ids, whole_mask(mask, earlier, B, T, held)

    def _shift(self, labels: Array, shape: tuple[int, ...]) -> np.ndarray:
        """Move labels one to the left: the target of position t is label t + 1, of the last position none."""
        labels, ignore = to_numpy(labels), self.cross_entropy.ignore_index
        check_targets(labels, shape)
        check_range(labels, self.config.vocab_size, ignore)  # before the first ones are dropped, and all are int64
        targets = np.full(shape, ignore, np.int64)
        targets[..., :-1] = labels[..., 1:]
        return targets


def check_mask(mask: np.ndarray, B: int, T: int, held: int) -> np.ndarray:
    """Return the mask as bool, or say why it is none: its shape, or values other than 0 and 1."""
    if mask.shape not in {(B, T), (B, held + T)}:
        raise ValueError(f"attention_mask has shape {mask.shape}, expected {(B, T)} or {(B, held + T)}")
    if mask.dtype != bool and not np.isin(mask, (0, 1)).all():
        raise ValueError("attention_mask must hold 1 (a token) and 0 (padding) only")
    return mask.astype(bool)


def whole_mask(mask: np.ndarray | None, earlier: np.ndarray | None, B: int, T: int, held: int) -> np.ndarray | None:
    """Put the mask of the cached tokens and of the new ones side by side: (B, held + T), or None if all count."""
    if mask is None and earlier is None:
        return None
    if earlier is None:
        earlier = np.ones((B, held), bool)
    if mask is None:
        mask = np.ones((B, T), bool)
    if mask.shape[1] == held + T and held:
        if not np.array_equal(mask[:, :held], earlier):
            raise ValueError("attention_mask differs from the mask under which the cached tokens were computed")
        mask = mask[:, held:]
    mask = np.concatenate((earlier, mask), axis=1)  # (B, S)
    return None if mask.all() else mask
