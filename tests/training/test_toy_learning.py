"""What the toy language asks of a model: with attention it is learned to the last per cent, without it is not."""

import numpy as np
import pytest

import numpy_minimind as nm
from numpy_minimind.data import BatchStream, toy_report
from numpy_minimind.data.toy_corpus import ToyCorpus
from numpy_minimind.layers import Attention
from numpy_minimind.training import AdamW, Trainer, evaluate


def trained_model(preset, steps, seed=0):
    corpus = ToyCorpus()
    config = nm.MiniMindConfig.preset(preset, vocab_size=corpus.tokenizer.vocab_size)
    model = nm.MiniMindForCausalLM(config, rng=np.random.default_rng([seed, 0]))
    stream = BatchStream(lambda rng: corpus.draw(rng, 8, 128), np.random.default_rng([seed, 1]))
    optimizer = AdamW(model.named_parameters(), betas=(0.9, 0.99))
    trainer = Trainer(model, optimizer, stream, steps=steps, lr=2e-3, warmup=20)
    for _ in range(steps):
        trainer.step()
    return corpus, model


@pytest.mark.slow
def test_without_attention_quotations_cannot_be_copied(monkeypatch):
    """Attention that returns zeros leaves a model that sees one character: it learns words, and copies by chance."""

    def no_attention(self, x, context):
        return np.zeros_like(x), None

    monkeypatch.setattr(Attention, "forward", no_attention)
    monkeypatch.setattr(Attention, "backward", lambda self, dy, saved: np.zeros_like(dy))
    monkeypatch.setattr(Attention, "__call__", lambda self, x, context, cache=None, start=0: np.zeros_like(x))
    corpus, model = trained_model("tiny", 200)
    loss, _ = evaluate(model, corpus.held_out(16, 128)[:20])
    rng = np.random.default_rng(1)
    assert loss > 1.5 * corpus.oracle_loss
    assert toy_report.held_out_copy_rate(model, corpus.tokenizer, 200, rng) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["toy-moe"])
def test_experts_are_all_used_and_the_language_model_loss_reaches_the_router(preset):
    corpus, model = trained_model(preset, 60)
    batch = corpus.draw(np.random.default_rng(5), 16, 128)
    out, saved = model.forward(batch.inputs, batch.attention_mask)
    _, loss_saved = model.cross_entropy.forward(out.logits, batch.targets)
    model.zero_grad()
    model.backward(model.cross_entropy.backward(1.0, loss_saved), saved, daux_loss=0.0)
    for block, block_saved in zip(model.model.layers, saved.model.blocks):
        assert (block_saved.mlp.load > 0.02).all(), block_saved.mlp.load
        assert np.abs(block.mlp.gate.weight.grad).max() > 1e-6
    loss, _ = evaluate(model, corpus.held_out(16, 128)[:8])
    assert loss < 2.0
