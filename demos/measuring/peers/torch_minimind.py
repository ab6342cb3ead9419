"""MiniMind-3 in plain PyTorch, as one writes it for speed: what NumPy is compared with."""

import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from numpy_minimind.measuring.workloads import TrainStep


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.N, self.K, self.H = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        self.q_proj = nn.Linear(c.hidden_size, self.N * self.H, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, self.K * self.H, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, self.K * self.H, bias=False)
        self.o_proj = nn.Linear(self.N * self.H, c.hidden_size, bias=False)
        self.q_norm = nn.RMSNorm(self.H, c.rms_norm_eps)
        self.k_norm = nn.RMSNorm(self.H, c.rms_norm_eps)

    def forward(self, x, cos, sin):
        B, T, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(B, T, self.N, self.H)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(B, T, self.K, self.H)).transpose(1, 2)
        v = self.v_proj(x).view(B, T, self.K, self.H).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(o.transpose(1, 2).reshape(B, T, -1))


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class SwiGLU(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = nn.RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.mlp = SwiGLU(c)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, c, tokens):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Block(c) for _ in range(c.num_hidden_layers))
        self.norm = nn.RMSNorm(c.hidden_size, c.rms_norm_eps)
        frequencies = c.rope_theta ** (-torch.arange(0, c.head_dim, 2, dtype=torch.float64) / c.head_dim)
        angles = torch.outer(torch.arange(tokens, dtype=torch.float64), frequencies).repeat(1, 2)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def forward(self, ids):
        x, T = self.embed_tokens(ids), ids.shape[1]
        for block in self.layers:
            x = block(x, self.cos[:T], self.sin[:T])
        return self.norm(x)


class TorchMiniMind(nn.Module):
    """The names of its state dict are those of numpy_minimind; the head is tied to the table."""

    def __init__(self, config, tokens):
        super().__init__()
        self.model = Decoder(config, tokens)
        for p in self.parameters():
            if p.ndim == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, targets):
        logits = F.linear(self.model(ids), self.model.embed_tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class TorchTrainStep:
    """A training step; a call returns its seconds. As `numpy_minimind.measuring.workloads.TrainStep`."""

    def __init__(self, config, inputs, targets, compiled=False, device="cpu"):
        self.model = TorchMiniMind(config, inputs.shape[1]).to(device)
        self.loss_of = torch.compile(self.model, dynamic=False) if compiled else self.model
        matrices = [p for p in self.model.parameters() if p.ndim >= 2]
        gains = [p for p in self.model.parameters() if p.ndim < 2]
        groups = [{"params": matrices, "weight_decay": 0.01}, {"params": gains, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-4, fused=True)
        self.inputs, self.targets = torch.from_numpy(inputs).to(device), torch.from_numpy(targets).to(device)
        self.loss = 0.0

    def __call__(self):
        began = time.perf_counter()
        self.optimizer.zero_grad()
        loss = self.loss_of(self.inputs, self.targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.loss = loss.item()
        return time.perf_counter() - began


def torch_train(config, batch, tokens, threads, compiled=False):
    torch.set_num_threads(threads)
    inputs, targets = np.random.default_rng(0).integers(config.vocab_size, size=(2, batch, tokens))
    return TorchTrainStep(config, inputs, targets, compiled)


def training_differs_by(config, batch, tokens, threads):
    """The largest relative difference of the losses of three training steps, PyTorch's and ours, from one start."""
    torch.set_num_threads(threads)
    ours = TrainStep(config, batch, tokens, threads)
    theirs = TorchTrainStep(config, ours.batch.inputs, ours.batch.targets)
    theirs.model.load_state_dict({name: torch.tensor(w) for name, w in ours.model.state_dict().items()})
    differences = []
    for _ in range(3):
        ours(), theirs()
        differences.append(abs(ours.loss - theirs.loss) / ours.loss)
    return max(differences)


# PyTorch loads some of itself at first use: now, so that it does not count as memory of the work.
torch.optim.AdamW([nn.Parameter(torch.zeros(1))], fused=True)
