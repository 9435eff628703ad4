"""Problems with alternatives, and models whose saves are a choice, on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.command import invoke

from poet.problem import Alternative, Problem, ProblemOp, Tensor, Transfer

DEAR = Transfer(50.0, 50.0)


@pytest.fixture
def problem_file(tmp_path: Path) -> Path:
    """One layer forward and back; backward reads its output, or a shorter form of it."""
    tensors = (Tensor("x", 16, DEAR, DEAR), Tensor("y", 16, DEAR, DEAR), Tensor("z", 16), Tensor("g", 16))
    ops = (
        ProblemOp("f", ("x",), ("y",), 1.0, 1.0),
        ProblemOp("h", ("y",), ("z",), 1.0, 1.0),
        ProblemOp("b", ("z", "y"), ("g",), 1.0, 1.0),
    )
    short = Alternative(
        "short",
        ops=(ProblemOp("f", ("x",), ("y", "s"), 2.0, 2.0), ProblemOp("b", ("z", "s"), ("g",), 1.0, 1.0)),
        tensors=(Tensor("s", 1),),
    )
    path = tmp_path / "problem.json"
    problem = Problem("pair", tensors, ops, alternatives=(short,))
    path.write_text(json.dumps(problem.to_json()))
    return path


def test_a_problem_file_is_planned_and_compared(problem_file: Path, tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    code, said, told = invoke(
        "solve", problem_file, "--ram", "1KiB", "--compare", "--json", answer, "--no-kept-plans",
        "--time-limit", "3s",
    )  # fmt: skip
    assert code == 0, told
    assert "keep-everything" in said
    assert json.loads(answer.read_text())["joules"] == pytest.approx(3.0)


def test_what_if_says_that_it_knows_no_alternatives(problem_file: Path) -> None:
    code, _, told = invoke("what-if", problem_file, "--ram", "1KiB")
    assert code == 2
    assert "has alternatives, which what-if does not know" in " ".join(told.split())
