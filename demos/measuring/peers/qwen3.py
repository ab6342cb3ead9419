"""transformers' Qwen3, which computes what MiniMind-3 computes: reading a prompt, and writing with its cache."""

import inspect
import time

import numpy as np
import torch
import transformers
from transformers import Qwen3Config, Qwen3ForCausalLM

from numpy_minimind import MiniMindForCausalLM

transformers.logging.set_verbosity_error()


def qwen3(config):
    """The model of a MiniMindConfig, with PyTorch's fused attention."""
    same = (
        "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
        "intermediate_size", "rms_norm_eps", "max_position_embeddings", "tie_word_embeddings",
    )  # fmt: skip
    words = {name: getattr(config, name) for name in same}
    rope = {"rope_parameters": {"rope_theta": config.rope_theta, "rope_type": "default"}}
    if int(transformers.__version__.partition(".")[0]) < 5:
        rope = {"rope_theta": config.rope_theta}
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    return Qwen3ForCausalLM(Qwen3Config(**words, **rope, **ends, attn_implementation="sdpa")).eval()


class Qwen3Prefill:
    """Reading a prompt, the logits of its last token included; a call returns its seconds."""

    def __init__(self, config, ids):
        self.model, self.ids = qwen3(config), torch.from_numpy(ids)

    @torch.inference_mode()
    def __call__(self):
        began = time.perf_counter()
        self.logits = self.model(self.ids, use_cache=True, logits_to_keep=1).logits
        return time.perf_counter() - began


class Qwen3Decode:
    """Writing tokens, the most likely one each time, in a bare loop: `generate` would add work of its own."""

    def __init__(self, config, ids, tokens, device="cpu"):
        self.model, self.ids, self.tokens = qwen3(config).to(device), torch.from_numpy(ids).to(device), tokens
        # Newer versions call past_key_values cache.
        self.cache = "cache" if "cache" in inspect.signature(self.model.forward).parameters else "past_key_values"

    @torch.inference_mode()
    def __call__(self):
        out = self.model(self.ids, use_cache=True, logits_to_keep=1)
        self.written = [out.logits[:, -1].argmax(-1, keepdim=True)]
        began = time.perf_counter()
        for _ in range(self.tokens):
            cache = {self.cache: out[self.cache]}
            out = self.model(self.written[-1], **cache, use_cache=True, logits_to_keep=1)
            self.written.append(out.logits[:, -1].argmax(-1, keepdim=True))
        self.written[-1].cpu()  # waits for a GPU
        return time.perf_counter() - began


def ids(config, tokens):
    return np.random.default_rng(0).integers(config.vocab_size, size=(1, tokens))


def transformers_prefill(config, tokens, threads):
    torch.set_num_threads(threads)
    return Qwen3Prefill(config, ids(config, tokens))


def transformers_decode(config, prompt, tokens, threads):
    torch.set_num_threads(threads)
    return Qwen3Decode(config, ids(config, prompt), tokens)


def logits_differ_by(config, tokens, threads):
    """The largest difference of the logits after a prompt, transformers' and ours, against the largest logit."""
    torch.set_num_threads(threads)
    ours = MiniMindForCausalLM(config, rng=np.random.default_rng(0))
    theirs = Qwen3Prefill(config, ids(config, tokens))
    state = {name: torch.tensor(w) for name, w in ours.state_dict().items()}
    theirs.model.load_state_dict({**state, "lm_head.weight": state["model.embed_tokens.weight"]})
    theirs()
    logits = ours(ids(config, tokens), logits_to_keep=1)
    return float(np.abs(theirs.logits.numpy() - logits).max() / np.abs(logits).max())
