"""Files and folders are there whole or not at all, whatever goes wrong and when."""

import errno
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from numpy_minimind import files
from numpy_minimind.checkpoint import DamagedFileError
from numpy_minimind.files import read_json, replacing, replacing_folder, write_json, write_text


def tree(folder: Path) -> dict[str, str]:
    """Every file below a folder with its contents."""
    return {str(p.relative_to(folder)): p.read_text("utf-8") for p in folder.rglob("*") if p.is_file()}


class Broken(Exception):
    """An error that nobody expects."""


def breaks(error: BaseException) -> Callable[..., None]:
    def function(*_: object) -> None:
        raise error

    return function


# -- files -------------------------------------------------------------------------------------------------------


def test_a_written_file_is_there_with_its_folders_and_nothing_else(tmp_path: Path) -> None:
    write_text(tmp_path / "a" / "b.txt", "猫\nb\n")
    assert (tmp_path / "a" / "b.txt").read_bytes() == "猫\nb\n".encode()
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["b.txt"]


def test_json_is_readable_and_comes_back(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"a": "猫", "b": [1, None, 0.1]})
    assert "猫" in (tmp_path / "x.json").read_text("utf-8")
    assert read_json(tmp_path / "x.json") == {"a": "猫", "b": [1, None, 0.1]}


@pytest.mark.parametrize("error", [Broken(), OSError("no space"), KeyboardInterrupt()])
@pytest.mark.parametrize("moment", ["writing", "syncing", "renaming"])
@pytest.mark.parametrize("before", [{}, {"x": "old"}])
def test_a_failed_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, moment: str, before: dict[str, str]
) -> None:
    for name, text in before.items():
        (tmp_path / name).write_text(text, "utf-8")
    if moment != "writing":
        monkeypatch.setattr(os, {"syncing": "fsync", "renaming": "replace"}[moment], breaks(error))
    with pytest.raises(type(error)), replacing(tmp_path / "x") as temporary:
        temporary.write_text("half", "utf-8")
        if moment == "writing":
            raise error
    assert tree(tmp_path) == before


def test_the_data_reaches_the_disk_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def watched_fsync(descriptor: int) -> None:
        steps.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "data")
        fsync(descriptor)

    def watched_replace(*names: Path) -> None:
        steps.append("name")
        replace(*names)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)
    write_text(tmp_path / "x", "new")
    assert steps == ["data", "name", "folder"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real" / "x")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert tree(tmp_path / "real") == {"x": "new"}


def test_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_text("~/x", "new")
    assert tree(tmp_path) == {"x": "new"}


def test_errors_name_the_file_and_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(NotADirectoryError, match=r"^cannot write .*/file/x: Not a directory$") as caught:
        write_text(tmp_path / "file" / "x", "")
    assert caught.value.errno == errno.ENOTDIR
    with pytest.raises(IsADirectoryError, match=r"^cannot write .*: there is a folder of that name$"):
        write_text(tmp_path, "")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(0o500)
    with pytest.raises(PermissionError, match=r"cannot write .*/closed/x: Permission denied"):
        write_text(tmp_path / "closed" / "x", "")


# -- folders -----------------------------------------------------------------------------------------------------


def fill(folder: Path, **contents: str) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in contents.items():
        (folder / name).write_text(text, "utf-8")


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    with replacing_folder(tmp_path / "deep" / "model") as new:
        fill(new, a="1", b="2")
        assert not (tmp_path / "deep" / "model").exists()
    assert tree(tmp_path) == {"deep/model/a": "1", "deep/model/b": "2"}


@pytest.mark.parametrize("one_step", [True, False])
def test_a_folder_is_replaced_and_other_files_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_step: bool
) -> None:
    if not one_step:
        monkeypatch.setattr(files, "_exchange", lambda a, b: False)
    fill(tmp_path / "model", a="old", README="mine", shard="stale")
    fill(tmp_path / "model" / "notes", shard="kept, being further down", a="too")
    with replacing_folder(tmp_path / "model", replaced=lambda name: name == "shard") as new:
        fill(new, a="new")
    assert tree(tmp_path) == {
        "model/a": "new",
        "model/README": "mine",
        "model/notes/shard": "kept, being further down",
        "model/notes/a": "too",
    }


def test_two_names_are_exchanged_in_one_step_where_the_system_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "a", a="1")
    fill(tmp_path / "b", b="2")
    if files._exchange(tmp_path / "a", tmp_path / "b"):  # Linux, on most file systems
        assert tree(tmp_path) == {"a/b": "2", "b/a": "1"}
    assert not files._exchange(tmp_path / "a", tmp_path / "nothing")
    monkeypatch.setattr(files.ctypes, "CDLL", lambda *_, **__: object())
    assert not files._exchange(tmp_path / "a", tmp_path / "b")


def test_a_process_in_a_deleted_folder_can_still_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with replacing_folder(tmp_path / "model") as new:
        fill(new, a="new")
    assert tree(tmp_path) == {"model/a": "new"}


def test_files_are_kept_on_file_systems_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", breaks(OSError("not here")))
    fill(tmp_path / "model", README="mine")
    with replacing_folder(tmp_path / "model") as new:
        fill(new, a="new")
    assert tree(tmp_path / "model") == {"a": "new", "README": "mine"}


