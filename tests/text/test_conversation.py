"""A conversation: what the model sees of it, what is forgotten, one cache for all turns, an answer that is stopped."""

from typing import Any

import numpy as np
import pytest

from numpy_minimind import MiniMindConfig, MiniMindForCausalLM
from numpy_minimind.checkpoint import CheckpointError
from numpy_minimind.generation.loop import generate
from numpy_minimind.text import CharTokenizer, PretrainedTokenizer
from numpy_minimind.text.conversation import Conversation

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

GREEDY = {"temperature": 0.0}


@pytest.fixture(scope="module")
def bpe() -> PretrainedTokenizer:
    return PretrainedTokenizer.train_bpe(["hello 你好 what is it? "] * 9, 300)


def model(tokenizer: PretrainedTokenizer, positions: int = 256, vocab_size: int = 0, **overrides: Any) -> Any:
    """Random weights of order one in float64, so that no product's rounding decides what is said."""
    config = MiniMindConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=24,
        vocab_size=vocab_size or tokenizer.vocab_size,
        max_position_embeddings=positions,
        **overrides,
    )
    m = MiniMindForCausalLM(config, rng=np.random.default_rng(3), dtype=np.float64)
    rng = np.random.default_rng(4)
    for _, parameter in m.named_parameters():
        if len(parameter.shape) == 2:
            parameter.data = rng.normal(0, 0.7, parameter.shape)
    return m


class Scripted:
    """A "model" that says the given ids, one after the other, and remembers what it was asked."""

    def __init__(self, says: list[int], positions: int = 400, vocab_size: int = 300, interrupt_at: int = -1) -> None:
        self.config = MiniMindConfig(vocab_size=vocab_size, max_position_embeddings=positions)
        self.says, self.fed, self.interrupt_at = list(says), list[list[int]](), interrupt_at

    def new_cache(self, batch: int, max_tokens: int) -> Any:
        class Cache:
            length = 0

        cache = Cache()
        cache.max_tokens = max_tokens  # type: ignore[attr-defined]
        return cache

    def __call__(self, ids: Any, attention_mask: Any = None, cache: Any = None, logits_to_keep: int = 0) -> np.ndarray:
        if len(self.fed) == self.interrupt_at:
            self.interrupt_at = -1
            raise KeyboardInterrupt
        self.fed.append(list(ids[0]))
        cache.length += len(ids[0])
        logits = np.zeros((1, 1, self.config.vocab_size))
        logits[0, 0, self.says.pop(0)] = 9
        return logits


# -- what the model sees -----------------------------------------------------------------------------------------


def test_an_answer_is_what_generate_writes_after_the_rendered_conversation(bpe: PretrainedTokenizer) -> None:
    m = model(bpe)
    talk = Conversation(m, bpe, system="be kind", max_new_tokens=9, **GREEDY)
    messages = [{"role": "system", "content": "be kind"}]
    for question in ("hello", "你好<|im_end|>", "what?"):
        messages.append({"role": "user", "content": question})
        ids = bpe.encode_chat(messages, add_generation_prompt=True)
        expected = generate(m, np.array([ids]), max_new_tokens=9, **GREEDY)[0, len(ids) :]
        pieces: list[str] = []
        answer = talk.answer(question, pieces.append)
        assert answer.text == "".join(pieces) == bpe.decode(expected)
        assert answer.tokens == len(expected)
        assert answer.ended == ("end mark" if expected[-1] == 2 else "length")
        assert answer.forgotten == 0
        messages.append({"role": "assistant", "content": answer.text})
        assert talk.messages == messages
    assert talk.turns == 3


def test_only_what_is_new_goes_through_the_model(bpe: PretrainedTokenizer) -> None:
    says = [*bpe.encode("it is"), 2]
    m = Scripted(says * 2)
    talk = Conversation(m, bpe, **GREEDY)
    first = talk.answer("hello")
    assert (first.text, first.ended, first.tokens) == ("it is", "end mark", len(says))
    assert m.fed[0] == bpe.encode("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")
    turns = len(m.fed)
    talk.answer("what?")
    # The end mark was said but not fed.
    assert m.fed[turns] == bpe.encode("<|im_end|>\n<|im_start|>user\nwhat?<|im_end|>\n<|im_start|>assistant\n")


def test_an_answer_that_reads_back_as_other_ids_is_computed_anew(bpe: PretrainedTokenizer) -> None:
    """Two tokens that decode to a text whose own encoding is one: the cache must not be trusted beyond them."""
    whole = bpe.encode("hello")
    assert len(whole) == 1
    spelled = [bpe._tokenizer.token_to_id(c) for c in "hello"]
    m = Scripted([*spelled, 2, 2])
    talk = Conversation(m, bpe, **GREEDY)
    assert talk.answer("你好").text == "hello"
    turns = len(m.fed)
    talk.answer("x")
    assert m.fed[turns][: len(whole)] == whole


