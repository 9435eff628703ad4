"""A problem by index: lists of the facts that heuristics read most often."""

from __future__ import annotations

import bisect

import numpy as np

from poet.homes import decide
from poet.problem import Place, Problem


class Facts:
    """A problem by index: ops 0 to n-1 in order, n state for the end of the step.

    Homes that are a plan's choice are in RAM.
    """

    def __init__(self, problem: Problem) -> None:
        problem = decide(problem, in_storage=())
        tensors, ops = problem.tensors, problem.ops
        number = {tensor.name: index for index, tensor in enumerate(tensors)}
        self.problem = problem
        self.op_count, self.tensor_count = len(ops), len(tensors)
        self.size = [problem.aligned_bytes(tensor.bytes) for tensor in tensors]
        self.sizes = np.array(self.size, dtype=np.float64)  # to rank by; a file may say 2**63 and more
        self.stored_size = [t.storage_bytes for t in tensors]
        self.workspace = [problem.aligned_bytes(op.workspace_bytes) for op in ops]
        self.inputs = [tuple(dict.fromkeys(number[name] for name in op.inputs)) for op in ops]
        self.rerun_inputs = [tuple(dict.fromkeys(number[name] for name in op.rerun_inputs)) for op in ops]
        self.outputs = [tuple(number[name] for name in op.outputs) for op in ops]
        self.updates = [tuple(number[name] for name in op.updates) for op in ops]
        self.producer = [-1] * len(tensors)
        self.uses: list[list[int]] = [[] for _ in tensors]  # first runs that read it, then the end
        self.update_ops: list[list[int]] = [[] for _ in tensors]
        for index in range(len(ops)):
            for read in self.inputs[index]:
                self.uses[read].append(index)
            for updated in self.updates[index]:
                self.update_ops[updated].append(index)
            for written in self.outputs[index]:
                self.producer[written] = index
        self.must_move = [Place.STORAGE in (tensor.initially, tensor.finally_) for tensor in tensors]
        self.starts_in_ram: list[int] = []
        self.starts_stored: list[int] = []
        self.ends_in_ram: list[int] = []
        self.ends_stored: list[int] = []
        for index, tensor in enumerate(tensors):
            if self.producer[index] < 0 and tensor.initially is not Place.STORAGE:
                self.starts_in_ram.append(index)
            if tensor.initially in (Place.STORAGE, Place.BOTH):
                self.starts_stored.append(index)
            if tensor.finally_ is Place.RAM:
                self.ends_in_ram.append(index)
                self.uses[index].append(len(ops))
            elif tensor.finally_ is Place.STORAGE:
                self.ends_stored.append(index)
        self.rerun_limit = [self._rerun_limit(index) for index in range(len(ops))]
        self.rerun_need = [
            sum(self.size[t] for t in {*self.rerun_inputs[index], *self.outputs[index]})
            + self.workspace[index]
            for index in range(len(ops))
        ]

    def _rerun_limit(self, op: int) -> int:
        """The last op before whose first run ``op`` may run again; -1: it may not at all."""
        if not self.problem.ops[op].recomputable:
            return -1
        limit = self.op_count
        for tensor in self.rerun_inputs[op]:
            updates = self.update_ops[tensor]
            later = bisect.bisect_left(updates, op)
            limit = min(limit, updates[later] if later < len(updates) else limit)
        for tensor in self.outputs[op]:
            limit = min([limit, *self.update_ops[tensor][:1]])
        return limit

    def next_use(self, tensor: int, position: int) -> int | None:
        """The first op from ``position`` on that reads ``tensor``, or the end if it must be there."""
        uses = self.uses[tensor]
        index = bisect.bisect_left(uses, position)
        return uses[index] if index < len(uses) else None
