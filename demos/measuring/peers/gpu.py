"""Speeds on CPU and GPU, and of PyTorch on the same GPU: what gpu_check.py measures."""

import argparse
import importlib.util

import numpy as np

from numpy_minimind import MiniMindConfig, plotting
from numpy_minimind.config import PRESETS
from numpy_minimind.measuring.clocks import interleaved, spread
from numpy_minimind.measuring.machine import cores, device_name
from numpy_minimind.measuring.workloads import Decode, TrainStep

PROMPT = 16
TARGETS = {"training": 0.5, "decoding": 0.7}  # of PyTorch's tokens/s, eager, float32


def train_speeds(config, batch, tokens, repeat):
    """Tokens/s of training steps in turns: {"cpu", "cuda"}."""
    tasks = {d: TrainStep(config, batch, tokens, threads, d) for d, threads in (("cpu", cores()), ("cuda", 1))}
    return per_second(interleaved(tasks, repeat), batch * tokens)


def decode_speeds(config, tokens, repeat):
    """Tokens/s of writing, the most likely token each time."""
    tasks = {device: Decode(config, 1, PROMPT, tokens, device) for device in ("cpu", "cuda")}
    return per_second(interleaved(tasks, repeat), tokens)


def show(name, speeds):
    cpu, gpu = speeds["cpu"], speeds["cuda"]
    print(f"  {name:<22}{cpu:>12,.0f}{gpu:>12,.0f}{gpu / cpu:>12.2f}", flush=True)
    return speeds


def presets(args):
    """Tokens a second of known sizes on both devices."""
    print(f"tokens/s{'CPU':>28}{'GPU':>12}{'GPU / CPU':>12}")
    found = {}
    for name in args.presets:
        config = MiniMindConfig.preset(name)
        speeds = train_speeds(config, args.batch_size, args.seq_len, args.repeat)
        found[f"{name} training"] = show(f"{name} training", speeds)
        found[f"{name} decoding"] = show(f"{name} decoding", decode_speeds(config, args.tokens, args.repeat))
    return found


def widths(args):
    """From which width on is the GPU faster? Two layers, training."""
    found = {}
    for width in args.widths:
        config = MiniMindConfig.preset("tiny", hidden_size=width, head_dim=width // 4, intermediate_size=None)
        speeds = train_speeds(config, args.batch_size, args.seq_len, args.repeat)
        found[width] = show(f"width {width} training", speeds)
    won = [width for width, speeds in found.items() if speeds["cuda"] > speeds["cpu"]]
    print(f"the GPU is faster from width {won[0]}" if won else "the CPU is faster at each of these widths")
    if args.picture:
        named = {"CPU": "cpu", f"GPU ({device_name('cuda')})": "cuda"}
        speeds = {name: [found[width][device] for width in found] for name, device in named.items()}
        print(f"saved {plotting.crossover(args.picture, list(found), speeds)}")
    return found


def per_second(seconds, tokens):
    return {name: tokens / spread(times)["median"] for name, times in seconds.items()}


def against_pytorch(batch, tokens, new_tokens, repeat):
    """minimind3 on the GPU, ours and PyTorch's in turns: {work: {"ours", "pytorch", "ratio"}}, or why not."""
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed: nothing to compare with"
    import torch

    if not torch.cuda.is_available():
        return "PyTorch finds no GPU: nothing to compare with"
    torch.backends.cuda.matmul.allow_tf32 = False  # float32 means float32, as in CuPy
    from peers.torch_minimind import TorchTrainStep

    config = MiniMindConfig.preset("minimind3")
    ours = TrainStep(config, batch, tokens, 1, "cuda")
    theirs = TorchTrainStep(config, ours.batch.inputs, ours.batch.targets, device="cuda")
    found = {"training": in_turns(ours, theirs, batch * tokens, repeat)}
    del ours, theirs
    if importlib.util.find_spec("transformers") is not None:
        from peers.qwen3 import Qwen3Decode

        ids = np.random.default_rng(0).integers(config.vocab_size, size=(1, PROMPT))
        ours, theirs = Decode(config, 1, PROMPT, new_tokens, "cuda"), Qwen3Decode(config, ids, new_tokens, "cuda")
        found["decoding"] = in_turns(ours, theirs, new_tokens, repeat)
    return found


def in_turns(ours, theirs, tokens, repeat):
    speeds = per_second(interleaved({"ours": ours, "pytorch": theirs}, repeat), tokens)
    return {**speeds, "ratio": speeds["ours"] / speeds["pytorch"]}


def verdicts(found):
    """A line for each comparison with PyTorch."""
    if isinstance(found, str):
        yield found
        return
    for work, s in found.items():
        target, reached = TARGETS[work], "reached" if s["ratio"] >= TARGETS[work] else "missed"
        speeds = f"{s['ours']:,.0f} tokens/s, PyTorch {s['pytorch']:,.0f}"
        yield f"minimind3 {work}: {speeds}, ratio {s['ratio']:.2f}; target at least {target}: {reached}"


def known_presets(text):
    """From a flag: names with commas between them."""
    if unknown := [name for name in text.split(",") if name not in PRESETS]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: expected some of {', '.join(PRESETS)}")
    return text.split(",")


def possible_widths(text):
    """From a flag: numbers with commas between them."""
    if wrong := [word for word in text.split(",") if not word.isdecimal() or int(word) % 8 or not int(word)]:
        raise argparse.ArgumentTypeError(f"{', '.join(wrong)}: expected multiples of 8")
    return sorted({int(word) for word in text.split(",")})
