"""Proof by trial that a plan is exact: some steps through the plan, the same in plain PyTorch.

Both sides see the same batches and draw from equally seeded generators. After each step the loss, the
predictions, every gradient, every updated parameter, every module state and every tensor of the
optimizer are compared bit for bit, where units of the plan have their own numbers of threads with those in
plain PyTorch as well; then those of a step of each other shape that the plan has; then
the outputs and the loss in evaluation mode, where the plan has one, of every shape; at the end the
same, of one step, inside each other budget that the plan has.

A plan that rounds pages is not exact. Its schedule is compared so with whole pages. Then the plan itself is
held against the same replay with such pages kept in RAM and rounded by torch, and its gradients against plain
PyTorch's from the same state: how far off they are is measured, not promised.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import operator
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from poet.c99.statements import LIBRARY as C99
from poet.errors import InputError, NotExact, PlanError, PoetError
from poet.frontend.eager import lent, original
from poet.frontend.losses import LossFunction, with_output
from poet.frontend.plain import PlainTrainer, check_is_planned
from poet.frontend.traced_operators import small_operators
from poet.ir.graph import Graph
from poet.ir.named import named_parameters
from poet.plans.plan_file import PlanFile
from poet.plans.training_plan import Plan, shape_words
from poet.problem import PageForm
from poet.problem.schedule import Compute, PageIn
from poet.runtime import Trainer
from poet.runtime.data.random_batches import Batch, batches_of, random_batch, random_step
from poet.runtime.steps.replay import first_line
from poet.runtime.system.process import OpThreads, torch_threads
from poet.util.units import format_bytes

_LEAST_STEPS = 3


@dataclass(frozen=True, slots=True)
class BitComparison:
    """What was compared at one number of threads.

    Attributes:
        threads: that torch used.
        tensors: that were compared.
        difference: the first tensor that differs and how, or ``None``.
    """

    threads: int
    tensors: int
    difference: str | None


@dataclass(frozen=True, slots=True)
class RoundingReport:
    """What rounded pages do to a training step.

    Attributes:
        forms: of the tensors that are rounded, by name.
        page_error: how far off a number came back at most, as a share of what its form allows.
        gradient_error: norm of the difference of all gradients from plain PyTorch's, over the norm of those,
            in the worst step; each begins with the same state.
        farthest: the parameter whose gradient is farthest off, and the same of it alone.
    """

    forms: dict[str, PageForm]
    page_error: float
    gradient_error: float
    farthest: tuple[str, float]


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The outcome of `verify`; true if every bit was the same, or off by no more than rounded pages allow.

    Attributes:
        steps: made on each side.
        shapes: others of the plan, of each of which one step more was made.
        budgets: others of the plan, inside each of which one step more was made, and one of each shape.
        recomputed_runs, page_ins: of the plan in one step: what was put to the test.
        comparisons: one per number of threads.
        rounding: of a plan that rounds pages; ``None``: it does not.
    """

    steps: int
    recomputed_runs: int
    page_ins: int
    comparisons: tuple[BitComparison, ...]
    shapes: int = 0
    budgets: int = 0
    rounding: RoundingReport | None = None

    @property
    def exact(self) -> bool:
        """Whether every bit was the same."""
        return self.rounding is None and bool(self)

    def __bool__(self) -> bool:
        return all(comparison.difference is None for comparison in self.comparisons)

    def require(self) -> None:
        """Do nothing if the plan is exact, or off by no more than its rounded pages allow.

        Raises:
            NotExact: names the first tensor that differs.
        """
        for comparison in self.comparisons:
            if comparison.difference is not None:
                raise NotExact(f"with {comparison.threads} thread(s), {comparison.difference}")


