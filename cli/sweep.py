"""What ``poet what-if`` does: read the options, sweep with progress, report, write files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from poet.devices.load import profile_path
from poet.errors import InputError
from poet.planning.cache import default_folder
from poet.report.whatif import what_if_report
from poet.util.units import format_seconds, parse_bytes
from poet.whatif import export, grid
from poet.whatif.question import DataSupply, Duty
from poet.whatif.result import WhatIf
from poet.whatif.stalls import measure_data
from poet.whatif.sweep import Report, SweepProgress

from .output import PlainConsole, answer, check_files, write_json, write_text

Size = TypeVar("Size", int, int | None)

PLAIN_PROGRESS_SHARE = 0.05
"""Without a terminal, a line each time this share of the points is done."""


def duty_of(
    energy_budget: str | None,
    battery: str | None,
    steps_per_session: int,
    sessions_per_day: float,
    samples: int | None,
    carbon: str | None,
) -> Duty:
    """How the device is used, of options as text."""
    return Duty(
        steps_per_session=steps_per_session,
        sessions_per_day=sessions_per_day,
        battery_joules=None if battery is None else grid.battery_joules(battery),
        grid_grams_per_joule=None if carbon is None else grid.grams_per_joule(carbon),
        dataset_samples=samples,
        energy_budget=None if energy_budget is None else grid.energy_budget(energy_budget),
    )


def supply_of(
    fetch_seconds: float | None,
    prepare_seconds: float | None,
    sample: str | None,
    dataset: str | None,
    cache: str | None,
    measure: Path | None,
    *,
    batch: str | None,
) -> DataSupply | None:
    """The data, of options as text: measured, and what is given in place of that; per sample."""
    if all(option is None for option in (fetch_seconds, prepare_seconds, sample, measure)):
        if cache is not None or dataset is not None:
            raise InputError("what a data cache buys needs the data: --data-bytes or --measure-data")
        return None
    samples = grid.counts(batch, "--batch")[0] if batch is not None else 1
    supply = DataSupply() if measure is None else measure_data(measure, samples)
    if cache is not None and dataset is None and not supply.dataset_bytes:
        raise InputError("what a data cache buys depends on the size of the data set: --dataset-bytes")
    return replace(
        supply,
        fetch_seconds=fetch_seconds,
        prepare_seconds=supply.prepare_seconds if prepare_seconds is None else prepare_seconds,
        bytes=_size(sample, supply.bytes),
        dataset_bytes=_size(dataset, supply.dataset_bytes),
        cache_bytes=_size(cache, supply.cache_bytes),
    )


def _size(text: str | None, otherwise: Size) -> int | Size:
    return otherwise if text is None else parse_bytes(text)


def write_result(result: WhatIf, path: Path) -> None:
    """Write a report whose kind the suffix of ``path`` says.

    Raises:
        InputError: the suffix is another, or the file cannot be written.
    """
    if path.suffix == ".json":
        write_json(path, export.to_json(result))
        return
    write_text(path, _WRITERS[path.suffix](result))


def files_read(device: str, data: Path | None, cache: Path | None) -> dict[str, list[Path]]:
    """What a sweep reads besides the model, by option: profiles, data, and answers that are kept."""
    profiles = map(profile_path, grid.words(device, "--device") if device else ())
    folder = cache or default_folder()
    return {
        "--device": [path for path in profiles if path is not None],
        "--measure-data": [] if data is None else [data, *(data.iterdir() if data.is_dir() else ())],
        "--cache": list(folder.glob("*/*.json.gz")),
    }


def check_output(
    path: Path | None,
    json_file: Path | None,
    log: Path | None,
    *,
    model: Path,
    reads: Mapping[str, list[Path]],
) -> None:
    """Refuse what cannot be written before the work begins.

    Raises:
        InputError: the suffix is not one of a report's, a page's packages are not there, a folder does
            not exist or may not be written to, or a file is read or written twice.
    """
    if path is not None and path.suffix not in (".json", *_WRITERS):
        raise InputError(f"{path}: a report is .html, .json or .csv")
    if path is not None and path.suffix == ".html":
        from poet.report.html import check_installed

        check_installed()
    check_files({"-o": path, "--json": json_file, "--log": log}, reads=reads, model=model)


def _html(result: WhatIf) -> str:
    from poet.report.html import what_if_page

    page: str = what_if_page(result)
    return page


_WRITERS: dict[str, Callable[[WhatIf], str]] = {".html": _html, ".csv": export.to_csv}


def show_result(result: WhatIf, json_file: Path | None) -> None:
    """The report on stdout, and the JSON data where they are wanted."""
    answer(what_if_report(result), lambda: export.to_json(result), json_file=json_file)


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
