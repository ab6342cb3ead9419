"""Files that are there whole or not at all, and errors that say which file is wrong and how.

A write goes to a temporary name in the same folder, reaches the disk (fsync), and only then takes the real name:
whoever is killed half way, or runs out of space, still has the old file. Folders likewise. What a killed process left
under a temporary name goes with the next write of that file.
"""

from __future__ import annotations

import ctypes
import errno
import glob
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

PathLike = str | os.PathLike[str]
METRICS = "metrics.jsonl"  # what every training run writes


class CheckpointError(ValueError):
    """A file of a checkpoint that cannot be used; the message names it."""


class DamagedFileError(CheckpointError):
    """A file that is empty, cut short, or not what its name says."""


class ForeignFileError(CheckpointError):
    """A sound file, but not one of the kind that was asked for."""


class UnsafeFileError(CheckpointError):
    """A file that asks for what no weights need, such as a call of a function; nothing of it was executed."""


def os_error(number: int, message: str) -> OSError:
    """Return the OSError of this number, whose text is the message alone, without a number that says nothing."""
    error = type(OSError(number, message))(message)
    error.errno = number
    return error


def file_not_found(message: str, path: PathLike) -> FileNotFoundError:
    """Return the error for a path at which something is missing."""
    error = FileNotFoundError(f"{path}: {message}")
    error.errno = errno.ENOENT
    return error


def resolve(path: PathLike) -> Path:
    """Return the absolute path, with ``~`` for the home folder and links followed (a link stays one when written)."""
    return Path(path).expanduser().resolve()


def model_folder(path: PathLike, name: str) -> Path:
    """Return a folder that holds the file `name`; a training run's folder stands for the ``model/`` inside it."""
    folder = Path(path).expanduser()
    inside = folder / "model"
    is_run = (folder / METRICS).exists()  # then what lies around the model is older, and not its own
    return inside if (inside / name).exists() and (is_run or not (folder / name).exists()) else folder


# -- writing -----------------------------------------------------------------------------------------------------


@contextmanager
def replacing(path: PathLike) -> Iterator[Path]:
    """Give a temporary path to write to; when the block ends without an error, that file becomes `path`.

    Missing folders above are made. After any error the old file is as it was, and the temporary one is gone.

    Raises
    ------
    OSError
        Naming `path`, when it cannot be written.
    """
    path = resolve(path)
    temporary = _temporary(path)
    with _naming(path):
        _remove_abandoned(path)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "there is a folder of that name")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            _sync(temporary)
            os.replace(temporary, path)
            _sync(path.parent)
        except BaseException:  # Ctrl-C too must not leave half a file behind
            remove(temporary)
            raise


@contextmanager
def replacing_folder(path: PathLike, replaced: Callable[[str], bool] = lambda name: False) -> Iterator[Path]:
    """Give an empty temporary folder to fill; when the block ends without an error, it becomes `path`.

    Parameters
    ----------
    path : path
        What an older folder of that name holds besides (a README, say) is kept.
    replaced : callable
        Says of a name in the older folder that it is not kept, though the new folder has none of that name.

    Raises
    ------
    OSError
        Naming `path`, when it is a file, the current folder, or cannot be written. The older folder is as it was.
    """
    path = resolve(path)
    temporary = _temporary(path)
    with _naming(path):
        if path.exists() and not path.is_dir():
            raise FileExistsError(errno.EEXIST, "there is a file of that name, and a folder is needed")
        if _is_current(path):
            raise OSError(errno.EBUSY, "it is the current folder, which cannot be replaced; choose a folder inside")
        try:
            _remove_abandoned(path)
            temporary.mkdir(parents=True)
            yield temporary
            if path.exists():
                _keep(path, temporary, replaced)
            for entry in [*temporary.rglob("*"), temporary]:
                if not entry.is_symlink() and (entry.is_file() or entry.is_dir()):
                    _sync(entry)
            _swap(temporary, path)
            _sync(path.parent)
        finally:
            remove(temporary)  # after the swap this is the older folder


