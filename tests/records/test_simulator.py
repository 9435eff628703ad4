"""The judge bites: each rule alone, mutations of valid schedules, memory recomputed from scratch."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest
from helpers.forms import with_row_updates
from helpers.random_problems import mixed_problem
from helpers.schedules import verdict

from poet.errors import InvalidSchedule, ProblemError
from poet.problem import Alternative, Limits, Pins, Place, Problem, ProblemOp, Tensor, Transfer
from poet.problem.schedule import Compute, Free, PageIn, PageOut, Schedule, Step
from poet.problem.simulator import simulate
from poet.solvers.heuristics.greedy import greedy

RULES = {
    "unknown", "input", "stale", "recompute", "order", "free", "page_out", "page_in", "ram",
    "storage", "deadline", "missing", "final", "alternative", "stored",
}  # fmt: skip
IN, OUT = Transfer(3.0, 0.3), Transfer(5.0, 0.5)


def tensor(name: str, size: int = 10, **fields: object) -> Tensor:
    return dataclasses.replace(Tensor(name, size, IN, OUT), **fields)  # type: ignore[arg-type]


def op(name: str, inputs: str, outputs: str, **fields: object) -> ProblemOp:
    made = ProblemOp(name, tuple(inputs.split()), tuple(outputs.split()), seconds=2.0, joules=1.0)
    return dataclasses.replace(made, **fields)  # type: ignore[arg-type]


def net(**fields: object) -> Problem:
    """x → a → b; c reads a and b; u updates the parameter p with c; d reads the new p."""
    made = Problem(
        "net",
        (
            tensor("x"), tensor("p", 4, finally_=Place.RAM), tensor("a"), tensor("b"), tensor("c", 6),
            tensor("d", 1, finally_=Place.STORAGE),
        ),
        (
            op("A", "x p", "a"), op("B", "a", "b"), op("C", "a b", "c", workspace_bytes=3),
            op("U", "p c", "", updates=("p",), recomputable=False), op("D", "p", "d"),
        ),
    )  # fmt: skip
    return dataclasses.replace(made, **fields)  # type: ignore[arg-type]


def steps(text: str) -> Schedule:
    """``"A +a -a !a A:short"``: compute A, page a in, free a, page a out, compute A as ``short`` has it."""
    kinds: dict[str, Callable[[str], Step]] = {"+": PageIn, "-": Free, "!": PageOut}

    def run(word: str) -> Compute:
        name, _, alternative = word.partition(":")
        return Compute(name, alternative or None)

    return tuple(kinds[word[0]](word[1:]) if word[0] in kinds else run(word) for word in text.split())


PLAIN = "A -x B C -a -b U -c D !d -d"
PAGED = "A -x B !a -a +a C -a -b !p U -c D !d -d"
REMADE = "A B -a A C -a -b -x U -c D !d -d"


# --- each rule alone --------------------------------------------------------------------------

RANDOM_PAIR = Problem(
    "pair", (tensor("x"), tensor("r"), tensor("s")),
    (op("R", "x", "r", random=True), op("S", "x", "s", random=True)),
)  # fmt: skip
FIXED = net(
    tensors=tuple(dataclasses.replace(t, page_out=None) if t.name == "a" else t for t in net().tensors)
)
SEALED = net(
    tensors=tuple(dataclasses.replace(t, page_in=None) if t.name == "a" else t for t in net().tensors)
)
ONCE = net(ops=tuple(dataclasses.replace(o, recomputable=False) for o in net().ops))
REUPDATED = Problem(
    "reupdated", (tensor("x"), tensor("a"), tensor("b"), tensor("c")),
    (op("A", "x", "a"), op("U", "a", "b", updates=("a",)), op("C", "a b", "c")),
)  # fmt: skip
FULL = net(storage_capacity_bytes=11)
FORMS = net(
    alternatives=(
        Alternative("short", (op("A", "x p", "a s"), op("C", "b s", "c")), tensors=(tensor("s", 1),)),
        Alternative("once", (op("D", "p", "d", joules=0.5),)),
    )
)
BY_ROW = Problem(
    "by row", (tensor("x"), tensor("t", 40, initially=Place.BOTH), tensor("a")),
    (op("R", "x", "a", stored=("t",), stored_read_bytes=8),),
)  # fmt: skip
ROWS = Problem(
    "rows",
    (
        tensor("x"), tensor("t", 40, initially=Place.STORAGE, finally_=Place.STORAGE), tensor("a"),
        tensor("b"),
    ),
    (
        op("R", "x", "a", stored=("t",), stored_read_bytes=8, recomputable=False),
        op(
            "W", "x", "", stored=("t",), stored_read_bytes=8, recomputable=False,
            stored_updates=("t",), stored_written_bytes=6,
        ),
        op("S", "x", "b", stored=("t",), recomputable=False),
    ),
)  # fmt: skip
SHORT = "A:short -x B -a C:short -s -b U -c D !d -d"

# rule, problem, a schedule that breaks it, limits, and the nearest schedule and limits that break none
CASES: list[tuple[str, Problem, str, Limits, str, Limits]] = [
    ("unknown", net(), "A Z", Limits(), PLAIN, Limits()),
    ("unknown", net(), "A -z", Limits(), PLAIN, Limits()),
    ("input", net(), PLAIN.replace("-x B", "-x -a B"), Limits(), PLAIN, Limits()),
    ("input", net(), "B A", Limits(), PLAIN, Limits()),
    ("input", net(), REMADE.replace("A B", "A -x B"), Limits(), REMADE, Limits()),
    ("stale", net(), "A -x B C -a -b D !d U", Limits(), PLAIN, Limits()),  # D means the new p
    ("stale", net(), PAGED.replace("U -c D", "U -c -p +p D"), Limits(), PAGED, Limits()),  # old p in storage
    ("stale", net(), "A B C U A D !d", Limits(), "A B C A U D !d", Limits()),  # A meant the old p
    ("recompute", ONCE, REMADE, Limits(), PLAIN, Limits()),
    ("recompute", net(), REMADE, Limits(recompute=False), REMADE, Limits()),
    ("recompute", REUPDATED, "A U A C", Limits(), "A A U C", Limits()),
    ("order", RANDOM_PAIR, "S R", Limits(), "R S", Limits()),
    ("free", net(), PLAIN.replace("-x", "-x -x"), Limits(), PLAIN, Limits()),
    ("free", net(), "-a " + PLAIN, Limits(), PLAIN, Limits()),
    ("page_out", net(), "!a " + PLAIN, Limits(), PLAIN, Limits()),
    ("page_out", net(), PAGED.replace("!a", "!a !a"), Limits(), PAGED, Limits()),
    ("page_out", net(), PAGED.replace("+a C", "+a !a C"), Limits(), PAGED, Limits()),  # same content again
    ("page_out", net(), PAGED, Limits(paging=False), PLAIN, Limits(paging=False)),
    ("page_out", FIXED, PAGED, Limits(), PLAIN, Limits()),
    ("page_in", SEALED, PAGED, Limits(), PLAIN, Limits()),
    ("page_in", net(), PAGED.replace("-a +a", "+a"), Limits(), PAGED, Limits()),
    ("page_in", net(), PAGED.replace("!a -a", "-a"), Limits(), PAGED, Limits()),
    ("ram", net(), PLAIN, Limits(ram_budget_bytes=32), PLAIN, Limits(ram_budget_bytes=33)),
    ("ram", net(), "A A " + PLAIN[2:], Limits(ram_budget_bytes=33), PLAIN, Limits(ram_budget_bytes=33)),
    ("ram", net(alignment_bytes=4), PLAIN, Limits(ram_budget_bytes=39), PLAIN, Limits(ram_budget_bytes=40)),
    ("storage", FULL, PAGED, Limits(), PAGED.replace(" !p", ""), Limits()),
    ("storage", net(), PAGED, Limits(written_budget_bytes=14), PAGED, Limits(written_budget_bytes=15)),
    ("deadline", net(), PAGED, Limits(deadline_seconds=27.9), PAGED, Limits(deadline_seconds=28.0)),
    ("missing", net(), "A -x B C -a -b U -c", Limits(), PLAIN, Limits()),
    ("final", net(), PLAIN.replace("!d", ""), Limits(), PLAIN, Limits()),
    ("alternative", FORMS, SHORT.replace("C:short", "C"), Limits(), SHORT, Limits()),
    ("alternative", FORMS, SHORT.replace("A:short", "A"), Limits(), SHORT, Limits()),
    ("alternative", FORMS, PLAIN.replace("B", "B:short"), Limits(), PLAIN, Limits()),
    ("alternative", FORMS, PLAIN.replace("D", "D:other"), Limits(), PLAIN.replace("D", "D:once"), Limits()),
    ("alternative", net(), PLAIN.replace("D", "D:once"), Limits(), PLAIN, Limits()),
    ("missing", FORMS, SHORT.replace(" D !d -d", ""), Limits(), SHORT, Limits()),
    ("unknown", FORMS, PLAIN.replace("-a", "-s"), Limits(), SHORT, Limits()),
    ("input", FORMS, SHORT.replace("-a C", "-a -s C").replace("-s -b", "-b"), Limits(), SHORT, Limits()),
    ("ram", FORMS, PLAIN, Limits(ram_budget_bytes=32), SHORT, Limits(ram_budget_bytes=29)),
    ("final", net(), PLAIN + " -p", Limits(), PLAIN, Limits()),
    ("stored", BY_ROW, "R", Limits(paging=False), "R", Limits()),
    ("stale", ROWS, "W R S", Limits(), "R W S", Limits()),  # R means the old rows
    ("stale", ROWS, "R S W", Limits(), "R W S", Limits()),  # S means the new ones
    ("recompute", ROWS, "R W W S", Limits(), "R W S", Limits()),
    ("recompute", ROWS, "R R W S", Limits(), "R W S", Limits()),
    ("page_out", ROWS, "R W +t !t S", Limits(), "R W +t S", Limits()),
    ("storage", ROWS, "R W S", Limits(written_budget_bytes=5), "R W S", Limits(written_budget_bytes=6)),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "of", "bad", "bad_limits", "good", "good_limits"), CASES)
def test_each_rule_alone(
    rule: str, of: Problem, bad: str, bad_limits: Limits, good: str, good_limits: Limits
) -> None:
    assert verdict(of, steps(bad), bad_limits) == rule
    assert verdict(of, steps(good), good_limits) is None


def test_every_rule_has_a_case() -> None:
    assert {case[0] for case in CASES} == RULES


def test_what_an_op_reads_in_storage_waits_for_storage_and_is_counted_for_each_run() -> None:
    of = dataclasses.replace(
        BY_ROW,
        background_storage=True,
        tensors=(tensor("x"), tensor("t", 40, initially=Place.STORAGE), tensor("a"), tensor("b")),
        ops=(*BY_ROW.ops, op("B", "a t", "b")),
    )
    trace = simulate(of, steps("+t R -a R B"))
    assert [(moment.start_seconds, moment.end_seconds) for moment in trace.moments] == [
        (0.0, 3.0), (3.0, 5.0), (5.0, 5.0), (5.0, 7.0), (7.0, 9.0),
    ]  # fmt: skip
    assert (trace.read_bytes, trace.page_in_seconds, trace.compute_seconds) == (40 + 2 * 8, 3.0, 6.0)
    assert [moment.ram_bytes for moment in trace.moments] == [50, 60, 60, 60, 70]


def test_what_is_never_paged_is_not_read_in_storage_either() -> None:
    never = Limits(pins=Pins(never_page=("t",)))
    assert verdict(BY_ROW, steps("R"), never) == "pin"


def test_an_op_reads_in_storage_what_lies_there_all_the_time() -> None:
    x, a = tensor("x"), tensor("a")
    reader = op("R", "x", "a", stored=("t",))
    update = op("U", "t", "", updates=("t",))
    for table, ops in (
        (tensor("t"), (reader,)),
        (tensor("t", initially=Place.BOTH, page_in=None), (reader,)),
        (tensor("t", initially=Place.STORAGE), (reader, update)),
    ):
        with pytest.raises(ProblemError, match="op R reads from t in storage, where it need not be"):
            Problem("by row", (x, a, table), ops)
    with pytest.raises(ProblemError, match="there is no tensor 't'"):
        Problem("by row", (x, a), (reader,))
    with pytest.raises(ProblemError, match="op R: 1 stored_reads or bytes of them, or of no tensor"):
        op("R", "x", "a", stored_read_bytes=1)
    of = Problem.from_json(BY_ROW.to_json())
    assert (of, BY_ROW.to_json()["version"], net().to_json()["version"]) == (BY_ROW, 5, 1)


def test_rows_that_are_written_are_counted_and_keep_their_order() -> None:
    trace = simulate(ROWS, steps("R W S"))
    assert (trace.read_bytes, trace.written_bytes, trace.compute_seconds) == (16, 6, 6.0)
    with pytest.raises(InvalidSchedule, match="step 1: op R reads rows of t after some were written"):
        simulate(ROWS, steps("W R S"))
    with pytest.raises(InvalidSchedule, match="step 1: op S reads rows of t before some were written"):
        simulate(ROWS, steps("R S W"))
    again = dataclasses.replace(ROWS.ops[1], name="V")
    twice = dataclasses.replace(ROWS, ops=(*ROWS.ops[:2], again, ROWS.ops[2]))
    assert verdict(twice, steps("R V W S")) == "order"
    assert verdict(twice, steps("R W V S")) is None
    assert verdict(twice, steps("R W S V")) == "stale"
    either = tuple(
        dataclasses.replace(t, initially=Place.EITHER, finally_=None) if t.name == "t" else t
        for t in ROWS.tensors
    )
    assert simulate(dataclasses.replace(ROWS, tensors=either), steps("R W S")) == trace
    of = Problem.from_json(ROWS.to_json())
    assert (of, ROWS.to_json()["version"]) == (ROWS, 6)


def test_rows_are_written_in_storage_alone() -> None:
    x, a, (read, write, _) = tensor("x"), tensor("a"), ROWS.ops
    table = tensor("t", 40, initially=Place.STORAGE, finally_=Place.STORAGE)
    for tensors, ops, message in (
        ((x, a, table), (write, op("O", "t", "a")), "op O has t in RAM, of which W writes rows in storage"),
        (
            (x, a, table),
            (dataclasses.replace(read, recomputable=True), write),
            "op R may run after W has written",
        ),
        ((x, tensor("t", initially=Place.BOTH)), (write,), "rows of t, which is not in storage between"),
        ((x, dataclasses.replace(table, finally_=Place.RAM)), (write,), "rows of t, which is not in storage"),
    ):
        with pytest.raises(ProblemError, match=message):
            Problem("rows", tensors, ops)
    for fields, message in (
        ({"recomputable": True}, "op W writes rows in storage: it runs once, and reads there as well"),
        ({"stored": ()}, "op W: 8 stored_reads or bytes of them, or of no tensor"),
        (
            {"stored": (), "stored_read_bytes": 0},
            "op W writes rows in storage: it runs once, and reads there",
        ),
        ({"stored_updates": ()}, "op W: 6 stored_writes or bytes of them, or of no tensor"),
    ):
        with pytest.raises(ProblemError, match=message):
            dataclasses.replace(write, **fields)


def test_an_alternative_may_write_rows_of_what_is_updated_without_it() -> None:
    table, update = ROWS.tensors[1], op("W", "x t", "", updates=("t",), recomputable=False)
    read, write, _ = ROWS.ops

    def of(*forms: ProblemOp, omits: tuple[str, ...] = (), other: bool = False) -> Problem:
        ops = (op("R", "x t", "a"), update) + ((op("O", "x", ""),) if other else ())
        alternatives = (Alternative("rows", forms, omits),)
        return Problem("rows", (tensor("x"), table, tensor("a")), ops, alternatives=alternatives)

    assert verdict(of(read, write), steps("R:rows W:rows")) is None
    assert verdict(of(read, write), steps("+t R W !t")) is None
    late = dataclasses.replace(write, name="O")
    assert verdict(of(read, late, omits=("W",), other=True), steps("R:rows O:rows")) is None
    for forms, omits, message in (
        ((read, update), (), "reads from t in storage, where it need not be"),
        ((write,), (), "op R has t in RAM, of which W writes rows in storage"),
        ((read,), ("W",), "op W updates tensors and cannot be left out"),
        ((read, late), (), "it writes rows of other tensors than are updated without it"),
    ):
        with pytest.raises(ProblemError, match=message):
            of(*forms, omits=omits, other=True)


def test_no_mutation_reads_rows_that_have_been_written() -> None:
    """Whatever becomes of a schedule, the look-up comes once and before the update, or it is rejected."""
    rng, accepted, rejected = random.Random(5), 0, 0
    for seed in range(30):
        of = with_row_updates(mixed_problem(seed, largest=5), seed).resolved({"rows"})
        schedule = greedy(of, Limits(), seconds=0.0)
        assert schedule is not None
        for _ in range(12):
            mutant = list(schedule)
            step = mutant.pop(
                next(i for i, step in enumerate(mutant) if step in (Compute("look"), Compute("update")))
            )
            for _ in range(rng.randint(1, 2)):
                mutant.insert(rng.randrange(len(mutant) + 1), step)
            rule = verdict(of, tuple(mutant))
            runs = [step.op for step in mutant if isinstance(step, Compute)]
            if rule is None:
                accepted += 1
                assert (runs.count("look"), runs.count("update")) == (1, 1)
                assert runs.index("look") < runs.index("update")
            rejected += rule is not None
    assert accepted > 40
    assert rejected > 150


def test_an_old_content_in_storage_does_not_satisfy_the_end() -> None:
    parameter = tensor("p", finally_=Place.STORAGE)
    of = Problem("p", (parameter, tensor("g")), (op("U", "p g", "", updates=("p",)),))
    assert verdict(of, steps("!p U")) == "final"
    assert verdict(of, steps("U !p")) is None
    assert verdict(of, steps("!p U !p")) is None  # two contents, each written once


def test_what_begins_in_ram_counts_before_the_first_step() -> None:
    with pytest.raises(InvalidSchedule) as error:
        simulate(net(), steps("-x " + PLAIN), Limits(ram_budget_bytes=13))
    assert (error.value.rule, error.value.step) == ("ram", -1)
    assert str(error.value).startswith("at the start: ")


def test_what_begins_in_storage_moves_even_without_paging() -> None:
    of = net(
        tensors=tuple(
            dataclasses.replace(t, initially=Place.STORAGE) if t.name == "x" else t for t in net().tensors
        )
    )
    assert verdict(of, steps(PLAIN)) == "input"
    assert verdict(of, steps("+x " + PLAIN), Limits(paging=False)) is None


def test_both_places_need_no_page_out_and_allow_none() -> None:
    of = net(
        tensors=tuple(
            dataclasses.replace(t, initially=Place.BOTH) if t.name == "x" else t for t in net().tensors
        )
    )
    assert verdict(of, steps("-x +x " + PLAIN)) is None
    assert verdict(of, steps("!x " + PLAIN)) == "page_out"
    assert simulate(of, steps(PLAIN)).storage_bytes == 11


def test_rerun_reads_its_own_inputs_only() -> None:
    of = net(
        ops=tuple(dataclasses.replace(o, recompute_inputs=("x",)) if o.name == "A" else o for o in net().ops)
    )
    assert verdict(of, steps("A B C U -a A D !d")) is None  # p is new, but the rerun does not read it
    assert verdict(net(), steps("A B C U -a A D !d")) == "stale"


def test_totals_of_a_schedule_worked_by_hand() -> None:
    trace = simulate(dataclasses.replace(net(), idle_watts=0.1), steps(PAGED))
    assert trace.compute_seconds == 10.0
    assert (trace.page_in_seconds, trace.page_out_seconds) == (3.0, 15.0)
    assert trace.seconds == 28.0
    assert trace.joules == pytest.approx(5.0 + 0.3 + 1.5 + 2.8)
    assert (trace.read_bytes, trace.written_bytes, trace.storage_bytes) == (10, 15, 15)
    assert trace.recomputed_runs == 0
    assert simulate(net(), steps(REMADE)).recomputed_runs == 1
    # C: a, b, p, its output c and its workspace; A and B hold 24 only
    assert (trace.peak_ram_bytes, trace.peak_step) == (33, 6)
    assert [moment.ram_bytes for moment in trace.moments][:4] == [24, 24, 24, 24]


def test_the_peak_step_is_the_first_at_the_peak() -> None:
    trace = simulate(RANDOM_PAIR, steps("R S !x !r"))
    assert [moment.ram_bytes for moment in trace.moments] == [20, 30, 30, 30]
    assert trace.peak_step == 1


def test_an_output_that_is_there_costs_twice_while_its_op_runs_again() -> None:
    trace = simulate(net(), steps("A A -x B C U D !d"))
    assert [moment.ram_bytes for moment in trace.moments][:3] == [24, 34, 24]


# --- background transfers, worked by hand: ops take 2 s, page-ins 3 s, page-outs 5 s ------------

BACKGROUND = net(background_storage=True)


@pytest.mark.parametrize(
    ("schedule", "seconds"),
    [
        # A 0-2, !a 2-7 beside B 2-4, C 4-6, U 6-8, D 8-10, !d after both engines: 10-15
        ("A !a B C U D !d", 15.0),
        # the free waits for the page-out until 7, then C would lack a: +a 7-10, C 10-12, U, D to 16, !d 21
        ("A !a B -a +a C U D !d", 21.0),
        # freed later, so that B runs meanwhile: A 0-2, !a 2-7, B 2-4, C 4-6, free waits to 7, U 7-9, D -11
        ("A !a B C -a U D !d", 16.0),
        # the update overwrites p: it waits for p's page-out 0-5; C ended at 6, so U 6-8, D 10, !d 15
        ("!p A B C U D !d", 15.0),
        # page-outs are served one by one: !p 0-5, !x 5-10; U needs p's only: U 6-8; !d 10-15
        ("!p !x A B C U D !d", 15.0),
        # !x first: 0-5, !p 5-10, U waits: 10-12, D 14, !d 19
        ("!x !p A B C U D !d", 19.0),
        # a is back at 10 (A -2, !a -7, free, +a -10); rerunning A needs no a but overwrites it: waits: 12
        ("A !a -a +a A B C U D !d", 25.0),
        # the step lasts until the last transfer is done, here one that nobody needs: !x 0-5, +x 5-8 ...
        ("!x -x +x A B C U D !b !c !d", 33.0),
    ],
)
def test_background_makespan(schedule: str, seconds: float) -> None:
    trace = simulate(BACKGROUND, steps(schedule))
    assert trace.seconds == seconds
    assert verdict(BACKGROUND, steps(schedule), Limits(deadline_seconds=seconds - 0.01)) == "deadline"
    blocking = simulate(net(), steps(schedule))
    assert blocking.peak_ram_bytes == trace.peak_ram_bytes
    assert blocking.seconds >= trace.seconds
    busy = (trace.compute_seconds, trace.page_in_seconds + trace.page_out_seconds)
    assert blocking.seconds == sum(busy)
    assert trace.seconds >= max(busy)


def test_a_page_in_counts_from_its_start_and_delays_its_reader() -> None:
    trace = simulate(BACKGROUND, steps("A !a B C U -a +a D !d"))
    read, compute = trace.moments[6], trace.moments[7]
    assert read.ram_bytes == compute.ram_bytes - 1  # a's buffer is counted while D runs beside the transfer
    assert (read.start_seconds, read.end_seconds) == (8.0, 11.0)
    assert (compute.start_seconds, compute.end_seconds) == (8.0, 10.0)  # D does not read a
