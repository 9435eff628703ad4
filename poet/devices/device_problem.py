"""The planning problem of a training step on a device: its graph, with what each part costs there.

No torch: the graph's types and the profile's figures are all it takes.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from poet.devices.cost_table import Amounts
from poet.devices.costs import BufferCost, OpCost, estimate
from poet.devices.profile import OpUnit, Profile
from poet.devices.rough_pages import with_forms
from poet.errors import InputError, ProfileError
from poet.ir.graph import Buffer, Graph, Op
from poet.ir.kernel_facts import KernelFacts, stated
from poet.problem import Handing, OnUnit, PageForm, Place, Problem, ProblemOp, Tensor, Unit
from poet.util.units import parse_factor, parse_seconds


def kernels_on(profile: Profile, graph: Graph, measured: KernelFacts, *others: KernelFacts) -> KernelFacts:
    """The facts of the kernels that run ``graph`` on ``profile``'s device.

    The workspace that the profile states for every op, with a strip's block beside it; else the facts of the
    profile's library; else, where there are none, the workspaces of the ``measured`` one.
    """
    library, workspace = profile.kernels.name, profile.kernels.workspace_bytes
    if workspace is not None:
        blocks = {op.name: 0 if op.strip is None else op.strip.block_bytes for op in graph.ops}
        return stated(library, blocks, workspace_bytes=workspace.value)
    known = {facts.library: facts for facts in (*others, measured)}
    return known.get(library) or measured.workspaces_as(library)


def build_problem(
    graph: Graph,
    profile: Profile,
    kernels: KernelFacts,
    *,
    home: Place = Place.RAM,
    page_forms: Collection[PageForm] = (),
) -> Problem:
    """The planning problem of one training step of ``graph`` on ``profile``'s device.

    Args:
        graph: the training step.
        profile: of the device.
        kernels: whose workspaces are counted; see `kernels_on`.
        home: where parameters, optimizer state, module state and constants are between steps. At
            home in RAM, those that no op updates have a valid copy in storage as well. `Place.EITHER`:
            as the plan chooses, one by one.
        page_forms: in which what is paged may be rounded; see `poet.devices.rough_pages`.

    Raises:
        ProfileError: ``home`` is storage and the device has none.
        UnsupportedOperator: the cost of an op is not known.
    """
    home = _home_on(profile, home)
    costs = estimate(graph, profile)
    kept = {graph.buffer_of(value) for value in (graph.loss, *graph.predictions)}
    updated = {name for op in graph.ops for name in op.updates}
    persistent = graph.persistent()
    in_flash = graph.in_flash(kernels.library)
    places = {
        buffer.name: _places(
            home,
            persistent=buffer.name in persistent,
            updated=buffer.name in updated,
            kept=buffer.name in kept,
            stored=profile.storage is not None,
        )
        for buffer in graph.buffers
    }
    storage = profile.storage
    problem = Problem(
        name=graph.name,
        source=f"poet's cost model for {profile.title}",
        tensors=tuple(
            _tensor(buffer, costs.buffers[buffer.name], *places[buffer.name])
            if buffer.name not in in_flash
            else Tensor(buffer.name, 0, role=buffer.role.value, finally_=Place.RAM)
            for buffer in graph.buffers
        ),
        ops=tuple(
            _problem_op(graph, op, costs.ops[op.name], kernels.of(op.name).workspace_bytes)
            for op in graph.ops
        ),
        alignment_bytes=profile.memory.alignment_bytes.value,
        idle_watts=profile.charged_idle_watts,
        background_storage=storage is not None and storage.transfers == "background",
        storage_capacity_bytes=storage.capacity_bytes.value if storage and storage.capacity_bytes else None,
        kernels=kernels.library,
    )
    return with_forms(problem, graph, profile, page_forms)


def _home_on(profile: Profile, home: Place) -> Place:
    if home is Place.BOTH:
        raise InputError("between steps parameters are in ram or in storage, not in both")
    if home is Place.STORAGE and profile.storage is None:
        raise ProfileError(f"{profile.name} has no storage for parameters to live in; keep them in RAM")
    return Place.RAM if profile.storage is None else home


def with_units(
    problem: Problem, graph: Graph, profile: Profile, amounts: dict[str, Amounts] | None = None
) -> Problem:
    """``problem``, of ``graph`` on the main unit, with what its ops take on the others of ``profile``.

    Ops that read rows in storage stay on the main one.
    """
    costs = {unit.name: estimate(graph, profile.on(unit), amounts).ops for unit in profile.units}

    def on(op: ProblemOp) -> tuple[OnUnit, ...]:
        return tuple(
            OnUnit(name, each[op.name].seconds, each[op.name].joules)
            for name, each in costs.items()
            if not op.stored
        )

    return replace(
        problem,
        ops=tuple(replace(op, on=on(op)) for op in problem.ops),
        units=tuple(Unit(unit.name, _handing(unit, profile), unit.threads) for unit in profile.units),
    )


def _handing(unit: OpUnit, profile: Profile) -> Handing | None:
    own = unit.handing
    if own is None:
        return None
    watts = profile.marginal_watts((own.active_watts or unit.compute.active_watts).value)
    latency, byte = own.latency_seconds.value, 1.0 / own.bandwidth_bytes_per_second.value
    return Handing(latency, latency * watts, byte, byte * watts)


def _places(
    home: Place, *, persistent: bool, updated: bool, kept: bool, stored: bool
) -> tuple[Place | None, Place | None]:
    """Where a buffer is when the step begins and where its last content must be when it ends.

    What is handed to the caller, ``kept``, ends in RAM, and a parameter among it is at home there.
    """
    if not persistent:
        return None, Place.RAM if kept else None
    if home is Place.STORAGE and not kept:
        return Place.STORAGE, Place.STORAGE if updated else None
    if home is Place.EITHER and not kept:
        return Place.EITHER, None
    return Place.BOTH if stored and not updated else Place.RAM, Place.RAM


def _tensor(buffer: Buffer, cost: BufferCost, initially: Place | None, finally_: Place | None) -> Tensor:
    return Tensor(
        name=buffer.name,
        bytes=buffer.size_bytes,
        page_in=cost.page_in,
        page_out=cost.page_out,
        role=buffer.role.value,
        initially=initially,
        finally_=finally_,
        stored_bytes=cost.stored_bytes,
        move=cost.move,
    )


def _problem_op(graph: Graph, op: Op, cost: OpCost, workspace_bytes: int) -> ProblemOp:
    updates = tuple(name for name in op.updates if name not in op.stored)
    inputs = tuple(dict.fromkeys((*graph.reads(op.call), *updates)))
    rerun = graph.reads(op.recall) if op.recall is not None else None
    return ProblemOp(
        name=op.name,
        inputs=inputs,
        outputs=graph.writes(op),
        seconds=cost.seconds,
        joules=cost.joules,
        workspace_bytes=workspace_bytes,
        updates=updates,
        recompute_inputs=rerun if rerun is not None and rerun != inputs else None,
        recomputable=rerun is not None,
        random=op.random,
        stored=op.stored,
        stored_reads=cost.stored_reads,
        stored_read_bytes=cost.stored_read_bytes,
        stored_updates=tuple(name for name in op.updates if name in op.stored),
        stored_writes=cost.stored_writes,
        stored_written_bytes=cost.stored_written_bytes,
    )


def deadline_seconds(text: str, problem: Problem) -> float:
    """The deadline in ``"1.3x"``, relative to running every op of ``problem`` once, or in ``"20ms"``.

    Raises:
        InputError: ``text`` is neither.
    """
    factor = parse_factor(text)
    try:
        seconds = parse_seconds(text) if factor is None else factor * problem.compute_seconds
    except InputError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InputError(f"{text!r} is not a deadline; write for example 1.3x or 20ms")
    return seconds
