"""Packed weights in C: read in flash, with the bits of float32 weights of the same values; refusals."""

from __future__ import annotations

import ctypes
import fnmatch
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.c_build import CStep, build, needs_cortex_m
from helpers.pace import with_slow
from torch import Tensor, nn

import poet
from poet.c99 import sources
from poet.c99.calls import OpRun, Placed
from poet.c99.ecosystems import for_ecosystem
from poet.c99.exportable import uses_elements
from poet.c99.project import CProject, c_project
from poet.c99.rows import c_calls, overwrites, wants_dense
from poet.c99.targets import Ecosystem
from poet.c99.vectors import given_tensors
from poet.errors import UnsupportedOperator
from poet.frontend.trace import trace_training_step
from poet.ir.calls import Call, Ref, contiguous
from poet.ir.packed import DEQUANTISE, FORMATS, USED_BYTES, BaseSpec, Packed
from poet.passes.base import packed_rows
from poet.plans.plan_file import PlanFile
from poet.runtime.kernels.dequantised import as_used, dequantise
from poet.verification import verify


def _linear() -> tuple[nn.Module, Tensor, tuple[str, ...]]:
    """Products with weights on either side of trained ones: of 2.4 blocks of 32 inputs, of 3 of outputs."""
    sizes = ((64, 96), (96, 32), (32, 80), (80, 10))
    layers = [layer for size in sizes for layer in (nn.Linear(*size), nn.ReLU())]
    return nn.Sequential(*layers[:-1]), torch.randn(3, 64), ("2.*", "6.*")


def _images() -> tuple[nn.Module, Tensor, tuple[str, ...]]:
    """A frozen norm, windows, channels each by itself, points at strides of 1 and 2; several images."""
    module = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU6()),
        *(nn.Conv2d(32, 32, 3, padding=1, groups=32), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 24, 1), nn.BatchNorm2d(24), nn.ReLU6()),
        *(nn.Conv2d(24, 96, 1, stride=2), nn.ReLU(), nn.Conv2d(96, 64, 1), nn.ReLU()),
        *(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(64, 10)),
    )
    return module, torch.randn(2, 3, 8, 8), ("7.*", "15.*")


