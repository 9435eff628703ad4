"""Saving piece by piece: the bytes of whole tensors, in memory that does not grow with them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import hand_net
from helpers.schedules import random_schedule
from safetensors.torch import load_file
from torch import Tensor, nn
from zoo.decoder import ADAPTERS, Decoder

import poet
from poet import enforce as enforcement
from poet.errors import PageFileError
from poet.frontend.trace import trace_training_step
from poet.ir.calls import TensorType, contiguous
from poet.planning.exported import export_state
from poet.plans.page_slots import slots_for
from poet.plans.plan_file import write_plan
from poet.plans.run_request import Epoch, RunRequest
from poet.runtime import Trainer, native
from poet.runtime.storage.page_file import PageFile
from poet.runtime.storage.state import bytes_of, raw_tensor
from poet.runtime.storage.transfers import PIECE_BYTES, elements_of, pieces_of, unit_bytes

BUFFER_BYTES = 64 * 1024


@pytest.fixture(params=[BUFFER_BYTES, 0], ids=["direct", "cached"])
def pages(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PageFile]:
    slots = slots_for({"a": 300_000, "b": 5000})
    file = PageFile(slots, path=None, folder=tmp_path, buffer_bytes=request.param)
    yield file
    file.close()


def _bytes(count: int) -> bytes:
    return np.random.default_rng(count).bytes(count)


@pytest.mark.parametrize("unit", [4, 6000])
def test_pieces_of_a_page_are_its_bytes(unit: int, pages: PageFile) -> None:
    content = _bytes(299_996)
    pages.write("a", memoryview(content))
    found = [bytes(piece) for piece in pages.pieces("a", unit)]
    assert b"".join(found) == content
    assert max(map(len, found)) <= PIECE_BYTES
    assert not any(len(piece) % unit for piece in found[:-1])


def test_pieces_of_what_lies_in_another_file(pages: PageFile, tmp_path: Path) -> None:
    content = _bytes(200_000)
    (tmp_path / "other").write_bytes(b"x" * 1004 + content)
    with (tmp_path / "other").open("rb") as other:
        assert pages.find_in(other.fileno(), 1004, "a", memoryview(content))
        assert b"".join(map(bytes, pages.pieces("a", 8))) == content


def test_other_bytes_are_told_after_the_last_piece(pages: PageFile, tmp_path: Path) -> None:
    content = _bytes(200_000)
    with (tmp_path / "other").open("w+b") as other:
        other.write(content)
        other.flush()
        pages.find_in(other.fileno(), 0, "b", memoryview(content))
        other.seek(77_777)
        other.write(b"damage")
        other.flush()
        with pytest.raises(PageFileError, match="b came back with other bytes than were written"):
            list(pages.pieces("b", 4))
    with pytest.raises(PageFileError, match="a was never written whole"):
        next(pages.pieces("a", 4))


def test_any_order_becomes_that_of_c() -> None:
    whole = torch.arange(40 * 60 * 5 * 7, dtype=torch.float32).reshape(40, 60, 5, 7)
    for tensor in (whole, whole.to(memory_format=torch.channels_last), whole.mT, whole[::2], whole[3, 2, 1]):
        pieces = list(pieces_of(tensor))
        assert torch.equal(torch.cat(pieces), tensor.flatten())


def test_where_a_buffer_may_be_cut() -> None:
    last = TensorType("float32", (8, 3, 5, 5), (75, 1, 15, 3))
    assert unit_bytes(last, 2400) == 300
    assert unit_bytes(contiguous("float16", (7, 9)), 126) == 2
    assert unit_bytes(TensorType("float32", (3, 4), (1, 3)), 48) is None  # rows lie across each other
    assert unit_bytes(contiguous("float32", (4,)), 32) is None  # the value is not all of its buffer
    assert unit_bytes(TensorType("float32", (2, 40_000), (40_001, 1)), 320_004) is None  # rows too large
    raw = torch.arange(600, dtype=torch.float32)
    found = elements_of(bytes_of(raw[: 6 * 75]), last)
    assert torch.equal(found, raw.as_strided((6, 3, 5, 5), last.strides).flatten())


def _wide() -> nn.Module:
    """One weight has 2.3 MiB, in channels-last order."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 256, 1), nn.Conv2d(256, 256, 3, padding=1), nn.Flatten(), nn.Linear(1024, 2))
    net = nn.Sequential(*layers)
    with torch.no_grad():
        for item in (layers[0], layers[1]):
            item.weight.data = item.weight.to(memory_format=torch.channels_last)
    return net


