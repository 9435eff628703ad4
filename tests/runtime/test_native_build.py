"""Building the native allocator: once, by any compiler, and nothing is loaded that was not compiled here."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from test_native import run_python

from poet.errors import InputError
from poet.files.cache_folder import cache_folder, private_folder
from poet.runtime import native
from poet.runtime.native import build
from poet.whatif.cache import Cache, default_folder, pack

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
def test_a_library_is_compiled_once_and_kept_private(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = build.find_compiler()
    assert real is not None
    _compiler(tmp_path, monkeypatch, f'echo "$1" >> {tmp_path}/calls\nexec {real.command[0]} "$@"')
    built = [build.build_library(cache) for _ in range(2)]
    assert built[0] == built[1]
    assert (tmp_path / "calls").read_text().split() == ["--version", "-shared", "--version"]
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert build.build_library(cache) == built[0], "what is compiled needs no compiler"


@needs_compiler
def test_a_library_that_is_not_what_was_compiled_is_never_loaded(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any compiler: this one copies in no time the library that the real one made for the other tests."""
    made = build.build_library()
    _compiler(tmp_path, monkeypatch, f'for last; do :; done\n[ "$last" = --version ] || cp {made} "$last"')
    library = build.build_library(cache)
    library.write_bytes(library.read_bytes() + b"\0")
    assert build.build_library(cache) == library, "it is built anew"
    genuine = library.read_bytes()
    library.unlink()
    target = cache / "elsewhere.so"
    target.write_bytes(genuine)
    library.symlink_to(target)
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
