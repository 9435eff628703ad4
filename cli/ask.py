"""The options of ``poet solve`` as one record, and what follows from them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from poet.errors import InputError
from poet.loss import LOGITS
from poet.optimizer import OptimizerSpec, ParameterGroup
from poet.optimizer_kinds import OPTIONS
from poet.problem import Objective, Pins
from poet.solution import Progress

from .options import (
    BindOption,
    GradientsOption,
    Home,
    JsonOption,
    LogOption,
    LossOption,
    Minimise,
    NoPagingOption,
    NoRecomputeOption,
    TrainOption,
    VerboseOption,
    device_names,
    micro_callback,
    optimizer_callback,
    read_storage,
    read_time_limit,
    read_trade_off,
    threads_callback,
    whole,
)

_OF_MODELS = (
    "device", "loss", "optimizer", "lr", "momentum", "weight_decay", "group", "clip_value", "clip_norm",
    "train", "bind", "batch", "shape", "micro", "names", "home", "gradients",
)  # fmt: skip
"""Options that a planning problem does not take."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What ``poet solve`` is asked: a field for each option, in the order of the help."""

    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="An ONNX model, or a poet-problem file (.json).")
    ]
    device: Annotated[
        str | None,
        typer.Option(help="Profile by name or file; see `poet devices list`.", autocompletion=device_names),
    ] = None
    sizes: Annotated[
        str | None,
        typer.Option(
            "--ram",
            metavar="SIZE",
            help="RAM for tensors, e.g. 64MiB. Without it: a survey. 64MiB,48MiB: two plans in one file.",
        ),
    ] = None
    deadline: Annotated[
        str | None, typer.Option(metavar="TIME", help="For a step: 20ms, or 1.3x of running every op once.")
    ] = None
    loss: LossOption = None
    optimizer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"{', '.join(OPTIONS)}; default sgd. With options: rmsprop:alpha=0.9,centered=yes.",
            callback=optimizer_callback,
        ),
    ] = None
    lr: Annotated[float | None, typer.Option(help="Learning rate; default 0.001.")] = None
    momentum: Annotated[float | None, typer.Option(help="Of --optimizer momentum; default 0.9.")] = None
    weight_decay: Annotated[float | None, typer.Option(help="Default: torch's.")] = None
    group: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB:OPTIONS", help="Parameters with other settings: 'norm*:lr=1e-4,weight_decay=0'."
        ),
    ] = None
    clip_value: Annotated[float | None, typer.Option(help="Clamp gradients to this first.")] = None
    clip_norm: Annotated[
        float | None, typer.Option(help="Bring the norm of all gradients together down to this.")
    ] = None
    train: TrainOption = None
    bind: BindOption = None
    batch: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Samples of a step; the same as --bind N=...", callback=whole),
    ] = None
    shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SIZES",
            help="Plan steps for several sizes in one file, e.g. N=1,8,32; repeatable, for each with each.",
        ),
    ] = None
    micro: Annotated[
        str | None,
        typer.Option(
            metavar="K",
            help="Train each batch in K micro-batches, or auto: as many as take the least energy. K:sum: the "
            "loss is not divided by K.",
            callback=micro_callback,
        ),
    ] = None
    names: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A state dict (.pt, .safetensors) whose names the model gets."),
    ] = None
    no_recompute: NoRecomputeOption = False
    no_paging: NoPagingOption = False
    least: Annotated[
        Minimise,
        typer.Option("--minimise", help="What a step should take the least of; ties are broken by energy."),
    ] = Minimise.ENERGY
    energy_budget: Annotated[
        str | None, typer.Option(metavar="ENERGY", help="Joules that a step may take, e.g. 1.5mJ.")
    ] = None
    write_budget: Annotated[
        str | None, typer.Option(metavar="SIZE", help="What a step may write to storage, e.g. 1MiB.")
    ] = None
    part_or_size: Annotated[
        list[str] | None,
        typer.Option(
            "--storage",
            metavar="PART|SIZE",
            help="A part in place of the device's (`poet devices parts`), or what storage holds; repeatable.",
        ),
    ] = None
    home: Annotated[
        Home | None,
        typer.Option(help="Of parameters between steps; auto: the plan chooses. Default ram."),
    ] = None
    gradients: GradientsOption = None
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Tensors to keep in RAM from production to last use; repeatable."),
    ] = None
    recompute_these: Annotated[
        list[str] | None,
        typer.Option(
            "--recompute", metavar="GLOB", help="Tensors not to hold while idle, but to compute again."
        ),
    ] = None
    page: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Tensors not to hold while idle, but to page."),
    ] = None
    never_page: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Tensors never to write to storage nor to read from there."),
    ] = None
    curve: Annotated[
        str | None,
        typer.Option(
            "--trade-off",
            metavar="X,Y",
            help="The curve of two objectives instead of a plan, e.g. ram,energy.",
        ),
    ] = None
    points: Annotated[
        int | None,
        typer.Option(min=2, help="Of --trade-off; default: all of a small problem, else 8.", callback=whole),
    ] = None
    time_limit: Annotated[
        str, typer.Option(metavar="TIME", help="For all that is searched, e.g. 60s; none: until proven.")
    ] = "20s"
    engine: Annotated[
        str,
        typer.Option(
            help="auto, highs, cpsat, highs+cpsat, scip, cbc, gurobi, or a solver by PuLP's name of it."
        ),
    ] = "auto"
    threads: Annotated[
        int,
        typer.Option(
            min=1, help="For the search; 2 run HiGHS beside CP-SAT if installed.", callback=threads_callback
        ),
    ] = 1
    no_kept_plans: Annotated[
        bool,
        typer.Option(
            "--no-kept-plans",
            envvar="POET_NO_KEPT_PLANS",
            help="Start from nothing: read no plan of an earlier search, and keep none.",
        ),
    ] = False
    compare: Annotated[
        bool, typer.Option("--compare", help="Beside the plan, those of other planners; needs --ram.")
    ] = False
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity", help="Tell which of the device's figures decide; plans again.")
    ] = False
    robust: Annotated[
        bool, typer.Option("--robust", help="The plan that loses least wherever the device's figures are.")
    ] = False
    gives_or_file: Annotated[
        str | None,
        typer.Option(
            "--output",
            metavar="logits|FILE",
            help="logits: the first output is what its softmax or sigmoid is given. Else the same as -o.",
        ),
    ] = None
    file: Annotated[Path | None, typer.Option("-o", metavar="FILE", help="Write the plan here.")] = None
    json_file: JsonOption = None
    verbose: VerboseOption = False
    log: LogOption = None

    progress: Progress | None = None

    def __post_init__(self) -> None:
        """Refuse what an option does not take before anything is done.

        Raises:
            InputError: a text is not what its option takes.
        """
        _ = self.part, self.time_limit_seconds, self.trade_off, self.output

    @property
    def ram(self) -> str | None:
        """The budget: the first of those in ``--ram``."""
        return None if self.sizes is None else self.sizes.split(",")[0]

    @property
    def budgets(self) -> tuple[str, ...]:
        """The other budgets of the file."""
        return tuple(filter(None, (self.sizes or "").split(",")[1:]))

    @property
    def part(self) -> str | None:
        """The storage part in place of the device's."""
        return read_storage(self.part_or_size)[0]

    @property
    def storage(self) -> str | None:
        """What storage holds."""
        return read_storage(self.part_or_size)[1]

    @property
    def time_limit_seconds(self) -> float | None:
        """Of all searches together; ``None``: until proven."""
        return read_time_limit(self.time_limit)

    @property
    def trade_off(self) -> tuple[Objective, Objective] | None:
        """The two objectives of a curve."""
        return read_trade_off(self.curve)

    @property
    def output(self) -> Path | None:
        """Where the plan goes: what -o says, or --output where that does not say what the model gives."""
        if self.gives_or_file in (None, LOGITS):
            return self.file
        if self.file is not None:
            raise InputError(f"-o and --output both name a file; --output {LOGITS} says what the model gives")
        return Path(self.gives_or_file)

    @property
    def recompute(self) -> bool:
        """Whether ops may run again."""
        return not self.no_recompute

    @property
    def paging(self) -> bool:
        """Whether tensors may move to storage."""
        return not self.no_paging

    @property
    def kept_plans(self) -> bool:
        """Whether plans of earlier searches are read, and this one is kept."""
        return not self.no_kept_plans

    @property
    def minimise(self) -> Objective:
        """What a plan takes the least of."""
        return Objective(self.least.value)

    @property
    def pins(self) -> Pins:
        """Tensors to keep, recompute or page."""
        globs = (self.keep, self.recompute_these, self.page, self.never_page)
        return Pins(*(tuple(each or ()) for each in globs))

    @property
    def gives(self) -> str | None:
        """What of the model's first output the loss is given, where that is said."""
        return LOGITS if self.gives_or_file == LOGITS else None

    def option_of_models(self) -> str | None:
        """The first option that is given and that a planning problem does not take, if one is."""
        for name in _OF_MODELS:
            if getattr(self, name) is not None:
                return f"--{name.replace('_', '-')}"
        if self.output is not None:
            return "--output"
        if self.gives is not None:
            return f"--output {self.gives}"
        return None if self.part is None else f"--storage {self.part}"

    def optimizer_spec(self) -> OptimizerSpec:
        """The optimizer that the options name.

        Raises:
            InputError: an option is of another optimizer.
        """
        spec = OptimizerSpec.parse(self.optimizer or "sgd")
        if self.momentum is not None and "momentum" not in OPTIONS[spec.name]:
            raise InputError(f"--momentum is of --optimizer momentum, not of {spec.name}")
        given: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("lr", "weight_decay", "momentum", "clip_value", "clip_norm")
        }
        given["groups"] = tuple(map(ParameterGroup.parse, self.group or ())) or None
        return dataclasses.replace(spec, **{name: item for name, item in given.items() if item is not None})
