"""The search for a step's schedule: which forms its ops take, and how much RAM is left for a page buffer.

Forms are offered to the search as alternatives. A compressed activation, and an op in more blocks
(`poet.passes.block_choice`), take less RAM and more work, by as much as the device's profile says: where
there is RAM for the others, a plan keeps them. A look-up in a table may read rows where it lies in storage,
and plain SGD may update them there: less comes and goes. What is copied over the operand that it is made from
is made apart instead, where keeping everything leaves room for both. Steps of micro-batches, and plans for
several budgets in one file, compute one graph, in which all that can be is compressed, and nothing in more
blocks than the step's time allows.

A plan that pages has its arena in what a budget leaves beside the page buffer, one that does not has all of
it. Where a schedule may do without paging, a short search of the whole budget looks whether good ones page;
if so, the rest of the time is for what is left beside the buffer.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from poet.devices.device_problem import with_units
from poet.devices.rough_pages import form_choices
from poet.errors import InvalidSchedule
from poet.memory.demand import PAGE_BYTES
from poet.passes.rewrite import Rewrite, Technique
from poet.planning.arena import is_mapped
from poet.planning.prepared import Prepared
from poet.plans.page_slots import is_paged, least_page_buffer_bytes
from poet.problem import Alternative, Limits, Objective, Pins, Place, Problem
from poet.problem.alternatives import most_at_once, relaxed, taken_by, with_names, without_names
from poet.problem.homes import decided
from poet.problem.progress import stage
from poet.problem.schedule import Compute
from poet.problem.search_record import joined
from poet.problem.simulator import judge, simulate
from poet.problem.solution import KnownBound, Solution, SolveOptions, Start, Status
from poet.problem.units import placed_by
from poet.solvers import has_schedules, solve
from poet.solvers.heuristics.policies import keep_everything
from poet.solvers.search.explain import answered, explained
from poet.util.units import IN_ORDER, format_bytes

if TYPE_CHECKING:
    from poet.passes.forms import Forms

Search = Callable[[Problem, Limits, SolveOptions], Solution]
"""Answers a problem inside limits."""

NEEDY_SHARE = 1 / 2
SAVED_SHARE = 1 / 8
"""Of a RAM budget, what an op holds at once, or holds less in more blocks: with that these are weighed."""
LOOK_SHARE = 0.05
"""Of a minute or a shorter time limit, for a look whether good plans page; without, plans that page are
searched beside no buffer, and then have no arena."""


def offered(prepared: Prepared, limits: Limits) -> Problem:
    """The problem of ``prepared`` with other forms of its ops as alternatives; itself where there are none.

    There are none where pins name tensors: these have to be there.
    """
    forms, step = _forms(prepared, limits), prepared.step
    graph, kernels, problem = step.graph, step.kernels, prepared.problem
    if forms is not None:
        graph, kernels = forms.long, forms.long_kernels
        problem = prepared.problem_of(graph, kernels)
    pages = form_choices(problem, graph, prepared.profile, prepared.page_forms)
    has_units = prepared.profile.units and prepared.micro is None
    if has_units and (forms is not None or problem == prepared.problem_of(graph, kernels)):
        problem = with_units(problem, graph, prepared.profile)
    rewritten = () if forms is None else _alternatives(prepared, problem, limits, forms.rewrites)
    return replace(problem, alternatives=(*rewritten, *pages))


def surveyed(prepared: Prepared, limits: Limits) -> Problem:
    """The problem of ``prepared``, for a survey: what may run in more blocks or by row is an alternative."""
    forms, problem = _forms(prepared, limits), prepared.problem
    if forms is None:
        return problem
    rewrites = forms.of(Technique.BLOCKS) | forms.of(Technique.STORED_ROWS)
    return replace(problem, alternatives=tuple(_alternatives(prepared, problem, limits, rewrites)))


def with_room(prepared: Prepared, limits: Limits, objective: Objective = Objective.ENERGY) -> Prepared:
    """``prepared`` with results apart from their operands where both have room beside all that can be kept.

    That is asked op by op: where an op's moment fits the RAM budget even in a step that keeps everything,
    copies of blocks over the operand would save nothing. Least RAM is sought with all of them.
    """
    forms = _forms(prepared, limits)
    if forms is None or not forms.apart:
        return prepared
    roomy = forms.with_apart(forms.apart)
    problem = prepared.problem_of(roomy.long, roomy.long_kernels)
    schedule = keep_everything(problem, Limits())
    if objective is Objective.RAM or schedule is None:
        return prepared
    budget_bytes = math.inf if limits.ram_budget_bytes is None else limits.ram_budget_bytes
    moments = zip(schedule, judge(decided(problem, schedule), schedule).moments, strict=True)
    held_bytes = {step.op: moment.ram_bytes for step, moment in moments if isinstance(step, Compute)}
    apart = {name for name in forms.apart if held_bytes[name] <= budget_bytes}
    if not apart:
        return prepared
    forms = forms.with_apart(apart)
    step = replace(prepared.step, graph=forms.short, kernels=forms.short_kernels, forms=forms)
    return prepared.with_step(step)


def weighed(problem: Problem, limits: Limits, objective: Objective = Objective.ENERGY) -> Problem:
    """An `offered` problem without the alternatives that a search inside ``limits`` does not weigh.

    More blocks of an op are the alternatives that make no tensors and read none in storage. Where keeping
    everything fits, none of them is weighed; else those of ops that hold more than `NEEDY_SHARE` of the RAM
    budget, and those that cost more and save `SAVED_SHARE` of it. Where least RAM is the objective, all are.
    (Blocks that stay in the cache may cost less than the whole: a plan in less RAM would then take less than
    the best one in more.)
    """
    budget_bytes = limits.ram_budget_bytes
    finer = [each for each in problem.alternatives if not each.tensors and not _reads_rows(each)]
    if objective is Objective.RAM or not finer:
        return problem
    left_out = {each.name for each in finer}
    if budget_bytes is not None and keep_everything(problem.resolved(()), limits) is None:
        ops = {op.name: op for op in problem.ops}
        for each in finer:
            own_bytes = most_at_once(problem, [ops[name] for name in each.touched])
            saved_bytes = own_bytes - most_at_once(problem, each.ops)
            saves_much = saved_bytes >= SAVED_SHARE * budget_bytes and min(problem.extra_cost(each)) >= 0
            if own_bytes > NEEDY_SHARE * budget_bytes or saves_much:
                left_out.remove(each.name)
    return replace(
        problem, alternatives=tuple(each for each in problem.alternatives if each.name not in left_out)
    )


def _forms(prepared: Prepared, limits: Limits) -> Forms | None:
    """What a plan may choose from: nothing with micro-batches, pins, or costs of somebody's own."""
    forms = prepared.step.forms
    has_choice = (
        forms is not None
        and limits.pins == Pins()
        and prepared.micro is None
        and prepared.step.kernels == forms.short_kernels
        and prepared.problem_of(forms.short, forms.short_kernels) == prepared.problem
    )
    return forms if has_choice else None


