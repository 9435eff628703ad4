"""Alternatives of ops in a problem: what a choice makes of it, its file, what a schedule says of it."""

from __future__ import annotations

import dataclasses
import json

import pytest
from helpers.forms import choices_of, with_alternatives
from helpers.random_problems import mixed_problem

from poet.errors import InvalidSchedule, ProblemError
from poet.problem import Alternative, Limits, Problem, ProblemOp, Tensor, Transfer
from poet.problem.alternatives import chosen_by, leanest, relaxed, taken_by, with_names
from poet.problem.homes import decided
from poet.problem.schedule import Compute
from poet.problem.simulator import simulate
from poet.solvers.heuristics.policies import keep_everything
from poet.solvers.instance.feasibility import minimum_ram_bytes

MOVE = Transfer(0.5, 0.25)


def op(name: str, inputs: str, outputs: str, seconds: float = 1.0, workspace_bytes: int = 0) -> ProblemOp:
    return ProblemOp(name, tuple(inputs.split()), tuple(outputs.split()), seconds, 2.0, workspace_bytes)


def signs(*, seconds: float = 1.5, short_bytes: int = 1) -> Problem:
    """x → y → z → gradient; the gradient reads y, or its signs."""
    return Problem(
        "signs",
        tuple(Tensor(name, 32, MOVE, MOVE) for name in ("x", "y", "z", "g")),
        (op("relu", "x", "y"), op("next", "y", "z"), op("back", "z y", "g")),
        idle_watts=1.0,
        alternatives=(
            Alternative(
                "bits",
                (op("relu", "x", "y s", seconds), op("back", "z s", "g")),
                tensors=(Tensor("s", short_bytes, MOVE, MOVE),),
            ),
        ),
    )


def test_a_choice_is_an_ordinary_problem() -> None:
    of = signs()
    plain, short = of.resolved(()), of.resolved({"bits"})
    assert (plain.alternatives, plain.ops, plain.tensors) == ((), of.ops, of.tensors)
    assert [item.name for item in short.tensors] == ["x", "y", "z", "g", "s"]
    assert short.ops[2].inputs == ("z", "s")
    assert of.extra_cost(of.alternatives[0]) == pytest.approx((0.5, 0.5))
    assert of.compute_seconds == plain.compute_seconds == 3.0
    cheaper = signs(seconds=0.25)
    assert cheaper.compute_seconds == cheaper.resolved({"bits"}).compute_seconds == 2.25
    assert cheaper.compute_joules == pytest.approx(cheaper.resolved({"bits"}).compute_joules)


def test_ops_that_are_left_out_take_their_outputs_along() -> None:
    of = Problem(
        "fused",
        (Tensor("x", 1), Tensor("a", 8), Tensor("b", 1)),
        (op("A", "x", "a"), op("B", "a", "b")),
        alternatives=(Alternative("both", (op("B", "x", "b"),), omits=("A",)),),
    )
    fused = of.resolved({"both"})
    assert [item.name for item in fused.ops] == ["B"]
    assert [item.name for item in fused.tensors] == ["x", "b"]
    assert simulate(of, (Compute("B", "both"),)).peak_ram_bytes == 2
    assert minimum_ram_bytes(of).bytes == 2


