"""``poet what-if``: a sweep over devices, RAM, deadlines, batches and optimizers, and what it means."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from poet.errors import InputError
from poet.files.kinds import FileKind, expect
from poet.ir.loss import DEFAULT_LOSS
from poet.ir.strips import Gradients
from poet.util.units import format_seconds, parse_bytes

from .options import (
    GradientsOption,
    Home,
    JsonOption,
    LogOption,
    LossOption,
    NoPagingOption,
    NoRecomputeOption,
    ThreadsOption,
    TrainOption,
    VerboseOption,
    argument,
    command_line,
    option,
    read_time_limit,
    takes,
    threads_callback,
    whole,
)
from .output import PlainConsole, answer, check_files, check_log, listening, write_json, write_text

if TYPE_CHECKING:
    from poet.whatif.grid import DataSupply, Duty
    from poet.whatif.result import WhatIf
    from poet.whatif.sweep import Report, SweepProgress

EXAMPLES = (
    "poet what-if model.onnx --device rpi4b,nrf52840 --ram 64MiB..512MiB:8 --deadline 1.0x..2.0x",
    "poet what-if model.onnx --device rpi4b --batch 1,4,16 --battery 3000mAh@3.7V -o report.html",
    "poet what-if problem.json --ram min..keep:20 -o points.csv",
    "poet what-if model.onnx --device stm32h743 --choose scores.toml -o report.html",
)
PLAIN_PROGRESS_SHARE = 0.05
"""Without a terminal, a line each time this share of the points is done."""


@dataclass(frozen=True, slots=True)
class SweepAsk:
    """What ``poet what-if`` is asked: a field for each option, in the order of the help."""

    context: typer.Context
    model: Path = argument("An ONNX model, a saved plan or a poet-problem file (.json).", "MODEL")
    device: str = option("Profiles by name or file, with commas between.", "NAMES", default="")
    ram: str = option(
        "64MiB,96MiB or 64MiB..512MiB:8; min and keep are sizes too.", "SIZES", default="min..keep"
    )
    deadline: str | None = option("1.0x..2.0x, 20ms or none, with commas between.", "TIMES")
    batch: str | None = option("Batch sizes, e.g. 1,4,16.", "SIZES")
    bind: list[str] | None = option("Sizes of a dynamic dimension, e.g. L=64,128; repeatable.", "NAME=SIZES")
    optimizer: str = option("sgd, momentum, adamw.", "NAMES", default="sgd")
    micro: str = option(
        "Train each batch in so many micro-batches: 1,4 or 4:sum, or auto: all that divide it.",
        "NUMBERS",
        default="1",
    )
    loss: LossOption = None
    train: TrainOption = None
    choose: Path | None = option("Scores: what could be trained in how much RAM and energy?", "FILE")
    home: Home = option(
        "Where parameters and optimizer state are between steps; auto: as planned.", default=Home.RAM
    )
    gradients: GradientsOption = None
    no_recompute: NoRecomputeOption = False
    no_paging: NoPagingOption = False
    energy_budget: str | None = option("2J/step, 50J/session or 500J/day.", "ENERGY")
    battery: str | None = option("3000mAh@3.7V or 11Wh.", "CHARGE")
    steps_per_session: int = option("Steps each time the device trains.", default=100, min=1, callback=whole)
    sessions_per_day: float = option("How often it trains.", default=1.0)
    samples: int | None = option("Of one epoch.", min=1, callback=whole)
    grid: str | None = option("300g/kWh.", "CARBON")
    largest: list[str] | None = option(
        "Find the largest batch, sequence, resolution or H+W; repeatable.", "NAME"
    )
    fetch_seconds: float | None = option("To read a step's input.", min=0)
    prepare_seconds: float | None = option("To decode and collate it.", min=0)
    data_bytes: str | None = option("Of a step's input.", "SIZE")
    dataset_bytes: str | None = option("Of one epoch's input.", "SIZE")
    data_cache: str | None = option("What would a data cache of this size buy?", "SIZE")
    measure_data: Path | None = option("Measure a data file or folder: npz, npy, safetensors.", "PATH")
    no_marginal: bool = option("Do not ask what more RAM or faster flash would buy.", default=False)
    time_limit: str = option("For one point's search.", "TIME", default="5s")
    engine: str = option("As for poet solve.", default="auto")
    jobs: int | None = option("Worker processes; default: all cores.", min=1, callback=threads_callback)
    threads: ThreadsOption = None
    cluster: str | None = option("A Dask scheduler, e.g. tcp://10.0.0.1:8786.", "ADDRESS")
    worker_memory: str | None = option("That one worker may take.", "SIZE")
    cache: Path | None = option("Folder of answers; default: the user's cache folder.", "DIR")
    output: Path | None = option("report.html, .json or .csv.", "FILE", "-o", "--output")
    json_file: JsonOption = None
    verbose: VerboseOption = False
    log: LogOption = None

    def duty(self) -> Duty:
        """How the device is used."""
        from poet.whatif import grid
        from poet.whatif.grid import Duty

        return Duty(
            steps_per_session=self.steps_per_session,
            sessions_per_day=self.sessions_per_day,
            battery_joules=None if self.battery is None else grid.battery_joules(self.battery),
            grid_grams_per_joule=None if self.grid is None else grid.grams_per_joule(self.grid),
            dataset_samples=self.samples,
            energy_budget=None if self.energy_budget is None else grid.energy_budget(self.energy_budget),
        )

    def supply(self) -> DataSupply | None:
        """The data: measured, and what is given in place of that; per sample."""
        from poet.whatif import grid
        from poet.whatif.grid import DataSupply
        from poet.whatif.usage import measure_data

        told = self.fetch_seconds, self.prepare_seconds, self.data_bytes, self.measure_data
        if all(option is None for option in told):
            if self.data_cache is not None or self.dataset_bytes is not None:
                raise InputError("what a data cache buys needs the data: --data-bytes or --measure-data")
            return None
        samples = grid.counts(self.batch, "--batch")[0] if self.batch is not None else 1
        supply = DataSupply() if self.measure_data is None else measure_data(self.measure_data, samples)
        if self.data_cache is not None and self.dataset_bytes is None and not supply.dataset_bytes:
            raise InputError("what a data cache buys depends on the size of the data set: --dataset-bytes")
        sizes = {
            "bytes": self.data_bytes,
            "dataset_bytes": self.dataset_bytes,
            "cache_bytes": self.data_cache,
        }
        given = {name: parse_bytes(text) for name, text in sizes.items() if text is not None}
        if self.prepare_seconds is not None:
            return replace(
                supply, fetch_seconds=self.fetch_seconds, prepare_seconds=self.prepare_seconds, **given
            )
        return replace(supply, fetch_seconds=self.fetch_seconds, **given)

    def check_paths(self) -> None:
        """Refuse what cannot be written before the work begins.

        Raises:
            InputError: the suffix of ``-o`` is not one of a report's, a page's packages are not there, a
                folder does not exist or may not be written to, or a file is read or written twice.
        """
        from poet.devices.load import profile_path
        from poet.planning.cache import default_folder
        from poet.whatif import grid

        check_log(self.log)
        path, data = self.output, self.measure_data
        kinds = (".html", ".json") if self.choose is not None else (".html", ".json", ".csv")
        if path is not None and path.suffix not in kinds:
            raise InputError(f"{path}: a report is {', '.join(kinds[:-1])} or {kinds[-1]}")
        if path is not None and path.suffix == ".html":
            from poet.report.html import check_installed

            check_installed()
        profiles = map(profile_path, grid.words(self.device, "--device") if self.device else ())
        reads = {
            "--device": [path for path in profiles if path is not None],
            "--choose": self.choose,
            "--measure-data": [] if data is None else [data, *(data.iterdir() if data.is_dir() else ())],
            "--cache": list((self.cache or default_folder()).glob("*/*.json.gz")),
        }
        writes = {"-o": path, "--json": self.json_file, "--log": self.log}
        check_files(writes, reads=reads, model=self.model)


@takes(SweepAsk)
def what_if(ask: SweepAsk) -> None:
    """Ask what other devices, RAM, deadlines, batch sizes, micro-batches and optimizers would mean.

    Each point of the grid is planned with a proof or a gap. A sweep that is repeated or was interrupted
    goes on from its cache; Ctrl-C reports what is there.

    -v and --log tell when the search of each point was asked for and how it ended; what it does meanwhile
    with --jobs 1 alone.
    """
    from poet.problem.solution import SolveOptions
    from poet.report.searches import what_if_report
    from poet.whatif.run import to_json
    from poet.whatif.run import what_if as sweep

    ask.check_paths()
    if ask.choose is not None:
        _choices(ask)
        return
    duty = ask.duty()
    options = SolveOptions(
        time_limit_seconds=read_time_limit(ask.time_limit), engine=ask.engine, threads=ask.threads or 1
    )
    with listening(verbose=ask.verbose, file=ask.log), sweep_progress(quiet=ask.verbose) as report:
        result = sweep(
            ask.model,
            device=ask.device or (),
            ram=ask.ram,
            deadline=ask.deadline,
            batch=ask.batch,
            bind=ask.bind or (),
            optimizer=ask.optimizer,
            micro=ask.micro,
            loss=ask.loss or DEFAULT_LOSS,
            train=ask.train,
            home=ask.home.place,
            gradients=(ask.gradients or Gradients.STREAM).value,
            recompute=not ask.no_recompute,
            paging=not ask.no_paging,
            duty=duty,
            data=ask.supply(),
            largest=ask.largest or (),
            marginal=not ask.no_marginal,
            options=options,
            jobs=ask.jobs,
            cluster=ask.cluster,
            worker_memory_bytes=None if ask.worker_memory is None else parse_bytes(ask.worker_memory),
            cache=ask.cache or "",
            report=report,
            command=command_line(ask.context),
        )
    if ask.output is not None:
        _write(result, ask.output)
    answer(what_if_report(result), lambda: to_json(result), json_file=ask.json_file)
    if not result.complete:
        raise KeyboardInterrupt


_OF_CHOICES = (
    "model", "device", "ram", "bind", "optimizer", "loss", "choose", "home", "gradients", "no_recompute",
    "no_paging", "time_limit", "threads", "output", "json_file", "verbose", "log",
)  # fmt: skip
"""What goes with ``--choose``, which asks about one step."""


def _choices(ask: SweepAsk) -> None:
    """What could be trained for more RAM or energy.

    Raises:
        InputError: an option asks about something else.
    """
    from poet.report.choices import choices_page, choices_report
    from poet.util import codec
    from poet.whatif.choices import choices
    from poet.whatif.sweep import SweepProgress

    from .ask import Ask
    from .search import plan_request

    expect(ask.model, FileKind.ONNX, FileKind.EXPORTED)
    for name in ask.context.params:
        source = ask.context.get_parameter_source(name)
        if name not in _OF_CHOICES and source is not None and source.name != "DEFAULT":
            given = next(item.opts[0] for item in ask.context.command.params if item.name == name)
            raise InputError(f"--choose asks about one step, in RAM and energy; leave {given} out")
    if not ask.device or "," in ask.device:
        raise InputError("--choose needs one --device; `poet devices list` shows the names")
    same = ("bind", "optimizer", "loss", "choose", "home", "gradients", "no_recompute", "no_paging")
    told = {name: getattr(ask, name) for name in (*same, "time_limit")} | {"threads": ask.threads or 1}
    with listening(verbose=ask.verbose, file=ask.log), sweep_progress(quiet=ask.verbose) as report:
        began = time.monotonic()

        def tell(done: int, of: int) -> None:
            if report is not None:
                spent = time.monotonic() - began
                report(SweepProgress(done, of, spent, spent / done * (of - done), "choosing"))

        sweep = choices(plan_request(Ask(ask.model, ask.device, None, most=True, **told)), ask.ram, tell)
    if ask.output is not None and ask.output.suffix == ".html":
        write_text(ask.output, choices_page(sweep, command_line(ask.context)))
    elif ask.output is not None:
        write_json(ask.output, codec.encode(sweep))
    answer(choices_report(sweep), lambda: codec.encode(sweep), json_file=ask.json_file)
    if not sweep.complete:
        raise KeyboardInterrupt


def _write(result: WhatIf, path: Path) -> None:
    """Write a report whose kind the suffix of ``path`` says."""
    from poet.whatif.run import to_csv, to_json

    if path.suffix == ".json":
        write_json(path, to_json(result))
    elif path.suffix == ".csv":
        write_text(path, to_csv(result))
    else:
        from poet.report.html.what_if_page import what_if_page

        write_text(path, what_if_page(result))


@contextmanager
def sweep_progress(*, quiet: bool = False) -> Iterator[Report | None]:
    """A callback that shows on stderr how many points are done and how long the rest will take.

    ``None`` where ``quiet``, as the log tells it then.
    """
    if quiet:
        yield None
        return
    console = PlainConsole(stderr=True, soft_wrap=True)
    if not console.is_terminal:
        yield _plain(console)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("planning", total=None, left="")

        def show(now: SweepProgress) -> None:
            bar.update(task, completed=now.done, total=now.total, left=_left(now), description=now.doing)

        yield show


def _plain(console: Console) -> Report:
    shown = -1.0

    def show(now: SweepProgress) -> None:
        nonlocal shown
        share = now.done / now.total if now.total else 1.0
        if share >= shown + PLAIN_PROGRESS_SHARE or (share == 1.0 and shown < 1.0):
            shown = share
            console.print(f"{now.done} of {now.total} points, {now.seconds:.0f} s{_left(now)}")

    return show


def _left(now: SweepProgress) -> str:
    left = now.seconds_left
    return "" if left is None or now.done == now.total else f", about {format_seconds(max(1.0, left))} left"
