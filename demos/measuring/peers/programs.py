"""Our own programs of the benchmark: each function makes one piece of work, a callable that returns its seconds."""

import numpy as np

from numpy_minimind.backend import keep_freed_memory
from numpy_minimind.commands.bench import measure_train
from numpy_minimind.layers.flash_attention import FlashAttention
from numpy_minimind.layers.moe import MoE
from numpy_minimind.layers.scaled_dot_product import ScaledDotProduct
from numpy_minimind.layers.swiglu import SwiGLU
from numpy_minimind.measuring.clocks import seconds_of
from numpy_minimind.measuring.floors import DecodeFloor, Floor
from numpy_minimind.measuring.machine import limit_blas
from numpy_minimind.measuring.workloads import Decode, Prefill, TrainStep
from numpy_minimind.products import forward_products, training_products
from numpy_minimind.sharing import even_sizes
from numpy_minimind.training.parallel import worthwhile_threads


def parts_of_a_step(config, batch, tokens, threads, repeat):
    """Seconds of a training step, by what they are spent on."""
    threads = worthwhile_threads(config, batch, tokens, threads)
    with limit_blas(threads):
        return measure_train(config, batch, tokens, threads, repeat)["parts"]


def numpy_train(config, batch, tokens, threads):
    return TrainStep(config, batch, tokens, threads)


def products_train(config, batch, tokens, threads, cut):
    """The products of the step alone, by the BLAS library's threads or a share of the rows for each of ours."""
    parts = even_sizes(batch, min(threads, batch)) if cut else [batch]
    return Floor([training_products(config, rows, tokens) for rows in parts])


def numpy_prefill(config, tokens, threads):
    return Prefill(config, 1, tokens)


def products_prefill(config, tokens, threads):
    return Floor([forward_products(config, 1, tokens, logits=1)])


def numpy_decode(config, prompt, tokens, threads):
    return Decode(config, 1, prompt, tokens)


def products_decode(config, prompt, tokens, threads):
    return DecodeFloor(config, 1, prompt, tokens)


def attention(config, tokens, threads, blocks):
    """Forward and backward of attention alone, plain or in blocks."""
    keep_freed_memory()
    rng, N, K, H = np.random.default_rng(1), config.num_attention_heads, config.num_key_value_heads, config.head_dim
    q, k, v, do = (rng.standard_normal((1, heads, tokens, H), np.float32) for heads in (N, K, K, N))
    layer, visible = (FlashAttention(), None) if blocks else (ScaledDotProduct(), np.tri(tokens, dtype=bool))

    def work():
        _, saved = layer.forward(q, k, v, visible)
        layer.backward(do, saved)

    return lambda: seconds_of(work)


def feed_forward(config, batch, tokens, experts):
    """Forward and backward of a layer of experts, or of the dense layer of the size that one token uses."""
    keep_freed_memory()
    rng, layer = np.random.default_rng(1), feed_forward_layer(config, experts)
    x, dy = rng.standard_normal((2, batch, tokens, config.hidden_size), np.float32)

    def work():
        _, saved = layer.forward(x)
        layer.backward(*((dy, 1.0) if experts else (dy,)), saved)

    return lambda: seconds_of(work)


def feed_forward_layer(config, experts):
    rng = np.random.default_rng(0)
    if not experts:
        return SwiGLU(config.hidden_size, config.moe_intermediate_size * config.num_experts_per_tok, rng=rng)
    layer = MoE(config, rng=rng)
    layer.gate.weight.data *= 10  # a router that has learnt to tell tokens apart
    return layer
