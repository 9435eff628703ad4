"""HiGHS at the other end of the pipes of `poet.solvers.engines.highs_process`.

The process ends when stdin is closed or its parent is gone, so it does not outlive the process that uses its
answer.
"""

from __future__ import annotations

import base64
import io
import json
import math
import os
import queue
import sys
import threading
import time
from typing import Any

import highspy
import numpy as np

from poet import children
from poet.freed_memory import give_back
from poet.held_memory import held_bytes
from poet.solvers.engines.highs import DONE, best_values, is_empty, loaded
from poet.solvers.engines.matrix import Matrix, Numbers


def main() -> None:
    """Read programs, solve one after the other, write solutions and bounds to stdout."""
    children.end_with_parent()
    requests = queue.SimpleQueue[bytes]()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    while True:
        _solve(requests.get())


def _solve(packed: bytes) -> None:
    request = np.load(io.BytesIO(packed), allow_pickle=False)
    arrays = {name: request[name] for name in ("costs", "rows", "columns", "factors", "at_most", "integer")}
    start = request["start"] if len(request["start"]) else None
    matrix = Matrix(offset=float(request["offset"][0]), whole=arrays["integer"], start=start, **arrays)
    if is_empty(matrix):
        _tell(matrix.offset, np.zeros(0), exhausted=True, last=True, iterations=0, nodes=0)
        return
    seconds, relative_gap, tell_seconds, nodes, most_bytes = map(float, request["options"])
    give_back()  # what the program before took
    highs = loaded(matrix)
    if nodes:
        highs.setOptionValue("mip_max_nodes", int(nodes))
    else:
        highs.setOptionValue("time_limit", seconds)
    highs.setOptionValue("mip_rel_gap", relative_gap)
    _listen_to(highs, tell_seconds, most_bytes)
    highs.run()
    exhausted, info = highs.getModelStatus() in DONE, highs.getInfo()
    _tell(
        info.mip_dual_bound,
        best_values(highs),
        exhausted=exhausted,
        last=True,
        iterations=max(info.simplex_iteration_count, 0),
        nodes=max(info.mip_node_count, 0),
    )


def _listen_to(highs: highspy.Highs, tell_seconds: float, most_bytes: float) -> None:
    """Tell solutions and bounds; end it where this process holds more than ``most_bytes``; 0: any."""
    kinds = highspy.cb.HighsCallbackType
    told = [0.0]

    def hear(kind: Any, message: str, out: Any, into: Any, data: Any) -> None:
        if kind == kinds.kCallbackMipImprovingSolution:
            _tell(out.mip_dual_bound, np.array(out.mip_solution))
        elif time.monotonic() - told[0] > tell_seconds:
            told[0] = time.monotonic()
            _tell(out.mip_dual_bound, None)
            into.user_interrupt = bool(most_bytes) and held_bytes() > most_bytes

    highs.setCallback(hear, None)
    highs.startCallback(kinds.kCallbackMipInterrupt)
    highs.startCallback(kinds.kCallbackMipImprovingSolution)


def _tell(
    bound: float, values: Numbers | None, *, exhausted: bool = False, last: bool = False, **work: int
) -> None:
    packed = None if values is None else base64.b64encode(values.tobytes()).decode()
    known = bound if math.isfinite(bound) else None
    said = {"bound": known, "values": packed, "exhausted": exhausted, "last": last, **work}
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def _read(requests: queue.SimpleQueue[bytes]) -> None:
    stdin = sys.stdin.buffer
    while size := stdin.read(8):
        requests.put(stdin.read(int.from_bytes(size, "little")))
    os._exit(0)


if __name__ == "__main__":
    main()
