"""The same model in three programs: this package, transformers, and the float64 oracle of oracles.py.

Who imports this one, tests and `parity.py`, sees first that torch and transformers are there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from peers import oracles
from peers.parity_cases import Batch, Case, batch, generators, weights

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # theirs, of deprecated things within
    import transformers
    from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from peers.parity_rows import ParityRow, compare

from numpy_minimind import MiniMindConfig, MiniMindForCausalLM
from numpy_minimind.training import AdamW, clip_grad_norm, cosine_lr

transformers.logging.set_verbosity_error()

# Experts are chosen by the k largest of p. In float32 p is off by about 1e-6: how a nearer tie than that is broken is
# chance, on both sides. So weights and batches are drawn again until every choice has this margin; ten steps of
# training make ten to thirty times as many choices and get a smaller one.
ROUTING_MARGIN, TRAINING_MARGIN = 1e-3, 1e-4

Arrays = dict[str, np.ndarray]


class Result(NamedTuple):
    """What one program computed. Values at padding are set to zero: nobody defines them."""

    outputs: Arrays  # of each module: embedding, blocks, norm, head (the logits)
    losses: Arrays  # loss; for the oracle and ours with an auxiliary loss also ce_loss, aux_loss
    gradients: Arrays


# --- The model in each program ------------------------------------------------------------------------------


def our_model(fields: Mapping[str, Any], state: Arrays, dtype: Any = np.float64) -> MiniMindForCausalLM:
    model = MiniMindForCausalLM(MiniMindConfig(**fields), dtype=dtype)
    model.load_state_dict({name: a.astype(dtype) for name, a in state.items()})
    return model


def their_config(fields: Mapping[str, Any]) -> Qwen3Config | Qwen3MoeConfig:
    """The config in transformers' words, written out here: the package's own translation is not asked."""
    same = (
        "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
        "intermediate_size", "rms_norm_eps", "max_position_embeddings", "tie_word_embeddings", "pad_token_id",
    )  # fmt: skip
    words = {name: fields[name] for name in same} | {"bos_token_id": None, "eos_token_id": None}
    scaling = dict(fields.get("rope_scaling") or {"rope_type": "default"})
    if int(transformers.__version__.partition(".")[0]) >= 5:
        words["rope_parameters"] = {"rope_theta": fields["rope_theta"], **scaling}
    else:
        words["rope_theta"] = fields["rope_theta"]
        words["rope_scaling"] = None if scaling["rope_type"] == "default" else scaling
    if not fields["use_moe"]:
        return Qwen3Config(**words)
    moe = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob")
    words |= {name: fields[name] for name in moe}
    return Qwen3MoeConfig(**words, decoder_sparse_step=1, router_aux_loss_coef=0.0)


def their_model(
    fields: Mapping[str, Any], state: Arrays, dtype: torch.dtype = torch.float64, attention: str = "sdpa"
) -> Any:
    """Qwen3 or Qwen3-MoE with these weights.

    Attention is PyTorch's own, "sdpa", which computes in the model's dtype. The "eager" one takes its softmax in
    float32, where the mask of a float64 model, -1.8e308, overflows: a query without a key (left padding) becomes NaN,
    and from the second layer on so does everything. Experts are "eager": one product an expert, as written in the
    model's file.
    """
    config = their_config(fields)
    config._attn_implementation = attention
    if fields["use_moe"]:
        config._experts_implementation = "eager"
    model = (Qwen3MoeForCausalLM if fields["use_moe"] else Qwen3ForCausalLM)(config).to(dtype).eval()
    own = model.state_dict()
    theirs = fused(state) if any(name.endswith("experts.gate_up_proj") for name in own) else dict(state)
    if fields["tie_word_embeddings"]:
        theirs["lm_head.weight"] = theirs["model.embed_tokens.weight"]
    model.load_state_dict({name: torch.tensor(a, dtype=dtype) for name, a in theirs.items()}, strict=True)
    return model


def fused(state: Arrays) -> Arrays:
    """Experts as transformers 5 holds them: ``gate_up_proj`` (E, 2F, D), gate above up, and ``down_proj`` (E, D, F)."""
    theirs = {name: a for name, a in state.items() if ".experts." not in name}
    for layer in sorted({name.partition(".experts.")[0] for name in state if ".experts." in name}):
        E = sum(name.startswith(f"{layer}.experts.") and name.endswith(".down_proj.weight") for name in state)

        def part(name: str, layer: str = layer, E: int = E) -> np.ndarray:
            return np.stack([state[f"{layer}.experts.{e}.{name}.weight"] for e in range(E)])

        theirs[f"{layer}.experts.gate_up_proj"] = np.concatenate([part("gate_proj"), part("up_proj")], axis=1)
        theirs[f"{layer}.experts.down_proj"] = part("down_proj")
    return theirs


def unfused(theirs: Mapping[str, np.ndarray]) -> Arrays:
    """The way back, for weights, gradients and moments alike."""
    state: Arrays = {}
    for name, a in theirs.items():
        prefix, _, leaf = name.rpartition(".")
        if leaf == "gate_up_proj":
            for e, gate_up in enumerate(a):
                state[f"{prefix}.{e}.gate_proj.weight"], state[f"{prefix}.{e}.up_proj.weight"] = np.split(gate_up, 2)
        elif leaf == "down_proj":
            state |= {f"{prefix}.{e}.down_proj.weight": down for e, down in enumerate(a)}
        else:
            state[name] = a
    return state


# --- Drawing a case -----------------------------------------------------------------------------------------


class Drawn(NamedTuple):
    state: Arrays
    batch: Batch
    margin: float  # smallest distance of the k-th and the next probability; 1 without experts


def draw(case: Case, **sizes: int) -> Drawn:
    """Weights and a batch, drawn again while two experts are nearly tied at the edge of the chosen ones."""
    for rng in generators(case):
        state, drawn = weights(shapes_of(case), rng), batch(case, rng, **sizes)
        margin = routing_margin(case, state, drawn)
        if margin > ROUTING_MARGIN:
            return Drawn(state, drawn, margin)
    raise AssertionError("unreachable")


def shapes_of(case: Case) -> dict[str, tuple[int, ...]]:
    model = MiniMindForCausalLM(MiniMindConfig(**case.fields))
    return {name: p.shape for name, p in model.named_parameters()}


def routing_margin(case: Case, state: Arrays, b: Batch) -> float:
    """The smallest p_(k) - p_(k+1) at a real token, as transformers computes them in float64."""
    if not case.is_moe:
        return 1.0
    with torch.no_grad():
        out = their_model(case.fields, state)(**their_inputs(b), output_router_logits=True, use_cache=False)
    return margin_of(out.router_logits, b.attention_mask, case.fields["num_experts_per_tok"])


def margin_of(router_logits: Sequence[torch.Tensor], mask: np.ndarray | None, k: int) -> float:
    if k == router_logits[0].shape[-1]:
        return 1.0  # all are chosen
    p = torch.stack(tuple(router_logits)).double().softmax(dim=-1).sort(dim=-1, descending=True).values  # (L, B T, E)
    margins = (p[..., k - 1] - p[..., k]).numpy()
    return float(margins.min() if mask is None else margins[:, mask.reshape(-1) == 1].min())


# --- Forward and backward in each program -------------------------------------------------------------------


def run_ours(model: MiniMindForCausalLM, b: Batch) -> Result:
    """The blocks are run one by one for what they hand on; logits, loss and gradients come from the public calls."""
    decoder = model.model
    mask = None if b.attention_mask is None else b.attention_mask.astype(bool)
    context = decoder.context(b.input_ids.shape[1], mask)
    x = decoder.embed_tokens(b.input_ids)
    outputs = {"model.embed_tokens.output": x}
    for i, block in enumerate(decoder.layers):
        (x, _), _ = block.forward(x, context)
        outputs[f"model.layers.{i}.output"] = x
    outputs["model.norm.output"] = decoder.norm(x)
    outputs["lm_head.output"] = model.forward(b.input_ids, b.attention_mask)[0].logits
    model.zero_grad()
    found = model.loss_and_grad(b.input_ids, b.labels, b.attention_mask)
    losses = {name: np.array(getattr(found, name)) for name in ("loss", "ce_loss", "aux_loss")}
    return Result(_real(outputs, b), losses, {name: p.grad for name, p in model.named_parameters()})


def run_theirs(model: Any, b: Batch) -> Result:
    outputs: Arrays = {}

    def keep(name: str) -> Any:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            outputs[f"{name}.output"] = (output[0] if isinstance(output, tuple) else output).detach().numpy()

        return hook

    names = ["model.embed_tokens", *(f"model.layers.{i}" for i in range(len(model.model.layers))), "model.norm"]
    hooks = [model.get_submodule(name).register_forward_hook(keep(name)) for name in [*names, "lm_head"]]
    model.zero_grad()
    loss = model(**their_inputs(b), labels=torch.tensor(b.labels), use_cache=False).loss
    loss.backward()
    for hook in hooks:
        hook.remove()
    gradients = {
        name: np.zeros(tuple(p.shape)) if p.grad is None else p.grad.numpy() for name, p in model.named_parameters()
    }
    return Result(_real(outputs, b), {"loss": loss.detach().numpy()}, unfused(gradients))


def their_inputs(b: Batch) -> dict[str, torch.Tensor]:
    """Positions are counted from a row's first token, as transformers' own generate counts them."""
    ids = torch.tensor(b.input_ids)
    mask = torch.ones_like(ids) if b.attention_mask is None else torch.tensor(b.attention_mask)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": (mask.cumsum(dim=1) - 1).clamp(min=0)}


def run_oracle(fields: Mapping[str, Any], state: Arrays, b: Batch) -> Result:
    """Logits, losses with the auxiliary one, gradients, in float64 throughout."""
    mask = None if b.attention_mask is None else torch.tensor(b.attention_mask)

    def logits_and_losses(ids: Any, labels: Any, state: Any) -> tuple[Any, ...]:
        return oracles.causal_lm(ids, state, fields, mask)[0], *oracles.loss(ids, labels, state, fields, mask)[:3]

    (logits, *losses), (_, _, gradients) = oracles.gradients(
        logits_and_losses, b.input_ids, b.labels, state, cotangents=[None, 1.0, None, None]
    )
    named = dict(zip(("loss", "ce_loss", "aux_loss"), losses))
    return Result(_real({"lm_head.output": logits}, b), named, gradients)


def _real(outputs: Arrays, b: Batch) -> Arrays:
    if b.attention_mask is None:
        return outputs
    return {name: np.where(b.attention_mask[:, :, None] == 1, a, 0) for name, a in outputs.items()}


def vanishing(fields: Mapping[str, Any], exact: Result) -> list[str]:
    """Gradients that are zero but for rounding: of routers whose one chosen weight is p / p, which is 1.

    An auxiliary loss gives them a gradient again, unless the experts of that layer happen to have equal loads.
    """
    if not (fields["use_moe"] and fields["num_experts_per_tok"] == 1 and fields["norm_topk_prob"]):
        return []
    largest = {name: float(np.abs(a).max()) for name, a in exact.gradients.items()}
    return [
        name for name, a in largest.items() if name.endswith("mlp.gate.weight") and a < 1e-12 * max(largest.values())
    ]


# --- Training -----------------------------------------------------------------------------------------------


class Settings(NamedTuple):
    """Of the optimizer, MiniMind's by default.

    Adam divides a gradient by its own size, so that rounding which turns 1e-8 into 2e-8 moves a weight as far as a real
    change. A larger eps makes the ten steps as well conditioned as the gradients are.
    """

    steps: int = 10
    lr: float = 5e-4
    max_norm: float = 1.0
    weight_decay: float = 0.01
    decay_all: bool = False
    eps: float = 1e-8


MINIMIND = Settings()


class Trained(NamedTuple):
    losses: np.ndarray  # (steps,)
    norms: np.ndarray  # (steps,) before clipping
    weights: Arrays
    m: Arrays
    v: Arrays
    margin: float = 1.0  # the nearest tie of experts on the way


def draw_training(case: Case, s: Settings, accumulate: int = 1) -> tuple[Arrays, list[list[Batch]], Trained]:
    """Weights, the micro-batches of each step, and what transformers makes of them in float64."""
    for rng in generators(case):
        state = weights(shapes_of(case), rng)
        steps = [[batch(case, rng) for _ in range(accumulate)] for _ in range(s.steps)]
        trained = train_theirs(their_model(case.fields, state), steps, s)
        if trained.margin > TRAINING_MARGIN:
            return state, steps, trained
    raise AssertionError("unreachable")


def train_ours(model: MiniMindForCausalLM, steps: Sequence[Sequence[Batch]], s: Settings) -> Trained:
    """One update for each item of `steps`, which holds the micro-batches whose gradients are added up."""
    parameters = list(model.named_parameters())
    optimizer = AdamW(parameters, eps=s.eps, weight_decay=s.weight_decay, decay_all=s.decay_all)
    losses, norms = [], []
    for t, micro_batches in enumerate(steps, 1):
        n = labelled(micro_batches)
        model.zero_grad()
        losses.append(sum(model.loss_and_grad(b.input_ids, b.labels, b.attention_mask, n).loss for b in micro_batches))
        norms.append(clip_grad_norm(parameters, s.max_norm))
        optimizer.step(lr=cosine_lr(t, s.steps, s.lr))
    trained = {name: p.data for name, p in parameters}
    return Trained(np.array(losses), np.array(norms), trained, optimizer.m, optimizer.v)


def train_theirs(model: Any, steps: Sequence[Sequence[Batch]], s: Settings) -> Trained:
    """The same with transformers, `torch.optim.AdamW` and `torch.nn.utils.clip_grad_norm_`."""
    margins, routed = [1.0], {"output_router_logits": True} if hasattr(model.config, "num_experts") else {}

    def micro_loss(b: Batch, n: int) -> torch.Tensor:
        labels = torch.tensor(b.labels)
        out = model(**their_inputs(b), labels=labels, use_cache=False, num_items_in_batch=n, **routed)
        if routed:  # its auxiliary loss is multiplied by a coefficient of 0
            logits = [a.detach() for a in out.router_logits]
            margins.append(margin_of(logits, b.attention_mask, model.config.num_experts_per_tok))
        return out.loss

    trained = _train(dict(model.named_parameters()), micro_loss, steps, s, exact=False)
    return trained._replace(margin=min(margins))


def train_oracle(fields: Mapping[str, Any], state: Arrays, steps: Sequence[Sequence[Batch]], s: Settings) -> Trained:
    """The same with the oracle's model: float64 throughout, and with the auxiliary loss."""
    named = {name: torch.tensor(a, requires_grad=True) for name, a in state.items()}

    def micro_loss(b: Batch, n: int) -> torch.Tensor:
        mask = None if b.attention_mask is None else torch.tensor(b.attention_mask)
        ids, labels = torch.tensor(b.input_ids), torch.tensor(b.labels)
        return oracles.loss(ids, labels, named, fields, mask, n, labelled([b]) / n)[0]

    return _train(named, micro_loss, steps, s, exact=True)


