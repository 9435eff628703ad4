"""The constants of the search: in one record, each with a reason, passed along; no bound rests on them."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from helpers.oracle import least_joules
from helpers.pace import with_slow
from helpers.random_problems import mixed_problem, random_limits, training_like
from helpers.rooms import ROOT

from poet.errors import InputError
from poet.problem import Limits, Objective, Pins
from poet.ram_survey import budget_between, keep_everything_bytes
from poet.simulator import simulate
from poet.solution import SolveOptions
from poet.solvers import minimum_ram_bytes, solve
from poet.solvers.bounds.refinement import priced_bound
from poet.solvers.engines import Effort, run_engine
from poet.solvers.event_model.model import build, matrix_of
from poet.solvers.heuristics.lp_guided import walks_along
from poet.solvers.instance.instance import instance_of
from poet.solvers.instance.timeline import timeline_of
from poet.solvers.literature.comparison import compare
from poet.solvers.search.explain import answered
from poet.tuning import DEFAULT, Tuning, tuned_fields

SOLVERS = ROOT / "poet" / "solvers"
bench: Any = importlib.import_module("benchmarks.tuning")

NO_TUNING = {
    # tolerances and margins that a proof, or the comparison of two sums, rests on
    "bounds/copies_master.py:_MARGIN",
    "bounds/resident_bytes.py:ROUNDING",
    "engines/certificate.py:_WHOLE",
    "engines/certificate.py:_NO_PRICE",
    "engines/confirm.py:_TOLERANCE",
    "engines/highs.py:TOLERANCE",
    "engines/highs_process.py:_MARGIN",
    "engines/linear.py:_ROUNDING",
    "engines/matrix.py:_INTEGER_TOLERANCE",
    "engines/matrix.py:_WHOLE_SHARE",
    "event_model/emit.py:_ENGINE_TOLERANCE",
    "event_model/knapsack_cuts.py:_EXACT",
    "instance/overlap.py:_LEAST_SAVING",
    "search/best_bound.py:_REFUTED",
    "search/bound_rounds.py:_ROUNDING",
    "search/objectives.py:_TOLERANCE",
    "search/all_choices.py:_TOLERANCE",
    "search/choices.py:SECONDS",  # positions in a pair
    "search/choices.py:JOULES",
    "instance/ram_bound.py:_MOST_TRIED",  # a bound has no options
    "instance/returns.py:_MOST_FLAGS",  # memory
    # how numbers are written down: the scale that tolerances refer to, what does not overflow, marks, tables
    "engines/integers.py:_LARGEST_SUM",
    "engines/integers.py:_ROW_PRECISION",
    "engines/matrix.py:_DEAREST",
    "engines/matrix.py:ONE",
    "engines/matrix.py:NOUGHT",
    "bounds/played.py:_CHOSEN",  # what rounds to 1
    "engines/highs.py:_FEW_COLUMNS",  # around a fault of an engine
    "bounds/copies_master.py:_UNITS",
    "bounds/copies_master.py:_STEP_UNITS",
    "bounds/copies_master.py:_MOST_PARTS",
    "bounds/ram_program.py:_MOST_UNASKED",
    "bounds/ram_stages.py:CAP",
    "bounds/ram_stages.py:_MOST_BYTES",
    "bounds/windows.py:_FEW_ROWS",  # which of two ways to write down the same sum has fewer entries
    "bounds/suffix_program.py:_UNITS",
    "bounds/suffix_program.py:_WAYS",
    "bounds/timed_search.py:_ANY_BYTES",
    "bounds/timed_search.py:_ROUNDING",
    # turns of a search for fixed places, in a process of its own: `make bench-layout` is what judges them
    "engines/places_child.py:_ANSWER_SECONDS",
    "engines/places_child.py:_FIRST_SECONDS",
    "engines/places_child.py:_GROWTH",
    "engines/places_child.py:_HINTED_SECONDS",
    "engines/places_child.py:_HINTED_SHARE",
    "engines/places_child.py:_JITTER",
    "engines/places_child.py:_PLAIN_TURNS",
    "engines/places_child.py:_ROUND_TURNS",
    "engines/places_child.py:_WORK_PER_SECOND",
}


def constants(text: str) -> Iterator[str]:
    """Upper-case names that a module or class gives a value made of numbers."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        else:
            continue
        numbers = [part.value for part in ast.walk(value) if isinstance(part, ast.Constant)]
        if not any(isinstance(number, int | float) for number in numbers):
            continue
        names = [part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
        yield from (name for name in names if name.isupper())


def test_no_tuned_constant_is_left_outside_the_record() -> None:
    found = {
        f"{path.relative_to(SOLVERS)}:{name}"
        for path in SOLVERS.rglob("*.py")
        for name in constants(path.read_text())
    }
    assert found - NO_TUNING == set(), "move these to poet/tuning, or say why they are no tuning"
    assert NO_TUNING - found == set(), "these are not there any more"


def test_a_constant_is_seen_whatever_its_form() -> None:
    forms = "_A = 1\n_B, _C = 0.5, 2\n_D: float = -1e3\n_E = (1, (2, 3))\n_F = f(g(1) for g in h)\nlower = 1"
    assert list(constants(forms)) == ["_A", "_B", "_C", "_D", "_E", "_F"]
    assert not list(constants('_NAMES = ("a", "b")\n_ROWS = (one, two)'))


def test_every_field_has_a_reason_and_says_what_is_off() -> None:
    for name, tuned in tuned_fields().items():
        group, _, own = name.partition(".")
        doc = type(getattr(DEFAULT, group)).__doc__ or ""
        entry = re.search(
            rf"^        {own}: (.*?)(?=^        \w+: |^    $|\Z)", doc, re.DOTALL | re.MULTILINE
        )
        assert entry is not None, name
        what_and_why = entry[1].partition("Off:")[0]
        assert re.search(r"[:;,]\s|\b(because|so that|since)\b", what_and_why), (
            f"{name}: what it is, but not why"
        )
        assert ("Off:" in entry[1]) == ("off" in tuned.metadata), name


def test_every_field_is_read_by_the_planner() -> None:
    read = {
        node.attr
        for path in (*SOLVERS.rglob("*.py"), *(ROOT / "poet" / "planning").glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
    }
    assert {name for name in tuned_fields() if not set(name.split(".")) <= read} == set()


def test_the_default_is_nothing_but_a_default() -> None:
    """In the planner it stands for what a parameter or field is without an argument, and nowhere else."""
    for path in SOLVERS.rglob("*.py"):
        tree = ast.parse(path.read_text())
        uses = sum(isinstance(node, ast.Name) and node.id == "DEFAULT" for node in ast.walk(tree))
        defaults = [
            default
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef)
            for default in (*node.args.defaults, *node.args.kw_defaults)
        ]
        defaults += [node.value for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)]
        assert uses == sum(isinstance(value, ast.Name) and value.id == "DEFAULT" for value in defaults), path