def verify(
    path: str | Path,
    *,
    module: nn.Module | None = None,
    loss: LossFunction | None = None,
    batches: Sequence[Batch] | None = None,
    data: str | Path | None = None,
    steps: int = 3,
    threads: Sequence[int] = (1, 2),
    seed: int = 0,
    page_file: str | Path | None = None,
    arena: bool = True,
    allow_over_budget: bool = False,
) -> VerifyReport:
    """Train with the plan at ``path`` and with plain PyTorch, and compare.

    Args:
        path: of the plan file.
        module: the model that was planned, in the mode it was planned in; it is not changed. Not
            given: the model is built from the ONNX structure that the plan carries.
        loss: that was planned, where it is a function or module; the plan knows those of `poet.ir.loss`.
        batches: to train on, in turn; not given: those of ``data``, or random ones.
        data: samples to train on in their order, and over again where they are too few for all steps; see
            `poet.runtime.data.samples.load_samples`.
        steps: to make, of a ``module`` at least three, since what Python keeps may matter from the second on;
            of each other shape that the plan has, and inside each other budget, one more.
        threads: numbers of threads to try.
        seed: of random batches and of dropout.
        page_file: see `poet.runtime.Trainer.open`.
        arena: likewise; in use from the first step on, or from the fifth where its places are found here.
        allow_over_budget: whether steps may hold more than the plan's budget.

    Raises:
        OverBudget: every bit was the same; but with as many threads as the plan was measured with, a step or
            an evaluation held more tensor memory than the budget.
        PlanError: the plan is not usable, or carries no structure and no module is given.
        InputError: the samples do not fit the plan, the model fails on a batch, or the module is another.
    """
    with PlanFile(path) as file:
        plan = file.plan
        reference = _from_structure(file) if module is None else original(module)
    if module is not None:
        check_is_planned(reference, plan.graph)
    steps = steps if module is None else max(steps, _LEAST_STEPS)
    if batches is None and data is not None:
        batches = batches_of(data, plan, steps)
    given = tuple(batches or (random_step(plan, seed + number) for number in range(steps)))
    comparisons, rounding = [], None
    is_rounded = any(each.rounded for each in (plan, *plan.budgets))
    criterion = loss or plan.request.loss
    for count in threads:
        with (
            torch_threads(count),
            small_operators(are_wanted=plan.kernels.library == C99),
            torch.random.fork_rng(devices=[]),
            lent(reference),
        ):
            with _opened(path, seed, page_file, arena, is_whole=is_rounded) as trainer:
                trainer.allow_over_budget = allow_over_budget or count != plan.kernels.threads
                comparison = _compare(trainer, reference, given, steps, seed, criterion)
            if is_rounded and comparison.difference is None:
                with (
                    _opened(path, seed, page_file, arena) as trainer,
                    _opened(path, seed, None, False) as other,
                ):
                    trainer.allow_over_budget = allow_over_budget or count != plan.kernels.threads
                    rounded = _Rounded(trainer, other, reference, criterion, seed)
                    comparison = rounded.compared(given, steps, before=comparison.tensors)
                    rounding = max(rounding or rounded.report, rounded.report, key=_gradient_error)
            comparisons.append(comparison)
    runs = Counter(type(step) for step in plan.schedule)
    return VerifyReport(
        steps=steps,
        recomputed_runs=runs[Compute] - len(plan.graph.ops),
        page_ins=runs[PageIn],
        comparisons=tuple(comparisons),
        shapes=len(plan.shapes),
        budgets=len(plan.budgets),
        rounding=rounding,
    )


def _opened(
    path: str | Path, seed: int, page_file: str | Path | None, arena: bool, *, is_whole: bool = False
) -> Trainer:
    """The plan, open for training; with nothing rounded in storage where it ``is_whole``."""
    with PlanFile(path) as file:
        if is_whole:
            file.plan = file.plan.with_whole_pages()
        return Trainer.of(file, seed=seed, page_file=page_file, arena=arena)


_gradient_error = operator.attrgetter("gradient_error")


