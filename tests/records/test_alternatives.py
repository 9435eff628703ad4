"""Alternatives of ops in a problem: what a choice makes of it, its file, what a schedule says of it."""

from __future__ import annotations

import dataclasses
import json

import pytest
from helpers.forms import choices_of, with_alternatives, with_page_forms
from helpers.random_problems import mixed_problem

from poet.errors import InvalidSchedule, ProblemError
from poet.problem import Alternative, Limits, PageForm, Place, Problem, ProblemOp, Tensor, Transfer
from poet.problem.alternatives import chosen_by, leanest, relaxed, taken_by, with_names
from poet.problem.homes import decided
from poet.problem.schedule import Compute, Free, PageIn, PageOut
from poet.problem.simulator import simulate
from poet.solvers.heuristics.policies import keep_everything
from poet.solvers.instance.feasibility import minimum_ram_bytes
from poet.util import codec

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


def paged(**changes: object) -> Problem:
    """x → y → z; y may go to storage in half of its bytes, which takes longer to read."""
    tensors = tuple(Tensor(name, 32, MOVE, MOVE) for name in "xyz")
    rough = dataclasses.replace(tensors[1], page_form=PageForm.BF16, page_in=Transfer(0.75, 0.25))
    rough = dataclasses.replace(rough, page_out=Transfer(0.25, 0.125), **changes)  # type: ignore[arg-type]
    ops = (op("one", "x", "y"), op("two", "y", "z"))
    return Problem("paged", tensors, ops, alternatives=(Alternative("rough", (), tensors=(rough,)),))


THERE_AND_BACK = (Compute("one"), PageOut("y"), Free("y"), PageIn("y"), Compute("two"))


def test_a_form_of_pages_is_taken_where_a_page_goes_out_in_it() -> None:
    of = paged()
    assert of.to_json()["version"] == of.resolved({"rough"}).to_json()["version"] == 7
    assert Problem.from_json(json.loads(json.dumps(of.to_json()))) == of
    named = with_names(of, {"rough"}, THERE_AND_BACK)
    assert named[1] == PageOut("y", "rough")
    assert codec.encode(named[1]) == {"do": "page_out", "what": "y", "alternative": "rough"}
    assert chosen_by(of, named) == (of.resolved({"rough"}), THERE_AND_BACK)
    whole, rough = simulate(of, THERE_AND_BACK), simulate(of, named)
    assert (whole.written_bytes, rough.written_bytes, rough.read_bytes) == (32, 16, 16)
    assert (whole.peak_ram_bytes, whole.joules) == (rough.peak_ram_bytes, rough.joules + 0.125)
    for step, message in (
        (PageOut("x", "rough"), "the page of x has no alternative 'rough'"),
        (PageOut("y", "none"), "the page of y has no alternative 'none'"),
    ):
        with pytest.raises(InvalidSchedule, match=message) as raised:
            simulate(of, (named[0], step, *named[2:]))
        assert raised.value.rule == "alternative"
    with pytest.raises(InvalidSchedule, match="the page of y is not as alternative rough has it"):
        simulate(of, (*named[:2], PageOut("y"), *named[2:]))
    with pytest.raises(InvalidSchedule, match="pages of y have no alternative 'rough'"):
        simulate(of.resolved({"rough"}), named)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bytes": 16}, "alternative rough: it has no op"),
        ({"role": "other"}, "alternative rough: it has no op"),
        ({"name": "w"}, "alternative rough: it has no op"),
        ({"stored_bytes": 15}, "tensor y: stored_bytes do not hold it as bf16"),
        ({"initially": Place.RAM, "page_form": None}, "alternative rough: it has no op"),
        ({"finally_": Place.RAM}, "tensor y: page_form is of float32 numbers that live within a step"),
        ({"bytes": 30}, "tensor y: page_form is of float32 numbers"),
    ],
)
def test_a_form_of_pages_changes_nothing_else(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        paged(**changes)


@pytest.mark.parametrize("seed", range(12))
def test_the_relaxation_is_below_all_forms_of_pages(seed: int) -> None:
    of = with_page_forms(with_alternatives(mixed_problem(seed, largest=6), seed, most=1), seed)
    below = {tensor.name: tensor for tensor in relaxed(of).problem.tensors}
    for tensor in (each for choice in choices_of(of) for each in of.resolved(choice).tensors):
        least = below.get(tensor.name, tensor)
        assert least.bytes <= tensor.bytes
        for one, other in ((least.page_in, tensor.page_in), (least.page_out, tensor.page_out)):
            assert other is None or (one is not None and one.seconds <= other.seconds)
            assert other is None or (one is not None and one.joules <= other.joules)