def test_nobody_in_the_planner_falls_back_on_the_default() -> None:
    """Who calls what reads a record passes one; the least RAM and judged proposals read none."""
    readers = {"instance_of", "greedy", "HighsProcess", "Effort", "prove_none", "chain_of"}
    calls = 0
    for path in SOLVERS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            thorough = any(keyword.arg == "thorough" for keyword in node.keywords)
            reads = node.func.id in readers or (node.func.id == "Incumbent" and thorough)
            if reads and path.name != "ram_bound.py":
                assert "tuning" in ast.unparse(node), f"{path}:{node.lineno}"
                calls += 1
    assert calls > 10


class _Unread:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was read from the default, not from the record that was passed along")


@contextmanager
def unread_default() -> Iterator[None]:
    kept = {group.name: getattr(DEFAULT, group.name) for group in dataclasses.fields(DEFAULT)}
    try:
        for name in kept:
            object.__setattr__(DEFAULT, name, _Unread())
        yield
    finally:
        for name, value in kept.items():
            object.__setattr__(DEFAULT, name, value)


STEP = training_like(5, seed=3)
MOST, LEAST = keep_everything_bytes(STEP), minimum_ram_bytes(STEP).bytes
TIGHT = Limits(ram_budget_bytes=budget_between(LEAST, MOST, 0.1))


def asked(tuning: Tuning, **options: Any) -> SolveOptions:
    return SolveOptions(time_limit_seconds=0.5, tuning=tuning, **options)


@pytest.mark.parametrize("large_ops", with_slow([1, 400], {400}))
@pytest.mark.parametrize("objective", Objective)
def test_the_record_is_passed_along(large_ops: int, objective: Objective) -> None:
    mine = Tuning().having("search.large_ops", large_ops)
    with unread_default():
        solution = solve(STEP, TIGHT, asked(mine, objective=objective))
    assert solution.schedule is not None


def test_the_record_is_passed_along_to_explanations_pins_background_and_rivals() -> None:
    mine, step = Tuning(), training_like(2, seed=3)
    least = minimum_ram_bytes(step).bytes
    tight = Limits(ram_budget_bytes=budget_between(least, keep_everything_bytes(step), 0.2))
    background = dataclasses.replace(step, background_storage=True, idle_watts=1.0)
    with unread_default():
        hopeless = answered(step, Limits(ram_budget_bytes=least - 1), asked(mine))
        solve(step, dataclasses.replace(tight, pins=Pins(keep=(step.tensors[0].name,))), asked(mine))
        late = dataclasses.replace(tight, deadline_seconds=2.0 * step.compute_seconds)
        solve(background, late, asked(mine))
        compare(step, tight, asked(mine), solve(step, tight, asked(mine)))
    assert "RAM of" in hopeless.message


