"""What must not matter to the native allocator: wrong plans, exceptions, threads, forks, another library."""

from __future__ import annotations

import gc
import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers.native_steps import lies_in, loaded, recorded, run_python, training
from torch import nn

from poet.errors import ReplayError
from poet.runtime.native import NativeAllocator, Placement, build
from poet.runtime.native.allocator import Library


@pytest.fixture
def allocator() -> Iterator[NativeAllocator]:
    yield from loaded()


@pytest.mark.parametrize("broken", ["all at zero", "of another net", "shifted"])
def test_a_wrong_plan_costs_misses_and_not_bits(allocator: NativeAllocator, broken: str) -> None:
    _, plain_step = training("convolutional")
    plain = [plain_step() for _ in range(6)]
    module, step = training("convolutional")
    right = recorded(allocator, step)
    size_bytes = right.arena_bytes
    if broken == "of another net":
        placement = recorded(allocator, training("transformer")[1])
        size_bytes = max(size_bytes, placement.arena_bytes)
    else:
        shift = {"all at zero": 0, "shifted": 64}[broken]
        offsets = tuple(shift * (index % 3) for index, _ in enumerate(right.offsets_bytes))
        placement = Placement(right.sizes_bytes, offsets, right.op_bounds, right.arena_bytes)
    with allocator.arena(size_bytes) as arena, arena.replay(placement) as replay:
        losses = []
        for _ in range(3):
            with replay.step():
                losses.append(step())
    assert losses == plain[3:]
    assert replay.counts().misses > 100
    module.zero_grad()


def test_tensors_that_outlive_step_and_arena_keep_their_values(allocator: NativeAllocator) -> None:
    x = torch.randn(100, 100)

    def step() -> torch.Tensor:
        return (x @ x).exp().sum(0)

    placement = recorded(allocator, lambda: step().sum().item())
    with allocator.arena(placement.arena_bytes) as arena, arena.replay(placement) as replay:
        kept = []
        for _ in range(3):
            with replay.step():
                kept.append(step())
        assert replay.counts().conflicts > 0
    expected = step()
    assert all(torch.equal(tensor, expected) for tensor in kept)
    assert allocator._library.c.poet_attached()
    mapped_bytes = allocator.usage().footprint_bytes
    kept.clear()
    assert not allocator._library.c.poet_attached()
    assert allocator.usage().footprint_bytes <= mapped_bytes - arena.size_bytes


def test_an_exception_in_the_middle_of_a_step_spoils_nothing(allocator: NativeAllocator) -> None:
    module, step = training("convolutional")
    placement = recorded(allocator, step)
    plain_step = training("convolutional")[1]
    plain = [plain_step() for _ in range(4)]
    with allocator.arena(placement.arena_bytes) as arena, arena.replay(placement) as replay:

        def interrupt(_: torch.Tensor) -> None:
            raise KeyboardInterrupt

        def prepare(_: nn.Module, __: object, output: torch.Tensor) -> None:
            output.register_hook(interrupt)  # type: ignore[no-untyped-call]

        hook = module[4].second.register_forward_hook(prepare)  # type: ignore[index]
        state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        with pytest.raises(KeyboardInterrupt), replay.step():
            step()
        hook.remove()
        gc.collect()  # the exception holds the frames, and those hold the step's tensors
        module.load_state_dict(state)
        before = replay.counts()
        with replay.step():
            assert step() == plain[3]
        assert replay.counts().since(before).misses == 0
    module.zero_grad()


def test_other_threads_are_kept_out_of_the_arena(allocator: NativeAllocator) -> None:
    module, step = training("convolutional")
    placement = recorded(allocator, step)
    stop = threading.Event()
    wrong = 0

    def bystander() -> None:
        nonlocal wrong
        sizes = sorted(set(placement.sizes_bytes))
        generator = random.Random(0)
        while not stop.is_set():
            tensor = torch.full((generator.choice(sizes),), 7, dtype=torch.uint8)
            wrong += lies_in(arena.address, arena.size_bytes, tensor) or not bool((tensor == 7).all())

    with allocator.arena(placement.arena_bytes) as arena, arena.replay(placement) as replay:
        thread = threading.Thread(target=bystander)
        thread.start()
        for _ in range(5):
            with replay.step():
                step()
        stop.set()
        thread.join()
    assert (replay.counts().misses, wrong) == (0, 0)
    assert replay.counts().placed == 5 * len(placement.sizes_bytes)
    assert replay.counts().foreign > 0
    module.zero_grad()


@pytest.mark.slow
def test_a_child_of_fork_goes_on_while_a_thread_allocates(allocator: NativeAllocator) -> None:
    output = run_python(
        """
        import os, threading, torch
        from poet.runtime import native
        torch.set_num_threads(1)
        allocator = native.load()
        with allocator.tracking(), allocator.arena(1 << 16) as arena:
            placed = arena.empty(0, (100,), torch.float32).fill_(3)
            stop = threading.Event()
            def busy():
                while not stop.is_set():
                    torch.empty(1000)
            thread = threading.Thread(target=busy)
            thread.start()
            for _ in range(30):
                child = os.fork()
                if child == 0:
                    placed.fill_(5)
                    torch.ones(1000)
                    os._exit(int(placed.sum().item() != 500))
                assert os.waitpid(child, 0)[1] == 0
            stop.set()
            thread.join()
            assert placed.sum().item() == 300
        print("done")
        """
    )
    assert output == "done\n"


@pytest.mark.slow
def test_the_interpreter_may_end_in_the_middle_of_everything(allocator: NativeAllocator) -> None:
    output = run_python(
        """
        from poet.runtime import native
        from helpers.native_steps import recorded, training
        allocator = native.load()
        module, step = training("convolutional")
        placement = recorded(allocator, step)
        arena = allocator.arena(placement.arena_bytes)
        scopes = [allocator.tracking(), arena.replay(placement), allocator.recording()]
        opened = [scope.__enter__() for scope in scopes]
        opened[1].step().__enter__()
        step()
        cycle = [module, step]
        cycle.append(cycle)
        print(bool(allocator._library.c.poet_attached()))
        """
    )
    assert output == "True\n"


def test_another_librarys_allocator_is_respected(allocator: NativeAllocator, tmp_path: Path) -> None:
    """A second copy of the library stands for someone else's."""
    copy = tmp_path / "other.so"
    shutil.copy(build.build_library(), copy)
    other = Library(str(copy))
    assert other.c.poet_attach()
    try:
        with pytest.raises(ReplayError, match="another library"), allocator.tracking():
            pass
        with pytest.raises(ReplayError, match="another library"):
            allocator.arena(4096)
        assert other.c.poet_attached()
    finally:
        other.c.poet_detach()
    with allocator.tracking():
        assert allocator._library.c.poet_attached()
