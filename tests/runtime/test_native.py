"""The native allocator: exact counts, a cap that holds, steps replayed in one arena, no way to crash it."""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers.native_steps import NETS, lies_in, loaded, recorded, run_python, training
from helpers.pace import with_slow

from poet.errors import ReplayError
from poet.runtime import native
from poet.runtime.native import NativeAllocator, Placement, RecordedStep
from poet.runtime.native.placement import Allocation


@pytest.fixture
def allocator() -> Iterator[NativeAllocator]:
    yield from loaded()


# --- counting ---


@pytest.mark.parametrize("net", with_slow(NETS, {"transformer"}))
@pytest.mark.slow
def test_counts_are_those_of_torchs_own_profiler(allocator: NativeAllocator, net: str) -> None:
    """In a fresh process: the profiler remembers addresses from one profile to the next."""
    output = run_python(
        """
        import itertools, sys, torch
        from poet.runtime import native
        from helpers.native_steps import training
        module, step = training(sys.argv[1])
        step()
        module.zero_grad()
        with native.load().tracking() as tracked:
            with torch.autograd.profiler.profile(profile_memory=True) as profile:
                step()
        events = [event for event in profile.kineto_results.events() if event.name() == "[memory]"]
        changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
        running = list(itertools.accumulate(changes))
        print(sum(change > 0 for change in changes), running[-1], max(running))
        print(tracked.counts().requests, tracked.live_bytes, tracked.peak_bytes)
        """,
        net,
    )
    profiled, counted = output.splitlines()
    assert profiled == counted
    assert int(counted.split()[2]) > 100_000


def test_scopes_nest_and_each_has_its_own_peak(allocator: NativeAllocator) -> None:
    with allocator.tracking() as outer:
        kept = torch.empty(1000, dtype=torch.uint8)
        torch.empty(5000, dtype=torch.uint8)
        with allocator.tracking() as inner:
            torch.empty(0)
            torch.empty(2000, dtype=torch.uint8)
            del kept
        assert (inner.live_bytes, inner.peak_bytes, inner.counts().requests) == (-1000, 2000, 1)
    assert (outer.live_bytes, outer.peak_bytes, outer.counts().requests) == (0, 6000, 3)


def test_a_tensor_may_outlive_its_scope_and_grow(allocator: NativeAllocator) -> None:
    before = torch.arange(1000)
    with allocator.tracking() as tracked:
        inside = torch.arange(1000)
        before.resize_(5000)
    assert tracked.live_bytes > 0
    inside.resize_(100_000)
    assert torch.equal(inside[:1000], torch.arange(1000))
    assert torch.equal(before[:1000], torch.arange(1000))


def test_onednn_tensors_may_cross_the_border_both_ways(allocator: NativeAllocator) -> None:
    """ideep frees its memory through whichever allocator is registered at that time."""
    dense = torch.randn(8, 16)
    before = dense.to_mkldnn()
    with allocator.tracking() as tracked:
        inside = dense.to_mkldnn()
        assert tracked.live_bytes >= 8 * 16 * 4
        del before
    assert torch.equal(inside.to_dense(), dense)
    del inside
    with allocator.tracking():
        assert torch.equal(dense.to_mkldnn().to_dense(), dense)


# --- the cap ---


def test_a_request_over_the_cap_names_bytes_and_cap_and_training_goes_on(allocator: NativeAllocator) -> None:
    module, step = training("convolutional")
    reference, plain_step = training("convolutional")
    plain = [plain_step() for _ in range(3)]
    losses = [step()]
    with allocator.tracking() as tracked:
        losses.append(step())
    used_bytes = allocator.usage().footprint_bytes
    cap_bytes = used_bytes + tracked.peak_bytes // 2
    with allocator.tracking() as capped, allocator.capped(cap_bytes):
        with pytest.raises(
            torch.OutOfMemoryError, match=rf"^poet: \d+ bytes asked for .* the cap is {cap_bytes} bytes$"
        ):
            step()
        assert capped.counts().refused == 1
    losses.append(step())
    assert losses == plain
    for name, tensor in module.state_dict().items():
        if "running" not in name and "tracked" not in name:  # the refused forward pass updated those
            assert torch.equal(tensor, reference.state_dict()[name]), name


