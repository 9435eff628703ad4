"""ONNX files as strangers write them: what is read of them, and what is refused in one line."""

from __future__ import annotations

import hashlib
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from helpers.onnx_tools import BATCH, make_model, save, zoo_batch, zoo_export
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from poet.errors import ModelError
from poet.frontend.onnx.check import check_model
from poet.frontend.onnx.importer import load_onnx
from poet.frontend.onnx.reader import read_onnx, stored_tensor


@pytest.fixture
def resnet() -> Path:
    return zoo_export("resnet18", "legacy", True)


def _linear(tmp_path: Path) -> Path:
    """A linear layer with its weight in ``weights.bin``, at an offset."""
    model = make_model(
        [helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)],
        {"x": [2, 64]},
        ["y"],
        {"w": np.arange(64 * 8, dtype=np.float32).reshape(8, 64)},
    )
    (tmp_path / "weights.bin").write_bytes(b"\0" * 128 + model.graph.initializer[0].raw_data)
    _point(model, location="weights.bin", offset="128", length="2048")
    return save(model, tmp_path / "linear.onnx")


def _point(model: onnx.ModelProto, **entries: str) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)


def _repoint(path: Path, **entries: str) -> Path:
    model = onnx.load(path, load_external_data=False)
    _point(model, **entries)
    return save(model, path)


# -- the bytes --------------------------------------------------------------------------------------


def test_the_structure_has_no_weights_and_their_contents_are_read_from_the_file(resnet: Path) -> None:
    file = read_onnx(resnet)
    assert file.model.ByteSize() < resnet.stat().st_size / 2
    for tensor in onnx.load(resnet).graph.initializer:
        read = file.tensors[tensor.name].read
        assert read is not None
        assert read().numpy().tobytes() == tensor.raw_data


def test_typed_and_raw_data_read_the_same(tmp_path: Path) -> None:
    for dtype in (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE, TensorProto.FLOAT):
        numbers = [0.5, -1.0, 3.25]
        nodes = [helper.make_node("Cast", ["w"], ["c"], to=1), helper.make_node("Add", ["x", "c"], ["y"])]
        for raw in (False, True):
            model = make_model(nodes, {"x": [3]}, ["y"])
            tensor = helper.make_tensor("w", dtype, [3], numbers)
            content = onnx.numpy_helper.to_array(tensor)
            model.graph.initializer.append(
                helper.make_tensor("w", dtype, [3], content.tobytes(), raw=True) if raw else tensor
            )
            found = load_onnx(save(model, tmp_path / "m.onnx")).module(torch.zeros(3))
            assert found.tolist() == numbers


def test_the_digest_is_that_of_the_file_and_its_data(resnet: Path, tmp_path: Path) -> None:
    assert read_onnx(resnet).digest == hashlib.sha256(resnet.read_bytes()).hexdigest()
    path = _linear(tmp_path)
    before = read_onnx(path).digest
    both = path.read_bytes() + (tmp_path / "weights.bin").read_bytes()
    assert before == hashlib.sha256(both).hexdigest()
    data = bytearray((tmp_path / "weights.bin").read_bytes())
    data[500] ^= 1
    (tmp_path / "weights.bin").write_bytes(data)
    assert read_onnx(path).digest != before


# -- damage -----------------------------------------------------------------------------------------


def _refusal(path: Path) -> str | None:
    """Why loading is refused, if it is; whatever else comes up is a bug and passes through."""
    try:
        load_onnx(path, bind={"N": BATCH})
    except ModelError as error:
        return str(error)
    return None


