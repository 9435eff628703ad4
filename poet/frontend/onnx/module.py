"""An ``nn.Module`` that runs the steps of an imported model."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from poet.errors import ModelError
from poet.frontend.module_tensors import held, hold
from poet.frontend.onnx.build import BuiltModel
from poet.frontend.onnx.names import Naming
from poet.frontend.onnx.node import Modal, Run
from poet.frontend.onnx.reader import OnnxFile, StoredTensor

Source = Callable[[str, StoredTensor], Tensor]
"""From a state name and what the file says of it to the tensor to use."""


class ImportedModule(nn.Module):
    """Runs the steps that `build` made. Parameters and buffers have the initialisers' names, dots and all.

    Attributes:
        names: the state name of each initialiser that became a parameter or a buffer.
        initializers: the initialisers that became parameters.
        calls: what runs, in order.
    """

    def __init__(
        self,
        built: BuiltModel,
        file: OnnxFile,
        trainable: frozenset[str],
        source: Source,
        naming: Naming | None = None,
    ) -> None:
        super().__init__()
        naming = naming or Naming()
        used = {value.slot: value for step in built.steps for value in step.operands if value}
        used.update({value.slot: value for value in built.outputs if value})
        states = [
            v
            for v in used.values()
            if v.state and (v.state in trainable or v.state in built.buffers or v.state in naming.names)
        ]
        self.names = state_names([value.state for value in states if value.state], naming.names)
        self.initializers = frozenset(value.state for value in states if value.state in trainable)
        self._homes: dict[int, tuple[nn.Module, str]] = {}
        for value in states:
            assert value.state is not None
            name = self.names[value.state]
            tensor = source(name, file.tensors[value.state])
            is_parameter = value.state in trainable and value.state not in built.buffers
            if is_parameter:
                tensor = nn.Parameter(tensor, requires_grad=value.state not in naming.frozen)
            self._homes[value.slot] = hold(self, name, tensor)
        self._carry(file, trainable, source, naming)
        self._constants: dict[int, str] = {}
        known: dict[tuple[torch.dtype, tuple[int, ...], bytes], str] = {}
        for value in used.values():
            if value.constant is not None and value.slot not in self._homes:
                # each content once, and each in a storage of its own: constants are views of one another
                own = value.constant.clone(memory_format=torch.contiguous_format)
                key = (own.dtype, tuple(own.shape), hashlib.sha256(raw_bytes(own)).digest())
                if key not in known:
                    known[key] = f"constant{len(known)}"
                    self.register_buffer(known[key], own, persistent=False)
                self._constants[value.slot] = known[key]
        self._inputs = built.inputs
        self._outputs = tuple(value.slot for value in built.outputs if value)
        self.calls = _calls(built)

    def _carry(self, file: OnnxFile, trainable: frozenset[str], source: Source, naming: Naming) -> None:
        """What the module that was exported has beside what runs: so that its state dict is this one's."""
        for initializer, name in naming.names.items():
            if initializer not in self.names:
                tensor = source(name, file.tensors[initializer])
                is_parameter = initializer in trainable and initializer not in naming.buffers
                if is_parameter and initializer in naming.carried:
                    tensor = nn.Parameter(tensor, requires_grad=False)
                hold(self, name, tensor)
                self.names[initializer] = name
        for alias, initializer in naming.aliases.items():
            hold(self, alias, held(self, self.names[initializer]))
        self._counters = tuple(self.names[counter] for counter in naming.counters.values())

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """The outputs of the model for ``inputs``, which have the bound shapes.

        Raises:
            ModelError: an input is missing, or has another shape or type than the model was bound to.
        """
        self._check(inputs)
        for name in self._counters if self.training else ():
            held(self, name).add_(1)
        slots: dict[int, Tensor | Sequence[Tensor]] = {}
        slots.update(zip((value.slot for value in self._inputs), inputs, strict=True))
        for slot, (home, attribute) in self._homes.items():
            slots[slot] = getattr(home, attribute)
        for slot, name in self._constants.items():
            slots[slot] = getattr(self, name)
        for call in self.calls:
            run = call.train if self.training else call.evaluate
            result = run(*(None if slot is None else slots[slot] for slot in call.operands))
            for slot in call.last_reads:
                del slots[slot]
            if call.whole:
                slots[call.outputs[0][1]] = result
            else:
                for index, slot in call.outputs:
                    slots[slot] = result[index]
        found = tuple(slots[slot] for slot in self._outputs)
        return found[0] if len(found) == 1 else found  # type: ignore[return-value]

    def _check(self, inputs: Sequence[Tensor]) -> None:
        if len(inputs) != len(self._inputs):
            raise ModelError(f"the model has {len(self._inputs)} inputs, {len(inputs)} were given")
        for value, tensor in zip(self._inputs, inputs, strict=True):
            assert isinstance(value.meta, Tensor)
            if tensor.shape != value.meta.shape or tensor.dtype != value.meta.dtype:
                raise ModelError(
                    f"input {value.name!r} is {list(tensor.shape)} {tensor.dtype}, "
                    f"expected {list(value.meta.shape)} {value.meta.dtype}"
                )


