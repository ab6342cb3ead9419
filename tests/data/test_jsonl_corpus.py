"""JSONL corpora: rows packed as MiniMind packs them, held-out lines, and the loss of a batch with all its padding."""

import json
import os
import re

import numpy as np
import pytest

import numpy_minimind as nm
from numpy_minimind.data.batches import IGNORE, pad_labelled
from numpy_minimind.data.corpora import load_corpus, short_name
from numpy_minimind.data.jsonl_corpus import JsonLinesCorpus, split_lines
from numpy_minimind.text import CharTokenizer, PretrainedTokenizer
from numpy_minimind.training import AdamW, Trainer

pytest.importorskip("jinja2")
pytest.importorskip("tokenizers")

TEXTS = ["从前有座山。", "a", "", "the quick brown fox jumps over the lazy dog " * 3, "你好 hello", "<|im_end|> inside"]


@pytest.fixture(scope="module")
def trained():
    return PretrainedTokenizer.train_bpe([*TEXTS, "你好吗", "很好"], 300)


@pytest.fixture(scope="module", params=["trained here", "MiniMind's"])
def tokenizer(request, trained):
    if request.param == "trained here":
        return trained
    folder = os.environ.get("NUMPY_MINIMIND_TOKENIZER_DIR")
    if not folder:
        pytest.skip("NUMPY_MINIMIND_TOKENIZER_DIR is not set")
    return nm.load_tokenizer(folder)


def write(path, records):
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records), encoding="utf-8")
    return path


def conversation(i):
    """Some end with the user, some are long, some hold two answers."""
    turns = [("user", "hello " * (i % 4 + 1)), ("assistant", "很好 " * (i % 7))]
    turns += [("user", "你好吗")] * (i % 2) + [("assistant", "fine")] * (i % 3 == 1)
    return {"conversations": [{"role": role, "content": content} for role, content in turns]}


@pytest.fixture
def texts(tmp_path):
    return write(tmp_path / "texts.jsonl", [{"text": text} for text in TEXTS])


@pytest.fixture
def conversations(tmp_path):
    return write(tmp_path / "conversations.jsonl", [conversation(i) for i in range(24)])


# -- pretraining -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seq_len", [3, 4, 8, 340])
def test_a_pretraining_row_is_bos_tokens_eos(tokenizer, texts, seq_len):
    """The facts, literally: bos + tokens[: L - 2] + eos, padded on the right with 0, padding labelled -100."""
    corpus = JsonLinesCorpus(f"pretrain:{texts}", tokenizer)
    (batch,) = corpus.all(len(TEXTS), seq_len)
    width = max(min(len(tokenizer.encode(text)) + 2, seq_len) for text in TEXTS)
    assert batch.inputs.shape == (len(TEXTS), width - 1)
    for text, inputs, targets, mask in zip(TEXTS, batch.inputs, batch.targets, batch.attention_mask):
        row = [1, *tokenizer.encode(text)[: seq_len - 2], 2]
        n = len(row) - 1
        padded = row + [0] * (width - len(row))
        labels = row + [IGNORE] * (width - len(row))
        assert inputs[:n].tolist() == padded[:n] and targets.tolist() == labels[1:]
        assert (inputs[n:] == 0).all()
        assert mask.tolist() == [True] * n + [False] * (width - 1 - n)


def test_a_row_without_room_and_a_tokenizer_without_marks_are_refused(trained, texts):
    corpus = JsonLinesCorpus(f"pretrain:{texts}", trained)
    with pytest.raises(ValueError, match="at least 3, got 2"):
        corpus.draw(np.random.default_rng(0), 1, 2)
    bare = PretrainedTokenizer(trained.tokenizer_json, {})
    with pytest.raises(ValueError, match="no bos_token"):
        JsonLinesCorpus(f"pretrain:{texts}", bare)


def test_characters_can_be_tokens_of_pretraining_when_they_are_given(texts):
    tokenizer = CharTokenizer.from_text("".join(TEXTS))
    corpus = load_corpus(f"pretrain:{texts}", tokenizer)
    assert corpus.rows([1], 10)[0].ids.tolist() == [1, *tokenizer.encode("a"), 2]
    with pytest.raises(ValueError, match="give --tokenizer bpe:N"):
        load_corpus(f"pretrain:{texts}")


@pytest.mark.parametrize("value", [5, None, ["a"], {"a": 1}, True])
def test_a_text_of_another_type_is_a_bad_line(tmp_path, trained, value):
    path = write(tmp_path / "x.jsonl", [{"text": "good"}, {"text": value}, {"txt": "x"}])
    corpus = JsonLinesCorpus(f"pretrain:{path}", trained)
    assert len(corpus.lines) == 1
    (note,) = corpus.notes
    assert "2 bad lines: line 2: " in note and 'as "text", expected a string; line 3: no field "text"' in note