def test_a_truncated_file_is_refused(resnet: Path, tmp_path: Path) -> None:
    data = resnet.read_bytes()
    path = tmp_path / "cut.onnx"
    for size in (0, 1, 7, len(data) // 3, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(ModelError, match=r"cut\.onnx: "):
            load_onnx(path, bind={"N": BATCH})


def test_flipped_bits_give_a_model_or_one_line(resnet: Path, tmp_path: Path) -> None:
    data, path = resnet.read_bytes(), tmp_path / "flipped.onnx"
    generator = random.Random(0)
    names = [onnx.load(resnet).graph.node[0].name.encode(), b"conv1.weight", b"BatchNormalization", b"pads"]
    places = [generator.randrange(len(data)) for _ in range(60)]
    places += [data.index(name) + generator.randrange(-6, len(name)) for name in names for _ in range(15)]
    refusals = []
    for place in places:
        flipped = bytearray(data)
        flipped[place] ^= 1 << generator.randrange(8)
        path.write_bytes(flipped)
        refusals.append(_refusal(path))
    reasons = [reason for reason in refusals if reason is not None]
    assert len(reasons) > 10
    assert all(reason and "\n" not in reason for reason in reasons)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    for content in (b"PK\x03\x04 a zip archive", b"\x80\x04\x95 a pickle", b"{}", b"\xff" * 64):
        path.write_bytes(content)
        with pytest.raises(ModelError, match="not a"):
            load_onnx(path)
    with pytest.raises(ModelError, match="cannot be read: No such file"):
        load_onnx(tmp_path / "missing.onnx")


@pytest.mark.parametrize(
    ("dims", "size_bytes"), [([1 << 40, 1 << 20], 4), ([3, 3], 4), ([-2, 2], 16), ([8], 4096)]
)
def test_a_weight_of_another_size_than_its_data_is_refused(
    dims: list[int], size_bytes: int, tmp_path: Path
) -> None:
    model = make_model([helper.make_node("Add", ["x", "w"], ["y"])], {"x": [2, 2]}, ["y"])
    model.graph.initializer.add(name="w", dims=dims, data_type=TensorProto.FLOAT, raw_data=b"\0" * size_bytes)
    with pytest.raises(ModelError, match=r"initialiser 'w' (needs|has)"):
        load_onnx(save(model, tmp_path / "m.onnx"))


def test_element_types_without_a_torch_type_are_named(tmp_path: Path) -> None:
    model = make_model([helper.make_node("Add", ["x", "w"], ["y"])], {"x": [2]}, ["y"])
    model.graph.initializer.add(name="w", dims=[1], data_type=TensorProto.STRING, string_data=[b"a"])
    with pytest.raises(ModelError, match="'w' has element type STRING"):
        load_onnx(save(model, tmp_path / "m.onnx"))


def test_an_operator_set_outside_the_range_is_refused(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    for opset in (6, 99):
        path = save(make_model([node], {"x": [2]}, ["y"], opset=opset), tmp_path / "m.onnx")
        with pytest.raises(ModelError, match=f"operator set {opset}; supported are 9 to 24"):
            load_onnx(path)


# -- external data ----------------------------------------------------------------------------------


def test_external_data_is_read_at_its_offset(tmp_path: Path) -> None:
    model = load_onnx(_linear(tmp_path))
    expected = torch.arange(64 * 8, dtype=torch.float32).reshape(8, 64)
    assert torch.equal(model.module.get_parameter("w").detach(), expected)


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("../weights.bin", "outside the model's folder"),
        ("sub/../../weights.bin", "outside the model's folder"),
        ("/etc/passwd", "not a file name relative"),
        ("link.bin", "outside the model's folder"),
        ("", "not a file name relative"),
        ("a\\b.bin", "not a file name relative"),
        ("missing.bin", "is missing beside the model"),
    ],
)
def test_external_data_stays_in_the_folder(location: str, message: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = _linear(folder)
    shutil.copy(folder / "weights.bin", tmp_path / "weights.bin")
    (folder / "link.bin").symlink_to(tmp_path / "weights.bin")
    _repoint(path, location=location, offset="128", length="2048")
    with pytest.raises(ModelError, match=message):
        load_onnx(path)
    with pytest.raises(ModelError, match=message):
        check_model(path)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"offset": "128", "length": "9999"}, "which has 2176 bytes"),
        ({"offset": "-1", "length": "2048"}, "which has 2176 bytes"),
        ({"offset": "64", "length": "1024"}, "needs 2048 bytes, the file holds 1024"),
        ({"offset": "four"}, "are not numbers"),
    ],
)
def test_external_data_has_its_size_checked(entries: dict[str, str], message: str, tmp_path: Path) -> None:
    path = _repoint(_linear(tmp_path), location="weights.bin", **entries)
    with pytest.raises(ModelError, match=message):
        load_onnx(path)