@dataclass(frozen=True)
class BoundStep:
    """A step, bound to slots.

    Attributes:
        op: its operator, after rewriting.
        train: what runs in training mode.
        evaluate: what runs in evaluation mode.
        operands: slots that are passed; ``None`` is passed as such.
        outputs: index of a result, and the slot that keeps it.
        whole: the result is the one output, not a tuple of outputs.
        last_reads: slots that nothing reads afterwards.
    """

    op: str
    train: Run
    evaluate: Run
    operands: tuple[int | None, ...]
    outputs: tuple[tuple[int, int], ...]
    whole: bool
    last_reads: tuple[int, ...]


def _calls(built: BuiltModel) -> tuple[BoundStep, ...]:
    held = {value.slot for value in built.outputs if value}
    calls: list[BoundStep] = []
    seen = set(held)
    for step in reversed(built.steps):
        reads = {value.slot for value in step.operands if value}
        outputs = tuple((index, value.slot) for index, value in enumerate(step.outputs) if value)
        run = step.run
        train, evaluate = (run.train, run.evaluate) if isinstance(run, Modal) else (run, run)
        assert callable(train)
        assert callable(evaluate)
        operands = tuple(value.slot if value else None for value in step.operands)
        calls.append(BoundStep(step.op, train, evaluate, operands, outputs, step.whole, tuple(reads - seen)))
        seen |= reads
    return tuple(reversed(calls))


def state_names(initializers: Sequence[str], given: Mapping[str, str] | None = None) -> dict[str, str]:
    """A readable, unique name of a module's state for each initialiser.

    Dots stay, so that ``layer1.0.conv1.weight`` is what it was in torch; ``/`` becomes a dot, other signs
    an underscore. A name that is also the prefix of another gets an underscore. Names that are ``given``
    stay as they are.
    """
    given = given or {}
    names: dict[str, str] = {item: given[item] for item in sorted(initializers) if item in given}
    tensors: set[str] = set(given.values())
    folders = {name[:place] for name in tensors for place, sign in enumerate(name) if sign == "."}
    for initializer in sorted(set(initializers) - given.keys()):
        parts = [re.sub(r"\W+", "_", part) for part in re.split(r"[./]+", initializer)]
        path: list[str] = []
        for part in filter(None, parts):
            while hasattr(nn.Module, part) or ".".join([*path, part]) in tensors:
                part += "_"
            path.append(part)
        path = path or ["_"]
        while ".".join(path) in tensors | folders:
            path[-1] += "_"
        names[initializer] = ".".join(path)
        tensors.add(names[initializer])
        folders.update(".".join(path[:depth]) for depth in range(1, len(path)))
    return names


def raw_bytes(tensor: Tensor) -> bytes:
    """The content as ONNX files have it."""
    content: bytes = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return content
