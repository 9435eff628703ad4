"""The page file: bytes come back as they were written, or one clear line says why not."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from poet.errors import PageFileError
from poet.plans.plan_parts import PageSlot
from poet.runtime.storage.background import Pager
from poet.runtime.storage.page_file import MAGIC, PageFile

SLOTS = (PageSlot("a", 0, 5_000_001), PageSlot("b", 5_001_216, 10), PageSlot("empty", 5_005_312, 0))
MODES = {"direct": 65536, "through the page cache": 0}


def content(size_bytes: int, seed: int = 0) -> memoryview:
    return memoryview(random.Random(seed).randbytes(size_bytes))


@pytest.fixture(params=MODES)
def pages(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PageFile]:
    path = tmp_path / "pages"
    pages = PageFile(SLOTS, path=path, folder=tmp_path, buffer_bytes=MODES[request.param])
    if not pages.mode.startswith(request.param):
        pages.close()
        pytest.skip("this file system has no direct transfers")
    yield pages
    pages.close()


def read(pages: PageFile, tensor: str, size_bytes: int) -> bytes:
    target = memoryview(bytearray(size_bytes))
    pages.read_into(tensor, target)
    return bytes(target)


def test_what_was_written_comes_back(pages: PageFile) -> None:
    for seed in range(2):
        for slot in SLOTS:
            pages.write(slot.tensor, content(slot.size_bytes, seed))
        for slot in reversed(SLOTS):
            assert read(pages, slot.tensor, slot.size_bytes) == content(slot.size_bytes, seed)


def test_a_short_content_fills_the_start_of_a_larger_target(pages: PageFile) -> None:
    pages.write("a", content(1000))
    assert read(pages, "a", 5000) == bytes(content(1000)) + bytes(4000)


@pytest.mark.parametrize("begin", [0, 1, 4095, 4096, 70_001])
def test_what_lies_in_another_file_is_read_there_until_it_is_written(
    pages: PageFile, begin: int, tmp_path: Path
) -> None:
    other, data = tmp_path / "other", content(5_000_001, 7)
    other.write_bytes(bytes(begin) + data)  # ends where the file does
    with other.open("rb") as file:
        os.fsync(file.fileno())
        assert pages.find_in(file.fileno(), begin, "a", data)
        assert pages.find_in(file.fileno(), begin + 5, "b", data[5:15])
    other.unlink()  # it stays as it was
    assert read(pages, "a", 5_000_001) == data
    assert read(pages, "b", 10) == data[5:15]
    pages.write("a", content(5_000_001, 8))
    assert read(pages, "a", 5_000_001) == content(5_000_001, 8)
    assert read(pages, "b", 10) == data[5:15]


@pytest.mark.parametrize("row_bytes", [10, 3584, 70_000])
def test_a_row_comes_back_and_one_that_changed_is_noticed(
    pages: PageFile, row_bytes: int, tmp_path: Path
) -> None:
    rows, data = 1_000_000 // row_bytes, content(1_000_000 // row_bytes * row_bytes, 9)
    slots, size = (PageSlot("t", 0, len(data)),), pages.buffer_bytes
    by_row = PageFile(
        slots, path=tmp_path / "rows", folder=tmp_path, buffer_bytes=size, row_bytes={"t": row_bytes}
    )
    target = memoryview(bytearray(row_bytes))
    with pytest.raises(PageFileError, match="t was never written whole"):
        by_row.read_row("t", 0, target)
    other = tmp_path / "other"
    other.write_bytes(bytes(70_001) + data)
    for is_elsewhere in (False, True):
        if is_elsewhere:
            with other.open("rb") as file:
                os.fsync(file.fileno())
                assert by_row.find_in(file.fileno(), 70_001, "t", data)
        else:
            by_row.write("t", data)
        for row in (0, 1, rows // 2, rows - 1):
            by_row.read_row("t", row, target)
            assert target == data[row * row_bytes : (row + 1) * row_bytes]
    with other.open("r+b") as file:
        file.seek(70_001 + row_bytes)
        file.write(bytes([data[row_bytes] ^ 1]))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    by_row.read_row("t", 0, target)
    with pytest.raises(PageFileError, match="row 1 of t came back with other bytes than were written"):
        by_row.read_row("t", 1, target)
    background = Pager(by_row, is_background=True)
    background.read_row("t", 2, target)
    assert target == data[2 * row_bytes : 3 * row_bytes]
    background.close()
    by_row.close()


@pytest.mark.parametrize("row_bytes", [12, 3584, 48 * 1024])
def test_a_row_is_changed_where_it_lies(pages: PageFile, row_bytes: int, tmp_path: Path) -> None:
    rows = 400_000 // row_bytes
    data = memoryview(bytearray(content(rows * row_bytes, 9)))
    slots = (PageSlot("t", 0, len(data)), PageSlot("u", -(-len(data) // 4096) * 4096, 5_000))
    by_row = PageFile(
        slots, path=tmp_path / "rows", folder=tmp_path, buffer_bytes=min(pages.buffer_bytes, 64 * 1024),
        row_bytes={"t": row_bytes},
    )  # fmt: skip
    background = Pager(by_row, is_background=True)
    by_row.write("t", data)
    by_row.write("u", content(5_000, 3))
    target = memoryview(bytearray(len(data)))
    for row, pager in (
        (0, by_row),
        (1, background),
        (rows // 2, by_row),
        (rows - 1, background),
        (0, by_row),
    ):

        def changed(memory: memoryview, row: int = row) -> None:
            assert memory == data[row * row_bytes : (row + 1) * row_bytes]
            memory[1] = data[row * row_bytes + 1] = (memory[1] + 1) % 256

        pager.change_row("t", row, changed)
        by_row.read_row("t", row, target[:row_bytes])
        assert target[:row_bytes] == data[row * row_bytes : (row + 1) * row_bytes]
    by_row.read_into("t", target)
    assert target == data
    assert b"".join(map(bytes, by_row.pieces("t", 4))) == data
    assert read(by_row, "u", 5_000) == content(5_000, 3)
    with (tmp_path / "rows").open("r+b") as file:
        file.seek(4096 + row_bytes)
        file.write(bytes([data[row_bytes] ^ 1]))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    for use in (
        lambda: by_row.change_row("t", 1, lambda memory: None),
        lambda: by_row.read_into("t", target),
        lambda: [*by_row.pieces("t", 4)],
    ):
        with pytest.raises(PageFileError, match="t came back with other bytes than were written"):
            use()
    background.close()
    by_row.close()


def test_another_file_that_changes_is_noticed(pages: PageFile, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(bytes(content(10)))
    with other.open("r+b") as file:
        assert pages.find_in(file.fileno(), 0, "b", content(10))
        file.write(b"x")
        file.flush()
        os.fsync(file.fileno())
    with pytest.raises(PageFileError, match="b came back with other bytes"):
        read(pages, "b", 10)


def test_what_is_on_other_storage_is_not_read_there(pages: PageFile) -> None:
    with Path("/proc/self/status").open("rb") as file:
        assert not pages.find_in(file.fileno(), 0, "b", content(10))


def test_room_is_reserved_at_once(pages: PageFile) -> None:
    status = pages.path.stat()
    assert status.st_size == 4096 + 5_005_312
    assert status.st_blocks * 512 >= status.st_size


def test_what_was_never_written_is_not_read(pages: PageFile) -> None:
    with pytest.raises(PageFileError, match="b was never written whole"):
        read(pages, "b", 10)


def test_changed_bytes_are_noticed(pages: PageFile) -> None:
    pages.write("a", content(5_000_001))
    with pages.path.open("r+b") as file:
        file.seek(4096 + 4_000_000)
        file.write(b"changed by someone else")
    with pytest.raises(PageFileError, match="a came back with other bytes"):
        read(pages, "a", 5_000_001)


def test_a_file_that_was_cut_is_noticed(pages: PageFile) -> None:
    pages.write("a", content(5_000_001))
    os.truncate(pages.path, 4096 * 20)
    with pytest.raises(PageFileError, match=r"a cannot be read \(the file ends too early\)"):
        read(pages, "a", 5_000_001)


def test_short_transfers_go_on_where_they_stopped(pages: PageFile, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite, preadv = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: pwrite(file, data[:8192], at))
    monkeypatch.setattr(os, "preadv", lambda file, targets, at: preadv(file, [targets[0][:8192]], at))
    pages.write("a", content(100_000))
    assert read(pages, "a", 100_000) == content(100_000)


def test_a_full_device_is_told_and_half_a_tensor_is_not_read(
    pages: PageFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int, data: memoryview, at: int) -> int:
        raise OSError(28, "No space left on device")

    pages.write("a", content(100))
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(PageFileError, match=r"a cannot be written \(No space left on device\)"):
        pages.write("a", content(100, seed=1))
    with pytest.raises(PageFileError, match="never written whole"):
        read(pages, "a", 100)


def test_the_file_goes_when_it_is_closed(pages: PageFile) -> None:
    pages.close()
    pages.close()
    assert not pages.path.exists()


def test_an_unnamed_file_is_never_seen(tmp_path: Path) -> None:
    pages = PageFile(SLOTS, path=None, folder=tmp_path, buffer_bytes=0)
    assert not list(tmp_path.iterdir())
    pages.write("b", content(10))
    assert read(pages, "b", 10) == content(10)
    pages.close()
    assert not list(tmp_path.iterdir())


def test_a_file_of_an_earlier_run_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "pages"
    path.write_bytes(MAGIC + b"x" * 100)
    PageFile(SLOTS, path=path, folder=tmp_path, buffer_bytes=0).close()
    path.touch()
    PageFile(SLOTS, path=path, folder=tmp_path, buffer_bytes=0).close()


def _foreign(path: Path) -> None:
    path.write_bytes(b"holiday pictures")


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a foreign file": (_foreign, "exists and is not a page file"),
    "a pipe": (os.mkfifo, "exists and is not a page file"),
    "a folder": (Path.mkdir, "Is a directory"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_ours_is_left_alone(kind: str, tmp_path: Path) -> None:
    make, message = REFUSED[kind]
    path = tmp_path / "pages"
    make(path)
    before = path.stat()
    for buffer_bytes in MODES.values():
        with pytest.raises(PageFileError, match=message):
            PageFile(SLOTS, path=path, folder=tmp_path, buffer_bytes=buffer_bytes)
        assert path.stat() == before


def test_two_trainers_do_not_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "pages"
    pages = PageFile(SLOTS, path=path, folder=tmp_path, buffer_bytes=0)
    with pytest.raises(PageFileError, match="in use by another trainer"):
        PageFile(SLOTS, path=path, folder=tmp_path, buffer_bytes=0)
    pages.write("b", content(10))
    pages.close()


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(PageFileError, match=r"cannot be opened \(No such file or directory\)"):
        PageFile(SLOTS, path=tmp_path / "no" / "pages", folder=tmp_path, buffer_bytes=65536)


def test_no_room(tmp_path: Path) -> None:
    path = tmp_path / "pages"
    with pytest.raises(PageFileError, match="no room for"):
        PageFile((PageSlot("a", 0, 1 << 50),), path=path, folder=tmp_path, buffer_bytes=0)
    assert not path.exists()


# --- what is paged out is not in RAM ----------------------------------------------------------


def cached_bytes(path: Path) -> int:
    """Bytes of the file that the kernel holds in its page cache, by mincore(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    size = path.stat().st_size
    with path.open("rb") as file:
        at = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
        pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        told = libc.mincore(at, size, pages)
        libc.munmap(at, size)
    assert told == 0
    return sum(page & 1 for page in pages) * mmap.PAGESIZE


def test_the_measure_sees_what_is_cached(pages: PageFile) -> None:
    assert len(pages.path.read_bytes()) > 5_000_000
    assert cached_bytes(pages.path) > 4_000_000


@pytest.mark.parametrize("in_background", [False, True])
def test_what_is_paged_out_is_not_in_the_page_cache(pages: PageFile, in_background: bool) -> None:
    """At most the header's page, the last chunk's edges and what the kernel still writes back."""
    pager = Pager(pages, is_background=in_background)
    data, target = content(5_000_001), bytearray(5_000_001)
    pager.write("a", data)
    pager.drain()
    after_writing = cached_bytes(pages.path)
    pager.read_into("a", memoryview(target))
    pager.drain()
    assert target == data
    assert max(after_writing, cached_bytes(pages.path)) <= 65536
    if in_background:
        pager.close()
