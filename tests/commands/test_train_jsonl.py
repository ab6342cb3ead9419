"""Pretraining and SFT on JSONL files as a user runs them: a tokenizer trained here, --init-from, resume, eval."""

import json
import shutil

import numpy as np
import pytest

import numpy_minimind as nm
from numpy_minimind.checkpoint.resume import load_resume
from numpy_minimind.cli import main
from numpy_minimind.text import PretrainedTokenizer, prompt_ids
from tests.commands.conftest import run
from tests.commands.test_train import assert_same_run, metrics

pytest.importorskip("jinja2")
pytest.importorskip("tokenizers")

SMALL = ["--batch-size", "3", "--seq-len", "40", "--log-every", "2", "--eval-every", "6", "--threads", "1"]
TINY = ["--preset", "tiny", "--set", "num_hidden_layers=1", "--set", "max_position_embeddings=64"]
ANIMALS, VERBS = ("猫", "狗", "fox", "owl"), ("吃", "看", "likes")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A pretraining file and an SFT file, each with a bad line."""
    folder, rng = tmp_path_factory.mktemp("jsonl"), np.random.default_rng(0)
    texts, conversations = [], []
    for _ in range(45):
        said = [f"{rng.choice(ANIMALS)}{rng.choice(VERBS)}{rng.choice(ANIMALS)}" for _ in range(rng.integers(1, 6))]
        texts.append({"text": " ".join(said)})
        turns = [{"role": "user", "content": said[0]}, {"role": "assistant", "content": said[-1]}]
        conversations.append({"conversations": turns})
    for name, records in (("pre", texts), ("sft", conversations)):
        lines = [json.dumps(record, ensure_ascii=False) for record in records]
        lines.insert(3, "{")
        (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


def pretraining(files, *more):
    corpus = f"pretrain:{files / 'pre.jsonl'}"
    return ["train", "--corpus", corpus, "--tokenizer", "bpe:290", *TINY, *SMALL, "--steps", "12", *map(str, more)]


@pytest.fixture(scope="module")
def pretrained(files, tmp_path_factory):
    """The folder of a pretraining run."""
    out = tmp_path_factory.mktemp("runs") / "pre"
    run(*pretraining(files, "--out", out))
    return out


def test_pretraining_learns_and_leaves_its_tokenizer(pretrained):
    lines = metrics(pretrained)
    assert lines[0]["ce_loss"] == pytest.approx(np.log(290), abs=0.3)
    assert lines[-1]["val_loss"] < lines[0]["ce_loss"] - 1
    tokenizer = nm.load_tokenizer(pretrained / "model")
    assert tokenizer.vocab_size == 290 == nm.from_pretrained(pretrained / "model").config.vocab_size
    assert tokenizer.decode(tokenizer.encode("猫吃 fox 😀")) == "猫吃 fox 😀"


def test_pretraining_resumes_bit_for_bit_with_the_tokenizer_of_its_folder(files, pretrained, tmp_path, capsys):
    out = tmp_path / "parts"
    assert main(pretraining(files, "--out", out, "--stop-after", 7)) == 0
    printed = capsys.readouterr()
    assert "stopped after step 7 of 12" in printed.out
    assert "warning" in printed.err and "1 bad line: line 4: not JSON" in printed.err
    run("train", "--resume", "--out", out)
    assert_same_run(pretrained, out)
    tokenizers = [(folder / "model" / "tokenizer.json").read_bytes() for folder in (pretrained, out)]
    assert tokenizers[0] == tokenizers[1]


@pytest.mark.slow
def test_resume_refuses_a_file_that_has_changed(tmp_path, capsys):
    corpus, out = tmp_path / "pre.jsonl", tmp_path / "run"
    lines = [json.dumps({"text": f"fox {i}"}) for i in range(20)]
    corpus.write_text("\n".join(lines), "utf-8")
    name = f"pretrain:{corpus}"
    run("train", "--corpus", name, "--tokenizer", "bpe:290", *TINY, *SMALL, "--steps", "1", "--out", out)
    corpus.write_text("\n".join(lines).replace("fox 7", "owl 7"), "utf-8")  # as many lines, as many bytes
    assert main(["train", "--resume", "--out", str(out)]) == 2
    assert "pre.jsonl" in capsys.readouterr().err


def test_resume_refuses_another_tokenizer(files, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(pretraining(files, "--out", out, "--stop-after", 1)) == 0
    (out / "model" / "tokenizer.json").write_bytes(
        (out / "model" / "tokenizer.json").read_bytes().replace(b"<think>", b"<thank>")
    )
    assert main(["train", "--resume", "--out", str(out)]) == 2
    assert "no longer the tokenizer that this run was begun with" in capsys.readouterr().err


@pytest.mark.slow
def test_sft_goes_on_from_a_model_and_resumes_without_it(files, pretrained, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(pretrained, model)
    flags = ["train", "--corpus", f"sft:{files / 'sft.jsonl'}", "--init-from", str(model), *SMALL]
    flags += ["--steps", "12", "--lr", "5e-3", "--set", "max_position_embeddings=96", "--accumulate", "2"]
    assert main([*flags, "--out", str(tmp_path / "whole")]) == 0
    assert main([*flags, "--out", str(tmp_path / "parts"), "--stop-after", "5"]) == 0
    shutil.rmtree(model)
    run("train", "--resume", "--out", tmp_path / "parts")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    lines = metrics(tmp_path / "whole")
    assert lines[-1]["val_loss"] < lines[0]["ce_loss"] - 0.5
    trained = nm.from_pretrained(tmp_path / "parts" / "model")
    assert trained.config.max_position_embeddings == 96 and trained.config.num_hidden_layers == 1
    begun = nm.from_pretrained(pretrained / "model").state_dict()
    assert all(np.abs(data - begun[name]).max() < 0.1 for name, data in trained.state_dict().items())


def test_a_fine_tuned_run_begins_with_the_weights_and_the_small_step(files, pretrained, tmp_path):
    flags = ["train", "--corpus", f"sft:{files / 'sft.jsonl'}", "--init-from", str(pretrained), *SMALL]
    assert main([*flags, "--steps", "1", "--out", str(tmp_path / "run")]) == 0
    arrays, state = load_resume(tmp_path / "run" / "resume.safetensors")
    assert state["settings"]["lr"] == 1e-5 and state["settings"]["preset"] is None
    for name, data in nm.from_pretrained(pretrained / "model").state_dict().items():
        np.testing.assert_allclose(arrays[f"model.{name}"], data, atol=2e-5)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--set", "hidden_size=32"], "--set hidden_size=32 does not fit the weights of"),
        (["--set", "vocab_size=300"], "--set vocab_size=300 does not fit"),
        (["--set", "use_moe=true"], "--set use_moe=True does not fit"),
        (["--set", "speed=3"], "unknown config field speed"),
        (["--set", "max_position_embeddings=20"], "more than max_position_embeddings 20"),
        (["--preset", "tiny"], "give one of them"),
        (["--tokenizer", "char"], "makes a new vocabulary"),
        (["--tokenizer", "bpe:300"], "makes a new vocabulary"),
        (["--corpus", "toy"], "does not know the characters of the toy language"),
        (["--seq-len", "4"], "nothing to learn within 4 tokens"),
        (["--seq-len", "2"], "must be at least 3"),
        (["--init-from", "no/such/model"], "no/such/model"),
    ],
)
def test_bad_settings_of_a_fine_tuned_run_are_refused(files, pretrained, tmp_path, flags, message, capsys):
    begin = ["train", "--corpus", f"sft:{files / 'sft.jsonl'}", "--init-from", str(pretrained), *SMALL]
    assert main([*begin, "--out", str(tmp_path / "run"), *flags]) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.err.count("\n") == 1 and not (tmp_path / "run").exists()


def test_the_models_own_tokenizer_may_be_named_and_another_not(files, pretrained, tmp_path, capsys):
    begin = ["train", "--corpus", f"sft:{files / 'sft.jsonl'}", "--init-from", str(pretrained), *SMALL, "--steps", "1"]
    own = ["--tokenizer", str(pretrained / "model")]
    assert main([*begin, *own, "--out", str(tmp_path / "run")]) == 0
    shutil.copytree(pretrained / "model", tmp_path / "other")
    path = tmp_path / "other" / "tokenizer.json"
    path.write_bytes(path.read_bytes().replace(b"<think>", b"<thank>"))
    assert main([*begin, "--tokenizer", str(tmp_path / "other"), "--out", str(tmp_path / "run2")]) == 2
    assert "is not the tokenizer of" in capsys.readouterr().err


def test_a_model_without_a_tokenizer_takes_the_given_one(files, pretrained, tmp_path, capsys):
    bare, own = tmp_path / "bare", str(pretrained)
    nm.save_pretrained(nm.from_pretrained(pretrained), bare)
    begin = ["train", "--corpus", f"sft:{files / 'sft.jsonl'}", "--init-from", str(bare), *SMALL, "--steps", "1"]
    assert main([*begin, "--out", str(tmp_path / "run")]) == 2
    assert "no tokenizer.json in this folder" in capsys.readouterr().err
    assert main([*begin, "--tokenizer", own, "--out", str(tmp_path / "run")]) == 0
    assert nm.load_tokenizer(tmp_path / "run").tokenizer_json == nm.load_tokenizer(own).tokenizer_json
    PretrainedTokenizer.train_bpe(["many different words, quickly, of another language"] * 9, 295).save(
        tmp_path / "larger"
    )
    assert main([*begin, "--tokenizer", str(tmp_path / "larger"), "--out", str(tmp_path / "run2")]) == 2
    assert "larger holds a tokenizer of 29" in capsys.readouterr().err


def test_a_fine_tuned_model_is_asked_and_answers(files, pretrained, tmp_path, capsys):
    flags = ["train", "--corpus", f"sft:{files / 'sft.jsonl'}", "--init-from", str(pretrained), *SMALL]
    assert main([*flags, "--steps", "2", "--out", str(tmp_path / "run")]) == 0
    printed = capsys.readouterr()
    line = (files / "sft.jsonl").read_text(encoding="utf-8").split("\n")[10]  # the tenth good one is held out
    question = json.loads(line)["conversations"][0]["content"]
    assert f"asked {question!r}, it answers:\n" in printed.out and "it continues" not in printed.out
    assert printed.out.startswith("model of pre, ") and "; corpus sft:sft.jsonl; " in printed.out
    assert printed.err.startswith("warning: sft.jsonl has 1 bad line: line 4: ")


def test_a_model_s_folder_says_whether_prompts_begin_with_bos(files, pretrained, toy_text, tmp_path, capsys):
    flags = ["train", "--corpus", str(toy_text), "--init-from", str(pretrained), *SMALL, "--steps", "1"]
    assert main([*flags, "--out", str(tmp_path / "text")]) == 0
    for folder, bos in ((pretrained, [1]), (tmp_path / "text", [])):
        tokenizer = nm.load_tokenizer(folder)
        assert tokenizer.begins_with_bos is bool(bos) and not tokenizer.tokenizer_config["add_bos_token"]
        assert prompt_ids(tokenizer, "猫") == bos + tokenizer.encode("猫")


def test_a_tokenizer_of_characters_is_refused_for_conversations(files, trained, tmp_path, capsys):
    flags = ["train", "--corpus", f"sft:{files / 'sft.jsonl'}", "--init-from", str(trained), *SMALL]
    assert main([*flags, "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.startswith("error: a tokenizer of characters has no chat template")


def test_a_small_file_holds_nothing_out_and_says_so(files, pretrained, tmp_path, capsys):
    lines = (files / "sft.jsonl").read_text(encoding="utf-8").split("\n")
    (tmp_path / "few.jsonl").write_text("\n".join(lines[4:9]), encoding="utf-8")
    flags = ["train", "--corpus", f"sft:{tmp_path / 'few.jsonl'}", "--init-from", str(pretrained), *SMALL]
    assert main([*flags, "--steps", "2", "--out", str(tmp_path / "run")]) == 0
    printed = capsys.readouterr()
    assert "too short to hold anything out" in printed.err
    assert "it answers" not in printed.out and "it continues" not in printed.out
    assert json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))["val_loss"] is None


def test_rows_cut_before_their_answer_are_reported(files, pretrained, tmp_path, capsys):
    lines = (files / "sft.jsonl").read_text(encoding="utf-8").split("\n")
    long = {"conversations": [{"role": "user", "content": "fox " * 60}, {"role": "assistant", "content": "猫"}]}
    lines += [json.dumps(long)] * 40
    (tmp_path / "long.jsonl").write_text("\n".join(lines), encoding="utf-8")
    flags = ["train", "--corpus", f"sft:{tmp_path / 'long.jsonl'}", "--init-from", str(pretrained), *SMALL]
    assert main([*flags, "--steps", "6", "--out", str(tmp_path / "run")]) == 0
    assert "rows had nothing to learn within --seq-len 40 tokens" in capsys.readouterr().out
    assert (tmp_path / "run" / "loss.png").exists()


def test_eval_of_jsonl_is_over_labels_and_their_characters(files, pretrained, capsys):
    """Against the same sum in the test's own words."""
    model, tokenizer = nm.from_pretrained(pretrained / "model"), nm.load_tokenizer(pretrained / "model")
    lines = (files / "sft.jsonl").read_text(encoding="utf-8").split("\n")
    total = count = characters = 0
    for line in lines[:3] + lines[4:]:
        messages = json.loads(line)["conversations"]
        prompt = f"<|im_start|>user\n{messages[0]['content']}<|im_end|>\n<|im_start|>assistant\n"
        answer = f"{messages[1]['content']}<|im_end|>\n"
        ids = [*tokenizer.encode(prompt), *tokenizer.encode(answer)]
        labels = [-100] * len(tokenizer.encode(prompt)) + tokenizer.encode(answer)
        part = model.loss_and_grad(np.array([ids]), np.array([labels]))
        total, count = total + part.ce_loss * part.n_tokens, count + part.n_tokens
        characters += len(messages[1]["content"]) + 1  # the line break; the end mark is no character
    flags = ["eval", str(pretrained), "--corpus", f"sft:{files / 'sft.jsonl'}", "--json", "--batch-size", "4"]
    assert main([*flags, "--seq-len", "64"]) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert "1 bad line: line 4" in printed.err
    assert result["tokens"] == count
    assert result["loss"] == pytest.approx(total / count, rel=1e-5)
    assert result["bits_per_char"] == pytest.approx(total / characters / np.log(2), rel=1e-5)


def test_eval_of_held_out_lines_is_what_training_reported(files, pretrained, capsys):
    corpus = f"pretrain:{files / 'pre.jsonl'}"
    assert main(["eval", str(pretrained), "--corpus", corpus, "--split", "heldout", "--seq-len", "40", "--json"]) == 0
    summary = json.loads((pretrained / "summary.json").read_text(encoding="utf-8"))
    assert summary["corpus"] == corpus
    assert json.loads(capsys.readouterr().out)["loss"] == pytest.approx(summary["val_loss"], rel=1e-5)


def test_a_tokenizer_can_be_trained_on_a_text_too(toy_text, tmp_path):
    flags = ["train", "--corpus", str(toy_text), "--tokenizer", "bpe:300", *TINY, *SMALL, "--steps", "2"]
    assert main([*flags, "--out", str(tmp_path / "run")]) == 0
    assert nm.load_tokenizer(tmp_path / "run" / "model").vocab_size == 300
    assert main(["train", "--tokenizer", "bpe:300", "--out", str(tmp_path / "toy")]) == 2
