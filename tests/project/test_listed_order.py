"""What is proven is proven of schedules whose first runs keep the listed order, and every claim says so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from poet.problem import Limits, Problem, ProblemOp, Tensor
from poet.problem.solution import Status, sentence_of, solution_to_json
from poet.solvers import solve
from poet.util.units import IN_ORDER, NO_GAP

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["parts.html", "what_if.html"])
def test_a_page_that_says_of_no_plan_names_the_order(page: str) -> None:
    text = (ROOT / "poet" / "report" / "html" / "assets" / page).read_text(encoding="utf-8")
    said = re.findall(r"[^\n\"]*\bno (?:plan|schedule)\b[^\n\"]*", text)
    assert said
    assert all("in the listed order" in sentence for sentence in said)


def test_the_sentences_of_an_answer_name_the_order_and_it_has_a_field() -> None:
    assert all(IN_ORDER in status.value for status in Status)
    assert IN_ORDER in sentence_of(Status.OPTIMAL, "the word of highs alone, not proven independently")
    assert all(IN_ORDER in words for words in NO_GAP.values())
    tensors = (Tensor("a", 4), Tensor("b", 4))
    problem = Problem("one", tensors, (ProblemOp("f", ("a",), ("b",), 1.0, 1.0),))
    found = solve(problem, Limits(ram_budget_bytes=8))
    assert found.order == solution_to_json(problem, found)["order"] == "listed"
