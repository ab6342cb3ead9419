"""MiniMind's .pth files, read without torch and without executing anything.

`torch.save` writes a zip file whose members are stored, not compressed::

    full_sft_768/data.pkl      the state dict as a pickle, with a reference in place of each tensor's numbers
    full_sft_768/byteorder     little or big; older files lack it, and are little
    full_sft_768/data/0        the numbers of one storage, as they lay in memory; several tensors may share it
    full_sft_768/data/1        ...

A pickle is a program for a small stack machine, and two of its instructions suffice to fetch any function of Python and
to call it: to unpickle a stranger's file is to run a stranger's program. Here nothing is unpickled:

1. `Archive` finds the members and checks that each lies where the file says, uncompressed, inside the file.
2. `scan` looks the program through before any of it is carried out: the instructions of a state dict, six names, no
   others.
3. `StackMachine` carries it out with the functions of this file in place of those six names. What it can build is
   dicts, lists, tuples, numbers, strings, and `StoredTensor`, which is a checked place in the file.

The numbers themselves are read by NumPy, one tensor at a time, when they are wanted.
"""

from __future__ import annotations

import collections
import functools
import math
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple, cast

from numpy_minimind.checkpoint.tensors import StoredTensor, check_first_bytes
from numpy_minimind.files import (
    CheckpointError,
    DamagedFileError,
    ForeignFileError,
    PathLike,
    UnchangedFile,
    UnsafeFileError,
)
from numpy_minimind.foreign import is_safetensors

# About 110 bytes a tensor are usual: room for nine thousand. What a stranger can make of as much costs 0.2 GB.
MAX_PICKLE = 1 << 20
MAX_STRING = 1000  # bytes of a name
MAX_DIMENSIONS = 8
NUMBER_BYTES = {"F16": 2, "BF16": 2, "F32": 4}
MAX_MEMBERS = 20_000
MAX_DIRECTORY = 2 << 20  # bytes of the zip file's table of its members
ENCRYPTED = 0x41  # the two bits of a member's flags that say so

USUAL = ("model", "state_dict", "model_state_dict", "model_state", "module")  # where training scripts put a state dict

ALONE = ". Where it was made, save the weights alone: torch.save(model.state_dict(), FILE)"
NOT_EXECUTED = "the file was refused, and nothing of it was executed"


def read_pth(path: PathLike) -> dict[str, StoredTensor]:
    """Return the tensors of a state dict that ``torch.save`` wrote, by name, still in their file.

    A dict that holds the state dict, with an optimizer and counts beside it, will do: under one of the usual names
    (``"model"`` in MiniMind's files for resuming a run, ``"state_dict"``, ...), or as the only one of tensors.

    Raises
    ------
    FileNotFoundError
    DamagedFileError
        For a file that is empty, cut short, or contradicts itself.
    UnsafeFileError
        For a pickle that asks for anything but a state dict.
    CheckpointError
        For the formats before PyTorch 1.6, and for a file that holds something else.
    """
    file = Path(path).expanduser()
    archive = Archive(file)
    value = StackMachine(file, archive.storage).run(scan(file, archive.read("data.pkl", MAX_PICKLE)))
    return _state_dict(file, value)


def _state_dict(path: Path, value: Any) -> dict[str, StoredTensor]:
    for _ in range(3):  # a stranger's dict may hold itself
        value = _inside(value)
    if type(value) is not dict or not value:
        raise CheckpointError(f"{path} holds {_kind(value)}, expected a state dict: names and their tensors")
    others = [f"{key} ({_kind(item)})" for key, item in value.items() if type(item) is not StoredTensor]
    if others or not all(type(key) is str for key in value):
        found = ", ".join(others[:5]) or "numbers as names"
        raise CheckpointError(f"{path} holds {found}, expected a state dict: names and their tensors")
    return value


def _inside(value: Any) -> Any:
    """Return what of a training script's dict is its model; the value itself, if it holds none."""
    dicts = {key: item for key, item in value.items() if type(item) is dict} if type(value) is dict else {}
    usual = next((key for key in USUAL if key in dicts), None)
    if usual is not None:
        return dicts[usual]
    of_tensors = [item for item in dicts.values() if item and all(type(part) is StoredTensor for part in item.values())]
    return of_tensors[0] if len(of_tensors) == 1 else value


