"""Every imported operator over attributes, ranks, element types and operator sets: right, or refused."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from helpers.onnx_case import MAKERS, Case, cases, versions
from helpers.onnx_judged import FORMS, Verdict, imported, judged, model_of, references
from helpers.pace import few_or_many
from onnx import AttributeProto, helper

from poet.errors import ModelError
from poet.frontend.onnx.importer import load_onnx
from poet.frontend.onnx.node import ROWS

LISTED = {
    "ArgMax": "onnxruntime does not take NaN for the largest number",
    "ArgMin": "onnxruntime does not take NaN for the least number",
    "AveragePool": "onnx.reference leaves NaN out, and centres what ceil_mode pads",
    "BatchNormalization": "onnx.reference of set 9 normalises by the batch as in training",
    "ConvTranspose": "output_shape: onnx.reference puts the larger half of an odd pad behind",
    "Dropout": "in evaluation onnxruntime's mask drops all, onnx.reference's none",
    "GlobalMaxPool": "onnx.reference takes rank 3 for two dimensions of an image",
    "GridSample": "cubic with borders: onnx.reference clips the samples, onnxruntime the places",
    "Hardmax": "before set 13 onnx.reference takes one axis, where all from there on are meant",
    "LRN": "onnx.reference sums as many channels as there are samples",
    "LayerNormalization": "onnxruntime gives statistics of doubles in single precision",
    "LogSoftmax": "as Hardmax",
    "LpNormalization": "onnx.reference adds numbers with their signs for p = 1",
    "LpPool": "onnxruntime counts what ceil_mode pads",
    "MaxPool": "NaN; onnx.reference floors with auto_pad VALID and ceil_mode",
    "Max": "onnxruntime leaves NaN out",
    "Min": "onnxruntime leaves NaN out",
    "Mod": "onnxruntime divides uint64 as doubles",
    "NegativeLogLikelihoodLoss": "onnx.reference leaves an ignored class out of the sum, not out of the mean",
    "NonZero": "of a single number: no dimension in onnx.reference, one in onnxruntime",
    "Pow": "the root of minus infinity: NaN is that of torch's sqrt, infinity that of C's pow",
    "ReduceLogSumExp": "onnxruntime leaves NaN out",
    "ReduceMax": "onnxruntime leaves NaN out",
    "ReduceMean": "onnxruntime takes 0 for the mean of nothing",
    "ReduceMin": "onnxruntime leaves NaN out",
    "ReduceSumSquare": "onnx.reference gives whole numbers in 64 bits",
    "Resize": "align_corners by factors that give no whole size; pytorch_half_pixel to one element; ties",
    "Sign": "of NaN: NaN in onnx.reference, 0 in onnxruntime",
    "Softmax": "as Hardmax",
    "SoftmaxCrossEntropyLoss": "as NegativeLogLikelihoodLoss",
}
"""Why the two references differ, by operator, where import equals one of them."""
ALONE = {
    "GlobalMaxPool": "reference",
    "Hardmax": "reference",
    "LRN": "reference",
    "ReduceMean": "onnxruntime",
}
"""Of these `LISTED` some cases run in one reference alone, which is the wrong one."""
OF_TORCH = {"Gelu"} if torch.nn.functional.gelu(torch.full((16,), torch.inf)).isnan().any() else set[str]()
"""Where torch's kernel of this processor (AVX-512) is not what the references say at infinity."""
WITHOUT_REFERENCE = {
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), "pads as large as the window, ceil_mode"),
    "ConvTranspose": "output_padding as large as the stride, with a larger dilation",
    "LRN": "of rank 3: onnx.reference takes images, onnxruntime odd windows of images",
    "OneHot": "of types that onnxruntime has no kernel for, in sets that onnx.reference does not know",
    "Resize": "attributes that onnxruntime refuses, in sets that onnx.reference does not know",
}
NEVER_SWEPT = {
    # what they draw is another generator's
    "Bernoulli", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
    # sequences: tests/frontend/test_onnx_ops.py
    "ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceLength", "SplitToSequence",
}  # fmt: skip
SHARE = int(os.environ.get("POET_SWEEP_SHARE", "5"))
"""Every so many-th case is run in the slow part; 1 runs all."""
COUNTED: Counter[Verdict] = Counter()


@pytest.fixture(scope="module", autouse=True)
def _table() -> Iterator[None]:
    yield
    counts = ", ".join(f"{verdict.name.lower()} {COUNTED[verdict]}" for verdict in Verdict)
    print(f"\nONNX sweep: {COUNTED.total()} cases, {counts}")


