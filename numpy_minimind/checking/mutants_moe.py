"""Bugs of the mixture of experts: routing, its gradient, and the auxiliary loss."""

from __future__ import annotations

from numpy_minimind.checking.lab.mutation import BACKWARD, CONSISTENT, Edit, Mutant

MOE = "layers.moe:MoE."
WEIGHTS = "layers.moe:token_weights"

MOE_MUTANTS = (
    Mutant(
        "moe-renormalisation-taken-for-constant",
        "moe",
        BACKWARD,
        "the divisor of the k weights is not differentiated",
        "it looks like a scale; it is the sum of what is differentiated",
        "pytorch/torchtitan#1448, NVIDIA/Megatron-LM#1593",
        (Edit(MOE + "backward", "dw = (dw - xp.sum(dw * w, axis=-1, keepdims=True)) / z", "dw = dw / z"),),
    ),
    Mutant(
        "moe-router-gets-aux-gradient-only",
        "moe",
        BACKWARD,
        "the experts' weights pass no gradient to the router",
        "a detach too many: the dead router, which no loss curve shows",
        "jingyaogong/minimind#858, jingyaogong/minimind#859",
        (Edit(MOE + "backward", "dp + dw[:, slot, None]", "dp + 0 * dw[:, slot, None]"),),
    ),
    Mutant(
        "moe-aux-gradient-dropped",
        "moe",
        BACKWARD,
        "the auxiliary loss is reported but never differentiated",
        "it is computed beside the output and forgotten on the way back",
        "jingyaogong/minimind#110, jingyaogong/minimind#140",
        (Edit(MOE + "backward", "dp = (daux_loss * self.coef", "dp = (0.0 * self.coef"),),
    ),
    Mutant(
        "moe-expert-gradient-not-weighted",
        "moe",
        BACKWARD,
        "experts receive dy, not w dy",
        "the weight is applied to the output in forward, and forgotten in backward",
        "common",
        (Edit(MOE + "backward", "expert.backward(w[token, slot, None] * dy_e,", "expert.backward(dy_e,"),),
    ),
    Mutant(
        "moe-last-expert-wins",
        "moe",
        BACKWARD,
        "dx of a token is assigned by each of its experts, not added",
        "right for k = 1",
        "common",
        (Edit(MOE + "backward", "dx[token] += expert.backward", "dx[token] = expert.backward"),),
    ),
    Mutant(
        "moe-not-renormalised",
        "moe",
        CONSISTENT,
        "the k weights are not divided by their sum",
        "norm_topk_prob is not read",
        "pytorch/torchtitan#1448, NVIDIA/TensorRT-LLM#2752",
        (Edit(MOE + "route", "return p, chosen, w / z, z", "return p, chosen, w, None"),),
    ),
    Mutant(
        "moe-always-renormalised",
        "moe",
        CONSISTENT,
        "the k weights are divided by their sum whatever norm_topk_prob says; for k = 1 that kills the router",
        "norm_topk_prob is not read",
        "jingyaogong/minimind#859",
        (Edit(MOE + "route", "if not self.norm:", "if False:"),),
    ),
    Mutant(
        "moe-aux-not-averaged",
        "moe",
        CONSISTENT,
        "load and probability are sums over tokens: aux grows with the square of the batch",
        "a sum where the paper has a fraction",
        "huggingface/transformers#43775",
        (
            Edit(WEIGHTS, "1 / max(p.shape[0], 1)", "1.0"),
            Edit(WEIGHTS, " / xp.maximum(xp.sum(counted), 1.0)", ""),
        ),
    ),
    Mutant(
        "moe-aux-without-number-of-experts",
        "moe",
        CONSISTENT,
        "the factor E is missing: the balanced value is coef / E, not coef",
        "the paper's alpha N is read as alpha",
        "common",
        (
            Edit(MOE + "forward", "self.coef * len(self.experts) *", "self.coef *"),
            Edit(MOE + "backward", "self.coef * len(self.experts))", "self.coef)"),
        ),
    ),
    Mutant(
        "moe-aux-divided-by-k",
        "moe",
        CONSISTENT,
        "the load is a mean over the k choices, not their sum",
        "either convention exists; MiniMind and Hugging Face sum",
        "jingyaogong/minimind#797",
        (Edit(MOE + "forward", "load = self.load(chosen, counted)", "load = self.load(chosen, counted) / self.k"),),
    ),
    Mutant(
        "moe-padding-counted",
        "moe",
        CONSISTENT,
        "padding counts in the load and in the mean probability",
        "the router sees rows, and does not know which of them are tokens",
        "huggingface/transformers#28255, huggingface/transformers#28517, QwenLM/Qwen3#1418",
        (Edit(MOE + "forward", "token_weights(counted, p)", "token_weights(None, p)"),),
    ),
    Mutant(
        "moe-ties-to-the-last-expert",
        "moe",
        CONSISTENT,
        "equal scores are given to the highest expert, not the lowest",
        "an ascending sort is reversed",
        "scikit-learn/scikit-learn#12977, cupy/cupy#3287",
        (
            Edit(
                "backend:top_k",
                'xp.argsort(-x, axis=-1, kind="stable")',
                'xp.argsort(x, axis=-1, kind="stable")[..., ::-1]',
            ),
        ),
    ),
)