def test_caps_nest_and_bound_arenas(allocator: NativeAllocator) -> None:
    used_bytes = allocator.usage().footprint_bytes
    with allocator.capped(used_bytes + 1_000_000):
        with allocator.capped(used_bytes + 1000):
            with pytest.raises(torch.OutOfMemoryError):
                torch.empty(1001, dtype=torch.uint8)
            with pytest.raises(ReplayError, match="more than the cap leaves"):
                allocator.arena(1_000_000)
        with allocator.arena(900_000):
            with pytest.raises(torch.OutOfMemoryError):
                torch.empty(200_000, dtype=torch.uint8)
            torch.empty(50_000, dtype=torch.uint8)
    with pytest.raises(ReplayError, match="-1 bytes"), allocator.capped(-1):
        pass


def test_an_arena_that_the_system_refuses_is_one_error(allocator: NativeAllocator) -> None:
    with pytest.raises(ReplayError, match="more than the system gives"):
        allocator.arena(1 << 60)


# --- placing ---


@pytest.mark.parametrize(
    ("net", "threads"),
    with_slow([(net, count) for net in NETS for count in (1, 2)], {("transformer", 2), ("convolutional", 2)}),
)
def test_a_replayed_step_is_bitwise_equal_without_a_miss(
    allocator: NativeAllocator, net: str, threads: int
) -> None:
    torch.set_num_threads(threads)
    plain_module, plain_step = training(net)
    plain = [plain_step() for _ in range(8)]
    module, step = training(net)
    placement = recorded(allocator, step)
    losses = []
    with allocator.arena(placement.arena_bytes) as arena, arena.replay(placement) as replay:
        for _ in range(5):
            with replay.step():
                losses.append(step())
        heap_bytes = allocator.usage().heap_bytes
        assert all(lies_in(arena.address, arena.size_bytes, p.grad) for p in module.parameters())
    counts = replay.counts()
    assert (counts.misses, counts.foreign, counts.unplanned) == (0, 0, 0)
    assert counts.placed == counts.requests == 5 * len(placement.sizes_bytes)
    assert allocator._library.c.poet_attached(), "the gradients lie in the arena"
    assert losses == plain[3:]
    for mine, theirs in zip(module.state_dict().values(), plain_module.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)
    module.zero_grad()
    assert allocator.usage().heap_bytes == heap_bytes


def test_ops_are_matched_by_their_marks(allocator: NativeAllocator) -> None:
    """An op that is skipped, or asks for other sizes, does not put the others out of step."""

    def step(second: int = 3000) -> None:
        for op, size in enumerate((1000, second, 2000)):
            allocator.mark(op)
            torch.empty(size, dtype=torch.uint8)

    with allocator.recording() as recording:
        for _ in range(2):
            with recording.step():
                step()
    assert [(a.op, a.size_bytes) for a in recording.steps[0].allocations] == [
        (0, 1000), (1, 3000), (2, 2000),
    ]  # fmt: skip
    placement = native.place(recording.steps)
    with allocator.arena(placement.arena_bytes) as arena, arena.replay(placement) as replay:
        for second in (3000, 4000):
            with replay.step():
                step(second)
    assert (replay.counts().placed, replay.counts().misses) == (5, 1)


def test_what_lives_too_long_is_left_on_the_heap(allocator: NativeAllocator) -> None:
    kept: list[torch.Tensor] = []
    one = torch.ones(100)

    def step() -> None:
        kept.append(one.cumsum(0))
        kept[-1].exp()

    placement = recorded(allocator, step)
    assert placement.offsets_bytes.count(native.ON_HEAP) == 1
    with allocator.arena(placement.arena_bytes) as arena, arena.replay(placement) as replay, replay.step():
        step()
    assert (replay.counts().placed, replay.counts().unplanned, replay.counts().misses) == (1, 1, 0)
    assert all(torch.equal(tensor, one.cumsum(0)) for tensor in kept)


def test_steps_that_differ_are_not_placed(allocator: NativeAllocator) -> None:
    with allocator.recording() as recording:
        for size in (1000, 2000):
            with recording.step():
                torch.empty(size, dtype=torch.uint8)
    with pytest.raises(ReplayError, match="op 0 asked for 1000 bytes 1 times, then 0 times"):
        native.place(recording.steps)
    with pytest.raises(ReplayError, match="record two"):
        native.place(recording.steps[:1])


