"""Where in a step updates stand: as early as they may, so that gradients need not pile up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from poet.graph import Op


def with_updates_placed(
    ops: Sequence[Op], updates: Iterable[Op], buffer_of: Callable[[str], str]
) -> list[Op]:
    """``ops`` with each of ``updates`` right after the last op that makes or reads what it touches.

    Args:
        ops: of a step, in order.
        updates: to be put among them.
        buffer_of: the buffer behind a value.
    """

    def written(op: Op) -> set[str]:
        return {buffer_of(name) for name in op.outputs if name is not None}

    last_touch: dict[str, int] = {}
    for index, op in enumerate(ops):
        for name in {buffer_of(name) for name in op.call.refs()} | written(op):
            last_touch[name] = index
    made_at = {name: index for index, op in enumerate(ops) for name in {*written(op), *op.updates}}
    due: dict[int, list[Op]] = {}
    for update in updates:
        reads = {buffer_of(name) for name in update.call.refs()}
        index = max(
            max(made_at.get(name, -1) for name in reads),
            max(last_touch.get(name, -1) for name in update.updates),
        )
        due.setdefault(index, []).append(update)
    ordered = due.get(-1, [])
    for index, op in enumerate(ops):
        ordered += [op, *due.get(index, [])]
    return ordered
