"""What a step minimises, as people write it: the name of a loss, and its options behind a colon.

====================== ============================================================================
``cross-entropy``      classes stand in dim 1, as in torch: [N,C], [N,C,T], [N,C,H,W]; [C] has one dim.
                       ``dim=-1``: in the last, as sequence models give them ([N,T,C]).
                       ``label_smoothing=0.1``, ``ignore_index=-100``, ``weight=1/2/0.5`` per class
``nll``                of log-probabilities (``log=yes``: of probabilities); ``dim``, ``ignore_index``,
                       ``weight``
``focal``              (1 - p)^gamma times cross-entropy; ``gamma=2``, ``dim``, ``ignore_index``
``mse``, ``l1``        targets as large as the output, as for all that follow
``huber``              ``delta=1``
``smooth-l1``          ``beta=1``
``bce``                of probabilities
``bce-with-logits``    of scores; ``pos_weight=2``
``kl-div``             of log-probabilities; targets: probabilities (``log_target=yes``: their logarithms)
``distillation``       targets are a teacher's scores; ``temperature=2``, ``dim``
``ctc``                of scores or log-probabilities [N,T,C] (``time_first=yes``: [T,N,C]); targets are
                       classes [N,S] with negative numbers behind the last, S is ``length=12``, else T.
                       ``blank=0``, ``zero_infinity=yes``
``output``             the model's first output is the loss, summed if it is no scalar
``python:NAME``        a function of Python's, which only `poet.plan` and `poet.verify` can be given
====================== ============================================================================

All but ``distillation`` and the last two take ``reduction=mean`` or ``sum``; kl-div has ``batchmean`` in
place of ``mean``. A loss by name is that of the model's first output.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from poet.errors import ModelError, nearest
from poet.util.units import options_of

Option = int | float | bool | str | tuple[float, ...]
"""What an option may be given."""

Size = int | str
"""Of a dim of the model's output, or its name where it is open."""

_LONGEST_NUMBER = 4  # characters of a whole number; no tensor has so many dims, and no loss so many classes
_LONGEST_OPTION = 4096
_FUNCTION = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,99}")


def _whole(text: str) -> int:
    if not text.removeprefix("-").isdecimal() or len(text) > _LONGEST_NUMBER:
        raise ValueError("is a whole number")
    return int(text)


def _number(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise ValueError("is a number from 0 up")
    return found


def _positive(text: str) -> float:
    if not _number(text):
        raise ValueError("is a number above 0")
    return _number(text)


def _share(text: str) -> float:
    if _number(text) > 1:
        raise ValueError("is a number from 0 to 1")
    return _number(text)


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(map(_number, text.split("/")))
    except ValueError:
        raise ValueError("has a number from 0 up per class, with / between") from None


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"is {' or '.join(words)}")
        return text

    return read


def _flag(text: str) -> bool:
    return _one_of("yes", "no")(text) == "yes"


_Options = dict[str, Callable[[str], Option]]
_REDUCTION: _Options = {"reduction": _one_of("mean", "sum")}
_CLASSES: _Options = {"dim": _whole, "ignore_index": _whole, **_REDUCTION}

_OPTIONS: dict[str, _Options] = {
    "cross-entropy": {**_CLASSES, "label_smoothing": _share, "weight": _numbers},
    "nll": {**_CLASSES, "weight": _numbers, "log": _flag},
    "focal": {**_CLASSES, "gamma": _number},
    "mse": _REDUCTION,
    "l1": _REDUCTION,
    "huber": {"delta": _positive, **_REDUCTION},
    "smooth-l1": {"beta": _number, **_REDUCTION},
    "bce": _REDUCTION,
    "bce-with-logits": {"pos_weight": _number, **_REDUCTION},
    "kl-div": {"log_target": _flag, "reduction": _one_of("batchmean", "sum")},
    "distillation": {"temperature": _positive, "dim": _whole},
    "ctc": {
        "blank": _whole,
        "length": _whole,
        "time_first": _flag,
        "zero_infinity": _flag,
        **_REDUCTION,
    },
    "output": {},
}
_EXAMPLES = {
    "dim": "-1", "ignore_index": "-100", "label_smoothing": "0.1", "weight": "1/2/0.5", "gamma": "2",
    "log": "yes", "delta": "1", "beta": "1", "pos_weight": "2", "temperature": "2", "log_target": "yes",
    "reduction": "sum", "blank": "0", "length": "12", "time_first": "yes", "zero_infinity": "yes",
}  # fmt: skip

