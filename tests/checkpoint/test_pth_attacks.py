"""Files of strangers: each is refused with an error that names it, nothing of it is executed, and none costs much."""

import contextlib
import io
import pickle
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numpy_minimind import MiniMindConfig, from_pretrained
from numpy_minimind.checkpoint import CheckpointError, DamagedFileError, UnsafeFileError, pth, read_pth
from tests.checkpoint.torch_files import (
    ORDERED_DICT,
    members_of,
    number,
    pickle_of,
    storage,
    tensor,
    text,
    tuple_of,
    write_pth,
    zip_of,
)

HALF = storage(b"HalfStorage", "0", 6)
RECORDS = {"0": np.arange(6, dtype=np.float16).tobytes()}
SOUND = pickle_of({"w": tensor(HALF, 0, [2, 3], [3, 1])})


def put(path: Path, program: bytes, records: dict[str, bytes] = RECORDS) -> Path:
    """Write a file around a pickle."""
    path.write_bytes(zip_of(members_of(program, records)))
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "evil.pth"


def test_without_an_attack_the_file_is_read(file: Path) -> None:
    """Else every test below would pass for another reason."""
    assert np.array_equal(read_pth(put(file, SOUND))["w"].read(), [[0, 1, 2], [3, 4, 5]])


# -- programs that call something --------------------------------------------------------------------------------


def mkdir(name: bytes) -> Callable[[str], bytes]:
    return lambda path: b"\x80\x02" + name + tuple_of([text(path)]) + b"R."


def evaluation(path: str) -> bytes:
    return b"\x80\x02cbuiltins\neval\n" + tuple_of([text(f"__import__('os').mkdir({path!r})")]) + b"R."


def nested(path: str) -> bytes:
    """The call is an argument of a call that is allowed, inside a dict, inside a state dict."""
    call = b"cos\nmkdir\n" + tuple_of([text(path)]) + b"R"
    return pickle_of({"w": b"}(" + text("x") + b"]" + call + b"au"})


def metadata(path: str) -> bytes:
    """In the one place where attributes are set."""
    call = b"cos\nmkdir\n" + tuple_of([text(path)]) + b"R"
    return pickle_of({}, b"}(" + text("_metadata") + call + b"ub")


def stack_global(path: str) -> bytes:
    """Module and name come from the memo: no GLOBAL is to be seen."""
    parts = [b"\x8c\x02os\x94", b"\x8c\x05mkdir\x94", b"0", b"0", b"h\x00", b"h\x01", b"\x93"]
    return b"\x80\x04" + b"".join(parts) + tuple_of([text(path)]) + b"R."


def protocol_two_and_stack_global(path: str) -> bytes:
    """The same under a false flag: Python does not hold a pickle to its protocol."""
    return stack_global(path).replace(b"\x80\x04", b"\x80\x02", 1)


def protocol_five(path: str) -> bytes:
    class Call:
        def __reduce__(self) -> tuple[Any, ...]:
            import os

            return os.mkdir, (path,)

    return pickle.dumps(Call(), protocol=5)


def without_protocol(path: str) -> bytes:
    return b"cos\nmkdir\n" + tuple_of([text(path)]) + b"R."


def instance(path: str) -> bytes:
    """Protocol 0's way to call."""
    return b"\x80\x02(" + text(path) + b"ios\nmkdir\n."


def obj(path: str) -> bytes:
    """Protocol 1's way to call."""
    return b"\x80\x02(cos\nmkdir\n" + text(path) + b"o."


def after_the_state_dict(path: str) -> bytes:
    return SOUND[:-1] + b"0cos\nmkdir\n" + tuple_of([text(path)]) + b"R."


CALLS = {
    "os": mkdir(b"cos\nmkdir\n"),
    "posix": mkdir(b"cposix\nmkdir\n"),
    "an alias in another module": mkdir(b"cshutil\nos.mkdir\n".replace(b"os.mkdir", b"os\n0cos\nmkdir")),
    "builtins.eval": evaluation,
    "nested": nested,
    "in _metadata": metadata,
    "STACK_GLOBAL through the memo": stack_global,
    "STACK_GLOBAL under protocol 2": protocol_two_and_stack_global,
    "protocol 5": protocol_five,
    "without a protocol": without_protocol,
    "INST": instance,
    "OBJ": obj,
    "after the state dict": after_the_state_dict,
}


