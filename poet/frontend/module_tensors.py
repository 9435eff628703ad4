"""What a module has that a trace names: its parameters, buffers and inputs, and which of them are trained."""

from __future__ import annotations

import fnmatch
import gc
import inspect
import itertools
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.nn.parameter import is_lazy

from poet.errors import ModelError, nearest
from poet.frontend.eager import unchanged, without_checks
from poet.frontend.functional import GradientHook, fakes
from poet.frontend.traced_operators import AsTraced
from poet.ir.named import block_of
from poet.passes.layouts import tensor_type


def own_tensors(module: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The module's parameters and buffers by name, shared ones once.

    Raises:
        ModelError: one has no shape yet, is not on the CPU, of an unsupported type, or overlaps another.
    """
    for key, item in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(item):
            raise ModelError(f"{key} has no shape yet; run the model once on real inputs")
    parameters: dict[str, Tensor] = {key: item.detach() for key, item in module.named_parameters()}
    states: dict[str, Tensor] = {key: item.detach() for key, item in module.named_buffers()}
    spans = []
    for key, tensor in (parameters | states).items():
        if tensor.device.type != "cpu":
            raise ModelError(f"{key} is on device {tensor.device}; move the model to the CPU to plan it")
        size_bytes = tensor_type(tensor, key).extent_bytes - tensor.storage_offset() * tensor.element_size()
        if size_bytes > 0:
            spans.append((tensor.data_ptr(), tensor.data_ptr() + size_bytes, key))
    spans.sort()
    for (_, end, key), (start, _, other) in itertools.pairwise(spans):
        if start < end:
            raise ModelError(
                f"{key} and {other} share memory; give each its own, or tie them as one Parameter"
            )
    return parameters, states


def unsaved_states(module: nn.Module) -> set[str]:
    """Names of the buffers that the module's state dict leaves out."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, part in module.named_modules(remove_duplicate=False)
        for name in part._non_persistent_buffers_set
    }


def tied_names(module: nn.Module, own: Mapping[str, Tensor]) -> tuple[tuple[str, str], ...]:
    """Further names that the state dict has for a tensor, each with the name that it has here."""
    first = {id(item): name for name, item in (*module.named_parameters(), *module.named_buffers())}
    every = (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    )
    unsaved = unsaved_states(module)
    return tuple((name, first[id(item)]) for name, item in every if name not in own and name not in unsaved)


def trained_parameters(module: nn.Module, train: Iterable[str] | None) -> tuple[str, ...]:
    """Names of the parameters to train, in the module's order.

    Raises:
        ModelError: none, or one that cannot have a gradient; or a pattern that fits no name.
    """
    parameters = dict(module.named_parameters())
    if train is None:
        chosen = {key for key, parameter in parameters.items() if parameter.requires_grad}
        if not chosen:
            raise ModelError(
                f"no parameter of {type(module).__name__} requires a gradient: nothing to train; name some "
                "(--train, train=)"
            )
    else:
        chosen = set()
        for pattern in map(str, train):
            whole, rows = block_of(pattern)
            fitting = fnmatch.filter(parameters, whole)
            for key in fitting if rows is not None else ():
                _check_rows(key, parameters[key], rows)
            if not fitting:
                raise ModelError(f"no parameter is called {pattern!r}{nearest(pattern, parameters)}")
            chosen |= set(fitting)
        if not chosen:
            raise ModelError("no pattern of parameters to train is given")
    for key in chosen:
        if not parameters[key].is_floating_point():
            raise ModelError(f"{key} is of type {parameters[key].dtype} and has no gradient; do not train it")
    return tuple(key for key in parameters if key in chosen)


def _check_rows(name: str, parameter: Tensor, rows: tuple[int, int] | None) -> None:
    there = parameter.shape[0] if parameter.dim() else 0
    if rows is not None and not rows[0] < rows[1] <= there:
        raise ModelError(f"{name} has {there} output channels, and no block [{rows[0]}:{rows[1]}] of these")


def trained_blocks(trained: Iterable[str], train: Iterable[str] | None) -> tuple[str, ...]:
    """Of the ``trained`` parameters what ``train`` names: ``w``, or blocks such as ``w[0:16]``."""
    names, found = tuple(trained), list[str]()
    for pattern in ("*",) if train is None else train:
        whole, rows = block_of(pattern)
        ending = "" if rows is None else f"[{rows[0]}:{rows[1]}]"
        found += [f"{name}{ending}" for name in fnmatch.filter(names, whole)]
    return tuple(dict.fromkeys(found))


