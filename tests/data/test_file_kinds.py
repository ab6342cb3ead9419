"""What is no text, and what can be read only once, is named: open case Q12."""

import gzip
import os
import shlex
import socket
import subprocess
import sys
import zipfile

import pytest

from numpy_minimind.data.corpora import load_corpus
from numpy_minimind.data.file_kinds import require_lasting
from numpy_minimind.data.jsonl import JsonLines
from numpy_minimind.data.text_corpus import read_text

TEXT = "the quick brown fox\n" * 40


def test_a_socket_and_a_file_that_was_deleted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a socket's name is short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        with pytest.raises(ValueError, match="it is a socket, which"):
            require_lasting("socket", "it")
    (tmp_path / "t.txt").write_text(TEXT, encoding="utf-8")
    with open(tmp_path / "t.txt", encoding="utf-8") as file:
        place = f"/proc/self/fd/{file.fileno()}"
        if os.path.exists(place):
            require_lasting(place, "it")  # such as /dev/stdin, when a file was given there
            (tmp_path / "t.txt").unlink()
            with pytest.raises(ValueError, match="it is a file that was deleted"):
                require_lasting(place, "it")


def test_a_folder_says_what_it_holds(tmp_path):
    (tmp_path / "a.txt").touch()
    with pytest.raises(IsADirectoryError, match=r"is a folder, expected a text file; it holds a\.txt"):
        load_corpus(str(tmp_path))
    with pytest.raises(IsADirectoryError, match="expected a file of JSONL"):
        JsonLines(tmp_path, lambda record: None)


def zipped(path):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("t.txt", TEXT)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x89PNG\r\n\x1a\n" + bytes(9), r"a picture \(PNG\)"),
        (gzip.compress(TEXT.encode()), "compressed by gzip; unpack it first"),
        (zipped, "a zip archive"),
        (TEXT.encode("utf-16"), "a text in UTF-16; convert it first:\n  python -c "),
        (TEXT.encode("utf-16-le"), "a text in UTF-16 without a byte-order mark"),
        (TEXT.encode("utf-16-be"), "a text in UTF-16 without a byte-order mark"),
        (TEXT.encode("utf-32"), "a text in UTF-32"),
        (b"%PDF-1.7\n" + TEXT.encode(), "a PDF; save its text first"),
        (b"PAR1\x15\x04" + bytes(20), r"a parquet file; write its records as JSONL first.*read_parquet"),
        (b"ARROW1\x00\x00" + bytes(20), "an arrow file; .*read_feather"),
        (bytes(range(32)) * 9, "a binary file"),
    ],
)
def test_what_is_no_text_is_named_by_its_first_bytes(data, what, tmp_path):
    path = tmp_path / "some.file"
    path.write_bytes(data if isinstance(data, bytes) else data(tmp_path / "x.zip"))
    for read in (read_text, lambda path: JsonLines(path, lambda record: None)):
        with pytest.raises(ValueError, match=f"some.file is not UTF-8 text: it is {what}") as caught:
            read(path)
        if " -c " in str(caught.value) and "UTF-" in what:  # the command works
            subprocess.run([sys.executable, *shlex.split(str(caught.value).rpartition("\n")[2])[1:]], check=True)
            assert read_text(tmp_path / "some.utf-8.file") == TEXT


@pytest.mark.parametrize("text", ["PAR1 is how a parquet file begins", "BZh, he said", "% PDF", "a\x00b" + TEXT])
def test_a_text_that_begins_alike_is_a_text(text, tmp_path):
    (tmp_path / "t.txt").write_text(text, encoding="utf-8")
    assert read_text(tmp_path / "t.txt") == text


def test_a_text_larger_than_memory_says_what_is_read_line_by_line(tmp_path, monkeypatch):
    def too_large(text):
        raise MemoryError

    (tmp_path / "t.txt").write_text(TEXT, encoding="utf-8")
    monkeypatch.setattr("numpy_minimind.data.text_corpus.split_text", too_large)
    with pytest.raises(MemoryError, match=r"t\.txt is too large to be running text.*give pretrain:FILE"):
        load_corpus(str(tmp_path / "t.txt"))