def _compare(
    trainer: Trainer,
    module: nn.Module,
    batches: Sequence[Batch],
    steps: int,
    seed: int,
    loss: str | LossFunction,
) -> BitComparison:
    plan, threads, compared = trainer.plan, torch.get_num_threads(), 0
    plain, plainly = _plain(trainer, module, loss, seed)
    sides = _Sides(trainer, plain, plainly, batches, seed)
    for name, ours, theirs in itertools.chain(sides.steps(steps), *map(sides.inside, plan.budgets)):
        compared += 1
        difference = _difference(ours, theirs)
        if difference is not None:
            return BitComparison(threads, compared, f"{name} {difference}")
    return BitComparison(threads, compared, None)


def _plain(
    trainer: Trainer, module: nn.Module, loss: str | LossFunction, seed: int
) -> tuple[PlainTrainer, nn.Module]:
    """Plain PyTorch from the state of ``trainer`` on, and what it trains."""
    plan, plainly = trainer.plan, with_output(module, trainer.plan.model.output)
    _take_over(plainly, trainer)
    named = (item for item in named_parameters(plan.graph) if item.is_trained)
    trained = [name for item in named for name in item.blocks or (item.name,)]
    plain = PlainTrainer(plainly, loss=loss, optimizer=plan.optimizer, trained=trained)
    torch.manual_seed(seed)
    return plain, plainly


def _take_over(module: nn.Module, trainer: Trainer) -> None:
    """Give ``module`` the parameters and module state that ``trainer`` has."""
    everything = _tensors(module)
    with torch.no_grad():
        for name, tensor in trainer.state_dict().items():
            everything[name].copy_(tensor)


_Pairs = Iterator[tuple[str, Tensor, Tensor]]
"""What a step or an evaluation gave, as (name, of the plan, of plain PyTorch)."""


@dataclass(frozen=True, slots=True)
class _Sides:
    """A plan that is open for training, and plain PyTorch with the same tensors."""

    trainer: Trainer
    plain: PlainTrainer
    module: nn.Module
    batches: Sequence[Batch]
    seed: int

    def steps(self, count: int) -> _Pairs:
        """So many steps, one of each other shape, then the evaluations, and their peak."""
        plan, batches = self.trainer.plan, self.batches
        for number in range(1, count + 1):
            yield from _called(f"step {number}: ", self.step(*batches[(number - 1) % len(batches)]))
        others = [(item, shape_words(item.step.graph, item.step.model)) for item in plan.shapes]
        drawn = [_batch_of(shape.step, batches, self.seed) for shape, _ in others]
        for (_, words), batch in zip(others, drawn, strict=True):
            yield from _called(f"step for {words}: ", self.step(*batch))
        if plan.evaluation is not None:
            first, micro = batches[0], plan.request.micro
            first = first if micro is None else _pieces(*first, micro.count)[0]
            yield from _called("evaluation: ", self.evaluation(*first))
        for (shape, words), batch in zip(others, drawn, strict=True):
            if shape.evaluation is not None:
                yield from _called(f"evaluation for {words}: ", self.evaluation(*batch))
        self.trainer.check_budget()

    def inside(self, other: Plan) -> _Pairs:
        """One step inside the budget of ``other``, with its auxiliary schedules; training goes on there."""
        budget_bytes = other.request.limits.ram_budget_bytes or 0
        self.trainer.set_budget(budget_bytes)
        yield from _called(f"inside {format_bytes(budget_bytes)}, ", self.steps(1))

    def step(self, inputs: tuple[Tensor, ...], targets: Tensor | tuple[Tensor, ...] | None) -> _Pairs:
        """One step on each side."""
        trainer, plain = self.trainer, self.plain
        gradients: dict[str, Tensor] = {}
        micro = trainer.plan.request.micro
        pieces = [(inputs, targets)] if micro is None else _pieces(inputs, targets, micro.count)
        divisor = 1 if micro is None else micro.divisor
        handed = None if trainer.plan.graph.predictions else 0  # logits in strips are handed to nobody
        with _accepting():
            plain.look(pieces[0][0])
            with _threads_of(trainer.plan):
                results = plain.step_in_pieces(pieces, divisor=divisor)
        *earlier, (loss, outputs) = results
        for number, (piece, (theirs, their_outputs)) in enumerate(zip(pieces[:-1], earlier, strict=True), 1):
            summed = trainer.accumulate(*piece)
            yield f"the loss of micro-batch {number}", torch.tensor(summed.loss, dtype=theirs.dtype), theirs
            for place, (ours, output) in enumerate(
                zip(summed.predictions, their_outputs[:handed], strict=True)
            ):
                yield f"output {place} of micro-batch {number}", ours, output
        result = trainer.step(
            *pieces[-1], on_gradient=lambda name, gradient: gradients.update({name: gradient.clone()})
        )
        yield "the loss", torch.tensor(result.loss, dtype=loss.dtype), loss
        for place, (ours, theirs) in enumerate(zip(result.predictions, outputs[:handed], strict=True)):
            yield f"output {place}", ours, theirs
        if gradients.keys() != plain.gradients.keys():
            raise NotExact(
                f"only one side has a gradient of {min(gradients.keys() ^ plain.gradients.keys())}"
            )
        for name, gradient in gradients.items():
            yield f"the gradient of {name}", gradient, plain.gradients[name]
        everything = _tensors(self.module)
        for name, ours in trainer.state_dict().items():
            yield name, ours, everything[name]
        states = trainer.optimizer_state()
        for (parameter, name), theirs in plain.optimizer_state().items():
            yield f"{name} of {parameter}", states[parameter][name], theirs

    def evaluation(self, inputs: tuple[Tensor, ...], targets: Tensor | tuple[Tensor, ...] | None) -> _Pairs:
        """The model in evaluation mode on each side, after the steps: outputs and loss."""
        trainer, plain = self.trainer, self.plain
        with _accepting():
            outputs = plain.predict(inputs)
        for number, (ours, theirs) in enumerate(zip(trainer.predict(inputs), outputs, strict=True)):
            yield f"output {number}", ours, theirs
        found, loss = trainer.evaluate([(inputs, targets)], []).loss, plain.evaluate(inputs, targets)
        ours = torch.tensor(torch.nan if found is None else found, dtype=loss.dtype)
        yield "the loss", ours, loss if bool(loss.isfinite()) else torch.full_like(loss, torch.nan)


