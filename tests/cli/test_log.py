"""``-v`` and ``--log`` of ``poet solve`` and ``what-if``: what is done, on stderr and in a file."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from helpers.command import invoke
from poet.cli.output import _LogFile, listening

INSTANCE = Path(__file__).parents[1] / "instances" / "transformer.m4.json"
SOLVE = ("solve", str(INSTANCE), "--ram", "30MiB", "--time-limit", "20s")


def test_the_log_tells_phases_plans_and_bounds(tmp_path: Path) -> None:
    file = tmp_path / "search.log"
    code, out, err = invoke(*SOLVE, "-v", "--log", str(file))
    assert code == 0
    written = file.read_text()
    for text in (written, err):
        assert "portfolio   begins: greedy plans" in text
        assert "by greedy" in text
        assert "bound" in text
        assert "bounds      windows relaxation" in text
    assert "begins:" not in out
    assert set(err.splitlines()) <= set(written.splitlines()), "the file has all that stderr shows"
    logger = logging.getLogger("poet")
    assert not logger.handlers
    assert logger.level == logging.NOTSET


def test_without_them_nothing_is_logged() -> None:
    code, _, err = invoke(*SOLVE)
    assert code == 0
    assert "begins:" not in err


def test_stdout_is_no_log_and_no_input_is_overwritten(tmp_path: Path) -> None:
    code, _, err = invoke(*SOLVE, "--log", "-")
    assert code == 2
    assert err.splitlines() == ["poet: --log - is not a file; -v shows what the search does on stderr"]
    problem = tmp_path / "problem.json"
    problem.write_bytes(INSTANCE.read_bytes())
    code, _, err = invoke("solve", str(problem), "--ram", "33MiB", "--log", str(problem))
    assert code == 2
    assert len(err.splitlines()) == 1
    assert "--log" in err
    assert problem.read_bytes() == INSTANCE.read_bytes()


def test_a_full_disk_ends_the_log_not_the_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: _LogFile, record: logging.LogRecord) -> None:
        try:
            raise OSError(28, "No space left on device")
        except OSError:
            self.handleError(record)

    monkeypatch.setattr(_LogFile, "emit", full)
    with listening(verbose=False, file=tmp_path / "search.log"):
        for _ in range(3):
            logging.getLogger("poet.solvers.search").warning("a line")
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "the log ends here ([Errno 28] No space left on device)" in said[0]


# --- poet what-if -----------------------------------------------------------------------------


def what_if(folder: Path, *more: str) -> tuple[int, str, str]:
    """A sweep of two points, neither of which follows from arithmetic."""
    grid = ("--ram", "31MiB,34MiB", "--deadline", "none", "--time-limit", "20s", "--cache", str(folder))
    return invoke("what-if", str(INSTANCE), *grid, *more)


def test_the_log_of_a_sweep_tells_each_point_and_each_search(tmp_path: Path) -> None:
    file = tmp_path / "sweep.log"
    code, out, err = what_if(tmp_path / "cache", "--jobs", "1", "-v", "--log", str(file))
    assert code == 0
    assert "points, " not in err, "the log takes the place of the progress"
    for text in (file.read_text(), err):
        assert "whatif      the sweep begins: settings 1, points 2" in text
        assert "whatif      round 1: 0 of 2 points are decided, 2 to search" in text
        for number in range(2):
            asked = text.index(f"whatif      point {number} is transformer.m4 in ")
            begins = text.index(f"whatif      point {number}: the search begins")
            ended = text.index(f"whatif      point {number}: optimal, ")
            assert asked < begins < ended
        assert "portfolio   begins: greedy plans" in text
        assert "whatif      what more RAM, flash and time buy begins" in text
        assert "more RAM: the search begins" in text
        assert "whatif      the sweep ends after" in text
    assert "the search begins" not in out
    assert set(err.splitlines()) <= set(file.read_text().splitlines())
    repeated = what_if(tmp_path / "cache", "--jobs", "1", "-v")[2]
    assert repeated.count("from the cache") == 2
    assert "more RAM: answered by the cache" in repeated
    assert "the search begins" not in repeated


@pytest.mark.slow
def test_workers_keep_their_lines_and_the_points_are_told_all_the_same(tmp_path: Path) -> None:
    code, _, err = what_if(tmp_path / "cache", "--jobs", "2", "--no-marginal", "-v")
    assert code == 0
    for number in range(2):
        assert f"point {number} is transformer.m4 in " in err
        assert f"point {number}: optimal, " in err
    assert "begins: greedy plans" not in err


def test_the_log_of_a_sweep_is_no_input(tmp_path: Path) -> None:
    code, _, err = what_if(tmp_path / "cache", "--log", "-")
    assert (code, err.count("\n")) == (2, 1)
    assert "--log - is not a file" in err
