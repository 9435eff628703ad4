"""Whether a call gives the same bits when it runs once for each part of a parameter.

A product's rows and columns hardly ever depend on how many there are. A sum over parts does depend on where
they end: a kernel adds up stretches of its own length first, and gives the same bits where parts end where
its stretches do. So each distinct call runs whole and in parts on random tensors: when a model is imported,
to choose the parts; when a plan is opened, on the machine that will train.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from poet.errors import PlanError, ReplayError
from poet.graph import ITEM_BYTES, Argument, Blank, Call, Graph, TensorType
from poet.named import Bounds, bounds_of
from poet.operators import WRITES
from poet.runtime import kernels, trial_record
from poet.runtime.memory import available_bytes
from poet.runtime.process import likely_thread_counts, torch_threads
from poet.runtime.trial_bench import same_bits, trial_scalar
from poet.wholes import Axis, PartedCall, cuts_of, result_dim

_RAM_SHARE = 0.5  # of what is available, that a trial may take
_TILE_ELEMENTS = 500_009  # a prime: no two rows of a tensor that is filled with tiles are alike
_FAILURES = (RuntimeError, AttributeError, IndexError, TypeError, ValueError, PlanError)

_log = logging.getLogger("poet.runtime")
_exact: dict[tuple[PartedCall, Bounds, int], bool] = {}
_tile: list[Tensor] = []


def is_exact_in_parts(parted: PartedCall, bounds: Bounds) -> bool:
    """Whether a call in parts is exact here, with one thread, torch's number and that of all cores.

    What an earlier process found out is believed, see `poet.runtime.trial_record`. ``False`` where this
    machine has no memory to try it.
    """
    thread_counts = likely_thread_counts()
    digest = trial_record.digest_of(("part", parted, bounds, tuple(thread_counts)))
    if isinstance(told := trial_record.told(digest), bool):
        return told
    try:
        if not _fits(parted):
            return False
        found = _is_exact(parted, bounds, thread_counts)
    except _FAILURES:
        found = False
    trial_record.note(digest, found)
    return found


def check_parts(graph: Graph) -> None:
    """Refuse a graph with a parameter in parts that give other bits on this machine, at torch's threads.

    What this machine has no memory to try whole is not tried, and logged.

    Raises:
        ReplayError: names the parameter.
    """
    threads, untried = torch.get_num_threads(), []
    for whole in graph.wholes:
        bounds = bounds_of(graph, whole)
        for parted in whole.calls:
            try:
                if (parted, bounds, threads) not in _exact and not _fits(parted):
                    untried.append(whole.name)
                    continue
                is_exact = _is_exact(parted, bounds, (threads,))
            except _FAILURES as error:
                raise ReplayError(f"parameter {whole.name} cannot be used in parts here: {error}") from None
            if not is_exact:
                raise ReplayError(
                    f"parameter {whole.name} in {len(bounds)} parts gives other bits here, with {threads} "
                    f"threads, than whole ({parted.call.target}); plan on this machine with as many threads, "
                    f"{trial_record.VARIABLE}=anew in the environment, or with --gradients keep"
                )
    if untried:
        _log.warning(
            "poet: parameters in parts were not tried against whole ones, for want of memory: %s",
            ", ".join(dict.fromkeys(untried)),
        )


def _is_exact(parted: PartedCall, bounds: Bounds, thread_counts: Sequence[int]) -> bool:
    """Whether it is, with each of these numbers of threads; what is known is not tried again."""
    tensors: dict[int, Tensor] | None = None
    for threads in thread_counts:
        key = (parted, bounds, threads)
        if key not in _exact:
            tensors = _tensors(parted) if tensors is None else tensors
            with torch_threads(threads):
                _exact[key] = _tried(parted, bounds, tensors)
        if not _exact[key]:
            return False
    return True


def _written(call: Call) -> list[int]:
    """The places of the tensors that it updates."""
    return [place for place in WRITES.get(call.target, ()) if isinstance(call.args[place], Blank)]


def _tensors(parted: PartedCall) -> dict[int, Tensor]:
    """Something for each tensor that the whole is given, by its place."""
    written = _written(parted.call)
    return {
        place: _random(item.type, place, is_positive=place in written)
        for place, item in enumerate(parted.call.args)
        if isinstance(item, Blank)
    }


def _tried(parted: PartedCall, bounds: Bounds, tensors: dict[int, Tensor]) -> bool:
    """Run it whole and in parts; whether every bit is the same."""
    call = parted.call
    if parted.axis is Axis.ELEMENTS:
        return _updates_alike(parted, bounds, tensors, _written(call))
    whole = _run(call.target, call.args, tensors)
    if parted.axis is Axis.SUM:
        return same_bits(whole, _summed(parted, bounds, tensors))
    dim = result_dim(parted.axis)
    assert dim is not None
    return all(
        same_bits(whole.narrow(dim, start, stop - start), _run(call.target, call.args, cut))
        for (start, stop), cut in zip(bounds, _cut(parted, bounds, tensors), strict=True)
    )


def _cut(parted: PartedCall, bounds: Bounds, tensors: dict[int, Tensor]) -> list[dict[int, Tensor]]:
    """Per part what a run on it is given."""
    cuts = dict(cuts_of(parted))
    return [
        {
            place: tensor.narrow(cuts[place], start, stop - start) if place in cuts else tensor
            for place, tensor in tensors.items()
        }
        for start, stop in bounds
    ]


def _summed(parted: PartedCall, bounds: Bounds, tensors: dict[int, Tensor]) -> Tensor:
    """A product as `poet.frontend.parts` divides it: each run adds its share to the sum so far."""
    (first, _), (second, _) = cuts_of(parted)
    begun, *more = _cut(parted, bounds, tensors)
    total = _run(parted.call.target, parted.call.args, begun)
    for cut in more:
        (total,) = (
            item
            for item in kernels.outputs_of(
                kernels.kernel("aten.addmm.default")(total, cut[first], cut[second])
            )
            if item is not None
        )
    return total


def _updates_alike(
    parted: PartedCall, bounds: Bounds, tensors: dict[int, Tensor], written: Sequence[int]
) -> bool:
    begun = {place: tensors[place].clone() for place in written}
    _run(parted.call.target, parted.call.args, tensors)
    whole = {place: tensors[place] for place in written}
    again = tensors | begun
    for cut in _cut(parted, bounds, again):
        _run(parted.call.target, parted.call.args, cut)
    return all(same_bits(whole[place], again[place]) for place in written)


def _run(target: str, args: Sequence[Argument], tensors: dict[int, Tensor]) -> Tensor:
    """The first output; one of what is updated where there is none."""
    given = [
        tensors[place] if place in tensors else kernels.resolve(item, _no_tensor, trial_scalar)
        for place, item in enumerate(args)
    ]
    made = [item for item in kernels.outputs_of(kernels.kernel(target)(*given)) if item is not None]
    return made[0] if made else next(iter(tensors.values()))


def _no_tensor(name: str) -> Tensor:
    raise PlanError(f"{name} is no tensor of a trial")


def _fits(parted: PartedCall) -> bool:
    """Whether a trial finds memory: what the call is given, what it updates twice, its result three times.

    Kernels copy what overlaps itself, so each tensor counts as much as all of its elements at least.
    """
    types = [item.type for item in parted.call.args if isinstance(item, Blank)]
    given_bytes = sum(max(item.extent_bytes, item.elements * ITEM_BYTES[item.dtype]) for item in types)
    if parted.axis is Axis.ELEMENTS:
        return 3 * given_bytes <= _RAM_SHARE * available_bytes()
    result_bytes = types[-2].shape[0] * types[-1].shape[1] * ITEM_BYTES[types[-1].dtype]
    return given_bytes + 3 * result_bytes <= _RAM_SHARE * available_bytes()


def _random(type_: TensorType, number: int, *, is_positive: bool) -> Tensor:
    """A tensor of this type, normally distributed; each ``number`` gives another."""
    if not _tile:
        _tile.append(torch.randn(_TILE_ELEMENTS, generator=torch.Generator().manual_seed(0)))
    content = torch.empty(type_.extent_bytes // ITEM_BYTES[type_.dtype], dtype=kernels.dtype(type_.dtype))
    tile = _tile[0].roll(number * 7919)
    for start in range(0, len(content), _TILE_ELEMENTS):
        part = content[start : start + _TILE_ELEMENTS]
        part.copy_(tile[: len(part)])
    if is_positive:
        content.abs_()  # as second moments are
    return content.as_strided(type_.shape, type_.strides, type_.offset)