def _sweep(chosen: list[Case], path: Path) -> Counter[Verdict]:
    found: Counter[Verdict] = Counter()
    for case in chosen:
        right = references(case)
        for form in FORMS:
            if form == "file" and len(case.inputs) < 2:
                continue
            verdict, text = judged(case, form, path, right)
            if verdict is Verdict.WRONG and list(right) == [ALONE.get(case.op)]:
                verdict = Verdict.LISTED
            if verdict is Verdict.WRONG and case.op in OF_TORCH:
                assert any(np.isinf(array).any() for array in case.inputs if array is not None), str(case)
                continue
            assert verdict is not Verdict.WRONG, f"{case} as {form}: {text}"
            assert verdict is not Verdict.LISTED or case.op in LISTED, f"{case} as {form}: {text}"
            assert verdict is not Verdict.NO_REFERENCE or case.op in WITHOUT_REFERENCE, f"{case} as {form}"
            found[verdict] += 1
    COUNTED.update(found)
    return found


@pytest.mark.parametrize("op", sorted(MAKERS))
def test_a_few_cases_are_right_or_refused(op: str, tmp_path: Path) -> None:
    every = list(cases(op))
    found = _sweep(every[:: max(1, len(every) // 2)], tmp_path / "case.onnx")
    assert found[Verdict.RIGHT] + found[Verdict.LISTED] > 0


@pytest.mark.slow
@pytest.mark.parametrize("op", sorted(MAKERS))
def test_all_cases_are_right_or_refused(op: str, tmp_path: Path) -> None:
    every = list(cases(op))
    found = _sweep(every[:: min(SHARE, max(1, len(every) // 20))], tmp_path / "case.onnx")
    assert found[Verdict.RIGHT] > found.total() // 8


def test_every_operator_is_swept() -> None:
    assert set(MAKERS) | NEVER_SWEPT == set(ROWS)
    assert not set(MAKERS) & NEVER_SWEPT
    assert set(LISTED) | set(WITHOUT_REFERENCE) <= set(MAKERS)


@few_or_many("count", 1, 99)
@pytest.mark.parametrize("op", sorted(MAKERS))
def test_unknown_attributes_and_values_are_refused(op: str, count: int, tmp_path: Path) -> None:
    """In the newest operator sets that change the operator."""
    path = tmp_path / "case.onnx"
    for opset in versions(op)[-count:]:
        case = next(case for case in cases(op) if case.opset == opset)
        schema = onnx.defs.get_schema(op, opset)
        strange = [helper.make_attribute("leak", 1)]
        for name, formal in schema.attributes.items():
            free = name in ("equation", "value_string")  # any text is a value
            if formal.type == onnx.defs.OpSchema.AttrType.STRING and not free:
                strange.append(helper.make_attribute(name, "sideways"))
            if formal.type == onnx.defs.OpSchema.AttrType.INT:
                strange.append(helper.make_attribute(name, "a word"))
        for attribute in strange:
            model = model_of(case, "const")
            kept = [other for other in model.graph.node[0].attribute if other.name != attribute.name]
            del model.graph.node[0].attribute[:]
            model.graph.node[0].attribute.extend([*kept, attribute])
            onnx.save(model, path)
            with pytest.raises(ModelError, match=attribute.name) as caught:
                load_onnx(path)
            assert "\n" not in str(caught.value)
            assert attribute.type == AttributeProto.INT or attribute.name in str(caught.value)


def test_what_a_definition_excludes_is_refused(tmp_path: Path) -> None:
    x, whole = np.ones((2, 3), np.float32), np.ones((2, 3), np.int64)
    for case, words in (
        (Case("Add", 18, 0, {}, (x, whole)), "another one a"),
        (Case("Exp", 18, 0, {}, (whole,)), "not of operator set 18"),
        (Case("Gelu", 18, 0, {}, (x,)), "no such operator in operator set 18"),
        (Case("Relu", 18, 0, {}, (x, x)), "2 inputs, expected 1 to 1"),
        (Case("Where", 18, 0, {}, (None, x, x)), "its input 'condition' is missing"),
        (Case("Cast", 18, 0, {}, (x,)), "its attribute 'to' is missing"),
        (Case("Erf", 12, 0, {}, (whole,)), "its result would be a tensor(float)"),
    ):
        with pytest.raises(ModelError) as caught:
            imported(case, "run", tmp_path / "case.onnx")
        assert words in str(caught.value)


def test_indices_from_the_data_may_count_from_the_end(tmp_path: Path) -> None:
    x, path = torch.arange(12.0).reshape(3, 4), tmp_path / "case.onnx"
    index = np.array([[-1, 0], [1, -2]], np.int64)
    for op, axis, expected in (
        ("Gather", 1, x[:, index]),
        ("Gather", 0, x[index]),
        ("GatherElements", 1, x[:2].gather(1, torch.from_numpy(index) % 4)),
        ("GatherND", None, x[index[:, 0], index[:, 1]]),
    ):
        case = Case(op, 13, 0, {} if axis is None else {"axis": axis}, (x.numpy(), index))
        if op == "GatherElements":
            case = Case(op, 13, 0, {"axis": 1}, (x.numpy()[:2], index))
        assert np.array_equal(imported(case, "run", path)[0], expected.numpy()), op
