"""`poet.what_if`: from a question to a sweep and its answers, in the order of the data; the sweep as a file.

result = poet.what_if("model.onnx", device="rpi4b,nrf52840", ram="64MiB..512MiB:8", deadline="1.0x..2.0x")
print(result.answers[0].sentence)
"""

from __future__ import annotations

import csv
import io
import logging
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poet.devices.profile import Profile
from poet.errors import one_of, spelled_out
from poet.ir.loss import DEFAULT_LOSS
from poet.ir.micro import MicroBatches
from poet.ir.optimizer import OptimizerSpec
from poet.ir.strips import Gradients
from poet.planning.cache import Cache, users_cache
from poet.problem import Limits, Place
from poet.problem.solution import SolveOptions
from poet.util import codec
from poet.version import __version__
from poet.whatif import grid
from poet.whatif.answers import answers_of, choose
from poet.whatif.further import largest_answer, marginals_of
from poet.whatif.grid import SECONDS_PER_POINT, DataSupply, Duty, Question
from poet.whatif.models import TrainedAs
from poet.whatif.result import (
    COLUMNS,
    Answer,
    DataStall,
    Marginal,
    Origin,
    Setting,
    Usage,
    WhatIf,
    attributes,
)
from poet.whatif.settings import DEFAULT_OPTIMIZER, WHOLE, Asked, grid_of, profiles_of, specs_of
from poet.whatif.sweep import Report, Sweep
from poet.whatif.usage import data_stall, fetch_seconds, usage_of
from poet.whatif.workers import Solver, Workers, default_jobs, working

if TYPE_CHECKING:
    from torch import nn

    from poet.whatif.models import Inputs

_log = logging.getLogger(__name__)

DEFAULT_RAM = "min..keep"


def what_if(
    model: str | Path | nn.Module,
    example_inputs: Inputs | None = None,
    *,
    device: str | Path | Profile | Sequence[str | Path | Profile] = (),
    ram: str = DEFAULT_RAM,
    deadline: str | None = None,
    batch: str | Sequence[int] | None = None,
    bind: Sequence[str] = (),
    optimizer: str | OptimizerSpec | Sequence[str | OptimizerSpec] = DEFAULT_OPTIMIZER,
    micro: str | int | MicroBatches | Sequence[str | int | MicroBatches] | None = 1,
    loss: str = DEFAULT_LOSS,
    train: Iterable[str] | None = None,
    home: Place = Place.RAM,
    gradients: str = Gradients.STREAM.value,
    recompute: bool = True,
    paging: bool = True,
    duty: Duty | None = None,
    data: DataSupply | None = None,
    largest: Sequence[str] = (),
    marginal: bool = True,
    options: SolveOptions | None = None,
    jobs: int | None = None,
    cluster: str | None = None,
    worker_memory_bytes: int | None = None,
    cache: str | Path | None = "",
    report: Report | None = None,
    command: str = "",
) -> WhatIf:
    """Sweep devices, RAM, deadlines, batch sizes, micro-batches and optimizers, and answer what they mean.

    Args:
        model: path of an ONNX file, a saved plan (.poet) or a saved problem (.json), or a module.
        example_inputs: for a module: tensors, or a function from a batch size to tensors.
        device: profiles by name, file or record; several in a list or with commas between.
        ram: budgets, e.g. ``"64MiB..512MiB:8"`` or ``"min..keep"``.
        deadline: e.g. ``"1.0x..2.0x"``, ``"20ms,none"``; ``None``: no deadline.
        batch: batch sizes, e.g. ``"1,4,16"``.
        bind: sizes of an ONNX file's dynamic dimensions, e.g. ``["L=64,128"]``.
        optimizer: one or several.
        micro: in how many micro-batches each batch is trained, e.g. ``"1,4,4:sum"`` or ``"auto"``, every
            number that divides it; of a module, batches are those of its inputs. ``None``: whole batches.
        loss: as of `poet.plan`.
        train: likewise.
        home: likewise.
        gradients: likewise.
        recompute: whether ops may run again.
        paging: whether tensors may move to storage.
        duty: how the device is used: sessions, battery, energy budget, carbon.
        data: how input comes to the processor, for data stalls.
        largest: of what to find the largest size that fits: ``"batch"``, ``"sequence"``,
            ``"resolution"`` or names of dimensions, ``"H+W"`` for two that grow together.
        marginal: whether to solve again for what more RAM, flash and time would buy.
        options: of every search; default: 5 seconds each.
        jobs: local worker processes; default: one per processor.
        cluster: the address of a Dask scheduler, in place of local processes.
        worker_memory_bytes: that one local worker may take.
        cache: folder of answers; default: the user's cache folder; ``None``: keep nothing.
        report: called with the progress.
        command: the line that repeats the sweep, for reports.

    Ctrl-C ends the sweep; what is there is answered, and `WhatIf.complete` is false.

    Raises:
        InputError: the model, a device, an axis or the cluster is not usable.
    """
    started = time.monotonic()
    asked = Asked(
        model=model,
        example_inputs=example_inputs,
        profiles=profiles_of(device),
        specs=specs_of(optimizer),
        how=TrainedAs(
            loss,
            None if train is None else tuple(train),
            one_of(Gradients, gradients, "gradients").value,
        ),
        batch=batch if batch is None or isinstance(batch, str) else ",".join(map(str, batch)),
        bind=tuple(bind),
        axes=tuple(grid.read_axis(text) for text in largest),
        home=home,
        cache=users_cache() if cache == "" else Cache(None if cache is None else Path(cache)),
        workers=Workers(jobs or default_jobs(), cluster, worker_memory_bytes),
        micro=_micro_of(micro),
    )
    grid.ram_budgets(ram, least_bytes=1, keep_bytes=2)  # refused before the work begins
    deadlines = grid.deadlines(deadline)
    settings = asked.settings()
    if data is not None:
        for setting in settings:
            fetch_seconds(data, setting)  # refused before the work where no profile describes the storage
    question = Question(
        **asked.told(settings),
        command=command,
        ram=ram,
        deadlines=deadlines,
        recompute=recompute,
        paging=paging,
        duty=duty or Duty(),
        data=data,
        options=replace(options or SolveOptions(time_limit_seconds=SECONDS_PER_POINT), progress=None),
    )
    return _swept(asked, question, settings, started, report, marginal=marginal)


