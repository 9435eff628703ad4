"""Whether passes of a step do the same, each made with what those before have left in Python.

Each storage of a pass has a key: a digest of the operator that wrote it last, with the keys of what that
read. Two passes are the same where their results and the module's tensors end with the same keys. So a table
that the first pass made and the second finds (a cache of sines) is no difference: its key is that of the
first pass. What the first made of its batch, its parameters or random numbers, and the second reads, is one:
its key begins with a star.

A plan draws from one generator, op after op, and keeps its state where an op runs again. What Python does to
that state between ops (``manual_seed``, ``fork_rng``, ``set_rng_state``) is no op. So the generator gets a
seed of its own after each op that draws, and the next op must find it.
"""

from __future__ import annotations

import hashlib
import itertools
import traceback
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from poet.errors import ModelError
from poet.frontend.exporting import line_in

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