def _train(
    named: Mapping[str, torch.Tensor],
    micro_loss: Callable[[Batch, int], torch.Tensor],
    steps: Sequence[Sequence[Batch]],
    s: Settings,
    exact: bool,
) -> Trained:
    matrices = [p for p in named.values() if s.decay_all or p.dim() >= 2]
    gains = [p for p in named.values() if not s.decay_all and p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": s.weight_decay}, {"params": gains, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], eps=s.eps)
    losses, norms = [], []
    for t, micro_batches in enumerate(steps, 1):
        n = labelled(micro_batches)
        optimizer.zero_grad(set_to_none=False)
        losses.append(0.0)
        for b in micro_batches:
            loss = micro_loss(b, n)
            loss.backward()
            losses[-1] += float(loss.detach())
        for p in named.values():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad  # an expert nobody chose still has moments
        norm = float(torch.nn.utils.get_total_norm([p.grad for p in named.values()]))
        # PyTorch divides by norm + 1e-6, this package by norm: an exact comparison takes the 1e-6 out.
        max_norm = s.max_norm * (norm + 1e-6) / norm if exact and norm > s.max_norm else s.max_norm
        torch.nn.utils.clip_grad_norm_(list(named.values()), max_norm)
        norms.append(norm)
        for group in optimizer.param_groups:
            group["lr"] = oracles.cosine_lr(t, s.steps, s.lr)
        optimizer.step()

    def numpy_of(tensors: Mapping[str, torch.Tensor]) -> Arrays:
        return unfused({name: a.detach().numpy() for name, a in tensors.items()})

    state = {name: optimizer.state[p] for name, p in named.items()}
    m, v = ({name: a[which] for name, a in state.items()} for which in ("exp_avg", "exp_avg_sq"))
    return Trained(np.array(losses), np.array(norms), numpy_of(named), numpy_of(m), numpy_of(v))


def labelled(micro_batches: Sequence[Batch]) -> int:
    """The labels that count: not -100, and not the first of a row, which nothing predicts."""
    return sum(int((b.labels[:, 1:] != -100).sum()) for b in micro_batches)


# --- Greedy decoding ----------------------------------------------------------------------------------------


class Written(NamedTuple):
    ids: np.ndarray  # (B, prompt + new)
    logits: np.ndarray  # (B, new, V), of each step


def write_ours(
    model: MiniMindForCausalLM, prompt: np.ndarray, mask: np.ndarray | None, new: int, eos: int | None
) -> Written:
    """`generate` at temperature 0; the logits are taken from a cache that is fed the ids it wrote."""
    ids = model.generate(
        prompt, max_new_tokens=new, temperature=0, top_k=0, top_p=1.0, eos_token_id=eos, attention_mask=mask
    )
    start, end = prompt.shape[1], ids.shape[1]
    cache = model.new_cache(len(ids), end)
    steps = [model(prompt, attention_mask=mask, cache=cache, logits_to_keep=1)]
    steps += [model(ids[:, t : t + 1], cache=cache) for t in range(start, end - 1)]
    return Written(ids, np.concatenate(steps, axis=1))


def write_theirs(model: Any, prompt: np.ndarray, mask: np.ndarray | None, new: int, eos: int | None) -> Written:
    """transformers' own `generate`, greedy and with its cache; a row that has ended goes on with eos, as ours does."""
    ids = torch.tensor(prompt)
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids) if mask is None else torch.tensor(mask),
        max_new_tokens=new,
        do_sample=False,
        num_beams=1,
        use_cache=True,
        eos_token_id=eos,
        pad_token_id=0 if eos is None else eos,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return Written(out.sequences.numpy(), torch.stack(out.logits, dim=1).numpy())