def write_bytes(path: PathLike, data: bytes) -> None:
    """Write `data`, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: PathLike, text: str) -> None:
    """Write `text` as UTF-8 with Unix line ends, whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: PathLike, value: Any) -> None:
    """Write `value` as indented JSON that a person can read, whole or not at all."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def _remove_abandoned(path: Path) -> None:
    """Remove what processes left that were killed while they wrote `path`; our own name is not in use yet."""
    before, after = f".{path.name}.", ".tmp"
    for entry in path.parent.glob(f"{glob.escape(before)}*{after}"):
        pid = entry.name[len(before) : -len(after)]
        if pid.isdecimal() and not _is_another_process(int(pid)):
            remove(entry)


def _is_another_process(pid: int) -> bool:
    """Say whether another process runs under this number; on Windows, where asking would end it, suppose so."""
    if pid == os.getpid():
        return False
    if os.name == "nt":
        return True
    try:
        os.kill(pid, 0)  # signal 0 only asks
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it does, under another user
        return True
    return True


def _is_current(path: Path) -> bool:
    """Say whether the process stands in this folder or below: it would be left standing in a deleted one."""
    try:
        return Path.cwd().is_relative_to(path)
    except FileNotFoundError:  # it does so already
        return False


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Let an OSError speak of the file that was to be written, not of its temporary name."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise os_error(error.errno or errno.EIO, f"cannot write {path}: {reason}") from error


def _sync(path: Path) -> None:
    """Wait until a file's contents, or a folder's names, are on the disk."""
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open a folder, and writes its names at once
    descriptor = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _keep(old: Path, new: Path, replaced: Callable[[str], bool]) -> None:
    """Give `new` everything else that `old` holds: as second names of the same files, hence without copying."""

    def ignore(folder: str, names: Iterable[str]) -> list[str]:
        at_top = Path(folder) == old
        return [name for name in names if at_top and (replaced(name) or (new / name).exists())]

    shutil.copytree(old, new, symlinks=True, ignore=ignore, copy_function=_link, dirs_exist_ok=True)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copy2(source, target)


def _swap(new: Path, path: Path) -> None:
    """Let `new` take the name `path`; an older folder of that name takes the name `new`."""
    if not path.exists():
        os.rename(new, path)
    elif not _exchange(new, path):
        spare = new.with_suffix(".old")
        os.rename(path, spare)
        try:
            os.rename(new, path)
        except BaseException:
            os.rename(spare, path)
            raise
        os.rename(spare, new)


def _exchange(a: Path, b: Path) -> bool:
    """Swap two names in one step, so that at no moment neither is there; False where the system cannot (Linux can)."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return renameat2(here, os.fsencode(a), here, os.fsencode(b), exchange) == 0


# -- reading -----------------------------------------------------------------------------------------------------


class UnchangedFile:
    """A file that is opened anew for each part that is read, and refused once it is not the one first seen.

    A save puts a new file under the old name; without this, a load that it overtakes would mix two models. (A file kept
    open would do as well, but on Windows nobody could then replace it.)

    Parameters
    ----------
    path : Path
        Of a file that is there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with open(path, "rb") as file:
            self.version = _version(file)

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Open it for reading.

        Raises
        ------
        DamagedFileError
            When another file has its name, or its contents change while it is open.
        """
        with open(self.path, "rb") as file:
            self._check(file)
            yield file
            self._check(file)

    def check(self) -> None:
        """Refuse the file if another one has its name by now."""
        with self.opened():
            pass

    def _check(self, file: BinaryIO) -> None:
        if _version(file) != self.version:
            raise DamagedFileError(f"{self.path} was replaced or changed while it was read: load it again")


def _version(file: BinaryIO) -> tuple[int, ...]:
    """Return what another file, or the same one with other contents, does not have: asked of the open file itself."""
    stat = os.fstat(file.fileno())
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; a byte order mark is skipped.

    Raises
    ------
    FileNotFoundError
        When there is no such file.
    DamagedFileError
        When it is not UTF-8 (naming the byte), not JSON (naming the place) or not an object.
    """
    if not path.is_file():
        raise file_not_found("there is no such file", path)
    try:
        data = path.read_bytes()
        check_no_pointer(path, data)
        value = json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise DamagedFileError(f"{path} is not UTF-8: byte 0x{byte:02X} at offset {error.start}") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise DamagedFileError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise DamagedFileError(f"{path} holds {type(value).__name__}, expected a JSON object")
    return value


def check_no_pointer(path: Path, first: bytes) -> None:
    """Refuse what Git puts in place of a large file until that is fetched."""
    if first.startswith(b"version https://git-lfs"):
        raise DamagedFileError(f"{path} is a Git LFS pointer, not the file itself: fetch it with 'git lfs pull'")


def contents(folder: Path) -> str:
    """Say in a few words what a folder holds, for errors about what it does not hold."""
    names = sorted(entry.name for entry in folder.iterdir())
    if not names:
        return "nothing"
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