@pytest.mark.parametrize("attack", CALLS.values(), ids=CALLS.keys())
def test_a_call_is_refused_and_not_made(tmp_path: Path, file: Path, attack: Callable[[str], bytes]) -> None:
    goal = tmp_path / "was here"
    program = attack(str(goal))
    with pytest.raises(UnsafeFileError, match=r"evil\.pth: its pickle .*; the file was refused, and nothing"):
        read_pth(put(file, program))
    assert not goal.exists()
    with pytest.raises(UnsafeFileError, match=r"evil\.pth"):
        from_pretrained(file, config=MiniMindConfig.preset("tiny"))
    assert not goal.exists()


@pytest.mark.parametrize("attack", [attack for name, attack in CALLS.items() if "state dict" not in name])
def test_the_attacks_are_real(tmp_path: Path, attack: Callable[[str], bytes]) -> None:
    """Python's own unpickler makes every one of these calls: here it only makes a folder."""

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, _: Any) -> None:
            return None

    goal = tmp_path / "was here"
    with contextlib.suppress(AttributeError, TypeError):  # after the call
        Unpickler(io.BytesIO(attack(str(goal)))).load()
    assert goal.exists()


OTHERS: dict[str, bytes] = {
    "os.system": b"\x80\x02cos\nsystem\n" + tuple_of([text("true")]) + b"R.",
    "a dotted name": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2.__globals__\n.",
    "a name of torch that runs code": b"\x80\x02ctorch.storage\n_load_from_bytes\n" + tuple_of([text("")]) + b"R.",
    "a class of numpy": b"\x80\x02cnumpy._core.multiarray\n_reconstruct\n.",
    "an extension": b"\x80\x02\x82\x01.",
    "NEWOBJ": b"\x80\x02ccollections\nOrderedDict\n)\x81.",
    "a reference in text": b"\x80\x02Psomewhere\n.",
    "a reference to a module": b"\x80\x02" + tuple_of([text("module"), text("os"), text("x")]) + b"Q.",
    "a reference that is no tuple": b"\x80\x02" + text("storage") + b"Q.",
    "a reference that is a list": b"\x80\x02]("
    + b"".join([text("storage"), b"ctorch\nHalfStorage\n", text("0"), text("cpu"), number(6)])
    + b"eQ.",
    "a reference of another kind": b"\x80\x02"
    + tuple_of([text("storages"), b"ctorch\nHalfStorage\n", text("0"), text("cpu"), number(6)])
    + b"Q.",
    "a negative count": b"\x80\x02"
    + tuple_of([text("storage"), b"ctorch\nHalfStorage\n", text("0"), text("cpu"), b"J\xff\xff\xff\xff"])
    + b"Q.",
    "a storage type that is called": b"\x80\x02ctorch\nHalfStorage\n)R.",
    "a string that is called": b"\x80\x02" + text("os") + b")R.",
    "a dict that is called": b"\x80\x02})R.",
    "arguments for OrderedDict": b"\x80\x02ccollections\nOrderedDict\n" + tuple_of([b"]"]) + b"R.",
    "arguments that are a list": b"\x80\x02ccollections\nOrderedDict\n]R.",
    "a tensor of no storage": pickle_of({"w": tensor(b"}", 0, [1], [1])}),
    "an offset that is a bool": pickle_of({"w": tensor(HALF, 0, [1], [1]).replace(number(0), b"\x88", 1)}),
    "a parameter of no tensor": b"\x80\x02ctorch._utils\n_rebuild_parameter\n"
    + tuple_of([b"}", b"\x88", b"}"])
    + b"R.",
    "attributes of a dict": pickle_of({}, b"}(" + text("_hooks") + b"}ub"),
    "attributes beside _metadata": pickle_of({}, b"}(" + text("_metadata") + b"}" + text("keys") + b"}ub"),
    "_metadata of a tensor": pickle_of(
        {"w": tensor(HALF, 0, [1], [1]) + b"}" + text("_metadata") + b"}sb"},
    ),
    "attributes of a tensor": pickle_of({"w": tensor(HALF, 0, [1], [1]) + b"}b"}),
    "state that is a tuple": pickle_of({}, tuple_of([b"}", b"}"]) + b"b"),
    "a memo number of four billion": b"\x80\x02}r\xff\xff\xff\xff.",
    "a number of a thousand bits": b"\x80\x02\x8a\x7f" + b"\x7f" * 127 + b".",
    "a long string": b"\x80\x02" + text("a" * 1001) + b".",
    "a string that clears the screen": pickle_of({"\x1b[2J": b"N"}),
    "a string of two lines": pickle_of({"w\n": b"N"}),
    "bytes": b"\x80\x02B\x01\x00\x00\x00a.",
    "a frame": b"\x80\x02\x95\xff\xff\xff\xff\xff\xff\xff\xff}.",
    "two protocols": b"\x80\x02\x80\x02}.",
    "a protocol that does not exist": b"\x80\xff}.",
    "something after the end": SOUND + b"cos\nsystem\n",
    "POP": b"\x80\x02}}0.",
    "DUP": b"\x80\x02}2.",
}