# --- what a field does ---


@pytest.mark.parametrize("name", [name for name, tuned in tuned_fields().items() if "off" in tuned.metadata])
def test_what_can_be_switched_off_can_be(name: str) -> None:
    group, _, own = name.partition(".")
    off = DEFAULT.without(name)
    assert getattr(getattr(off, group), own) == tuned_fields()[name].metadata["off"]
    assert off != DEFAULT
    assert off.having(name, tuned_fields()[name].default) == DEFAULT


def test_a_wrong_field_or_value_is_told_with_the_way_out() -> None:
    with pytest.raises(InputError, match=r"did you mean 'rounds\.patience_rounds'"):
        DEFAULT.having("rounds.patience", 3)
    with pytest.raises(InputError, match=r"cannot be switched off; give another value than 2\.5"):
        DEFAULT.without("rounds.round_seconds")
    for name, value in (
        ("rounds.patience_rounds", 2.5),
        ("rounds.round_seconds", -1.0),
        ("rounds.round_seconds", float("nan")),
        ("rounds.stretch_counts", ()),
        ("rounds.stretch_counts", 3),
        ("suffix.groups", 0),
        ("large.offer_reruns", (1, 6)),
    ):
        with pytest.raises(InputError, match=name.partition(".")[2]):
            DEFAULT.having(name, value)


def test_what_is_off_is_off() -> None:
    plain, off = instance_of(STEP, TIGHT), DEFAULT.without("model.cut_sizes").without("walks.sure_shares")
    without = instance_of(STEP, TIGHT, tuning=off)
    families = [{row.family for row in build(timeline_of(of, {})).rows} for of in (plain, without)]
    assert families[0] - families[1] == {"packing"}
    assert list(walks_along(plain, priced_bound(plain)))
    assert not list(walks_along(without, priced_bound(without)))


@pytest.mark.parametrize("name", ["model.asked_inputs", "model.tight_slots", "model.cut_sizes"])
def test_no_bound_is_above_the_oracle_whatever_is_off(name: str) -> None:
    tuning, checked = DEFAULT.without(name), 0
    for seed in range(20):
        problem = mixed_problem(seed)
        limits = random_limits(problem, seed)
        best = least_joules(problem, limits)
        if best is None:
            continue
        model = build(timeline_of(instance_of(problem, limits, tuning=tuning), {}), relaxed=True)
        outcome = run_engine("highs", matrix_of(model), Effort(None, 1, 0, 0.0, 0.0))
        optimum = simulate(problem, best, limits).joules - problem.compute_joules
        assert outcome.bound_joules <= optimum + 1e-6 * problem.compute_joules, seed
        checked += 1
    assert checked > 10


# --- the benchmark ---


def test_the_benchmark_prints_both_answers_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--off", "greedy.noise_deviations", "--only", "transformer.m4", "--shares", "0.5"]
    assert bench.main([*words, "--time-limit", "5"]) == 0
    title, header, row = capsys.readouterr().out.splitlines()
    assert title == "greedy.noise_deviations: (0.0, 0.05, 0.1, 0.2, 0.4) | with (0.0,)"
    assert len(header) == len(row)
    assert row.startswith("transformer.m4")


def test_the_benchmark_marks_what_differs() -> None:
    line = bench.row("a", 0.5, bench.Answer(2.0, 1.0, 0.1), bench.Answer(1.5, 1.0, 0.2))
    assert re.findall(r"[<>]", line) == ["<"]
    line = bench.row("a", 0.5, bench.Answer(2.0, 1.0, 0.1), bench.Answer(math.inf, 1.5, 0.2))
    assert re.findall(r"[<>]", line) == [">", ">"]


def test_the_benchmark_reads_values_and_refuses_what_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    def changed(*words: str) -> Tuning:
        tuning: Tuning = bench.changed(argparse.Namespace(off=None, set=words))
        return tuning

    assert changed("rounds.round_seconds", "3").rounds.round_seconds == 3.0
    assert changed("large.offer_reruns", "[[1, 6], [2, 9]]").large.offer_reruns == ((1, 6), (2, 9))
    for words in (
        ["--off", "nothing"],
        ["--set", "rounds.round_seconds", "long"],
        ["--off", "suffix.groups"],
    ):
        assert bench.main(words) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
