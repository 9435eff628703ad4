"""What a system refuses stops nothing: a cache, locks, the flush of a folder, a reader of what is said."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import hand_net
from helpers.pace import with_slow

from poet.errors import PageFileError, PoetError
from poet.files import cache_folder
from poet.files.tensorfile import replaced
from poet.planning.cache import Cache, pack, users_cache
from poet.plans.page_slots import SLOT_ALIGNMENT_BYTES
from poet.plans.plan_parts import PageSlot
from poet.runtime import Trainer
from poet.runtime.native import build
from poet.runtime.storage.page_file import PageFile
from poet.util import reading

POET = Path(sys.executable).with_name("poet")
PROBLEM = Path(__file__).parents[1] / "instances" / "transformer.m4.json"
_DROP_FROM_BOUNDING_SET, _MAY_WRITE_ANYWHERE, _MAY_READ_ANYWHERE = 24, 1, 2  # prctl(2), capabilities(7)


def without_privileges() -> None:
    """For a child: what the mode of a folder forbids is forbidden to root as well."""
    for capability in (_MAY_WRITE_ANYWHERE, _MAY_READ_ANYWHERE):
        ctypes.CDLL(None).prctl(_DROP_FROM_BOUNDING_SET, capability, 0, 0, 0)


def poet(*words: object, home: Path) -> subprocess.CompletedProcess[str]:
    """A command whose cache folder is below ``home``."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(home), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [str(POET), *map(str, words)], capture_output=True, text=True, check=False, env=environment,
        preexec_fn=without_privileges,
    )  # fmt: skip


# --- caches -----------------------------------------------------------------------------------


def _refusing(call: str, number: int) -> Callable[..., object]:
    def refuse(*given: object, **named: object) -> object:
        raise OSError(number, os.strerror(number))

    return refuse


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_library_that_is_there_needs_no_folder_that_can_be_written(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = build.build_library()
    cache = tmp_path / "poet"
    cache.mkdir(mode=0o700)
    kept = cache / made.name
    kept.write_bytes(made.read_bytes())
    monkeypatch.setattr(tempfile, "TemporaryDirectory", _refusing("mkdtemp", number))
    monkeypatch.setattr(build, "_locked", _refusing("open", number))
    assert build.build_library(cache) == kept
    kept.unlink()
    with pytest.raises(build.Unavailable, match=rf"{os.strerror(number)}\); set XDG_CACHE_HOME") as caught:
        build.build_library(cache)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("fault", ["no home", "a file", "of someone else"])
def test_a_user_without_a_cache_is_told_and_nothing_is_kept(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if fault == "no home":
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(Path, "home", lambda: Path("relative"))
    elif fault == "a file":
        (tmp_path / "poet").write_text("")
    else:
        (tmp_path / "poet" / "what-if").mkdir(parents=True)
        monkeypatch.setattr(os, "geteuid", lambda: 4321)
    cache = users_cache()
    for number in range(3):
        assert cache.read("answers", str(number)) is None
        cache.keep("answers", str(number), pack({}))
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 1
    assert said[0].startswith("poet: answers are not kept: ")


def test_an_answer_is_read_where_no_other_can_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = users_cache()
    cache.keep("answers", "one", pack({"is": 1}))
    monkeypatch.setattr(os, "replace", _refusing("replace", errno.ENOSPC))
    again = Cache(cache.folder)
    again.keep("answers", "two", pack({}))
    again.keep("answers", "three", pack({}))
    assert again.read("answers", "one") == b'{"is":1}'
    assert len(caplog.records) == 1


def test_torch_gets_the_name_of_a_temporary_folder_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_get_default_tempdir", _refusing("open", errno.ENOENT))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    cache_folder.name_temporary_folder()
    assert tempfile.gettempdir() == os.environ.pop("TORCHINDUCTOR_CACHE_DIR") == os.sep


@pytest.mark.slow
@pytest.mark.parametrize("words", [("run",), ("what-if", "--jobs", 1)])
def test_a_cache_folder_that_cannot_be_written_stops_no_command(
    words: tuple[object, ...], tmp_path: Path
) -> None:
    hand_net.write(tmp_path / "plan.poet")
    home = tmp_path / "cache"
    (home / "poet").mkdir(parents=True, mode=0o700)
    (home / "poet").chmod(0o500)
    if words[0] == "what-if":
        more: list[object] = [PROBLEM, "--ram", "33MiB", "--no-marginal", "--time-limit", "5s"]
    else:
        more = [tmp_path / "plan.poet"]
    if words[0] == "run":
        inputs, targets = hand_net.batch(0)
        import numpy as np

        np.savez(tmp_path / "data.npz", x=inputs.numpy(), y=targets.numpy())
        more += ["--data", tmp_path / "data.npz"]
    done = poet(words[0], *more, *words[1:], home=home)
    assert done.returncode == 0, done.stderr
    assert "Permission denied" in done.stderr
    assert "Traceback" not in done.stderr
    assert list((home / "poet").iterdir()) == []


# --- locks and folders ------------------------------------------------------------------------


@pytest.fixture
def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    reading._warn.cache_clear()
    monkeypatch.setattr(fcntl, "flock", _refusing("flock", errno.ENOSYS))


@pytest.mark.usefixtures("without_locks")
def test_without_locks_files_are_written_and_one_warning_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = tmp_path / ".state.0123abcd.tmp"
    other.write_text("of a process that may still write it")
    for _ in range(2):
        with replaced(tmp_path / "state") as file:
            file.write(b"whole")
    assert (tmp_path / "state").read_bytes() == b"whole"
    assert other.exists()
    slots = [PageSlot("a", 0, SLOT_ALIGNMENT_BYTES)]
    with_pages = PageFile(slots, path=tmp_path / "pages", folder=tmp_path, buffer_bytes=0)
    with_pages.close()
    with build._locked(tmp_path):
        pass
    assert [record.getMessage() for record in caplog.records] == [
        "poet: files cannot be locked here (Function not implemented): two processes that write the same "
        "file would not notice"
    ]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EIO])
