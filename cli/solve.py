"""``poet solve``: a plan for a model on a device, or an answer to a saved planning problem."""

from __future__ import annotations

from dataclasses import replace

from poet.errors import InputError
from poet.files.kinds import FileKind, expect
from poet.ir.micro import micro_batches
from poet.problem import Objective
from poet.problem.progress import showing

from .ask import Ask
from .options import takes
from .output import check_files, check_log, listening

EXAMPLES = (
    "poet solve model.onnx --device rpi4b",
    "poet solve model.onnx --device rpi4b --ram 64MiB --deadline 1.3x -o plan.poet",
    "poet solve model.onnx --device rpi4b --ram 64MiB --batch 32 --micro auto -o plan.poet",
    "poet solve model.onnx --device rpi4b --ram 64MiB --shape N=1,8,32 -o plan.poet",
    "poet solve model.onnx --device rpi4b --ram 1MiB --energy-budget 20mJ --choose scores.toml --most",
    "poet solve problem.json --ram 256KiB --compare --json answer.json",
    "poet solve problem.json --ram 256KiB --minimise time --energy-budget 2mJ --keep 'layer1.*'",
    "poet solve problem.json --trade-off ram,energy",
)


@takes(Ask)
def solve(ask: Ask) -> None:
    """Find the schedule of least energy inside a RAM budget and a deadline.

    Without --ram it tells what training needs when everything is kept, the least that any schedule
    needs, and what budgets between them cost. Ctrl-C ends the search and keeps the best plan.
    """
    _check_paths(ask)
    _check_together(ask)
    is_problem = ask.model.suffix == ".json"
    if is_problem:
        _refuse_what_is_of_models(ask)
    else:
        _check_model(ask)
    from .search import solve_model, solve_problem

    limit_seconds = ask.time_limit_seconds
    with (
        listening(verbose=ask.verbose, file=ask.log),
        showing(not ask.verbose, objective=ask.minimise, limit_seconds=limit_seconds) as progress,
    ):
        ask = replace(ask, progress=progress)
        if is_problem:
            solve_problem(ask)
        else:
            solve_model(ask)


def _check_paths(ask: Ask) -> None:
    """Refuse what could not be written, or would destroy something."""
    from poet.devices.load import profile_path

    check_log(ask.log)
    check_files(
        {"-o": ask.output, "--json": ask.json_file, "--log": ask.log},
        reads={
            "--device": None if ask.device is None else profile_path(ask.device),
            "--names": ask.names,
            "--weights": ask.weights,
            "--choose": ask.choose,
            "--storage": None if ask.part is None else profile_path(ask.part),
        },
        model=ask.model,
    )


def _check_together(ask: Ask) -> None:
    """Refuse options that make no sense without another, or beside one."""
    if ask.points is not None and ask.trade_off is None:
        raise InputError("--points is of --trade-off, e.g. --trade-off ram,energy --points 12")
    if ask.trade_off is not None and ask.output is not None:
        raise InputError("--trade-off makes no plan; solve with the RAM of a point and -o for that")
    if ask.compare and ask.ram is None:
        raise InputError("--compare needs --ram: planners are compared inside one budget, e.g. --ram 256KiB")


def _refuse_what_is_of_models(ask: Ask) -> None:
    """Refuse options that a planning problem does not take."""
    problem, option = ask.model.name, ask.option_of_models()
    if ask.budgets:
        raise InputError(f"several budgets in --ram are for a model; {problem} is a planning problem")
    if option is not None:
        raise InputError(f"{option} is for a model; {problem} is a planning problem")


def _check_choice(ask: Ask) -> None:
    """Refuse a choice of what to train that no plan follows from."""
    is_plan = ask.ram is not None and not ask.compare and ask.trade_off is None
    if ask.choose is not None and not (is_plan and ask.minimise is Objective.ENERGY):
        raise InputError(
            "--choose plans inside --ram: give that, and no --compare, --trade-off or --minimise"
        )


def _check_model(ask: Ask) -> None:
    """Refuse a file of another kind, and a model of which too little is said."""
    expect(ask.model, FileKind.ONNX, FileKind.EXPORTED, FileKind.PROBLEM)
    if ask.device is None:
        raise InputError("a model needs --device; `poet devices list` shows the names, e.g. --device rpi4b")
    if ask.ram is None and ask.output is not None and ask.minimise is not Objective.RAM:
        raise InputError("a plan (-o) needs --ram; without it poet only surveys budgets")
    if ask.budgets and ask.trade_off is not None:
        raise InputError("--trade-off shows a curve and makes no plan; give one budget in --ram")
    if ask.shape and ask.micro is not None:
        raise InputError("--shape and --micro are not planned together; leave one out")
    _check_choice(ask)
    more = ask.compare or ask.trade_off is not None
    if isinstance(micro_batches(ask.micro), str) and (ask.ram is None or more):
        raise InputError("--micro auto plans inside one budget: give --ram, and no --compare or --trade-off")
