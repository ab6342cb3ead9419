"""What is said of a model that has learned the toy language."""

import numpy as np
import pytest

from numpy_minimind import MiniMindConfig, MiniMindForCausalLM
from numpy_minimind.data import toy_language, toy_report
from numpy_minimind.data.toy_corpus import ToyCorpus


def test_the_copying_head_is_found_though_blocks_are_computed_twice():
    tokenizer = ToyCorpus().tokenizer
    config = MiniMindConfig.preset("tiny", vocab_size=tokenizer.vocab_size)
    model = MiniMindForCausalLM(config, rng=np.random.default_rng(0))
    sentence = toy_report.a_quoting_sentence(np.random.default_rng(0))
    right = toy_report.copying_head(model, tokenizer, sentence)
    model.model.checkpoint_activations = True
    found = toy_report.copying_head(model, tokenizer, sentence)
    assert model.model.checkpoint_activations
    assert found[:4] == right[:4]
    np.testing.assert_array_equal(found.weights, right.weights)


@pytest.mark.parametrize("start", toy_language.EDITIONS)
def test_sentences_are_judged_by_the_edition_that_was_learned(start, monkeypatch):
    true = toy_language.sample(np.random.default_rng(4), 2000, start=start)
    report = toy_report.judge(true, np.random.default_rng(4), start)
    assert (report.grammatical, report.copied, report.distinct) == (1, 1, 1)
    assert report.true_mean_length == toy_language.mean_length(start)
    assert report.with_quotation == pytest.approx(15 / 32, abs=0.04)
    if start == toy_language.START:
        assert toy_report.judge(true, np.random.default_rng(4), toy_language.FIRST_EDITION).grammatical < 1
    assert toy_report.a_quoting_sentence(np.random.default_rng(4), start) == next(s for s in true if "“" in s)

    unheard, begun = toy_language.sample(np.random.default_rng(4), 50, held_out=True, start=start), []
    tokenizer = ToyCorpus(start).tokenizer
    monkeypatch.setattr(toy_report, "_continue", lambda model, tokenizer, prompts, *_: begun.extend(prompts) or unheard)
    assert toy_report.held_out_copy_rate(None, tokenizer, 50, np.random.default_rng(4), start) == 1
    assert [tokenizer.decode(ids) for ids in begun] == [s[: s.index("「") + 1] for s in unheard]
