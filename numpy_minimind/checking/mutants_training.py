"""Bugs of the optimizer, the schedule and the training loop: every gradient is right, and training is not."""

from __future__ import annotations

from numpy_minimind.checking.lab.mutation import TRAINING, Edit, Mutant

ADAM = "training.adamw:AdamW."
CLIP = "training.adamw:scale_down"
SCHEDULE = "training.schedule:cosine_lr"
LOOP = "training.trainer:Trainer._step"


def training(name: str, description: str, why: str, seen: str, *edits: Edit) -> Mutant:
    """Return a mutant that the optimizer's column must kill."""
    return Mutant(name, "optimizer", TRAINING, description, why, seen, edits)


TRAINING_MUTANTS = (
    training(
        "adamw-bias-correction-off-by-one",
        "the correction uses t + 1",
        "steps are counted from 0 here and from 1 there",
        "common",
        Edit(ADAM + "_update", "**self.t", "**(self.t + 1)"),
    ),
    training(
        "adamw-no-bias-correction",
        "m and v are used as they are",
        "it fades after a thousand steps; the first ones are off by a factor of three",
        "common",
        Edit(ADAM + "_update", "1 - beta2**self.t", "1.0"),
        Edit(ADAM + "_update", "(1 - beta1**self.t)", "1.0"),
    ),
    training(
        "adamw-epsilon-inside-root",
        "sqrt(v + eps) instead of sqrt(v) + eps",
        "the norm of the layers has it inside",
        "common",
        Edit(ADAM + "_update", "xp.sqrt(s, out=s)\n    s += self.eps", "s += self.eps\n    xp.sqrt(s, out=s)"),
    ),
    training(
        "adamw-betas-swapped",
        "beta1 smooths the squares and beta2 the gradient",
        "two numbers, one tuple",
        "common",
        Edit(ADAM + "_update", "beta1, beta2 = self.betas", "beta2, beta1 = self.betas"),
    ),
    training(
        "adamw-decay-coupled",
        "the decay is added to the gradient (L2) and divided by sqrt(v)",
        "that is Adam's weight_decay; AdamW's W stands for decoupled",
        "aiqm/torchani#261, rohitg00/ai-engineering-from-scratch#17",
        Edit(ADAM + "step", "g[piece], m", "(g + self.weight_decay * decays * w)[piece], m"),
        Edit(ADAM + "step", "shrink = 1 - lr * self.weight_decay if decays else 1.0", "shrink = 1.0"),
    ),
    training(
        "adamw-decay-after-the-step",
        "the step decays as well",
        "the two lines are swapped",
        "common",
        Edit(ADAM + "_update", "if shrink != 1:\n        w *= shrink\n    w -= s", "w -= s\n    w *= shrink"),
    ),
    training(
        "adamw-decay-without-lr",
        "w *= 1 - decay, whatever the learning rate",
        "the paper's formula has the schedule in front of both terms, code has lr in one",
        "apache/mxnet#13728",
        Edit(ADAM + "step", "1 - lr * self.weight_decay", "1 - self.weight_decay"),
    ),
    training(
        "adamw-decay-on-norm-gains",
        "gains decay towards zero, which switches layers off",
        "one loop over all parameters",
        "TransformerLensOrg/TransformerLens#460, vturrisi/solo-learn#289",
        Edit(ADAM + "step", "decays = self.decay_all or w.ndim >= 2", "decays = True"),
    ),
    training(
        "adamw-step-counter-lost-on-resume",
        "moments are restored, t is not: the first steps are corrected for a bias that is gone",
        "t is a number, not an array, and falls out of the saved state",
        "karpathy/nanoGPT#467, huggingface/transformers#33336",
        Edit(ADAM + "load_state_dict", 'self.t = int(state["t"])', "pass"),
    ),
    training(
        "adamw-tied-weight-stepped-twice",
        "a weight in two places is decayed, stepped and counted twice",
        "parameters are collected by name, not by identity",
        "NVIDIA/TransformerEngine#3552",
        Edit("training.adamw:_distinct", "if id(parameter) in met:", "if False:"),
    ),
    training(
        "clip-each-tensor-alone",
        "every tensor is clipped to max_norm by itself: the direction of the step changes",
        "a loop over parameters around a function of one",
        "common",
        Edit(CLIP, "if max_norm < norm < math.inf:\n        scale = float(max_norm) / norm", "if norm < math.inf:"),
        Edit(CLIP, "g *= scale", "g *= min(1.0, max_norm / (math.sqrt(float(_sum_of_squares(g))) or 1.0))"),
    ),
    training(
        "clip-scales-up",
        "small gradients are scaled up to max_norm as well",
        "max_norm / norm without the minimum with 1",
        "common",
        Edit(CLIP, "if max_norm < norm < math.inf", "if 0 < norm < math.inf"),
    ),
    training(
        "clip-spreads-nan",
        "an infinite norm scales every gradient to 0 or NaN",
        "the comparison with max_norm is all there is",
        "common",
        Edit(CLIP, "if max_norm < norm < math.inf", "if not norm <= max_norm"),
    ),
    training(
        "loop-clips-before-accumulation",
        "each micro-batch is clipped, the sum is not",
        "clipping is called where backward is called",
        "common",
        Edit(
            LOOP,
            "self.gradients_of(batch, n)",
            "(self.gradients_of(batch, n), "
            "scale_down(g := [p.grad for p in parameters], float(global_norm(g)), self.clip))[0]",
        ),
    ),
    training(
        "loop-mean-of-means",
        "each micro-batch is divided by its own labels: a short one weighs as much as a long one",
        "loss / accumulate is what every tutorial says",
        "jingyaogong/minimind#749, Lightning-AI/pytorch-lightning#4653",
        Edit(LOOP, "(batch, n)", "(batch, batch.n_tokens * self.accumulate)"),
    ),
    training(
        "loop-gradients-not-zeroed",
        "gradients of all earlier steps add up",
        "gradients add by themselves, which is right within a step",
        "common",
        Edit(LOOP, "mapper(Parameter.zero_grad, parameters)", "pass"),
    ),
    training(
        "loop-steps-on-a-gradient-that-is-not-finite",
        "one infinite gradient makes every weight and both moments NaN",
        "the norm is only printed",
        "common",
        Edit(LOOP, "if math.isfinite(grad_norm):", "if True:"),
    ),
    training(
        "schedule-one-step-behind",
        "step t gets the learning rate of step t - 1",
        "the loop counts from 0, the optimizer from 1",
        "Nerogar/OneTrainer#1604, jingyaogong/minimind#691",
        Edit(LOOP, "cosine_lr(self.t, ", "cosine_lr(self.t - 1, "),
    ),
    training(
        "schedule-climbs-after-the-end",
        "after the last step the cosine rises again",
        "nobody runs longer than planned, until somebody does",
        "mlfoundations/open_clip#413, pytorch/pytorch#60339",
        Edit(SCHEDULE, "min((t - warmup) / (total - warmup), 1.0)", "(t - warmup) / (total - warmup)"),
    ),
    training(
        "schedule-without-floor",
        "the learning rate ends at 0, not at a tenth",
        "the usual half cosine",
        "common",
        Edit(SCHEDULE, "0.1 + 0.45 *", "0.5 *"),
    ),
)
