"""What is said of a model that has learned the toy language."""

import numpy as np

from numpy_minimind import MiniMindConfig, MiniMindForCausalLM
from numpy_minimind.training import toy_report
from numpy_minimind.training.corpora import ToyCorpus


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
