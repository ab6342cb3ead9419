"""What of a text does not reach the model is said wherever one is read: open cases Q07 and Q17."""

import json

import numpy as np
import pytest

import numpy_minimind as nm
from numpy_minimind.cli import main
from numpy_minimind.data import jsonl_corpus
from numpy_minimind.data.jsonl_corpus import JsonLinesCorpus
from numpy_minimind.data.text_corpus import TextCorpus
from numpy_minimind.text import CharTokenizer, PretrainedTokenizer
from tests.commands.conftest import SMALL
from tests.helpers import peak_bytes

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

SIZE = ["--batch-size", "2", "--seq-len", "32", "--threads", "1", "--steps", "1"]
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def train(*flags, code=0):
    assert main(["train", *map(str, flags)]) == code


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A model of words, with an unk token and a chat template."""
    names = ["<unk>", "<|im_start|>", "<|im_end|>", "\n", "user", "assistant", "the", "fox", "owl"]
    model = tokenizers.models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>")
    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(tokenizers.Regex("\n"), "isolated"),
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(" +"), "removed"),
        ]
    )
    library.decoder = tokenizers.decoders.Fuse()
    library.add_special_tokens(names[:3])
    config = dict(zip(("unk_token", "bos_token", "eos_token"), names), chat_template=CHATML)
    tokenizer = PretrainedTokenizer(json.loads(library.to_str()), config)
    config = nm.MiniMindConfig.preset("tiny", num_hidden_layers=1, vocab_size=len(names), max_position_embeddings=64)
    folder = tmp_path_factory.mktemp("words") / "model"
    nm.save_pretrained(nm.MiniMindForCausalLM(config, rng=np.random.default_rng(0)), folder, tokenizer=tokenizer)
    return folder


def lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


# -- characters that are unknown ---------------------------------------------------------------------------------


def test_a_text_of_unknown_characters_is_refused_and_one_with_some_is_warned_of(trained, toy_text, tmp_path, capsys):
    text = toy_text.read_text(encoding="utf-8")
    (tmp_path / "upper.txt").write_text("THE QUICK BROWN FOX 7\n" * 90, encoding="utf-8")
    (tmp_path / "some.txt").write_text(text.replace("the", "THE"), encoding="utf-8")
    train("--corpus", tmp_path / "upper.txt", "--init-from", trained, *SIZE, "--out", tmp_path / "run", code=2)
    error = capsys.readouterr().err
    assert error.startswith("error: ") and "characters are unknown to the model's tokenizer, 73%" in error
    assert "'T', 'H', 'E', 'Q', 'U', ...: a model learns nothing" in error and not (tmp_path / "run").exists()
    for flags in (["--init-from", trained], ["--tokenizer", trained / "model", *SMALL[:4]]):
        train("--corpus", tmp_path / "some.txt", *flags, *SIZE, "--overwrite", "--out", tmp_path / "run")
        said = f"warning: 1,200 characters are unknown to the model's tokenizer, {1200 / len(text):.0%} of the text: "
        assert said + "'T', 'H', 'E'\n" in capsys.readouterr().err
    train("--resume", "--out", tmp_path / "run")
    assert said in capsys.readouterr().err
    assert main(["eval", str(tmp_path / "run"), "--corpus", str(tmp_path / "upper.txt")]) == 0
    assert "characters are unknown to the model's tokenizer, 73%" in capsys.readouterr().err


def test_every_command_that_encodes_says_so_of_words_too(words, tmp_path, capsys, monkeypatch):
    texts = lines(tmp_path / "t.jsonl", [{"text": "the fox the cat"}] * 12)
    turns = [{"role": "user", "content": "the dog the fox"}, {"role": "assistant", "content": "the owl"}]
    talk = lines(tmp_path / "s.jsonl", [{"conversations": turns}] * 12)
    said = "unknown to the model's tokenizer, "
    for flags in (
        ["train", "--corpus", f"pretrain:{texts}", "--init-from", words, *SIZE, "--out", tmp_path / "a"],
        ["train", "--corpus", f"sft:{talk}", "--init-from", words, *SIZE, "--out", tmp_path / "b"],
        ["eval", words, "--corpus", f"pretrain:{texts}"],
        ["show-labels", texts, "--tokenizer", words],
        ["show-labels", talk, "--tokenizer", words],
        ["generate", words, "--prompt", "the fox the cat", "--max-new-tokens", 1],
    ):
        assert main(list(map(str, flags))) == 0
        error = capsys.readouterr().err
        assert said in error and error.count("unknown") == 1, flags
        assert ("'d', 'o', 'g'" if talk in flags or f"sft:{talk}" in flags else "'c', 'a', 't'") in error


def test_chat_says_what_it_could_not_read(words, monkeypatch, capsys):
    import io
    import sys

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the fox\nthe cat\n"), encoding="ascii"))
    flags = ["--max-new-tokens", "1", "--seed", "1", "--system", "owl X"]
    assert main(["chat", str(words), *flags]) == 0
    first, second = capsys.readouterr().err.splitlines()
    assert first == "warning: 1 character is unknown to the model's tokenizer, 20% of the text: 'X'"
    assert second == "warning: 3 characters are unknown to the model's tokenizer, 43% of the text: 'c', 'a', 't'"


# -- tokens beyond the end of a row ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def byte_level():
    """A tokenizer of bytes alone: as many tokens as characters."""
    return PretrainedTokenizer.train_bpe(["a"], 265)


def test_lines_longer_than_a_row_are_counted_before_training(tmp_path, capsys):
    records = [{"text": "x" * 100}] * 3 + [{"text": "y" * 30}] * 9 + [{"text": "z" * 31}]  # two marks: 32 ids, 33
    texts = lines(tmp_path / "t.jsonl", records)
    flags = ["--corpus", f"pretrain:{texts}", "--tokenizer", "bpe:265", *SMALL[:4], *SIZE, "--out", tmp_path / "run"]
    train(*flags)
    error = capsys.readouterr().err
    # Learned: the tokens and the end mark; of a row of 32 ids, 31. In all 3 * 101 + 9 * 31 + 32 = 614.
    assert "warning: of 13 lines 4 are longer than --seq-len 32: 211 of 614 tokens (34%) are left out. To keep" in error
    assert "split long lines, give a larger --seq-len" in error
    train("--resume", "--out", tmp_path / "run")
    assert "211 of 614 tokens" in capsys.readouterr().err
    evaluate = ["eval", str(tmp_path / "run"), "--corpus", f"pretrain:{texts}", "--seq-len"]
    assert main([*evaluate, "33"]) == 0 and "of 13 lines 3 are longer than --seq-len 33" in capsys.readouterr().err
    assert main([*evaluate, "102"]) == 0 and "longer" not in capsys.readouterr().err


def test_answers_that_are_cut_are_counted(tmp_path, byte_level, capsys):
    def talk(question, answer):
        return {"conversations": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}

    path = lines(tmp_path / "s.jsonl", [talk("q", "a"), talk("q", "a" * 50), talk("q" * 80, "a")])
    byte_level.save(tmp_path / "tokenizer")
    corpus = JsonLinesCorpus(f"sft:{path}", byte_level)
    whole = [row.labels for row in corpus.rows(range(3), 10_000)]
    cut = [row.labels for row in corpus.rows(range(3), 40)]
    count = [int((labels != -100).sum()) for labels in (np.concatenate(whole), np.concatenate(cut))]
    (note,) = corpus.left_out(40).notes
    assert f"of 3 lines 2 are longer than --seq-len 40: {count[0] - count[1]} of {count[0]} tokens of answers" in note
    assert "give a larger --seq-len, or split long conversations" in note
    assert corpus.left_out(10_000).notes == ()
    flags = ["--tokenizer", str(tmp_path / "tokenizer"), "--seq-len", "40", "--limit", "3"]
    assert main(["show-labels", str(path), *flags]) == 0
    out = capsys.readouterr().out
    for row, part in zip(whole, cut):
        dropped = int((row != -100).sum() - (part != -100).sum())
        assert (f"40 tokens of {len(row)}, cut by --seq-len" in out) == (len(row) > 40)
        assert (f"{dropped} that were to be learned are left out" in out) == bool(dropped)


def test_of_a_large_file_a_sample_is_looked_at_and_called_one(tmp_path, byte_level, monkeypatch):
    path = lines(tmp_path / "t.jsonl", [{"text": "x" * (10 + 50 * (i % 2))} for i in range(400)])
    corpus = JsonLinesCorpus(f"pretrain:{path}", byte_level)
    assert corpus.left_out(40).notes[0].startswith("of 400 lines 200 are longer than --seq-len 40: 4,400 of ")
    monkeypatch.setattr(jsonl_corpus, "LOOKED_AT", 100)
    (note,) = corpus.left_out(40).notes
    assert note.startswith("of 100 lines looked at (of 400) ") and corpus.left_out(40).notes == (note,)
    assert 30 < int(note.split(") ")[1].split()[0]) < 70  # drawn from the whole file
    monkeypatch.setattr(jsonl_corpus, "LOOKED_AT_CHARACTERS", 200)
    looked_at = int(corpus.left_out(40).notes[0].split()[1])
    assert 3 < looked_at < 20


def test_of_running_text_short_pieces_are_said_when_they_are_many():
    text = TextCorpus("t.txt", "a" * 36_000 + "b" * 10_000)
    assert text.left_out(128).notes == ()
    (note,) = text.left_out(6000).notes
    assert "5,040 of 41,904 tokens lie in pieces of the training text" in note
    assert CharTokenizer("ab").unknown("ab") == ""


def test_looking_through_a_large_text_takes_little_memory():
    text = TextCorpus("t.txt", "The quick brown fox. 小明\n" * 20_000)
    assert peak_bytes(lambda: text.left_out(32)) < 6 * len(text.text)  # the text and its parts; at once it is 16 times
