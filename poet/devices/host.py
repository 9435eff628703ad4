"""What a step takes on this machine: the planner's problem with measured figures in place of a profile's."""

from __future__ import annotations

from dataclasses import dataclass, replace

from poet.kernel_facts import KernelFacts
from poet.problem import Problem, ProblemOp, Tensor, Transfer
from poet.schedule import Schedule
from poet.simulator import simulate


@dataclass(frozen=True, slots=True)
class Line:
    """A transfer of n bytes takes ``latency_seconds + n * seconds_per_byte``."""

    latency_seconds: float
    seconds_per_byte: float

    def seconds(self, size_bytes: int) -> float:
        """For a transfer of ``size_bytes``."""
        return self.latency_seconds + size_bytes * self.seconds_per_byte


@dataclass(frozen=True, slots=True)
class HostStorage:
    """Transfers from and to the storage behind a page file, as measured."""

    read: Line
    write: Line


def on_host(problem: Problem, kernels: KernelFacts, storage: HostStorage | None) -> Problem | None:
    """``problem`` at the times of ``kernels``, measured on this machine; a joule stands for a second.

    ``None`` where an op's time was not measured. Without ``storage`` transfers take no time.
    """
    seconds = kernels.step_seconds(op.name for op in problem.ops)
    if seconds is None:
        return None
    ops = tuple(_on_host(op, seconds[op.name], storage) for op in problem.ops)
    tensors = tuple(_on_storage(tensor, storage) for tensor in problem.tensors)
    return replace(problem, ops=ops, tensors=tensors, idle_watts=0.0)


def _on_host(op: ProblemOp, seconds: float, storage: HostStorage | None) -> ProblemOp:
    """``op``, which takes so many ``seconds`` beside what it reads and writes in storage itself."""
    if storage is not None:
        for line, count, moved_bytes in (
            (storage.read, op.stored_reads, op.stored_read_bytes),
            (storage.write, op.stored_writes, op.stored_written_bytes),
        ):
            seconds += count * line.latency_seconds + moved_bytes * line.seconds_per_byte
    return replace(op, seconds=seconds, joules=seconds)


def host_step_seconds(
    problem: Problem, kernels: KernelFacts, schedule: Schedule, storage: HostStorage | None
) -> float | None:
    """How long ``schedule`` should last on this machine; ``None`` where ops were not measured."""
    hosted = on_host(problem, kernels, storage)
    return None if hosted is None else simulate(hosted, schedule).seconds


def _on_storage(tensor: Tensor, storage: HostStorage | None) -> Tensor:
    def cost(line: Line | None) -> Transfer:
        seconds = 0.0 if line is None else line.seconds(tensor.bytes)
        return Transfer(seconds, seconds)

    return replace(
        tensor,
        page_in=None if tensor.page_in is None else cost(storage.read if storage else None),
        page_out=None if tensor.page_out is None else cost(storage.write if storage else None),
    )
