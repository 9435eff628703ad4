"""While a step is traced, a block in ``torch.utils.checkpoint`` is plain code: a plan recomputes by itself.

The block runs once, and what plain PyTorch would give is kept: a reentrant block hands on the gradients of
its arguments as sums and trains nothing where none requires one, and batch norms update their statistics a
second time, when the block would run again. What the second run would make different is refused.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
import torch.utils.checkpoint as of_torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from poet.errors import ModelError
from poet.frontend.passes import draws

_aten = torch.ops.aten
_NORMS = (_aten.native_batch_norm.default, _aten._native_batch_norm_legit.default)
_sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr


@dataclass(eq=False, slots=True)
class _Block:
    """A block that runs; nodes of autograd before ``first`` are not its own."""

    is_reentrant: bool
    keeps_generator: bool
    trains: bool
    first: int
    has_drawn: bool = False
    has_silent_write: bool = False
    writes: list[Callable[[], object]] = field(default_factory=list)  # that the second run repeats


class AsPlainCode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, blocks in ``torch.utils.checkpoint`` run as plain code.

    Args:
        module: of which a step is traced.
        own: its parameters and buffers by name, as they stand in the trace.
        hooked: names of the parameters on whose gradients hooks may be.

    Attributes:
        without_gradient: names of parameters in reentrant blocks that plain PyTorch does not train.
    """

    def __init__(self, module: nn.Module, own: Mapping[str, Tensor], hooked: frozenset[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._module, self._hooked = module, hooked
        self._own = {tensor.untyped_storage()._cdata: name for name, tensor in own.items()}
        self._open: list[_Block] = []
        self._uses: dict[str, Counter[_Block | None]] = defaultdict(Counter)
        self._norms: dict[int, _Block] = {}  # by the storage of what forward saved
        self.without_gradient: set[str] = set()

    def __enter__(self) -> AsPlainCode:
        apply = type("CheckpointFunction", (), {"apply": staticmethod(self._reentrant_block)})
        generator, self._put_back = "_checkpoint_without_reentrant_generator", contextlib.ExitStack()
        for name, instead in ((generator, self._block), ("CheckpointFunction", apply)):
            self._put_back.callback(setattr, of_torch, name, getattr(of_torch, name))
            setattr(of_torch, name, instead)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._put_back.close()
        for name, counts in self._uses.items():
            is_summed = len(counts) > 1 and any(block and block.is_reentrant for block in counts)
            if kind is None and is_summed and (max(counts.values()) > 1 or name in self._hooked):
                raise self._refused(f"shares {name}, whose gradients it adds up in an order of its own")

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """``func`` itself; before the gradient of a batch norm in a block, what its second run would write.

        Raises:
            ModelError: the block does what its second run would make different.
        """
        given = kwargs or {}
        if func is _aten.native_batch_norm_backward.default and args[5] is not None:
            block = self._norms.get(args[5].untyped_storage()._cdata)
            while block is not None and block.writes:
                block.writes.pop(0)()
        result = func(*args, **given)
        tensors = [item for item in pytree.tree_leaves((args, given)) if isinstance(item, Tensor)]
        block = self._open[-1] if self._open else None
        for item in tensors if torch.is_grad_enabled() and func.namespace != "prim" else ():
            if item.is_leaf and item.requires_grad and (name := self._named(item)):
                self._uses[name][block if block and block.is_reentrant else None] += 1
        if block is not None:
            self._note(block, func, args, given, result, tensors)
        return result

    def _note(
        self, block: _Block, func: Any, args: Any, given: Any, result: Any, tensors: list[Tensor]
    ) -> None:
        """What ``func`` does in ``block`` that a second run does again."""
        for each in self._open:
            each.has_drawn |= draws(func)
        if not block.trains:
            self.without_gradient |= {
                name for item in tensors if item.requires_grad and (name := self._named(item))
            }
        elif block.is_reentrant:
            if func is _aten.mkldnn_rnn_layer.default:
                raise self._refused("has an LSTM, whose kernel without gradients gives other bits")
            nodes = [item.grad_fn for item in tensors if item.grad_fn is not None]
            if any(node._sequence_nr() < block.first for node in nodes):
                raise self._refused("takes a tensor of the pass by another way than as an argument")
        if func in _NORMS and args[3] is not None and args[5]:
            self._norms[result[1].untyped_storage()._cdata] = block
        elif not (func._schema.is_mutable and self._named(args[0])):
            return
        elif func is not _aten.add_.Tensor or args[0].is_floating_point():
            raise self._refused(f"writes {self._named(args[0])}")
        else:
            block.writes.append(lambda: func(*args, **given))
            return
        if len(self._open) > 1:
            raise self._refused("has a batch norm and stands in another")
        block.has_silent_write |= not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors))
        block.writes.append(lambda: func(*args, **given))

    # --- in place of torch's own --------------------------------------------------------------

    def _block(
        self,
        function: Callable[..., Any],
        keeps_generator: bool,
        context_fn: Callable[[], tuple[Any, Any]],
        *others: Any,
        **kwargs: Any,
    ) -> Iterator[None]:
        """What `torch.utils.checkpoint.checkpoint` does before and after a block runs."""
        if not torch.is_grad_enabled():
            yield
            return
        first, second = context_fn()
        if isinstance(first, contextlib.nullcontext | of_torch._CachingTorchDispatchMode):
            first = contextlib.nullcontext()
        elif type(first) is not type(second) or vars(first) != vars(second):
            raise self._refused("runs in another context_fn the second time")
        with self._running(_Block(False, keeps_generator, True, _sequence_number())), first:
            yield

    def _reentrant_block(self, function: Callable[..., Any], keeps_generator: bool, *args: Any) -> Any:
        """``CheckpointFunction.apply``."""
        if not torch.is_grad_enabled():
            return function(*args)
        block = _Block(True, keeps_generator, True, _sequence_number())
        if not any(isinstance(item, Tensor) and item.requires_grad for item in args):
            block.trains = False
            with torch.no_grad(), self._running(block):
                return function(*args)
        own = [
            item.view_as(item) if isinstance(item, Tensor) and item.requires_grad else item for item in args
        ]
        with self._running(block):
            returned = function(*own)
        return _as_of_function(returned)

    @contextlib.contextmanager
    def _running(self, block: _Block) -> Iterator[None]:
        start, before = _sequence_number(), [*map(id, self._module.buffers())]
        self._open.append(block)
        try:
            yield
        finally:
            self._open.remove(block)
        if _sequence_number() == start:  # without gradients it runs once
            block.writes.clear()
        elif before != [*map(id, self._module.buffers())]:
            raise self._refused("writes a buffer")
        elif block.has_drawn and not block.keeps_generator:
            raise self._refused("draws other numbers the second time (preserve_rng_state=False)")
        elif block.has_silent_write:
            raise self._refused("updates a batch norm without a gradient")

    def _named(self, tensor: object) -> str | None:
        return self._own.get(tensor.untyped_storage()._cdata) if isinstance(tensor, Tensor) else None

    def _refused(self, what: str) -> ModelError:
        return ModelError(
            f"{type(self._module).__name__}: a block in torch.utils.checkpoint {what}; leave checkpoint out "
            "there: a plan recomputes by itself"
        )


def _as_of_function(returned: Any) -> Any:
    """What an autograd function hands out: only tensors that it returns themselves have a gradient."""
    if isinstance(returned, Tensor):
        return returned
    if not isinstance(returned, tuple):
        return pytree.tree_map_only(Tensor, Tensor.detach, returned)
    return tuple(item if isinstance(item, Tensor) else _as_of_function([item])[0] for item in returned)