@pytest.mark.parametrize("program", OTHERS.values(), ids=OTHERS.keys())
def test_what_no_state_dict_needs_is_refused(file: Path, program: bytes) -> None:
    with pytest.raises(
        UnsafeFileError, match=r"evil\.pth: its pickle .*; the file was refused, and nothing of it was exe"
    ):
        read_pth(put(file, program))


# -- programs that contradict themselves -------------------------------------------------------------------------

BROKEN: dict[str, tuple[bytes, str]] = {
    "no end": (SOUND[:-1], "is damaged"),
    "empty": (b"", "is damaged"),
    "unknown instruction": (b"\x80\x02\xfe.", "is damaged"),
    "a string that is longer than the file": (b"\x80\x02X\xff\xff\xff\x7fa.", "is damaged"),
    "eight bytes of length": (b"\x80\x02\x8d" + b"\xff" * 8 + b"a.", "is damaged"),
    "not UTF-8": (b"\x80\x02X\x01\x00\x00\x00\xff.", "is damaged"),
    "nothing left": (b"\x80\x02.", "leaves 0 values"),
    "two left": (b"\x80\x02}}.", "leaves 2 values"),
    "a mark left": (b"\x80\x02}(.", "leaves 1 values"),
    "a memo number never given": (b"\x80\x02h\x00.", "takes what is not there"),
    "an empty stack": (b"\x80\x02s.", "takes what is not there"),
    "one of two": (b"\x80\x02}s.", "takes what is not there"),
    "a pair of one": (b"\x80\x02}\x86.", "takes what is not there"),
    "a mark left high": (b"\x80\x02}" + text("a") + b"}(st.", "takes what is not there"),
    "no mark": (b"\x80\x02}t.", "takes what is not there"),
    "a mark above the stack": (b"\x80\x02}}(ss.", "takes what is not there"),
    "a reduce below": (b"\x80\x02)R.", "takes what is not there"),
    "an odd number of items": (b"\x80\x02}(" + text("a") + b"u.", "SETITEMS on a dict"),
    "items of a list": (b"\x80\x02](" + text("a") + b"}u.", "SETITEMS on a list"),
    "a key that is a tensor": (b"\x80\x02}(" + tensor(HALF, 0, [1], [1]) + b"}u.", "a key that is neither"),
    "appended to a dict": (b"\x80\x02}}a.", "APPEND on a dict"),
}


