"""Schedules to JSON and back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poet.errors import InputError, PlanError
from poet.problem.schedule import Compute, Free, PageIn, PageOut, Schedule, Step
from poet.util import codec

STEPS = st.one_of(*(st.builds(kind, st.text()) for kind in (Compute, Free, PageOut, PageIn)))


def test_the_words_of_the_file_format() -> None:
    schedule = (Compute("conv"), PageOut("a"), Free("a"), PageIn("a"))
    assert codec.encode(schedule) == [
        {"do": "compute", "what": "conv"},
        {"do": "page_out", "what": "a"},
        {"do": "free", "what": "a"},
        {"do": "page_in", "what": "a"},
    ]


@given(st.lists(STEPS))
def test_round_trip(steps: list[Step]) -> None:
    text = json.dumps(codec.encode(steps))
    assert codec.decode_value(Schedule, json.loads(text), where="plan") == tuple(steps)


@pytest.mark.parametrize(
    ("data", "place"),
    [
        ({}, "plan"),
        (["compute"], r"plan\[0\]"),
        ([{"do": "compute"}], r"plan\[0\]"),
        ([{"do": "compute", "what": "a"}, {"do": "fly", "what": "a"}], r"plan\[1\]"),
        ([{"do": "free", "what": 3}], r"plan\[0\]\.what"),
        ([{"do": ["free"], "what": "a"}], r"plan\[0\]"),
        ([{"do": "free", "what": "a", "when": 1}], r"plan\[0\]"),
    ],
)
def test_what_is_no_schedule(data: object, place: str) -> None:
    with pytest.raises(InputError, match=f"^{place}: "):
        codec.decode_value(Schedule, data, where="plan")
    with pytest.raises(PlanError):
        codec.decode_value(Schedule, data, where="plan", error=PlanError)
