"""Every figure of every shipped profile at 0, at the least and at the largest: an answer, or one line."""

from __future__ import annotations

import contextlib
import io
import math
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from helpers.clocks import counted
from helpers.hand_net import graph as hand_graph
from helpers.hand_net import write as write_hand_plan
from helpers.pace import with_slow
from rich.console import Console, RenderableType

from poet.devices.figures import Count, Figure
from poet.devices.load import load_profile, profile_names, with_part
from poet.devices.sense import check_sense
from poet.errors import PoetError, ProfileError
from poet.ir.kernel_facts import KernelFacts
from poet.problem import Place
from poet.report.html.what_if_page import what_if_page
from poet.report.searches import what_if_report
from poet.util.reading import LARGEST_AMOUNT, LARGEST_WHOLE, LEAST_AMOUNT
from poet.whatif import grid
from poet.whatif.grid import Duty
from poet.whatif.models import ModelVariant, variant_of
from poet.whatif.run import what_if
from poet.whatif.settings import problem_of

ROOT = Path(__file__).parents[2]
NOT_FINITE = re.compile(r"(?<![\w.-])(inf|nan|Infinity|NaN)(?![\w-])")
"""As numbers are printed; not within names."""


def ends(figure: Figure, *, few: bool) -> Iterator[str]:
    """The figure at its ends, as a table of a profile has it: 0, the least, the largest; all, with ranges."""
    whole = isinstance(figure, Count)
    least, most = (1, LARGEST_WHOLE) if whole else (LEAST_AMOUNT, LARGEST_AMOUNT)
    for value in (0, least, most):
        yield f"value = {value!r}\nuncertainty = 0.0"
    if not few:
        yield f"value = {most!r}"  # by the prior of its kind it may be five times as much
        yield f"value = {figure.value!r}\nrange = [0.0, {LARGEST_AMOUNT!r}]"
        yield "value = 5e-324"  # 1 / 5e-324 is infinite


def changed(name: str, folder: Path, *, few: bool) -> Iterator[tuple[str, Path]]:
    """Profiles of a user that extend one that is shipped, each with one figure at an end."""
    file = folder / "mine.toml"
    for path, figure in load_profile(name).figures():
        for end in ends(figure, few=few):
            table = f'[{".".join(path)}]\n{end}\nkind = "assumed"\nsource = "a test"\n'
            file.write_text(f'version = 1\nextends = "{name}"\nname = "mine"\n{table}')
            yield f"{'.'.join(path)}: {end}", file


@cache
def variant() -> ModelVariant:
    return variant_of(hand_graph(), KernelFacts("pytorch-cpu"), (("N", 4),), "sgd")


@pytest.mark.parametrize("name", with_slow(profile_names(), {*profile_names()} - {"compat-mkr1000"}))
def test_a_figure_at_its_end_is_refused_in_one_line_or_costs_something_finite(
    name: str, tmp_path: Path
) -> None:
    figures = taken = 0
    for what, file in changed(name, tmp_path, few=False):
        figures += 1
        with one_line(what):
            profile = load_profile(file)
            with contextlib.suppress(ProfileError):  # as `poet devices validate` says it
                check_sense(profile, file.name)
            problem = problem_of(variant(), profile, Place.RAM)
            assert 0.0 < problem.compute_seconds < math.inf, what
            assert 0.0 < problem.compute_joules < math.inf, what
            taken += 1
    assert taken > 30, "boards without storage have the fewest figures"
    assert figures - taken > 15


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved plan, whose step is planned for other devices."""
    path = tmp_path_factory.mktemp("plan") / "plan.poet"
    write_hand_plan(path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", profile_names())
def test_what_if_solve_and_explain_say_no_infinite_number(
    name: str, tmp_path: Path, plan: Path, rejections: list[str]
) -> None:
    """Of two devices also in the least RAM, and on the page that explains the plan.

    Engines round sizes of 2**53 bytes and more; the judge does not, and may reject what they make of them.
    """
    duty = Duty(battery_joules=1e4, energy_budget=grid.energy_budget("500J/day"))
    thorough = name in ("nrf52840", "rpi4b")
    for ram in ("keep", "min")[: 1 + thorough]:
        for what, file in changed(name, tmp_path, few=True):
            with one_line(what):
                result = what_if(
                    plan, device=load_profile(file), ram=ram, duty=duty, options=counted(0.2), jobs=1,
                    cache=None, marginal=ram == "keep",
                )  # fmt: skip
                texts = [shown(what_if_report(result))]
                texts += [_SCRIPT.sub("", what_if_page(result))] if thorough else []
                assert all(math.isfinite(found.joules + found.seconds) for found in result.plans), what
                for text in texts:
                    assert NOT_FINITE.search(text) is None, (what, NOT_FINITE.search(text))
    rejections[:] = [each for each in rejections if "e+06 TiB" not in each]


@contextlib.contextmanager
def one_line(what: str) -> Iterator[None]:
    """What is refused is refused in one line; all else is a fault."""
    try:
        yield
    except PoetError as error:
        refusal = str(error)
    else:
        return
    assert "\n" not in refusal, what


_SCRIPT = re.compile(r"<(script|style).*?</\1>", re.DOTALL)


def shown(report: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(report)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("figure", ["capacity_bytes", "page_bytes", "bus_bytes_per_second"])
def test_a_figure_that_would_divide_is_named(figure: str, tmp_path: Path) -> None:
    """``nrf52840`` has its storage by name of a part; what it says itself goes before that."""
    file = tmp_path / "mine.toml"
    table = f'[storage.{figure}]\nvalue = 0\nkind = "assumed"\nsource = "a test"\n'
    file.write_text(f'version = 1\nextends = "nrf52840"\nname = "mine"\n{table}')
    with pytest.raises(ProfileError, match=rf"^mine\.toml: storage(\.|: ){figure} is 0; expected more$"):
        load_profile(file)


def test_a_part_that_holds_nothing_is_refused(tmp_path: Path) -> None:
    shipped = (ROOT / "hardware_profiles" / "parts" / "nor-sqi.toml").read_text()
    file = tmp_path / "part.toml"
    file.write_text(re.sub(r"(\[capacity_bytes\]\s+value = )\d+", r"\g<1>0", shipped))
    with pytest.raises(ProfileError, match=r"capacity_bytes is 0; expected more"):
        with_part(load_profile("nrf52840"), file)