def _kind(value: Any) -> str:
    """Name the kind of a value; the value itself, from a stranger, may be endless."""
    if type(value) in (dict, list, tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


# -- 1. the zip file ---------------------------------------------------------------------------------------------


class Record(NamedTuple):
    """Where a member's bytes lie, and their checksum."""

    name: str
    start: int
    size: int
    crc: int


class Storage(NamedTuple):
    """Numbers in a record, of one dtype, without a shape yet."""

    record: Record
    stored: str  # a key of NUMBER_BYTES
    numel: int
    tensor: Callable[..., StoredTensor]  # gives them a name, a start, a shape and strides


class _SmallReads:
    """A file whose reader cannot be talked into reading a table of gigabytes: `zipfile` reads it in one piece."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self.file, self.seek, self.tell = path, file, file.seek, file.tell

    def read(self, size: int = -1) -> bytes:
        if size > MAX_DIRECTORY:
            raise UnsafeFileError(
                f"{self.path}: the zip file's table of its members has more than {MAX_DIRECTORY:,} bytes"
            )
        return self.file.read(size)


class Archive:
    """The members of the zip file, each checked to lie uncompressed inside it.

    Attributes
    ----------
    records : dict from name (without the folder) to Record
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: dict[str, Record] = {}
        self.sound: set[Record] = set()
        self.dtypes: dict[str, str] = {}
        self._check_format(check_first_bytes(path, "a .pth file of PyTorch"))
        self.file = UnchangedFile(path)
        self.size = path.stat().st_size
        try:
            with self.file.opened() as file:
                found = [self._record(info, file) for info in self._members(file)]
        except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError, struct.error, ValueError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise DamagedFileError(f"{path} is cut short or is not a zip file of torch.save: {error}") from error
        self._check_places(found)
        folder = self._folder(found)
        self.records = {record.name.removeprefix(folder): record for record in found}
        self.byteorder = {"little": "<", "big": ">"}.get(self._byteorder(), "")
        if not self.byteorder:
            raise DamagedFileError(f"{path}: its byteorder is neither little nor big")

    def _check_format(self, first: bytes) -> None:
        if first.startswith(b"PK\x03\x04"):
            return
        if is_safetensors(first):
            raise ForeignFileError(
                f"{self.path} is a safetensors file: call it model.safetensors, and give the folder that holds it"
            )
        if first.startswith(b"\x80") or first[257:262] == b"ustar":
            raise CheckpointError(
                f"{self.path} is in the old format of PyTorch before 1.6 (no zip file), which is not read here. To "
                "convert it, with PyTorch: torch.save(torch.load(OLD, weights_only=True), NEW)"
            )
        raise DamagedFileError(f"{self.path} is not a zip file, which is what torch.save writes")

    def _members(self, file: BinaryIO) -> list[zipfile.ZipInfo]:
        """Let the library read the table at the end of the file, which must not be endless."""
        found = zipfile.ZipFile(cast(IO[bytes], _SmallReads(self.path, file))).infolist()
        if len(found) > MAX_MEMBERS:
            raise UnsafeFileError(f"{self.path}: the zip file has {len(found):,} members, more than {MAX_MEMBERS:,}")
        if not any(info.filename.endswith("data.pkl") for info in found):
            raise ForeignFileError(
                f"{self.path} is a zip file without data.pkl: torch.save did not write it. If it is a packed folder, "
                "unpack that and give it"
            )
        return found

    def _record(self, info: zipfile.ZipInfo, file: BinaryIO) -> Record:
        """Check one member against its own header, which stands before its bytes."""
        name = info.orig_filename
        if info.flag_bits & ENCRYPTED:
            raise UnsafeFileError(f"{self.path}: {name!r} is encrypted")
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise UnsafeFileError(
                f"{self.path}: {name!r} is compressed, which torch.save never does (a zip bomb would)"
            )
        if not 0 <= info.header_offset < self.size:
            raise DamagedFileError(f"{self.path}: the zip file places {name!r} outside itself")
        file.seek(info.header_offset)
        signature, flags, name_length, extra_length = struct.unpack("<4s2xH18xHH", file.read(30))
        own_name = file.read(name_length).decode("utf-8" if flags & 0x800 else "cp437")
        if signature != b"PK\x03\x04" or own_name != name:
            raise DamagedFileError(f"{self.path}: the zip file contradicts itself about {name!r}")
        return Record(name, info.header_offset + 30 + name_length + extra_length, info.file_size, info.CRC)

    def _check_places(self, found: list[Record]) -> None:
        """Every byte of the file belongs to one member at most."""
        end = 0
        for record in sorted(found, key=lambda record: (record.start, record.size)):
            if record.start < end:
                raise DamagedFileError(f"{self.path}: {record.name!r} lies upon another member of the zip file")
            end = record.start + record.size
        if end > self.size:
            raise DamagedFileError(f"{self.path} is cut short: a member of it ends at byte {end}")

    def _folder(self, found: list[Record]) -> str:
        """Return the folder, with its slash, in which all members lie; refuse names that lead elsewhere, or twice."""
        names = [record.name for record in found]
        folder = names[0].partition("/")[0] + "/" if names else ""
        for name in names:
            parts = name.split("/")
            if not name.startswith(folder) or ".." in parts or "" in parts[:-1] or "\\" in name or "\0" in name:
                raise UnsafeFileError(f"{self.path}: the zip file has a member {name!r}, outside its one folder")
        name, times = max(collections.Counter(names).items(), key=lambda item: item[1], default=("", 0))
        if times > 1:
            raise UnsafeFileError(f"{self.path}: the zip file has {times} members {name!r}: which one counts?")
        return folder

    def _byteorder(self) -> str:
        return self.read("byteorder", 16).decode("latin-1") if "byteorder" in self.records else "little"

    def read(self, name: str, limit: int) -> bytes:
        """Return a small member."""
        if name not in self.records:
            raise DamagedFileError(f"{self.path} is a zip file without {name}: torch.save did not write it")
        record = self.records[name]
        if record.size > limit:
            raise UnsafeFileError(f"{self.path}: {name} has {record.size:,} bytes, more than {limit:,}")
        with self.file.opened() as file:
            self.verify(record, file)
            file.seek(record.start)
            return file.read(record.size)

    def verify(self, record: Record, file: BinaryIO) -> None:
        """Compare a member with its checksum, the first time that it is wanted."""
        if record in self.sound:
            return
        crc, left = 0, record.size
        file.seek(record.start)
        while left and (chunk := file.read(min(left, 1 << 20))):
            crc, left = zlib.crc32(chunk, crc), left - len(chunk)
        if left or crc != record.crc:
            raise DamagedFileError(
                f"{self.path} is damaged: {record.name} does not have the checksum noted for it (or PyTorch was told, "
                "by set_crc32_options(False), to note none)"
            )
        self.sound.add(record)

    def storage(self, stored: str, key: str, numel: int) -> Storage:
        """Return the numbers of ``data/KEY``, once dtype and count are known to agree with the file."""
        record = self.records.get(f"data/{key}")
        if record is None:
            raise DamagedFileError(f"{self.path}: the pickle speaks of data/{key}, which is not there")
        if numel * NUMBER_BYTES[stored] != record.size:
            raise DamagedFileError(
                f"{self.path}: the pickle says that data/{key} holds {numel} numbers ({stored}), and it has "
                f"{record.size} bytes"
            )
        if self.dtypes.setdefault(key, stored) != stored:
            raise DamagedFileError(f"{self.path}: the pickle gives data/{key} two dtypes")
        check = functools.partial(self.verify, record)
        tensor = functools.partial(StoredTensor, self.file, byteorder=self.byteorder, check=check, stored=stored)
        return Storage(record, stored, numel, tensor)


# -- 2. what a pickle may say ------------------------------------------------------------------------------------


class StorageType(NamedTuple):
    """Stands in for torch.HalfStorage and its like."""

    stored: str


class Function(NamedTuple):
    """One of ours, in place of the one that a pickle names; it is called with exactly these types."""

    call: Callable[..., Any]
    types: tuple[type, ...]


def ordered_dict() -> dict[Any, Any]:
    return {}


def rebuild_tensor(
    storage: Storage, offset: int, shape: tuple[Any, ...], strides: tuple[Any, ...], grad: bool, hooks: dict[Any, Any]
) -> StoredTensor:
    """Give numbers of a storage a shape; every index must lead to a number of that storage."""
    if len(shape) != len(strides) or len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"a tensor with {len(shape)} sizes and {len(strides)} strides")
    if not all(type(n) is int and n >= 0 for n in (offset, *shape, *strides)):
        raise ValueError("a size, stride or offset that is no whole number of at least 0")
    last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides))
    numel = math.prod(shape)
    if numel > storage.numel:  # stride 0 can make one number look like a billion
        raise ValueError(f"a tensor of {numel} numbers in a storage of {storage.numel}")
    if numel and last >= storage.numel:
        raise ValueError(f"a tensor that reaches to number {last} of a storage of {storage.numel}")
    start = storage.record.start + offset * NUMBER_BYTES[storage.stored]
    return storage.tensor(name=storage.record.name, start=start, shape=shape, strides=strides)


