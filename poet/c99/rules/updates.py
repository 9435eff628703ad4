"""Optimizers in C: updates, alone and joined to the gradient that they use, and the numbers of a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from poet.c99.calls import Address, CCall, CStruct, OpRun, Update, float_text, pointwise
from poet.errors import PlanError
from poet.ir.graph import Symbol
from poet.ir.optimizer import OptimizerSpec

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


@dataclass(frozen=True, slots=True)
class _Kind:
    """An optimizer in C.

    Attributes:
        alone, applied: its functions on tensors, and on elements as they are made.
        states: places of what is kept, among the arguments of the update.
        numbers: places of the numbers of both functions.
        constants: from the run, what else both are given; the first in a record.
        flag: place of a truth, behind them.
    """

    alone: str
    applied: str
    states: tuple[int, ...]
    numbers: tuple[int, ...]
    constants: Callable[[OpRun], list[str]] | None = None
    flag: int | None = None


def _of_moments(run: OpRun) -> list[str]:
    beta1, beta2, eps = (run.number(index) for index in (7, 8, 9))
    return [run.float_text(number) for number in (1.0 - beta1, beta2, 1.0 - beta2, eps)]


_KINDS = {
    "poet.sgd": _Kind("poet_sgd", "poet_apply_sgd", (), (2, 3)),
    "poet.momentum": _Kind("poet_momentum", "poet_apply_momentum", (2,), (3, 4, 5, 6), flag=7),
    "poet.adamw": _Kind("poet_adamw", "poet_apply_adamw", (2, 3), (4, 5, 6), _of_moments),
}
APPLIED = frozenset(_KINDS)
"""Updates that may use a gradient as it is made."""


def updated(run: OpRun) -> list[CCall]:
    """One step of an optimizer."""
    kind = _KINDS[run.call.target]
    written = [run.tensor(place) for place in (0, *kind.states)]
    scalars = [_scalar(run, place) for place in kind.numbers]
    scalars += [] if kind.flag is None else [str(int(run.argument(kind.flag) is True))]
    calls = pointwise(run, kind.alone, written, [run.tensor(1)], *scalars)
    if kind.constants is None:
        return calls
    constants = kind.constants(run)
    return [
        replace(
            call,
            arguments=(
                *call.arguments[:-1],
                CStruct(f"{kind.alone}_shape", (str(call.arguments[-1]), *constants)),
            ),
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
    kind = _KINDS[update.call.target]
    numbers = [_scalar(update, place) for place in kind.numbers]
    numbers += [] if kind.constants is None else kind.constants(update)
    numbers += [] if kind.flag is None else [update.float_text(float(update.argument(kind.flag) is True))]
    parameter, gradient = update.dense(0), update.dense(1)
    if any(update.dense(place).type.strides != gradient.type.strides for place in kind.states):
        raise update.refuse("for a gradient whose elements do not lie as its parameter's")
    pointers = [*(update.dense(place).pointer() for place in kind.states), None, None][:2]
    return Update(kind.applied, (parameter.pointer(), *pointers), tuple(numbers))


def made_by(run: OpRun, index: int) -> bool:
    """Whether anything becomes of output ``index``."""
    return index in run.taken or (index < len(run.outputs) and run.outputs[index] is not None)


# --- the numbers of a step --------------------------------------------------------------------

DOUBLES = {"adamw": ("beta1_power", "beta2_power")}
"""Members of a net that are doubles, and begin as 1."""
FLOATS = {
    "sgd": (),
    "momentum": ("gradient_share",),
    "adamw": ("decay_factor", "step_size", "second_moment_correction"),
}
"""Members that are floats."""


def check_optimizer(spec: OptimizerSpec) -> None:
    """Refuse an optimizer whose numbers the C code does not make.

    Raises:
        PlanError: it is not SGD, SGD with momentum or AdamW, or it has parameter groups or amsgrad.
    """
    if spec.name not in FLOATS:
        raise PlanError(f"optimizer {spec.name} is none that the C code has; plan with {', '.join(FLOATS)}")
    if spec.has_maximum:
        raise PlanError("the C code has no amsgrad; plan without it")
    if spec.groups:
        raise PlanError("the C code has one learning rate; plan without parameter groups")


def scalars(spec: OptimizerSpec) -> str:
    """C text that makes the numbers of the step about to be made."""
    if spec.name == "momentum":
        rest = float_text(1 - spec.dampening)
        return f"    net->gradient_share = net->steps == 0u ? 1.0f : {rest};\n"
    if spec.name == "adamw":
        beta1, beta2 = spec.both_betas
        return (
            f"    net->beta1_power *= {beta1!r};\n"
            f"    net->beta2_power *= {beta2!r};\n"
            f"    net->decay_factor = (float)(1.0 - (double)net->learning_rate * {spec.decay!r});\n"
            "    net->step_size = (float)((double)net->learning_rate / (1.0 - net->beta1_power));\n"
            "    net->second_moment_correction = poet_sqrt((float)(1.0 - net->beta2_power));\n"
        )
    return ""


def functions_of_numbers(spec: OptimizerSpec) -> set[str]:
    """Names of the kernels that the text of `scalars` calls."""
    return {"poet_sqrt"} if spec.name == "adamw" else set()
