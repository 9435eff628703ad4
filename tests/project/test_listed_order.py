"""What is proven is proven of schedules whose first runs keep the listed order, and every claim says so."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from poet.problem import Limits, Problem, ProblemOp, Tensor
from poet.problem.solution import Status, sentence_of, solution_to_json
from poet.solvers import solve
from poet.util.units import IN_ORDER, NO_GAP

ROOT = Path(__file__).parents[2]

CLAIM = re.compile(
    r"\b(no|any|every) (other )?(valid )?(plan|schedule)s?\b|nothing less|none needs less|proven infeasible|"
    r"\bis optimal\b|needs at least|takes at least",
    re.IGNORECASE,
)
NO_CLAIM = re.compile(
    r"no (plan|schedule) (yet|was found|found|is kept|for the budget|fits into)|makes no plan|read no plan|"
    r"has no plan|have no plan|needs no plan|No plan that meets|: no plan;|every plan found",
    re.IGNORECASE,
)
"""What was found, or is wanted: nothing is claimed of what there is."""

LEFT_OUT = {
    "no plan",  # a word of a log's line and of a table's cell
    "every schedule",  # running every op once is the least in every order
    "any plan inside the energy budget",  # what a phase of a search looks for
    "second opinion that there is no plan",
    "no plan with less",
}


def part_text(part: ast.expr) -> str:
    """Of a formatted string: a text, or an expression in braces."""
    assert isinstance(part, ast.Constant | ast.FormattedValue)
    return str(part.value) if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"


def texts(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Strings that are no docstrings; of formatted ones the whole, with expressions in braces."""
    apart = {node.value for node in ast.walk(module) if isinstance(node, ast.Expr)}
    for node in ast.walk(module):
        if isinstance(node, ast.JoinedStr):
            apart.update(node.values)
            yield node.lineno, "".join(map(part_text, node.values))
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in apart:
            yield node.lineno, node.value


def claims(text: str) -> bool:
    return bool(CLAIM.search(text)) and not NO_CLAIM.search(text) and text not in LEFT_OUT


def test_every_claim_in_the_code_names_the_order() -> None:
    found = 0
    for path in (*ROOT.glob("poet/**/*.py"), *ROOT.glob("cli/*.py")):
        for line, text in texts(ast.parse(path.read_text(encoding="utf-8"))):
            if claims(text):
                found += 1
                names_it = "IN_ORDER" in text or "listed order" in text
                assert names_it or text.startswith("any plan with {"), f"{path.name}:{line}: {text}"
    assert found > 20


@pytest.mark.parametrize("page", ["parts.html", "what_if.html"])
def test_so_do_the_pages(page: str) -> None:
    text = (ROOT / "poet" / "report" / "html" / "assets" / page).read_text(encoding="utf-8")
    said = re.findall(r"[^\n\"]*\bno (?:plan|schedule)\b[^\n\"]*", text)
    assert said
    assert all("in the listed order" in sentence for sentence in said)


def test_so_do_the_sentences_of_an_answer_and_a_field() -> None:
    assert all(IN_ORDER in status.value for status in Status)
    assert IN_ORDER in sentence_of(Status.OPTIMAL, "the word of highs alone, not proven independently")
    assert all(IN_ORDER in words for words in NO_GAP.values())
    tensors = (Tensor("a", 4), Tensor("b", 4))
    problem = Problem("one", tensors, (ProblemOp("f", ("a",), ("b",), 1.0, 1.0),))
    found = solve(problem, Limits(ram_budget_bytes=8))
    assert found.order == solution_to_json(problem, found)["order"] == "listed"
