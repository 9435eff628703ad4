"""Whether a node is one that the ONNX standard defines: its operator, attributes, element types.

A row computes what its operator's definition says. Outside of it a node means nothing, yet torch would take
much of that and give some number. So it is refused before a row sees it, and where its result has another
type than the definition promises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx.defs import OpSchema
from torch import Tensor

from poet.errors import nearest
from poet.frontend.onnx.node import Node, OnnxValue
from poet.frontend.onnx.reader import DTYPES

_NAMES = {
    DTYPES[number]: f"tensor({name.lower()})"
    for name, number in onnx.TensorProto.DataType.items()
    if number in DTYPES
}
_VARIADIC, _SINGLE = OpSchema.FormalParameterOption.Variadic, OpSchema.FormalParameterOption.Single


def defined(node: Node) -> OpSchema:
    """The definition of a node's operator in the model's operator set, to which attributes and inputs keep.

    Raises:
        ModelError: there is none, or they do not.
    """
    newest = onnx.defs.onnx_opset_version()
    if node.opset > newest:
        raise node.error(
            f"the installed onnx {onnx.__version__} knows operator sets to {newest}; install a newer one"
        )
    try:
        found = onnx.defs.get_schema(node.proto.op_type, node.opset)
    except onnx.defs.SchemaError:
        raise node.error(f"there is no such operator in operator set {node.opset}") from None
    _check_attributes(node, found)
    _check_inputs(node, found)
    return found


def _check_attributes(node: Node, found: OpSchema) -> None:
    given = [attribute.name for attribute in node.proto.attribute]
    for attribute in node.proto.attribute:
        formal = found.attributes.get(attribute.name)
        if formal is None:
            known = nearest(attribute.name, found.attributes)
            raise node.error(f"operator set {node.opset} gives it no attribute {attribute.name!r}{known}")
        wanted: Any = formal.type
        if attribute.type != wanted.value or given.count(attribute.name) > 1:
            raise node.error(f"its attribute {attribute.name!r} must be one {wanted.name}")
    for name, formal in found.attributes.items():
        if formal.required and name not in given:
            raise node.error(f"its attribute {name!r} is missing")


def _check_inputs(node: Node, found: OpSchema) -> None:
    if not found.min_input <= len(node.inputs) <= found.max_input:
        raise node.error(f"{len(node.inputs)} inputs, expected {found.min_input} to {found.max_input}")
    if node.output_count > found.max_output:
        raise node.error(f"{node.output_count} outputs, expected at most {found.max_output}")
    bound = dict[str, str]()
    for place, value in enumerate(node.inputs):
        formal = found.inputs[min(place, len(found.inputs) - 1)]
        if value is None:
            if formal.option == _SINGLE:
                raise node.error(f"its input {formal.name!r} is missing")
            continue
        name = _type(value)
        if name not in formal.types:
            raise node.error(f"its input {formal.name!r} is a {name}, not of operator set {node.opset}")
        if formal.is_homogeneous and bound.setdefault(formal.type_str, name) != name:
            raise node.error(f"its input {formal.name!r} is a {name}, another one a {bound[formal.type_str]}")


def check_results(node: Node, results: Sequence[OnnxValue | None]) -> None:
    """Refuse results of another type than the definition of ``node`` promises.

    Raises:
        ModelError: names both types.
    """
    found = node.definition
    assert found is not None
    inputs = [found.inputs[min(place, len(found.inputs) - 1)] for place in range(len(node.inputs))]
    bound: Mapping[str, str] = {
        formal.type_str: _type(value) for formal, value in zip(inputs, node.inputs, strict=True) if value
    }
    for place, value in enumerate(results[: node.output_count]):
        formal = found.outputs[min(place, len(found.outputs) - 1)]
        expected = bound.get(formal.type_str)
        if value is None or (_type(value) == expected if expected else _type(value) in formal.types):
            continue
        raise node.error(f"its result would be a {_type(value)}, where ONNX promises {expected or 'another'}")


def _type(value: OnnxValue) -> str:
    """The type of a value as definitions write it."""
    if isinstance(value.meta, Tensor):
        return _NAMES[value.meta.dtype]
    return f"seq({_NAMES[value.meta[0].dtype]})" if value.meta else "seq(tensor(float))"