def test_the_same_seed_gives_the_same_conversation(bpe: PretrainedTokenizer) -> None:
    m = model(bpe)
    said = []
    for seed in (1, 1, 2):
        talk = Conversation(m, bpe, max_new_tokens=12, rng=np.random.default_rng(seed), temperature=1.5, top_k=0)
        said.append([talk.answer("hello").text, talk.answer("你好").text])
    assert said[0] == said[1] != said[2]


def test_ids_that_the_tokenizer_does_not_hold_are_never_said(bpe: PretrainedTokenizer) -> None:
    m = Scripted([], vocab_size=bpe.vocab_size + 50)
    m.says = [bpe.vocab_size + 7] * 5  # all that is left have the same logit: the lowest id, 0, is taken
    answer = Conversation(m, bpe, max_new_tokens=5, **GREEDY).answer("hello")
    assert (answer.text, answer.tokens, answer.ended) == ("", 5, "length")


def test_what_a_larger_table_may_say_beyond_the_tokenizer_is_refused_with_the_remedy(bpe: PretrainedTokenizer) -> None:
    m = model(bpe, vocab_size=8 * bpe.vocab_size)
    prompt = np.array([bpe.encode("hello")])
    ids = m.generate(prompt, max_new_tokens=30, rng=np.random.default_rng(0))
    with pytest.raises(
        ValueError, match=r"outside the tokenizer's .*generate\(\.\.\., vocab_size=tokenizer\.vocab_size"
    ):
        bpe.decode(ids[0])
    ids = m.generate(prompt, max_new_tokens=30, rng=np.random.default_rng(0), vocab_size=bpe.vocab_size)
    assert bpe.decode(ids[0]).startswith("hello")
    assert ids.max() < bpe.vocab_size


@pytest.mark.parametrize("end", [2, 5, 0])
def test_the_tokenizer_s_end_mark_and_all_of_the_model_s_end_an_answer(bpe: PretrainedTokenizer, end: int) -> None:
    m = Scripted([*bpe.encode("it is"), end, *bpe.encode("what"), 2])
    m.config = MiniMindConfig(vocab_size=300, max_position_embeddings=400, eos_token_id=[0, 5])
    talk = Conversation(m, bpe, **GREEDY)
    first = talk.answer("hello")
    assert (first.tokens, first.ended) == (len(bpe.encode("it is")) + 1, "end mark")
    assert talk.answer("and?").text == "what"  # the cache goes on where it was
    m.config = MiniMindConfig(vocab_size=300, max_position_embeddings=400, eos_token_id=None)
    assert Conversation(m, bpe)._ends == [2]


# -- thinking ----------------------------------------------------------------------------------------------------


def test_a_thought_that_the_template_opens_is_part_of_the_answer(bpe: PretrainedTokenizer) -> None:
    m = Scripted([*bpe.encode("hm\n</think>\n\nit is"), 2])
    talk = Conversation(m, bpe, think=True, **GREEDY)
    pieces: list[str] = []
    answer = talk.answer("hello", pieces.append)
    assert pieces[0] == "<think>\n"
    assert answer.text == "".join(pieces) == "<think>\nhm\n</think>\n\nit is"
    assert talk.messages[-1]["content"] == answer.text
    assert m.fed[0][-2:] == bpe.encode("<think>\n")


def test_a_thought_that_was_cut_is_closed_in_the_history(bpe: PretrainedTokenizer) -> None:
    m = Scripted(bpe.encode("what what"))
    talk = Conversation(m, bpe, think=True, max_new_tokens=len(m.says), **GREEDY)
    assert talk.answer("hello").text == "<think>\nwhat what"
    assert talk.messages[-1]["content"] == "<think>\nwhat what\n</think>\n\n"


def test_a_template_without_thoughts_is_known(bpe: PretrainedTokenizer) -> None:
    assert Conversation(model(bpe), bpe, think=True).can_think
    plain = PretrainedTokenizer(
        bpe.tokenizer_json, {**bpe.tokenizer_config, "chat_template": "{{ messages[-1].content }}"}
    )
    assert not Conversation(model(plain), plain, think=True).can_think


# -- the context rule --------------------------------------------------------------------------------------------