def _micro_of(
    micro: str | int | MicroBatches | Sequence[str | int | MicroBatches] | None,
) -> tuple[MicroBatches | str | None, ...]:
    """The micro-batches that are asked about, each once; several in a list or with commas between.

    Raises:
        InputError: something else is given.
    """
    if micro is None:
        return WHOLE
    several = micro if isinstance(micro, Sequence) and not isinstance(micro, str) else (micro,)
    return grid.micro(",".join(map(str, several)))


def _swept(
    asked: Asked,
    question: Question,
    settings: list[Setting],
    started: float,
    report: Report | None,
    *,
    marginal: bool,
) -> WhatIf:
    """The sweep, its usages, and its answers; after Ctrl-C those that what is there allows."""
    grids = [grid_of(setting, question) for setting in settings]
    sweep = Sweep(settings, grids, question.options, asked.cache, jobs=asked.workers.jobs, report=report)
    marginals: tuple[Marginal, ...] = ()
    sizes: tuple[Answer, ...] = ()
    with working(asked.workers) as run:
        finished = sweep.run(run)
        result = _result(question, settings, sweep)
        solver = Solver(question.options, asked.cache, run)
        try:
            if finished and marginal and result.chosen is not None:
                _log.info("what more RAM, flash and time buy begins")
                marginals = marginals_of(result, result.highlighted(), solver)
            if finished and asked.axes:
                sizes = tuple(_largest(asked, question, solver))
        except KeyboardInterrupt:
            finished = False
    seconds = time.monotonic() - started
    result = replace(result, marginals=marginals, complete=finished, sweep_seconds=seconds)
    return replace(result, answers=(*answers_of(result), *sizes))


