"""Which tensors a plan saves for backward in short form: offered to the search as alternatives, and chosen.

A short form takes less RAM and more work, by as much as the device's profile says: where there is RAM for the
long forms, a plan keeps them. Steps of micro-batches, and plans for several budgets in one file, compute one
graph, in which all that can be is in short form.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from poet.alternatives import taken_by, without_names
from poet.devices.costs import build_problem, kernels_on
from poet.graph import Graph
from poet.kernel_facts import KernelFacts
from poet.planning.beside_buffer import answered_beside
from poet.planning.prepared import Prepared
from poet.problem import Alternative, Limits, Pins, Problem
from poet.solution import Solution, SolveOptions
from poet.solvers.search.explain import explained

if TYPE_CHECKING:
    from poet.frontend.packed_saves import Change


def offered(prepared: Prepared, limits: Limits) -> Problem:
    """The problem of ``prepared`` with its short forms as alternatives; itself where nothing is to choose.

    Nothing is where pins name tensors: these have to be there.
    """
    forms, short = prepared.step.forms, prepared.problem
    if forms is None or prepared.micro is not None or limits.pins != Pins():
        return short
    is_own = prepared.step.kernels == forms.short_kernels
    if (
        not is_own or _problem(prepared, forms.short, forms.short_kernels) != short
    ):  # somebody has costs of his own
        return short
    long = _problem(prepared, forms.long, forms.long_kernels)
    alternatives = (_alternative(name, change, short) for name, change in forms.changes.items())
    return replace(long, alternatives=tuple(alternatives))


def _problem(prepared: Prepared, graph: Graph, host_kernels: KernelFacts) -> Problem:
    """Of another graph, on the device of ``prepared`` and with its storage."""
    kernels = kernels_on(prepared.profile, graph, host_kernels)
    found = build_problem(graph, prepared.profile, kernels, home=prepared.home)
    return replace(found, storage_capacity_bytes=prepared.problem.storage_capacity_bytes)


def _alternative(name: str, change: Change, short: Problem) -> Alternative:
    new = {value.buffer for value in change.packed}
    return Alternative(
        name,
        ops=tuple(op for op in short.ops if op.name in change.ops),
        omits=tuple(op for op, form in change.ops.items() if form is None),
        tensors=tuple(tensor for tensor in short.tensors if tensor.name in new),
    )


def with_choice(prepared: Prepared, taken: Collection[str]) -> Prepared:
    """``prepared`` with short forms of what the ops in ``taken`` make, and long forms of everything else."""
    forms = prepared.step.forms
    assert forms is not None
    graph, host_kernels = forms.graph(taken), forms.kernels(taken)
    return replace(
        prepared,
        step=replace(prepared.step, graph=graph, kernels=host_kernels, forms=None),
        kernels=kernels_on(prepared.profile, graph, host_kernels),
        problem=_problem(prepared, graph, host_kernels),
    )


def without_choice(prepared: Prepared) -> Prepared:
    """``prepared`` with all in short form that can be, and nothing to choose."""
    return replace(prepared, step=replace(prepared.step, forms=None))


def as_chosen(
    prepared: Prepared, limits: Limits, options: SolveOptions, problem: Problem, solution: Solution
) -> tuple[Prepared, Solution]:
    """``prepared`` with the choice that ``solution`` of the offered ``problem`` made, and its solution.

    Without a plan, ``prepared`` itself, and what would help if all is in short form.
    """
    if not problem.alternatives:
        return prepared, solution
    if solution.schedule is None:
        return prepared, explained(prepared.problem, limits, options, solution)
    chosen = replace(with_choice(prepared, taken_by(problem, solution.schedule)), offered=problem)
    return chosen, replace(solution, schedule=without_names(solution.schedule))


def solve_choosing(prepared: Prepared, limits: Limits, options: SolveOptions) -> tuple[Prepared, Solution]:
    """Search the schedule and what it saves in short form: the step with that choice, and its solution.

    ``options`` are those of the search alone, see `poet.planning.fit_layout.searching`.
    """
    problem = offered(prepared, limits)
    solution = answered_beside(problem, limits, options)
    return as_chosen(prepared, limits, options, problem, solution)
