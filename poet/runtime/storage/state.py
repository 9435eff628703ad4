"""The tensors that live across steps: where they come from and where they are saved.

A saved state is a safetensors file. Parameters and module state stand under the module's names, the
optimizer's tensors as ``optimizer/<parameter>/<state>``, the random generator's state as
``poet.random_state``; the metadata binds it to the model, counts the steps, and has the seed of the training.

A save replaces the file at its path as a whole, so that a power cut leaves the old one or the new one. What
it cannot prevent is a file that the storage damages later; then the generation before it may still be there.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import torch

from poet.errors import InputError, PlanError, PoetError, ReplayError
from poet.files import tensorfile
from poet.files.kinds import FileKind, says_what_it_is
from poet.files.tensorfile import RawTensor, TensorFile
from poet.ir.graph import ITEM_BYTES, Graph
from poet.ir.named import Joined, named_parameters, packed_values
from poet.plans.plan_file import PlanFile
from poet.plans.planned_step import lasting_values
from poet.plans.training_plan import Plan
from poet.runtime.storage.transfers import Pieces
from poet.util.reading import Closing

_log = logging.getLogger("poet.runtime")

FORMAT = "poet-state"
FORMAT_VERSION = 1
_RANDOM_STATE = "poet.random_state"
_OF_OPTIMIZER = "optimizer/"
_SEED = re.compile(r"-?\d{1,20}")


class Source(Protocol):
    """Where a trainer's tensors come from.

    Attributes:
        steps: made so far.
        seed: of the training; ``None``: it has none.
        random_state: of the trainer's own generator; ``None``: it draws from the process's.
    """

    steps: int
    seed: int | None
    random_state: torch.Tensor | None

    def fill(self, value: str, target: torch.Tensor) -> None:
        """Write the content of the graph's ``value`` into ``target``."""

    def place_of(self, value: str) -> tuple[int, int] | None:
        """An open file that has the bytes of ``value`` for good, and where; ``None``: there is none."""


