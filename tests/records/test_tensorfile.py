"""Writing as a stream gives the same file, whole or not at all, and clears up after a power cut."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from poet.errors import PoetError
from poet.files import tensorfile
from poet.files.tensorfile import RawTensor, TensorFile

TENSORS = {
    "a": RawTensor("float32", (2, 3), bytes(range(24))),
    "b": RawTensor("uint8", (5,), b"12345"),
    "c": RawTensor("int64", (1,), bytes(8)),
}
KEY = "poet.tensors.sha256"


def test_a_stream_gives_the_file_that_was_written_at_once(tmp_path: Path) -> None:
    metadata = {"x": f'"{KEY}":', KEY: tensorfile.digest(TENSORS)}  # a value that looks like the key
    tensorfile.write(tmp_path / "whole", TENSORS, metadata)
    asked: list[str] = []

    def fetch(name: str) -> Iterator[memoryview]:
        asked.append(name)
        whole = memoryview(TENSORS[name].data)
        for begin in range(0, len(whole), 3):
            yield whole[begin : begin + 3]

    tensorfile.write_streamed(tmp_path / "stream", TENSORS, fetch, {"x": metadata["x"]}, digest_key=KEY)
    assert (tmp_path / "stream").read_bytes() == (tmp_path / "whole").read_bytes()
    assert sorted(asked) == sorted(TENSORS)
    with TensorFile(tmp_path / "stream") as file:
        assert file.digest() == file.metadata[KEY]


def test_a_stream_that_breaks_off_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"old")

    def fetch(name: str) -> Iterator[memoryview]:
        raise PoetError(f"{name} cannot be read")

    with pytest.raises(PoetError, match="cannot be read"):
        tensorfile.write_streamed(path, TENSORS, fetch, {}, digest_key=KEY)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    abandoned, under_way = tmp_path / ".state.0123abcd.tmp", tmp_path / ".state.89abcdef.tmp"
    others = [tmp_path / name for name in (".state.tmp", ".other.0123abcd.tmp", "state.0123abcd.tmp")]
    for path in (abandoned, under_way, *others):
        path.touch()
    with under_way.open("wb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        tensorfile.write(tmp_path / "state", TENSORS, {})
    assert {*tmp_path.iterdir()} == {tmp_path / "state", under_way, *others}


def test_many_may_save_to_one_path(tmp_path: Path) -> None:
    """Each removes what it takes for abandoned; none takes what another is about to lock or to rename."""
    path, failed = tmp_path / "state", list[BaseException]()

    def save() -> None:
        try:
            for _ in range(40):
                tensorfile.write(path, TENSORS, {})
        except BaseException as error:
            failed.append(error)

    savers = [threading.Thread(target=save) for _ in range(4)]
    for saver in savers:
        saver.start()
    for saver in savers:
        saver.join()
    assert failed == []
    assert list(tmp_path.iterdir()) == [path]
    with TensorFile(path) as file:
        assert file.entries.keys() == TENSORS.keys()


@pytest.mark.parametrize("moment", ["before it is locked", "before it is renamed"])
def test_a_file_under_way_is_not_taken_for_abandoned(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another process does at the worst moment."""
    path, lock, replace, removals = tmp_path / "state", fcntl.flock, Path.replace, list[str]()

    def others() -> None:
        removals.append(moment)
        with monkeypatch.context() as patched:
            patched.setattr(fcntl, "flock", lock)
            tensorfile._remove_abandoned(path)

    def disturbed(file: Any, operation: int) -> None:
        if operation == fcntl.LOCK_EX and not removals:
            others()
        lock(file, operation)

    def replaced(one: Path, other: Path) -> Path:
        others()
        return replace(one, other)

    if moment == "before it is locked":
        monkeypatch.setattr(fcntl, "flock", disturbed)
    else:
        monkeypatch.setattr(Path, "replace", replaced)
    tensorfile.write(path, TENSORS, {})
    assert removals
    assert list(tmp_path.iterdir()) == [path]
