"""What transformers writes, in every form in which it writes it, is loaded here and computes the same; and back again.

Full-size models are slow tests, and each is loaded in a process of its own, whose memory is measured.
"""

import copy
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numpy_minimind import MiniMindConfig, from_pretrained, save_pretrained
from numpy_minimind.checkpoint.huggingface import REFUSED
from numpy_minimind.layers import RotaryEmbedding
from tests.yarns import BARE

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("safetensors")

# transformers opens files without an encoding
pytestmark = pytest.mark.filterwarnings("ignore::EncodingWarning")

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "vocab_size": 67,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e4},
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True}

# MiniMind-3 in transformers' fields.
MINIMIND3 = {
    "hidden_size": 768,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 96,
    "vocab_size": 6400,
    "intermediate_size": 2432,
    "max_position_embeddings": 32768,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "tie_word_embeddings": True,
}
MINIMIND3_MOE = {"num_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 2432, "norm_topk_prob": True}


def theirs(moe: bool, dtype: Any = torch.float32, **fields: Any) -> Any:
    """A model of transformers with random weights, gains well away from 1."""
    kind = "Qwen3Moe" if moe else "Qwen3"
    config = getattr(transformers, f"{kind}Config")(**fields)
    torch.manual_seed(5)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.uniform_(0.5, 1.5)
    return rounded(model, dtype)


def rounded(model: Any, dtype: Any) -> Any:
    """Round the parameters; ``model.to(dtype)`` would round the frequencies of the rotary positions as well."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


def logits_of(model: Any, ids: np.ndarray) -> np.ndarray:
    """In float32, whatever the weights were rounded to."""
    with torch.no_grad():
        return rounded(model, torch.float32)(torch.from_numpy(ids)).logits.numpy()


def assert_same_logits(ours: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


# -- small models, every form ------------------------------------------------------------------------------------


@pytest.mark.parametrize("moe", [False, True])
@pytest.mark.parametrize(
    ("dtype", "tied", "shard"),
    [
        (torch.float32, True, "5GB"),
        (torch.float32, False, "20KB"),
        (torch.float16, True, "20KB"),
        (torch.bfloat16, False, "5GB"),
        (torch.bfloat16, True, "20KB"),
    ],
)
def test_folders_of_transformers(
    tmp_path: Path, rng: np.random.Generator, moe: bool, dtype: Any, tied: bool, shard: str
) -> None:
    model = theirs(moe, dtype, tie_word_embeddings=tied, **SMALL, **(EXPERTS if moe else {}))
    model.save_pretrained(tmp_path, max_shard_size=shard)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard == "20KB")
    again = from_pretrained(tmp_path)
    assert (again.config.use_moe, again.config.tie_word_embeddings) == (moe, tied)
    ids = rng.integers(0, SMALL["vocab_size"], (2, 30))
    assert_same_logits(again(ids), logits_of(model, ids))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("container", ["model.safetensors", "pytorch_model.bin"])
def test_experts_as_transformers_holds_them_in_memory(
    tmp_path: Path, rng: np.random.Generator, dtype: Any, container: str
) -> None:
    """Fused: what ``torch.save(model.state_dict())`` writes, and ``save_model`` of safetensors."""
    model = theirs(True, dtype, **SMALL, **EXPERTS)
    state = model.state_dict()
    if "model.layers.0.mlp.experts.gate_up_proj" not in state:
        pytest.skip("this transformers holds experts one by one")
    model.config.save_pretrained(tmp_path)
    if container.endswith("bin"):
        torch.save(state, tmp_path / container)
    else:
        from safetensors.torch import save_file

        save_file({name: tensor.contiguous() for name, tensor in state.items()}, tmp_path / container)
    ids = rng.integers(0, SMALL["vocab_size"], (2, 30))
    assert_same_logits(from_pretrained(tmp_path)(ids), logits_of(model, ids))


def test_a_state_dict_of_transformers_as_minimind_saves_it(tmp_path: Path, rng: np.random.Generator) -> None:
    """MiniMind: ``torch.save({k: v.half().cpu() for k, v in model.state_dict().items()}, "full_sft_768.pth")``."""
    model = theirs(False, tie_word_embeddings=True, **SMALL)
    torch.save({name: tensor.half().cpu() for name, tensor in model.state_dict().items()}, tmp_path / "full_sft_32.pth")
    model.config.save_pretrained(tmp_path)
    ids = rng.integers(0, SMALL["vocab_size"], (2, 30))
    assert_same_logits(
        from_pretrained(tmp_path / "full_sft_32.pth")(ids), logits_of(rounded(model, torch.float16), ids)
    )


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("moe", [False, True])
def test_there_and_back_again_is_exact(tmp_path: Path, moe: bool, tied: bool) -> None:
    """transformers -> here -> transformers -> here: the same bits at every stop."""
    model = theirs(moe, tie_word_embeddings=tied, **SMALL, **(EXPERTS if moe else {}))
    model.save_pretrained(tmp_path / "1")
    here = from_pretrained(tmp_path / "1")
    save_pretrained(here, tmp_path / "2")
    there = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "2")
    assert type(there) is type(model)
    before, after = model.state_dict(), there.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    there.save_pretrained(tmp_path / "3")
    again = from_pretrained(tmp_path / "3")
    assert again.config == here.config
    ours = here.state_dict()
    assert ours.keys() == again.state_dict().keys()
    assert all(np.array_equal(array, ours[name]) for name, array in again.state_dict().items())


@pytest.mark.parametrize("moe", [False, True])
def test_what_we_save_generates_the_same_and_stops_at_eos(tmp_path: Path, rng: np.random.Generator, moe: bool) -> None:
    """config.json alone carries the ids: no generation_config.json is needed, and an older one does not stay."""
    model = theirs(moe, tie_word_embeddings=True, **SMALL, **(EXPERTS if moe else {}))
    model.save_pretrained(tmp_path / "1")
    prompt = rng.integers(3, SMALL["vocab_size"], (1, 5))
    free = from_pretrained(tmp_path / "1").generate(prompt, max_new_tokens=12, temperature=0)
    eos = int(free[0, 10])  # the sixth new token
    other = next(i for i in range(SMALL["vocab_size"]) if i not in free)
    for file, ends in [("config.json", eos), ("config.json", [other, eos]), ("generation_config.json", [other, eos])]:
        d = json.loads((tmp_path / "1" / file).read_text("utf-8")) | {"eos_token_id": ends, "pad_token_id": 0}
        (tmp_path / "1" / file).write_text(json.dumps(d), "utf-8")
        here = from_pretrained(tmp_path / "1")
        assert here.config.eos_token_id == ends
        (tmp_path / "2").mkdir(exist_ok=True)
        (tmp_path / "2" / "generation_config.json").write_text('{"eos_token_id": 1}', "utf-8")
        save_pretrained(here, tmp_path / "2")
        there = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "2")
        assert there.generation_config.eos_token_id == ends
        ids = torch.from_numpy(prompt)
        generated = there.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False).numpy()
        ours = here.generate(prompt, max_new_tokens=12, temperature=0)
        assert np.array_equal(generated, ours)
        assert ours[0, -1] == eos
        assert ours.shape[1] < 17


def test_rows_end_at_any_mark_as_in_transformers(tmp_path: Path, rng: np.random.Generator) -> None:
    """Up to their ends: behind it transformers pads, and here the end mark is repeated."""
    theirs(False, tie_word_embeddings=True, **SMALL).save_pretrained(tmp_path)
    prompts = rng.integers(3, SMALL["vocab_size"], (3, 5))
    free = from_pretrained(tmp_path).generate(prompts, max_new_tokens=9, temperature=0)
    ends = [int(free[0, 7]), int(free[1, 9])]
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends, "pad_token_id": 0}), "utf-8")
    ours = from_pretrained(tmp_path).generate(prompts, max_new_tokens=9, temperature=0)
    there = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.from_numpy(prompts)
    generated = there.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=9, do_sample=False).numpy()
    assert ours.shape == generated.shape
    for mine, other in zip(ours[:, 5:], generated[:, 5:]):
        end = next((i for i, token in enumerate(mine) if token in ends), len(mine))
        assert np.array_equal(mine[: end + 1], other[: end + 1])
        assert (mine[end:] == mine[min(end, len(mine) - 1)]).all()


def test_every_field_of_theirs_that_matters_is_known_or_refused() -> None:
    """A field that a later transformers adds is looked at before it is ignored."""
    harmless = {
        # of every config, and about loading, training, or what is returned
        *("architectures", "chunk_size_feed_forward", "dtype", "id2label", "initializer_range", "is_encoder_decoder"),
        *("label2id", "model_type", "output_attentions", "output_hidden_states", "output_router_logits"),
        *("problem_type", "return_dict", "transformers_version", "use_cache", "_name_or_path"),
        # nothing without use_sliding_window
        *("sliding_window", "max_window_layers"),
    }
    known = set(MiniMindConfig.__dataclass_fields__) | set(REFUSED) | harmless
    known |= {"layer_types", "rope_parameters", "attention_dropout", "num_local_experts"}
    for config in (transformers.Qwen3Config(), transformers.Qwen3MoeConfig()):
        assert set(config.to_dict()) <= known


# -- full-size models --------------------------------------------------------------------------------------------

MEASURE = textwrap.dedent("""
    import json, sys, threading, time
    import numpy as np
    import numpy_minimind as nm
    import numpy_minimind.checkpoint.pth

    def anonymous():  # what the process itself holds in memory, mapped files not counted
        with open("/proc/self/status", encoding="ascii") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon"))

    def watch():
        while not done.wait(0.001):
            peaks.append(anonymous())

    path, ids, out = sys.argv[1:]
    import safetensors
    before, peaks, done = anonymous(), [0], threading.Event()
    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    model = nm.from_pretrained(path)
    seconds = time.perf_counter() - start
    peaks.append(anonymous())
    done.set()
    watcher.join()
    np.save(out, model(np.load(ids)))
    size = sum(4 * parameter.data.size for _, parameter in model.named_parameters())
    print(json.dumps({"seconds": seconds, "peak": max(peaks) - before, "weights": size}))
""")


def load_in_a_fresh_process(path: Path, ids: np.ndarray, folder: Path) -> tuple[np.ndarray, dict[str, float]]:
    np.save(folder / "ids.npy", ids)
    arguments = [str(path), str(folder / "ids.npy"), str(folder / "logits.npy")]
    run = subprocess.run([sys.executable, "-c", MEASURE, *arguments], check=True, capture_output=True, encoding="utf-8")
    return np.load(folder / "logits.npy"), json.loads(run.stdout)


@pytest.fixture
def ids(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 6400, (1, 48))


def full_size(moe: bool, dtype: Any) -> Any:
    return theirs(moe, dtype, **MINIMIND3, **(MINIMIND3_MOE if moe else {}))


def check(path: Path, model: Any, ids: np.ndarray, folder: Path, label: str) -> None:
    logits, measured = load_in_a_fresh_process(path, ids, folder)
    assert measured["weights"] == 4 * sum(parameter.numel() for parameter in model.parameters())
    expected = logits_of(model, ids)
    error = np.abs(logits - expected).max() / np.abs(expected).max()
    print(  # with -s, the table of docs/en/checkpoints.md
        f"\n{label}: {measured['seconds']:.2f} s, {measured['peak'] / measured['weights']:.3f} of "
        f"{measured['weights'] / 1e6:.0f} MB, logits differ by {error:.1e}"
    )
    assert_same_logits(logits, expected)
    assert measured["peak"] <= 1.2 * measured["weights"]


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 5000.0},
        {"rope_parameters": {"rope_theta": 5000.0}},
        {"rope_theta": 5000.0, "rope_scaling": {"rope_type": "yarn", **BARE}},
        {"rope_theta": 5000.0, "rope_scaling": {"type": "yarn", **BARE}},  # the old name
        {"rope_theta": 5000.0, "rope_scaling": {"type": "yarn", **BARE, "attention_factor": 1.0}},
        {"rope_parameters": {"type": "yarn", "rope_theta": 5000.0, **BARE, "beta_slow": 2.0}},
        {
            "rope_theta": 5000.0,
            "rope_scaling": {"type": "yarn", **BARE},
            "rope_parameters": {"rope_type": "yarn", "rope_theta": 5000.0, **BARE},
        },
    ],
)
@pytest.mark.parametrize("kind", ["Qwen3", "Qwen3Moe"])
def test_rotations_are_spelled_as_transformers_reads_them(kind: str, spelling: dict[str, Any]) -> None:
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

    fields = {name: value for name, value in SMALL.items() if name != "rope_parameters"}
    theirs = Qwen3RotaryEmbedding(getattr(transformers, f"{kind}Config")(**fields, **copy.deepcopy(spelling)))
    model_type = {"Qwen3": "qwen3", "Qwen3Moe": "qwen3_moe"}[kind]
    config = MiniMindConfig.from_dict({"model_type": model_type, **fields, **spelling})
    ours = RotaryEmbedding(config.head_dim, config.rope_theta, config.yarn)
    np.testing.assert_allclose(ours.frequencies, theirs.inv_freq.numpy(), rtol=1e-6)
    assert ours.factor == pytest.approx(theirs.attention_scaling, rel=1e-12)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
@pytest.mark.parametrize("moe", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shard", ["50GB", "100MB"])
def test_full_size_folders(tmp_path: Path, ids: np.ndarray, moe: bool, dtype: Any, shard: str) -> None:
    model = full_size(moe, dtype)
    model.save_pretrained(tmp_path / "model", max_shard_size=shard)
    files = [path for path in (tmp_path / "model").iterdir() if path.suffix == ".safetensors"]
    assert (len(files) > 1) == (shard == "100MB")
    label = f"{'minimind3-moe' if moe else 'minimind3'}, {str(dtype).removeprefix('torch.')}, {len(files)} files"
    check(tmp_path / "model", model, ids, tmp_path, label)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
@pytest.mark.parametrize("moe", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_full_size_pth(tmp_path: Path, ids: np.ndarray, moe: bool, fused: bool) -> None:
    """As MiniMind writes it: float16, the head under its own name, experts one by one; and as transformers holds it."""
    if fused and not moe:
        pytest.skip("a dense model has no experts")
    model = full_size(moe, torch.float16)
    state = dict(model.state_dict())
    if not fused:
        state = {new: part for name, tensor in state.items() for new, part in one_by_one(name, tensor)}
        assert len(state) == (91 if not moe else 91 + 8 * (1 + 3 * 4 - 3))
    file = tmp_path / f"full_sft_768{'_moe' if moe else ''}.pth"
    torch.save(state, file)
    model.config.save_pretrained(tmp_path)
    check(file, model, ids, tmp_path, f"{file.name}{', fused' if fused else ''}")


def one_by_one(name: str, tensor: Any) -> Iterator[tuple[str, Any]]:
    """Take apart what transformers 5 holds fused, for torch.save; everything else as it is."""
    match = re.fullmatch(r"(.*\.mlp\.experts\.)(gate_up_proj|down_proj)", name)
    if match is None:
        yield name, tensor
        return
    parts = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}[match[2]]
    for e, expert in enumerate(tensor):
        for part, matrix in zip(parts, expert.chunk(len(parts), dim=0)):
            yield f"{match[1]}{e}.{part}.weight", matrix.clone()