class FromPlan:
    """The state with which the plan was made; what the optimizer keeps is as new."""

    def __init__(
        self, file: PlanFile, *, seed: int | None = None, weights: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        """Prepare; ``weights`` as of `Trainer.open`."""
        self.steps = 0
        self.seed = seed
        self.random_state = None if seed is None else seeded(seed).get_state()
        self._file = file
        self._given = {} if weights is None else _given(file.plan.graph, weights)
        for parameter in file.plan.graph.parameters:
            unknown = {name for name, _ in parameter.optimizer_state} - file.plan.optimizer.states.keys()
            if unknown:
                raise PlanError(f"optimizer {file.plan.optimizer.name} has no state {min(unknown)!r}")
        self._fresh = {
            value: file.plan.optimizer.states[name]
            for parameter in file.plan.graph.parameters
            for name, value in parameter.optimizer_state
        }

    def fill(self, value: str, target: torch.Tensor) -> None:
        """Write the content of the graph's ``value`` into ``target``."""
        if value in self._given:
            target.copy_(self._given[value])
        elif value in self._file.entries:
            fill_from(self._file, value, target)
        else:
            target.fill_(self._fresh[value])

    def stretches(self, value: str) -> Iterator[memoryview]:
        """The bytes of a ``value`` that the plan file has, in C order; each lies where the last did."""
        return self._file.stretches(value)

    def place_of(self, value: str) -> tuple[int, int] | None:
        """See `Source`."""
        is_in_file = value in self._file.entries and value not in self._given
        return self._file.place_of(value) if is_in_file else None


def pieces(item: Joined, whole: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The values that make up ``item``, each with its rows of ``whole``."""
    if not item.bounds:
        yield item.values[0], whole
    for value, (start, stop) in zip(item.values, item.bounds, strict=False):
        yield value, whole[start:stop]


def _given(graph: Graph, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Contents by value of the graph; what is packed stays the plan's own."""
    parameters = {item.name: item.content for item in named_parameters(graph) if item.packed is None}
    packed = packed_values(graph)
    types = {value.name: value.type for value in graph.values}
    wanted = {name: item.type for name, item in parameters.items()}
    states = {name: value for name, value in graph.states if value not in packed}
    wanted |= {name: types[value] for name, value in states.items()}
    if odd := sorted(wanted.keys() ^ weights.keys()):
        why = "missing" if odd[0] in wanted else "not of the plan, or packed there"
        raise InputError(
            f"weights: {odd[0]} is {why}; give all parameters and module state by name, as state_dict() "
            "does, but for a packed base"
        )
    for name, kind in wanted.items():
        found = weights[name]
        if (str(found.dtype), tuple(found.shape)) != (f"torch.{kind.dtype}", kind.shape):
            raise InputError(f"weights: {name} is {found.dtype}{list(found.shape)}, the plan has {kind}")
    made = {part: piece for name, item in parameters.items() for part, piece in pieces(item, weights[name])}
    return made | {value: weights[name] for name, value in states.items()}


class Saved(Closing):
    """The state in a file that `save` wrote; constants come from the plan itself."""

    @says_what_it_is(FileKind.STATE)
    def __init__(self, path: str | Path, plan: PlanFile, *, seed: int | None = None) -> None:
        """Open and check the file.

        The saved generator goes on, unless ``seed`` is another than that of the training that was saved.

        Raises:
            PlanError: it is damaged, of another version, or of another model or optimizer.
        """
        self.path = Path(path)
        self._file = TensorFile(self.path, error=PlanError)
        try:
            self._saved = saved_tensors(plan.plan.graph)
            self._owners = {
                value: (item, number) for item in self._saved for number, value in enumerate(item.values)
            }
            self.steps = _checked_steps(self._file, plan.plan)
            self._check_entries()
            began_with = _checked_seed(self._file)
            self.seed = began_with if seed is None else seed
            self._constants = FromPlan(plan, seed=self.seed)
            self.random_state = self._constants.random_state
            goes_on = began_with is None or self.seed == began_with
            if goes_on and _RANDOM_STATE in self._file.entries:
                self.random_state = self._read_random_state()
        except BaseException:
            self._file.close()
            raise

    def fill(self, value: str, target: torch.Tensor) -> None:
        """Write the content of the graph's ``value`` into ``target``."""
        if value not in self._owners:
            self._constants.fill(value, target)
            return
        item, number = self._owners[value]
        if item.bounds:
            start_bytes, _ = _bytes_of_part(item, number)
            self._file.read_part_into(item.name, bytes_of(target), start_bytes)
        else:
            fill_from(self._file, item.name, target)

    def stretches(self, value: str) -> Iterator[memoryview]:
        """The bytes of ``value`` in C order; each stretch lies where the last did."""
        if value not in self._owners:
            return self._constants.stretches(value)
        item, number = self._owners[value]
        size_bytes = self._file.entries[item.name].size_bytes
        start_bytes, part_bytes = _bytes_of_part(item, number) if item.bounds else (0, size_bytes)
        return self._file.stretches(item.name, start_bytes, part_bytes)

    def place_of(self, value: str) -> tuple[int, int] | None:
        """See `Source`; the next save replaces this file, so what it has is copied."""
        return None if value in self._owners else self._constants.place_of(value)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()

    def _check_entries(self) -> None:
        where, entries = self._file.path.name, self._file.entries
        extra = entries.keys() - {*(item.name for item in self._saved), _RANDOM_STATE}
        if extra:
            raise PlanError(f"{where}: {min(extra)!r} is no tensor of the plan's training state")
        for item in self._saved:
            name, kind = item.name, item.type
            if name not in entries:
                raise PlanError(f"{where}: {name!r} is missing; was it saved with another training set?")
            found = entries[name]
            if (found.dtype, found.shape) != (kind.dtype, kind.shape):
                raise PlanError(f"{where}: {name} is {found.dtype}{list(found.shape)}, not {kind}")

    def _read_random_state(self) -> torch.Tensor:
        raw = bytearray(self._file.read(_RANDOM_STATE))
        try:
            random_state = torch.frombuffer(raw, dtype=torch.uint8).clone()
            torch.Generator().set_state(random_state)
        except (RuntimeError, TypeError, ValueError):
            raise PlanError(f"{self._file.path.name}: its random state is damaged") from None
        return random_state


def _bytes_of_part(item: Joined, number: int) -> tuple[int, int]:
    """Where in a tensor of several values the bytes of one begin, and how many they are."""
    row_bytes = math.prod(item.type.shape[1:]) * ITEM_BYTES[item.type.dtype]
    start, stop = item.bounds[number]
    return start * row_bytes, (stop - start) * row_bytes


def check_fillable(graph: Graph) -> None:
    """Inputs and what lives across steps must be values that can be written element by element.

    Raises:
        PlanError: two elements of one lie at the same place.
    """
    given = {value.name: value.type for value in graph.values if value.name in graph.inputs}
    for name, kind in {**given, **lasting_values(graph)}.items():
        if kind.overlaps_itself:
            raise PlanError(f"{name} is {kind} with strides {kind.strides}: its elements overlap")


def saved_tensors(graph: Graph) -> tuple[Joined, ...]:
    """The training state as it is saved: each tensor once, under its name, of the values that make it up."""
    types = {value.name: value.type for value in graph.values}
    named = named_parameters(graph)
    parameters = {value for item in named for value in item.content.values}
    first_names = {value: name for name, value in reversed(graph.states)}  # of tied names the first
    states = (
        Joined(name, types[value], (value,)) for value, name in first_names.items() if value not in parameters
    )
    return (
        *states,
        *(item.content for item in named),
        *(state for item in named for _, state in item.optimizer_state),
    )


def save(
    path: Path,
    plan: Plan,
    pieces: Pieces,
    *,
    steps: int,
    random_state: torch.Tensor | None,
    seed: int | None = None,
) -> None:
    """Write the training state at ``path``, one piece of a tensor at a time: what is in storage stays there.

    Args:
        path: of the file.
        plan: whose state it is.
        pieces: of the graph's values.
        steps: made so far.
        random_state: of the trainer's generator, where it has one.
        seed: of the training, where it has one.

    Raises:
        PoetError: the folder cannot be written or is full, or there is no memory; an old file at ``path`` is
            kept.
    """
    saved = {item.name: item for item in saved_tensors(plan.graph)}
    kinds: dict[str, tensorfile.TensorKind] = {name: item.type for name, item in saved.items()}
    drawn = None if random_state is None else raw_tensor(random_state)
    if drawn is not None:
        kinds[_RANDOM_STATE] = drawn

    def raw(name: str) -> Iterator[memoryview]:
        if drawn is not None and name == _RANDOM_STATE:
            yield memoryview(drawn.data)
            return
        for value in saved[name].values:
            yield from map(bytes_of, pieces(value))

    metadata = {
        "poet.format": FORMAT,
        "poet.version": str(FORMAT_VERSION),
        "poet.model.sha256": plan.model.sha256,
        "poet.optimizer": plan.optimizer.name,
        "poet.steps": str(steps),
    }
    if seed is not None:
        metadata["poet.seed"] = str(seed)
    tensorfile.write_streamed(path, kinds, raw, metadata, digest_key="poet.tensors.sha256")


def raw_tensor(tensor: torch.Tensor) -> RawTensor:
    """A tensor's bytes in C order; its own memory where it is contiguous.

    Raises:
        ReplayError: it is not, and there is no memory for a copy.
    """
    dtype = str(tensor.dtype).removeprefix("torch.")
    try:
        ordered = tensor.detach().contiguous()
    except RuntimeError:
        raise ReplayError(f"there is no memory for a copy of {tensor.nbytes} bytes") from None
    return RawTensor(dtype, tuple(tensor.shape), bytes_of(ordered))


def seeded(seed: int) -> torch.Generator:
    """A generator at the beginning of what ``seed`` gives.

    Raises:
        InputError: torch takes no such seed.
    """
    try:
        return torch.Generator().manual_seed(seed)
    except (RuntimeError, OverflowError, ValueError):
        raise InputError(f"{seed} is no seed; take a whole number from 0 to {2**63 - 1}") from None


def _checked_seed(file: TensorFile) -> int | None:
    """The seed of the training that was saved; ``None`` where the file does not say it."""
    text = file.metadata.get("poet.seed")
    if text is None:
        return None
    if not _SEED.fullmatch(text) or not text.isascii():
        raise PlanError(f"{file.path.name}: its seed is damaged")
    return int(text)


def _checked_steps(file: TensorFile, plan: Plan) -> int:
    where, metadata = file.path.name, file.metadata
    if metadata.get("poet.format") != FORMAT:
        raise PlanError(f"{where}: not a saved training state; Trainer.save and `poet run --save` write them")
    version = metadata.get("poet.version", "")
    if version != str(FORMAT_VERSION):
        raise PlanError(f"{where}: a state of version {version[:20]!r}, this poet reads {FORMAT_VERSION}")
    is_of_model = metadata.get("poet.model.sha256") == plan.model.sha256  # of the step: its optimizer as well
    if (is_of_model or _has_tensors_of(plan, file)) and metadata.get("poet.optimizer") != plan.optimizer.name:
        raise PlanError(f"{where}: saved with another optimizer than the plan's {plan.optimizer.name}")
    if not is_of_model:
        said = _of_other_states(file, plan) if _has_tensors_of(plan, file) else ""
        said = said or f"saved from another model than {plan.model.name}, for which the plan is"
        raise PlanError(f"{where}: {said}")
    steps = metadata.get("poet.steps", "")
    if not steps.isascii() or not steps.isdigit() or len(steps) > 15:
        raise PlanError(f"{where}: its count of steps is damaged")
    if file.digest() != metadata.get("poet.tensors.sha256"):
        raise PlanError(f"{where}: its tensors are damaged; resume from an older save")
    return int(steps)


def _has_tensors_of(plan: Plan, file: TensorFile) -> bool:
    """Whether ``file`` has all tensors of the plan's model, the optimizer's aside."""
    found = {name: (entry.dtype, entry.shape) for name, entry in file.entries.items()}
    return all(
        found.get(item.name) == (item.type.dtype, item.type.shape)
        for item in saved_tensors(plan.graph)
        if not item.name.startswith(_OF_OPTIMIZER)
    )


def _of_other_states(file: TensorFile, plan: Plan) -> str:
    """Which tensors per parameter only one of the two optimizers keeps; empty: there are none."""

    def kept(names: Iterable[str]) -> set[str]:
        return {name.rpartition("/")[2] for name in names if name.startswith(_OF_OPTIMIZER)}

    ours, theirs = kept(item.name for item in saved_tensors(plan.graph)), kept(file.entries)
    lacks, more = (", ".join(sorted(names)) for names in (ours - theirs, theirs - ours))
    if not (lacks or more):
        return ""
    has = f"lacks {lacks}, which the plan's keeps" if lacks else f"has {more}, which the plan's does not keep"
    return f"the state of its optimizer {has} ({plan.optimizer}); resume with a plan of the same settings"


def previous_of(path: str | Path) -> Path:
    """Where the generation before that at ``path`` stands."""
    path = Path(path)
    return path.with_name(f"{path.name}.previous")


class Generations:
    """What a training has saved where, so that only a state known to be good becomes the previous one."""

    def __init__(self, resumed_from: Path | None) -> None:
        self._intact = None if resumed_from is None else resumed_from.absolute()

    def before_save(self, path: Path) -> None:
        """What is at ``path`` becomes the previous generation, if this training saved it or began with it.

        Raises:
            PoetError: the folder cannot be written.
        """
        if self._intact == path.absolute() and path.exists():
            _keep_as_previous(path)

    def after_save(self, path: Path) -> None:
        """The newest state is at ``path``; one of another training beside it is none before it."""
        previous = previous_of(path).absolute()
        if self._intact not in (path.absolute(), previous):
            previous.unlink(missing_ok=True)
        self._intact = path.absolute()


def _keep_as_previous(path: Path) -> None:
    """By a second name at first, so that there is a good state under either name at every instant."""
    previous = previous_of(path)
    second_name = path.with_name(f".{previous.name}-{os.getpid()}")
    try:
        try:
            second_name.unlink(missing_ok=True)
            os.link(path, second_name)
        except OSError:  # file systems of memory cards have no hard links
            path.replace(previous)
        else:
            second_name.replace(previous)
    except OSError as cause:
        raise PoetError(f"{previous}: cannot be written ({cause.strerror or cause})") from None


def open_saved(path: str | Path, plan: PlanFile, *, seed: int | None = None) -> Saved:
    """The state at ``path``; where that cannot be used, the generation before it, and the log says so.

    Raises:
        PlanError: as of `Saved`, about the file at ``path``.
    """
    try:
        return Saved(path, plan, seed=seed)
    except PlanError as error:
        previous = previous_of(path)
        if not previous.exists():
            raise
        try:
            saved = Saved(previous, plan, seed=seed)
        except PlanError:
            raise error from None
        _log.warning(
            "poet: %s; going on from the generation before it, %s, after step %d",
            error,
            previous,
            saved.steps,
        )
        return saved


class _Readable(Protocol):
    def read_into(self, name: str, target: memoryview) -> None: ...


def fill_from(file: _Readable, name: str, target: torch.Tensor) -> None:
    """Read straight into ``target`` where its elements lie in C order, else through a copy."""
    if target.is_contiguous():
        file.read_into(name, bytes_of(target))
        return
    ordered = torch.empty(target.shape, dtype=target.dtype)
    file.read_into(name, bytes_of(ordered))
    target.copy_(ordered)


def bytes_of(contiguous: torch.Tensor) -> memoryview:
    """The memory of a tensor whose elements lie in C order."""
    return contiguous.reshape(-1).view(torch.uint8).numpy().data


def not_finite(graph: Graph, pieces: Pieces) -> str | None:
    """The name of a tensor that ops update and that holds NaN or an infinity; ``None``: none does.

    What no op updates is left out: a mask may well hold infinities.
    """
    updated = {buffer for op in graph.ops for buffer in op.updates}
    for value, name in ((value, item.name) for item in saved_tensors(graph) for value in item.values):
        if graph.buffer_of(value) not in updated:
            continue
        for piece in pieces(value):
            if not piece.numel() or not piece.is_floating_point():
                break
            if not _is_finite(piece):
                return name
    return None


def _is_finite(piece: torch.Tensor) -> bool:
    """Whether all numbers are. NumPy looks: a full arena leaves torch no byte beside it for the answer.

    It knows no bfloat16, of which torch keeps two numbers for a moment.
    """
    if piece.dtype == torch.bfloat16:
        return all(bool(item.isfinite()) for item in torch.aminmax(piece))
    numbers = piece.detach().numpy()
    return math.isfinite(numbers.min()) and math.isfinite(numbers.max())  # NaN wins both