# -- SFT -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seq_len", [24, 768])
def test_sft_positions_without_a_label_are_attended_to(tokenizer, conversations, seq_len):
    corpus = JsonLinesCorpus(f"sft:{conversations}", tokenizer)
    rows = corpus.rows(range(6), seq_len)
    batch = next(iter(corpus.all(6, seq_len)))
    lengths = [len(row.ids) - 1 for row in rows]
    mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
    np.testing.assert_array_equal(batch.attention_mask if batch.attention_mask is not None else mask, mask)
    assert (batch.targets[~mask] == IGNORE).all() and (batch.targets[mask] == IGNORE).any()
    assert batch.n_tokens == sum(int((row.labels[1:] != IGNORE).sum()) for row in rows)


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("kind", ["sft", "pretrain"])
def test_a_padded_batch_has_the_loss_and_gradient_of_its_rows_one_by_one(
    trained, conversations, texts, kind, accumulate
):
    """Through the trainer, against `loss_and_grad` with labels that are not shifted, a row at a time."""
    corpus = JsonLinesCorpus(f"{kind}:{conversations if kind == 'sft' else texts}", trained)

    def model():
        config = nm.MiniMindConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=20,
            vocab_size=trained.vocab_size, use_moe=True, num_experts=3, num_experts_per_tok=2, router_aux_loss_coef=0.0,
        )  # fmt: skip
        return nm.MiniMindForCausalLM(config, rng=np.random.default_rng(1), dtype=np.float64)

    whole, single = model(), model()
    optimizer = AdamW(whole.named_parameters())
    stream = corpus.stream(4, 30, np.random.default_rng(7))
    report = Trainer(whole, optimizer, stream, steps=3, lr=1e-3, clip=np.inf, accumulate=accumulate).step()

    again = corpus.stream(4, 30, np.random.default_rng(7))
    rows = corpus.rows(corpus.train[np.concatenate([next_rows(again) for _ in range(accumulate)])], 30)
    n = sum(int((row.labels[1:] != IGNORE).sum()) for row in rows)
    parts = [single.loss_and_grad(row.ids[None], row.labels[None], num_items_in_batch=n) for row in rows]
    assert report.tokens == n > 0
    assert report.ce_loss == pytest.approx(sum(part.ce_loss for part in parts), rel=1e-12)
    for (name, a), (_, b) in zip(whole.named_parameters(), single.named_parameters()):
        np.testing.assert_allclose(a.grad, b.grad, rtol=1e-9, atol=1e-13, err_msg=name)


def next_rows(stream):
    """The numbers of the rows in the next batch."""
    taken = []
    stream.batch_of = lambda rows: taken.append(rows)
    next(stream)
    return taken[0]


def test_rows_with_nothing_to_learn_are_counted_and_a_corpus_of_them_refused(trained, conversations):
    corpus = JsonLinesCorpus(f"sft:{conversations}", trained)
    firsts = [int(np.flatnonzero(row.labels != IGNORE)[0]) for row in corpus.rows(corpus.train, 768)]
    cut = sorted(firsts)[10]
    next(corpus.stream(len(corpus.train), cut, np.random.default_rng(0)))
    assert 0 < corpus.unlabelled == sum(first >= cut for first in firsts) < len(corpus.train)
    assert all(batch.n_tokens for batch in corpus.held_out(1, cut))
    with pytest.raises(ValueError, match=r"nothing to learn within 5 tokens of a line: give a larger --seq-len"):
        corpus.draw(np.random.default_rng(0), 2, 5)


def test_a_line_that_fails_later_is_named_by_its_number(tmp_path, conversations, trained):
    """A template may refuse what the check lets pass."""
    template = "{{ raise_exception('hello twice') if 'hello hello hello ' in messages[0].content }}"
    tokenizer = PretrainedTokenizer(trained.tokenizer_json, {**trained.tokenizer_config, "chat_template": template})
    corpus = JsonLinesCorpus(f"sft:{conversations}", tokenizer)
    with pytest.raises(ValueError, match=r"conversations\.jsonl, line 3: .* refuses this conversation: hello twice"):
        corpus.rows([2], 30)


