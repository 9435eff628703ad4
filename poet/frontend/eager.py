"""Running a module as plain PyTorch does: itself, not a compiled wrapper, by the ops it is written in.

Off are code from ``torch.compile`` and the kernel that `nn.TransformerEncoderLayer` and
`nn.MultiheadAttention` use in eval mode without gradients: both give other bits than the ops that they stand
for. And running it as exporters do, with the line of the model's source where something happened.

A trace runs a module with tensors without contents, and a plan repeats one pass. So all that can be reached
from the module, and the generators of random numbers, is looked at before and after a pass: what has changed
is put back, and named where it may matter.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import linecache
import math
import random
import re
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType, TracebackType
from typing import Any

import numpy as np
import torch
import torch.distributions
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from poet.errors import ModelError

_NOT_THE_MODELS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


@contextlib.contextmanager
def as_exporters_do() -> Iterator[None]:
    """Inside, a model is told that it is exported, so that it leaves out shortcuts that look at contents.

    ``torch.compiler.is_exporting()``, ``is_compiling()`` and ``torch.jit.is_tracing()`` are true.
    """
    compiler = torch.compiler
    core: Any = torch._C  # what `torch.jit.is_tracing` asks, by whatever name a model imported it
    before = compiler._is_compiling_flag, compiler._is_exporting_flag, core._is_tracing
    compiler._is_compiling_flag = compiler._is_exporting_flag = True
    core._is_tracing = lambda: True
    try:
        yield
    finally:
        compiler._is_compiling_flag, compiler._is_exporting_flag, core._is_tracing = before


def line_of(trace: TracebackType | None) -> str:
    """The innermost line of the model's own source in a traceback, as `` at net.py:12 (if x.all():)``."""
    found = ""
    while trace is not None:
        found = _place(trace.tb_frame.f_code.co_filename, trace.tb_lineno) or found
        trace = trace.tb_next
    return found


def line_in(stack_trace: str | None) -> str:
    """The same from a formatted traceback, as a traced node has one."""
    found = ""
    for file, number in _FRAME.findall(stack_trace or ""):
        found = _place(file, int(number)) or found
    return found


def _place(file: str, number: int) -> str:
    if file.startswith(_NOT_THE_MODELS) or file.startswith("<frozen"):
        return ""
    source = linecache.getline(file, number).strip()
    return f" at {Path(file).name}:{number}" + (f" ({source[:80]})" if source else "")


@contextlib.contextmanager
def without_checks() -> Iterator[None]:
    """Inside, distributions and the Gaussian loss do not look whether their parameters are allowed.

    Fake tensors have no contents to look at; the checks change no bit of what is computed.
    """
    kind: Any = torch.distributions.Distribution
    before = kind._validate_args
    kind.set_default_validate_args(False)
    try:
        with _UncheckedVariance():
            yield
    finally:
        kind.set_default_validate_args(before)


class _UncheckedVariance(TorchFunctionMode):
    """Inside, ``torch.nn.functional.gaussian_nll_loss`` takes variances as they are."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """``func`` itself, but for that loss."""
        is_loss = func is torch.nn.functional.gaussian_nll_loss
        return (_gaussian_nll_loss if is_loss else func)(*args, **(kwargs or {}))


def _gaussian_nll_loss(
    input: Tensor,  # as torch names it
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """The calls that torch makes once it has looked at ``var``."""
    if not isinstance(var, Tensor):
        var = var * torch.ones_like(input)
    if var.shape != input.shape and input.shape[:-1] == var.shape:
        var = torch.unsqueeze(var, -1)
    var = var.clone()
    with torch.no_grad():
        var.clamp_(min=eps)
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    if full:
        loss += 0.5 * math.log(2 * math.pi)
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss


def original(module: nn.Module) -> nn.Module:
    """``module``, or what `torch.compile` made it from: the same tensors under their own names."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled yet, and importing it takes seconds
        return module
    while isinstance(module, torch._dynamo.OptimizedModule):
        module = module._orig_mod
    return module


@contextlib.contextmanager
def without_short_cuts() -> Iterator[None]:
    """Modules run the ops that they are written in, as they do while they train."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with _uncompiled():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextlib.contextmanager
def _uncompiled() -> Iterator[None]:
    """Compiled parts of a module, and compiled functions that it calls, run as they are written."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    config = torch._dynamo.config.patch(error_on_nested_fx_trace=False)
    with torch.compiler.set_stance("force_eager"), config:
        yield


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """``module`` in evaluation mode; afterwards it is as it was, with every part in the mode that it was in.

    Raises:
        ModelError: it is an exported program, whose mode is fixed; or its own ``eval`` changes its tensors,
            as where adapters are added to a weight.
    """
    modes = {part: part.training for part in module.modules()}
    is_own = any(type(part).train is not nn.Module.train for part in modes)
    contents = {name: (item, item.detach(), item.detach().clone()) for name, item in _own(module) if is_own}
    with unchanged(module):
        try:
            _evaluate(module, contents)
            yield
        finally:
            for part, was_training in modes.items():
                part.training = was_training
            for item, memory, content in contents.values():
                item.data = memory.copy_(content)


