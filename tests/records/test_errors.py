"""The error tree: what is drawn is what is there, and each class says how the program ends."""

from __future__ import annotations

import re

import pytest

import poet.errors
from poet.errors import Infeasible, InvalidSchedule, ModelError, NotExact, OutOfTime, PoetError, nearest


def subclasses(root: type[PoetError]) -> list[type[PoetError]]:
    return [root, *(below for child in root.__subclasses__() for below in subclasses(child))]


def test_the_tree_drawn_is_the_tree() -> None:
    assert poet.errors.__doc__ is not None
    drawn = re.findall(r"([├└│ ]*(?:── )?)([A-Z]\w+) {2,}\S", poet.errors.__doc__)
    depth_of = {name: len(branch) // 4 for branch, name in drawn}
    base = depth_of["PoetError"]
    ours = [error for error in subclasses(PoetError) if error.__module__ == "poet.errors"]
    assert {error.__name__ for error in ours} == set(depth_of) | {"UnsupportedOperator"}
    for error in ours:
        if error.__name__ in depth_of:
            assert depth_of[error.__name__] - base == error.__mro__.index(PoetError), error


@pytest.mark.parametrize(
    ("error", "code"), [(PoetError, 2), (ModelError, 2), (Infeasible, 3), (OutOfTime, 4), (NotExact, 1)]
)
def test_exit_codes(error: type[PoetError], code: int) -> None:
    assert error("why").exit_code == code
    assert str(error("why")) == "why"


def test_a_verdict_names_rule_and_step() -> None:
    verdict = InvalidSchedule("step 3: no", rule="ram", step=3)
    assert (verdict.rule, verdict.step, str(verdict)) == ("ram", 3, "step 3: no")


def test_a_message_is_a_line_whatever_a_file_calls_its_parts() -> None:
    assert str(PoetError("op \x1b[2J is red")) == r"op \x1b[2J is red"
    long = str(PoetError("plan.poet: " + "a" * 10**6 + "; get it again"))
    assert len(long) <= poet.errors.LONGEST_MESSAGE
    assert long.startswith("plan.poet: aaa")
    assert long.endswith("aaa; get it again")


def test_nearest() -> None:
    assert nearest("rpi4", ["rpi4b", "mkr1000"]) == "; did you mean 'rpi4b'?"
    assert nearest("zzz", ["rpi4b", "mkr1000"]) == ""
    assert nearest("anything", []) == ""
