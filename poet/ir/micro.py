"""Micro-batches: a batch that is trained in pieces, whose gradients are summed before the update."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from poet.errors import InputError

IS_FIRST = "is_first"
"""The scalar of a step that is 1 for the first micro-batch, whose gradients begin the sums, then 0."""

BATCH_NAMES = ("N", "batch")
"""Names by which the first dimension of an ONNX file is bound, even where the file fixes it."""

MOST_MICRO_BATCHES = 1 << 20
MEAN, SUM = "mean", "sum"
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """How a batch is trained in pieces.

    Attributes:
        count: of the pieces of a batch, at least 2; all are of one size.
        loss: ``"mean"``: the loss of each piece is divided by ``count`` before its backward pass, as in
            ``(loss / count).backward()``; ``"sum"``: it is not, as in ``loss.backward()``.
    """

    count: int
    loss: str = MEAN

    def __post_init__(self) -> None:
        if not 2 <= self.count <= MOST_MICRO_BATCHES:
            raise InputError(f"{self.count} micro-batches; give from 2 to {MOST_MICRO_BATCHES}, or auto")
        if self.loss not in (MEAN, SUM):
            raise InputError(f"the loss of micro-batches is {MEAN} or {SUM}, not {self.loss!r}")

    @staticmethod
    def parse(text: str) -> MicroBatches | None:
        """The micro-batches in ``4`` or ``4:sum``; ``None`` of ``1``, which is a whole batch.

        Raises:
            InputError: it is not of that form.
        """
        count, *options = text.split(":")
        if not count.isascii() or not count.isdigit() or len(count) > 9:
            raise InputError(f"{text!r} is no number of micro-batches; write for example 4, 4:sum or auto")
        if "layers" in options:
            raise InputError(f"{text!r}: micro-batches go one after the other; write {count}")
        if len(options) > 1 or not {*options} <= {MEAN, SUM}:
            raise InputError(f"{text!r}: behind micro-batches stands {MEAN} or {SUM}, of the losses")
        return None if int(count) == 1 else MicroBatches(int(count), *options)

    def __str__(self) -> str:
        return f"{self.count}" if self.loss == MEAN else f"{self.count}:{self.loss}"

    @property
    def divisor(self) -> int:
        """Of the loss of a micro-batch."""
        return self.count if self.loss == MEAN else 1


def micro_batches(given: int | str | MicroBatches | None) -> MicroBatches | str | None:
    """The micro-batches that were asked for; of ``auto``, what is done with the loss.

    Raises:
        InputError: a text says something else.
    """
    if isinstance(given, str):
        name, _, loss = given.partition(":")
        return _loss_of_auto(loss) if name == AUTO else MicroBatches.parse(given)
    if isinstance(given, int):
        return None if given == 1 else MicroBatches(given)
    return given


def _loss_of_auto(loss: str) -> str:
    if loss not in ("", MEAN, SUM):
        raise InputError(f"auto:{loss}: behind auto stands {MEAN} or {SUM}, of the losses")
    return loss or MEAN


def candidates(samples: int, loss: str) -> Iterator[MicroBatches | None]:
    """Every number of pieces of one size, the whole batch first.

    Raises:
        InputError: there are no ``samples``.
    """
    if samples < 1:
        raise InputError("the model takes no batch of samples, so there is nothing to divide")
    yield None
    for count in range(2, samples + 1):
        if samples % count == 0:
            yield MicroBatches(count, loss)
