"""A module for an existing training loop, whose forward and backward replay a plan.

    net = poet.wrap(net, example_inputs, ram="64MiB")
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss_function(net(inputs), targets).backward()
        optimizer.step()

The loss, the optimizer, its hooks and schedulers stay the loop's. A pass is forward up to the outputs, the
caller's loss, and backward from the gradients that autograd gives of them.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from poet.devices.device_problem import build_problem, kernels_on
from poet.devices.load import load_profile
from poet.devices.profile import Profile
from poet.errors import InputError, ReplayError, one_of
from poet.frontend.eager import original
from poet.frontend.wrapped import WrappedStep, check_hooks_for_all, trace_wrapped
from poet.ir.calls import TensorType
from poet.ir.strips import Gradients
from poet.planning.planned import Planned, limits_of, plan_step
from poet.planning.prepared import Prepared
from poet.plans.plan_parts import Model
from poet.plans.training_plan import Plan
from poet.problem import Objective, Pins, Place, Problem
from poet.problem.progress import IMPORT, showing, stage
from poet.problem.solution import Progress, SolveOptions
from poet.runtime.data.given import as_tensors
from poet.runtime.steps.passes import rest
from poet.runtime.steps.replay import SplitReplay
from poet.runtime.system.memory import return_freed_memory
from poet.runtime.training.open_plan import open_pages


def wrap(
    module: nn.Module,
    example_inputs: object,
    *,
    ram: str | int | None,
    device: str | Path | Profile = "x86-host",
    backward_from: Sequence[int] | str | None = None,
    deadline: str | float | None = None,
    recompute: bool = True,
    paging: bool = True,
    pins: Pins | None = None,
    minimise: Objective | str = Objective.ENERGY,
    time_limit_seconds: float | None = 20.0,
    page_file: str | Path | None = None,
    progress: bool | Progress | None = False,
) -> Wrapped:
    """A module that computes what ``module`` does, bit for bit, inside ``ram`` while it trains.

    What the budget counts: parameters and module state, the batch, outputs and gradients until backward has
    ended, and all that lives in between. What the loop keeps beside that is its own: the optimizer's state,
    the loss's tensors, gradients of an earlier pass.

    Args:
        module: on the CPU, in the mode (train or eval, also of its parts) in which it is to train. Parameters
            and state stay its own: both are always the same, under the same names.
        example_inputs: a tensor, a sequence of positional or a mapping of keyword arguments, of the shapes of
            every pass. Those that require a gradient get one.
        ram: as of `poet.plan`.
        device: whose costs decide what is recomputed and what paged; by name, file or record.
        backward_from: numbers of the outputs from which the loss is made, where the module returns more; the
            others are handed out without a gradient. Or the name of one, as ``"loss"``, in a mapping that the
            module returns; all, where it returns none of that name that has a gradient.
        deadline: for one pass, as of `poet.plan`.
        recompute: whether ops may run again.
        paging: whether tensors may move to storage. Parameters and the batch never do: others hold them.
        pins: as of `poet.plan`.
        minimise: likewise.
        time_limit_seconds: of the search; ``None``: until proven.
        page_file: where tensors are paged; ``None``: an unnamed file in the working folder.
        progress: as of `poet.plan`.

    Raises:
        InputError: the module, the device or an option is not usable.
        Infeasible, OutOfTime: as of `poet.plan`.
        PageFileError: the page file cannot be had.
    """
    profile = device if isinstance(device, Profile) else load_profile(device)
    objective = one_of(Objective, minimise, "minimise")
    with showing(progress, objective=objective, limit_seconds=time_limit_seconds) as shown:
        stage(IMPORT)
        traced = trace_wrapped(module, example_inputs, backward_from=backward_from)
        prepared = _prepared(traced, profile)
        limits = limits_of(
            prepared.problem, ram=ram, deadline=deadline, recompute=recompute, paging=paging, pins=pins
        )
        options = SolveOptions(time_limit_seconds, objective=objective, progress=shown)
        planned = plan_step(prepared, limits, options)
    return_freed_memory()
    return Wrapped(original(module), traced, planned, page_file=page_file)


def _prepared(traced: WrappedStep, profile: Profile) -> Prepared:
    step = traced.step
    kernels = kernels_on(profile, step.graph, step.kernels)
    return Prepared(
        model=Model(step.graph.name, "module", step.digest),
        structure=None,
        step=step,
        profile=profile,
        kernels=kernels,
        problem=_held_by_the_caller(build_problem(step.graph, profile, kernels), traced),
        train=("*",),
        gradients=Gradients.KEEP,
        import_seconds=0.0,
    )


def _held_by_the_caller(problem: Problem, traced: WrappedStep) -> Problem:
    """``problem`` with what the caller holds in RAM from the pass's begin to its end."""
    graph = traced.step.graph
    held = graph.persistent() | {graph.buffer_of(name) for name in graph.inputs}
    return replace(
        problem,
        tensors=tuple(
            replace(tensor, initially=Place.RAM, finally_=Place.RAM, page_in=None, page_out=None)
            if tensor.name in held
            else tensor
            for tensor in problem.tensors
        ),
    )