def _threads_of(plan: Plan) -> contextlib.AbstractContextManager[object]:
    """Inside, plain PyTorch runs each op with as many threads as the units of ``plan`` do."""
    threads = plan.own_threads()
    return _PlannedThreads(plan.graph, threads) if threads else contextlib.nullcontext()


_PART = re.compile(r"\.(weight|input|bias)$")
_Run = list[tuple[int | None, tuple[bool, ...]]]
"""Of one call of plain PyTorch: the threads of each op that it is in a plan, and which results that makes."""


class _PlannedThreads(TorchDispatchMode):
    """The calls of one operator in a training step are those of its ops in the graph, in order.

    A backward of convolution that is several ops in a plan is made once for each number of threads that
    these have, and of each call the results are taken that the plan takes there.
    """

    def __init__(self, graph: Graph, threads: Mapping[str, int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._threads = OpThreads()
        found: dict[str, dict[str, _Run]] = {}
        for op in graph.ops:
            for place, call in enumerate([op.call] if op.strip is None else [e.call for e in op.strip.links]):
                mask = call.args[-1] if call.target.startswith("aten.convolution_backward") else ()
                called = found.setdefault(call.target, {})
                chosen = tuple(map(bool, mask)) if isinstance(mask, tuple) else ()
                key = f"{_PART.sub('', op.name) if chosen else op.name} {0 if chosen else place}"
                called.setdefault(key, []).append((threads.get(op.name), chosen))
        self._runs = {target: iter(list(called.values())) for target, called in found.items()}

    def __enter__(self) -> Self:
        self._threads.__enter__()
        return super().__enter__()  # type: ignore[no-untyped-call,no-any-return]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._threads.__exit__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        run = next(self._runs.get(str(func), iter(())), [(None, ())])
        made: dict[int | None, Any] = {}
        for count in dict.fromkeys(count for count, _ in run):
            self._threads.use(count)
            made[count] = func(*args, **(kwargs or {}))
        if len(made) == 1:
            return made[run[0][0]]
        whole = list(made[run[0][0]])
        for count, mask in run:
            whole = [
                new if wanted else old for old, new, wanted in zip(whole, made[count], mask, strict=True)
            ]
        return tuple(whole)


class _TorchRounding:
    """Rounds pages by torch: the reference of the functions of `poet.runtime.storage.rough_pages`."""

    def __init__(self) -> None:
        self.largest_share = 0.0

    def coded(self, data: memoryview, form: PageForm, stretch_bytes: int) -> Iterator[memoryview]:
        given = torch.frombuffer(data, dtype=torch.float32)
        if form is PageForm.BF16:
            kept, head = given.to(torch.bfloat16), b""
            back, allowed = kept.double(), given.abs().double() * 2**-8 + 2**-134
        else:
            scale = given.abs().max() / 127
            scale = torch.where(scale.isfinite(), scale, torch.nan)
            kept = torch.where(scale > 0, given / scale, 0.0).round().clamp(-127, 127).to(torch.int8)
            back, allowed = (kept * scale).double(), scale.double() * (0.5 + 2**-14) + 2**-140
            head = scale.reshape(1).numpy().tobytes()
        share = ((back - given.double()).abs() / allowed).nan_to_num(0.0, 0.0)
        self.largest_share = max(self.largest_share, float(share.max()))
        yield memoryview(head + kept.view(torch.uint8).numpy().tobytes())

    def decode(self, stretches: Iterable[memoryview], form: PageForm, target: memoryview) -> None:
        stored = torch.frombuffer(bytearray().join(stretches), dtype=torch.uint8)
        if form is PageForm.BF16:
            found = stored.view(torch.bfloat16).to(torch.float32)
        else:
            found = stored[4:].view(torch.int8) * stored[:4].view(torch.float32)
        torch.frombuffer(target, dtype=torch.float32).copy_(found)


def _note(made: dict[str, Tensor], name: str, gradient: Tensor) -> None:
    made[name] = gradient.clone()


class _Rounded:
    """A plan that rounds pages, the same with torch's rounding, and plain PyTorch."""

    def __init__(
        self, trainer: Trainer, other: Trainer, module: nn.Module, loss: str | LossFunction, seed: int
    ) -> None:
        self.trainer, self.other, self.pages = trainer, other, _TorchRounding()
        self.plain, self.module = _plain(trainer, module, loss, seed)
        self.report = RoundingReport({}, 0.0, 0.0, ("", 0.0))

    def compared(self, batches: Sequence[Batch], steps: int, *, before: int) -> BitComparison:
        """So many steps, then one inside each other budget, beside what was compared ``before``."""
        count, threads, plan = before, torch.get_num_threads(), self.trainer.plan
        for number in range(steps + len(plan.budgets)):
            if number >= steps:
                budget_bytes = plan.budgets[number - steps].request.limits.ram_budget_bytes or 0
                self.trainer.set_budget(budget_bytes)
                self.other.set_budget(budget_bytes)
            if self.other.page_file is not None:
                self.other.page_file.coded, self.other.page_file.decode = self.pages.coded, self.pages.decode
            for name, ours, theirs in self._step(*batches[number % len(batches)]):
                count += 1
                if (difference := _difference(ours, theirs)) is not None:
                    said = f"step {number + 1} with pages that torch rounds: {name} {difference}"
                    return BitComparison(threads, count, said)
        self.trainer.check_budget()
        too_far = "a number came back from storage farther off than the form of its page allows"
        return BitComparison(threads, count, too_far if self.pages.largest_share > 1.0 else None)

    def _step(self, inputs: tuple[Tensor, ...], targets: Tensor | tuple[Tensor, ...] | None) -> _Pairs:
        micro = self.trainer.plan.request.micro
        pieces = [(inputs, targets)] if micro is None else _pieces(inputs, targets, micro.count)
        _take_over(self.module, self.trainer)
        with _accepting():
            self.plain.step_in_pieces(pieces, divisor=1 if micro is None else micro.divisor)
        ours, theirs = dict[str, Tensor](), dict[str, Tensor]()
        for side, made in ((self.trainer, ours), (self.other, theirs)):
            note = functools.partial(_note, made)
            made["the loss"] = torch.tensor(side.step(inputs, targets, on_gradient=note).loss)
        for name, tensor in ours.items():
            yield name, tensor, theirs[name]
        del ours["the loss"]
        self._measure(ours)
        state = self.other.state_dict()
        for name, tensor in self.trainer.state_dict().items():
            yield name, tensor, state[name]

    def _measure(self, gradients: dict[str, Tensor]) -> None:
        """How far ``gradients`` are from plain PyTorch's."""
        plain = {name: self.plain.gradients[name].double() for name in gradients}
        off = {name: float((gradients[name].double() - plain[name]).norm()) for name in plain}
        size = {name: float(plain[name].norm()) for name in plain}
        shares = {name: off[name] / size[name] for name in plain if size[name]}
        whole = math.hypot(*off.values()) / (math.hypot(*size.values()) or 1.0)
        self.report = RoundingReport(
            self.report.forms | self.trainer.plan.rounded,
            self.pages.largest_share,
            max(self.report.gradient_error, whole),
            max(self.report.farthest, *shares.items(), key=operator.itemgetter(1)),
        )


def _called(where: str, pairs: _Pairs) -> _Pairs:
    for name, ours, theirs in pairs:
        yield where + name, ours, theirs


def _batch_of(step: Plan, batches: Sequence[Batch], seed: int) -> Batch:
    """One of ``batches`` that has the shapes of ``step``, else a random one."""
    wanted = [kind.shape for kind in step.given_types]
    last = len(wanted) - step.graph.targets
    alike = (batch for batch in batches if [tuple(item.shape) for item in batch[0]] == wanted[:last])
    return next(alike, None) or random_batch(step, seed)


def _pieces(
    inputs: tuple[Tensor, ...], targets: Tensor | tuple[Tensor, ...] | None, count: int
) -> list[Batch]:
    """A batch as its micro-batches."""
    split = zip(*(tensor.chunk(count) for tensor in inputs), strict=True)
    if targets is None:
        return [(piece, None) for piece in split]
    if isinstance(targets, Tensor):
        return list(zip(split, targets.chunk(count), strict=True))
    wanted = zip(*(tensor.chunk(count) for tensor in targets), strict=True)
    return list(zip(split, wanted, strict=True))


@contextlib.contextmanager
def _accepting() -> Iterator[None]:
    """A batch that plain PyTorch cannot train on either is said in one line."""
    try:
        yield
    except PoetError:
        raise
    except Exception as error:
        raise InputError(
            f"plain PyTorch fails on the batch that both sides are given: {first_line(error)}; where it is a "
            "random one, give samples of yours (poet verify --data FILE, data= or batches= in Python)"
        ) from error


def _from_structure(file: PlanFile) -> nn.Module:
    structure = file.structure()
    if structure is None:
        raise PlanError(
            f"{file.path.name} was planned from a module and carries no ONNX structure; name the module: "
            "--module MODULE:FUNCTION, or poet.verify(path, module=...)"
        )
    from poet.frontend.onnx.importer import load_onnx_structure

    return load_onnx_structure(structure).module


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, also buffers that a state dict leaves out: a plan has them all."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def _difference(ours: Tensor, theirs: Tensor) -> str | None:
    """How two tensors differ in type or in any bit, or ``None``."""
    theirs = theirs.detach()
    if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        return f"is {ours.dtype}{list(ours.shape)}, in plain PyTorch {theirs.dtype}{list(theirs.shape)}"
    bits = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (ours, theirs)]
    if torch.equal(*bits):
        return None
    differing = int((bits[0] != bits[1]).reshape(ours.numel(), -1).any(dim=1).sum())
    largest = float((ours.double() - theirs.double()).abs().max())
    return f"differs from plain PyTorch in {differing} of {ours.numel()} elements, by up to {largest:.3g}"
