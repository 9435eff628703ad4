"""The options of ``poet solve`` as one record, and what follows from them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poet.errors import InputError
from poet.ir.loss import LOGITS
from poet.ir.optimizer import OptimizerSpec, ParameterGroup
from poet.ir.optimizer_kinds import OPTIONS
from poet.problem import Objective, PageForm, Pins
from poet.problem.solution import Progress

from .options import (
    BindOption,
    GradientsOption,
    Home,
    JsonOption,
    LogOption,
    LossOption,
    NoPagingOption,
    NoRecomputeOption,
    TrainOption,
    VerboseOption,
    argument,
    base_callback,
    device_names,
    micro_callback,
    optimizer_callback,
    option,
    read_storage,
    read_time_limit,
    read_trade_off,
    threads_callback,
    whole,
)

_OF_MODELS = (
    "device", "loss", "optimizer", "lr", "momentum", "weight_decay", "group", "clip_value", "clip_norm",
    "train", "choose", "at_least", "bind", "batch", "shape", "micro", "names", "home", "gradients",
    "base", "weights", "allow",
)  # fmt: skip
"""Options that a planning problem does not take."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What ``poet solve`` is asked: a field for each option, in the order of the help."""

    model: Path = argument("An ONNX model, or a poet-problem file (.json).", "MODEL")
    device: str | None = option(
        "Profile by name or file; see `poet devices list`.", autocompletion=device_names
    )
    sizes: str | None = option(
        "RAM for tensors, e.g. 64MiB. Without it: a survey. 64MiB,48MiB: two plans in one file.",
        "SIZE",
        "--ram",
    )
    deadline: str | None = option("For a step: 20ms, or 1.3x of running every op once.", "TIME")
    loss: LossOption = None
    optimizer: str | None = option(
        f"{', '.join(OPTIONS)}; default sgd. With options: rmsprop:alpha=0.9,centered=yes.",
        "NAME",
        callback=optimizer_callback,
    )
    lr: float | None = option("Learning rate; default 0.001.")
    momentum: float | None = option("Of --optimizer momentum; default 0.9.")
    weight_decay: float | None = option("Default: torch's.")
    group: list[str] | None = option(
        "Parameters with other settings: 'norm*:lr=1e-4,weight_decay=0'.", "GLOB:OPTIONS"
    )
    clip_value: float | None = option("Clamp gradients to this first.")
    clip_norm: float | None = option("Bring the norm of all gradients together down to this.")
    train: TrainOption = None
    choose: Path | None = option(
        "Scores (.toml) of groups of parameters: the plan says which to train.", "FILE"
    )
    most: bool = option("Of --choose: the most that the limits allow.", default=False)
    at_least: float | None = option("Of --choose: this share of all scores, at the least energy.", "SHARE")
    bind: BindOption = None
    batch: int | None = option("Samples of a step; the same as --bind N=...", "N", min=1, callback=whole)
    shape: list[str] | None = option(
        "Plan steps for several sizes in one file, e.g. N=1,8,32; repeatable, for each with each.",
        "NAME=SIZES",
    )
    micro: str | None = option(
        "Train each batch in K micro-batches, or auto: as many as take the least energy. K:sum: the "
        "loss is not divided by K.",
        "K",
        callback=micro_callback,
    )
    base: str | None = option(
        "Frozen weights in fewer bits: q4_0, q8_0, int8; q4_0:except=*.head.* leaves some out.",
        "FORMAT",
        callback=base_callback,
    )
    weights: Path | None = option(
        "A GGUF file, whose tensors take the place of the model's, by name.", "FILE"
    )
    names: Path | None = option("A state dict (.pt, .safetensors) whose names the model gets.", "FILE")
    no_recompute: NoRecomputeOption = False
    no_paging: NoPagingOption = False
    minimise: Objective = option(
        "What a step should take the least of; ties are broken by energy.", default=Objective.ENERGY
    )
    energy_budget: str | None = option("Joules that a step may take, e.g. 1.5mJ.", "ENERGY")
    write_budget: str | None = option("What a step may write to storage, e.g. 1MiB.", "SIZE")
    part_or_size: list[str] | None = option(
        "A part in place of the device's (`poet devices parts`), or what storage holds; repeatable.",
        "PART|SIZE",
        "--storage",
    )
    home: Home | None = option("Of parameters between steps; auto: the plan chooses. Default ram.")
    gradients: GradientsOption = None
    allow: list[PageForm] | None = option(
        "What is paged may be rounded to fewer bytes, where that costs less; repeatable. Such a plan is not "
        "exact."
    )
    keep: list[str] | None = option("Tensors to keep in RAM from production to last use; repeatable.", "GLOB")
    recompute_these: list[str] | None = option(
        "Tensors not to hold while idle, but to compute again.", "GLOB", "--recompute"
    )
    page: list[str] | None = option("Tensors not to hold while idle, but to page.", "GLOB")
    never_page: list[str] | None = option("Tensors never to write to storage nor to read from there.", "GLOB")
    curve: str | None = option(
        "The curve of two objectives instead of a plan, e.g. ram,energy.", "X,Y", "--trade-off"
    )
    points: int | None = option(
        "Of --trade-off; default: all of a small problem, else 8.", min=2, callback=whole
    )
    time_limit: str = option("For all that is searched, e.g. 60s; none: until proven.", "TIME", default="20s")
    engine: str = option(
        "auto, highs, cpsat, highs+cpsat, scip, cbc, gurobi, or a solver by PuLP's name of it.",
        default="auto",
    )
    threads: int = option(
        "For the search; 2 run HiGHS beside CP-SAT if installed.", default=1, min=1, callback=threads_callback
    )
    no_kept_plans: bool = option(
        "Start from nothing: read no plan of an earlier search, and keep none.",
        default=False,
        envvar="POET_NO_KEPT_PLANS",
    )
    compare: bool = option("Beside the plan, those of other planners; needs --ram.", default=False)
    gives_or_file: str | None = option(
        "logits: the first output is what its softmax or sigmoid is given. Else the same as -o.",
        "logits|FILE",
        "--output",
    )
    file: Path | None = option("Write the plan here.", "FILE", "-o")
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
        if self.most:
            return "--most"
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
