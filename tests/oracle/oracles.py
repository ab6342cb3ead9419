r"""A second opinion on every layer: the formulas in plain PyTorch, float64, differentiated by autograd.

Nothing here comes from numpy_minimind, so a mistake made there in forward *and* backward still shows here.
Where there is a choice this file takes the slow and literal way, and a different one from the package's
where possible: an embedding is a product with one-hot rows, shared key heads are copied out, every expert
sees every token. Weights are (out, in) and ``y = x @ W.T``. Weight dicts use MiniMind's state-dict names,
relative to the module: ``attention`` reads ``q_proj.weight``, ``block`` reads ``self_attn.q_proj.weight``.

B batch, T queries, S keys, D model width, N query heads, K key/value heads, G = N / K, H head width,
F feed-forward width, E experts, k experts a token, V vocabulary.

A test module calls ``pytest.importorskip("torch")`` before it imports this one.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.yarns import MINIMIND

Weights = Mapping[str, Tensor]


# --- Layers, in the package's reading order -----------------------------------------------------------------


def linear(x: Tensor, w: Tensor) -> Tensor:
    r"""$y_o = \sum_i x_i W_{oi}$; x (..., in), w (out, in)."""
    return x @ w.T


def embedding(ids: Tensor, table: Tensor) -> Tensor:
    r"""$y_t = \sum_v [ids_t = v] \, table_v$; ids (...), table (V, D)."""
    one_hot = torch.nn.functional.one_hot(ids.long(), table.shape[0]).to(table.dtype)  # (..., V)
    return one_hot @ table


def rmsnorm(x: Tensor, w: Tensor, eps: float = 1e-6) -> Tensor:
    r"""$y = w \odot x / \sqrt{\mathrm{mean}(x^2) + \epsilon}$, the mean over the last axis."""
    return w * x / torch.sqrt((x**2).mean(dim=-1, keepdim=True) + eps)


def rope_inverse_frequencies(
    head_dim: int, theta: float, scaling: Mapping[str, Any] | None = None,
    max_position_embeddings: int = 32768,
) -> tuple[Tensor, float]:  # fmt: skip
    r"""$f_i = \theta^{-2i/H}$ for $i < H/2$, and the factor that multiplies cos and sin (1 without YaRN).

    YaRN mixes each frequency with its slowed-down form, $f_i \leftarrow f_i (1 - r_i) + r_i f_i / factor$.
    The ramp r rises from 0 at pair ``low`` to 1 at pair ``high``; low is $c(beta\_fast)$ and high is
    $c(beta\_slow)$, rounded outwards, where pair $c(b) = H \ln(orig / 2 \pi b) / (2 \ln\theta)$ is the one
    that makes b turns in the original length.

    ``scaling["rope_type"]`` selects transformers' form of the details, ``scaling["type"]`` alone MiniMind's:

    ================  =======================================  =============================================
    detail            ``type`` (MiniMind)                      ``rope_type`` (transformers)
    ================  =======================================  =============================================
    applies           if max_position_embeddings > original    always
    low, high         floor, ceil                              floor, ceil, unless ``truncate`` is false
    high at most      H/2 - 1                                  H - 1
    ramp's width      max(high - low, 0.001)                   high - low, or 0.001 when that is 0
    attention factor  as given, else 1                         as given, else 0.1 ln(factor) + 1 (mscale)
    ================  =======================================  =============================================
    """
    half = head_dim // 2
    i = torch.arange(half, dtype=torch.float64)
    inv_freq = float(theta) ** (-2 * i / head_dim)  # (H/2,)
    kind = "default" if scaling is None else scaling.get("rope_type") or scaling.get("type") or "default"
    if scaling is None or kind == "default":
        return inv_freq, 1.0
    if kind != "yarn":
        raise ValueError(f"no oracle for rope scaling {kind!r}")

    as_transformers = bool(scaling.get("rope_type"))
    original = scaling["original_max_position_embeddings"]
    if not as_transformers and max_position_embeddings <= original:
        return inv_freq, 1.0

    def pair_that_turns(times: float) -> float:
        return head_dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(theta))

    factor = scaling.get("factor") or max_position_embeddings / original
    low: float = pair_that_turns(scaling.get("beta_fast") or 32)
    high: float = pair_that_turns(scaling.get("beta_slow") or 1)
    if not as_transformers or scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low = max(low, 0)
    if as_transformers:
        high = min(high, head_dim - 1)
        width = high - low if high != low else 0.001
    else:
        high = min(high, half - 1)
        width = max(high - low, 0.001)
    ramp = ((i - low) / width).clamp(0, 1)  # (H/2,)
    inv_freq = inv_freq * (1 - ramp) + ramp * inv_freq / factor
    return inv_freq, _attention_factor(scaling, factor, as_transformers)


def _attention_factor(scaling: Mapping[str, Any], factor: float, as_transformers: bool) -> float:
    """As given; else 1 (MiniMind) or 0.1 ln(factor) + 1 (transformers; a ratio of two such with mscale)."""
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    if not as_transformers:
        return 1.0

    def grown(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return grown(scaling["mscale"]) / grown(scaling["mscale_all_dim"])
    return grown(1.0)


def rotary(x: Tensor, positions: Tensor, inv_freq: Tensor, attention_factor: float = 1.0) -> Tensor:
    r"""Turn each pair $(x_i, x_{i+H/2})$ by the angle $position \cdot f_i$ and scale it by the factor.

    x (B, heads, T, H) with positions (B, T), or x (..., T, H) with positions (T,).
    """
    angle = positions.to(torch.float64)[..., None] * inv_freq  # (T, H/2) or (B, T, H/2)
    if positions.dim() == 2:
        angle = angle[:, None]  # (B, 1, T, H/2)
    cos, sin = attention_factor * torch.cos(angle), attention_factor * torch.sin(angle)
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def softmax(x: Tensor, visible: Tensor | None = None) -> Tensor:
    r"""$p_j = e^{x_j} / \sum_{j'} e^{x_{j'}}$ over the visible entries of the last axis; zeros if none is."""
    if visible is not None:
        x = torch.where(visible, x, -math.inf)
    largest = x.detach().amax(dim=-1, keepdim=True)  # a constant shift: it cancels
    powers = torch.exp(x - torch.where(largest == -math.inf, 0.0, largest))
    total = powers.sum(dim=-1, keepdim=True)
    return powers / torch.where(total == 0, 1.0, total)


def scaled_dot_product(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None = None) -> Tensor:
    r"""$\mathrm{softmax}(q k^T / \sqrt H) v$; query head n reads key head $\lfloor n / G \rfloor$.

    q (B, N, T, H), k and v (B, K, S, H), visible broadcast to (B, N, T, S) -> (B, N, T, H).
    """
    groups = q.shape[1] // k.shape[1]
    k = k.repeat_interleave(groups, dim=1)  # (B, N, S, H)
    v = v.repeat_interleave(groups, dim=1)
    scores = torch.einsum("bnth,bnsh->bnts", q, k) / math.sqrt(q.shape[-1])
    return torch.einsum("bnts,bnsh->bnth", softmax(scores, visible), v)


def attention(
    x: Tensor, weights: Weights, positions: Tensor, visible: Tensor | None, inv_freq: Tensor,
    attention_factor: float = 1.0, eps: float = 1e-6,
) -> Tensor:  # fmt: skip
    r"""q, k, v; RMSNorm of each q and k head; rotation of q and k; softmax; o_proj. x (B, T, D) -> (B, T, D).

    The head width H is read from the length of ``q_norm.weight``, N and K from the projections.
    """
    B, T, _ = x.shape
    H = weights["q_norm.weight"].shape[0]

    def heads(name: str) -> Tensor:
        return linear(x, weights[f"{name}.weight"]).reshape(B, T, -1, H).transpose(1, 2)  # (B, N or K, T, H)

    q = rmsnorm(heads("q_proj"), weights["q_norm.weight"], eps)
    k = rmsnorm(heads("k_proj"), weights["k_norm.weight"], eps)
    q = rotary(q, positions, inv_freq, attention_factor)
    k = rotary(k, positions, inv_freq, attention_factor)
    o = scaled_dot_product(q, k, heads("v_proj"), visible)  # (B, N, T, H)
    return linear(o.transpose(1, 2).reshape(B, T, -1), weights["o_proj.weight"])


def swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    r"""$y = (\mathrm{silu}(x W_g^T) \odot x W_u^T) W_d^T$, $\mathrm{silu}(a) = a / (1 + e^{-a})$.

    gate and up (F, D), down (D, F).
    """
    a = linear(x, gate)
    return linear(a * torch.sigmoid(a) * linear(x, up), down)


def moe(
    x: Tensor, weights: Weights, k: int = 1, norm_topk_prob: bool | None = None, coef: float = 5e-4,
    counted: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    r"""$y = \sum_e c_e \, expert_e(x)$, $aux = coef \cdot E \sum_e load_e \, \overline{p}_e$ -> (y, aux).

    x (..., D). $p = \mathrm{softmax}(x W_g^T)$; c is p where e is among the k largest (ties: lowest index),
    else 0, divided by its sum if norm_topk_prob (None: if k > 1). load is the share of counted tokens that
    chose e, all k choices added (so it sums to k), a constant. counted (...) bool marks the tokens that enter
    both means (None: all). Every expert is run on every token.
    """
    p = softmax(linear(x, weights["gate.weight"]))  # (..., E)
    E = p.shape[-1]
    order = torch.sort(p.detach(), dim=-1, descending=True, stable=True).indices
    chosen = torch.nn.functional.one_hot(order[..., :k], E).sum(dim=-2).to(p.dtype)  # (..., E) of 0 and 1
    c = p * chosen
    if norm_topk_prob or (norm_topk_prob is None and k > 1):
        c = c / c.sum(dim=-1, keepdim=True)
    y = torch.zeros_like(x)
    for e in range(E):
        gate, up, down = (weights[f"experts.{e}.{part}_proj.weight"] for part in ("gate", "up", "down"))
        y = y + c[..., e, None] * swiglu(x, gate, up, down)

    count = torch.ones(p.shape[:-1], dtype=p.dtype) if counted is None else counted.to(p.dtype)  # (...)
    n = max(float(count.sum()), 1.0)
    load = (chosen * count[..., None]).reshape(-1, E).sum(dim=0) / n  # (E,)
    mean_p = (p * count[..., None]).reshape(-1, E).sum(dim=0) / n  # (E,)
    return y, coef * E * (load * mean_p).sum()


def block(
    x: Tensor, weights: Weights, positions: Tensor, visible: Tensor | None, inv_freq: Tensor,
    attention_factor: float = 1.0, eps: float = 1e-6, k: int = 1, norm_topk_prob: bool | None = None,
    coef: float = 5e-4, counted: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    r"""$h = x + attention(norm_1(x))$, $y = h + mlp(norm_2(h))$ -> (y, aux).

    The mlp is a mixture of experts if there is a router (``mlp.gate.weight``), else SwiGLU with aux = 0.
    """
    a = rmsnorm(x, weights["input_layernorm.weight"], eps)
    h = x + attention(a, under("self_attn.", weights), positions, visible, inv_freq, attention_factor, eps)
    b = rmsnorm(h, weights["post_attention_layernorm.weight"], eps)
    mlp = under("mlp.", weights)
    if "gate.weight" in mlp:
        m, aux = moe(b, mlp, k, norm_topk_prob, coef, counted)
    else:
        m = swiglu(b, mlp["gate_proj.weight"], mlp["up_proj.weight"], mlp["down_proj.weight"])
        aux = torch.zeros((), dtype=x.dtype)
    return h + m, aux


def cross_entropy(
    logits: Tensor, targets: Tensor, num_items: int | None = None, ignore_index: int = -100
) -> tuple[Tensor, int]:
    r"""$\sum_t (\ln \sum_v e^{z_{tv}} - z_{t, target_t}) / n$ over the labelled t -> (loss, number labelled).

    logits (..., V), targets (...), already aligned: nothing is shifted. n is num_items if given, else the
    number labelled. Nothing labelled: loss 0 and gradient 0.
    """
    labelled = targets != ignore_index
    index = torch.where(labelled, targets, 0).long()
    picked = logits.gather(-1, index[..., None])[..., 0]
    each = torch.where(labelled, torch.logsumexp(logits, dim=-1) - picked, 0.0)
    n = int(labelled.sum())
    return each.sum() / max(n if num_items is None else num_items, 1), n


# --- The model ----------------------------------------------------------------------------------------------


def under(prefix: str, weights: Weights) -> dict[str, Tensor]:
    """The entries whose names start with the prefix, without it: ``under("mlp.", block_weights)``."""
    return {name[len(prefix) :]: w for name, w in weights.items() if name.startswith(prefix)}


def token_positions(tokens: int, attention_mask: Tensor | None = None) -> Tensor:
    """0, 1, 2 ... (T,); with a mask (B, T), counted from each row's first visible token, 0 before: (B, T)."""
    t = torch.arange(tokens)
    if attention_mask is None:
        return t
    first = attention_mask.to(torch.int64).argmax(dim=1, keepdim=True)  # (B, 1); 0 for a row of padding only
    return (t - first).clamp(min=0)