def _evaluate(module: nn.Module, contents: Mapping[str, tuple[torch.Tensor, ...]]) -> None:
    try:
        module.eval()
    except NotImplementedError:
        raise ModelError("an exported program has no other mode than that in which it was exported") from None
    now = dict(_own(module))
    for name, (_, _, content) in contents.items():
        if name not in now or not torch.equal(now[name], content):
            raise ModelError(f"the model's own eval() changes {name}, of which a plan has one content")


def _own(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from (*module.named_parameters(), *module.named_buffers())


@contextlib.contextmanager
def lent(module: nn.Module) -> Iterator[None]:
    """``module`` may be trained inside; afterwards it is as it was, with its contents and gradients.

    Its tensors have other memory meanwhile. It is not copied: hooks and functions may speak of itself.
    """
    own = (*module.parameters(), *module.buffers())
    before = [(item, item.data, item.grad, item.requires_grad) for item in own]
    with unchanged(module):
        try:
            for item, memory, *_ in before:
                item.data, item.grad = memory.clone(), None
            yield
        finally:
            for item, memory, gradient, requires_grad in before:
                item.data, item.grad = memory, gradient
                item.requires_grad_(requires_grad)


Contents = dict[Any, Any]

_HOLDS_NOTHING = (
    str, bytes, int, float, complex, torch.Tensor, torch.Generator, ModuleType, BuiltinFunctionType,
)  # fmt: skip
_KNOWN_PACKAGES = frozenset({*sys.stdlib_module_names, "torch", "numpy", "poet"})
_DRAWING: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], object]]] = {
    random.Random: (lambda g: g.getstate(), lambda g, state: g.setstate(state)),
    np.random.RandomState: (lambda g: g.get_state(legacy=False), lambda g, state: g.set_state(state)),
    np.random.Generator: (
        lambda g: g.bit_generator.state, lambda g, state: setattr(g.bit_generator, "state", state)
    ),
}  # fmt: skip
"""How the state of what draws numbers is read and set."""
_BOUND = (MethodType, functools.partial, staticmethod, classmethod)
_OF_PROCESS: tuple[tuple[str, Any], ...] = (
    ("Python's random", getattr(random.getstate, "__self__")),  # noqa: B009
    ("numpy.random", getattr(np.random.get_state, "__self__")),  # noqa: B009
)
_OF_TORCH = ("_flat_weights", "_flat_weight_refs")  # lists of a recurrent layer's parameters
_MOST_ITEMS = 20_000  # that are looked at: a module may refer to a whole data set


class Kept:
    """What can be reached from ``roots``, objects and their names, as it is now."""

    def __init__(self, roots: Iterable[tuple[str, object]]) -> None:
        pending, seen = deque([*_OF_PROCESS, *roots]), set[int]()
        self._before: list[tuple[str, Any, Contents]] = []  # keeps all alive, so that no id is used again
        while pending and len(self._before) < _MOST_ITEMS:
            name, item = pending.popleft()
            if item is None or isinstance(item, _HOLDS_NOTHING) or id(item) in seen:
                continue
            seen.add(id(item))
            self._before.append((name, item, _read(item)))
            pending += [(_called(name, item, key), value) for key, value in self._before[-1][2].items()]

    def changed(self) -> dict[str, object]:
        """Names of what is not as it was, and what is there now."""
        found = {}
        for name, item, before in self._before:
            now = _read(item)
            for key in {**before, **now}:
                called = _called(name, item, key)
                if called.endswith(_OF_TORCH) or _is_made(item, key):
                    continue
                if not (key in now and key in before and _alike(now[key], before[key])):
                    found[called] = now.get(key)
        return found

    def put_back(self) -> None:
        """Everything as it was, object for object."""
        for _, item, before in self._before:
            now = _read(item)
            if [*now] != [*before] or not all(_alike(now[key], before[key]) for key in before):
                _write(item, before)


@contextlib.contextmanager
def unchanged(module: nn.Module, *others: tuple[str, object]) -> Iterator[None]:
    """``module`` and all that can be reached from it are afterwards what they were before, object for object.

    A trace runs with tensors without contents. They would stay where a forward pass sets an attribute, fills
    a list, registers a buffer or removes a hook, and in a part that has two names: what torch puts back under
    the second is what it had put under the first.
    """
    kept, default_type = Kept((*roots_of(module), *others)), torch.get_default_dtype()
    try:
        yield
    finally:
        torch.set_default_dtype(default_type)
        kept.put_back()


