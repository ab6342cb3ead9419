"""Numbers that pages tell, as the code has them: its constants and defaults, counts, and what a formula gives."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
from peers.parity_cases import PAIRWISE

from numpy_minimind import MiniMindConfig, accounting
from numpy_minimind.checking import MUTANTS
from numpy_minimind.checking.differences import STEP, Effort
from numpy_minimind.checking.lab.weak_checks import TRAINING_STEPS
from numpy_minimind.checking.verdict import ABSOLUTE, RELATIVE
from numpy_minimind.checkpoint import pth
from numpy_minimind.commands import train_profile
from numpy_minimind.commands.chat import TWICE
from numpy_minimind.data.jsonl import SHOWN
from numpy_minimind.data.jsonl_corpus import HELD_OUT_LINES
from numpy_minimind.data.text_corpus import BLOCK
from numpy_minimind.generation.prefill import PART
from numpy_minimind.layers import FlashAttention, RotaryEmbedding, flash_attention, kv_cache
from numpy_minimind.layers.linear import FEW
from numpy_minimind.layers.linear_cross_entropy import CHUNK
from numpy_minimind.model import LONG
from numpy_minimind.text.bpe import FIXED
from numpy_minimind.training.adamw import PIECE
from numpy_minimind.training.build import BETAS
from numpy_minimind.training.distributed import PATIENCE
from numpy_minimind.training.settings import DEFAULTS
from tests.cupy.replay.planted import PLANTED

ROOT = Path(__file__).parents[2]
WORDS = ("no", "one", "two", "three", "four", "five", "six")

FLASH, EFFORT, MINIMIND = FlashAttention(), Effort(), MiniMindConfig()
EXPERTS = accounting.parameters(MiniMindConfig(use_moe=True))
DENSE, SPARSE = accounting.parameters(MINIMIND)["total"] / 1e6, EXPERTS["total"] / 1e6  # millions
ACTIVE = EXPERTS["active"] / 1e6
BYTES_A_TOKEN = accounting.memory(MINIMIND, 1, 1)["kv_cache_per_token"]


def short(x):
    return f"{x:.0e}".replace("e-0", "e-")


def module_of(path):
    """Import a file of the tests that lies in no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lowest_silu():
    g = np.linspace(-2, -1, 100_001)
    silu = g / (1 + np.exp(-g))
    return silu.min(), g[silu.argmin()]


def angle_error(positions):
    """The largest error of an angle of MiniMind-3's that is computed in float32, of so many positions."""
    t, omega = np.arange(positions)[:, None], RotaryEmbedding(MINIMIND.head_dim).frequencies
    return np.abs(t.astype(np.float32) * omega.astype(np.float32) - t * omega).max()