def test_the_file_is_of_version_4_and_reads_the_same() -> None:
    data = json.loads(json.dumps(signs().to_json()))
    assert data["version"] == 4
    assert Problem.from_json(data) == signs()
    assert signs().resolved(()).to_json()["version"] == 1
    moved = dataclasses.replace(
        signs().resolved(()), tensors=tuple(Tensor(name, 32, move=MOVE) for name in "xyzg")
    )
    assert moved.to_json()["version"] == 3


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (Alternative("bits", ()), "alternative bits: it has no op"),
        (Alternative("bits", (op("none", "x", "y"),)), "there is no op 'none'"),
        (Alternative("bits", (op("relu", "x", "y s"),)), "there is no tensor 's'"),
        (Alternative("bits", (op("relu", "x", "y"),), tensors=(Tensor("s", 1),)), "tensor s is not made by"),
        (Alternative("bits", (op("relu", "x", "s"),), tensors=(Tensor("s", 1),)), "there is no tensor 'y'"),
        (Alternative("bits", (op("back", "z", "g"),), omits=("relu",)), "there is no tensor 'y'"),
        (Alternative("bits", (op("back", "z", "g"),), omits=("back",)), "or the same twice"),
        (
            Alternative("bits", (dataclasses.replace(op("back", "z y", "g"), updates=("z",)),)),
            "op back updates other tensors",
        ),
    ],
)
def test_what_cannot_be_taken_is_refused_by_name(changed: Alternative, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        dataclasses.replace(signs(), alternatives=(changed,))


def test_two_alternatives_share_no_op() -> None:
    (bits,) = signs().alternatives
    with pytest.raises(ProblemError, match="op relu is another alternative's as well"):
        dataclasses.replace(signs(), alternatives=(bits, dataclasses.replace(bits, name="more")))
    with pytest.raises(ProblemError, match="the same name"):
        dataclasses.replace(signs(), alternatives=(bits, bits))


def test_a_schedule_says_what_it_takes() -> None:
    of = signs()
    short = of.resolved({"bits"})
    schedule = tuple(Compute(item.name) for item in of.ops)
    named = with_names(of, {"bits"}, schedule)
    assert named == (Compute("relu", "bits"), Compute("next"), Compute("back", "bits"))
    assert taken_by(of, named) == {"bits"}
    assert chosen_by(of, named) == (short, schedule)
    assert simulate(of, named) == simulate(short, schedule)
    with pytest.raises(InvalidSchedule, match="op back does not run as alternative bits has it") as raised:
        simulate(of, (*named[:2], Compute("back")))
    assert (raised.value.rule, raised.value.step) == ("alternative", 2)
    with pytest.raises(ProblemError, match="whether bits is taken is not decided"):
        decided(of, schedule)


def test_the_smallest_ram_is_the_least_over_alternatives() -> None:
    of = signs()
    assert [minimum_ram_bytes(of.resolved(choice)).bytes for choice in choices_of(of)] == [96, 65]
    assert minimum_ram_bytes(of).bytes == 65
    assert leanest(of) == {"bits"}
    large = signs(short_bytes=40)  # beside the long form where it is made
    assert [minimum_ram_bytes(large.resolved(choice)).bytes for choice in choices_of(large)] == [96, 104]
    assert minimum_ram_bytes(large).bytes == 96
    assert leanest(large) == frozenset()


@pytest.mark.parametrize("seed", range(12))
def test_no_choice_is_below_the_relaxation(seed: int) -> None:
    of = with_alternatives(mixed_problem(seed, largest=6), seed)
    below = relaxed(of)
    limits = Limits()
    assert Problem.from_json(json.loads(json.dumps(of.to_json()))) == of
    tried = [minimum_ram_bytes(of.resolved(choice), limits).bytes for choice in choices_of(of)]
    assert minimum_ram_bytes(of, limits).bytes == min(tried)
    least = keep_everything(below.problem, limits)
    assert least is not None
    joules = simulate(below.problem, least, limits).joules + below.joules
    for choice in choices_of(of):
        resolved = of.resolved(choice)
        schedule = keep_everything(resolved, limits)
        assert schedule is not None
        assert simulate(resolved, schedule, limits).joules >= joules - 1e-9


def test_what_another_op_makes_and_a_third_updates_is_not_in_the_relaxation() -> None:
    update = dataclasses.replace(op("c", "y", "z"), updates=("y",))
    of = Problem(
        "moved",
        tuple(Tensor(name, 8, MOVE, MOVE) for name in ("x", "u", "y", "z")),
        (op("a", "x", "u y"), op("b", "u x", ""), update),
        alternatives=(Alternative("later", (op("a", "x", "u"), op("b", "u x", "y"))),),
    )
    below = relaxed(of).problem
    assert [item.name for item in below.tensors] == ["x", "u", "z"]
    assert below.ops[2].updates == below.ops[2].inputs == ()
    floors = [minimum_ram_bytes(of.resolved(choice)).bytes for choice in choices_of(of)]
    assert minimum_ram_bytes(of).bytes == min(floors) >= minimum_ram_bytes(below).bytes