def test_a_folder_that_cannot_be_flushed_fails_no_file_that_is_whole(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CIFS and FUSE say that they cannot; a device that fails is still an error."""
    true = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        true(descriptor)

    hand_net.write(tmp_path / "plan.poet")
    monkeypatch.setattr(os, "fsync", fsync)
    with Trainer.open(tmp_path / "plan.poet") as trainer:
        trainer.step(*hand_net.batch(0))
        if number == errno.EIO:
            with pytest.raises(PoetError, match="Input/output error"):
                trainer.save(tmp_path / "state")
        else:
            trainer.save(tmp_path / "state")
    with Trainer.open(tmp_path / "plan.poet", resume=tmp_path / "state") as trainer:
        assert trainer.steps == 1


# --- a page file through a link ---------------------------------------------------------------


@pytest.mark.parametrize("left", [False, True], ids=["dangling", "of an earlier run"])
def test_the_file_behind_a_link_is_removed_and_the_link_is_left(left: bool, tmp_path: Path) -> None:
    target, link = tmp_path / "card" / "pages", tmp_path / "link"
    target.parent.mkdir()
    link.symlink_to(target)
    slots = [PageSlot("a", 0, SLOT_ALIGNMENT_BYTES)]
    if left:
        first = PageFile(slots, path=target, folder=tmp_path, buffer_bytes=0)
        os.link(target, tmp_path / "kept")
        first.close()
        (tmp_path / "kept").rename(target)
    pages = PageFile(slots, path=link, folder=tmp_path, buffer_bytes=0)
    assert target.exists()
    pages.close()
    assert not target.exists()
    assert link.is_symlink()


def test_a_link_to_something_else_is_refused_and_left(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("weights")
    (tmp_path / "link").symlink_to("precious")
    with pytest.raises(PageFileError, match="is not a page file"):
        PageFile([], path=tmp_path / "link", folder=tmp_path, buffer_bytes=0)
    assert (tmp_path / "precious").read_text() == "weights"


# --- streams ----------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", with_slow([">&-", "2>&-", "<&- >&- 2>&-"], {">&-", "2>&-"}))
def test_a_closed_stream_is_no_error_and_no_file_gets_its_number(closed: str, tmp_path: Path) -> None:
    written = tmp_path / "parts.json"
    command = f'"{POET}" devices list --json "{written}" {closed}'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert written.read_text().startswith("[") or written.read_text().startswith("{")


@pytest.mark.parametrize("words", with_slow(["--help", "devices list", "nonsense"], {"--help", "nonsense"}))
def test_a_reader_that_is_gone_leaves_no_traceback(words: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [str(POET), *words.split()], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.stderr.count("\n") == (words == "nonsense")
