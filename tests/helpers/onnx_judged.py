"""A case of a single ONNX operator, imported and held against onnx.reference and onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import ModelProto, ValueInfoProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from torch import Tensor

from helpers import onnx_cases_images, onnx_cases_layers, onnx_cases_shapes, onnx_cases_values
from helpers.onnx_case import Case
from poet.errors import ModelError
from poet.frontend.onnx.importer import load_onnx

SETS = (onnx_cases_images, onnx_cases_layers, onnx_cases_shapes, onnx_cases_values)
"""The modules whose import fills the table of cases."""
FORMS = ("run", "file", "const")
"""Inputs are given at run time; all but the first are in the file; all are nodes of constants."""
Outputs = list[np.ndarray]

_OPTIONS = onnxruntime.SessionOptions()
_OPTIONS.intra_op_num_threads = _OPTIONS.inter_op_num_threads = 1
_OPTIONS.log_severity_level = 4
_OPTIONS.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL


class Verdict(Enum):
    """What became of a case."""

    RIGHT = "equal to all references that run it"
    REFUSED = "refused in one line"
    LISTED = "the references differ, equal to one"
    NO_REFERENCE = "no reference runs it"
    WRONG = "equal to no reference"


def model_of(case: Case, form: str) -> ModelProto:
    """The node of ``case`` alone, with its inputs in one of `FORMS`."""
    names = ["" if x is None else f"x{place}" for place, x in enumerate(case.inputs)]
    outputs = [f"y{place}" for place in range(case.outputs)]
    nodes, inputs, stored = [], [], []
    for place, (name, x) in enumerate(zip(names, case.inputs, strict=True)):
        if x is None:
            continue
        tensor = numpy_helper.from_array(np.ascontiguousarray(x).reshape(x.shape), name)
        if form == "run" or (form == "file" and place == 0):
            kind = helper.np_dtype_to_tensor_dtype(x.dtype)
            inputs.append(helper.make_tensor_value_info(name, kind, x.shape))
        elif form == "file":
            stored.append(tensor)
        else:
            nodes.append(helper.make_node("Constant", [], [name], value=tensor))
    node = helper.make_node(case.op, names, outputs, **case.attributes)
    infos = [ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph([*nodes, node], "case", inputs, infos, stored)
    version = 8 if case.opset < 19 else 10
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.opset)], ir_version=version)


def references(case: Case) -> dict[str, Outputs]:
    """What those of the two give that run the case."""
    model = model_of(case, "run")
    given = {f"x{place}": x for place, x in enumerate(case.inputs) if x is not None}
    found: dict[str, Outputs] = {}
    runs: dict[str, Callable[[], Any]] = {
        "reference": lambda: ReferenceEvaluator(model).run(None, given),
        "onnxruntime": lambda: onnxruntime.InferenceSession(
            onnx.shape_inference.infer_shapes(model).SerializeToString(), _OPTIONS
        ).run(None, given),
    }
    for name, run in runs.items():
        try:
            with np.errstate(all="ignore"):
                outputs = [np.asarray(output) for output in run()]
                found[name] = [y.astype(np.float32) if y.dtype.name == "bfloat16" else y for y in outputs]
        except Exception:  # they raise what they like where they do not know a case
            continue
    return found


def imported(case: Case, form: str, path: Path) -> Outputs:
    """What the imported module gives.

    Raises:
        ModelError: it is refused.
        IndexError: an index that comes with the data is outside.
    """
    onnx.save(model_of(case, form), path)
    count = {"run": len(case.inputs), "file": 1, "const": 0}[form]
    given = [torch.from_numpy(np.array(x)) for x in case.inputs[:count] if x is not None]
    module = load_onnx(path, training=False).module
    with torch.no_grad():
        found = module(*given)
    outputs = [found] if isinstance(found, Tensor) else found
    return [(y.float() if y.dtype == torch.bfloat16 else y).numpy() for y in outputs]


def judged(case: Case, form: str, path: Path, right: Mapping[str, Outputs]) -> tuple[Verdict, str]:
    """The verdict on a case in a form, and what differs."""
    try:
        ours = imported(case, form, path)
    except (ModelError, IndexError) as error:
        return (Verdict.WRONG, "several lines") if "\n" in str(error) else (Verdict.REFUSED, str(error))
    except RuntimeError as error:  # so torch says of an index that comes with the data
        if "out of" not in str(error):
            raise
        return Verdict.REFUSED, str(error)
    differences = {name: difference(ours, theirs) for name, theirs in right.items()}
    if not differences:
        return Verdict.NO_REFERENCE, ""
    if not any(differences.values()):
        return Verdict.RIGHT, ""
    verdict = Verdict.WRONG if all(differences.values()) else Verdict.LISTED
    return verdict, "; ".join(f"{name}: {text}" for name, text in differences.items() if text)


def difference(ours: Outputs, theirs: Outputs) -> str:
    """In what two results differ; empty: in nothing but rounding."""
    if len(ours) != len(theirs):
        return f"{len(ours)} outputs for {len(theirs)}"
    for x, y in zip(ours, theirs, strict=True):
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            return f"{x.dtype}{list(x.shape)} for {y.dtype}{list(y.shape)}"
        wide, exact = np.asarray(x, np.float64), np.asarray(y, np.float64)
        tolerance = {2: 1e-2, 4: 2e-4, 8: 1e-5}[x.itemsize] if x.dtype.kind == "f" else 0.0
        with np.errstate(all="ignore"):
            apart = ~np.isclose(wide, exact, rtol=tolerance, atol=tolerance / 10, equal_nan=True)
        if apart.any():
            return f"{wide[apart][:4]} for {exact[apart][:4]}"
    return ""
