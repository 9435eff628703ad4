"""How many instructions a planned step takes on a Cortex-M4F: what its calls do, times what each takes.

What each thing takes stands in ``instructions.toml``, as gcc 12 compiles the kernels at -O2; how it was found
stands there too. Cycles are counted nowhere: they are more, by what memory and pipeline make of them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from poet.c99.call_amounts import TRANSFERS, amounts_of
from poet.c99.calls import CCall
from poet.c99.statements import Statement, statements_of
from poet.plans.training_plan import Plan

FACTORS = Path(__file__).with_name("instructions.toml")
_RUN = "run"
CLASSES: Mapping[str, tuple[str, ...]] = {
    "convolution": ("poet_conv2d",),
    "convolution, to its input": ("poet_conv2d_backward_input", "poet_conv2d_scatter"),
    "convolution, to its weight": ("poet_conv2d_backward_weight",),
    "product of matrices": ("poet_matmul", "poet_matmul_images"),
    "product of matrices, to a weight": ("poet_matmul_gradient", "poet_matmul_gradient_narrow"),
    "norm": (
        "poet_batch_norm", "poet_batch_norm_fixed", "poet_norm_relu", "poet_group_norm", "poet_layer_norm"
    ),
    "norm, way back": (
        "poet_batch_norm_backward", "poet_norm_relu_backward", "poet_group_norm_backward",
        "poet_group_norm_gradients", "poet_layer_norm_backward", "poet_layer_norm_gradients",
    ),
    "sums": ("poet_sum_blocks", "poet_sum_apart", "poet_channel_sums"),
    "update": ("poet_sgd", "poet_momentum", "poet_adamw"),
    "transfer": TRANSFERS,
}  # fmt: skip
"""The C functions of each class of ops; those of `REST` are all others."""
REST = "element by element, pooling, loss"


@cache
def factors() -> Mapping[str, Mapping[str, float]]:
    """Instructions of each thing, by function."""
    found: dict[str, dict[str, float]] = tomllib.loads(FACTORS.read_text(encoding="utf-8"))
    return found


def call_instructions(call: CCall, sizes_bytes: Mapping[str, int]) -> float:
    """Of one call of a kernel, or one transfer; what has no price counts as nothing.

    Args:
        call: as a statement has it.
        sizes_bytes: of the buffers that transfers name.
    """
    known = factors()
    done = amounts_of(call, sizes_bytes).items()
    return sum(count * known.get(of, {}).get(what, 0.0) for (of, what), count in done)


def statement_instructions(statement: Statement, sizes_bytes: Mapping[str, int]) -> float:
    """Of one run of an op; without calls, none."""
    if not statement.calls:
        return 0.0
    return factors()[_RUN]["call"] + sum(call_instructions(call, sizes_bytes) for call in statement.calls)


def class_of(statement: Statement, sizes_bytes: Mapping[str, int]) -> str:
    """The class of what takes most of a statement that has calls."""
    most = max(statement.calls, key=lambda call: call_instructions(call, sizes_bytes)).function
    return next((name for name, functions in CLASSES.items() if most in functions), REST)


@dataclass(frozen=True, slots=True)
class StepInstructions:
    """What a step is foreseen to take.

    Attributes:
        by_class: of each class of ops that the step has, most first. Transfers are those of the folder's
            test, which copies from and to memory.
        bookkeeping: of what a step does beside its ops.
    """

    by_class: Mapping[str, float]
    bookkeeping: float

    @property
    def total(self) -> float:
        """Of the whole step."""
        return self.bookkeeping + sum(self.by_class.values())


def step_instructions(plan: Plan) -> StepInstructions:
    """What a step of ``plan`` takes.

    Raises:
        UnsupportedOperator: an op cannot be a C call.
        PlanError: the plan cannot be C.
    """
    sizes_bytes = {buffer.name: buffer.size_bytes for buffer in plan.graph.buffers}
    return of_statements(statements_of(plan).statements, sizes_bytes)


def of_statements(statements: tuple[Statement, ...], sizes_bytes: Mapping[str, int]) -> StepInstructions:
    """Likewise, of a plan whose statements are known."""
    found: dict[str, float] = {}
    for item in statements:
        if item.calls:
            name = class_of(item, sizes_bytes)
            found[name] = found.get(name, 0.0) + statement_instructions(item, sizes_bytes)
    ordered = sorted(found.items(), key=lambda pair: -pair[1])
    return StepInstructions(dict(ordered), factors()[_RUN]["step"])
