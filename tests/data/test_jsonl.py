"""A JSONL file line by line: what is good, what is said of the rest, and what stays in memory."""

import hashlib
import json
import tracemalloc

import numpy as np
import pytest

from numpy_minimind.data.jsonl import SHOWN, JsonLines, parse


def check(record):
    if "text" not in record:
        raise ValueError("no text")


def lines_of(tmp_path, data, **options):
    path = tmp_path / "file.jsonl"
    path.write_bytes(data)
    return JsonLines(path, check, **options)


def texts(lines):
    return [record["text"] for record in lines.read(range(len(lines)))]


def test_marks_line_ends_and_blank_lines_do_not_matter(tmp_path):
    """Open case D03, for JSONL."""
    plain = '{"text": "你好"}\n{"text": "b"}\n{"text": "c"}'.encode()
    assert texts(lines_of(tmp_path, plain)) == ["你好", "b", "c"]
    assert texts(lines_of(tmp_path, plain + b"\n")) == ["你好", "b", "c"]
    assert texts(lines_of(tmp_path, b"\xef\xbb\xbf" + plain)) == ["你好", "b", "c"]
    assert texts(lines_of(tmp_path, plain.replace(b"\n", b"\r\n") + b"\r\n")) == ["你好", "b", "c"]
    blank = lines_of(tmp_path, b"\n  \n" + plain.replace(b"\n", b"\n\r\n\t\n"))
    assert texts(blank) == ["你好", "b", "c"] and blank.n_bad == 0
    assert texts(lines_of(tmp_path, b"\xef\xbb\xbf\n" + plain)) == ["你好", "b", "c"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "\xe6"}', r"not UTF-8 (byte 0xe6 at byte 11 of the line)"),
        (b'{"text": "a}', "not JSON"),
        (b'{"text": "a"} {"text": "b"}', "not JSON (Extra data"),
        (b"[1]", "holds a list, expected an object"),
        (b"null", "holds null"),
        (b'"text"', "holds a string"),
        (b'{"text": "\\ud83d"}', r"half a character, '\ud83d'"),
        (b'{"\\ude00": 1, "text": ""}', "half a character"),
        (b'{"txt": "a"}', "no text"),
        (b'{"text": ' + b"[" * 100_000, "not JSON"),
        (b'{"text": ' + b"9" * 10_000 + b"}", "limit"),
        (b"\xef\xbb\xbf{}", "not JSON"),  # a mark belongs at the beginning of the file
    ],
)
def test_a_bad_line_is_named_by_its_number_and_the_rest_is_used(tmp_path, line, reason):
    lines = lines_of(tmp_path, b'{"text": "a"}\n\n' + line + b'\n{"text": "b"}\n')
    assert texts(lines) == ["a", "b"] and lines.n_bad == 1
    (bad,) = lines.bad.values()
    assert bad.number == 3 and bad.lines == 1 and reason in bad.reason
    assert lines.complaint().startswith("1 bad line: line 3: ")


def test_a_whole_character_may_be_spelled_in_halves():
    assert parse(rb'{"text": "\ud83d\ude00 \u4f60"}') == {"text": "😀 你"}


def test_bad_lines_of_one_reason_are_named_together(tmp_path):
    lines = lines_of(tmp_path, b'{"text": "a"}\n' + b"{}\n" * 2345 + b"[]\n")
    assert lines.n_bad == 2346 and lines.count() == 2347
    reasons = "2,345 lines: no text, first line 2; line 2347: holds a list, expected an object"
    assert lines.complaint() == f"2,346 bad lines: {reasons}"
    lines = lines_of(tmp_path, b'{"text": "a"}\n' + b"{}\n" * 400)
    assert lines.complaint() == "400 bad lines: no text, first line 2"


def test_of_many_reasons_a_few_are_described_and_all_lines_counted(tmp_path):
    many = b"".join(b'{"text": ' + b" " * i + b"}\n" for i in range(9))
    lines = lines_of(tmp_path, many + b'{"text": "a"}\n' + many[:11])
    assert lines.n_bad == 10 and len(lines.bad) == SHOWN == 5
    assert lines.complaint().startswith("10 bad lines: 2 lines: not JSON (Expecting value at character 10), first line")
    assert lines.complaint().endswith("at character 14); and 4 more")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^.*nope\.jsonl: there is no such file$"):
        JsonLines(tmp_path / "nope.jsonl", check)


@pytest.mark.parametrize(
    ("data", "message"), [(b"", "it is empty"), (b"\n \n", "it is empty"), (b"{}\n", "line 1: no text")]
)
def test_a_file_without_a_good_line_is_an_error(tmp_path, data, message):
    with pytest.raises(ValueError, match=rf"file\.jsonl has no good line: .*{message}"):
        lines_of(tmp_path, data)


def test_lines_are_read_in_any_order_and_know_their_numbers(tmp_path):
    data = b"\xef\xbb\xbf" + b'{"text": "a"}\nbad\n\n{"text": "b"}\n{"text": "c"}'
    lines = lines_of(tmp_path, data)
    assert [record["text"] for record in lines.read([2, 0, 2, 1])] == ["c", "a", "c", "b"]
    assert [lines.line_number(i) for i in range(3)] == [1, 4, 5]
    assert lines.fingerprint == hashlib.sha256(data).hexdigest()
    assert lines.offsets.dtype == np.int64


def test_a_limit_ends_the_search(tmp_path):
    lines = lines_of(tmp_path, b'bad\n{"text": "a"}\n{"text": "b"}\nbad\n', limit=1)
    assert texts(lines) == ["a"] and lines.n_bad == 1


def test_a_file_that_changes_meanwhile_is_noticed(tmp_path):
    lines = lines_of(tmp_path, b'{"text": "a"}\n{"text": "b"}\n')
    for data in (b'{"text": "a"}\n', b'{"text": "longer"}\n{"text": "b"}\n', b'{"text": "a"}\n{"txet": "b"}\n'):
        (tmp_path / "file.jsonl").write_bytes(data)
        with pytest.raises(ValueError, match="changed while it was in use"):
            lines.read([1])


def test_memory_grows_with_the_index_and_not_with_the_file(tmp_path):
    """Six MB in 6,000 lines: the index has 48 kB, and a batch is a few lines."""
    path = tmp_path / "large.jsonl"
    with open(path, "w", encoding="utf-8") as file:
        for i in range(6000):
            file.write(json.dumps({"text": f"{i} " + "x" * 1000}) + "\n")
    tracemalloc.start()
    try:
        lines = JsonLines(path, check)
        lines.read([5999, 0, 17])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 6_000_000 and peak < 400_000, peak