def visible_keys(queries: int, keys: int | None = None, attention_mask: Tensor | None = None) -> Tensor:
    """True where a key is not in the future and not padding: (T, S), or (B, 1, T, S) with a mask (B, S).

    The queries are the last T of the S tokens (S = T without a cache).
    """
    keys = queries if keys is None else keys
    not_future = torch.arange(keys) <= torch.arange(queries)[:, None] + keys - queries  # (T, S)
    if attention_mask is None:
        return not_future
    return not_future & attention_mask.bool()[:, None, None, :]


def rope_settings(config: Mapping[str, Any]) -> tuple[float, Mapping[str, Any] | None]:
    """(theta, scaling) of flat fields, of nested ``rope_parameters``, or of ``inference_rope_scaling``."""
    nested = config.get("rope_parameters")
    theta = (nested or {}).get("rope_theta") or config.get("rope_theta") or 1e6
    default = MINIMIND if config.get("inference_rope_scaling") else None
    return float(theta), nested or config.get("rope_scaling") or default


def causal_lm(
    input_ids: Tensor, state: Weights, config: Mapping[str, Any], attention_mask: Tensor | None = None,
    use_aux: bool = True,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """embed -> blocks -> norm -> head: ids (B, T) -> (logits (B, T, V), aux loss summed over layers).

    Fields that config lacks (or holds as None) take MiniMind's defaults. Masked-out tokens are not keys and
    not counted in the aux loss, which is 0 without ``use_aux``.
    """

    def field(name: str, default: Any) -> Any:
        value = config.get(name)
        return default if value is None else value

    T = input_ids.shape[1]
    eps = field("rms_norm_eps", 1e-6)
    H = state["model.layers.0.self_attn.q_norm.weight"].shape[0]
    theta, scaling = rope_settings(config)
    inv_freq, factor = rope_inverse_frequencies(H, theta, scaling, field("max_position_embeddings", 32768))
    positions, visible = token_positions(T, attention_mask), visible_keys(T, None, attention_mask)
    counted = None if attention_mask is None else attention_mask.bool()

    x = embedding(input_ids, state["model.embed_tokens.weight"])  # (B, T, D)
    total_aux = torch.zeros((), dtype=x.dtype)
    for layer in range(config["num_hidden_layers"]):
        weights = under(f"model.layers.{layer}.", state)
        x, aux = block(
            x, weights, positions, visible, inv_freq, factor, eps,
            k=field("num_experts_per_tok", 1), norm_topk_prob=config.get("norm_topk_prob"),
            coef=field("router_aux_loss_coef", 5e-4), counted=counted,
        )  # fmt: skip
        total_aux = total_aux + aux
    x = rmsnorm(x, state["model.norm.weight"], eps)
    tied = field("tie_word_embeddings", True)
    logits = linear(x, state["model.embed_tokens.weight" if tied else "lm_head.weight"])
    return logits, total_aux if use_aux else torch.zeros((), dtype=x.dtype)


def loss(
    input_ids: Tensor, labels: Tensor, state: Weights, config: Mapping[str, Any],
    attention_mask: Tensor | None = None, num_items: int | None = None, aux_share: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor, int]:  # fmt: skip
    """Logits at t against the label at t + 1 -> (ce + aux_share * aux, ce, aux, number labelled).

    A micro-batch passes num_items (of all micro-batches) and the share of them that is its own as aux_share.
    """
    logits, aux = causal_lm(input_ids, state, config, attention_mask)
    ce, n = cross_entropy(logits[:, :-1], labels[:, 1:], num_items)
    return ce + aux_share * aux, ce, aux, n


# --- Training -----------------------------------------------------------------------------------------------


def adamw_step(
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, t: int, lr: float, betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8, weight_decay: float = 0.01,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    r"""Step t = 1, 2, ... of one parameter -> (p, m, v), new tensors.

    $m = \beta_1 m + (1 - \beta_1) g$, $v = \beta_2 v + (1 - \beta_2) g^2$, then
    $p = p (1 - lr \cdot decay) - lr \cdot \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}$.
    """
    m = betas[0] * m + (1 - betas[0]) * g
    v = betas[1] * v + (1 - betas[1]) * g**2
    step = (m / (1 - betas[0] ** t)) / (torch.sqrt(v / (1 - betas[1] ** t)) + eps)
    return p * (1 - lr * weight_decay) - lr * step, m, v


def clip_gradients(grads: Sequence[Tensor], max_norm: float, eps: float = 0.0) -> tuple[float, list[Tensor]]:
    r"""(norm of all, clipped): each gradient times $\min(1, max\_norm / (norm + \epsilon))$.

    A norm that is not finite is returned and nothing is changed. PyTorch's own clipping has eps = 1e-6.
    """
    norm = math.sqrt(sum(float((g.double() ** 2).sum()) for g in grads))
    scale = min(1.0, max_norm / (norm + eps)) if math.isfinite(norm) and norm + eps > 0 else 1.0
    return norm, [g * scale for g in grads]


def cosine_lr(t: int, total: int, base: float) -> float:
    r"""$base (0.1 + 0.45 (1 + \cos(\pi t / total)))$, t counted from 1; its floor base / 10 after total."""
    return base * (0.1 + 0.45 * (1 + math.cos(math.pi * min(t, total) / total)))


# --- From NumPy and back ------------------------------------------------------------------------------------


def gradients(
    fn: Callable[..., Any], *arrays: Any, cotangents: Sequence[Any]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    r"""Run fn and differentiate $\sum_{outputs} \sum (y \cdot dy)$ -> (outputs, gradients), all NumPy.

    Each of ``arrays`` is a float64 array (differentiated), an array of integers or booleans, a dict of arrays
    (a weight dict), or anything else (handed on as it is). fn returns a tensor or a tuple; ``cotangents`` has
    one array for each output, None to leave that output out. The gradients come in the order of ``arrays``, a
    dict for a dict; zeros for an array that the result does not depend on, None if it is not differentiated.
    """
    arguments = [_leaf(a) for a in arrays]
    result = fn(*arguments)
    outputs = result if isinstance(result, tuple) else (result,)
    if len(cotangents) != len(outputs):
        raise ValueError(f"{len(outputs)} outputs, but {len(cotangents)} cotangents")
    for y, dy in zip(outputs, cotangents):
        if dy is None:
            continue
        if np.shape(dy) != tuple(y.shape):
            raise ValueError(f"a cotangent of shape {np.shape(dy)} for an output of shape {tuple(y.shape)}")
        if y.requires_grad:
            y.backward(torch.tensor(np.array(dy, dtype=np.float64)), retain_graph=True)
    to_numpy = [y.detach().numpy() if isinstance(y, Tensor) else y for y in outputs]
    return tuple(to_numpy), tuple(_gradient(a) for a in arguments)


def _leaf(a: Any) -> Any:
    """A tensor that owns its memory, one that asks for a gradient if it is float64; dicts entry by entry."""
    if isinstance(a, Mapping):
        return {name: _leaf(value) for name, value in a.items()}
    if not isinstance(a, np.ndarray):
        return a
    if a.dtype.kind in "fc" and a.dtype != np.float64:
        raise TypeError(f"the oracle differentiates float64 only, not {a.dtype}")
    return torch.tensor(np.array(a, order="C"), requires_grad=a.dtype == np.float64)


def _gradient(a: Any) -> Any:
    """What backward left in a leaf, zeros if nothing; dicts entry by entry; None for anything else."""
    if isinstance(a, dict):
        return {name: _gradient(value) for name, value in a.items()}
    if not isinstance(a, Tensor) or not a.requires_grad:
        return None
    return np.zeros(tuple(a.shape)) if a.grad is None else a.grad.numpy()