@pytest.mark.parametrize(("program", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_broken_programs_are_named(file: Path, program: bytes, message: str) -> None:
    with pytest.raises(DamagedFileError, match=rf"evil\.pth: its pickle .*{message}"):
        read_pth(put(file, program))


# -- tensors that are not there ----------------------------------------------------------------------------------

MINUS_ONE = b"J\xff\xff\xff\xff"
HUGE = 2**62


def shaped(offset: int, shape: list[int], strides: list[int]) -> bytes:
    return tensor(HALF, offset, shape, strides)


LIES: dict[str, tuple[bytes, str]] = {
    "too large": (shaped(0, [7], [1]), "a tensor of 7 numbers in a storage of 6"),
    "an offset past the end": (shaped(1, [6], [1]), "reaches to number 6 of a storage of 6"),
    "a stride past the end": (shaped(0, [2, 3], [4, 1]), "reaches to number 6 of a storage of 6"),
    "an offset of nothing": (shaped(HUGE, [], []), "reaches to number 4611686018427387904"),
    "huge": (shaped(0, [HUGE, HUGE, HUGE], [1, 1, 1]), "in a storage of 6"),
    "stride 0 makes one number a billion": (
        shaped(0, [10**9], [0]),
        "a tensor of 1000000000 numbers in a storage of 6",
    ),
    "overlapping rows make six numbers nine": (shaped(0, [3, 3], [1, 1]), "a tensor of 9 numbers in a storage of 6"),
    "sizes without strides": (shaped(0, [2, 3], [1]), "2 sizes and 1 strides"),
    "nine axes": (shaped(0, [1] * 9, [1] * 9), "9 sizes"),
    "a negative offset": (shaped(0, [2], [1]).replace(number(0), MINUS_ONE, 1), "at least 0"),
    "a negative size": (shaped(0, [5], [1]).replace(number(5), MINUS_ONE), "at least 0"),
    "a negative stride": (shaped(0, [2], [5]).replace(number(5), MINUS_ONE), "at least 0"),
    "a size that is no number": (shaped(0, [5], [1]).replace(number(5), text("5")), "at least 0"),
    "a size that is a bool": (shaped(0, [5], [1]).replace(number(5), b"\x88"), "at least 0"),
    "another count": (
        tensor(storage(b"HalfStorage", "0", 5), 0, [5], [1]),
        r"holds 5 numbers \(F16\), and it has 12 b",
    ),
    "another dtype": (tensor(storage(b"FloatStorage", "0", 6), 0, [6], [1]), r"6 numbers \(F32\), and it has 12 bytes"),
    "a terabyte": (tensor(storage(b"FloatStorage", "0", 2**38), 0, [2**38], [1]), "and it has 12 bytes"),
    "no such record": (tensor(storage(b"HalfStorage", "1", 6), 0, [6], [1]), "speaks of data/1, which is not there"),
    "a record elsewhere": (tensor(storage(b"HalfStorage", "../data.pkl", 6), 0, [6], [1]), "which is not there"),
    "two dtypes": (
        tensor(HALF, 0, [6], [1]) + text("b") + tensor(storage(b"BFloat16Storage", "0", 6), 0, [6], [1]),
        "gives data/0 two dtypes",
    ),
}


@pytest.mark.parametrize(("value", "message"), LIES.values(), ids=LIES.keys())
def test_tensors_outside_their_numbers_are_refused(file: Path, value: bytes, message: str) -> None:
    tracemalloc.start()
    with pytest.raises(DamagedFileError, match=rf"evil\.pth: .*{message}"):
        read_pth(put(file, pickle_of({"w": value})))
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


# -- programs that cost much -------------------------------------------------------------------------------------


def doubled(levels: int) -> bytes:
    """A tuple of the same tuple twice, which is one of the same tuple twice, ...: printed or hashed, it has no end."""
    return b")q\x00" + b"h\x00h\x00\x86q\x00" * levels


COSTLY: dict[str, bytes] = {
    "tuples inside tuples": b"\x80\x02)" + b"\x85" * 30_000 + b".",
    "lists inside lists": b"\x80\x02" + b"]" * 30_000 + b"a" * 29_999 + b".",
    "dicts inside dicts": b"\x80\x02" + b"}K\x00" * 30_000 + b"}" + b"s" * 30_000 + b".",
    "a list inside itself": b"\x80\x02]q\x00h\x00a.",
    "a state dict inside itself": b"\x80\x02}q\x00" + text("model") + b"h\x00s.",
    "doubled as a value": pickle_of({"w": b"(" + doubled(1000) + b"t"}),
    "doubled as a key": b"\x80\x02}(" + b"(" + doubled(1000) + b"t}u.",
    "doubled as a reference": b"\x80\x02(" + doubled(1000) + b"tQ.",
    "doubled as a size": pickle_of({"w": tensor(HALF, 0, [1], [1]).replace(number(1), b"(" + doubled(1000) + b"t", 1)}),
}


@pytest.mark.parametrize("program", COSTLY.values(), ids=COSTLY.keys())
def test_nothing_costs_much(file: Path, program: bytes) -> None:
    """Each ends at once, and not in a stack overflow."""
    with pytest.raises(CheckpointError, match=r"evil\.pth"):
        read_pth(put(file, program))


@pytest.mark.slow
def test_the_largest_pickle_costs_a_quarter_of_a_gigabyte_at_most(file: Path) -> None:
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=r"evil\.pth holds a tuple of 1048571"):
        read_pth(put(file, b"\x80\x02(" + b"}" * ((1 << 20) - 5) + b"t."))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 256 << 20


def test_a_large_pickle_is_refused_unread(file: Path) -> None:
    with pytest.raises(UnsafeFileError, match=r"data\.pkl has 3,000,000 bytes, more than 1,048,576"):
        read_pth(put(file, bytes(3_000_000)))


# -- zip files ---------------------------------------------------------------------------------------------------

MEMBERS = members_of(SOUND, RECORDS)
BAD_NAMES = ["../x", "m/../../etc/x", "/etc/x", "other/x", "m\\x", "m/..\\x", "m//x", "x", "C:/x", "m/x\0y"]


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize("place", [0, 2])
def test_names_that_lead_elsewhere_are_refused(file: Path, name: str, place: int) -> None:
    members = [*MEMBERS[:place], (name, b"x"), *MEMBERS[place:]]
    file.write_bytes(zip_of(members))
    with pytest.raises(UnsafeFileError, match=r"evil\.pth: the zip file has a member .*, outside its one folder"):
        read_pth(file)


@pytest.mark.parametrize("name", ["m/data.pkl", "m/data/0"])
def test_two_members_of_one_name_are_refused(file: Path, name: str) -> None:
    """PyTorch would take the first and others the last: a scanner could be shown another file than the reader."""
    file.write_bytes(zip_of([*MEMBERS, (name, b"other")]))
    with pytest.raises(UnsafeFileError, match=rf"has 2 members '{name}'"):
        read_pth(file)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compressed_members_are_refused(file: Path, method: int) -> None:
    """A real bomb: a gigabyte of zeros in a megabyte, here a thousandth of both."""
    with zipfile.ZipFile(file, "w", compression=method) as archive:
        for name, data in members_of(SOUND, {"0": bytes(1 << 20)}):
            archive.writestr(name, data)
    assert file.stat().st_size < 10_000
    with pytest.raises(UnsafeFileError, match=r"evil\.pth: 'm/data\.pkl' is compressed"):
        read_pth(file)


HEADER_LIES: dict[str, tuple[dict[str, Any], str]] = {
    "encrypted": ({"flags": 0x801}, "is encrypted"),
    "strongly encrypted": ({"flags": 0x840}, "is encrypted"),
    "deflated": ({"method": 8}, "is compressed"),
    "two sizes": ({"size": 1 << 30}, "is compressed"),
    "longer than the file": ({"size": 1 << 30, "compressed": 1 << 30}, "cut short: a member of it ends at byte 107"),
    "another name before the bytes": ({"own_name": "m/data/1"}, "contradicts itself about 'm/data/0'"),
    "no header before the bytes": ({"signature": b"PK\x03\x05"}, "contradicts itself about 'm/data/0'"),
    "another place": ({"offset": 0}, "contradicts itself about 'm/data/0'"),
    "a place outside": ({"offset": 0xFFFFFF}, "places 'm/data/0' outside itself"),
    "another checksum": ({"crc": 1}, "is damaged: m/data/0 does not have the checksum"),
    "a name that is not UTF-8": ({"flags": 0x800, "own_name": "m/data/é"}, "contradicts itself"),
    "zip64: four exabytes": (
        {"size": 0xFFFFFFFF, "compressed": 0xFFFFFFFF, "extra": struct.pack("<HHQQ", 1, 16, 1 << 62, 1 << 62)},
        "cut short: a member of it ends at byte 46116860",
    ),
    "zip64: without its numbers": (
        {"size": 0xFFFFFFFF, "compressed": 0xFFFFFFFF, "extra": struct.pack("<HH", 1, 0)},
        "is cut short or is not a zip file",
    ),
    "zip64: an offset": (
        {"offset": 0xFFFFFFFF, "extra": struct.pack("<HHQ", 1, 8, 1 << 63)},
        "places 'm/data/0' outside itself",
    ),
}


@pytest.mark.parametrize(("lies", "message"), HEADER_LIES.values(), ids=HEADER_LIES.keys())
def test_lies_of_the_zip_file_are_refused(file: Path, lies: dict[str, Any], message: str) -> None:
    file.write_bytes(zip_of(MEMBERS, of="m/data/0", **lies))
    with pytest.raises(CheckpointError, match=rf"evil\.pth.*{message}"):
        read_pth(file)["w"].read()


def test_members_upon_each_other_are_refused(file: Path) -> None:
    """One megabyte that is a thousand members: small as a file, large once it is read."""
    whole = zip_of([("m/data.pkl", SOUND), ("m/data/0", b"PK\x03\x04" + bytes(200))])
    inside = whole.index(b"PK\x03\x04" + bytes(20))
    header = b"PK\x03\x04" + struct.pack("<HHHHHIIIHH", 20, 0x800, 0, 0, 0, 0, 50, 50, 8, 0) + b"m/data/1"
    patched = whole.replace(b"PK\x03\x04" + bytes(200), (header + bytes(200))[:204])
    directory = patched.index(b"PK\x01\x02")
    entry = b"PK\x01\x02" + struct.pack(
        "<HHHHHHIIIHHHHHII", 20, 20, 0x800, 0, 0, 0, 0, 50, 50, 8, 0, 0, 0, 0, 0, inside
    )
    entry += b"m/data/1"
    end = patched.index(b"PK\x05\x06")
    size = end - directory + len(entry)
    closing = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 3, 3, size, directory, 0)
    file.write_bytes(patched[:end] + entry + closing)
    with pytest.raises(DamagedFileError, match=r"'m/data/1' lies upon another member"):
        read_pth(file)


