"""Pages that may be rounded: the numbers that come back, plans that have them, and what verification says."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import hand_net
from helpers.command import invoke
from helpers.nets import small_net
from rich.console import Console
from torch import nn

import poet
from poet.c99.project import c_project
from poet.errors import InputError, NotExact, PageFileError, PlanError
from poet.frontend.trace import trace_training_step
from poet.plans.page_slots import slots_for
from poet.plans.plan_file import PlanFile
from poet.problem import PageForm
from poet.problem.schedule import PageIn
from poet.report.html.plan_page import plan_page
from poet.report.run import verify_data, verify_report
from poet.runtime import Trainer
from poet.runtime.storage import rough_pages
from poet.runtime.storage.page_file import PageFile
from poet.verification import verify
from poet.verification.rough_pages import TorchRounding

SHAPE = (64, 128)
STRANGE = (0.0, -0.0, 1.0, 1e-42, -3e-39, 1 + 2**-8, 1 + 3 * 2**-8, -127.5, 254.0)


def numbers(count: int, seed: int = 0) -> torch.Tensor:
    made = torch.randn(count, generator=torch.Generator().manual_seed(seed)) * 60
    made[: min(count, len(STRANGE))] = torch.tensor(STRANGE[:count])
    return made


def memory(tensor: torch.Tensor) -> memoryview:
    return tensor.numpy().data.cast("B")


def as_torch(given: torch.Tensor, form: PageForm) -> torch.Tensor:
    """What comes back, by torch; checks the bound that the form promises, of numbers that are finite."""
    pages, target = TorchRounding(), torch.empty_like(given)
    pages.decode(pages.coded(memory(given), form, 4096), form, memory(target))
    assert pages.largest_share <= 1.0
    return target


@pytest.fixture(params=[0, 64 * 1024], ids=["cache", "direct"])
def pages(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PageFile]:
    made = PageFile(slots_for({"t": 500_000}), path=None, folder=tmp_path, buffer_bytes=request.param)
    yield made
    made.close()


@pytest.mark.parametrize("form", PageForm)
@pytest.mark.parametrize("count", [1, 3, 4096, 32767, 120_001])
def test_numbers_come_back_as_torch_rounds_them(count: int, form: PageForm, pages: PageFile) -> None:
    given, target = numbers(count), torch.full((count,), torch.nan)
    if form is PageForm.BF16:
        given *= torch.linspace(-80, 80, count).exp()  # of all magnitudes
    pages.write("t", memory(given), form)
    pages.read_into("t", memory(target), form)
    assert torch.equal(target.view(torch.int32), as_torch(given, form).view(torch.int32))


@pytest.mark.parametrize("form", PageForm)
def test_a_page_has_the_bytes_that_plans_count(form: PageForm) -> None:
    for count in (1, 5, 4097, 40_000):
        stretches = [bytes(each) for each in rough_pages.coded(memory(numbers(count)), form, 4096)]
        assert sum(map(len, stretches)) == form.coded_bytes(4 * count)


def test_what_is_not_finite_does_not_come_back_as_a_number() -> None:
    for strange in (torch.nan, torch.inf, -torch.inf):
        given = numbers(50)
        given[7] = strange
        back = torch.empty_like(given)
        stretches = rough_pages.coded(memory(given), PageForm.INT8, 4096)
        rough_pages.decode(stretches, PageForm.INT8, memory(back))
        assert back.isnan().all()
        rough_pages.decode(rough_pages.coded(memory(given), PageForm.BF16, 4096), PageForm.BF16, memory(back))
        assert back[7].isnan() if given[7].isnan() else back[7] == given[7]


def test_other_bytes_in_a_page_are_found_out(pages: PageFile) -> None:
    given = numbers(40_000)
    pages.write("t", memory(given), PageForm.INT8)
    pages._transfers.write(4096 + 20_480, memoryview(bytes(4096)))
    with pytest.raises(PageFileError, match="came back with other bytes"):
        pages.read_into("t", memory(given), PageForm.INT8)


# --- plans ------------------------------------------------------------------------------------


def net() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 5)]
    return nn.Sequential(*layers).train()


@pytest.fixture(scope="module", params=["bf16-pages", "int8-pages"])
def plan(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "rough.poet"
    planned = poet.plan(
        net(), torch.randn(SHAPE), device="rpi4b", ram="400KiB", recompute=False, evaluation=False,
        pins=poet.Pins(page=("tanh*",)), time_limit_seconds=0.5, allow=[request.param],
    )  # fmt: skip
    planned.save(path)
    return path


def test_the_plan_says_what_is_rounded_and_how_far(plan: Path) -> None:
    with PlanFile(plan) as file:
        found = file.plan
    (form,) = set(found.rounded.values())
    assert (
        {"tanh", "tanh_1"}
        <= found.rounded.keys()
        <= {step.tensor for step in found.schedule if isinstance(step, PageIn)}
    )
    sizes = {slot.tensor: slot.size_bytes for slot in found.slots}
    assert sizes["tanh"] == form.coded_bytes(4 * 64 * 128)
    tensor = next(each for each in found.problem.tensors if each.name == "tanh")
    assert found.trace.read_bytes >= 2 * tensor.storage_bytes
    assert tensor.storage_bytes < tensor.bytes
    code, out, _ = invoke("explain", plan)
    said = " ".join(out.split())
    assert code == 0
    assert f"Not exact: tensors are rounded in storage: {len(found.rounded)} as {form.number}" in said
    assert form.error in said
    assert f"rounded to {form.number}" in said
    assert f"rounded in storage: {len(found.rounded)} as {form.number}" in plan_page(found)
    assert not any(word in said.lower() for word in ("bit for bit", "equal", "same bits"))
    _, told, _ = invoke("explain", plan, "--json", "-")
    rounded = json.loads(told[told.index("{") :])["rounded"]
    assert rounded["tanh"] == {"form": form.value, "error": form.error}


def test_it_is_verified_by_its_rounding(plan: Path, tmp_path: Path) -> None:
    report = verify(plan, module=net(), threads=(1, 2))
    assert report
    assert not report.exact
    assert report.rounding is not None
    assert 0.5 < report.rounding.page_error <= 1.0
    assert 0 < report.rounding.gradient_error < 0.05
    with PlanFile(plan) as file, pytest.raises(PlanError, match=r"tanh\S* is rounded in storage"):
        c_project(file)


def test_verification_finds_another_rounding(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One level, or the last bit, too far from zero."""
    whole = rough_pages.decode

    def worse(stretches: object, form: PageForm, target: memoryview) -> None:
        whole(stretches, form, target)  # type: ignore[arg-type]
        found = np.frombuffer(target, np.float32)
        found[5] *= np.float32(1.001)

    monkeypatch.setattr(rough_pages, "decode", worse)
    report = verify(plan, module=net(), threads=(1,))
    assert not report
    with pytest.raises(NotExact, match="step 1 with pages that torch rounds"):
        report.require()


