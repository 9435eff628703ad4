"""C text of the numbers that an optimizer computes again for each step."""

from __future__ import annotations

from poet.c99.calls import float_text
from poet.errors import PlanError
from poet.optimizer import OptimizerSpec

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
