"""What comes from a cache: this user's own answers, simulated again; everything else counts as missing."""

from __future__ import annotations

import gzip
import json
import os
import pwd
import struct
from pathlib import Path

import pytest
from helpers import hand_net
from helpers.random_problems import mixed_problem

from poet.errors import InputError
from poet.planning.cache import Cache, cached_cell, cell_key, default_folder, digest_of, pack, pack_solution
from poet.problem import Limits
from poet.problem.solution import SolveOptions, Status
from poet.runtime.native.build import Unavailable, find_compiler
from poet.solvers import solve
from poet.util import codec
from poet.whatif.knowledge import Knowledge
from poet.whatif.models import OnnxModel, TrainedAs, _dimensions, _Imported, _imported
from poet.whatif.settings import setting_of

QUICK = SolveOptions(time_limit_seconds=2.0)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the user's own, new for every test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


LIES: list[dict[str, object]] = [
    {"status": "infeasible", "schedule": None, "message": "planted"}, {"bound_joules": 1e30},
]  # fmt: skip


@pytest.mark.parametrize("lie", LIES, ids=["infeasible", "a bound of 1e30"])
def test_a_wrong_answer_is_refuted_by_a_plan(lie: dict[str, object], tmp_path: Path) -> None:
    """A plan that the simulator accepts outweighs what any file says."""
    problem = mixed_problem(7)
    limits = Limits()
    cache, key = Cache(tmp_path / "cache"), cell_key(digest_of(problem.to_json()), limits, QUICK)
    data = json.loads(gzip.decompress(pack_solution(solve(problem, limits, QUICK))))
    cache.write("answers", key, pack({**data, **lie}))
    cell = cached_cell(cache, key, problem, limits)
    setting = setting_of(problem)
    known = Knowledge(problem, setting.lower_bound.bytes, "", QUICK)
    cache.write("answers", "honest", pack(data))
    honest = cached_cell(cache, "honest", problem, limits)
    assert honest is not None
    if cell is not None:  # said first, and withdrawn once a plan is known
        assert cell.status is Status.INFEASIBLE
        known.add(0, limits, cell)
        assert known.best(limits).infeasible
    known.add(1, limits, honest)
    best = known.best(limits)
    assert not best.infeasible
    assert best.plan is not None
    assert best.bound_joules <= best.plan.trace.joules
    assert cell is None or known.refutes(limits, cell)


def test_what_is_made_is_for_its_owner(tmp_path: Path, home: Path) -> None:
    before = os.umask(0o002)
    try:
        cache = Cache(tmp_path / "cache")
        Cache(default_folder()).write("answers", "a", pack([1]))
        cache.write("answers", "a", pack([1]))
    finally:
        os.umask(before)
    made = (tmp_path / "cache", tmp_path / "cache" / "answers", home / "poet", home / "poet" / "what-if")
    for path in made:
        assert path.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "cache" / "answers" / "a.json.gz").stat().st_mode & 0o777 == 0o600
    assert cache.read("answers", "a") == b"[1]"


# --- folders and files of others --------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_a_folder_that_others_may_write_to_is_refused(mode: int, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(mode)
    with pytest.raises(InputError, match=r"others may write there.*--cache"):
        Cache(tmp_path / "cache")


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr("os.geteuid", lambda: 4242)
    with pytest.raises(InputError, match=r"it belongs to another user.*--cache"):
        Cache(tmp_path / "cache")