@pytest.mark.parametrize("seed", range(10))
def test_blocks_alive_together_never_overlap(seed: int) -> None:
    """The judge replays random lifetimes over three steps and knows nothing of how they were placed."""
    step = _random_step(random.Random(seed))
    placement = native.place([step, step], time_limit_seconds=0.05)
    events: list[tuple[int, int, int, int]] = []
    ordered = sorted(step.allocations, key=lambda a: a.op)
    for repeat in range(3):
        for index, (a, offset) in enumerate(zip(ordered, placement.offsets_bytes, strict=True)):
            shift = repeat * step.ticks
            assert (offset == native.ON_HEAP) == (
                a.died_tick is None or a.died_tick >= a.born_tick + step.ticks
            )
            if a.died_tick is not None and offset != native.ON_HEAP:
                assert offset % (4096 if a.size_bytes >= 65536 else 64) == 0
                events += [
                    (a.born_tick + shift, 1, offset, a.size_bytes),
                    (a.died_tick + shift, 0, offset, index),
                ]
    living: dict[int, int] = {}
    for _, born, offset, size in sorted(events):
        if not born:
            del living[offset]
            continue
        assert offset + size <= placement.arena_bytes
        assert all(offset + size <= start or start + held <= offset for start, held in living.items())
        living[offset] = size


def _random_step(generator: random.Random) -> RecordedStep:
    count = 60
    ticks = list(range(2 * count))
    generator.shuffle(ticks)
    allocations = []
    for index in range(count):
        born, died = ticks[2 * index : 2 * index + 2]
        if died < born:  # released by the next step, or never within reach
            died += 2 * count
        size = generator.choice([generator.randrange(1, 60_000), generator.randrange(65_536, 300_000)])
        allocations.append(Allocation(size, born * 5 // (2 * count), born, died))
    allocations[0] = Allocation(100, allocations[0].op, allocations[0].born_tick, None)
    return RecordedStep(tuple(sorted(allocations, key=lambda a: a.born_tick)), 2 * count)


def test_requests_of_a_parallel_region_may_come_in_any_order() -> None:
    """Each is placed as if all of its region lived together."""
    region = [Allocation(64, 0, 2 * i, 2 * i + 1, parallel=True) for i in range(3)]
    step = RecordedStep((*region, Allocation(64, 0, 6, 7)), 8)
    offsets = native.place([step, step]).offsets_bytes
    assert len(set(offsets[:3])) == 3
    assert offsets[3] in offsets[:3]


def test_residents_and_direct_transfers(allocator: NativeAllocator, tmp_path: Path) -> None:
    """Storage reads into and writes from a place in the arena, past every cache."""
    page_file = tmp_path / "pages"
    with allocator.arena(1 << 20) as arena:
        assert arena.address % mmap.PAGESIZE == 0
        first = arena.empty(0, (128, 1024), torch.float32)
        second = arena.empty(first.nbytes, (128, 1024), torch.float32)
        assert second.data_ptr() == arena.address + first.nbytes
        for offset in (4, first.nbytes - 4, (1 << 20) - 4, -4):
            with pytest.raises(ReplayError, match="are taken or outside"):
                arena.empty(offset, (1024,), torch.float32)
        first.normal_()
        try:
            file = os.open(page_file, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
        except OSError:
            pytest.skip("this file system has no direct transfers")
        assert os.pwritev(file, [first.numpy().data], 0) == first.nbytes
        assert os.preadv(file, [second.numpy().data], 0) == first.nbytes
        os.close(file)
        assert torch.equal(first, second)
        del first, second
        assert arena.empty(4, (3,), torch.float32).shape == (3,)
    with pytest.raises(ReplayError, match="closed"):
        arena.empty(0, (1,), torch.float32)


def test_a_step_that_fails_while_it_is_recorded_does_not_count(allocator: NativeAllocator) -> None:
    module, step = training("transformer")
    step()
    with allocator.recording() as recording:
        with pytest.raises(RuntimeError, match="shapes"), recording.step():
            torch.ones(2, 2) @ torch.ones(3, 3)
        for _ in range(2):
            with recording.step():
                step()
    placement = native.place(recording.steps, time_limit_seconds=0.2)
    with allocator.arena(placement.arena_bytes) as arena, arena.replay(placement) as replay:
        for _ in range(2):
            with replay.step():
                step()
    assert (replay.counts().misses, replay.counts().placed) == (0, 2 * len(placement.sizes_bytes))
    module.zero_grad()


def test_one_recording_and_one_replay_at_a_time(allocator: NativeAllocator) -> None:
    placement = recorded(allocator, lambda: torch.ones(10).sum().item())
    with allocator.arena(placement.arena_bytes) as arena:
        with arena.replay(placement), pytest.raises(ReplayError, match="in flight"), arena.replay(placement):
            pass
        with allocator.recording(), pytest.raises(ReplayError, match="in flight"), allocator.recording():
            pass
        too_large = Placement((), (), (0,), arena.size_bytes + 1)
        with pytest.raises(ReplayError, match="needs 4097 bytes"), arena.replay(too_large):
            pass
