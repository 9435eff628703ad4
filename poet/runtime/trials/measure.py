"""What torch's kernels need and take on this machine, each run by itself, for an import.

Every distinct call (operator, arguments, types of its tensors) runs on tensors of exactly the
recorded layout, made for it and dropped again. Three things come out: the hidden temporaries, from
the allocator's own events; the time; and whether the kernel's outputs really are what fake tracing
said. Where they are not (an LSTM's workspace, whose size fake tensors do not know), the graph is put
right, and everything after sees the corrected type.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from poet.errors import ModelError
from poet.ir.graph import ITEM_BYTES, Argument, Call, Graph, Op, Ref, TensorType, Value
from poet.ir.kernel_facts import KernelAllocation, KernelFacts, OpFacts, peak_bytes
from poet.ir.operators import MIS_TRACED, SPECS
from poet.runtime import kernels, native
from poet.runtime.kernels import ALIGNMENT_BYTES, LIBRARY, arguments
from poet.runtime.kernels.arguments import same_layout, tensor_type
from poet.runtime.kernels.guards import check_calls
from poet.runtime.kernels.strips import StripRun, signature

_RUNS = 3
_TIMING_SECONDS = 0.05  # more runs of a kernel only within this time
_LONG_SECONDS = 1.0  # what takes longer is timed while it is recorded: mapping memory is little of that
_LINE_ELEMENTS = 64  # as many as a line of any cache may have
_FILL = 1.0  # for float inputs; integers are 0, a valid index everywhere, and 1 where they divide
_DIVIDE = frozenset(name for name, spec in SPECS.items() if spec.divides)

Findings = dict[object, "_Finding"]
"""What runs of kernels showed, by what they did on which types."""


def measured(
    graph: Graph,
    *,
    times: bool = True,
    known: Findings | None = None,
    told: KernelFacts | None = None,
    is_timed: bool = True,
) -> tuple[Graph, KernelFacts]:
    """``graph`` with its outputs as the kernels really give them, and what each op's kernel needs and takes.

    torch's generator is left as it was.

    Args:
        graph: as traced.
        times: ``False`` runs only the kernels whose outputs tracing does not know; nothing is known of the
            others then.
        known: what is not run again; this graph's are added.
        told: facts of ops that are not run either.
        is_timed: ``False`` runs each kernel once, and its time is not known then.

    Raises:
        ModelError: a kernel's output is laid out otherwise than traced, and something views it.
        PlanError: a call is one that its kernel would not survive.
    """
    check_calls(graph)
    bench = _Bench(graph, {} if known is None else known, is_timed=is_timed)
    skipped = {} if told is None else {op.name: op for op in told.ops}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        ops = tuple(
            skipped.get(op.name) or bench.measure(op)
            for op in graph.ops
            if times or op.call.target in MIS_TRACED
        )
    facts = KernelFacts(
        LIBRARY, ops, alignment_bytes=ALIGNMENT_BYTES, threads=torch.get_num_threads() if times else None
    )
    corrected = replace(
        graph,
        values=tuple(replace(value, type=bench.types[value.name]) for value in graph.values),
        buffers=tuple(replace(item, size_bytes=bench.size_bytes[item.name]) for item in graph.buffers),
    )
    return corrected, facts


@dataclass(frozen=True, slots=True)
class _Finding:
    """What one run showed.

    ``outputs`` has the type and the storage's bytes per output, ``None`` where there is no tensor;
    ``allocations`` are unknown without the native allocator.
    """

    peak_bytes: int
    seconds: float | None
    outputs: tuple[tuple[TensorType, int] | None, ...]
    allocations: tuple[KernelAllocation, ...] | None


class _Bench:
    def __init__(self, graph: Graph, found: Findings, *, is_timed: bool) -> None:
        self.graph, self.is_timed = graph, is_timed
        self.types = {value.name: value.type for value in graph.values}
        self.size_bytes = {buffer.name: buffer.size_bytes for buffer in graph.buffers}
        self.values_on: dict[str, list[str]] = {}
        for value in graph.values:
            self.values_on.setdefault(value.buffer, []).append(value.name)
        self.found = found

    def measure(self, op: Op) -> OpFacts:
        first = self.finding(op, op.call)
        self.correct(op, first)
        peaks, repeated = [first.peak_bytes], None
        if op.repeat_call is not None:
            again = self.finding(op, op.repeat_call)
            peaks.append(again.peak_bytes)
            repeated = again.allocations
        outputs_bytes = sum(_aligned(self.size_bytes[name]) for name in self.graph.writes(op))
        return OpFacts(
            op.name,
            workspace_bytes=max(0, max(peaks) - outputs_bytes),
            seconds=first.seconds,
            allocations=_claimed(op, first.allocations),
            repeat_allocations=_claimed(op, repeated),
        )

    def finding(self, op: Op, call: Call) -> _Finding:
        """What a run of ``call``, one of the op's, shows; that of a strip is of all its blocks."""
        strip = op.strip
        key = self.signature(call)
        if strip is not None:
            names = (*op.call.refs(), *(name for name in op.outputs if name is not None))
            values = {name: Value(name, self.graph.buffer_of(name), self.types[name]) for name in names}
            key = signature(strip, op.outputs, values), strip.blocks
        if key not in self.found:
            tensors = self.inputs(call)
            bound = None if strip is None else StripRun(strip, op.outputs, self.types)

            def once() -> tuple[Tensor | None, ...]:
                if bound is not None:
                    return bound.run(tensors.__getitem__, _scalar)
                return kernels.run(call, tensors.__getitem__, _scalar)

            self.found[key] = _run(call.target, once, tensors, is_timed=self.is_timed)
        return self.found[key]

    def signature(self, call: Call) -> object:
        """The call with each value replaced by its type and the number of its buffer within the call.

        Views that begin so many lines of the cache later are alike.
        """
        numbers: dict[str, int] = {}

        def anonymous(argument: Argument) -> object:
            if isinstance(argument, Ref):
                buffer = self.graph.buffer_of(argument.value)
                type_ = self.types[argument.value]
                if type_.offset >= _LINE_ELEMENTS:
                    type_ = replace(type_, offset=type_.offset % _LINE_ELEMENTS)
                return type_, numbers.setdefault(buffer, len(numbers))
            if isinstance(argument, tuple):
                return tuple(map(anonymous, argument))
            return type(argument), argument

        named = tuple((key, anonymous(argument)) for key, argument in call.kwargs)
        return call.target, tuple(map(anonymous, call.args)), named

    def inputs(self, call: Call) -> dict[str, Tensor]:
        """A tensor for each value that the call is given; views of one buffer share memory."""
        memory: dict[str, Tensor] = {}
        tensors = {}
        for name in call.refs():
            buffer, type_ = self.graph.buffer_of(name), self.types[name]
            if buffer not in memory:
                memory[buffer] = torch.zeros(self.size_bytes[buffer], dtype=torch.uint8)
            item_bytes = ITEM_BYTES[type_.dtype]
            whole = memory[buffer][: self.size_bytes[buffer] // item_bytes * item_bytes]
            tensor = whole.view(arguments.dtype(type_.dtype)).as_strided(
                type_.shape, type_.strides, type_.offset
            )
            if tensor.is_floating_point() and 0 not in type_.strides:
                tensor.fill_(_FILL)
            elif call.target in _DIVIDE and not tensor.is_floating_point():
                whole.view(tensor.dtype).fill_(1)
            tensors[name] = tensor
        if call.target == "poet.with_rng_state":  # not any bytes are a generator's state
            tensors[next(call.refs())].copy_(torch.get_rng_state())
        return tensors

    def correct(self, op: Op, finding: _Finding) -> None:
        """Take over the outputs' real types.

        Raises:
            ModelError: one differs from the trace's, and something else depends on that.
        """
        for name, real in zip(op.outputs, finding.outputs, strict=False):
            if name is None:
                continue
            if real is None:
                raise ModelError(f"op {op.name}: {op.call.target} gives nothing where a tensor was traced")
            buffer, traced = self.graph.buffer_of(name), self.types[name]
            type_, storage_bytes = real
            alike = same_layout(type_, traced) and type_.offset == traced.offset
            if not alike and len(self.values_on[buffer]) > 1:
                raise ModelError(
                    f"op {op.name}: {op.call.target} gives {type_} with strides {type_.strides} at "
                    f"{type_.offset}, traced was {traced} with strides {traced.strides} at {traced.offset}"
                )
            self.types[name] = type_
            if not alike or storage_bytes > self.size_bytes[buffer]:
                self.size_bytes[buffer] = storage_bytes


def _claimed(op: Op, allocations: tuple[KernelAllocation, ...] | None) -> tuple[KernelAllocation, ...] | None:
    """``allocations`` with the outputs of ``op`` counted among those it keeps; others end with the run."""
    if allocations is None:
        return None
    kept = (place for place, name in enumerate(op.outputs) if name is not None)
    numbers: dict[int | None, int] = {place: number for number, place in enumerate(kept)}
    return tuple(replace(item, output=numbers.get(item.output)) for item in allocations)


def _scalar(name: str) -> float:
    """One of the optimizer's scalars, for kernels that take as long whichever it is."""
    return 0.5


def _run(
    target: str,
    once: Callable[[], tuple[Tensor | None, ...]],
    inputs: dict[str, Tensor],
    *,
    is_timed: bool,
) -> _Finding:
    begin = clock()
    try:
        results = once()  # libraries make their own tables
    except (RuntimeError, IndexError) as error:  # no kernel for these types, no memory
        reason = str(error).partition("\n")[0]
        raise ModelError(f"{target} does not run on this machine: {reason}") from None
    is_long = clock() - begin > _LONG_SECONDS
    outputs = tuple(
        None if item is None else (tensor_type(item, target), item.untyped_storage().nbytes())
        for item in results
    )
    given = {tensor.untyped_storage().data_ptr() for tensor in inputs.values() if tensor.numel()}
    if any(
        item is not None and item.numel() and item.untyped_storage().data_ptr() in given for item in results
    ):
        raise ModelError(f"{target} gives back one of its inputs, which tracing did not show")
    del results
    allocator = native.load()
    if allocator is None:
        with _AllocationLog() as log:
            once()
        return _Finding(log.peak_bytes, _fastest(once) if is_timed else None, outputs, None)
    begin = clock()
    allocations = recorded(allocator, once)
    seconds = clock() - begin if is_timed else None
    if is_timed and not is_long:
        with in_an_arena(allocator, allocations) as placed:
            seconds = _fastest(placed(once))
    return _Finding(peak_bytes(allocations, alignment_bytes=ALIGNMENT_BYTES), seconds, outputs, allocations)


def _fastest(once: Callable[[], object]) -> float:
    """What disturbs a run only makes it longer."""
    once()  # maps the memory
    seconds: list[float] = []
    while len(seconds) < _RUNS and sum(seconds) < _TIMING_SECONDS:
        begin = clock()
        once()
        seconds.append(clock() - begin)
    return min(seconds)


class _AllocationLog:
    """Records the most memory that torch's CPU allocator had handed out at once inside the block.

    It sees what the calling thread asks for, as good as all: kernels make their temporaries before they
    hand out work to other threads.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0

    def __enter__(self) -> _AllocationLog:
        profiler = torch._C._profiler
        config = profiler.ProfilerConfig(
            profiler.ProfilerState.CPU, False, True, False, False, False, profiler._ExperimentalConfig()
        )
        torch._C._autograd._enable_profiler_legacy(config)
        return self

    def __exit__(self, *_: object) -> None:
        held_bytes = 0
        for change_bytes in _allocations(torch._C._autograd._disable_profiler_legacy()):
            size_bytes = _aligned(abs(change_bytes))
            held_bytes += size_bytes if change_bytes > 0 else -size_bytes
            self.peak_bytes = max(self.peak_bytes, held_bytes)


def _allocations(threads: list[list[torch._C._autograd.ProfilerEvent]]) -> Iterator[int]:
    for events in threads:
        for event in events:
            if str(event.kind()) == "memory_alloc":
                yield event.cpu_memory_usage()


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


# --- the clock, and memory that is mapped as in a step ----------------------------------------------


def clock() -> float:
    """Seconds; of one thread its own, which stand still while others have the processor."""
    return time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()


def recorded(
    allocator: native.NativeAllocator, once: Callable[[], tuple[Tensor | None, ...]]
) -> tuple[KernelAllocation, ...]:
    """What one run asks for, and which of it the outputs are."""
    with allocator.recording() as recording:
        with recording.step():
            results = once()
        places = {
            item.untyped_storage().data_ptr(): place
            for place, item in enumerate(results)
            if item is not None and item.untyped_storage().nbytes()
        }
    (step,) = recording.steps
    return tuple(
        KernelAllocation(
            asked.size_bytes,
            asked.born_tick,
            asked.died_tick,
            places.get(asked.address) if asked.died_tick is None else None,
        )
        for asked in step.allocations
    )


def asks_in_order(allocator: native.NativeAllocator, once: Callable[[], tuple[Tensor | None, ...]]) -> bool:
    """Whether a run asks for memory in the same order each time: never where several threads work.

    Where torch computes with one thread it always does.
    """
    if torch.get_num_threads() == 1:
        return True
    with allocator.recording() as recording, recording.step():
        once()
    return not any(asked.parallel for step in recording.steps for asked in step.allocations)


@contextmanager
def in_an_arena(
    allocator: native.NativeAllocator, allocations: tuple[KernelAllocation, ...]
) -> Iterator[Callable[[Callable[[], object]], Callable[[], None]]]:
    """A way to run a kernel in memory that is mapped already, as a replayed step does."""
    placement = native.place_run(allocations)
    with allocator.arena(placement.arena_bytes) as arena, arena.replay(placement) as replay:

        def placed(once: Callable[[], object]) -> Callable[[], None]:
            def run() -> None:
                with replay.step():
                    once()

            return run

        yield placed