def _alternatives(
    prepared: Prepared, problem: Problem, limits: Limits, rewrites: Mapping[str, Rewrite]
) -> Iterator[Alternative]:
    """Those of ``rewrites`` that pay by the device's kernels, as alternatives of ``problem``."""
    forms = prepared.step.forms
    assert forms is not None
    graph = forms.graph(forms.rewrites)
    made = prepared.problem_of(graph, forms.kernels(forms.rewrites))
    made = with_units(made, graph, prepared.profile) if problem.units else made
    own = {op.name: op for op in problem.ops}
    for name, each in rewrites.items():
        new = {value.buffer for value in each.added}
        alternative = Alternative(
            name,
            ops=tuple(op for op in made.ops if each.ops.get(op.name) is not None),
            omits=each.omitted,
            tensors=tuple(tensor for tensor in made.tensors if tensor.name in new),
        )
        if each.technique is Technique.BLOCKS:
            before_bytes = most_at_once(problem, [own[name] for name in alternative.touched])
            pays = most_at_once(made, alternative.ops) < before_bytes
        else:
            pays = each.technique is Technique.COMPRESSED or _pays_by_row(prepared, made, limits, alternative)
        if pays:
            yield alternative


def _pays_by_row(prepared: Prepared, made: Problem, limits: Limits, alternative: Alternative) -> bool:
    """Whether rows that look-ups read, and update, in storage are fewer bytes than their table.

    A table that is trained comes and goes. Not where transfers run in the background, which a look-up would
    wait for; nor where nothing may be paged and the table may be in RAM between steps. Rows are not updated
    where storage is erased in blocks of many.
    """
    storage = prepared.profile.storage
    may_read = limits.paging or prepared.home is Place.STORAGE
    if storage is None or storage.transfers == "background" or not may_read:
        return False
    tables = set(alternative.ops[0].stored)
    table = [tensor for tensor in made.tensors if tensor.name in tables]
    moved_bytes = sum(op.stored_read_bytes + op.stored_written_bytes for op in alternative.ops)
    table_bytes = sum(tensor.storage_bytes for tensor in table)
    is_trained = any(op.stored_updates for op in alternative.ops)
    return (
        all(tensor.initially in (Place.STORAGE, Place.EITHER) for tensor in table)
        and moved_bytes < (2 * table_bytes if is_trained else table_bytes)
        and not (is_trained and storage.erase is not None)
    )


