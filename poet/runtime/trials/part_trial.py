"""Whether a call gives the same bits when it runs once for each part of a parameter.

A product's rows and columns hardly ever depend on how many there are. A sum over parts does depend on where
they end: a kernel adds up stretches of its own length first, and gives the same bits where parts end where
its stretches do. So each distinct call runs whole and in parts on random tensors: when a model is imported,
to choose the parts; when a plan is opened, on the machine that will train.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from poet.errors import PlanError, ReplayError
from poet.graph import ITEM_BYTES, Argument, Blank, Call, Graph, Ref, TensorType
from poet.named import Bounds, bounds_of
from poet.operators import WRITES
from poet.runtime import kernels
from poet.runtime.kernels import arguments
from poet.runtime.system.memory import available_bytes
from poet.runtime.system.process import likely_thread_counts, torch_threads
from poet.runtime.trials import trial_record
from poet.runtime.trials.trial_bench import same_bits, trial_scalar
from poet.wholes import Axis, PartedCall, cuts_of, result_dim, run_of

_RAM_SHARE = 0.5  # of what is available, that a trial may take
_TILE_ELEMENTS = 500_009  # a prime: no two rows of a tensor that is filled with tiles are alike
_SO_FAR = "so far"
_FAILURES = (RuntimeError, AttributeError, IndexError, TypeError, ValueError, PlanError)

_log = logging.getLogger("poet.runtime")
_exact: dict[tuple[PartedCall, Bounds, int], bool] = {}
_tile: list[Tensor] = []


def is_exact_in_parts(parted: PartedCall, bounds: Bounds) -> bool:
    """Whether a call in parts is exact here, with one thread, torch's number and that of all cores.

    What an earlier process found out is believed, see `poet.runtime.trials.trial_record`. ``False`` where
    this machine has no memory to try it.
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
    written, call = _written(parted.call), parted.call
    return {
        place: _random(item.type, place, is_positive=place in written)
        if item.type.dtype.startswith(("float", "bfloat"))
        else _row_numbers(item.type, _table_rows(parted))
        for place, item in enumerate(call.args)
        if isinstance(item, Blank)
    }


def _table_rows(parted: PartedCall) -> int:
    """Of the table that the call looks numbers up in, or makes the gradient of."""
    first, *_ = parted.call.args
    count = parted.call.args[2] if parted.axis is Axis.TABLE else None
    return count if isinstance(count, int) else first.type.shape[0] if isinstance(first, Blank) else 1


def _tried(parted: PartedCall, bounds: Bounds, tensors: dict[int, Tensor]) -> bool:
    """Run it whole and in parts; whether every bit is the same."""
    call = parted.call
    if parted.axis is Axis.ELEMENTS:
        return _updates_alike(parted, bounds, tensors, _written(call))
    whole = _run(replace(call, args=_given(call)), _named(tensors))
    runs = _runs(parted, bounds, tensors)
    dim = result_dim(parted.axis)
    if dim is None:
        *_, last = runs
        return same_bits(whole, last)
    return all(
        same_bits(whole.narrow(dim, start, stop - start), made)
        for (start, stop), made in zip(bounds, runs, strict=True)
    )


def _runs(parted: PartedCall, bounds: Bounds, tensors: dict[int, Tensor]) -> Iterator[Tensor]:
    """What each run on a part gives; where no parts of the result are joined, all so far."""
    cuts, args = dict(cuts_of(parted)), _given(parted.call)
    so_far: Tensor | None = None
    for start, stop in bounds:
        cut = {
            place: tensor.narrow(cuts[place], start, stop - start) if place in cuts else tensor
            for place, tensor in tensors.items()
        }
        known = _named(cut) | ({} if so_far is None else {_SO_FAR: so_far})
        call = run_of(parted, args, (start, stop), None if so_far is None else Ref(_SO_FAR))
        made = _run(call, known)
        so_far = made if result_dim(parted.axis) is None else None
        yield made


def _given(call: Call) -> tuple[Argument, ...]:
    """Its arguments, with the tensor at each place under the name of that place."""
    return tuple(Ref(str(place)) if isinstance(item, Blank) else item for place, item in enumerate(call.args))


def _named(tensors: dict[int, Tensor]) -> dict[str, Tensor]:
    return {str(place): tensor for place, tensor in tensors.items()}


def _updates_alike(
    parted: PartedCall, bounds: Bounds, tensors: dict[int, Tensor], written: Sequence[int]
) -> bool:
    begun = {place: tensors[place].clone() for place in written}
    _run(replace(parted.call, args=_given(parted.call)), _named(tensors))
    whole = {place: tensors[place] for place in written}
    again = tensors | begun
    for _ in _runs(parted, bounds, again):
        pass
    return all(same_bits(whole[place], again[place]) for place in written)


def _run(call: Call, tensors: dict[str, Tensor]) -> Tensor:
    """The first output; one of what is updated where there is none."""
    given = [arguments.resolve(item, tensors.__getitem__, trial_scalar) for item in call.args]
    made = [item for item in kernels.outputs_of(kernels.kernel(call.target)(*given)) if item is not None]
    return made[0] if made else next(iter(tensors.values()))


def _fits(parted: PartedCall) -> bool:
    """Whether a trial finds memory: what the call is given, what it updates twice, its result three times.

    Kernels copy what overlaps itself, so each tensor counts as much as all of its elements at least.
    """
    types = [item.type for item in parted.call.args if isinstance(item, Blank)]
    given_bytes = sum(max(item.extent_bytes, item.elements * ITEM_BYTES[item.dtype]) for item in types)
    if parted.axis is Axis.ELEMENTS:
        return 3 * given_bytes <= _RAM_SHARE * available_bytes()
    result_bytes = _result_elements(parted, types) * ITEM_BYTES[types[0].dtype]
    return given_bytes + 3 * result_bytes <= _RAM_SHARE * available_bytes()


def _result_elements(parted: PartedCall, types: Sequence[TensorType]) -> int:
    if parted.axis is Axis.LOOK_UP:
        return types[1].elements * types[0].shape[1]
    if parted.axis is Axis.TABLE:
        return _table_rows(parted) * types[0].shape[-1]
    return max(types[0].elements, types[-2].shape[0] * types[-1].shape[1])


def _row_numbers(type_: TensorType, rows: int) -> Tensor:
    """Numbers of rows, every other one there twice."""
    content = torch.empty(type_.extent_bytes // ITEM_BYTES[type_.dtype], dtype=arguments.dtype(type_.dtype))
    content.random_(0, max(rows, 1), generator=torch.Generator().manual_seed(0))
    content[1::2] = content[: len(content) // 2]
    return content.as_strided(type_.shape, type_.strides, type_.offset)


def _random(type_: TensorType, number: int, *, is_positive: bool) -> Tensor:
    """A tensor of this type, normally distributed; each ``number`` gives another."""
    if not _tile:
        _tile.append(torch.randn(_TILE_ELEMENTS, generator=torch.Generator().manual_seed(0)))
    content = torch.empty(type_.extent_bytes // ITEM_BYTES[type_.dtype], dtype=arguments.dtype(type_.dtype))
    tile = _tile[0].roll(number * 7919)
    for start in range(0, len(content), _TILE_ELEMENTS):
        part = content[start : start + _TILE_ELEMENTS]
        part.copy_(tile[: len(part)])
    if is_positive:
        content.abs_()  # as second moments are
    return content.as_strided(type_.shape, type_.strides, type_.offset)