def rebuild_parameter(tensor: StoredTensor, grad: bool, hooks: dict[Any, Any]) -> StoredTensor:
    return tensor


# The only names that a pickle may use, and what stands for them here.
NAMES: dict[str, Function | StorageType] = {
    "collections OrderedDict": Function(ordered_dict, ()),
    "torch._utils _rebuild_tensor_v2": Function(rebuild_tensor, (Storage, int, tuple, tuple, bool, dict)),
    "torch._utils _rebuild_parameter": Function(rebuild_parameter, (StoredTensor, bool, dict)),
    "torch HalfStorage": StorageType("F16"),
    "torch BFloat16Storage": StorageType("BF16"),
    "torch FloatStorage": StorageType("F32"),
}

# The only instructions, all of protocol 2.
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
ARGUMENTS = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE"}
CONTAINERS = {"EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
FILLING = {"MARK", "SETITEM", "SETITEMS", "APPEND", "APPENDS"}
PUT, GET = {"BINPUT", "LONG_BINPUT"}, {"BINGET", "LONG_BINGET"}
OBJECTS = {"GLOBAL", "BINPERSID", "REDUCE", "BUILD"}  # the dangerous ones, were they Python's
INSTRUCTIONS = {"PROTO", "STOP", *CONSTANTS, *ARGUMENTS, *CONTAINERS, *FILLING, *PUT, *GET, *OBJECTS}

Program = list[tuple[str, Any, int]]  # instruction, argument, position


def scan(path: Path, pickle: bytes) -> Program:
    """Return a pickle's instructions, all of them allowed ones with arguments of a sensible size.

    `pickletools.genops` takes a pickle to pieces and executes nothing.
    """
    program: Program = []
    try:
        for opcode, argument, position in pickletools.genops(pickle):
            fault = _fault(opcode.name, argument, len(pickle), first=not program)
            if fault:
                remedy = ALONE if opcode.name == "GLOBAL" else ""
                raise UnsafeFileError(f"{path}: its pickle {fault} (at byte {position}); {NOT_EXECUTED}{remedy}")
            program.append((opcode.name, argument, position or 0))
    except (ValueError, DeprecationWarning) as error:  # a warning, where warnings are errors: of a stray backslash
        if isinstance(error, CheckpointError):
            raise
        raise DamagedFileError(f"{path}: its pickle is damaged: {error}") from error
    if program[-1][2] + 1 != len(pickle):
        raise UnsafeFileError(f"{path}: its pickle has bytes after its end; {NOT_EXECUTED}")
    return program


def _fault(name: str, argument: Any, size: int, first: bool) -> str | None:
    """Say what is wrong with an instruction, None if nothing is."""
    if name == "PROTO" and argument != 2:
        return f"is of protocol {argument}, and torch.save writes protocol 2"
    if (name == "PROTO") != first:
        return "does not begin with its protocol, or does so twice"
    if name not in INSTRUCTIONS:
        return f"has the instruction {name}, which no state dict needs"
    if name == "GLOBAL" and argument not in NAMES:
        allowed = ", ".join(known.replace(" ", ".") for known in NAMES)
        return f"asks for {argument.replace(' ', '.')!r:.80}, which is none of {allowed}"
    if name in PUT | GET and argument > size:
        return f"keeps something under number {argument}, more than it has bytes"
    if name == "BINUNICODE" and len(argument) > MAX_STRING:
        return f"has a string of {len(argument):,} characters"
    if name == "BINUNICODE" and not argument.isprintable():  # it might stand in an error, and steer a terminal
        return f"has a string with unprintable characters, {argument!r:.80}"
    if name == "LONG1" and not -(2**63) <= argument < 2**63:
        return "has a number of more than 64 bits"
    return None


# -- 3. carrying it out ------------------------------------------------------------------------------------------


class _Refused(Exception):
    """What `StackMachine` will not do; it says so with the file's name."""


class StackMachine:
    """Pickle's machine, as far as a state dict needs it: a stack, marks on it, and a memo of numbered values.

    Parameters
    ----------
    path : Path
        For error messages.
    storage : callable
        From (dtype, key, count) to a checked Storage.
    """

    def __init__(self, path: Path, storage: Callable[[str, str, int], Storage]) -> None:
        self.path, self.open_storage = path, storage
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, program: Program) -> Any:
        """Carry a scanned program out; return what it leaves on the stack."""
        for name, argument, position in program:
            try:
                self.step(name, argument)
            except _Refused as error:
                raise UnsafeFileError(f"{self.path}: its pickle {error} (at byte {position}); {NOT_EXECUTED}") from None
            except (IndexError, KeyError):
                raise DamagedFileError(
                    f"{self.path}: its pickle takes what is not there (at byte {position})"
                ) from None
            except ValueError as error:
                if isinstance(error, CheckpointError):
                    raise
                raise DamagedFileError(f"{self.path}: its pickle has {error} (at byte {position})") from error
        if len(self.stack) != 1 or self.marks:
            raise DamagedFileError(f"{self.path}: its pickle leaves {len(self.stack)} values, expected one")
        return self.stack[0]

    def step(self, name: str, argument: Any) -> None:
        """Carry out one instruction."""
        if name in CONSTANTS:
            self.stack.append(CONSTANTS[name])
        elif name in ARGUMENTS:
            self.stack.append(argument)
        elif name in PUT:
            self.memo[argument] = self.stack[-1]
        elif name in GET:
            self.stack.append(self.memo[argument])
        elif name in CONTAINERS:
            self.stack.append(self.container(name))
        elif name in FILLING:
            self.fill(name)
        elif name == "GLOBAL":
            self.stack.append(NAMES[argument])
        elif name == "BINPERSID":
            self.stack.append(self.storage(self.stack.pop()))
        elif name == "REDUCE":
            arguments, function = self.stack.pop(), self.stack.pop()
            self.stack.append(self.reduce(function, arguments))
        elif name == "BUILD":
            self.build(self.stack.pop(), self.stack[-1])

    def take(self, count: int) -> list[Any]:
        """Take the last `count` values off the stack."""
        if not 0 <= count <= len(self.stack):
            raise IndexError
        taken = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return taken

    def above_mark(self) -> list[Any]:
        """Take everything above the last mark off the stack."""
        return self.take(len(self.stack) - self.marks.pop())

    def container(self, name: str) -> Any:
        if name == "EMPTY_DICT":
            return {}
        if name == "EMPTY_LIST":
            return []
        counts = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
        return tuple(self.take(counts[name]) if name in counts else self.above_mark())

    def fill(self, name: str) -> None:
        if name == "MARK":
            self.marks.append(len(self.stack))
            return
        counts = {"SETITEM": 2, "APPEND": 1}
        items = self.take(counts[name]) if name in counts else self.above_mark()
        target = self.stack[-1]
        if name.startswith("APPEND") and type(target) is list:
            target.extend(items)
        elif name.startswith("SETITEM") and type(target) is dict and len(items) % 2 == 0:
            keys = items[::2]
            if not all(type(key) in (str, int) for key in keys):  # hashing what a stranger built may take for ever
                raise ValueError("a key that is neither a string nor a whole number")
            target.update(zip(keys, items[1::2]))
        else:
            raise ValueError(f"{name} on {_kind(target)}")

    def storage(self, reference: Any) -> Storage:
        """Take ("storage", type, key, location, count), torch's reference to numbers outside the pickle."""
        if type(reference) is not tuple or [type(part) for part in reference] != [str, StorageType, str, str, int]:
            raise _Refused(f"refers to {_kind(reference)} where a storage is expected")
        word, storage_type, key, _, numel = reference
        if word != "storage" or numel < 0:
            raise _Refused("refers to something outside that is no storage")
        return self.open_storage(storage_type.stored, key, numel)

    def reduce(self, function: Any, arguments: Any) -> Any:
        """Call a function of ours: no other can be on the stack."""
        if type(function) is not Function:
            raise _Refused(f"calls {_kind(function)}, which is no function")
        if type(arguments) is not tuple or tuple(type(argument) for argument in arguments) != function.types:
            raise _Refused(f"calls {function.call.__name__} with arguments that torch.save never gives it")
        return function.call(*arguments)

    def build(self, state: Any, target: Any) -> None:
        """Drop ``_metadata`` (module versions), the one attribute that PyTorch hangs on a state dict."""
        if type(target) is not dict or type(state) is not dict or set(state) != {"_metadata"}:
            raise _Refused(f"sets attributes of {_kind(target)} other than a state dict's _metadata")