def _reads_rows(alternative: Alternative) -> bool:
    return any(op.stored for op in alternative.ops)


def with_choice(prepared: Prepared, taken: Collection[str]) -> Prepared:
    """``prepared`` with the forms of ``taken``, and the others' own: long, in no more blocks."""
    forms = prepared.step.forms
    assert forms is not None
    graph, host_kernels = forms.graph(taken), forms.kernels(taken)
    return prepared.with_step(replace(prepared.step, graph=graph, kernels=host_kernels, forms=None))


def without_choice(prepared: Prepared) -> Prepared:
    """``prepared`` with all compressed that can be, nothing in more blocks, on the main unit: no choice."""
    return replace(prepared, step=replace(prepared.step, forms=None), profile=prepared.profile.on(None))


def as_chosen(
    prepared: Prepared, limits: Limits, options: SolveOptions, problem: Problem, solution: Solution
) -> tuple[Prepared, Solution]:
    """``prepared`` with the choice that ``solution`` of the offered ``problem`` made, and its solution.

    Without a plan, ``prepared`` itself, and what would help if all alternatives are taken.
    """
    if not (problem.alternatives or problem.chooses_units):
        return prepared, solution
    schedule = solution.schedule
    if schedule is None:
        every = {each.name for each in problem.alternatives}
        told = explained(problem.resolved(every).at_least(), limits, options, solution)
        if told.schedule is None:
            return prepared, told
        if problem.chooses_units:  # a plan on the best of all units at once is none
            return prepared, solution
        bound_joules = min(told.bound_joules, relaxed(problem).problem.compute_joules)
        solution, schedule = (
            replace(told, bound_joules=bound_joules),
            with_names(problem, every, told.schedule),
        )
    taken = taken_by(problem, schedule)
    forms = [each for each in problem.alternatives if each.name in taken and not each.ops]
    pages = {tensor.name: tensor for each in forms for tensor in each.tensors}
    if _forms(prepared, limits) is None:
        chosen = prepared
    else:
        chosen = with_choice(prepared, taken.difference(each.name for each in forms))
    decided_on, schedule = placed_by(problem.resolved(taken), without_names(schedule))
    if problem.chooses_units:
        chosen = replace(chosen, problem=decided_on)
    elif pages:
        tensors = tuple(pages.get(tensor.name, tensor) for tensor in chosen.problem.tensors)
        chosen = replace(chosen, problem=replace(chosen.problem, tensors=tensors))
    return replace(chosen, offered=problem), replace(solution, schedule=schedule)


def solve_choosing(
    prepared: Prepared, limits: Limits, options: SolveOptions, search: Search | None = None
) -> tuple[Prepared, Solution]:
    """Search the schedule and the forms of its ops: the step with that choice, and its solution.

    ``options`` are those of the ``search`` alone (see `poet.planning.arena.searching`), which is
    `answered_beside` where none is given.
    """
    search = search or partial(answered_beside, in_whole_pages=is_mapped(prepared.kernels))
    prepared = with_room(prepared, limits, options.objective)
    problem = offered(prepared, limits)
    likely = weighed(problem, limits, options.objective)
    solution = search(likely, limits, options)
    if solution.status is Status.INFEASIBLE and likely != problem:  # which is no proof for what was left out
        left_seconds = options.time_limit_seconds
        if left_seconds is not None:
            left_seconds = max(left_seconds - solution.solve_seconds, left_seconds / 2)
        solution = search(problem, limits, replace(options, time_limit_seconds=left_seconds))
    return as_chosen(prepared, limits, options, problem, solution)


# --- beside a page buffer ---------------------------------------------------------------------


def less_page_buffer(limits: Limits, *, in_whole_pages: bool = False) -> Limits:
    """``limits`` less the page buffer; as they are where none page, or are too little for a buffer.

    ``in_whole_pages``: less two pages as well, one for each part of an arena that the system maps: a plan
    that fills what is left to the last byte has no arena.
    """
    if limits.ram_budget_bytes is None or not limits.paging:
        return limits
    buffer_bytes = least_page_buffer_bytes(limits.ram_budget_bytes)
    lost_bytes = 2 * PAGE_BYTES if in_whole_pages and buffer_bytes else 0
    return replace(limits, ram_budget_bytes=limits.ram_budget_bytes - buffer_bytes - lost_bytes)