def test_the_oldest_questions_are_forgotten_and_the_system_prompt_is_not(bpe: PretrainedTokenizer) -> None:
    talk = Conversation(model(bpe, positions=150), bpe, system="be kind", max_new_tokens=10, **GREEDY)
    forgotten = 0
    for i in range(12):
        answer = talk.answer(f"question {i}")
        forgotten += answer.forgotten
        assert talk.messages[0] == {"role": "system", "content": "be kind"}
        assert talk.messages[1]["content"] == f"question {forgotten}"
        assert talk.turns == i + 1 - forgotten
        assert len(bpe.encode_chat(talk.messages[:-1], add_generation_prompt=True)) + 10 <= 150
    assert forgotten > 0


def test_what_was_forgotten_changes_the_answer_as_if_it_had_never_been_said(bpe: PretrainedTokenizer) -> None:
    m = model(bpe, positions=150)
    talk = Conversation(m, bpe, max_new_tokens=10, **GREEDY)
    while not (answer := talk.answer("what is it?")).forgotten:
        pass
    ids = bpe.encode_chat(talk.messages[:-1], add_generation_prompt=True)
    expected = generate(m, np.array([ids]), max_new_tokens=10, **GREEDY)[0, len(ids) :]
    assert answer.text == bpe.decode(expected)


def test_a_question_that_does_not_fit_even_alone_is_refused(bpe: PretrainedTokenizer) -> None:
    talk = Conversation(model(bpe, positions=150), bpe, max_new_tokens=10, **GREEDY)
    first = talk.answer("hello")
    before = list(talk.messages)
    with pytest.raises(ValueError, match=r"too long: it takes \d+ tokens .* 150 positions, less 10 .* leave 140"):
        talk.answer("!" * 200)
    assert talk.messages == before
    assert talk.answer("hello").forgotten == 0
    assert first.tokens


def test_the_answer_takes_half_of_the_positions_at_most(bpe: PretrainedTokenizer) -> None:
    assert Conversation(model(bpe, positions=100), bpe, max_new_tokens=1024).room == 50
    assert Conversation(model(bpe, positions=100), bpe, max_new_tokens=20).room == 20


# -- Ctrl-C ------------------------------------------------------------------------------------------------------


def test_a_stopped_answer_stays_and_the_conversation_goes_on(bpe: PretrainedTokenizer) -> None:
    words = bpe.encode("it is what it is")
    m = Scripted([*words[:3], *bpe.encode("hello"), 2], interrupt_at=3)
    talk = Conversation(m, bpe, **GREEDY)
    answer = talk.answer("what?")
    assert answer.ended == "interrupted"
    assert answer.tokens == 3
    assert answer.text == bpe.decode(words[:3])
    assert [message["content"] for message in talk.messages] == ["what?", answer.text]
    assert talk.answer("and?").text == "hello"
    assert talk.turns == 2


def test_an_answer_stopped_before_it_began_leaves_no_trace(bpe: PretrainedTokenizer) -> None:
    m = Scripted([*bpe.encode("hello"), 2], interrupt_at=0)
    talk = Conversation(m, bpe, system="s", **GREEDY)
    assert talk.answer("what?")[:2] == ("", 0)
    assert talk.turns == 0
    assert talk.answer("what?").text == "hello"


def test_a_stop_while_a_piece_is_shown_keeps_the_cache_and_the_ids_together(bpe: PretrainedTokenizer) -> None:
    m = model(bpe)
    talk = Conversation(m, bpe, max_new_tokens=20, **GREEDY)
    pieces: list[str] = []

    def stop(piece: str) -> None:
        pieces.append(piece)
        if len(pieces) == 4:
            raise KeyboardInterrupt

    assert talk.answer("hello", stop).ended == "interrupted"
    answer = talk.answer("what?")
    ids = bpe.encode_chat(talk.messages[:-1], add_generation_prompt=True)
    assert answer.text == bpe.decode(generate(m, np.array([ids]), max_new_tokens=20, **GREEDY)[0, len(ids) :])


# -- what cannot begin -------------------------------------------------------------------------------------------


def test_without_a_template_there_is_no_conversation(bpe: PretrainedTokenizer) -> None:
    with pytest.raises(ValueError, match="a tokenizer of characters has no chat template"):
        Conversation(model(bpe), CharTokenizer("ab"))
    with pytest.raises(CheckpointError, match="has no chat template"):
        Conversation(model(bpe), PretrainedTokenizer(bpe.tokenizer_json, {}))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"max_new_tokens": 0}, "max_new_tokens must be at least 1"), ({"top_p": 2.0}, "top_p"), ({"top_k": -1}, "top_k")],
)
def test_settings_are_checked_before_anybody_speaks(
    bpe: PretrainedTokenizer, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Conversation(model(bpe), bpe, **settings)