def _result(question: Question, settings: list[Setting], sweep: Sweep) -> WhatIf:
    """The sweep as a record, without answers."""
    swept = sweep.swept()
    origins = [point.origin for point in swept.points]
    stalls: dict[int, DataStall] = {}
    usages: list[Usage | None] = []
    for index, point in enumerate(swept.points):
        if point.plan is None:
            usages.append(None)
            continue
        plan, setting = swept.plans[point.plan], settings[point.setting]
        waits = (0.0, 0.0)
        if question.data is not None:
            stall = stalls[index] = data_stall(index, plan, setting, question.data)
            waits = stall.stall_seconds, stall.stall_joules
        usages.append(usage_of(plan, setting, question.duty, *waits))
    result = WhatIf(
        question=question,
        settings=tuple(settings),
        points=swept.points,
        plans=swept.plans,
        usages=tuple(usages),
        stalls=(),
        marginals=(),
        answers=(),
        chosen=None,
        complete=False,
        sweep_seconds=0.0,
        searched=origins.count(Origin.SEARCH),
        from_cache=origins.count(Origin.CACHE),
        by_monotonicity=origins.count(Origin.NEIGHBOUR) + origins.count(Origin.ARITHMETIC),
    )
    result = replace(result, chosen=choose(result))
    return replace(result, stalls=tuple(stalls[index] for index in result.highlighted() if index in stalls))


def _largest(asked: Asked, question: Question, solver: Solver) -> Iterator[Answer]:
    """For each axis and device the largest size in the largest budget and the latest deadline."""
    deadlines = question.deadlines
    fixed = question.bindings[0] if question.bindings else ()
    with working(Workers(1)) as run:
        for axis in asked.axes:
            for profile in asked.profiles:
                variant_of = asked.variant_by_size(axis, profile, fixed, run)
                _log.info("the largest %s on %s begins", axis.name, profile.name)
                yield largest_answer(
                    axis,
                    variant_of,
                    profile,
                    solver,
                    home=asked.home,
                    ram_budget_bytes=grid.largest_ram(question.ram) or profile.memory.ram_bytes.value,
                    deadline=None if None in deadlines else deadlines[-1],
                    permissions=Limits(recompute=question.recompute, paging=question.paging),
                )


# --- CSV and JSON -----------------------------------------------------------------------------

FORMAT = "poet-what-if"
FORMAT_VERSION = 1
_OPTIONS = ("time_limit_seconds", "engine", "threads", "seed", "relative_gap", "overhead_gap")


def to_csv(result: WhatIf) -> str:
    """The rows as CSV with a header; an infinite flash life is ``inf``."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in result.rows():
        writer.writerow({key: spelled_out(x) if isinstance(x, str) else x for key, x in row.items()})
    return text.getvalue()


def to_json(result: WhatIf) -> dict[str, Any]:
    """JSON-ready objects: the question, the settings, the rows, the answers, and the plans they refer to.

    An infinite number, such as the life of a flash that nothing is written to, is ``null`` here.
    """
    options = {name: getattr(result.question.options, name) for name in _OPTIONS}
    spoken_of = {index for answer in result.answers for index in answer.points}
    shown = sorted({plan for index in spoken_of if (plan := result.points[index].plan) is not None})
    data = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "poet": __version__,
        "question": asdict(result.question) | {"options": options},
        **attributes(
            result, ("complete", "sweep_seconds", "searched", "from_cache", "by_monotonicity", "chosen")
        ),
        "settings": [_setting(setting) for setting in result.settings],
        "points": result.rows(),
        "answers": [
            {**asdict(answer), "basis": answer.basis.name.lower(), "figures": dict(answer.figures)}
            for answer in result.answers
        ],
        "marginals": [asdict(marginal) for marginal in result.marginals],
        "stalls": [asdict(stall) for stall in result.stalls],
        "schedules": {str(number): codec.encode(result.plans[number].schedule) for number in shown},
        "accumulating_schedules": {
            str(number): codec.encode(made)
            for number in shown
            if (made := result.plans[number].accumulating) is not None
        },
    }
    return {key: _finite(item) for key, item in data.items()}


def _setting(setting: Setting) -> dict[str, Any]:
    figures = ("device", "device_title", "batch", "optimizer")
    totals = ("compute_seconds", "compute_joules", "keep_everything_bytes")
    return {
        **attributes(setting, figures),
        "binding": dict(setting.binding),
        "micro": setting.micro_text,
        "ops": len(setting.problem.ops),
        "tensors": len(setting.problem.tensors),
        **attributes(setting, totals),
        "lower_bound_bytes": setting.lower_bound.bytes,
        "kernels": setting.problem.kernels,
    }


def _finite(value: Any) -> Any:
    """``value`` with ``None`` for what JSON has no number for."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
