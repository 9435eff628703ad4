"""Rows of the optimizers' updates, alone and joined to the gradient that they use."""

from __future__ import annotations

from collections.abc import Callable

from poet.c99.calls import Address, CCall, CStruct, OpRun, Update, pointwise
from poet.ir.graph import Symbol

_UPDATE_SCALARS = {
    "lr": "net->learning_rate",
    "gradient_share": "net->gradient_share",
    "decay_factor": "net->decay_factor",
    "step_size": "net->step_size",
    "second_moment_correction": "net->second_moment_correction",
}


def _scalar(run: OpRun, index: int) -> str:
    """A number that the optimizer sets in each step, or that stays."""
    argument = run.argument(index)
    if isinstance(argument, Symbol) and argument.kind == "hyperparameter":
        if argument.name not in _UPDATE_SCALARS:
            raise run.refuse(f"for the hyperparameter {argument.name}")
        return _UPDATE_SCALARS[argument.name]
    return run.float_text(run.number(index))


def sgd(run: OpRun) -> list[CCall]:
    """One step of it."""
    scalars = (_scalar(run, 2), _scalar(run, 3))
    return pointwise(run, "poet_sgd", [run.tensor(0)], [run.tensor(1)], *scalars)


def momentum(run: OpRun) -> list[CCall]:
    """Likewise, with a moving mean of gradients."""
    scalars = [_scalar(run, index) for index in range(3, 7)]
    flag = str(int(run.argument(7) is True))
    written = [run.tensor(0), run.tensor(2)]
    return pointwise(run, "poet_momentum", written, [run.tensor(1)], *scalars, flag)


def _adamw_numbers(run: OpRun) -> list[str]:
    beta1, beta2, eps = (run.number(index) for index in (7, 8, 9))
    return [run.float_text(number) for number in (1.0 - beta1, beta2, 1.0 - beta2, eps)]


def adamw(run: OpRun) -> list[CCall]:
    """Likewise, with two moments and decay apart."""
    written = [run.tensor(0), run.tensor(2), run.tensor(3)]
    numbers = _adamw_numbers(run)
    scalars = [_scalar(run, index) for index in (4, 5, 6)]
    calls = pointwise(run, "poet_adamw", written, [run.tensor(1)], *scalars)
    return [
        CCall(
            call.function,
            (*call.arguments[:-1], CStruct("poet_adamw_shape", (str(call.arguments[-1]), *numbers))),
            call.loops,
        )
        for call in calls
    ]


def stored_at(place: Address) -> Update:
    """Elements that are stored, from this address on."""
    return Update("poet_apply_store", (place, None, None), ("0.0f",))


def use(run: OpRun, index: int = 0) -> Update:
    """What becomes of the elements of output ``index``: they are stored, or used by an update."""
    update = run.taken.get(index)
    if update is None:
        return stored_at(run.output(index).pointer())
    function, places, numbers = APPLIED[update.call.target](update)
    parameter, gradient = update.dense(0), update.dense(1)
    if any(update.dense(place).type.strides != gradient.type.strides for place in places):
        raise update.refuse("for a gradient whose elements do not lie as its parameter's")
    pointers = [*(update.dense(place).pointer() for place in places), None, None][:2]
    return Update(function, (parameter.pointer(), *pointers), tuple(numbers))


def made_by(run: OpRun, index: int) -> bool:
    """Whether anything becomes of output ``index``."""
    return index in run.taken or (index < len(run.outputs) and run.outputs[index] is not None)


Applied = tuple[str, tuple[int, ...], list[str]]
"""Function, places of the states among the arguments of the update, numbers."""


def _apply_sgd(run: OpRun) -> Applied:
    return "poet_apply_sgd", (), [_scalar(run, 2), _scalar(run, 3)]


def _apply_momentum(run: OpRun) -> Applied:
    flag = run.float_text(float(run.argument(7) is True))
    return "poet_apply_momentum", (2,), [*(_scalar(run, index) for index in range(3, 7)), flag]


def _apply_adamw(run: OpRun) -> Applied:
    return "poet_apply_adamw", (2, 3), [*(_scalar(run, index) for index in (4, 5, 6)), *_adamw_numbers(run)]


APPLIED: dict[str, Callable[[OpRun], Applied]] = {
    "poet.sgd": _apply_sgd,
    "poet.momentum": _apply_momentum,
    "poet.adamw": _apply_adamw,
}
