"""Plain PyTorch with as many threads for each op as the units of a plan have."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any, Self

from torch.utils._python_dispatch import TorchDispatchMode

from poet.ir.graph import Graph
from poet.plans.training_plan import Plan
from poet.runtime.system.process import OpThreads


def threads_of(plan: Plan) -> contextlib.AbstractContextManager[object]:
    """Inside, plain PyTorch runs each op with as many threads as the units of ``plan`` do."""
    threads = plan.own_threads()
    return _PlannedThreads(plan.graph, threads) if threads else contextlib.nullcontext()


_PART = re.compile(r"\.(weight|input|bias)$")
_Run = list[tuple[int | None, tuple[bool, ...]]]
"""Of one call of plain PyTorch: the threads of each op that it is in a plan, and which results that makes."""


class _PlannedThreads(TorchDispatchMode):
    """The calls of one operator in a training step are those of its ops in the graph, in order.

    A backward of convolution that is several ops in a plan is made once for each number of threads that
    these have, and of each call the results are taken that the plan takes there.
    """

    def __init__(self, graph: Graph, threads: Mapping[str, int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._threads = OpThreads()
        found: dict[str, dict[str, _Run]] = {}
        for op in graph.ops:
            for place, call in enumerate([op.call] if op.strip is None else [e.call for e in op.strip.links]):
                mask = call.args[-1] if call.target.startswith("aten.convolution_backward") else ()
                called = found.setdefault(call.target, {})
                chosen = tuple(map(bool, mask)) if isinstance(mask, tuple) else ()
                key = f"{_PART.sub('', op.name) if chosen else op.name} {0 if chosen else place}"
                called.setdefault(key, []).append((threads.get(op.name), chosen))
        self._runs = {target: iter(list(called.values())) for target, called in found.items()}

    def __enter__(self) -> Self:
        self._threads.__enter__()
        return super().__enter__()  # type: ignore[no-untyped-call,no-any-return]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._threads.__exit__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        run = next(self._runs.get(str(func), iter(())), [(None, ())])
        made: dict[int | None, Any] = {}
        for count in dict.fromkeys(count for count, _ in run):
            self._threads.use(count)
            made[count] = func(*args, **(kwargs or {}))
        if len(made) == 1:
            return made[run[0][0]]
        whole = list(made[run[0][0]])
        for count, mask in run:
            whole = [
                new if wanted else old for old, new, wanted in zip(whole, made[count], mask, strict=True)
            ]
        return tuple(whole)