class _Words(nn.Module):
    """A frozen table, of which a step reads some rows, and a frozen head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.inner, self.head = nn.Embedding(11, 32), nn.Linear(32, 64), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.tanh(self.inner(self.words(x).mean(1))))
        return scores


def _words() -> tuple[nn.Module, Tensor, tuple[str, ...]]:
    return _Words(), torch.randint(11, (2, 4)), ("inner.*",)


NETS = {"linear": _linear, "images": _images, "words": _words}


def _planned(name: str, base: str | None, path: Path, **more: object) -> nn.Module:
    """Write the plan of a net with its frozen weights packed, or of float32 that packed ones stand for."""
    torch.manual_seed(0)
    module, inputs, train = NETS[name]()
    if base is None:
        spec = BaseSpec.parse(str(more.pop("like")))
        with torch.no_grad():
            for key, item in module.named_parameters():
                how = spec.packed(key, tuple(item.shape))
                if how and not any(fnmatch.fnmatch(key, pattern) for pattern in train):
                    item.copy_(as_used(packed_rows(item, how), how))
    given: dict[str, object] = {"ram": None, "evaluation": False, "time_limit_seconds": 2, "train": train}
    poet.plan(module, inputs, device="nrf52840", base=base, **(given | more)).save(path)  # type: ignore[arg-type]
    return module


def _project(path: Path) -> tuple[CProject, CStep]:
    """The C of a plan, written beside it and built."""
    with PlanFile(path) as file:
        project, graph = c_project(file), file.plan.graph
    folder = path.with_suffix("")
    project.write(folder)
    source = folder / "lib"
    source.mkdir()
    for each in folder.glob("poet_*.[ch]"):
        if "library" not in each.name and "storage" not in each.name:
            (source / each.name).write_text(each.read_text())
    return project, CStep(project, build(source, "-O1"), graph=graph)


def _trained(path: Path) -> tuple[list[float], dict[str, bytes]]:
    """The losses of three steps, and the bits of what lives across them."""
    project, step = _project(path)
    losses = []
    for number in range(3):
        step.fill(given_tensors(step.graph, project.interface, number))
        losses.append(step.step())
    return losses, {name: item.tobytes() for name, item in step.kept().items()}


_CASES = [(name, base) for name in NETS for base in FORMATS]


@pytest.mark.parametrize(("name", "base"), with_slow(_CASES, {*_CASES[1:3], *_CASES[3:5], *_CASES[6:8]}))
def test_the_bits_are_those_of_float32_weights(name: str, base: str, tmp_path: Path) -> None:
    """Of three steps, in C; in PyTorch the plan is exact, and neither counts RAM for packed bytes."""
    module = _planned(name, base, tmp_path / "packed.poet")
    _planned(name, None, tmp_path / "plain.poet", like=base)
    with PlanFile(tmp_path / "packed.poet") as file:
        graph, problem = file.plan.graph, file.plan.problem
    packed = graph.in_flash("poet-c99")
    assert len(packed) == sum(item.packed is not None for item in graph.parameters) > 0
    assert {item.bytes for item in problem.tensors if item.name in packed} == {0}
    inside = {op.name for op in graph.ops if op.strip and op.strip.links[0].call.target == DEQUANTISE}
    assert inside
    assert {op.workspace_bytes for op in problem.ops if op.name in inside} == {USED_BYTES}
    verify(tmp_path / "packed.poet", module=module).require()
    losses, kept = _trained(tmp_path / "packed.poet")
    expected, plain = _trained(tmp_path / "plain.poet")
    assert losses == expected
    assert kept == {key: plain[key] for key in kept}
    assert {graph.buffer_of(item.value) for item in graph.parameters if item.gradient} <= kept.keys()
    assert packed.isdisjoint(kept)


def test_a_plan_that_makes_things_again_gives_the_same_bits(tmp_path: Path) -> None:
    """With a workspace in each run, in less RAM than everything takes."""
    _planned("images", "int8", tmp_path / "kept.poet")
    with PlanFile(tmp_path / "kept.poet") as file:
        peak_bytes = file.plan.step_peak_ram_bytes
    module = _planned("images", "int8", tmp_path / "less.poet", ram=int(0.75 * peak_bytes), home="either")
    with PlanFile(tmp_path / "less.poet") as file:
        assert file.plan.step_peak_ram_bytes < peak_bytes
    verify(tmp_path / "less.poet", module=module).require()
    project, step = _project(tmp_path / "less.poet")
    kept, other = _project(tmp_path / "kept.poet")
    for number in range(3):
        step.fill(given_tensors(step.graph, project.interface, number))
        other.fill(given_tensors(other.graph, kept.interface, number))
        assert step.step() == other.step()


def test_predictions_read_packed_weights_and_write_over_operands(tmp_path: Path) -> None:
    """In evaluation mode; the norms' running statistics are those that the steps before have made."""
    module = _planned("images", None, tmp_path / "plain.poet", like="int8")
    _planned("images", "int8", tmp_path / "packed.poet")
    project, step = _project(tmp_path / "packed.poet")
    over = [op for op in step.graph.ops if op.strip is not None and op.strip.overwritten is not None]
    assert {"aten.native_batch_norm.default", "aten.hardtanh.default"} <= {
        op.strip.links[0].call.target for op in over if op.strip
    }
    given = given_tensors(step.graph, project.interface, 0)
    step.fill(given)
    with torch.no_grad():
        expected = module.eval()(given[step.graph.inputs[0]])
    assert np.allclose(step.predict(), expected.numpy().ravel(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("window", "is_over"), [(1, False), (4, True)])
def test_frozen_layers_write_over_operands_where_little_of_them_is_saved(window: int, is_over: bool) -> None:
    """Else what backward reads of them could not be made again."""
    layers = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU6(), nn.AvgPool2d(window))
    module = nn.Sequential(*layers, nn.Conv2d(8, 4, 1), nn.Flatten(), nn.LazyLinear(2))
    module(torch.randn(1, 3, 8, 8))
    step = trace_training_step(
        module, torch.randn(1, 3, 8, 8), train=("4.*", "6.*"), uses_elements=uses_elements,
        overwrites=overwrites, wants_dense=wants_dense, measure=False, has_small_operators=True,
    )  # fmt: skip
    forward = step.graph.ops[: next(at for at, op in enumerate(step.graph.ops) if "avg_pool" in op.name)]
    assert any(op.strip is not None and op.strip.overwritten for op in forward) is is_over


@pytest.mark.parametrize("ecosystem", [Ecosystem.ARDUINO, Ecosystem.ESP_IDF])
def test_libraries_of_ecosystems_have_them_too(ecosystem: Ecosystem, tmp_path: Path) -> None:
    _planned("linear", "q8_0", tmp_path / "net.poet")
    project, step = _project(tmp_path / "net.poet")
    for_ecosystem(project, ecosystem, name="a_step", model="net").write(tmp_path / "a_step")
    source = tmp_path / "a_step" / "src"
    assert "const uint8_t poet_packed[" in (source / "poet_weights.c").read_text()
    other = CStep(project, build(source, "-O2"), graph=step.graph)
    for number in range(3):
        for each in (step, other):
            each.fill(given_tensors(step.graph, project.interface, number))
        assert step.step() == other.step()
    assert step.crc() == other.crc() != 0