def top_two_margin(logits: np.ndarray) -> float:
    """The smallest distance between the two largest logits of a step, relative to the largest logit of all."""
    two = np.sort(logits, axis=-1)[..., -2:]
    return float((two[..., 1] - two[..., 0]).min() / np.abs(logits).max())


# --- What was found, as rows --------------------------------------------------------------------------------

# The comparisons that are made of each case; the last three say how much of a difference is whose rounding.
ORACLE, FLOAT64, FLOAT32 = "float64, oracle", "float64, transformers", "float32, transformers"
OUR_ROUNDING, THEIR_ROUNDING = "our float32, oracle", "transformers' float32, oracle"
THEIR_ROUNDING64 = "transformers' float64, oracle"

Rows = dict[str, list[ParityRow]]


def measure(case: Case, **sizes: int) -> Rows:
    """Forward and backward of one case, in every program and both precisions."""
    state, b, _ = draw(case, **sizes)
    single = {name: a.astype(np.float32) for name, a in state.items()}
    exact = run_oracle(case.fields, state, b)
    ours = {dtype: run_ours(our_model(case.fields, state, dtype), b) for dtype in (np.float32, np.float64)}
    theirs = {dtype: run_theirs(their_model(case.fields, single, dtype), b) for dtype in (torch.float32, torch.float64)}
    zeros = vanishing(case.fields, exact)
    with_aux = {**case.fields, "router_aux_loss_coef": 0.2}  # which transformers cannot be asked for
    exact_aux = run_oracle(with_aux, state, b)
    return {
        ORACLE: _rows(run_ours(our_model(with_aux, state), b), exact_aux, vanishing(with_aux, exact_aux)),
        FLOAT64: _rows(ours[np.float64], theirs[torch.float64], zeros),
        FLOAT32: _rows(ours[np.float32], theirs[torch.float32], zeros),
        OUR_ROUNDING: _rows(ours[np.float32], exact, zeros),
        THEIR_ROUNDING: _rows(theirs[torch.float32], exact, zeros),
        THEIR_ROUNDING64: _rows(theirs[torch.float64], exact, zeros),
    }