def gradient_hooks(module: nn.Module) -> dict[str, list[GradientHook]]:
    """The hooks on gradients of the module's parameters, by name.

    Raises:
        ModelError: one runs after its gradient was added up, and may do anything there.
    """
    hooks: dict[str, list[GradientHook]] = {}
    for name, parameter in module.named_parameters():
        held = (
            gc.get_referents(torch.autograd.graph.get_gradient_edge(parameter).node)
            if parameter.requires_grad
            else ()
        )
        later = [item for item in held if isinstance(item, dict) and item is not parameter._backward_hooks]
        if getattr(parameter, "_post_accumulate_grad_hooks", None) or any(later):
            raise ModelError(
                f"{name} has a hook that runs where its gradient is added up (on autograd's node, or of "
                "register_post_accumulate_grad_hook), which a plan never calls; change the gradient by "
                "register_hook, or keep your loop with poet.wrap"
            )
        hooks[name] = [*(parameter._backward_hooks or {}).values()]
    return hooks


def input_names_of(module: nn.Module, count: int, given: Sequence[str] | None) -> list[str]:
    if given is None:
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        try:
            signature = list(inspect.signature(module.forward).parameters.values())
        except ValueError:  # of a module from torch.jit.trace
            signature = []
        given = [parameter.name for parameter in signature if parameter.kind in kinds]
    return [*given[:count], *(f"input{index}" for index in range(len(given), count))]


def free_names(wanted: Iterable[str], taken: set[str]) -> tuple[str, ...]:
    """The names, with underscores where one is taken."""
    names: list[str] = []
    for name in wanted:
        while name in taken or name in names:
            name += "_"
        names.append(name)
    return tuple(names)


def named_constants(traced: fx.GraphModule, own: Mapping[str, Tensor]) -> dict[str, str]:
    """Name for the value of each tensor that the trace holds, by its attribute.

    Raises:
        ModelError: one is a parameter or buffer of the module, which it got at some other way; or no tensor
            that a graph has.
    """
    attributes = dict.fromkeys(str(node.target) for node in traced.graph.nodes if node.op == "get_attr")
    owners = {tensor.data_ptr(): name for name, tensor in own.items() if tensor.numel()}
    for attribute in attributes:
        tensor_type(getattr(traced, attribute), "a tensor that the model holds")
        if (owner := owners.get(getattr(traced, attribute).data_ptr())) is not None:
            raise ModelError(
                f"the model uses {owner} through a reference of its own, which hides it from tracing"
            )
    numbers = itertools.count()
    free = (name for name in map("constant{}".format, numbers) if name not in own)
    return {attribute: next(free) for attribute in attributes}


def looks_at_contents(module: nn.Module, inputs: Sequence[Tensor]) -> bool:
    """Whether the model takes a way that depends on what its tensors contain.

    It is then run as exporters run it, where such shortcuts are left out: for planning and for comparing.
    """
    own = dict((*module.named_parameters(), *module.named_buffers()))
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        fake_own = dict(zip(own, fakes(mode, own.values()), strict=True))
        with unchanged(module), without_checks(), mode, torch.no_grad(), AsTraced():
            torch.func.functional_call(module, fake_own, tuple(fakes(mode, inputs)))
    except DataDependentOutputException:
        return True
    except Exception:
        return False  # whatever it is, tracing meets it again, and says it
    return False


def hold(root: nn.Module, name: str, tensor: Tensor, *, is_saved: bool = True) -> tuple[nn.Module, str]:
    """Give ``root`` a tensor under a dotted name; the part that holds it, and its name there."""
    *path, leaf = name.split(".")
    home = root
    for part in path:
        if part not in home._modules:
            home.add_module(part, nn.Module())
        home = home.get_submodule(part)
    if isinstance(tensor, nn.Parameter):
        home.register_parameter(leaf, tensor)
    else:
        home.register_buffer(leaf, tensor, persistent=is_saved)
    return home, leaf


def held(root: nn.Module, name: str) -> Tensor:
    """The parameter or buffer of a dotted name."""
    path, _, leaf = name.rpartition(".")
    found: Tensor = getattr(root.get_submodule(path), leaf)
    return found


def examples(types: Iterable[tuple[torch.dtype, Sequence[int]]]) -> tuple[Tensor, ...]:
    """Tensors of these types: floats normally distributed, whole numbers zero."""
    generator = torch.Generator().manual_seed(0)
    return tuple(
        torch.randn(shape, generator=generator).to(dtype)
        if dtype.is_floating_point
        else torch.zeros(shape, dtype=dtype)
        for dtype, shape in types
    )