LAYERS = "docs/en/layers"
SAID = {
    "README.md": [
        f"a {DENSE:.0f}-million-parameter Qwen3-style decoder ({SPARSE:.0f} million with",
        f"which of {len(MUTANTS)} planted bugs",
    ],
    "docs/zh/README.md": [
        f"一个 {DENSE:.0f}00 万参数的 Qwen3 风格解码器（混合专家（MoE）版 {SPARSE / 100:.2f} 亿）",
        f"{len(MUTANTS)} 个故意埋下的错误",
    ],
    "docs/en/README.md": [f"which of {len(MUTANTS)} planted bugs"],
    "docs/en/gradient-checks.md": [
        f"{len(MUTANTS)} bugs are planted on purpose",
        f"All {len(MUTANTS)} mutants are killed.",
        f"{STEP * 1e6:.0f} millionths of its root mean square",
        f"at {EFFORT.coordinates} places and along {EFFORT.directions} random directions",
        f"{short(ABSOLUTE)} of the tensor's largest number plus {short(RELATIVE)} of the number at hand",
        f"has halved after {TRAINING_STEPS} steps",
    ],
    f"{LAYERS}/linear.md": [f"With two to {FEW} rows"],
    f"{LAYERS}/rope.md": [f"positions up to 32,767, angles in float32 are off by up to {angle_error(32768):.4f}"],
    f"{LAYERS}/flash_attention.md": [
        f"{FLASH.query_block} rows of b sequences, and {FLASH.key_block} keys",
        f"as many as make {flash_attention.BLOCK:,} scores",
        f"A text of at most {FLASH.key_block} tokens fits one block of keys",
        f"so the model changes over at {LONG}.",
        f"At 4,096 tokens and 8 heads one such table is {8 * 4096**2 * 4 // 2**20} MiB",
    ],
    f"{LAYERS}/kv_cache.md": [
        f"rounded up to whole blocks of {kv_cache.BLOCK}",
        f"{BYTES_A_TOKEN // 4} numbers: {BYTES_A_TOKEN} bytes in float32",
    ],
    f"{LAYERS}/swiglu.md": [
        f"{MINIMIND.intermediate_size} for D = {MINIMIND.hidden_size}.",
        "(to {:.3f} near g = {:.3f})".format(*lowest_silu()),
    ],
    f"{LAYERS}/moe.md": [
        f"MoE has {SPARSE:.0f} million parameters, of which {ACTIVE:.0f} million work for any one token",
    ],
    f"{LAYERS}/linear_cross_entropy.md": [
        f"V = {MINIMIND.vocab_size} the logits are {2 * 512 * MINIMIND.vocab_size * 4 / 2**20:.0f} MiB",
        f"takes {CHUNK} rows at a time through the head",
    ],
    "docs/en/memory.md": [
        f"Below {LONG} tokens attention saves the table of its weights",
        f"From {LONG} tokens on it is",
        f"which up to {FLASH.key_block} tokens saves the part of that table",
    ],
    "docs/en/performance.md": [
        f"attention in blocks from {LONG} tokens on",
        f"AdamW works in pieces of {PIECE:,} numbers",
        f"for 2 to {FEW} rows",
        f"only to bound the memory: parts of {PART:,}",
    ],
    "docs/en/checkpoints.md": [
        f"{len(pth.INSTRUCTIONS)} instructions of protocol 2 and {WORDS[len(pth.NAMES)]} names",
        f"The pickle may have {WORDS[pth.MAX_PICKLE >> 20]} megabyte",
        f"({DENSE * 4:.0f} MB and {SPARSE * 4:.0f} MB)",
    ],
    "docs/en/chat.md": [
        f"At least {FIXED} tokens are needed",
        f"or twice within {'a second' if TWICE == 1 else TWICE}",
    ],
    "docs/en/data.md": [
        f"of more than {10 * HELD_OUT_LINES:,}, {HELD_OUT_LINES} lines spread evenly",
        f"(the first {WORDS[SHOWN]} faults)",
    ],
    "docs/en/training.md": [
        f"every tenth block of {BLOCK:,} characters is held out",
        f"measures {WORDS[train_profile.STEPS]} steps, after {WORDS[train_profile.WARM_UP]} to warm up",
        f"AdamW (betas {BETAS[0]} and {BETAS[1]}, eps 1e-8, decay {DEFAULTS['weight_decay']} on matrices",
        f"clipped to a global norm of {DEFAULTS['clip']:.0f},",
    ],
    "docs/en/more-machines.md": [f"after {WORDS[int(PATIENCE)]} seconds, in which nobody else has failed"],
}


def said_on(page):
    return re.sub(r"\s+", " ", (ROOT / page).read_text(encoding="utf-8"))


@pytest.mark.parametrize(("page", "words"), [(page, words) for page in SAID for words in SAID[page]])
def test_what_is_said_of_the_code(page, words):
    assert words in said_on(page)


def test_the_sizes_of_minimind3_in_the_table_of_letters():
    rows = re.findall(r"^\| \w \|.*\| ([\d ]+)\| `(\w+)` \|$", (ROOT / "docs/en/notation.md").read_text("utf-8"), re.M)
    assert len(rows) == 8
    for number, field in rows:
        assert int(number) == getattr(MINIMIND, field), field


def test_the_predicted_column_of_the_memory_page():
    line = re.compile(r"^\| ([\w-]+) \| (\d+) x (\d+) \| (\d) \| (no|yes) \| ([\d.,]+) \|", re.MULTILINE)
    rows = line.findall((ROOT / "docs/en/memory.md").read_text(encoding="utf-8"))
    assert len(rows) == 18
    for preset, batch, tokens, threads, again, told in rows:
        config = MiniMindConfig.preset(preset, **({} if preset.startswith("minimind3") else {"vocab_size": 256}))
        settings = {"threads": int(threads), "checkpoint_activations": again == "yes"}
        predicted = accounting.memory(config, int(batch), int(tokens), **settings)["training"] / 2**20
        assert f"{predicted:,.1f}" == told, (preset, batch, tokens, threads, again)


def test_counts_of_what_the_tests_hold():
    assert f"{len(PLANTED)} planted faults" in said_on("docs/en/gpu.md")
    assert f"The first {PAIRWISE} models hold *every pair* of choices" in said_on("docs/en/parity.md")


def test_ratios_are_those_of_their_columns():
    """To the digits shown: both numbers were rounded as well."""
    page = (ROOT / LAYERS / "flash_attention.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|[^|]*\| (\d+) " + 6 * r"\| ([\d.]+) " + r"\|$", page, re.MULTILINE)
    assert len(rows) == 13
    for tokens, plain, blocks, time, plain_mib, blocks_mib, memory in rows:
        for a, b, ratio in ((plain, blocks, time), (plain_mib, blocks_mib, memory)):
            spread = rounding(a) / float(a) + rounding(b) / float(b)
            assert abs(float(b) / float(a) - float(ratio)) <= rounding(ratio) + spread * float(ratio), (tokens, ratio)


def rounding(shown):
    """Half of the last digit of a number as it is shown, and a hair."""
    return 0.501 * 10.0 ** -len(shown.partition(".")[2])
