"""What Python keeps beside a module's tensors, where one pass may leave something for the next.

A trace runs a module with tensors without contents, and a plan repeats one pass. So all that can be reached
from the module, and the generators of random numbers, is looked at before and after a pass: what has changed
is put back, and named where it may matter.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

Contents = dict[Any, Any]

_HOLDS_NOTHING = (
    str, bytes, int, float, complex, torch.Tensor, torch.Generator, ModuleType, BuiltinFunctionType,
)  # fmt: skip
_NOT_THE_MODELS = frozenset({*sys.stdlib_module_names, "torch", "numpy", "poet"})
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
    if isinstance(item, dict):
        return dict(item)
    if isinstance(item, list | deque | set | tuple | frozenset):
        return dict(enumerate(item))
    if type(item) in _DRAWING:
        held = _DRAWING[type(item)][0](item)
        with np.printoptions(threshold=sys.maxsize):
            return {"": State(repr(held), held)}
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
    """A generator's state; two are compared in words."""

    words: str
    held: Any = field(compare=False)


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
    return str(item.__module__).partition(".")[0] in _NOT_THE_MODELS


def _alike(one: Any, other: Any) -> bool:
    """Whether they are the same object, or equal numbers or words."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    return isinstance(one, int | float | complex | str | bytes | np.generic | State) and bool(one == other)