@pytest.mark.parametrize("members", [[], [("m/other", b"x")], [("data.pkl", SOUND)]])
def test_zip_files_that_torch_did_not_write(file: Path, members: list[tuple[str, bytes]]) -> None:
    file.write_bytes(zip_of(members))
    with pytest.raises(
        CheckpointError, match=r"evil\.pth( is not a zip file| is a zip file without data\.pkl|: the zip)"
    ):
        read_pth(file)


@pytest.mark.parametrize("order", [b"middle", b"", b"\xff"])
def test_a_byteorder_of_neither_kind(file: Path, order: bytes) -> None:
    file.write_bytes(zip_of(members_of(SOUND, RECORDS, byteorder=order)))
    with pytest.raises(DamagedFileError, match="byteorder is neither little nor big"):
        read_pth(file)


OLD = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03."  # the magic number of the old format


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", r" is empty \(0 bytes\)"),
        (OLD, r" is in the old format of PyTorch before 1\.6"),
        (bytes(257) + b"ustar\x00" + bytes(300), r" is in the old format of PyTorch before 1\.6"),
        (b"version https://git-lfs.github.com/spec/v1\n", " is a Git LFS pointer"),
        (
            b"<!DOCTYPE html><title>404</title>",
            " is a web page, saved under the name of a model: download the file itself",
        ),
        (b"PK\x03\x04" + bytes(99), " is cut short or is not a zip file"),
        (bytes(99), " is not a zip file"),
    ],
)
def test_other_files_are_named(file: Path, contents: bytes, message: str) -> None:
    file.write_bytes(contents)
    with pytest.raises(CheckpointError, match=rf"evil\.pth{message}"):
        read_pth(file)