class Wrapped(nn.Module):
    """A module whose training passes replay a plan; make one with `poet.wrap`.

    It has the parameters, the state and the parts of the module it was made from, by the same names, and
    whatever else is asked for by name. In evaluation mode, unless it was wrapped in it, and where gradients
    are switched off, it runs the module's own forward.

    Attributes:
        module: that it was made from.
        planned: the plan, with how it was found.
    """

    module: nn.Module
    planned: Planned

    def __init__(
        self, module: nn.Module, traced: WrappedStep, planned: Planned, *, page_file: str | Path | None
    ) -> None:
        super().__init__()
        own = self.__dict__
        own["module"], own["planned"], own["_traced"] = module, planned, traced
        for shared in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            own[shared] = getattr(module, shared)
        own["training"] = module.training
        own["_modes"] = [(part, part.training) for part in module.modules()]
        own["_hooks"] = _hooks_of(module)
        own["_tensors"] = _Tensors(module, traced, planned.plan)
        own["_settings"] = _settings_of(module, own["_tensors"].memory)
        own["_replay"] = SplitReplay(planned.plan, pages=open_pages(planned.plan, Path(), page_file))
        own["_under_way"] = lambda: None
        weakref.finalize(self, own["_replay"].close)

    @property
    def plan(self) -> Plan:
        """What a pass replays."""
        return self.planned.plan

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns for these arguments.

        Raises:
            InputError: in training, arguments of other shapes or types than the example inputs; or the module
                was changed since it was wrapped.
            ReplayError: the pass before still waits for its backward pass, or an op failed.
        """
        if not torch.is_grad_enabled():
            rest()
            return self.module(*args, **kwargs)
        if any(part.training != mode for part, mode in self._modes):
            if not self.module.training:
                rest()
                return self.module(*args, **kwargs)
            raise InputError(
                "a part of the module is in another mode than when it was wrapped; put it back, or wrap the "
                "module again"
            )
        check_hooks_for_all()
        if self._hooks != _hooks_of(self.module):
            raise InputError(
                "a hook of the module, or of a part of it, was registered or removed since it was wrapped; a "
                "plan calls those that it was traced with; wrap the module again"
            )
        self._check_settings()
        traced: WrappedStep = self._traced
        if torch.is_autocast_enabled("cpu"):
            raise InputError("a wrapped module computes in the types it has; leave torch.autocast out")
        inputs = traced.called.tensors((args, kwargs), "the module was called with")
        self._check_inputs(inputs)
        trained = self._tensors.trained()
        results = _Pass.apply(self, len(inputs), *inputs, *trained)  # type: ignore[no-untyped-call]
        return traced.returned.filled(results)

    def train(self, mode: bool = True) -> Wrapped:
        """See `torch.nn.Module.train`."""
        self.module.train(mode)
        self.training = mode
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The module's; see `torch.nn.Module.state_dict`."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Into the module; see `torch.nn.Module.load_state_dict`."""
        return self.module.load_state_dict(*args, **kwargs)

    def close(self) -> None:
        """Give the page file back; training passes are over. The module stays as it is."""
        self._replay.close()

    def __getattr__(self, name: str) -> Any:
        if name in ("module", "planned") or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.module, name)

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise InputError("a wrapped module is bound to its plan; copy its `module`, and wrap the copy")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise InputError("a wrapped module cannot be pickled; save its state_dict(), or its `module`")

    def _check_settings(self) -> None:
        now = _settings_of(self.module, self._tensors.memory)
        for place, value in self._settings.items():
            found = now.get(place)
            if found is not value and (isinstance(value, Tensor) or found != value):
                raise InputError(
                    f"{'.'.join(filter(None, place)) or 'it'} was changed since the module was wrapped, and "
                    "a plan computes with what it was; wrap the module again, or keep what changes in a "
                    "buffer (register_buffer)"
                )

    def _check_inputs(self, inputs: Sequence[Tensor]) -> None:
        traced: WrappedStep = self._traced
        graph = traced.step.graph
        types = {value.name: value.type for value in graph.values}
        for number, (name, tensor) in enumerate(zip(graph.inputs, as_tensors(inputs), strict=True)):
            kind = types[name]
            if (str(tensor.dtype), tuple(tensor.shape)) != (f"torch.{kind.dtype}", kind.shape):
                found = f"{str(tensor.dtype).removeprefix('torch.')}[{','.join(map(str, tensor.shape))}]"
                raise InputError(
                    f"{name} is {found}, the module was wrapped for {kind}; give batches of that "
                    "size (DataLoader(drop_last=True)), or wrap the module once more for the other: both "
                    "share its tensors"
                )
            if tensor.layout == torch.strided and not _lies_as(tensor, kind):
                raise InputError(
                    f"{name} has strides {list(tensor.stride())}, the module was wrapped for "
                    f"{list(kind.strides)}, and bits depend on them; give {name}.contiguous(), or wrap the "
                    "module with an example that lies in memory as the batches do"
                )
            if tensor.requires_grad and number not in traced.input_gradients:
                raise InputError(
                    f"{name} requires a gradient, the example input did not; detach it, or wrap the module "
                    "with an example that does"
                )

    def _begin(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Forward, where no pass is in flight that somebody may still want to go back through."""
        if self._replay.is_under_way and self._under_way() is not None:
            raise ReplayError(
                "a pass through the wrapped module still waits for its backward pass; call backward first, "
                "drop its outputs, or run one of the two under torch.no_grad()"
            )
        if self._replay.is_under_way:
            self._replay.discard()
        self._replay.bind(self._tensors.now())
        results: tuple[Tensor, ...] = self._replay.forward(inputs)
        return results


def _lies_as(tensor: Tensor, kind: TensorType) -> bool:
    """Whether its elements lie in memory as ``kind`` says; a dimension of one element lies in any way."""
    pairs = zip(tensor.shape, tensor.stride(), kind.strides, strict=True)
    return all(size == 1 or stride == planned for size, stride, planned in pairs) or not tensor.numel()


def _hooks_of(module: nn.Module) -> list[int]:
    """The hooks that the parts of ``module`` call, each by its number in the process."""
    return [number for part in module.modules() for key in HOOKS for number in vars(part).get(key, ())]


def _settings_of(module: nn.Module, memory: frozenset[int]) -> dict[tuple[str, str], object]:
    """Numbers, words and rows of them among the attributes of ``module``'s parts, by part and name.

    And what the parts run, by part; and tensors that are neither parameter nor buffer, where ``memory`` names
    their storage.
    """
    found: dict[tuple[str, str], object] = {}
    for path, part in module.named_modules():
        found[path, ""] = (part, type(part), vars(part).get("forward"))
        for key, value in vars(part).items():
            if type(value) in _SETTINGS:
                found[path, key] = value
            elif isinstance(value, list | tuple) and all(type(item) in _SETTINGS for item in value):
                found[path, key] = tuple(value)
            elif isinstance(value, Tensor) and memory and value.untyped_storage().data_ptr() in memory:
                found[path, key] = value
    return {place: value for place, value in found.items() if place[1] not in _NO_SETTINGS}


_SETTINGS = frozenset({bool, int, float, str})
_NO_SETTINGS = frozenset({"training", "_is_full_backward_hook"})
"""Modes are compared part by part; torch sets the other where it registers a hook."""
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


class _Ticket:
    """Lives as long as autograd may go back through a pass."""


class _Pass(torch.autograd.Function):
    """One pass: autograd's node for the whole module."""

    @staticmethod
    def forward(ctx: Any, wrapped: Wrapped, inputs: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        """See `torch.autograd.Function.forward`; ``tensors`` are the inputs, then the trained parameters."""
        outputs = wrapped._begin(tensors[:inputs])
        traced: WrappedStep = wrapped._traced
        graph, read = traced.step.graph, wrapped._replay.read_after
        ctx.wrapped, ctx.inputs, ctx.ticket = wrapped, inputs, _Ticket()
        wrapped.__dict__["_under_way"] = weakref.ref(ctx.ticket)
        named = [
            *zip(graph.inputs, tensors[:inputs], strict=True),
            *wrapped._tensors.parameters(),
            *zip(traced.outputs, outputs, strict=True),
        ]
        ctx.set_materialize_grads(False)  # else outputs without a gradient get one of zeros
        # autograd then refuses to go back where one of them was written meanwhile
        ctx.save_for_backward(*(tensor for name, tensor in named if name in read))
        ctx.mark_non_differentiable(
            *(item for number, item in enumerate(outputs) if number not in traced.differentiated)
        )
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """See `torch.autograd.Function.backward`."""
        wrapped: Wrapped = ctx.wrapped
        traced: WrappedStep = wrapped._traced
        _ = ctx.saved_tensors
        if wrapped._under_way() is not ctx.ticket or not wrapped._replay.is_under_way:
            raise ReplayError(
                "this pass was gone back through already; a plan frees what it kept, so retain_graph has no "
                "effect"
            )
        names = [traced.outputs[number] for number in traced.differentiated]
        given = zip(names, (gradients[number] for number in traced.differentiated), strict=True)
        made = iter(
            wrapped._replay.backward(
                [wrapped._replay.zeros(name) if item is None else item for name, item in given]
            )
        )
        of_trained = [next(made) for _ in traced.reached]
        of_inputs = [next(made) if number in traced.input_gradients else None for number in range(ctx.inputs)]
        return (None, None, *of_inputs, *of_trained)


class _Tensors:
    """The module's tensors as they are now: a loop may replace what a name stands for."""

    def __init__(self, module: nn.Module, traced: WrappedStep, plan: Plan) -> None:
        self._step = traced
        graph = plan.graph
        parameters = {item.value for item in graph.parameters}
        own = {name: _owner(module, name) for name in (*traced.trained, *parameters)}
        names = {value for _, value in (*graph.states, *graph.constants)}
        known = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
        own |= {name: _owner(module, name) for name in names if name in known}
        self._own = own
        self._parameters = [item.value for item in graph.parameters]
        self._fixed = {name: traced.step.tensors[name] for name in names - known}
        self._trained = frozenset(traced.trained)
        self.memory = frozenset(tensor.untyped_storage().data_ptr() for tensor in self._fixed.values())

    def now(self) -> dict[str, Tensor]:
        """Every tensor that lives across passes."""
        return {name: getattr(part, key) for name, (part, key) in self._own.items()} | self._fixed

    def parameters(self) -> list[tuple[str, Tensor]]:
        """The parameters by value."""
        return [(name, getattr(*self._own[name])) for name in self._parameters]

    def trained(self) -> list[Tensor]:
        """The parameters that get a gradient.

        Raises:
            InputError: others require one now than when the module was wrapped.
        """
        for name, parameter in self.parameters():
            if parameter.requires_grad != (name in self._trained):
                raise InputError(
                    f"requires_grad of {name} was changed since the module was wrapped; wrap it again"
                )
        return [getattr(*self._own[name]) for name in self._step.reached]


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    *path, key = name.split(".")
    return functools.reduce(getattr, path, module), key  # scripted modules have no get_submodule