def roots_of(module: nn.Module) -> list[tuple[str, object]]:
    """The parts of ``module`` and the gradient hooks of its parameters, by name."""
    hooks = ((f"the hook on {name}", item._backward_hooks) for name, item in module.named_parameters())
    return [*((path or type(module).__name__, part) for path, part in module.named_modules()), *hooks]


def has_own_code(module: nn.Module) -> bool:
    """Whether code that is neither torch's nor ours runs with ``module``, so that it may keep something."""
    return any(getattr(item, "_backward_hooks", None) for item in module.parameters()) or any(
        not _is_known(type(part))
        or any((value and key.endswith("_hooks")) or callable(value) for key, value in vars(part).items())
        for part in module.modules()
    )


def _read(item: Any) -> Contents:
    """What ``item`` itself holds, by key."""
    if isinstance(item, dict):  # its own items: one that loads what it lacks is left alone
        return dict(OrderedDict.items(item) if isinstance(item, OrderedDict) else dict.items(item))
    if isinstance(item, list | deque | set | tuple | frozenset):
        return dict(enumerate(item))
    if type(item) in _DRAWING:
        held = _DRAWING[type(item)][0](item)
        return {"": State(_plain(held), held)}
    if isinstance(item, Iterator):  # what it gives next cannot be read, so that it counts as changed
        return {"": repr(item) if isinstance(item, itertools.count) else object()}
    if isinstance(item, FunctionType):
        return {} if _is_known(item) else {**_globals(item), **_cells(item), 0: item.__defaults__}
    if isinstance(item, _BOUND):
        return {key: getattr(item, key, None) for key in ("__self__", "__func__", "func", "args", "keywords")}
    if isinstance(item, type):
        own = {} if _is_known(item) else {**vars(item), "__bases__": item.__bases__}
        return {key: value for key, value in own.items() if key[:2] != "__" or key == "__bases__"}
    held = getattr(item, "__dict__", None)
    return {**(held if isinstance(held, dict) else {}), "__class__": type(item)}


def _write(item: Any, before: Contents) -> None:
    """Put back what ``item`` held."""
    if isinstance(item, dict):
        item.clear()
        item.update(before)
    elif isinstance(item, list | deque | set):
        item.clear()
        item.extend(before.values()) if isinstance(item, list | deque) else item.update(before.values())
    elif type(item) in _DRAWING:
        _DRAWING[type(item)][1](item, before[""].held)
    elif isinstance(item, FunctionType):
        for name, cell in zip(item.__code__.co_freevars, item.__closure__ or (), strict=True):
            cell.cell_contents = before.get(name)
        item.__globals__.update({name: before[name] for name in _globals(item) if name in before})
    elif isinstance(item, type):
        for key in before.keys() - {"__bases__"}:
            if not _alike(vars(item).get(key), before[key]):
                setattr(item, key, before[key])
    elif isinstance(held := getattr(item, "__dict__", None), dict):
        held.clear()
        held.update((key, value) for key, value in before.items() if key != "__class__")


@dataclass(frozen=True, slots=True)
class State:
    """A generator's state; two are compared without arrays, which have no one answer."""

    plain: object
    held: Any = field(compare=False)


def _plain(held: object) -> object:
    """A generator's state with bytes in place of arrays."""
    if isinstance(held, dict):
        return {key: _plain(item) for key, item in held.items()}
    return held.tobytes() if isinstance(held, np.ndarray) else held


def _called(name: str, item: Any, key: Any) -> str:
    """The name of what ``item``, called ``name``, has under ``key``."""
    if isinstance(item, dict):
        return f"{name}[{key!r}]"
    if isinstance(item, FunctionType):
        return key or name
    if isinstance(item, (list, deque, set, tuple, frozenset, *_BOUND)) or key == "":
        return name
    return f"{item.__name__ if isinstance(item, type) else name}.{key}"


def _is_made(item: Any, key: Any) -> bool:
    """Whether it is a weight that a hook of torch puts together of parameters in every pass."""
    parameters = item._parameters if isinstance(item, nn.Module) else {}
    return f"{key}_orig" in parameters or f"{key}_v" in parameters


def _cells(function: FunctionType) -> Contents:
    """What a function closes over."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # it is empty
            found[name] = cell.cell_contents
    return found


def _globals(function: FunctionType) -> Contents:
    """Global names that a function uses, also in functions inside it."""
    names, codes = set[str](), [function.__code__]
    for code in codes:
        names |= {*code.co_names}
        codes += [item for item in code.co_consts if isinstance(item, CodeType)]
    return {name: function.__globals__[name] for name in names if name in function.__globals__}


def _is_known(item: Any) -> bool:
    """Whether a class or function is torch's, numpy's, Python's or ours, and keeps nothing of a model's."""
    return str(item.__module__).partition(".")[0] in _KNOWN_PACKAGES


def _alike(one: Any, other: Any) -> bool:
    """Whether they are the same object, or equal numbers or words."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    return isinstance(one, int | float | complex | str | bytes | np.generic | State) and bool(one == other)