def test_folders_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(DamagedFileError, match=r"is a folder, expected a \.pth file"):
        read_pth(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"^.*/no\.pth: there is no such file$"):
        read_pth(tmp_path / "no.pth")


@pytest.mark.parametrize("part", [0.01, 0.3, 0.5, 0.9, 0.999])
def test_files_cut_short(file: Path, part: float) -> None:
    whole = write_pth(file, {"w": np.arange(5000, dtype=np.float16)}).read_bytes()
    file.write_bytes(whole[: int(part * len(whole))])
    with pytest.raises(DamagedFileError, match=r"evil\.pth is cut short or is not a zip file of torch\.save"):
        read_pth(file)


def test_a_file_cut_short_after_it_was_opened(file: Path) -> None:
    tensors = read_pth(write_pth(file, {"w": np.arange(5000, dtype=np.float16)}))
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(DamagedFileError, match=r"evil\.pth was replaced or changed while it was read"):
        tensors["w"].read()


def test_a_file_replaced_after_it_was_opened(file: Path) -> None:
    tensors = read_pth(write_pth(file, {"w": np.zeros(5, np.float16), "b": np.zeros(2, np.float16)}))
    assert np.array_equal(tensors["w"].read(), np.zeros(5))
    other = write_pth(file.with_name("other"), {"w": np.ones(5, np.float16), "b": np.ones(2, np.float16)})
    other.replace(file)
    with pytest.raises(DamagedFileError, match=r"evil\.pth was replaced or changed while it was read: load it again"):
        tensors["w"].read()


