"""Train a small MiniMind on the toy language, with the training loop in the open.

    python demos/train_toy.py                 about two and a half minutes on two cores
    python demos/train_toy.py --steps 60      a shortened run, to see that everything works

At the end: sentences that the model wrote, judged by the grammar, the loss curve, and a picture of attention
copying a quotation.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

import numpy_minimind as nm
from numpy_minimind import plotting
from numpy_minimind.backend import keep_freed_memory
from numpy_minimind.data import BatchStream, toy_language, toy_report
from numpy_minimind.data.toy_corpus import ToyCorpus
from numpy_minimind.layers import CrossEntropyLoss
from numpy_minimind.messages import install_command
from numpy_minimind.training import AdamW, clip_grad_norm, cosine_lr, evaluate

try:
    import matplotlib  # noqa: F401  (this one and the next are for the end, when it would be late to miss them)
    import safetensors  # noqa: F401
    from tqdm import tqdm
except ImportError as error:
    sys.exit(f"error: the demo needs the extra train ({error}): {install_command('train')}")

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=1200)
parser.add_argument("--lr", type=float, default=2e-3)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--out", type=Path, default=Path("runs/toy-demo"))
args = parser.parse_args()
if args.steps < 1:
    parser.error(f"--steps must be at least 1, got {args.steps}")
sys.stdout.reconfigure(errors="backslashreplace")  # a terminal without Chinese characters shows their numbers
args.out.mkdir(parents=True, exist_ok=True)
keep_freed_memory()  # a tenth faster

# What to learn: sentences of a language whose entropy we know, one id a character.
corpus = ToyCorpus()
tokenizer = corpus.tokenizer
batches = BatchStream(lambda rng: corpus.draw(rng, batch_size=8, seq_len=128), np.random.default_rng([args.seed, 1]))
held_out = corpus.held_out(batch_size=16, seq_len=128)

# What learns: four layers, 128 wide.
config = nm.MiniMindConfig.preset(
    "toy", vocab_size=tokenizer.vocab_size, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id
)
model = nm.MiniMindForCausalLM(config, rng=np.random.default_rng([args.seed, 0]))
cross_entropy = CrossEntropyLoss()
optimizer = AdamW(model.named_parameters(), betas=(0.9, 0.99))
print(
    f"{model.num_parameters():,} parameters; the grammar itself gets {corpus.oracle_loss:.4f} nats a held-out character"
)

# The training loop, nothing hidden.
metrics, began = [], time.perf_counter()
progress = tqdm(range(1, args.steps + 1), unit="step", dynamic_ncols=True)
for t in progress:
    inputs, targets, _ = next(batches)  # padding stands at the end, where no token sees it: no mask

    out, saved = model.forward(inputs)
    loss, loss_saved = cross_entropy.forward(out.logits, targets)

    model.zero_grad()
    dlogits = cross_entropy.backward(1.0, loss_saved)
    model.backward(dlogits, saved)

    clip_grad_norm(model.named_parameters(), 1.0)
    optimizer.step(lr=cosine_lr(t, args.steps, args.lr, warmup=min(20, args.steps // 10)))

    metrics.append({"step": t, "ce_loss": float(loss)})
    if t % 200 == 0 or t == args.steps:
        progress.set_postfix_str("reading held-out text ...")
        some = held_out if t == args.steps else held_out[::10]  # on the way, a tenth will do
        metrics[-1]["val_loss"] = evaluate(model, some)[0]
    progress.set_postfix_str(f"loss {float(loss):.3f}")
nm.save_pretrained(model, args.out / "model", tokenizer=tokenizer)
val_loss = metrics[-1]["val_loss"]
print(f"trained for {time.perf_counter() - began:.0f} s: held-out loss {val_loss:.4f} nats a character, ", end="")
print(f"{val_loss / corpus.oracle_loss:.3f} times what the grammar itself gets")

# What it has learned: let it write, and ask the grammar.
print("now it writes 1,000 sentences ...")
rng = np.random.default_rng(1)
sentences = toy_report.write_sentences(model, tokenizer, 1000, rng)
for sentence in sentences[:8]:
    verdict = toy_language.check(sentence)
    remark = "" if not verdict.has_quotation else " copied right" if verdict.copied else " copied wrong"
    print(f"  {'grammatical  ' if verdict.grammatical else 'ungrammatical'} {sentence}{remark}")
report = toy_report.judge(sentences, rng)
print(f"of {report.sentences} sentences {report.grammatical:.1%} are grammatical; {report.with_quotation:.1%} quote,")
print(f"and {report.copied:.1%} of these copy right, ", end="")
print(f"{toy_report.held_out_copy_rate(model, tokenizer, 500, rng):.1%} when the quotation was never in training")

# What it looks at while it copies: the one head that is best at it, in a sentence with a quotation.
copying = toy_report.copying_head(model, tokenizer, toy_report.a_quoting_sentence(rng))
title = f"Layer {copying.layer}, head {copying.head}: {copying.share:.0%} of its attention is on what to repeat"
try:
    plotting.loss_curve(
        args.out / "loss.png",
        metrics,
        title="A small MiniMind learns the toy language",
        entropy_floor=corpus.entropy_floor,
        oracle_loss=corpus.oracle_loss,
    )
    plotting.attention_map(args.out / "attention.png", copying.weights, copying.tokens, title=title)
    print(f"saved {args.out / 'loss.png'} and {args.out / 'attention.png'}")
except Exception as error:  # the model is trained and saved, whatever a plot library says
    print(f"no pictures: {error}")
print(f"the model is in {args.out / 'model'}; go on with")
print(f"  python -m numpy_minimind generate {args.out / 'model'} --prompt 我喜欢")
