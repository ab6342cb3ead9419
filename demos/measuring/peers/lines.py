"""The lines of the benchmark: which programs meet in each, and what is to be reached."""

from typing import Any, NamedTuple

from numpy_minimind import MiniMindConfig
from numpy_minimind.training.parallel import worthwhile_threads

SMALL = {"num_attention_heads": 4, "num_key_value_heads": 2}
SIZES = {  # name: (fields, rows of a batch, tokens of a row, largest share of PyTorch's time)
    "64x2": ({"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 128, **SMALL}, 8, 64, 0.6),
    "128x4": ({"hidden_size": 128, "num_hidden_layers": 4, "vocab_size": 256, **SMALL}, 16, 128, 0.8),
    "256x6": ({"hidden_size": 256, "num_hidden_layers": 6, "vocab_size": 1024, **SMALL}, 8, 256, 0.85),
    "minimind3": ({}, 2, 512, 0.95),
}
EXPERTS = (("toy-moe", 16, 128), ("toy-moe", 8, 64), ("minimind3-moe", 2, 512))  # (preset, rows, tokens of a row)
WORKS = ("train", "decode", "prefill", "attention", "memory", "experts")
PEERS = ("torch", "torch-compile", "transformers")
OURS, ONE = "numpy", "numpy, 1 thread"
BLOCKS, PLAIN = "numpy, in blocks", "numpy, plain"
CHOSEN, DENSE = "numpy, experts", "numpy, dense"
WHOLE, SHARDS, READING = "products, whole batch", "products, by shards", "products alone"


class Target(NamedTuple):
    """What the ratio of a program of ours to the best of some others should be."""

    what: str  # "time" and "memory": at most; "speed": at least
    others: tuple[str, ...]
    limit: float
    ours: str = OURS


class Line(NamedTuple):
    """Programs that do the same work."""

    title: str
    tokens: int  # of one turn
    programs: dict[str, tuple[str, tuple[Any, ...]]]  # ours first; the function that makes the work, its arguments
    targets: list[Target]
    check: tuple[Any, ...] = ()  # function and arguments: by how much the programs' results differ


def lines(works, sizes, threads):
    """Yield the lines; all but training and experts is measured at the last of the sizes."""
    for size in sizes if "train" in works else ():
        fields, B, T, limit = SIZES[size]
        config = MiniMindConfig(**fields)
        work, best = (config, B, T, threads), worthwhile_threads(config, B, T, threads)
        peers = {
            "torch": ("peers.torch_minimind:torch_train", work),
            "torch-compile": ("peers.torch_minimind:torch_train", (*work, True)),
        }
        if best < threads:  # what fewer threads do for us, they may do for others
            for name, compiled in (("torch", False), ("torch-compile", True)):
                peers[f"{name}, {best} of {threads} threads"] = (
                    "peers.torch_minimind:torch_train",
                    (config, B, T, best, compiled),
                )
        yield Line(
            f"train {size}, {B} x {T} tokens" + f"; numpy takes {best} of {threads} threads" * (best < threads),
            B * T,
            {
                OURS: ("peers.programs:numpy_train", (config, B, T, best)),
                WHOLE: ("peers.programs:products_train", (*work, False)),
                SHARDS: ("peers.programs:products_train", (*work, True)),
                **peers,
            },
            [Target("time", tuple(peers), limit)] + [Target("time", (WHOLE, SHARDS), 1.15)] * (size == "minimind3"),
            ("peers.torch_minimind:training_differs_by", *work),
        )
    size = sizes[-1]
    fields, B, T, _ = SIZES[size]
    config = MiniMindConfig(**fields)
    if "decode" in works:
        yield Line(
            f"decode {size}, 100 tokens after 64",
            100,
            {
                OURS: ("peers.programs:numpy_decode", (config, 64, 100, threads)),
                READING: ("peers.programs:products_decode", (config, 64, 100, threads)),
                "transformers": ("peers.qwen3:transformers_decode", (config, 64, 100, threads)),
            },
            [Target("speed", ("transformers",), 2.5), Target("speed", (READING,), 0.85)],
            ("peers.qwen3:logits_differ_by", config, 64, threads),
        )
    if "prefill" in works:
        yield Line(
            f"prefill {size}, 1024 tokens",
            1024,
            {
                OURS: ("peers.programs:numpy_prefill", (config, 1024, threads)),
                READING: ("peers.programs:products_prefill", (config, 1024, threads)),
                "transformers": ("peers.qwen3:transformers_prefill", (config, 1024, threads)),
            },
            [Target("speed", ("transformers",), 1.1)],
            ("peers.qwen3:logits_differ_by", config, 1024, threads),
        )
    if "attention" in works:
        yield Line(
            f"attention {size}, 4096 tokens, forward and backward",
            4096,
            {
                BLOCKS: ("peers.programs:attention", (config, 4096, threads, True)),
                PLAIN: ("peers.programs:attention", (config, 4096, threads, False)),
            },
            [Target("time", (PLAIN,), 0.6, BLOCKS), Target("memory", (PLAIN,), 0.1, BLOCKS)],
        )
    if "memory" in works:
        yield Line(
            f"memory of a training step, {size}, {B} x {T} tokens",
            B * T,
            {
                OURS: ("peers.programs:numpy_train", (config, B, T, threads)),
                ONE: ("peers.programs:numpy_train", (config, B, T, 1)),
                "torch": ("peers.torch_minimind:torch_train", (config, B, T, threads)),
            },
            [Target("memory", ("torch",), 0.9, ONE), Target("memory", ("torch",), 1.1)],
        )
    for preset, B, T in EXPERTS if "experts" in works else ():
        config = MiniMindConfig.preset(preset)
        yield Line(
            f"feed-forward of {preset}, {B} x {T} tokens, forward and backward",
            B * T,
            {
                CHOSEN: ("peers.programs:feed_forward", (config, B, T, True)),
                DENSE: ("peers.programs:feed_forward", (config, B, T, False)),
            },
            [Target("time", (DENSE,), 1.25, CHOSEN)],
        )