def test_one_flipped_bit_among_the_numbers_is_noticed(file: Path) -> None:
    whole = bytearray(write_pth(file, {"w": np.ones(5000, np.float16), "b": np.zeros(2, np.float16)}).read_bytes())
    whole[whole.index(b"\x00\x3c" * 50) + 40] ^= 1
    file.write_bytes(whole)
    tensors = read_pth(file)
    assert np.array_equal(tensors["b"].read(), [0, 0])
    with pytest.raises(DamagedFileError, match=r"data/0 does not have the checksum noted for it"):
        tensors["w"].read()


def test_a_zip_file_of_many_members_is_refused_before_they_are_looked_at(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pth.MAX_MEMBERS == 20_000  # which take long to write
    monkeypatch.setattr(pth, "MAX_MEMBERS", 500)
    file.write_bytes(zip_of(members_of(SOUND, RECORDS) + [(f"m/{i:x}", b"") for i in range(500)]))
    with pytest.raises(UnsafeFileError, match=r"has 50\d members, more than 500"):
        read_pth(file)


def test_an_endless_table_of_members_is_not_read(file: Path) -> None:
    """All of its entries are one, without end: two megabytes of it are ten times what torch.save needs."""
    whole = zip_of([("m/a", b"")])
    begin, end = whole.index(b"PK\x01\x02"), whole.index(b"PK\x05\x06")
    table = whole[begin:end] * 50_000
    counts = struct.pack("<HHHHIIH", 0, 0, 50_000, 50_000, len(table), begin, 0)
    file.write_bytes(whole[:begin] + table + b"PK\x05\x06" + counts)
    tracemalloc.start()
    with pytest.raises(UnsafeFileError, match=r"table of its members has more than 2,097,152 bytes"):
        read_pth(file)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


# -- at random ---------------------------------------------------------------------------------------------------


def survive(file: Path) -> None:
    """Whatever a file holds: tensors, or an error of ours."""
    try:
        for stored in read_pth(file).values():
            stored.read()
    except CheckpointError as error:
        assert "evil.pth" in str(error)


def mutate(data: bytes, rng: np.random.Generator) -> bytes:
    """Change, drop or repeat a few bytes."""
    out = bytearray(data)
    for _ in range(rng.integers(1, 4)):
        at, length = int(rng.integers(len(out))), int(rng.integers(1, 9))
        kind = rng.integers(4)
        if kind == 0:
            out[at] = rng.integers(256)
        elif kind == 1:
            del out[at : at + length]
        elif kind == 2:
            out[at:at] = out[int(rng.integers(len(out))) :][:length]
        else:
            out[at : at + 4] = struct.pack("<i", rng.choice([-1, 0, 2**31 - 1, -(2**31), 6]))
        out = out or bytearray(b"\0")
    return bytes(out)


MANY = pickle_of(
    {"a": tensor(HALF, 0, [2, 3], [3, 1]), "b": tensor(HALF, 1, [2, 2], [1, 2])},
    b"}(" + text("_metadata") + ORDERED_DICT + b"ub",
)


@pytest.mark.parametrize("times", [250, pytest.param(5_000, marks=pytest.mark.slow)])
def test_random_programs(file: Path, rng: np.random.Generator, times: int) -> None:
    for _ in range(times):
        survive(put(file, mutate(MANY, rng)))


@pytest.mark.parametrize("times", [250, pytest.param(5_000, marks=pytest.mark.slow)])
def test_random_zip_files(file: Path, rng: np.random.Generator, times: int) -> None:
    whole = zip_of(members_of(MANY, RECORDS))
    for _ in range(times):
        file.write_bytes(mutate(whole, rng))
        survive(file)
