"""Rewriting rules: what exporters take apart is put together again.

An exporter writes ``nn.Linear`` as Transpose, MatMul, Add; GELU with Erf; attention as seven nodes; group
norm by way of instance norm. The parts give the same numbers to 1e-7, but not the same bits, and a
planner would see several large intermediate tensors that torch never makes. Each rule looks at the last
step of its pattern, and returns the step that stands for the whole, or ``None``. A tensor inside a
pattern must have no other reader.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from poet.frontend.onnx.build import BuiltModel, Step
from poet.frontend.onnx.node import Modal, OnnxValue, complement, number


def fuse(built: BuiltModel) -> BuiltModel:
    """``built`` with all patterns joined and steps dropped that nothing reads."""
    for rule in RULES:
        built = _live(_applied(built, rule))
    return built


class Steps:
    """Who makes a value, who reads it."""

    def __init__(self, built: BuiltModel) -> None:
        self.makers = {value.slot: step for step in built.steps for value in step.outputs if value}
        self.readers = Counter(value.slot for step in built.steps for value in step.operands if value)
        self.readers.update(value.slot for value in built.outputs if value)

    def maker(self, value: OnnxValue | None, op: str, *, only_reader: bool = True) -> Step | None:
        """The step with operator ``op`` that makes ``value``, by default only if it is read once."""
        step = self.makers.get(value.slot) if value is not None else None
        if step is None or step.op != op or (only_reader and value and self.readers[value.slot] != 1):
            return None
        return step


Rule = Callable[[Step, Steps], Step | None]


def _applied(built: BuiltModel, rule: Rule) -> BuiltModel:
    view = Steps(built)
    steps = tuple(_alike(rule(step, view), step) or step for step in built.steps)
    return replace(built, steps=steps)


def _alike(joined: Step | None, step: Step) -> Step | None:
    """``joined`` where its result has the shape of that of ``step``, which constants may have broadcast."""
    if joined is None or step.outputs[0] is None:
        return joined
    run: Any = joined.run.train if isinstance(joined.run, Modal) else joined.run
    with torch.device("meta"):
        found = run(*(value.meta if value else None for value in joined.operands))
    return joined if found.shape == _shape(step.outputs[0]) else None


def _live(built: BuiltModel) -> BuiltModel:
    needed = {value.slot for value in built.outputs if value}
    kept = []
    for step in reversed(built.steps):
        if any(value is not None and value.slot in needed for value in step.outputs):
            needed.update(value.slot for value in step.operands if value)
            kept.append(step)
    return replace(built, steps=tuple(reversed(kept)))


def _pairs(step: Step) -> Sequence[tuple[OnnxValue, OnnxValue]]:
    """The two inputs of a commutative step, both ways round."""
    if len(step.inputs) != 2:
        return ()
    left, right = step.inputs
    return ((left, right), (right, left)) if left and right else ()


def _number(value: OnnxValue | None) -> float | None:
    if value is None or value.constant is None or value.constant.numel() != 1:
        return None
    return float(number(value.constant))


def _is(value: OnnxValue | None, wanted: float) -> bool:
    found = _number(value)
    return found is not None and math.isclose(found, wanted, rel_tol=1e-5)


def _shape(value: OnnxValue) -> tuple[int, ...]:
    return tuple(value.meta.shape) if isinstance(value.meta, Tensor) else ()


def _rank(value: OnnxValue) -> int:
    return len(_shape(value))


def _joined(step: Step, op: str, operands: Sequence[OnnxValue | None], run: Callable[..., Tensor]) -> Step:
    return Step(op, step.node, tuple(operands), tuple(operands), step.outputs, run)


# -- linear -----------------------------------------------------------------------------------------


def _linear(step: Step, view: Steps) -> Step | None:
    """MatMul by a transposed weight."""
    if step.op != "MatMul" or not step.inputs[0] or _rank(step.inputs[0]) < 2:
        return None
    transposed = view.maker(step.inputs[1], "Transpose", only_reader=False)
    if transposed is None or transposed.attributes.get("perm") != (1, 0):
        return None
    return _joined(step, "Linear", (step.inputs[0], transposed.inputs[0]), F.linear)


def _linear_bias(step: Step, view: Steps) -> Step | None:
    """Linear and the addition of a vector."""
    if step.op != "Add":
        return None
    for product, bias in _pairs(step):
        linear = view.maker(product, "Linear")
        if linear is not None and len(linear.inputs) == 2 and _rank(bias) == 1:
            weight = linear.inputs[1]
            if weight and _shape(weight)[:1] == _shape(bias):
                return _joined(step, "Linear", (*linear.inputs, bias), F.linear)
    return None


# -- activations ------------------------------------------------------------------------------------


def _gelu(step: Step, view: Steps) -> Step | None:
    """X / 2 * (1 + erf(x / sqrt(2))), with the factors in any order."""
    factors = _factors(step, view)
    if step.op != "Mul" or not any(_is(factor, 0.5) for factor in factors):
        return None
    rest = [factor for factor in factors if not _is(factor, 0.5)]
    if len(rest) != 2:
        return None
    for x, grown in (rest, rest[::-1]):
        addition = view.maker(grown, "Add")
        for error, one in _pairs(addition) if addition else ():
            erf = view.maker(error, "Erf")
            if erf is not None and _is(one, 1.0) and _scaled_by(erf.inputs[0], x, math.sqrt(0.5), view):
                return _joined(step, "Gelu", (x,), F.gelu)
    return None


def _factors(step: Step, view: Steps) -> list[OnnxValue]:
    """The operands of a product of products; a factor read elsewhere is not taken apart."""
    if step.op != "Mul":
        return []
    factors = []
    for value in step.inputs:
        inner = view.maker(value, "Mul")
        if inner is not None:
            factors += [entry for entry in inner.inputs if entry]
        elif value is not None:
            factors.append(value)
    return factors


def _scaled_by(value: OnnxValue | None, x: OnnxValue, factor: float, view: Steps) -> bool:
    """Whether ``value`` is ``x * factor`` or ``x / (1 / factor)``."""
    division = view.maker(value, "Div")
    if division is not None:
        return division.inputs[0] == x and _is(division.inputs[1], 1 / factor)
    product = view.maker(value, "Mul")
    return product is not None and any(a == x and _is(b, factor) for a, b in _pairs(product))


def _silu(step: Step, view: Steps) -> Step | None:
    """X * sigmoid(x)."""
    if step.op != "Mul":
        return None
    for x, gate in _pairs(step):
        sigmoid = view.maker(gate, "Sigmoid")
        if sigmoid is not None and sigmoid.inputs[0] == x:
            return _joined(step, "Silu", (x,), F.silu)
    return None


# -- attention --------------------------------------------------------------------------------------


def _attention(step: Step, view: Steps) -> Step | None:
    """softmax(s q (s k)^T + mask) v, as both torch exporters write F.scaled_dot_product_attention."""
    if step.op != "MatMul":
        return None
    softmax = view.maker(step.inputs[0], "Softmax")
    scores, mask = softmax.inputs[0] if softmax else None, None
    masked = view.maker(scores, "Add")
    if masked is not None:
        scores, mask = masked.inputs[0], masked.inputs[1]
    product = view.maker(scores, "MatMul")
    if softmax is None or product is None or not step.inputs[1] or _rank(step.inputs[1]) != 4:
        return None
    if softmax.attributes.get("axis") != (3,):
        return None
    query, key = (view.maker(value, "Mul") for value in product.inputs)
    if query is None or key is None:
        return None
    scales = [_number(query.inputs[1]), _number(key.inputs[1])]
    found = _untransposed(key.inputs[0], view)
    if found is None or scales[0] is None or scales[0] != scales[1]:
        return None
    return _attention_step(step, query.inputs[0], found, scales[0] ** 2, mask)


def _attention_step(
    step: Step,
    query: OnnxValue | None,
    keys: tuple[OnnxValue, tuple[int, ...]],
    scale: float,
    mask: OnnxValue | None,
) -> Step | None:
    key, order = keys
    if query is None or not isinstance(query.meta, Tensor) or not isinstance(key.meta, Tensor):
        return None
    # the exporters' square roots leave 1/sqrt(width) to single precision only
    natural = math.isclose(scale, query.meta.shape[-1] ** -0.5, rel_tol=1e-5)
    kept = None if natural else scale
    if mask is None or _is_causal(mask, query.meta.shape[-2], key.meta.permute(order).shape[-2]):
        causal, mask = mask is not None, None
    else:
        causal = False
    operands = (query, key, step.inputs[1], *((mask,) if mask else ()))

    def run(q: Tensor, k: Tensor, v: Tensor, m: Tensor | None = None) -> Tensor:
        return F.scaled_dot_product_attention(q, k.permute(order), v, m, is_causal=causal, scale=kept)

    return _joined(step, "Attention", operands, run)


def _is_causal(mask: OnnxValue, rows: int, columns: int) -> bool:
    if mask.constant is None or tuple(mask.constant.shape[-2:]) != (rows, columns):
        return False
    seen = mask.constant.reshape(-1, rows, columns) == 0
    hidden = mask.constant.reshape(-1, rows, columns) < -1e30
    return bool((seen == seen.new_ones(rows, columns).tril()).all()) and bool((seen | hidden).all())


def _untransposed(value: OnnxValue | None, view: Steps) -> tuple[OnnxValue, tuple[int, ...]] | None:
    """A value, and the order of its dimensions that has the last two of ``value`` swapped.

    The transposition stands alone, or joined with that of the heads, or between reshapes to rank 3.
    """
    last = view.maker(value, "Transpose")
    if last is not None:
        order = last.attributes.get("perm")
        source = last.inputs[0]
        if source is None or not isinstance(order, tuple) or len(order) != 4:
            return None
        first, second, third, fourth = map(int, order)
        return source, (first, second, fourth, third)
    outer = view.maker(value, "Reshape")
    middle = view.maker(outer.operands[0], "Transpose") if outer else None
    inner = view.maker(middle.inputs[0], "Reshape") if middle else None
    if middle is None or inner is None or middle.attributes.get("perm") != (0, 2, 1):
        return None
    source = inner.operands[0]
    if source is None or not isinstance(source.meta, Tensor) or not isinstance(value, OnnxValue):
        return None
    swapped = source.meta.transpose(-1, -2).shape if source.meta.dim() == 4 else None
    return (source, (0, 1, 2, 3)) if isinstance(value.meta, Tensor) and swapped == value.meta.shape else None


# -- layer norm -------------------------------------------------------------------------------------


def _layer_norm(step: Step, view: Steps) -> Step | None:
    """(x - mean) / sqrt(mean of squares + epsilon) * scale + shift, as exported before operator set 17."""
    for normed, scale, shift in _affine(step, view):
        found = _standardised(normed, view)
        if found is not None and _shape(scale) == _shape(shift) == _shape(found[0])[-1:]:
            return _layer_norm_step(step, found[0], scale, shift, found[1])
    return None


def _affine(step: Step, view: Steps) -> Iterator[tuple[OnnxValue, OnnxValue, OnnxValue]]:
    """``(x, scale, shift)`` where ``step`` is ``x * scale + shift``, each pair in any order."""
    for scaled, shift in _pairs(step) if step.op == "Add" else ():
        product = view.maker(scaled, "Mul")
        for x, scale in _pairs(product) if product else ():
            yield x, scale, shift


def _layer_norm_step(step: Step, x: OnnxValue, scale: OnnxValue, shift: OnnxValue, epsilon: float) -> Step:
    width = _shape(x)[-1:]
    return _joined(
        step,
        "LayerNorm",
        (x, scale, shift),
        lambda x, scale, shift: F.layer_norm(x, width, scale, shift, epsilon),
    )


def _standardised(value: OnnxValue, view: Steps) -> tuple[OnnxValue, float] | None:
    """``x`` and epsilon where ``value`` is ``x`` less its mean over its deviation, along the last axis."""
    division = view.maker(value, "Div")
    centred = view.maker(division.inputs[0], "Sub", only_reader=False) if division else None
    root = view.maker(division.inputs[1], "Sqrt") if division else None
    widened = view.maker(root.inputs[0], "Add") if root else None
    if division is None or centred is None or widened is None or view.readers[_slot(division.inputs[0])] != 2:
        return None
    epsilon = _number(widened.inputs[1])
    variance = view.maker(widened.inputs[0], "ReduceMean")
    square = view.maker(variance.inputs[0], "Pow") if variance else None
    mean = view.maker(centred.inputs[1], "ReduceMean")
    x = centred.inputs[0]
    if x is None or epsilon is None or mean is None or variance is None or square is None:
        return None
    last = (len(_shape(x)) - 1,)
    same = mean.inputs[0] == x and square.inputs[0] == division.inputs[0] and _is(square.inputs[1], 2.0)
    along = mean.attributes.get("axes") == variance.attributes.get("axes") == last
    return (x, epsilon) if same and along else None


def _slot(value: OnnxValue | None) -> int:
    return -1 if value is None else value.slot


# -- group norm -------------------------------------------------------------------------------------


def _group_norm(step: Step, view: Steps) -> Step | None:
    """Reshape, instance norm over groups, reshape back, scale and shift per channel."""
    for normed, scale, shift in _affine(step, view):
        back = view.maker(normed, "Reshape")
        norm = view.maker(back.operands[0], "InstanceNormalization") if back else None
        into = view.maker(norm.inputs[0], "Reshape") if norm else None
        if norm is not None and into is not None and _is_plain_norm(norm):
            return _group_norm_step(step, into, norm, scale, shift)
    return None


def _is_plain_norm(norm: Step) -> bool:
    scale, shift = norm.inputs[1], norm.inputs[2]
    return (
        scale is not None and scale.constant is not None and bool((scale.constant == 1).all())
        and shift is not None and shift.constant is not None and not bool(shift.constant.any())
    )  # fmt: skip


def _group_norm_step(step: Step, into: Step, norm: Step, scale: OnnxValue, shift: OnnxValue) -> Step | None:
    x, grouped = into.operands[0], norm.inputs[0]
    if x is None or grouped is None or not isinstance(x.meta, Tensor) or not isinstance(grouped.meta, Tensor):
        return None
    channels, rank = x.meta.shape[1], x.meta.dim()
    wanted = (channels, *[1] * (rank - 2))
    for value in (scale, shift):
        if not isinstance(value.meta, Tensor) or tuple(value.meta.shape) != wanted:
            return None
    groups, epsilon = grouped.meta.shape[1], norm.attributes["epsilon"]
    assert isinstance(epsilon, float)
    return _joined(
        step,
        "GroupNorm",
        (x, scale, shift),
        lambda x, scale, shift: F.group_norm(x, groups, scale.reshape(-1), shift.reshape(-1), epsilon),
    )


# -- dropout in place -------------------------------------------------------------------------------


def _bernoulli(step: Step, view: Steps) -> Step | None:
    """A cast of Less(uniform numbers, probability): what ``tensor.bernoulli_(p)`` is exported as."""
    sampled = view.maker(step.inputs[0], "Less") if step.op in ("Cast", "CastLike") else None
    uniform = view.maker(sampled.inputs[0], "RandomUniformLike") if sampled is not None else None
    if sampled is None or uniform is None or uniform.attributes.get("range") != (0.0, 1.0):
        return None
    share, made = _number(sampled.inputs[1]), step.outputs[0]
    if share is None or not 0 <= share <= 1 or made is None or not isinstance(made.meta, Tensor):
        return None
    share = 1 - complement(share)  # torch is given 1 - p
    shape, dtype = made.meta.shape, made.meta.dtype
    drawn = _joined(step, "BernoulliLike", (), lambda: torch.empty(shape, dtype=dtype).bernoulli_(share))
    return replace(drawn, attributes={"share": share})


def _dropout(step: Step, view: Steps) -> Step | None:
    """Product with Bernoulli numbers over their probability: dropout in place, or of channels."""
    for x, scaled in _pairs(step) if step.op == "Mul" else ():
        quotient = view.maker(scaled, "Div")
        drawn = view.maker(quotient.inputs[0], "BernoulliLike") if quotient is not None else None
        if quotient is None or drawn is None or _shape(x) != _shape_of(step):
            continue
        share = drawn.attributes["share"]
        if not isinstance(share, float) or not _is(quotient.inputs[1], share):
            continue
        run = Modal(train=partial(_drop, shape=_shape(scaled), share=share), evaluate=lambda x: x)
        return replace(_joined(step, "Dropout", (x,), F.dropout), run=run)
    return None


def _drop(x: Tensor, *, shape: tuple[int, ...], share: float) -> Tensor:
    """``torch.dropout_``, whose other form torch computes by another kernel."""
    return x * torch.empty(shape, dtype=x.dtype).bernoulli_(share).div_(share)


def _shape_of(step: Step) -> tuple[int, ...]:
    return _shape(step.outputs[0]) if step.outputs[0] is not None else ()


RULES: tuple[Rule, ...] = (
    _linear, _linear_bias, _gelu, _silu, _attention, _layer_norm, _group_norm, _bernoulli, _dropout,
)  # fmt: skip
"""In the order in which they are applied."""
