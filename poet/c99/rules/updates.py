"""Optimizers in C: updates, alone and joined to the gradient that they use, and the numbers of a step."""

from __future__ import annotations

from collections.abc import Callable

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