@pytest.mark.parametrize("error", [Broken(), OSError("no space"), KeyboardInterrupt()])
@pytest.mark.parametrize("moment", ["writing", "syncing", "first rename", "second rename"])
@pytest.mark.parametrize("before", [{}, {"a": "old", "README": "mine"}])
def test_a_failed_folder_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, moment: str, before: dict[str, str]
) -> None:
    if moment == "second rename" and not before:
        pytest.skip("there is only one")
    if before:
        fill(tmp_path / "model", **before)
    monkeypatch.setattr(files, "_exchange", lambda a, b: False)
    rename, renames = os.rename, []

    def breaking_rename(source: Path, target: Path) -> None:
        renames.append(target)
        if len(renames) == {"first rename": 1, "second rename": 2}.get(moment):
            raise error
        rename(source, target)

    monkeypatch.setattr(os, "rename", breaking_rename)
    if moment == "syncing":
        monkeypatch.setattr(os, "fsync", breaks(error))
    with pytest.raises(type(error)), replacing_folder(tmp_path / "model") as new:
        fill(new, a="half")
        if moment == "writing":
            raise error
    assert tree(tmp_path) == {f"model/{name}": text for name, text in before.items()}
    assert [p.name for p in tmp_path.iterdir()] == (["model"] if before else [])


def test_a_file_or_the_current_folder_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("precious", "utf-8")
    with (
        pytest.raises(FileExistsError, match=r"/file: there is a file of that name"),
        replacing_folder(tmp_path / "file"),
    ):
        pass
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match=r"current folder, which cannot be replaced"), replacing_folder("."):
        pass
    assert tree(tmp_path) == {"file": "precious"}


def number_of_nobody() -> int:
    """The number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_what_a_killed_process_left_goes_with_the_next_write(tmp_path: Path) -> None:
    gone = number_of_nobody()
    fill(tmp_path / f".model.{gone}.tmp", a="half")
    (tmp_path / f".x.json.{gone}.tmp").write_text("half", "utf-8")
    with replacing_folder(tmp_path / "model") as new:
        fill(new, a="new")
    write_json(tmp_path / "x.json", {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "x.json"]


def test_what_belongs_to_others_stays(tmp_path: Path) -> None:
    """A process that is alive, another file whose name begins alike, names that are not ours."""
    gone = number_of_nobody()
    names = [f".x.{os.getppid()}.tmp", f".x.y.{gone}.tmp", f".xx.{gone}.tmp", ".x.mine.tmp", ".x..tmp", f"x.{gone}.tmp"]
    for name in names:
        (tmp_path / name).write_text("", "utf-8")
    write_text(tmp_path / "x", "new")
    assert {p.name for p in tmp_path.iterdir()} == {"x", *names}


def test_a_process_of_another_user_counts_as_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "kill", breaks(PermissionError()))
    (tmp_path / ".x.12345.tmp").write_text("half", "utf-8")
    write_text(tmp_path / "x", "new")
    assert {p.name for p in tmp_path.iterdir()} == {"x", ".x.12345.tmp"}


def test_names_with_pattern_characters(tmp_path: Path) -> None:
    gone = number_of_nobody()
    for name in (f".[x]*.{gone}.tmp", f".x.{gone}.tmp"):
        (tmp_path / name).write_text("half", "utf-8")
    write_text(tmp_path / "[x]*", "new")
    assert {p.name for p in tmp_path.iterdir()} == {"[x]*", f".x.{gone}.tmp"}


def test_what_a_killed_process_left_is_no_obstacle(tmp_path: Path) -> None:
    fill(tmp_path / f".model.{os.getpid()}.tmp", a="half")
    with replacing_folder(tmp_path / "model") as new:
        fill(new, b="new")
    assert tree(tmp_path) == {"model/b": "new"}


# -- reading -----------------------------------------------------------------------------------------------------


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps({"a": 1}), "utf-8-sig")
    assert read_json(tmp_path / "x.json") == {"a": 1}


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", r"x\.json is not JSON: .*line 1"),
        (b'{"a": 1,\n "b": }', r"x\.json is not JSON: .*line 2"),
        (b'{"a": "\xe6"}', r"x\.json is not UTF-8: byte 0xE6 at offset 7"),
        (b"[1]", r"x\.json holds list, expected a JSON object"),
        (b'{"a":' * 100_000, r"x\.json is not JSON"),
    ],
)
def test_bad_json_is_named(tmp_path: Path, contents: bytes, message: str) -> None:
    (tmp_path / "x.json").write_bytes(contents)
    with pytest.raises(DamagedFileError, match=message):
        read_json(tmp_path / "x.json")


def test_missing_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"^.*/x\.json: there is no such file$") as caught:
        read_json(tmp_path / "x.json")
    assert caught.value.errno == errno.ENOENT


def test_contents_are_told_in_a_few_words(tmp_path: Path) -> None:
    assert files.contents(tmp_path) == "nothing"
    fill(tmp_path, **{f"f{i:02}": "" for i in range(15)})
    assert files.contents(tmp_path).startswith("f00, f01, ")
    assert files.contents(tmp_path).endswith("f11 and 3 more")