@needs_cortex_m
@pytest.mark.slow
def test_the_bits_in_qemu_are_those_of_the_host(tmp_path: Path) -> None:
    """And the packed bytes lie in flash; a board with less of it than the image takes is not linked."""
    _planned("images", "int8", tmp_path / "net.poet")
    with PlanFile(tmp_path / "net.poet") as file:
        project = c_project(file)
    folder = tmp_path / "net"
    project.write(folder)

    def made(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["make", "-C", str(folder), *command], capture_output=True, text=True, check=False
        )

    here, board = made("test"), made("test-cortex-m")
    assert here.returncode == board.returncode == 0, here.stderr + board.stderr
    results = [re.findall(r"(?:bits|CRC) 0x\w+", run.stdout + run.stderr) for run in (here, board)]
    assert results[0] == results[1] != []
    symbols = subprocess.run(
        ["arm-none-eabi-nm", str(folder / "build/test.elf")], capture_output=True, text=True, check=True
    )
    place = re.search(r"^(\w+) \w poet_packed$", symbols.stdout, re.MULTILINE)
    assert place is not None
    assert int(place.group(1), 16) < 0x20000000
    (folder / "build/test.elf").unlink()
    small = made("build/test.elf", "FLASH_BYTES=4096")
    assert small.returncode != 0
    assert "FLASH" in small.stderr


# --- kernels ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_float32_of_any_bytes_is_that_of_python(name: str, tmp_path: Path) -> None:
    """Of every float16 as a scale: subnormal ones, infinities and what is not a number."""
    used = sources.needed(["poet_dequantise", *(f"poet_unpack_{each}" for each in FORMATS)])
    (tmp_path / "poet_kernels.h").write_text(sources.header_text(used))
    (tmp_path / "poet_kernels.c").write_text(sources.source_text(used))
    library = ctypes.CDLL(str(build(tmp_path, "-O2")))
    how = Packed(name, (65_536, 32))
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(0, 256, how.packed_shape, dtype=torch.uint8, generator=generator)
    if name != "int8":
        rows[:, :2] = torch.from_numpy(np.arange(65_536, dtype="<u2").view(np.uint8).reshape(-1, 2))
    made = np.empty(how.shape, np.float32)
    unpack = ctypes.cast(library[f"poet_unpack_{name}"], ctypes.c_void_p)
    library.poet_dequantise(
        ctypes.c_void_p(made.ctypes.data), ctypes.c_void_p(rows.data_ptr()), unpack,
        *(ctypes.c_int32(size) for size in (how.shape[0], how.packed_shape[1], how.columns)),
    )  # fmt: skip
    expected = dequantise(rows, name, how.shape).numpy()
    numbers = ~np.isnan(expected)
    assert np.array_equal(np.isnan(made), ~numbers)
    assert np.array_equal(made.view(np.uint32)[numbers], expected.view(np.uint32)[numbers])


@pytest.mark.parametrize(
    ("rows", "shape", "in_flash", "why"),
    [
        ((4, 36), (4, 33), True, "for uint8"),
        ((4, 36), (5, 32), True, "for uint8"),
        ((4, 36), (4, 32), False, "for uint8"),
        ((4, 36), (0, 32), True, "has no rows"),
    ],
)
def test_what_is_no_packed_weight_is_refused(
    rows: tuple[int, ...], shape: tuple[int, ...], in_flash: bool, why: str
) -> None:
    """A stranger's plan reads nothing beside its weights."""
    values = {"w": Placed(contiguous("uint8", rows), 0, in_flash)}
    run = OpRun(
        "made",
        Call(DEQUANTISE, (Ref("w"), "int8", shape)),
        (Placed(contiguous("float32", shape), 0),),
        values,
    )
    with pytest.raises(UnsupportedOperator, match=why):
        c_calls(run)


def test_packed_bytes_are_read_by_nothing_else() -> None:
    values = {"w": Placed(contiguous("float32", (4, 4)), 0, in_flash=True)}
    run = OpRun(
        "y", Call("aten.relu.default", (Ref("w"),)), (Placed(contiguous("float32", (4, 4)), 0),), values
    )
    with pytest.raises(UnsupportedOperator, match="for a packed weight as it is"):
        c_calls(run)
