"""Writes what torch.save writes, and what an attacker would, byte by byte and without torch."""

import struct
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

STORAGES = {"float16": b"HalfStorage", "float32": b"FloatStorage", "uint16": b"BFloat16Storage"}
ORDERED_DICT = b"ccollections\nOrderedDict\n)R"


# -- pickles -----------------------------------------------------------------------------------------------------


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def number(value: int) -> bytes:
    if 0 <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def tuple_of(parts: Iterable[bytes]) -> bytes:
    return b"(" + b"".join(parts) + b"t"


def storage(kind: bytes, key: str, numel: int) -> bytes:
    return tuple_of([text("storage"), b"ctorch\n" + kind + b"\n", text(key), text("cpu"), number(numel)]) + b"Q"


def tensor(
    place: bytes, offset: int, shape: Iterable[int], strides: Iterable[int], function: bytes = b"_rebuild_tensor_v2"
) -> bytes:
    arguments = [place, number(offset), tuple_of(map(number, shape)), tuple_of(map(number, strides))]
    return b"ctorch._utils\n" + function + b"\n" + tuple_of([*arguments, b"\x89", ORDERED_DICT]) + b"R"


def pickle_of(items: Mapping[str, bytes], end: bytes = b"") -> bytes:
    """A state dict as a program: its items, then `end`."""
    pairs = b"".join(text(name) + value for name, value in items.items())
    return b"\x80\x02" + ORDERED_DICT + b"(" + pairs + b"u" + end + b"."


# -- zip files ---------------------------------------------------------------------------------------------------


def zip_of(members: Iterable[tuple[str, bytes]], **lies: Any) -> bytes:
    """A zip file of stored members. `lies` replace header fields of the member named in `lies["of"]`."""
    whole, directory = b"", b""
    count = 0
    for name, data in members:
        crc = zlib.crc32(data)
        truth = {
            "flags": 0x800,
            "method": 0,
            "crc": crc,
            "compressed": len(data),
            "size": len(data),
            "offset": len(whole),
            "own_name": name,
            "extra": b"",
            "signature": b"PK\x03\x04",
        }
        field = truth | ({k: v for k, v in lies.items() if k != "of"} if lies.get("of") == name else {})
        sizes = struct.pack("<III", field["crc"], field["compressed"], field["size"])
        raw, own, extra = name.encode(), field["own_name"].encode(), field["extra"]
        common = struct.pack("<HHHHH", 20, field["flags"], field["method"], 0, 0)[2:]
        directory += b"PK\x01\x02" + struct.pack("<HH", 20, 20) + common + sizes
        directory += struct.pack("<HHHHHII", len(raw), len(extra), 0, 0, 0, 0, field["offset"]) + raw + extra
        whole += (
            field["signature"] + struct.pack("<H", 20) + common + sizes + struct.pack("<HH", len(own), 0) + own + data
        )
        count += 1
    end = struct.pack("<HHHHIIH", 0, 0, count, count, len(directory), len(whole), 0)
    return whole + directory + b"PK\x05\x06" + end


def members_of(
    pickle: bytes, records: Mapping[str, bytes] | None = None, folder: str = "m", byteorder: bytes | None = b"little"
) -> list[tuple[str, bytes]]:
    members = [(f"{folder}/data.pkl", pickle), (f"{folder}/version", b"3\n")]
    if byteorder is not None:
        members.append((f"{folder}/byteorder", byteorder))
    return members + [(f"{folder}/data/{key}", data) for key, data in (records or {}).items()]


def write_pth(path: Path, arrays: Mapping[str, np.ndarray], byteorder: str | None = "little") -> Path:
    """Write arrays (uint16: the bits of bfloat16) as ``torch.save`` writes a state dict."""
    items, records = {}, {}
    for key, (name, array) in enumerate(arrays.items()):
        place = storage(STORAGES[array.dtype.name], str(key), array.size)
        strides = [stride // array.itemsize for stride in np.empty(array.shape, array.dtype).strides]
        items[name] = tensor(place, 0, array.shape, strides)
        records[str(key)] = array.astype(array.dtype.newbyteorder(">" if byteorder == "big" else "<")).tobytes()
    order = None if byteorder is None else byteorder.encode()
    path.write_bytes(zip_of(members_of(pickle_of(items), records, byteorder=order)))
    return path
