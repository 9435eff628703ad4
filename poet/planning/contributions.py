"""What each group of parameters gives to learning, measured on batches of data: scores for a choice.

Each group is measured by steps of a plan that trains it inside the limits asked for. They have the bits of
plain PyTorch, so that scores depend on neither device nor RAM.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import itertools
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from poet.errors import Infeasible, InputError, NotFinite
from poet.files.tensorfile import replaced
from poet.ir.named import Named, named_parameters
from poet.ir.strips import Gradients
from poet.planning.choice import MAX_FILE_BYTES, Group, Scores
from poet.planning.pipeline import PlanRequest
from poet.planning.planned import plan_step
from poet.planning.prepared import training_less
from poet.plans.training_plan import Plan
from poet.problem import Place
from poet.runtime.data.given import Given, as_tensors
from poet.runtime.data.random_batches import batches_of
from poet.runtime.steps.instructions import Tap
from poet.runtime.storage.state import raw_tensor
from poet.runtime.training.trainer import Trainer
from poet.util import codec
from poet.util.interrupts import times_asked
from poet.util.reading import parse_json, read_regular
from poet.util.units import format_seconds

_Batches = Sequence[tuple[Given, Given | None]]
_Data = str | Path | Iterable[tuple[Given, Given | None]]


def contributions(
    model: Any,
    example_inputs: Any = None,
    *,
    data: _Data,
    by: str = "steps",
    blocks: int = 1,
    batches: int = 8,
    output: str | Path | None = None,
    tell: Callable[[str], object] = lambda line: None,
    **asked: Any,
) -> Scores:
    """Measure what each layer of ``model`` gives to learning: scores for a plan that chooses what to train.

    Args:
        model: as of `poet.plan`; or a `poet.api.PlanRequest`.
        example_inputs: as of `poet.plan`.
        data: a file as of ``poet run --data``, or batches, each inputs and targets.
        by: ``"steps"``: by how much the mean loss over the batches falls when the layer alone takes a
            training step on each, 0 where it does not fall. ``"fisher"``: the mean over the batches of the
            squared norm of its gradient at the given weights: the trace of the empirical Fisher information
            where a batch is one sample (Theis et al., 2018, arXiv:1801.05787).
        blocks: of output channels (rows of dim 0) that each layer is divided into, at most.
        batches: of the data, the first ones, to measure on.
        output: the file of scores. Beside it the folder ``OUTPUT.partial`` keeps what is measured, and the
            same call goes on from there.
        tell: is given a line for each layer or block.
        asked: further arguments of `poet.plan`; ``time_limit_seconds`` is that of each search.

    Raises:
        InputError: the model, the data or an option is not usable, or ``OUTPUT.partial`` is of others.
        Infeasible, OutOfTime: no layer's step fits, or no plan for one was found in time.
        NotFinite: a loss is not finite.
    """
    request = model if isinstance(model, PlanRequest) else PlanRequest(model, example_inputs, **asked)
    request = replace(request, evaluation=False, progress=False, shapes=(), budgets=())
    if by not in ("steps", "fisher"):
        raise InputError(f"by is {by!r}; there are steps and fisher")
    if request.micro is not None:
        raise InputError("contributions are measured on whole batches; leave micro out")
    if by == "fisher" or blocks > 1:
        request = replace(request, gradients=Gradients.KEEP)  # each exists whole, and is counted
    for name, number in {"blocks": blocks, "batches": batches}.items():
        if number < 1:
            raise InputError(f"{name} is {number}; give 1 or more")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch if output is None else f"{output}.partial")
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder}: a folder for partial results would be there; move that file away")
        folder.mkdir(exist_ok=True)
        measuring = _Measuring(request, data, by, blocks, batches, folder)
        scores = Scores(tuple(measuring.groups(tell)))
        if output is not None:
            with replaced(Path(output)) as file:
                file.write(scores.to_toml().encode())
            measuring.file.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # something else is kept there
                folder.rmdir()
        return scores


@dataclass(slots=True)
class _Partial:
    """What was measured so far: SHA-256 of the question and of the data, loss before, scores by layer."""

    asked: str
    data: str = ""
    before: float | None = None
    scores: dict[str, tuple[float, ...]] = field(default_factory=dict)


class _Measuring:
    """A measurement that is going on, kept in a folder."""

    def __init__(
        self, request: PlanRequest, data: _Data, by: str, blocks: int, batches: int, folder: Path
    ) -> None:
        self._request, self._data, self._by, self._count = request, data, by, batches
        self.file, self._plan = folder / "measured.json", folder / f"plan-{os.getpid()}.poet"
        self._batches: _Batches = ()
        self._prepared, self._limits = request.inside(request.prepared())
        step = self._prepared.step
        trained = [item for item in named_parameters(step.graph) if item.is_trained]
        self._units = dict(_layers(trained, blocks))
        specs = map(step.optimizer.of_group, range(len(step.optimizer.groups) + 1))
        moves_others = any(spec.decay for spec in specs) or self._prepared.home is not Place.RAM
        if blocks > 1 and by == "steps" and moves_others:
            raise InputError("blocks by steps take no weight decay, and home ram; or measure by fisher")
        asked = (by, blocks, batches, request.ram, request.deadline, request.limits)
        text = repr((*asked, step.digest, step.loss, step.optimizer))
        self._kept = _Partial(_digest(text, (step.tensors[name] for name in sorted(step.tensors))))
        if self.file.exists():
            self._go_on()

    def groups(self, tell: Callable[[str], object]) -> Iterator[Group]:
        """Measure what is not measured yet; the groups with their scores, but for those without a plan."""
        began, kept, number = time.monotonic(), self._kept.scores, len(self._units)
        pending = {names: groups for names, groups in self._units.items() if " ".join(names) not in kept}
        for done, (names, groups) in enumerate(pending.items(), 1):
            name, said = " ".join(names), ""
            try:
                kept[name] = tuple(self._scores_of(names, groups))
            except Infeasible as error:
                kept[name], said = (), f"left out: {error}"
            with replaced(self.file) as file:
                file.write(json.dumps(asdict(self._kept)).encode())
            left_seconds = (time.monotonic() - began) / done * (len(pending) - done)
            said = said or ", ".join(f"{score:.4g}" for score in kept[name])
            place = f"{number - len(pending) + done} of {number}"
            tell(f"{place}, {format_seconds(left_seconds)} left: {name}: {said}")
        if not any(kept.values()):
            raise Infeasible("the step of no layer fits inside the limits; give more RAM, or smaller batches")
        for names, groups in self._units.items():
            for group, score in zip(groups, kept[" ".join(names)], strict=False):
                yield replace(group, score=score)

    def _scores_of(self, names: tuple[str, ...], groups: tuple[Group, ...]) -> Iterator[float]:
        requests = times_asked()
        prepared = training_less(self._prepared, names, measure=True)
        enough_joules = self._limits.joules_budget or math.inf  # every plan gives the same scores
        options = replace(self._request.search_options, enough_joules=enough_joules, confirm=False)
        planned = plan_step(prepared, self._limits, options)
        try:
            planned.save(self._plan)
            if times_asked() > requests:  # Ctrl-C ended the search, and is to end all
                raise KeyboardInterrupt
            if not self._batches:
                self._read_batches(planned.plan)
            if self._by == "fisher":
                with Trainer.open(self._plan, seed=0) as trainer:
                    yield from _fisher(trainer, self._batches, groups)
                return
            if self._kept.before is None:
                with Trainer.open(self._plan, seed=0) as trainer:
                    _stop(trainer)
                    self._kept.before = _loss_after_steps(trainer, self._batches)
            for group in groups:
                with Trainer.open(self._plan, seed=0) as trainer:
                    after = _loss_after_steps(trainer, self._batches, group.channels)
                yield max(0.0, self._kept.before - after)
        finally:
            self._plan.unlink(missing_ok=True)

    def _read_batches(self, plan: Plan) -> None:
        if isinstance(self._data, str | Path):
            self._batches = batches_of(self._data, plan, self._count)
        else:
            self._batches = list(itertools.islice(self._data, self._count))
        if len(self._batches) < self._count:
            raise InputError(f"the data has {len(self._batches)} batches, {self._count} are asked for")
        data = _digest("", (item for batch in self._batches for part in batch for item in as_tensors(part)))
        if self._kept.data not in ("", data):
            raise InputError(f"{self.file.parent} is of other batches; remove it to begin again")
        self._kept.data = data

    def _go_on(self) -> None:
        try:
            read = parse_json(read_regular(self.file, most_bytes=MAX_FILE_BYTES))
        except (OSError, ValueError) as error:
            raise InputError(f"{self.file}: no partial result can be read; remove it ({error})") from None
        found = codec.decode(_Partial, read, where=str(self.file))
        sizes = {" ".join(names): (0, len(groups)) for names, groups in self._units.items()}
        if any(len(scores) not in sizes.get(name, ()) for name, scores in found.scores.items()):
            raise InputError(f"{self.file}: it has scores of other layers; remove it")
        if found.asked != self._kept.asked:
            what = "another model, other weights, limits or options"
            raise InputError(f"{self.file.parent} is of {what}; remove it to begin again")
        self._kept = found


def _layers(trained: Sequence[Named], blocks: int) -> Iterator[tuple[tuple[str, ...], tuple[Group, ...]]]:
    """The parameters of each layer, and its groups.

    A layer is what has one name up to the last dot; it is divided where all of it has as many rows.
    """
    for _, items in itertools.groupby(trained, lambda item: item.name.rpartition(".")[0] or item.name):
        layer = list(items)
        names = tuple(item.name for item in layer)
        rows = {(*item.content.type.shape, 1)[0] for item in layer}
        count = min(blocks, *rows) if len(rows) == 1 else 1
        starts = [max(rows) * number // count for number in range(count + 1)]
        channels = [f"{start}:{stop}" for start, stop in itertools.pairwise(starts)] if count > 1 else [None]
        yield names, tuple(Group(tuple(map(glob.escape, names)), 0.0, each) for each in channels)


def _stop(trainer: Trainer) -> None:
    """Steps change no parameter from here on."""
    trainer.learning_rates = (0.0,) * len(trainer.learning_rates)


def _losses(trainer: Trainer, batches: _Batches, see: Tap | None = None) -> Iterator[float]:
    for batch in batches:
        loss = trainer.step(*batch, on_gradient=see).loss
        trainer.check_budget()
        if not math.isfinite(loss):
            raise NotFinite(f"the loss of step {trainer.steps} is {loss}; a smaller learning rate may help")
        yield loss


def _loss_after_steps(trainer: Trainer, batches: _Batches, channels: str | None = None) -> float:
    """The mean loss after a step on each of ``batches``; random numbers are as in any other call.

    A block of ``channels`` is trained alone as the gradients of the others are zero.
    """

    def only(name: str, gradient: Tensor) -> None:
        kept = gradient[_rows(channels)].clone()
        gradient.zero_()[_rows(channels)] = kept

    list(_losses(trainer, batches, only if channels else None))
    _stop(trainer)
    return statistics.fmean(_losses(trainer, batches))


def _fisher(trainer: Trainer, batches: _Batches, groups: Sequence[Group]) -> Iterator[float]:
    """Per group the mean over ``batches`` of the squared norm of its gradient."""
    squares: list[list[float]] = [[] for _ in groups]

    def see(name: str, gradient: Tensor) -> None:
        for group, own in zip(groups, squares, strict=True):
            own.append(float(torch.linalg.vector_norm(gradient[_rows(group.channels)])) ** 2)

    _stop(trainer)
    list(_losses(trainer, batches, see))
    return (math.fsum(own) / len(batches) for own in squares)


def _rows(channels: str | None) -> Any:
    return ... if channels is None else slice(*map(int, channels.split(":")))


def _digest(text: str, tensors: Iterable[Tensor]) -> str:
    found = hashlib.sha256(text.encode())
    for tensor in tensors:
        raw = raw_tensor(tensor)
        found.update(f"{raw.dtype}{raw.shape}".encode())
        found.update(raw.data)
    return found.hexdigest()
