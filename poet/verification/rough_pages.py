"""A plan that rounds pages beside one whose pages torch rounds: the same bits, and how far off they are."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from poet.frontend.losses import LossFunction
from poet.problem import PageForm
from poet.runtime import Trainer
from poet.runtime.data.random_batches import Batch
from poet.verification.reports import BitComparison, RoundingReport
from poet.verification.sides import Pairs, accepting, difference_of, micro_batches, plain_from, take_over


class TorchRounding:
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


class Rounded:
    """A plan that rounds pages, the same with torch's rounding, and plain PyTorch."""

    def __init__(
        self, trainer: Trainer, other: Trainer, module: nn.Module, loss: str | LossFunction, seed: int
    ) -> None:
        self.trainer, self.other, self.pages = trainer, other, TorchRounding()
        self.plain, self.module = plain_from(trainer, module, loss, seed)
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
                if (difference := difference_of(ours, theirs)) is not None:
                    said = f"step {number + 1} with pages that torch rounds: {name} {difference}"
                    return BitComparison(threads, count, said)
        self.trainer.check_budget()
        too_far = "a number came back from storage farther off than the form of its page allows"
        return BitComparison(threads, count, too_far if self.pages.largest_share > 1.0 else None)

    def _step(self, inputs: tuple[Tensor, ...], targets: Tensor | tuple[Tensor, ...] | None) -> Pairs:
        micro = self.trainer.plan.request.micro
        pieces = [(inputs, targets)] if micro is None else micro_batches(inputs, targets, micro.count)
        take_over(self.module, self.trainer)
        with accepting():
            self.plain.step_in_pieces(pieces, divisor=1 if micro is None else micro.divisor)
        ours, theirs = dict[str, Tensor](), dict[str, Tensor]()
        for side, made in ((self.trainer, ours), (self.other, theirs)):
            note = functools.partial(_note, made)
            made["the loss"] = torch.tensor(side.step(inputs, targets, on_gradient=note).loss)
        for name, tensor in ours.items():
            yield name, tensor, theirs[name]
        del ours["the loss"]
        self._measure(ours)
        sides = self.trainer.named_tensors(), self.other.named_tensors()
        for (name, tensor), (_, other) in zip(*sides, strict=True):
            yield name, tensor, other

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
