"""SFT rows against the facts said again in other words, with MiniMind's tokenizer and one trained here."""

import json
import os
import re

import numpy as np
import pytest

import numpy_minimind as nm
from numpy_minimind.data.batches import IGNORE
from numpy_minimind.data.sft import (
    answers,
    check_conversation,
    check_tokenizer,
    contents,
    conversation_row,
    label_answers,
    messages_and_tools,
    render,
)
from numpy_minimind.text import CharTokenizer, PretrainedTokenizer

pytest.importorskip("jinja2")
pytest.importorskip("tokenizers")


@pytest.fixture(scope="module", params=["trained here", "MiniMind's"])
def tokenizer(request):
    if request.param == "trained here":
        texts = [text for name in CONVERSATIONS for text in contents(CONVERSATIONS[name])]
        return PretrainedTokenizer.train_bpe(texts, 330)
    folder = os.environ.get("NUMPY_MINIMIND_TOKENIZER_DIR")
    if not folder:
        pytest.skip("NUMPY_MINIMIND_TOKENIZER_DIR is not set")
    return nm.load_tokenizer(folder)


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


CALL = {"name": "add", "arguments": {"a": 1, "b": 2}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}
CONVERSATIONS = {
    "one turn": {"conversations": [turn("user", "你好"), turn("assistant", "你好！How are you?")]},
    "several turns": {
        "conversations": [
            turn("system", "Be brief."),
            turn("user", "2 + 2?"),
            turn("assistant", "4"),
            turn("user", "而 3 + 3？"),
            turn("assistant", "六 6 😀"),
        ]
    },
    "ends with the user": {"conversations": [turn("user", "a"), turn("assistant", "b"), turn("user", "and c?")]},
    "thinking": {
        "conversations": [turn("user", "why?"), turn("assistant", "because", reasoning_content="let me\nsee 犇")]
    },
    "tools": {
        "conversations": [
            turn("system", "You can add.", tools=json.dumps([TOOL])),
            turn("user", "1 + 2?"),
            turn("assistant", "", tool_calls=json.dumps([CALL])),
            turn("tool", "3"),
            turn("assistant", "It is 3.\n\n"),
        ]
    },
    "null fields": {
        "conversations": [
            turn("system", "", tools=None, tool_calls=None, reasoning_content=None),
            turn("user", "x", tools="", tool_calls="", reasoning_content=""),
            turn("assistant", "y", tools=None, tool_calls=None, reasoning_content=None),
        ]
    },
}


def the_facts(text):
    """What is learned of a rendered text: after each <|im_start|>assistant\\n through <|im_end|>\\n."""
    return "".join(re.findall(r"<\|im_start\|>assistant\n(.*?<\|im_end\|>\n)", text, re.DOTALL))


def upstream_labels(ids, begin, end):
    """The loop of MiniMind, over ids: two marks, each a list of ids, are looked for one after the other."""
    labels, i = [IGNORE] * len(ids), 0
    while i < len(ids):
        if ids[i : i + len(begin)] != begin:
            i += 1
            continue
        start = stop = i + len(begin)
        while stop < len(ids) and ids[stop : stop + len(end)] != end:
            stop += 1
        for j in range(start, min(stop + len(end), len(ids))):
            labels[j] = ids[j]
        i = stop + len(end)
    return labels


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_labels_spell_the_answers_and_nothing_else(tokenizer, name):
    record = CONVERSATIONS[name]
    check_conversation(record)
    row = conversation_row(record, tokenizer, 10_000)
    text = tokenizer.decode(row.ids, skip_special_tokens=False)
    assert text == render(record, tokenizer) and row.ids.tolist() == tokenizer.encode(text)
    learned = row.labels != IGNORE
    assert (row.labels[learned] == row.ids[learned]).all()
    assert tokenizer.decode(row.labels[learned], skip_special_tokens=False) == the_facts(text) != ""
    assert (json.dumps(TOOL) in text) == (name == "tools")
    for message in record["conversations"]:
        if message["role"] == "assistant":
            assert message["content"] + "<|im_end|>\n" in the_facts(text)
            assert (message.get("reasoning_content") or "") in the_facts(text)


@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("cut", [10_000, 3, 8, 13, 20, 21, 22, 23, 24, 25, 40])
def test_labels_are_those_of_upstreams_loop_wherever_the_row_is_cut(tokenizer, name, cut):
    row = conversation_row(CONVERSATIONS[name], tokenizer, cut)
    assert len(row.ids) <= cut
    begin, end = tokenizer.encode("<|im_start|>assistant\n"), tokenizer.encode("<|im_end|>\n")
    assert begin[0] == tokenizer.bos_token_id == 1 and end[0] == tokenizer.eos_token_id == 2
    assert row.labels.tolist() == upstream_labels(row.ids.tolist(), begin, end)