def _rows(ours: Result, theirs: Result, zeros: list[str]) -> list[ParityRow]:
    """Compare what both have: all outputs and losses are ours, the oracle has logits only, transformers the sum."""

    def shared(which: str) -> tuple[Arrays, Arrays]:
        a, b = getattr(ours, which), getattr(theirs, which)
        return {name: a[name] for name in a if name in b}, {name: b[name] for name in b if name in a}

    a, b = shared("outputs")
    head = "lm_head.output"
    rows = compare({head: a.pop(head)}, {head: b.pop(head)}, "logits")
    rows += compare(a, b, "hidden states")
    rows += compare(*shared("losses"), "loss")
    return rows + compare(ours.gradients, theirs.gradients, "gradients", vanishing=zeros)


def measure_training(case: Case, s: Settings = MINIMIND, accumulate: int = 1) -> Rows:
    """Ten steps of one case, in every program and both precisions."""
    state, steps, theirs64 = draw_training(case, s, accumulate)
    exact = train_oracle(case.fields, state, steps, s)
    ours64 = train_ours(our_model(case.fields, state), steps, s)
    ours32 = train_ours(our_model(case.fields, state, np.float32), steps, s)
    theirs32 = train_theirs(their_model(case.fields, state, torch.float32), steps, s)
    with_aux = {**case.fields, "router_aux_loss_coef": 0.2 if case.is_moe else 0.0}
    ours_aux = train_ours(our_model(with_aux, state), steps, s)
    return {
        ORACLE: _trained_rows(ours_aux, train_oracle(with_aux, state, steps, s)),
        FLOAT64: _trained_rows(ours64, theirs64),
        FLOAT32: _trained_rows(ours32, theirs32),
        OUR_ROUNDING: _trained_rows(ours32, exact),
        THEIR_ROUNDING: _trained_rows(theirs32, exact),
        THEIR_ROUNDING64: _trained_rows(theirs64, exact),
    }


def _trained_rows(ours: Trained, theirs: Trained) -> list[ParityRow]:
    n = len(ours.losses)
    rows = compare({"loss": ours.losses}, {"loss": theirs.losses}, f"losses of {n} steps")
    rows += compare({"norm": ours.norms}, {"norm": theirs.norms}, f"gradient norms of {n} steps")
    rows += compare(ours.weights, theirs.weights, f"weights after {n} steps")
    return rows + compare(ours.m, theirs.m, "first moments") + compare(ours.v, theirs.v, "second moments")