LOSSES = tuple(_OPTIONS)
DEFAULT_LOSS = LOSSES[0]
LOGITS = "logits"
"""What a model may give in place of its first output: what its last softmax or sigmoid is given."""
PYTHON = "python"
"""Begins the text of a loss that is a function of Python's."""
_OF_SCORES = {
    **dict.fromkeys(("cross-entropy", "focal", "bce-with-logits", "distillation", "ctc"), "scores"),
    **dict.fromkeys(("nll", "kl-div"), "logarithms of probabilities"),
}
"""What losses are given that are not of probabilities."""
OF_CLASSES = frozenset({"cross-entropy", "nll", "focal"})
"""Losses whose targets are numbers of classes."""


@dataclass(frozen=True, slots=True)
class LossSpec:
    """A loss by name, with its options.

    Attributes:
        name: one of `LOSSES`, or `PYTHON`.
        options: as they were given, by name.
        function: the name of the function, of `PYTHON`.
    """

    name: str
    options: tuple[tuple[str, Option], ...] = ()
    function: str = ""

    @staticmethod
    def parse(text: str) -> LossSpec:
        """The loss in ``NAME`` or ``NAME:option=value,...``.

        Raises:
            ModelError: there is no such loss, it has no such option, or the value cannot be.
        """
        name, colon, written = text.partition(":")
        if name == PYTHON and _FUNCTION.fullmatch(written):
            return LossSpec(PYTHON, function=written)
        if name not in LOSSES:
            raise ModelError(f"loss {name!r} is not one of {', '.join(LOSSES)}{nearest(name, LOSSES)}")
        known, found = _OPTIONS[name], dict[str, Option]()
        where = f"loss {text!r}"
        for option, value in options_of(where, name, written, known, ModelError) if colon else ():
            try:
                found[option] = known[option](value if len(value) <= _LONGEST_OPTION else "")
            except ValueError as error:
                example = f"{name}:{option}={_EXAMPLES[option]}"
                raise ModelError(f"{where}: {option} {error}; write for example {example}") from None
        return LossSpec(name, tuple(found.items()))

    def __str__(self) -> str:
        if self.name == PYTHON:
            return f"{PYTHON}:{self.function}"
        return ":".join(filter(None, (self.name, ",".join(f"{k}={_text(v)}" for k, v in self.options))))

    def option(self, name: str, default: Option | None = None) -> Option | None:
        """What the option was given, else ``default``."""
        return dict(self.options).get(name, default)

    def number(self, name: str, default: float) -> float:
        """What the option, which is a number, was given."""
        found = self.option(name)
        return found if isinstance(found, float) else default

    @property
    def dim(self) -> int | None:
        """In which of the output's dims the classes stand, from the end where negative; ``None``: torch's."""
        found = self.option("dim")
        return found if isinstance(found, int) else None

    @property
    def ignored_class(self) -> int | None:
        """The number that stands where a target has no class, if the loss was given one."""
        found = self.option("ignore_index")
        return found if isinstance(found, int) else None

    @property
    def targets_are_classes(self) -> bool:
        """Whether its targets are numbers of classes (or, of cross-entropy, their probabilities)."""
        return self.name in OF_CLASSES

    def class_dim(self, dims: int) -> int:
        """In which dim of an output of ``dims`` dims the classes of cross-entropy stand, from 0.

        Raises:
            ModelError: the output has no such dim.
        """
        if not dims:
            raise ModelError(
                f"{self.name} needs scores of classes; the model's first output is a single number "
                "(loss 'output' minimises it)"
            )
        dim = min(1, dims - 1) if self.dim is None else self.dim
        if not -dims <= dim < dims:
            raise ModelError(f"loss '{self}': the model's first output has {dims} dims, and no dim {dim}")
        return dim % dims

    def class_dim_of(self, output: Sequence[int], targets: Sequence[int]) -> int | None:
        """The dim of the classes where ``targets`` are class numbers; ``None`` where they are not.

        Raises:
            ModelError: the output has no such dim.
        """
        if not self.targets_are_classes and self.name != PYTHON:
            return None
        if self.name == PYTHON and not output:
            return None
        dim = self.class_dim(len(output))
        return dim if (*output[:dim], *output[dim + 1 :]) == tuple(targets) else None

    def sequences(self, output: Sequence[Size]) -> tuple[Size, Size, Size, Size]:
        """Of ``ctc`` and an output of these sizes: samples, moments, classes and the longest target.

        Raises:
            ModelError: the output does not have three dims, or the options cannot be.
        """
        if len(output) != 3:
            raise ModelError(
                f"loss '{self}' needs scores [N,T,C] of classes at moments; the model's first output has "
                f"{len(output)} dims"
            )
        moments, samples = (0, 1) if self.option("time_first") else (1, 0)
        longest, blank, classes = self.option("length"), self.option("blank", 0), output[2]
        if isinstance(longest, int) and longest < 1:
            raise ModelError(f"loss '{self}': the longest target has at least 1 class, not {longest}")
        if isinstance(blank, int) and (blank < 0 or (isinstance(classes, int) and blank >= classes)):
            raise ModelError(f"loss '{self}': the model's first output has {classes} classes, and no {blank}")
        found = longest if isinstance(longest, int) else output[moments]
        return output[samples], output[moments], classes, found

    def reads(self, output: Sequence[int | str], dtype: str, targets: str | None = None) -> str:
        """What the loss reads, for people: the dim of the classes, how many, and the targets.

        Args:
            output: sizes of the model's first output, by number or by name.
            dtype: its element type.
            targets: their type, where it is known; not given: what the loss takes by itself.

        Raises:
            ModelError: the loss cannot be that of such an output.
        """
        if self.name == "output":
            summed = ", summed" if output else ""
            return f"the model's first output, {_type(dtype, output)}{summed}; no targets"
        if self.name == PYTHON:
            return f"{self.function}, of Python; targets {targets or 'none'}"
        given = "".join(f", {name} {_text(value)}" for name, value in self.options if name != "dim")
        if self.name == "ctc":
            samples, moments, classes, longest = self.sequences(output)
            found = targets or _type("int64", (samples, longest))
            return f"ctc over {moments} moments, {classes} classes, targets {found}{given}"
        if not self.targets_are_classes:
            return f"{self.name}, targets {targets or _type(dtype, output)}{given}"
        dim = self.class_dim(len(output))
        found = targets or _type("int64", (*output[:dim], *output[dim + 1 :]))
        hint = f"; classes last: {self.name}:dim=-1" if self.dim is None and len(output) == 3 else ""
        weights = self.option("weight")
        classes = output[dim]
        if isinstance(weights, tuple) and isinstance(classes, int) and len(weights) != classes:
            raise ModelError(
                f"loss '{self}' weighs {len(weights)} classes; the model's first output has {classes}"
            )
        return f"{self.name} over dim {dim}, {classes} classes, targets {found}{given}{hint}"


def misfit(spec: LossSpec, ending: str | None, classes: Size | None = None) -> str:
    """Why the loss is not that of a first output which ``ending`` gives, and the way out; empty if it is.

    Args:
        spec: the loss.
        ending: ``softmax``, ``sigmoid``, or what else gives the output.
        classes: how many there are, where the loss is of classes.
    """
    if spec.name in OF_CLASSES and classes == 1:
        return f"{spec.name} over 1 class is 0 whatever the model gives; train on bce, or bce-with-logits"
    if ending not in ("softmax", "sigmoid") or spec.name not in _OF_SCORES or spec.option("log"):
        return ""
    other = "bce" if ending == "sigmoid" else "nll:log=yes"
    return (
        f"the first output is what a {ending} gives, and {spec.name} takes {_OF_SCORES[spec.name]}; train on "
        f"what it is given (--output logits, output='logits') by a loss of scores, or on --loss {other}"
    )


def _text(value: Option) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "/".join(repr(item) for item in value) if isinstance(value, tuple) else str(value)


def _type(dtype: str, sizes: Sequence[int | str]) -> str:
    return f"{dtype}[{','.join(map(str, sizes))}]"