def _onnx_tensor(path: Path) -> torch.Tensor:
    """The weight as the module gets it, without the digest, which would read the whole hole."""
    model = onnx.load(path, load_external_data=False)
    stored = stored_tensor(model.graph.initializer[0], path, None)
    assert stored.read is not None
    return stored.read()


def test_external_data_beyond_two_gigabytes(tmp_path: Path) -> None:
    """The weight lies behind a hole of 3 GB, which costs no disk."""
    path = _linear(tmp_path)
    content = (tmp_path / "weights.bin").read_bytes()[128:]
    with (tmp_path / "large.bin").open("wb") as file:
        file.seek(3 << 30)
        file.write(content)
    _repoint(path, location="large.bin", offset=str(3 << 30), length="2048")
    expected = torch.arange(64 * 8, dtype=torch.float32).reshape(8, 64)
    read = _onnx_tensor(path)
    assert torch.equal(read, expected)


def test_a_zoo_net_with_external_data_is_the_same_net(tmp_path: Path) -> None:
    path = zoo_export("unet", "legacy", True)
    onnx.save(
        onnx.load(path), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=64
    )
    assert (tmp_path / "m.data").stat().st_size > 10_000
    inputs, _ = zoo_batch("unet")
    inside, outside = (load_onnx(file, bind={"N": BATCH}) for file in (path, tmp_path / "m.onnx"))
    assert torch.equal(inside.module.eval()(*inputs), outside.module.eval()(*inputs))


# -- a few hundred bytes of a stranger's model: no minutes, no memory, and never the process ---------

ONE_PIXEL = np.ones((1, 1, 1, 1), np.float32)


def _node(op: str, inputs: list[str], output: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op, inputs, [output], **attributes)


def _model(nodes: list[NodeProto], stored: dict[str, np.ndarray]) -> ModelProto:
    """``nodes`` give ``q``, whose sum is added to a layer's input."""
    ends = [
        _node("Cast", ["q"], "float", to=TensorProto.FLOAT), _node("ReduceSum", ["float"], "sum", keepdims=0),
        _node("Add", ["x", "sum"], "z"), _node("MatMul", ["z", "weight"], "y"),
    ]  # fmt: skip
    stored = {"weight": np.ones((3, 4), np.float32), **stored}
    graph = helper.make_graph(
        [*nodes, *ends], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(content, name) for name, content in stored.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _whole(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def _folded(op: str, left: np.ndarray, right: np.ndarray, path: Path) -> torch.Tensor:
    """What ``op`` gives at import."""
    graph = helper.make_graph(
        [_node(op, ["a", "b"], "y")], "g", [], [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(left, "a"), numpy_helper.from_array(right, "b")],
    )  # fmt: skip
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    found = load_onnx(path).module()
    assert isinstance(found, torch.Tensor)
    return found


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32, np.int64])
@pytest.mark.parametrize(("op", "expected"), [("Div", None), ("Mod", 0)])
def test_the_least_whole_number_by_minus_one_ends_nothing(
    op: str, expected: int | None, kind: type, tmp_path: Path
) -> None:
    least = np.iinfo(kind).min
    left: np.ndarray = np.array([least, 7, -7], kind)
    right: np.ndarray = np.array([-1, -2, 2], kind)
    found = _folded(op, left, right, tmp_path / "m.onnx")
    assert found.tolist() == ([least, -3, -3] if op == "Div" else [expected, -1, 1])


@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_whole_numbers_by_zero_are_refused(op: str, tmp_path: Path) -> None:
    path = save(_model([_node(op, ["a", "b"], "q")], {"a": _whole(5), "b": _whole(0)}), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=rf"node 'q' \({op}\): .*ZeroDivisionError"):
        load_onnx(path)


