"""Whether each pass of a step does the same; blocks in ``torch.utils.checkpoint`` as plain code.

Each storage of a pass has a key: a digest of the operator that wrote it last, with the keys of what that
read. Two passes are the same where results and the module's tensors end with the same keys. What the first
made of its batch, its parameters or random numbers, and the second reads, has a key that begins with a star.
The generator gets a seed of its own after each op that draws, and the next op must find it.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
import torch.utils.checkpoint as of_torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from poet.errors import ModelError
from poet.frontend.eager import line_in

_NORM = torch.ops.aten.native_batch_norm.default
_MOST_NAMES = 3
_SEEDS = itertools.count(0x5EED << 32)  # another in every pass, so that who reads it is seen


def listed(names: Sequence[str]) -> str:
    """The first of ``names``, and how many there are besides."""
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def draws(func: Any) -> bool:
    """Whether the operator ``func`` draws random numbers."""
    return torch.Tag.nondeterministic_seeded in func.tags and "attention" not in str(func)


class Pass(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, a pass is watched; every op that draws must find torch's generator as the op before left it.

    Args:
        name: of the model.
        given: the tensors of the step that change from step to step.
        earlier: the pass before, of which Python may have kept tensors.

    Attributes:
        writes_constants: whether it writes a tensor that is neither parameter nor buffer.
    """

    def __init__(self, name: str, given: Sequence[Tensor], earlier: Pass | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._name, self._given, self._earlier, self._seed = name, given, earlier, next(_SEEDS)
        self._keys: dict[int, str] = {}  # by the address of the storage
        self._held: list[object] = []  # so that no address is used again
        self._constants, self._drawn, self.writes_constants = set[int](), 0, False
        self._results: object = None
        for number, tensor in enumerate(given):
            self._keys[tensor.untyped_storage()._cdata] = f"* given {number}"

    def __enter__(self) -> Pass:
        self._before = torch.default_generator.get_state()
        torch.default_generator.manual_seed(self._seed)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        try:
            if kind is None:
                self._check_generator("")
        finally:
            torch.default_generator.set_state(self._before)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """``func`` itself.

        Raises:
            ModelError: it is given a generator, or finds another state than it would find in a plan.
        """
        given = kwargs or {}
        if any(isinstance(item, torch.Generator) for item in (*args, *given.values())):
            raise ModelError(
                f"{self._name} draws from a torch.Generator of its own{_here()}, and a plan has one; "
                "leave generator= out, or make the numbers outside and give them as an input"
            )
        if is_drawn := draws(func):
            self._check_generator(f" before it draws{_here()}")
            self._seed, self._drawn = next(_SEEDS), self._drawn + 1
            torch.default_generator.manual_seed(self._seed)
        read = f"{func} {self._described((*args, *given.items()))} {self._drawn * is_drawn}"
        digest = hashlib.sha256(read.encode()).hexdigest()
        key = f"* {digest}" if is_drawn or "* " in read else digest
        result = func(*args, **given)
        names = [item.name for item in func._schema.arguments if item.is_write]
        bound = dict(zip((item.name for item in func._schema.arguments), args, strict=False)) | given
        written = [bound.get(name) for name in names] + [*(args[3:5] if func is _NORM and args[5] else ())]
        for number, tensor in enumerate(_tensors(written)):
            self._keys[tensor.untyped_storage()._cdata] = f"{key} w{number}"
            self.writes_constants |= tensor.untyped_storage()._cdata in self._constants
        for number, tensor in enumerate(_tensors(result)):
            self._held.append(tensor)
            self._keys.setdefault(tensor.untyped_storage()._cdata, f"{key}.{number}")
        return result

    def ends(self, results: object) -> None:
        """It gives ``results``."""
        self._results = str(self._described([results, self._given])), self._drawn

    def check_same(self, again: Pass, changed: Mapping[str, object], left: Iterable[str]) -> list[str]:
        """The names of what changes with every pass, of which ``again`` is a later one.

        ``changed`` is what that has changed in Python, by name; ``left`` has names of what this one has.

        Raises:
            ModelError: they differ.
        """
        names = [
            name for name, item in changed.items()
            if not isinstance(item, FakeTensor) or again._key(item).startswith("*")
        ]  # fmt: skip
        if again._results != self._results:
            known = names or [*changed] or [*left]
            what = f"{listed(known)}, which it changes" if known else "something out of sight, as a clock"
            raise ModelError(
                f"{self._name} computes something else in its next pass, by {what}; a plan repeats one pass: "
                "keep what changes in a buffer (register_buffer) as a tensor, or give it as an input"
            )
        return names

    def _check_generator(self, place: str) -> None:
        if torch.default_generator.initial_seed() != self._seed:
            raise ModelError(
                f"{self._name} sets the state of torch's random generator while it runs{place} (manual_seed, "
                "fork_rng, set_rng_state), which no op of a plan does; leave that out (seed once, before "
                "training), or make the numbers once and keep them in a buffer"
            )

    def _key(self, tensor: Tensor) -> str:
        """Of the storage of ``tensor``; one that is new here is a constant, or left by a pass before."""
        storage = tensor.untyped_storage()._cdata
        if storage not in self._keys:
            if isinstance(tensor, FakeTensor):
                key = "* unknown" if self._earlier is None else self._earlier._key(tensor)
                key = f"* left {key}" if key.startswith("*") else key
            else:
                with _disable_current_modes():
                    content = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
                key = hashlib.sha256(content).hexdigest()
                self._constants.add(storage)
            self._held.append(tensor)
            self._keys[storage] = key
        return self._keys[storage]

    def _described(self, item: object) -> object:
        """An argument, each tensor as the key of its storage and where it lies there."""
        if isinstance(item, Tensor):
            if item.layout != torch.strided:
                return str(item.layout)
            return self._key(item), tuple(item.shape), item.stride(), item.storage_offset(), str(item.dtype)
        if isinstance(item, list | tuple):
            return tuple(map(self._described, item))
        return repr(item)


def _tensors(item: object) -> list[Tensor]:
    found = [each for each in pytree.tree_leaves(item) if isinstance(each, Tensor)]
    return [tensor for tensor in found if tensor.layout == torch.strided]


def _here() -> str:
    """The innermost line of the model's own source that runs now."""
    return line_in("".join(traceback.format_stack()))


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
