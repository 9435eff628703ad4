"""``poet check``: which ops of a model import and train, which not and why."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from .options import BindOption, JsonOption, LossOption, read_bindings


class Kernels(enum.Enum):
    """Libraries of kernels that an exported step can be made of."""

    C99 = "poet-c99"


EXAMPLES = (
    "poet check model.onnx",
    "poet check model.onnx --bind N=8 --parameters",
    "poet check gpt.onnx --loss cross-entropy:dim=-1",
    "poet check m.onnx --json -",
    "poet check m.onnx --kernels poet-c99",
)


def check(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX model.")],
    bind: BindOption = None,
    loss: LossOption = None,
    parameters: Annotated[bool, typer.Option("--parameters", help="List every parameter.")] = False,
    json_file: JsonOption = None,
    kernels: Annotated[
        Kernels | None,
        typer.Option("--kernels", help="Also tell which ops of its training step this library lacks."),
    ] = None,
) -> None:
    """Tell which ops of a model import and train, which not and why.

    Weights are not read and nothing is run, unless --kernels asks for the whole training step. Exit code 2 if
    the model cannot be trained, or not with those kernels.
    """
    from .output import answer, check_files, show

    check_files({"--json": json_file}, model=model)
    from poet.frontend.onnx.check import check_model
    from poet.report.check import check_report

    found = check_model(model, read_bindings(bind), loss=loss)
    if kernels is None or not found.can_train:
        answer(check_report(found, every_parameter=parameters), found.to_json, json_file=json_file)
        if not found.can_train:
            raise typer.Exit(found.exit_code)
        return
    from poet.c99.rows import overwrites, wants_dense
    from poet.c99.statements import refusals, uses_elements
    from poet.frontend.onnx.importer import load_onnx
    from poet.frontend.trace import trace_training_step
    from poet.ir.loss import DEFAULT_LOSS
    from poet.report.check import kernels_report

    imported = load_onnx(model, bind={**found.assumed, **read_bindings(bind)})
    inputs = imported.example_inputs()
    step = trace_training_step(
        imported.module,
        inputs,
        loss=loss or DEFAULT_LOSS,
        measure=False,
        uses_elements=uses_elements,
        overwrites=overwrites,
        wants_dense=wants_dense,
        has_small_operators=True,
    )
    lacking = refusals(step.graph)
    answer(
        check_report(found, every_parameter=parameters),
        lambda: {**found.to_json(), "kernels": kernels.value, "lacking": list(lacking)},
        json_file=json_file,
    )
    if str(json_file) != "-":
        show(kernels_report(kernels.value, len(step.graph.ops), lacking))
    if lacking:
        raise typer.Exit(2)