def test_an_answer_cut_short_is_learned_as_far_as_it_goes(tokenizer):
    record = CONVERSATIONS["one turn"]
    whole = conversation_row(record, tokenizer, 10_000)
    start = int(np.flatnonzero(whole.labels != IGNORE)[0])
    for n in range(3, len(whole.ids) + 1):
        row = conversation_row(record, tokenizer, n)
        np.testing.assert_array_equal(row.ids, whole.ids[:n])
        np.testing.assert_array_equal(row.labels, whole.labels[:n])
        assert (row.labels == IGNORE).all() == (n <= start)


def test_marks_in_a_text_count_as_what_they_look_like(tokenizer):
    """As in MiniMind: nothing tells a mark that somebody typed from the template's own."""
    fake = "x<|im_end|>\n<|im_start|>assistant\nfake"
    text = render({"conversations": [turn("user", fake), turn("assistant", "real")]}, tokenizer)
    ids = np.array(tokenizer.encode(text))
    labels = label_answers(ids, tokenizer)
    learned = tokenizer.decode(labels[labels != IGNORE], skip_special_tokens=False)
    assert learned.startswith("fake<|im_end|>\n") and learned.endswith("real<|im_end|>\n")


def test_a_mark_inside_an_answer_does_not_begin_another(tokenizer):
    text = "<|im_start|>assistant\na<|im_start|>assistant\nb<|im_end|>c<|im_end|>\nd"
    ids = np.array(tokenizer.encode(text))
    spans = list(answers(ids, tokenizer))
    assert len(spans) == 1
    learned = tokenizer.decode(ids[spans[0].start : spans[0].end], skip_special_tokens=False)
    assert learned == "a<|im_start|>assistant\nb<|im_end|>c<|im_end|>\n"


def test_an_empty_answer_is_its_end_mark(tokenizer):
    ids = np.array(tokenizer.encode("<|im_start|>assistant\n<|im_end|>\n<|im_start|>assistants\nx<|im_end|>\n"))
    labels = label_answers(ids, tokenizer)
    assert tokenizer.decode(labels[labels != IGNORE], skip_special_tokens=False) == "<|im_end|>\n"


class Merging:
    """Cuts text so that a mark never stands there by its own ids: line breaks stick together, letters come in twos."""

    TOKENS = ("<|im_start|>", "<|im_end|>", "as", "sist", "ant\n\n", "ant", "\n", "\n\n", "x", "us", "er\n")

    def encode(self, text):
        return [self.TOKENS.index(part) for part in re.findall(self.pattern(), text)]

    def pattern(self):
        return "|".join(re.escape(token) for token in sorted(self.TOKENS, key=len, reverse=True))

    def decode(self, ids, skip_special_tokens=True):
        return "".join(self.TOKENS[i] for i in ids)


def test_marks_are_found_however_the_tokenizer_cuts_them():
    tokenizer = Merging()
    text = "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n\nx<|im_end|>\n\n<|im_start|>assistant\nx"
    ids = np.array(tokenizer.encode(text))
    assert tokenizer.decode(ids) == text
    learned = [tokenizer.decode(ids[span.start : span.end]) for span in answers(ids, tokenizer)]
    assert learned == ["x<|im_end|>\n\n", "x"]


def test_tools_and_calls_may_be_json_or_strings_of_json():
    as_strings = CONVERSATIONS["tools"]["conversations"]
    as_json = [dict(message) for message in as_strings]
    as_json[0]["tools"], as_json[2]["tool_calls"] = [TOOL], [CALL]
    beside = [dict(message) for message in as_json]
    del beside[0]["tools"]
    expected = messages_and_tools({"conversations": as_strings})
    assert expected[1] == [TOOL] and expected[0][2]["tool_calls"] == [CALL] and "tools" not in expected[0][0]
    assert messages_and_tools({"conversations": as_json}) == expected
    assert messages_and_tools({"conversations": beside, "tools": [TOOL]}) == expected
    assert messages_and_tools({"conversations": beside, "tools": json.dumps([TOOL])}) == expected
    assert messages_and_tools(CONVERSATIONS["one turn"])[1] is None
    for given in (as_strings, as_json):
        check_conversation({"conversations": given})


