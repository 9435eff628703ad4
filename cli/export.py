"""``poet export``: a plan in other formats."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from poet.c99.targets import Ecosystem
from poet.errors import InputError
from poet.util.streams import say
from poet.util.units import format_bytes

from .options import Group, PlanArgument
from .output import check_files, write_json, write_text

EXAMPLES = (
    "poet export trace plan.poet -o trace.json",
    "poet export graph plan.poet",
    "poet export onnx plan.poet --state trained.safetensors -o trained.onnx",
    "poet export state plan.poet --state trained.safetensors -o weights.safetensors",
    "poet export c plan.poet -o step/",
    "poet export c plan.poet -o step/ --image cortex-m7",
    "poet export c plan.poet -o poet_step/ --for esp-idf",
    "poet export pt2 plan.poet -o step.pt2",
    "poet export pte plan.poet -o step.pte",
)

app = typer.Typer(cls=Group, help="Write a plan in another format.")


_OutputOption = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write; - is stdout.")
]


_StateOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="What training saved; default: the weights that the plan begins with."),
]
_FileOption = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write.")]


@app.command()
def onnx(plan_file: PlanArgument, output: _FileOption, state: _StateOption = None) -> None:
    """Write the ONNX file that the plan was made from, with trained weights.

    Where onnxruntime is installed, it runs the new file first, and its outputs are held against torch's.
    """
    from poet.planning.exported import export_onnx

    check_files({"-o": output}, reads={"PLAN": plan_file, "--state": state})
    done = export_onnx(plan_file, output, state=state)
    say(f"{output}: {done.tensors} weights after {done.steps} steps; {done.check}")


@app.command(name="state")
def state_dict(plan_file: PlanArgument, output: _FileOption, state: _StateOption = None) -> None:
    """Write parameters and module state as safetensors, for load_state_dict(..., strict=True).

    The optimizer's tensors and the random state stay behind.
    """
    from poet.planning.exported import export_state

    check_files({"-o": output}, reads={"PLAN": plan_file, "--state": state})
    done = export_state(plan_file, output, state=state)
    say(f"{output}: {done.tensors} tensors after {done.steps} steps")


@app.command()
def trace(
    plan_file: PlanArgument,
    output: _OutputOption = Path("-"),
) -> None:
    """Write one training step as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open.

    Tracks for compute, page-in and page-out, and counters of the RAM held, in all and by role.
    """
    from poet.plans.plan_file import read_plan
    from poet.report.schedule_rows import trace_events

    check_files({"-o": output}, reads={"PLAN": plan_file})
    plan = read_plan(plan_file)
    write_json(output, trace_events(plan.problem, plan.schedule, plan.trace, plan.request.limits))


@app.command()
def graph(
    plan_file: PlanArgument,
    output: _OutputOption = Path("-"),
) -> None:
    """Write the training graph as text: a line per op with its call, types, effects and workspace.

    Forward, loss, backward and update, in the order in which ops first run.
    """
    from poet.plans.plan_file import read_plan
    from poet.report.plan import graph_text

    check_files({"-o": output}, reads={"PLAN": plan_file})
    text = graph_text(read_plan(plan_file))
    if str(output) == "-":
        for line in text.splitlines():
            say(line)
    else:
        write_text(output, text)


@app.command()
def c(
    plan_file: PlanArgument,
    folder: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="A new folder.")],
    ecosystem: Annotated[
        Ecosystem | None,
        typer.Option("--for", help="Write a library as this ecosystem takes it, with an example."),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(metavar="TARGET", help="Link the folder's test at once, e.g. for cortex-m7."),
    ] = None,
) -> None:
    """Write the training step as plain C99 in a new folder, with weights, a Makefile and a test of its own.

    For plans made for a device whose kernels are poet-c99; see docs/microcontroller.md.
    """
    from poet.c99.ecosystems import for_ecosystem
    from poet.c99.project import c_project, check_new
    from poet.c99.targets import check_tools, link
    from poet.plans.plan_file import PlanFile

    check_new(folder)
    if ecosystem is not None and image is not None:
        raise InputError("--for writes a library, which its ecosystem links; leave --image out")
    if image is not None:
        check_tools(image)
    with PlanFile(plan_file) as file:
        made = c_project(file)
        if ecosystem is not None:
            made = for_ecosystem(made, ecosystem, name=folder.name, model=file.plan.model.name)
    made.write(folder)
    if ecosystem is not None:
        say(f"{folder}: {len(made.files)} files for {ecosystem.value}; README.md says how it is built")
        return
    if image is not None:
        say(link(folder, image))
        return
    size_bytes, named = sum(len(text.encode()) for text in made.files.values()), shlex.quote(str(folder))
    say(f"{folder}: {len(made.files)} files, {size_bytes:,} bytes; try: make -C {named} test")


@app.command()
def pt2(plan_file: PlanArgument, output: _FileOption, state: _StateOption = None) -> None:
    """Write the training step as a torch.export program whose graph is the schedule; it needs no poet to run.

    torch.export.load(FILE).module() takes the batch, makes a step and keeps parameters and optimizer state.
    """
    from poet.programs.pt2 import export_pt2

    check_files({"-o": output}, reads={"PLAN": plan_file, "--state": state})
    made = export_pt2(plan_file, output, state=state)
    held = format_bytes(made.ram_bytes)
    say(f"{output}: {made.calls:,} calls, {made.reruns} ops run again, {held} as planned")


@app.command()
def pte(plan_file: PlanArgument, output: _FileOption, state: _StateOption = None) -> None:
    """Write the training step as a method of ExecuTorch, whose planned memory is what the plan counts.

    Its runtime makes two steps first, whose losses are held against the plan's. Needs the extra executorch.
    """
    from poet.programs.pte import export_pte

    writes = {"-o": output, "the kernels of -o": output.with_name(f"{output.name}.so")}
    check_files(writes, reads={"PLAN": plan_file, "--state": state})
    made = export_pte(plan_file, output, state=state)
    done = f"{made.calls:,} kernel calls, {made.reruns} ops run again"
    say(f"{output}: {done}, {made.ram_bytes:,} bytes planned")
    if made.library is not None:
        say(f"{made.library}: kernels for its pages, to be loaded after ExecuTorch's runtime")