def answered_beside(
    problem: Problem, limits: Limits, options: SolveOptions, *, in_whole_pages: bool = False
) -> Solution:
    """`poet.solvers.search.explain.answered` for plans whose arena lies beside the page buffer if they page.

    Where the answer is of a search beside the buffer, the scope of its bound says so, and
    `Solution.bound_ram_bytes`: a schedule that uses the buffer's bytes as well may take less, but has no
    arena if it pages.

    Args:
        problem: that is searched.
        limits: of the budget.
        options: of all searches together.
        in_whole_pages: whether an arena takes whole pages, of which those that page leave two where they can.
    """
    stage("search")
    within = less_page_buffer(limits, in_whole_pages=in_whole_pages)
    if not has_schedules(problem, within):
        within = less_page_buffer(limits)
    if within == limits or not has_schedules(problem, within):
        return answered(problem, limits, options)
    if not has_schedules(problem, replace(limits, paging=False)):
        return _beside(answered(problem, within, options), limits, within)
    if options.objective is not Objective.ENERGY:
        return answered(problem, limits, options)
    return _answered_after_a_look(problem, limits, within, options)


def _answered_after_a_look(
    problem: Problem, limits: Limits, within: Limits, options: SolveOptions
) -> Solution:
    """The answer at the whole budget where its plan needs no page buffer, else ``within`` what is left."""
    began, seconds = options.clock.now(), LOOK_SHARE * min(60.0, options.time_limit_seconds or 60.0)
    look = solve(problem, limits, replace(options, time_limit_seconds=seconds))
    is_whole = look.schedule is None or look.trace is None or not is_paged(look.schedule)
    if look.trace is not None and within.ram_budget_bytes is not None:
        is_whole = is_whole or look.trace.peak_ram_bytes <= within.ram_budget_bytes
    if look.was_interrupted or (is_whole and look.status is Status.OPTIMAL):
        return look
    inside, bound = limits if is_whole else within, options.start.bound
    if look.schedule is not None and (
        bound is None or not bound.holds_for(problem, limits) or bound.joules < look.bound_joules
    ):
        bound = KnownBound(problem, limits, look.bound_joules)
    start, least_joules = Start(), math.inf
    for each in (options.start, Start(look.schedule, look.solver)):
        with contextlib.suppress(InvalidSchedule):
            joules = math.inf if each.schedule is None else simulate(problem, each.schedule, inside).joules
            start, least_joules = (each, joules) if joules < least_joules else (start, least_joules)
    spent_seconds, left_seconds = options.clock.now() - began, options.time_limit_seconds
    if left_seconds is not None:
        left_seconds = max(left_seconds - spent_seconds, 0.0)
    rest = replace(options, start=replace(start, bound=bound), time_limit_seconds=left_seconds)
    answer = answered(problem, inside, rest)
    found = look if answer.schedule is None and look.schedule is not None else answer
    found = replace(
        found,
        solve_seconds=options.clock.now() - began,
        was_interrupted=answer.was_interrupted,
        record=joined(look.record, answer.record, after_seconds=spent_seconds),
    )
    return found if is_whole or found.schedule is look.schedule else _beside(found, limits, within)


def bounded_limits(solution: Solution, limits: Limits) -> Limits:
    """Those that the bound of a solution of `answered_beside` holds for whether a plan pages or not."""
    if solution.bound_ram_bytes is None:
        return limits
    return replace(limits, ram_budget_bytes=solution.bound_ram_bytes)


def _beside(solution: Solution, limits: Limits, within: Limits) -> Solution:
    """A solution for plans that page ``within`` the budget of ``limits``, whose bound or message says so."""
    assert limits.ram_budget_bytes is not None
    buffer = format_bytes(least_page_buffer_bytes(limits.ram_budget_bytes))
    if solution.schedule is None:
        what = f"Every plan {IN_ORDER} pages, and {buffer} of the budget are for the page buffer."
        return replace(solution, message=" ".join(filter(None, (what, solution.message))))
    pages = "" if within == less_page_buffer(limits) else " in whole pages"
    scope = f"{solution.bound_scope} beside a page buffer of {buffer}{pages}"
    return replace(solution, bound_scope=scope, bound_ram_bytes=within.ram_budget_bytes)