def test_training_goes_on_from_what_it_saved(plan: Path, tmp_path: Path) -> None:
    inputs, targets = torch.randn(SHAPE), torch.randint(5, (SHAPE[0],))
    with Trainer.open(plan, seed=0) as trainer:
        first = trainer.step(inputs, targets).loss
        trainer.save(tmp_path / "state.safetensors")
        second = trainer.step(inputs, targets).loss
    with Trainer.open(plan, resume=tmp_path / "state.safetensors") as trainer:
        assert trainer.step(inputs, targets).loss == second != first


def test_nothing_is_rounded_unasked(tmp_path: Path) -> None:
    asked = {"device": "rpi4b", "ram": "400KiB", "time_limit_seconds": 1.0, "evaluation": False}
    pins = poet.Pins(page=("tanh*",))
    planned = poet.plan(net(), torch.randn(SHAPE), recompute=False, pins=pins, **asked)  # type: ignore[arg-type]
    assert not planned.plan.rounded
    with pytest.raises(InputError, match="allow 'fp8-pages' is not one of bf16-pages, int8-pages"):
        poet.plan(net(), torch.randn(SHAPE), allow=["fp8-pages"], **asked)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("form", PageForm)
@pytest.mark.parametrize("seed", [1, 5])
def test_random_schedules_give_the_rounding_of_torch_and_nothing_else(
    seed: int, form: PageForm, tmp_path: Path
) -> None:
    """Everything that may be is rounded in storage, gradients too, and some of it more than once."""
    path = tmp_path / "random.poet"
    step = trace_training_step(small_net(), torch.zeros(6, 2, 8, 8), measure=False)
    made = hand_net.write_step(path, step, seed, share=0.7, form=form)
    assert len(made.rounded) > 3
    report = verify(path, module=small_net(), threads=(1,), arena=False)
    assert report, report
    report = verify(path, module=small_net(), threads=(2,), steps=1)
    assert report, report
    words = Console(width=200, record=True, file=io.StringIO())
    words.print(verify_report(report))
    said = words.export_text()
    assert f"not exact: tensors are rounded in storage: {len(made.rounded)} as {form.number}" in said
    assert "within the rounding of its pages: yes" in said
    assert "equal" not in said
    assert json.loads(json.dumps(verify_data(report)))["exact"] is False