@pytest.mark.parametrize(("name", "mode"), [("a.json.gz", 0o666), ("a.json.gz", 0o620), (".", 0o777)])
def test_a_file_that_others_may_write_counts_as_missing(name: str, mode: int, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    cache.write("answers", "a", pack([1]))
    assert cache.read("answers", "a") is not None
    (tmp_path / "cache" / "answers" / name).chmod(mode)
    assert cache.read("answers", "a") is None


@pytest.mark.timeout(60)
def test_what_is_no_file_counts_as_missing(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    folder = tmp_path / "cache" / "answers"
    folder.mkdir(parents=True, mode=0o700)
    (tmp_path / "cache").chmod(0o700)
    os.mkfifo(folder / "pipe.json.gz", 0o600)
    (folder / "folder.json.gz").mkdir()
    (folder / "link.json.gz").symlink_to("/dev/zero")
    for name in ("pipe", "folder", "link", "absent"):
        assert cache.read("answers", name) is None


# --- damage -----------------------------------------------------------------------------------


def test_a_flipped_byte_changes_no_answer(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    cache.write("answers", "a", pack({"some": ["content", 1.5]}))
    path = tmp_path / "cache" / "answers" / "a.json.gz"
    good = path.read_bytes()
    said = cache.read("answers", "a")
    for at in range(len(good)):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :])
        assert cache.read("answers", "a") in (None, said), at  # some bits of a gzip file mean nothing
    for end in range(len(good)):
        path.write_bytes(good[:end])
        assert cache.read("answers", "a") is None, end


def test_content_that_is_no_gzip_counts_as_missing(tmp_path: Path) -> None:
    packed = pack({"some": list(range(1000))})
    flipped = bytearray(packed)
    flipped[40] ^= 0x55
    cache = Cache(tmp_path / "cache")
    for content in (bytes(flipped), packed[:-9], packed[:30], packed[:-8] + struct.pack("<II", 0, 0)):
        cache.write("answers", "key", content)
        assert cache.read("answers", "key") is None


NO_GRAPHS: list[object] = [
    [], {}, None, "graph", 10**400, {"format": "poet-graph"}, {"format": "poet-graph", "version": [[[]]]},
    {**hand_net.graph().to_json(), "loss": "nowhere"}, {**hand_net.graph().to_json(), "threads": 10**300},
]  # fmt: skip


@pytest.mark.parametrize("content", NO_GRAPHS, ids=range(len(NO_GRAPHS)))
def test_what_is_no_graph_counts_as_missing(content: object, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"any")
    onnx = OnnxModel(model, TrainedAs(), Cache(tmp_path / "cache"))
    both = codec.encode(_Imported(hand_net.graph(), hand_net.KERNELS))
    onnx.cache.write("graphs", "key", pack(both))
    assert onnx._kept("graphs", "key", _imported) == _Imported(hand_net.graph(), hand_net.KERNELS)
    onnx.cache.write("graphs", "key", pack(content))
    assert onnx._kept("graphs", "key", _imported) is None
    onnx.cache.write("dimensions", "key", pack(content))
    if content != []:
        assert onnx._kept("dimensions", "key", _dimensions) is None
    onnx.cache.write("dimensions", "key", pack([["N", 3], []]))
    assert onnx._kept("dimensions", "key", _dimensions) == [["N", 3], []]


@pytest.mark.parametrize(
    "change",
    [
        {"bound_joules": 10**400},
        {"solve_seconds": 10**400},
        {"schedule": "x"},
        {"schedule": [[[]]]},
        {"message": 7},
    ],
)
def test_an_answer_of_strange_numbers_counts_as_missing(change: dict[str, object], tmp_path: Path) -> None:
    problem, limits = mixed_problem(7), Limits()
    cache = Cache(tmp_path / "cache")
    data = json.loads(gzip.decompress(pack_solution(solve(problem, limits, QUICK))))
    cache.write("answers", "key", pack({**data, **change}))
    assert cached_cell(cache, "key", problem, limits) is None


# --- surroundings -----------------------------------------------------------------------------


def test_without_a_home_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> object:
        raise KeyError(uid)

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises(InputError, match="set XDG_CACHE_HOME"):
        default_folder()
    monkeypatch.setenv("HOME", "relative")
    with pytest.raises(InputError, match="set XDG_CACHE_HOME"):
        default_folder()
    monkeypatch.setenv("HOME", "/somewhere")
    assert default_folder() == Path("/somewhere/.cache/poet/what-if")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # is to be ignored, by the XDG rules
    assert default_folder() == Path("/somewhere/.cache/poet/what-if")


def test_a_compiler_that_is_no_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++ '")
    with pytest.raises(Unavailable, match=r"CXX is .*, which is no command \(No closing quotation\)"):
        find_compiler()


def test_a_compiler_that_speaks_no_utf_8_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "cxx"
    script.write_text("#!/bin/sh\nprintf 'version \\377\\n'\n")
    script.chmod(0o700)
    monkeypatch.setenv("CXX", str(script))
    assert find_compiler() == (str(script),)
