"""Exported folders: built as users build them, trained, held against PyTorch and against each other."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.c_build import COPY, SYNC, CStep, StorageRecord, build
from helpers.c_nets import EVERY, net_of
from helpers.c_plans import CNet, traced
from helpers.pace import with_slow
from mlperf_tiny import NETS, ds_cnn
from torch import nn

from poet.c99.vectors import PlainSteps, given_tensors

STEPS = 4


ALLOWED, FLOOR, LUCK = 8.0, 2.0**-21, 1e-4
"""How often torch's own error is allowed; the share of a loss, and that of a tensor's largest change, that
always is: in a tensor of six numbers torch may happen to be exact, where its usual error is up to 2e-4."""


Trained = tuple[list[float], int]
"""Losses of some steps, and the CRC of the state after them."""


KeptOf = Callable[[str, str], Trained]


@pytest.fixture(scope="module")
def kept_of(tmp_path_factory: pytest.TempPathFactory) -> KeptOf:
    """What every plan of a net must give: the plan that keeps everything, compiled as it is written."""
    found: dict[tuple[str, str], Trained] = {}

    def of(name: str, optimizer: str) -> Trained:
        if (name, optimizer) not in found:
            folder, net = tmp_path_factory.mktemp("kept") / "c", net_of(name, optimizer)
            project = net.project(folder)
            found[name, optimizer] = _trained(CStep(project, build(folder, "-O0"), graph=net.step.graph))
        return found[name, optimizer]

    return of


def _trained(step: CStep, steps: int = STEPS) -> Trained:
    losses = []
    for number in range(steps):
        step.fill(given_tensors(step.graph, step.project.interface, number))
        losses.append(step.step())
    return losses, step.crc()


CASES = [(name, optimizer) for name in EVERY for optimizer in ("sgd", "momentum", "adamw")]


@pytest.mark.parametrize(("name", "optimizer"), with_slow(CASES, set(CASES) - {("micro", "sgd")}))
def test_each_step_from_pytorchs_state_is_right(name: str, optimizer: str, tmp_path: Path) -> None:
    """What a step changes, in C and in PyTorch, against the same step in float64.

    Of AdamW the mean of the gradients: where the true gradient is zero, as of a bias before batch norm, its
    update makes noise as large as any other. Such a gradient is a sum of terms that cancel, so that what they
    lose in rounding is measured by the largest change of any tensor.
    """
    net, graph = net_of(name, optimizer), net_of(name, optimizer).step.graph
    project = net.project(tmp_path / "c", 5)
    step = CStep(project, build(tmp_path / "c", "-O2"), graph=graph)
    types = {value.name: value.type for value in graph.values}
    begins = {name: torch.from_numpy(bits) for name, bits in step.kept().items()}
    counters = {graph.buffer_of(value) for _, value in graph.states if types[value].dtype == "int64"}
    kept = {name: flat.view(torch.int64) if name in counters else flat for name, flat in begins.items()}
    watched = [graph.buffer_of(item.value) for item in graph.parameters if optimizer != "adamw"]
    states = [pair for item in graph.parameters for pair in item.optimizer_state]
    watched += [graph.buffer_of(value) for kind, value in states if kind != "exp_avg_sq"]
    for number in range(STEPS):
        given = given_tensors(graph, project.interface, number)
        plain = _at(net, kept, number)
        exact = _at(net, kept, number, is_double=True)
        for span in project.spans:
            bits = kept[span.name].contiguous().view(torch.float32).numpy()
            step.arena[span.word : span.word + span.words] = bits
        for runner in (plain, exact):
            runner.fill(given)
        step.fill(given)
        loss, by_torch, right = step.step(), plain.step(), exact.step()
        assert abs(loss - right) <= ALLOWED * abs(by_torch - right) + FLOOR * (1.0 + abs(right))
        after = step.kept()
        largest = max(
            float((exact.tensors[buffer] - kept[buffer].double()).abs().max()) for buffer in watched
        )
        for buffer in watched:
            before = kept[buffer].double()
            change = exact.tensors[buffer] - before
            by_c = torch.from_numpy(after[buffer]).double() - before
            own = plain.tensors[buffer].double() - before
            rounding = 2.0**-22 * float(before.abs().max())
            allowed = ALLOWED * float((own - change).abs().max()) + rounding
            allowed += LUCK * float(change.abs().max()) + FLOOR * largest
            assert float((by_c - change).abs().max()) <= allowed, (buffer, number)
        for buffer in counters:
            assert after[buffer].view(np.int64).tolist() == plain.tensors[buffer].tolist()
        kept = {name: plain.tensors[name].clone() for name in kept}


def _at(net: CNet, kept: dict[str, torch.Tensor], steps: int, *, is_double: bool = False) -> PlainSteps:
    runner = PlainSteps(net.step.graph, net.step.optimizer, kept, is_double=is_double)
    runner.steps = steps
    return runner


@pytest.mark.parametrize("name", with_slow(EVERY, NETS))
def test_a_prediction_is_that_of_evaluation_mode(name: str, tmp_path: Path) -> None:
    """After two steps, with the parameters and statistics that these left."""
    net = net_of(name, "sgd")
    project = net.project(tmp_path / "c", 3)
    step = CStep(project, build(tmp_path / "c", "-O1"), graph=net.step.graph)
    _trained(step, 2)
    module = EVERY[name].smaller().eval()
    kept = {key: torch.from_numpy(bits) for key, bits in step.kept().items()}
    with torch.no_grad():
        for key, tensor in module.state_dict().items():
            tensor.copy_(kept[key].view(tensor.dtype).reshape(tensor.shape))
    given = given_tensors(net.step.graph, project.interface, 7)
    step.fill({key: given[key] for key in net.step.graph.inputs[:1]})
    before = step.crc()
    found = step.predict()
    assert step.crc() == before
    inputs = given[net.step.graph.inputs[0]]
    own = module(inputs).detach().double()
    exact = module.double()(inputs.double()).detach()
    allowed = ALLOWED * float((own - exact).abs().max()) + FLOOR * float(exact.abs().max())
    assert float((torch.from_numpy(found).reshape(exact.shape) - exact).abs().max()) <= allowed
    step.fill(given)
    assert step.step() > 0.0


@pytest.mark.parametrize("name", with_slow(EVERY, NETS))
def test_homes_in_storage_give_the_same_bits(name: str, kept_of: KeptOf, tmp_path: Path) -> None:
    """Parameters, statistics and momentum live in storage: written there at the start, saved, loaded."""
    net, kept = net_of(name, "momentum"), kept_of(name, "momentum")
    project = net.project(tmp_path / "c", 5, homes=True)
    assert any(span.home is not None for span in project.spans)
    step = CStep(project, build(tmp_path / "c", "-O1"), graph=net.step.graph)
    assert _trained(step) == kept
    assert "There is no poet_predict" in project.files["poet_step.h"]
    written = sum(project.statements.written)
    assert f"; a step writes {written} bytes, " in project.files["README.md"]
    assert "; a commit " in project.files["README.md"]
    saved = bytearray(4 * len(step.pages) + 65536)

    def read(_: int, offset: int, target: int, size: int) -> int:
        ctypes.memmove(target, bytes(saved[offset : offset + size]), size)
        return 0

    def write(_: int, offset: int, source: int, size: int) -> int:
        saved[offset : offset + size] = ctypes.string_at(source, size)
        return 0

    other = StorageRecord(None, COPY(read), COPY(write), SYNC(lambda _: 0))
    assert step.library.poet_load(step.net, ctypes.byref(other)) == 4, "nothing was saved"
    again = _trained(step)
    assert again == kept, "begun anew, in storage as well"
    assert step.library.poet_save(step.net, ctypes.byref(other)) == 0
    step.pages[:] = bytes(len(step.pages))
    assert step.crc() != again[1]
    assert step.library.poet_load(step.net, ctypes.byref(other)) == 0
    assert step.crc() == again[1]


def test_frozen_weights_come_back_from_the_constants(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    module[2].requires_grad_(False)
    net = traced(module, torch.randn(4, 5), loss="mse")
    found = []
    for seed, pages in ((None, False), (1, True)):
        project = net.project(tmp_path / f"c{pages}", seed, pages=pages)
        assert ("    restore(net, " in project.files["poet_step.c"].partition("poet_init")[0]) == pages
        step = CStep(project, build(tmp_path / f"c{pages}", "-O1"), graph=net.step.graph)
        found.append(_trained(step))
    assert found[0] == found[1]


@pytest.mark.slow
def test_dropout_draws_the_same_masks_in_every_plan(tmp_path: Path) -> None:
    """Masks follow the seed and are of the right share; PyTorch's they are not."""
    torch.manual_seed(0)
    net = traced(ds_cnn(5, 1, 0.2), torch.randn(2, 1, 13, 6))
    found = []
    for seed, mask_seed in ((None, 1), (2, 1), (2, 2)):
        folder = tmp_path / f"{seed}-{mask_seed}"
        project = net.project(folder, seed)
        step = CStep(project, build(folder, "-O1"), graph=net.step.graph, seed=mask_seed)
        found.append(_trained(step))
    assert found[0] == found[1]
    assert found[0][0] != found[2][0]
    assert step.predict().shape == (24,), "two rows of twelve classes, without masks"