@pytest.mark.parametrize(
    ("conversation", "reason"),
    [
        (None, 'null as "conversations", expected a list'),
        ("hello", 'a string as "conversations"'),
        ([], "an empty conversation"),
        (["hello"], "message 1: a string, expected an object"),
        ([{"content": "x"}], "message 1: role None, expected one of system, user, assistant, tool"),
        ([turn("user", "x"), turn("human", "x")], "message 2: role 'human'"),
        ([turn("assistant", 5)], "message 1: content is a number"),
        ([turn("assistant", ["x"])], "message 1: content is a list"),
        ([{"role": "assistant"}], "message 1: no content"),
        ([turn("assistant", "x", reasoning_content=[])], "reasoning_content is a list"),
        ([turn("assistant", "x", tool_calls="[")], "tool_calls is a string that is not JSON"),
        ([turn("assistant", "x", tool_calls={"name": "f"})], "tool_calls is an object, expected a list"),
        ([turn("assistant", "x", tool_calls=[{"arguments": 1}])], "a tool call without the name"),
        ([turn("assistant", "x", tool_calls=["f"])], "a tool call without the name"),
        ([turn("system", "x", tools="nonsense"), turn("assistant", "x")], "message 1: tools is a string that is not"),
        ([turn("system", "x", tools="3"), turn("assistant", "x")], "message 1: tools is a number, expected a list"),
        ([turn("system", "x", tools="[1]"), turn("assistant", "x")], "message 1: tools holds a number, expected obj"),
        ([turn("user", "x")], "no message of the assistant"),
    ],
)
def test_a_conversation_that_cannot_be_used_is_named(conversation, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        check_conversation({"conversations": conversation})


def test_fields_that_are_missing_or_of_another_type_are_named():
    with pytest.raises(ValueError, match='no field "conversations"'):
        check_conversation({"text": "x"})
    with pytest.raises(ValueError, match="tools is an object"):
        check_conversation({"conversations": [turn("assistant", "x")], "tools": {"a": 1}})
    for tools in ([None], ["x"], "[[1]]"):
        with pytest.raises(ValueError, match=r"tools holds (null|a string|a list), expected objects"):
            check_conversation({"conversations": [turn("assistant", "x")], "tools": tools})


@pytest.mark.parametrize("call", [{"name": "f"}, {"function": {"name": "f"}}, {"name": "f", "arguments": None}])
def test_a_call_without_arguments_is_one_with_none(tokenizer, call):
    record = {"conversations": [turn("user", "q"), turn("assistant", "", tool_calls=[call])]}
    check_conversation(record)
    assert '{"name": "f", "arguments": {}}' in render(record, tokenizer)
    assert (conversation_row(record, tokenizer, 400).labels != IGNORE).any()


def test_an_answer_ends_at_a_typed_mark_whose_line_break_is_one_token_with_a_space(tokenizer):
    record = {"conversations": [turn("user", "q"), turn("assistant", "a<|im_end|>\n b")]}
    row = conversation_row(record, tokenizer, 400)
    learned = tokenizer.decode([i for i in row.labels if i != IGNORE], skip_special_tokens=False)
    assert learned.rstrip(" ").endswith("a<|im_end|>\n")


def test_a_tokenizer_that_has_no_template_or_no_marks_says_what_to_give():
    tokenizer = CharTokenizer.from_text("abc")
    with pytest.raises(ValueError, match=r"no chat template.*--tokenizer bpe:N"):
        conversation_row(CONVERSATIONS["one turn"], tokenizer, 100)
    with pytest.raises(ValueError, match=r"no token <\|im_start\|>"):
        label_answers(np.array([3, 4]), tokenizer)


MARKED = (
    "{% for m in messages %}{{ m.role }}:\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)


def with_template(tokenizer, template):
    config = {**tokenizer.tokenizer_config, "chat_template": template}
    return PretrainedTokenizer(tokenizer.tokenizer_json, config)


def test_a_template_that_marks_answers_decides_the_labels(tokenizer):
    """Its marks are other than ours, and what somebody typed is none."""
    marked = with_template(tokenizer, MARKED)
    check_tokenizer(marked)
    typed = "x<|im_start|>assistant\nfake<|im_end|>\n"
    record = {"conversations": [turn("user", typed), turn("assistant", "real 你"), turn("assistant", "")]}
    row = conversation_row(record, marked, 10_000)
    assert row.ids.tolist() == marked.encode(render(record, marked))
    learned = row.labels != IGNORE
    assert (row.labels[learned] == row.ids[learned]).all()
    answers = marked.decode(row.labels[learned], skip_special_tokens=False)
    assert answers.removeprefix(" ") == "real 你<|im_end|><|im_end|>"  # the space may be one token with the word
    for n in (3, len(row.ids) - 4):
        cut = conversation_row(record, marked, n)
        np.testing.assert_array_equal(cut.ids, row.ids[:n])
        np.testing.assert_array_equal(cut.labels, row.labels[:n])


def test_a_template_that_marks_nothing_is_refused_before_any_row(tokenizer):
    empty = with_template(tokenizer, "{{ messages[0].content }}{% generation %}{% endgeneration %}")
    with pytest.raises(ValueError, match="marks nothing of an answer by it"):
        check_tokenizer(empty)


def test_texts_for_a_tokenizer_are_what_was_said():
    assert list(contents(CONVERSATIONS["thinking"])) == ["why?", "let me\nsee 犇", "because"]
    assert list(contents(CONVERSATIONS["tools"]))[2] == json.dumps([CALL])
