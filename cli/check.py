"""``poet check``: which ops of a model import and train, which not and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import BindOption, JsonOption, LossOption, read_bindings

EXAMPLES = (
    "poet check model.onnx",
    "poet check model.onnx --bind N=8 --parameters",
    "poet check gpt.onnx --loss cross-entropy:dim=-1",
    "poet check m.onnx --json -",
)


def check(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX model.")],
    bind: BindOption = None,
    loss: LossOption = None,
    parameters: Annotated[bool, typer.Option("--parameters", help="List every parameter.")] = False,
    json_file: JsonOption = None,
) -> None:
    """Tell which ops of a model import and train, which not and why.

    Weights are not read and nothing is run. Exit code 2 if the model cannot be trained.
    """
    from .output import answer, check_files

    check_files({"--json": json_file}, model=model)
    from poet.frontend.onnx.check import check_model
    from poet.report.check import check_report

    found = check_model(model, read_bindings(bind), loss=loss)
    answer(check_report(found, every_parameter=parameters), found.to_json, json_file=json_file)
    if not found.can_train:
        raise typer.Exit(found.exit_code)