def test_a_tokenizer_that_cannot_write_a_conversation_is_refused_before_the_first_line(tmp_path, trained):
    bare = PretrainedTokenizer(trained.tokenizer_json, {})
    for tokenizer, message in (
        (
            CharTokenizer.from_text("abc"),
            r"^a tokenizer of characters .* marks for its turns: .* --tokenizer bpe:N",
        ),
        (bare, "has no chat template"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            load_corpus(f"sft:{tmp_path / 'not even there'}", tokenizer)
        assert "line" not in str(caught.value)


def test_the_field_of_the_other_kind_is_a_hint(conversations, texts, trained):
    with pytest.raises(ValueError, match=r'\(it has "conversations": did you mean sft:FILE\?\), first line 1$'):
        load_corpus(f"pretrain:{conversations}", trained)
    with pytest.raises(ValueError, match=r'\(it has "text": did you mean pretrain:FILE\?\), first line 1$'):
        load_corpus(f"sft:{texts}", trained)


def test_a_text_that_looks_like_jsonl_is_refused(conversations, texts, tmp_path):
    for path, kind in ((texts, "pretrain"), (conversations, "sft")):
        by_content = tmp_path / f"{kind}.txt"
        by_content.write_bytes(b"\n" + path.read_bytes())
        for name in (path, by_content):
            with pytest.raises(
                ValueError, match=re.escape(f"looks like JSONL: did you mean --corpus {kind}:{name} (or ")
            ):
                load_corpus(str(name))
    (tmp_path / "other.jsonl").write_text("no JSON\n", encoding="utf-8")
    with pytest.raises(ValueError, match="looks like JSONL"):
        load_corpus(str(tmp_path / "other.jsonl"))
    (tmp_path / "code.txt").write_text('{"a": 1}\n{"text": "later"}\n', encoding="utf-8")
    assert load_corpus(str(tmp_path / "code.txt")).text.startswith("{")


@pytest.mark.parametrize("name", ["nope.txt", "sfx:file", "toyy"])
def test_a_corpus_that_is_not_there_names_the_kinds(name):
    with pytest.raises(FileNotFoundError, match=rf"^{name}: there is no such file .*pretrain:JSONL or sft:JSONL\)$"):
        load_corpus(name)


def test_short_names_have_no_folders():
    assert short_name("pretrain:/home/me/x.jsonl") == "pretrain:x.jsonl"
    assert short_name("/home/me/x.txt") == "x.txt" and short_name("toy") == "toy"


# -- held out, tokenizer, order ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 9, 10, 19, 5000, 5001, 123_456])
def test_every_tenth_line_is_held_out_and_of_many_500(n):
    train, held = split_lines(n)
    assert len(held) == min(n // 10, 500) and np.array_equal(np.sort(np.concatenate((train, held))), np.arange(n))
    if n == 19:
        assert held.tolist() == [9]
    if len(held) > 1:
        assert np.ptp(np.diff(held)) <= 1  # spread evenly
        assert held[0] < n / len(held) and n - 1 - held[-1] < n / len(held)


def test_training_never_sees_what_is_held_out(trained, conversations):
    corpus = JsonLinesCorpus(f"sft:{conversations}", trained)
    assert corpus.held.tolist() == [9, 19]
    taken = np.concatenate([next_rows(corpus.stream(4, 50, np.random.default_rng(i))) for i in range(50)])
    assert not set(corpus.train[taken]) & set(corpus.held) and len(set(taken)) == 22
    together = next(corpus.stream(22, 50, np.random.default_rng(0))).inputs.tolist()
    singly = [pad_labelled([row], 0).inputs[0].tolist() for row in corpus.rows(corpus.train, 50)]
    T = len(together[0])
    assert sorted(together) == sorted(ids + [0] * (T - len(ids)) for ids in singly)
    (held,) = corpus.held_out(8, 50)
    rows = corpus.rows([9, 19], 50)
    assert held.inputs.shape[0] == 2 and held.inputs[0, : len(rows[0].ids) - 1].tolist() == rows[0].ids[:-1].tolist()


def test_a_tokenizer_is_made_of_the_training_lines_alone(conversations, texts):
    seen = {}
    for kind, path in (("sft", conversations), ("pretrain", texts)):
        JsonLinesCorpus(f"{kind}:{path}", lambda parts, kind=kind: seen.setdefault(kind, list(parts)) and None)
    assert seen["pretrain"] == TEXTS
    said = [m["content"] for i in range(24) if i not in (9, 19) for m in conversation(i)["conversations"]]
    assert seen["sft"] == [text for text in said if text]


def test_a_stream_goes_on_where_its_state_was_taken(trained, conversations):
    corpus = JsonLinesCorpus(f"sft:{conversations}", trained)
    first, other = (corpus.stream(5, 40, np.random.default_rng(seed)) for seed in (1, 2))
    for _ in range(3):
        next(first)
    other.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for _ in range(7):
        a, b = next(first), next(other)
        np.testing.assert_array_equal(a.inputs, b.inputs)
        np.testing.assert_array_equal(a.targets, b.targets)


def test_a_line_over_which_the_template_trips_is_named(tmp_path, trained, monkeypatch):
    records = [{"conversations": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "x"}]}] * 2
    corpus = JsonLinesCorpus(f"sft:{write(tmp_path / 'a.jsonl', records)}", trained)

    def trip(self, messages, *args, **flags):
        raise TypeError("tripped")

    monkeypatch.setattr(PretrainedTokenizer, "apply_chat_template", trip)
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2: tripped"):
        corpus.rows([1], 100)