def test_a_save_of_what_is_in_storage_takes_no_memory_for_it(tmp_path: Path) -> None:
    step = trace_training_step(_wide(), torch.zeros(1, 3, 2, 2), measure=False, gradients="keep")
    of = hand_net.problem(step.graph, parameters_in_storage=True, kernels=step.kernels)
    plan = hand_net.plan(of, step.graph, random_schedule(of, 1), slack=2.0, kernels=step.kernels)
    write_plan(tmp_path / "p", plan, {value: raw_tensor(tensor) for value, tensor in step.tensors.items()})
    with Trainer.open(tmp_path / "p") as trainer:
        largest = 0
        for value in step.tensors:
            largest = max([largest, *(piece.nbytes for piece in trainer._pieces(value))])
        tracemalloc.start()
        trainer.save(tmp_path / "s")
        assert trainer.not_finite() is None
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        state: dict[str, Tensor] = trainer.state_dict()
    assert largest <= plan.page_buffer_bytes
    assert peak_bytes < 4 * PIECE_BYTES
    saved = load_file(tmp_path / "s")
    assert all(torch.equal(saved[name], tensor) for name, tensor in state.items())
    export_state(tmp_path / "p", tmp_path / "e", state=tmp_path / "s")
    exported = load_file(tmp_path / "e")
    assert exported.keys() == state.keys()
    assert all(torch.equal(exported[name], tensor) for name, tensor in state.items())


@pytest.mark.slow
@pytest.mark.skipif(not native.available(), reason="needs a C++ compiler")
def test_a_run_that_the_kernel_confines_to_its_arena_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table of 15 MiB in parts, frozen; beside the arena there is the page buffer of 64 KiB and no more."""
    torch.manual_seed(0)
    sizes = {
        "layers": 1,
        "rank": 2,
        "width": 128,
        "heads": 2,
        "shared_heads": 1,
        "inner": 192,
        "words": 30_000,
        "length": 8,
    }
    module = Decoder(**sizes)
    planned = poet.plan(
        module,
        torch.zeros(1, 8, dtype=torch.long),
        device="rpi4b",
        ram="8MiB",
        home="storage",
        loss="cross-entropy:dim=-1",
        train=ADAPTERS,
        evaluation=False,
        time_limit_seconds=5,
    )
    request, found = planned.plan.request, planned.plan
    limits = replace(request.limits, ram_budget_bytes=found.arena_ram_bytes + BUFFER_BYTES)
    plan = replace(found, request=replace(request, limits=limits))
    assert plan.page_buffer_bytes == BUFFER_BYTES
    part_bytes = max(item.bytes for item in plan.problem.tensors if item.name.startswith("words.weight["))
    assert part_bytes > 8 * BUFFER_BYTES
    planned = replace(planned, plan=plan)
    planned.save(tmp_path / "p")
    tokens = np.random.default_rng(0).integers(0, 30_000, (2, 8))
    np.savez(tmp_path / "data.npz", inputs=tokens, targets=tokens)
    run = RunRequest(
        plan=str(tmp_path / "p"),
        data=str(tmp_path / "data.npz"),
        budget_bytes=plan.held_bytes + plan.page_buffer_bytes,
        arena="require",
        output=str(tmp_path / "s"),
        save_every=1,
    )
    epochs: list[Epoch] = []
    done = enforcement.enforce(run, on_epoch=epochs.append)
    assert done.plan.steps == 2
    assert done.plan.memory is not None
    assert done.plan.memory.endswith("as planned")
    saved = load_file(tmp_path / "s")
    state = module.state_dict()
    assert saved.keys() >= state.keys()
    changed = {name for name, tensor in state.items() if not torch.equal(saved[name], tensor)}
    assert changed == {name for name in state if name.endswith((".up", ".down"))}  # the adapters
    with Trainer.open(tmp_path / "p", resume=tmp_path / "s") as trainer:
        assert trainer.steps == 2
