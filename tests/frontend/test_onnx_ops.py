"""Every row of the operator table against the reference cases that ship in the onnx package."""

from __future__ import annotations

import functools
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from helpers.onnx_tools import make_model, save
from onnx import ModelProto, TensorProto, helper, numpy_helper
from torch import Tensor

from poet.errors import ModelError
from poet.frontend.onnx.build import TABLES
from poet.frontend.onnx.importer import load_onnx
from poet.frontend.onnx.node import ROWS, complement, shortest
from poet.frontend.onnx.reader import NEWEST_OPSET, OLDEST_OPSET

Case = tuple[str, ModelProto, list[np.ndarray], list[object]]

NO_CASES = {
    # sequences appear in the reference cases only together with operators that are not in the table
    "ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceLength",
    # what they draw is another generator's; tests/frontend/test_names.py holds them to torch's
    "Bernoulli", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
}  # fmt: skip


@functools.cache
def _cases() -> dict[str, list[Case]]:
    """The cases of a single node that has a row, by operator."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        collected = collect_testcases(None)
    cases: dict[str, list[Case]] = defaultdict(list)
    for case in collected:
        model = case.model
        if model is None or len(model.graph.node) != 1 or "training" in case.name:
            continue
        if model.graph.node[0].domain not in ("", "ai.onnx"):
            continue
        for inputs, outputs in case.data_sets or ():
            cases[model.graph.node[0].op_type].append((case.name, model, list(inputs), list(outputs)))
    return cases


def _variants(model: ModelProto, inputs: Sequence[np.ndarray]) -> Iterator[tuple[ModelProto, list[Tensor]]]:
    """The case with all inputs given at run time, with all but the first in the file, with all in it."""
    names = [entry.name for entry in model.graph.input]
    for given in (len(names), 1, 0):
        variant = ModelProto()
        variant.CopyFrom(model)
        for entry in variant.opset_import:
            entry.version = min(max(entry.version, OLDEST_OPSET), NEWEST_OPSET)
        for name, content in list(zip(names, inputs, strict=False))[given:]:
            is_tensor = isinstance(content, TensorProto)
            tensor = content if is_tensor else numpy_helper.from_array(np.asarray(content), name)
            variant.graph.initializer.append(tensor)
            variant.graph.initializer[-1].name = name
        kept = [entry for entry in variant.graph.input if entry.name in names[:given]]
        del variant.graph.input[:]
        variant.graph.input.extend(kept)
        try:
            tensors = [torch.from_numpy(np.array(content)) for content in inputs[:given]]
        except TypeError:  # an element type that torch does not have
            continue
        yield variant, tensors


def _run(case: Case, path: Path) -> Iterator[list[Tensor]]:
    """The outputs of each variant that is not refused."""
    _, model, inputs, _ = case
    for variant, tensors in _variants(model, inputs):
        save(variant, path)
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = load_onnx(path, training=False).module(*tensors)
        except ModelError:
            continue
        yield [found] if isinstance(found, Tensor) else list(found)


@pytest.mark.slow  # collecting the cases takes ten seconds; test_onnx_sweep.py has some of each operator
@pytest.mark.parametrize("op", sorted(set(ROWS) - NO_CASES))
def test_reference_cases_agree_or_are_refused(op: str, tmp_path: Path) -> None:
    agreed = 0
    for case in _cases()[op]:
        name, expected = case[0], case[3]
        if isinstance(expected[0], list):
            continue
        for found in _run(case, tmp_path / "case.onnx"):
            agreed += 1
            tolerance = 2e-2 if "16" in name else 1e-3
            for ours, theirs in zip(found, expected, strict=True):
                plain = numpy_helper.to_array(theirs) if isinstance(theirs, TensorProto) else theirs
                reference = np.asarray(plain)
                assert tuple(ours.shape) == reference.shape, name
                assert str(ours.dtype).removeprefix("torch.") == reference.dtype.name, name
                np.testing.assert_allclose(
                    ours.detach().to(torch.float64).numpy(),
                    reference.astype(np.float64),
                    rtol=tolerance,
                    atol=1e-5,
                    err_msg=name,
                )
    assert agreed or op in ("Upsample", "SplitToSequence"), "no case of this operator imports"


def test_every_operator_has_one_row() -> None:
    assert len(TABLES) == len({table.__name__ for table in TABLES})
    known = {schema.name for schema in onnx.defs.get_all_schemas_with_history() if schema.domain == ""}
    assert set(ROWS) <= known
    assert not NO_CASES - set(ROWS)


def test_sequences_are_taken_apart(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Constant", [], ["sizes"], value_ints=[1, 2, 3]),
        helper.make_node("SplitToSequence", ["x", "sizes"], ["parts"], axis=1),
        helper.make_node("Constant", [], ["last"], value_int=-1),
        helper.make_node("SequenceAt", ["parts", "last"], ["tail"]),
        helper.make_node("SequenceConstruct", ["tail", "tail"], ["pair"]),
        helper.make_node("SequenceLength", ["parts"], ["count"]),
        helper.make_node("Cast", ["count"], ["factor"], to=TensorProto.FLOAT),
        helper.make_node("ConcatFromSequence", ["pair"], ["joined"], axis=0),
        helper.make_node("Mul", ["joined", "factor"], ["y"]),
    ]
    x = torch.randn(2, 6)
    model = load_onnx(save(make_model(nodes, {"x": [2, 6]}, ["y"]), tmp_path / "m.onnx"))
    assert torch.equal(model.module(x), torch.cat([x[:, 3:], x[:, 3:]]) * 3)


def test_single_precision_attributes_become_short_decimals() -> None:
    assert shortest(float(np.float32(1e-5))) == 1e-5
    assert shortest(float(np.float32(0.1))) == 0.1
    assert complement(float(np.float32(0.9))) == 0.1
    assert complement(float(np.float32(0.997))) == 0.003
