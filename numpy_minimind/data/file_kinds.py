"""What a file is that is no text, so that an error can say more than "not UTF-8"."""

from __future__ import annotations

import json
import shlex
import stat
from pathlib import Path

from numpy_minimind.files import PathLike, contents

UNLASTING = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
UNPACK = "unpack it first"
EXPORT = (
    "write its records as JSONL first, such as with  python -c "
    "\"import pandas; pandas.{}('FILE').to_json('NEW.jsonl', orient='records', lines=True, force_ascii=False)\""
)
# The first bytes of what is met in the place of a text, what it is, and what to do; of a text its encoding.
MAGIC = (
    (b"\xff\xfe\x00\x00", "a text in UTF-32", "UTF-32"),
    (b"\x00\x00\xfe\xff", "a text in UTF-32", "UTF-32"),
    (b"\xff\xfe", "a text in UTF-16", "UTF-16"),
    (b"\xfe\xff", "a text in UTF-16", "UTF-16"),
    (b"\x1f\x8b", "compressed by gzip", UNPACK),
    (b"BZh91AY&SY", "compressed by bzip2", UNPACK),
    (b"\xfd7zXZ\x00", "compressed by xz", UNPACK),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", UNPACK),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK),
    (b"PK\x03\x04", "a zip archive (or a document that is one inside: docx, xlsx, epub)", UNPACK),
    (b"Rar!\x1a", "a rar archive", UNPACK),
    (b"%PDF-", "a PDF", "save its text first, such as with pdftotext"),
    (b"\x89PNG", "a picture (PNG)", ""),
    (b"\xff\xd8\xff", "a picture (JPEG)", ""),
    (b"PAR1\x15", "a parquet file", EXPORT.format("read_parquet")),
    (b"ARROW1\x00\x00", "an arrow file", EXPORT.format("read_feather")),
    (b"SQLite format 3", "an SQLite database", "write its records as JSONL first"),
    (b"\x93NUMPY", "an array of NumPy", ""),
    (b"\x89HDF", "an HDF5 file", ""),
    (b"GGUF\x03", "a model of llama.cpp (GGUF)", ""),
)


def require_lasting(path: PathLike, name: str, when: str = "on resume") -> None:
    """Refuse what cannot be read a second time: a run that is resumed reads its files again.

    Parameters
    ----------
    path : path
        Of anything; what is not there is left to whoever reads it.
    name : str
        What to call it in the error.
    when : str
        It will be read again.

    Raises
    ------
    ValueError
        For a pipe, a device, a socket, a file without a name, and one that the system makes anew at each reading.
    """
    place = Path(path).expanduser()
    try:
        found = place.stat()
    except OSError:
        return
    what = next((word for test, word in UNLASTING if test(found.st_mode)), None)
    if what is None and stat.S_ISREG(found.st_mode):
        if not place.resolve().exists():
            what = "a file that was deleted"
        elif not found.st_size and _holds_something(place):
            what = "made anew by the system whenever it is read"
    if what is not None:
        raise ValueError(f"{name} is {what}, which cannot be read again {when}: save it to a file, and give that")


def _holds_something(place: Path) -> bool:
    try:
        with open(place, "rb") as file:
            return bool(file.read(1))
    except OSError:
        return False


def refuse_folder(path: PathLike, expected: str) -> None:
    """Refuse a folder where a file is expected, naming what it holds."""
    place = Path(path).expanduser()
    if place.is_dir():
        raise IsADirectoryError(f"{path} is a folder, expected {expected}; it holds {contents(place)}")


def refuse_binary(path: PathLike, head: bytes) -> None:
    """Refuse what is no text in UTF-8, going by its first bytes.

    Raises
    ------
    ValueError
        Saying what it is and, where something helps, what to do.
    """
    what, help_ = next(((what, help_) for magic, what, help_ in MAGIC if head.startswith(magic)), ("", ""))
    if not what and head.count(0) > len(head) // 100:  # a stray one may stand in a text
        what, help_ = _with_zeros(head)
    if help_.startswith("UTF-"):
        help_ = f"convert it first:\n  {_to_utf8(Path(path).expanduser(), help_)}"
    if what:
        raise ValueError(f"{path} is not UTF-8 text: it is {what}" + (f"; {help_}" if help_ else ""))


def _to_utf8(path: Path, encoding: str) -> str:
    """Return the command that writes a text anew, in UTF-8."""
    new, old = (json.dumps(str(p), ensure_ascii=False) for p in (path.with_suffix(f".utf-8{path.suffix}"), path))
    code = f'open({new}, "w", encoding="utf-8").write(open({old}, encoding="{encoding}").read())'
    return f"python -c {shlex.quote(code)}"


def _with_zeros(head: bytes) -> tuple[str, str]:
    """Say what a file with zero bytes is: UTF-16 without a mark has them at every other place."""
    even, odd = head[::2].count(0), head[1::2].count(0)
    for zeros, others, encoding in ((odd, even, "UTF-16LE"), (even, odd, "UTF-16BE")):
        if zeros > len(head) // 8 and not others:
            return "a text in UTF-16 without a byte-order mark", encoding
    return "a binary file (it has many zero bytes)", ""