@pytest.mark.parametrize(
    ("nodes", "stored", "words"),
    [
        ([_node("ConstantOfShape", ["s"], "q")], {"s": _whole(1 << 20, 1 << 20)}, "a constant of"),
        ([_node("Expand", ["a", "s"], "q")], {"a": _whole(1), "s": _whole(1 << 40)}, "a constant of"),
        ([_node("Tile", ["a", "s"], "q")], {"a": _whole(1), "s": _whole(1 << 40)}, "a constant of"),
        (
            [_node("Range", ["a", "b", "c"], "q")],
            {"a": np.array(0), "b": np.array(1 << 40), "c": np.array(1)},
            "a table of 1099511627776 entries",
        ),
        (
            [_node("Pad", ["a", "s"], "q", mode="edge")],
            {"a": _whole(1), "s": _whole(0, 1 << 40)},
            "a table of 1099511627777 entries",
        ),
        (
            [_node("Resize", ["a", "", "", "s"], "q")],
            {"a": ONE_PIXEL, "s": _whole(1, 1, 1 << 30, 1 << 30)},
            "a table of 1073741824 entries",
        ),
        (
            [_node("OneHot", ["a", "s", "b"], "q")],
            {"a": np.array(1), "s": _whole(1 << 40), "b": _whole(0, 1)},
            "a constant of",
        ),
        (
            [_node("ConstantOfShape", ["s"], "a"), _node("EyeLike", ["a"], "q")],
            {"s": _whole(1 << 14, 1 << 14)},
            "a table of 268435456 entries",
        ),
        (
            [_node("MaxPool", ["a"], "q", kernel_shape=[1 << 40], pads=[1 << 40, 0])],
            {"a": np.ones((1, 1, 4), np.float32)},
            "a table of",
        ),
        (
            [
                _node("ConstantOfShape", ["s"], "c0", value=numpy_helper.from_array(np.ones(1, np.int8))),
                *(_node("Neg", [f"c{n}"], f"c{n + 1}") for n in range(40)),
                _node("ReduceMax", ["c40"], "q"),
            ],
            {"s": _whole(1 << 14, 1 << 12)},
            "elements up to here; the limit is",
        ),
    ],
    ids=lambda value: "" if isinstance(value, dict) else None,
)  # fmt: skip
def test_what_would_take_memory_or_minutes_is_refused(
    nodes: list[NodeProto], stored: dict[str, np.ndarray], words: str, tmp_path: Path
) -> None:
    path = save(_model(nodes, stored), tmp_path / "m.onnx")
    assert path.stat().st_size < 2000
    (remark,) = check_model(path).not_imported
    assert words in remark.reason
    assert "\n" not in remark.reason


def test_a_large_product_of_constants_is_left_to_the_step(tmp_path: Path) -> None:
    nodes = [_node("ConstantOfShape", ["s"], "c"), _node("MatMul", ["c", "c"], "q")]
    report = check_model(save(_model(nodes, {"s": _whole(1 << 13, 1 << 13)}), tmp_path / "m.onnx"))
    assert report.can_train
    assert {row.op: row.constant for row in report.operators}["MatMul"] == 0


def test_functions_that_call_each_other_twice_are_counted_before_they_are_inlined(tmp_path: Path) -> None:
    functions = []
    for depth in range(40):
        op, domain = (f"f{depth - 1}", "twice") if depth else ("Relu", "")
        inner = [
            helper.make_node(op, ["x"], ["t"], domain=domain),
            helper.make_node(op, ["t"], ["y"], domain=domain),
        ]
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("twice", 1)]
        functions.append(helper.make_function("twice", f"f{depth}", ["x"], ["y"], inner, opsets))
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    node = helper.make_node("f39", ["x"], ["y"], domain="twice")
    graph = helper.make_graph([node], "g", [info], [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("twice", 1)]
    path = tmp_path / "m.onnx"
    save(helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=9), path)
    with pytest.raises(ModelError, match="inlined are 1099511627776 nodes; the limit is 1048576"):
        load_onnx(path)
