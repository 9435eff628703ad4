"""Building the native allocator: once, by any compiler, and nothing is loaded that was not compiled here."""

from __future__ import annotations

import dataclasses
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.native_steps import run_python

from poet.errors import InputError
from poet.files.cache_folder import cache_folder, private_folder
from poet.planning.cache import Cache, default_folder, pack
from poet.runtime import native
from poet.runtime.native import build

CROSS = "aarch64-linux-gnu-g++"
needs_compiler = pytest.mark.skipif(build.find_compiler() is None, reason="no C++ compiler here")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "poet"


def _compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = tmp_path / "compiler"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    monkeypatch.setenv("CXX", str(program))


@needs_compiler
@pytest.mark.slow
def test_a_library_is_compiled_once_and_kept_private(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = build.find_compiler()
    assert real is not None
    _compiler(tmp_path, monkeypatch, f'echo "$1" >> {tmp_path}/calls\nexec {real[0]} "$@"')
    built = [build.build_library(cache) for _ in range(2)]
    assert built[0] == built[1]
    assert (tmp_path / "calls").read_text().split() == ["--version", "-shared"]
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert build.build_library(cache) == built[0], "what is compiled needs no compiler"


@needs_compiler
def test_a_link_is_no_library(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler copies in no time the library that the real one made for the other tests."""
    made = build.build_library()
    _compiler(tmp_path, monkeypatch, f'for last; do :; done\n[ "$last" = --version ] || cp {made} "$last"')
    library = build.build_library(cache)
    library.rename(cache / "elsewhere.so")
    library.symlink_to(cache / "elsewhere.so")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(build.Unavailable, match="no C"):
        build.build_library(cache)


@pytest.mark.parametrize("fault", ["open to others", "a link", "a file"])
def test_a_cache_folder_that_others_can_write_is_refused(cache: Path, tmp_path: Path, fault: str) -> None:
    cache.parent.mkdir()
    if fault == "open to others":
        cache.mkdir()
        cache.chmod(0o770)
    elif fault == "a link":
        (tmp_path / "real").mkdir(mode=0o700)
        cache.symlink_to(tmp_path / "real")
    else:
        cache.write_text("")
    with pytest.raises(build.Unavailable, match=str(cache)):
        build.build_library(cache)


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o711])
def test_a_cache_folder_that_others_could_only_read_is_closed(cache: Path, mode: int) -> None:
    """As versions before left it: nobody else could have put anything there."""
    cache.mkdir(parents=True)
    cache.chmod(mode)
    assert private_folder(cache) == cache
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


@pytest.mark.parametrize("first", ["what-if", "allocator"])
def test_whoever_makes_the_cache_folder_makes_it_for_its_owner(
    first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a fresh machine, where even the folder above is missing; then the other may use it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = os.umask(0o022)
    try:
        for user in ("what-if", "allocator") if first == "what-if" else ("allocator", "what-if"):
            if user == "what-if":
                Cache(default_folder()).write("answers", "key", pack({}))
            else:
                private_folder(cache_folder())
            assert stat.S_IMODE(cache_folder().stat().st_mode) == 0o700
    finally:
        os.umask(before)
    made = [path for path in (tmp_path / "cache").rglob("*") if path.is_dir()]
    assert len(made) == 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in [tmp_path / "cache", *made]} == {0o700}


def test_no_home_is_a_line_that_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(InputError, match="set XDG_CACHE_HOME"):
        default_folder()
    with pytest.raises(build.Unavailable, match="set XDG_CACHE_HOME"):
        build.build_library()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 1", "no C\\+\\+ compiler was found"),
        (
            '[ "$1" = --version ] || { echo "x.cpp:1: error: no such thing" >&2; exit 1; }',
            "error: no such thing",
        ),
        ('[ "$1" = --version ] || exit 0', "failed: no message"),
    ],
)
def test_a_compiler_that_does_not_work_is_a_reason_in_words(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    _compiler(tmp_path, monkeypatch, script)
    with pytest.raises(build.Unavailable, match=reason):
        build.build_library(cache)
    assert not list(cache.glob("*.so"))


@pytest.mark.slow
def test_without_a_compiler_load_says_why(cache: Path) -> None:
    output = run_python(
        f"""
        import os
        os.environ["CXX"], os.environ["XDG_CACHE_HOME"] = "no-such-compiler", {str(cache)!r}
        from poet.runtime import native
        print(native.load(), native.available())
        print(native.why_unavailable())
        """
    )
    assert output.splitlines() == [
        "None False",
        "no C++ compiler was found (no-such-compiler); install one or set CXX",
    ]


@needs_compiler
def test_a_library_for_another_torch_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "torch_release", lambda: "1.0.0")
    monkeypatch.setattr(native, "_loaded", None)
    assert not native.available()
    assert "headers are of version 2." in native.why_unavailable()


@pytest.fixture(scope="module")
def prebuilt_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elsewhere")
    folder.chmod(0o700)
    build.build_for_copying(folder / "built.so")
    return folder / "built.so"


@pytest.fixture
def copied(prebuilt_library: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The library made elsewhere, in a folder of its own on a device without a compiler."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parent))
    folder = cache.parent / "device"
    folder.mkdir(parents=True, mode=0o700)
    shutil.copy(prebuilt_library, folder / "copied.so")
    (folder / "copied.so").chmod(0o644)
    return folder / "copied.so"


LOAD = """
import torch
from poet.runtime import native
allocator = native.load()
assert allocator is not None, native.why_unavailable()
with allocator.tracking() as tracked:
    kept = torch.empty(5000, dtype=torch.uint8)
    print(tracked.live_bytes)
"""


@needs_compiler
@pytest.mark.parametrize("way", ["variable", pytest.param("cache", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_library_made_elsewhere_is_loaded_without_a_compiler(
    way: str, copied: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "variable":
        monkeypatch.setenv(build.VARIABLE, str(copied))
    else:
        private_folder(cache)
        copied.rename(cache / build.NAME)
    assert run_python(LOAD) == "5000\n"
    assert not list(cache.glob("allocator-*.so")), "nothing was compiled"


@needs_compiler
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("gone", "cannot be read: No such file"),
        ("a link", "is not a file of this user or root"),
        ("open to others", "copied.so is open to others; `chmod go-w` it"),
        ("folder open to others", "device is open to others; `chmod go-w` it"),
        (
            "another processor",
            "is for aarch64, here is x86-64; make one|is for x86-64, here is aarch64; make one",
        ),
        ("another torch", "is for torch 1.13.0, here is torch 2"),
        ("another ABI", r"is for C\+\+11 ABI 0, here is C\+\+11 ABI 1"),
        ("another poet", "is of another version of poet"),
        ("no library", "is no allocator of poet's; make one with"),
        ("somebody else's", "is not a folder of this user or root"),
    ],
)
def test_a_library_that_does_not_fit_or_is_not_ours_is_refused_in_one_line(
    fault: str, reason: str, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = copied.read_bytes()
    release, here = build.torch_release().encode(), build.fits_here()
    other_machine = (183 if here.machine == "x86-64" else 62).to_bytes(2, "little")
    changed = {
        "another processor": content[:18] + other_machine + content[20:],
        "another torch": content.replace(
            b", torch " + release, b", torch 1.13.0".ljust(8 + len(release), b"0")
        ),
        "another ABI": content.replace(b"C++11 ABI 1;", b"C++11 ABI 0;"),
        "another poet": content.replace(here.source.encode(), b"0" * len(here.source)),
        "no library": b"#!/bin/sh\n",
    }
    if fault in changed:
        assert changed[fault] != content
        copied.write_bytes(changed[fault])
    elif fault == "gone":
        copied.unlink()
    elif fault == "a link":
        copied.rename(copied.with_name("real.so"))
        copied.symlink_to("real.so")
    elif fault == "open to others":
        copied.chmod(0o664)
    elif fault == "folder open to others":
        copied.parent.chmod(0o770)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4321)
        if copied.stat().st_uid == 0:
            monkeypatch.setattr(build, "ROOT_ID", 1234)
    monkeypatch.setenv(build.VARIABLE, str(copied))
    with pytest.raises(build.Unavailable, match=reason) as caught:
        build.build_library()
    assert "\n" not in str(caught.value)


@needs_compiler
@pytest.mark.slow
def test_one_in_the_cache_that_does_not_fit_gives_way_to_a_compiler(
    copied: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private_folder(cache)
    (cache / build.NAME).write_bytes(b"of an older poet")
    with pytest.raises(build.Unavailable, match="is no allocator of poet's"):
        build.build_library()
    monkeypatch.delenv("CXX")
    assert build.build_library().name.startswith("allocator-")


@pytest.mark.slow
@needs_compiler
def test_the_command_says_where_the_library_fits(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "poet.runtime.native", "--output", str(tmp_path / "built.so")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"for {build.fits_here()}\n" in done.stdout
    assert done.stderr == ""
    before = (tmp_path / "built.so").read_bytes()
    for extra in (["--compiler", "no-such-compiler"], ["--output", str(tmp_path / "no" / "built.so")]):
        done = subprocess.run([*command, *extra], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert done.stderr.startswith("poet: ")
    assert (tmp_path / "built.so").read_bytes() == before


@pytest.mark.slow
@pytest.mark.skipif(shutil.which(CROSS) is None, reason=f"no {CROSS} here")
def test_an_allocator_for_aarch64_is_made_by_a_cross_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = build.build_for_copying(tmp_path / "built.so", compiler=CROSS)
    assert made == dataclasses.replace(build.fits_here(), machine="aarch64")
    if build.this_machine() != "aarch64":
        monkeypatch.setenv(build.VARIABLE, str(tmp_path / "built.so"))
        with pytest.raises(build.Unavailable, match="is for aarch64, here is"):
            build.build_library()
