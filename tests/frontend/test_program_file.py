"""``.pt2`` files as models: the bits of the program, and nothing in them is run."""

from __future__ import annotations

import copy
import io
import json
import random
import warnings
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.beside_plain import assert_trains_alike
from helpers.pace import with_slow
from torch import Tensor, nn

from poet.api import plan as plan_module
from poet.errors import ModelError
from poet.files.kinds import FileKind, other_kind
from poet.frontend.program_file import read_program
from poet.ir.optimizer import OptimizerSpec
from poet.planning.prepared import prepare
from poet.runtime.system.process import torch_threads

MOMENTUM = OptimizerSpec("momentum", lr=0.05)


class Parts(nn.Module):
    """Chunks, a constant, a buffer that is not stored, tied weights, and two outputs."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.back = nn.Linear(4, 4, bias=False), nn.Linear(4, 4)
        self.back.weight = self.mix.weight
        self.register_buffer("scale", torch.full((4,), 0.5), persistent=False)
        self.steps = torch.arange(4.0)

    def forward(self, rows: Tensor) -> dict[str, Tensor]:
        """Scores and a sum of [N,4]."""
        left, right = self.back(self.mix(rows)).chunk(2, dim=1)
        scores = torch.cat([right, left], dim=1) * self.scale + self.steps
        return {"scores": scores.masked_fill(scores > 2.0, -torch.inf), "sum": rows.sum()}


class Words(nn.Module):
    """Rows by number, an LSTM, attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rows = nn.Embedding(11, 8), nn.LSTM(8, 8, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu", dropout=0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores [N,8] of tokens [N,L]."""
        found: Tensor = self.layer(self.rows(self.embed(tokens))[0])
        return found.mean(dim=1)


class Usual(nn.Module):
    """Arguments of many kinds: texts, lists, types, rows by number, several results, checks of a type."""

    def __init__(self) -> None:
        super().__init__()
        self.filter, self.mix = (
            nn.Conv2d(3, 4, 3, padding="same"),
            nn.MultiheadAttention(4, 2, batch_first=True),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Numbers [N,4] of [N,3,6,6]."""
        padded = F.pad(self.filter(images), (1, 1, 1, 1), mode="reflect")
        first, second = torch.split(F.gelu(padded, approximate="tanh"), 2, dim=1)
        mixed = torch.einsum("bchw,bcwv->bchv", first, second)[:, torch.tensor([1, 0])]
        values, places = mixed.unbind(1)[0].flatten(1).topk(4)
        sums = torch.zeros_like(values).scatter_add(1, places % 4, values)
        thirds = torch.div(places, 3, rounding_mode="floor").to(torch.float32)
        rows: Tensor = self.mix(values[:, None] * thirds[:, None], values[:, None], values[:, None])[0]
        return torch.where(sums > 0, sums, -torch.inf).clamp(-1.0, 1.0) + rows[:, 0]


def pictures() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.Dropout(0.3),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3),
    )  # fmt: skip


NETS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "parts": (Parts, torch.randn(3, 4, generator=torch.Generator().manual_seed(1))),
    "usual": (Usual, torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(3))),
    "words": (Words, torch.arange(10).reshape(2, 5)),
    "pictures": (pictures, torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(2))),
}


def made(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return NETS[kind][0]().train()


@cache
def exported(kind: str) -> bytes:
    """The file of the net's program."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an LSTM's flat weights
        torch.export.save(torch.export.export(made(kind), (NETS[kind][1],)), file)
    return file.getvalue()


def saved(path: Path, kind: str) -> nn.Module:
    """The net, whose program is in the file at ``path``."""
    path.write_bytes(exported(kind))
    return made(kind)


@pytest.mark.parametrize("kind", with_slow(NETS, {"usual", "words"}))
def test_a_program_read_from_a_file_has_the_bits_of_the_module(tmp_path: Path, kind: str) -> None:
    net, inputs = saved(tmp_path / "n.pt2", kind), NETS[kind][1]
    read = read_program(tmp_path / "n.pt2")
    assert [item.shape for item in read.inputs] == [inputs.shape]
    assert dict(read.module.named_parameters()).keys() == dict(net.named_parameters()).keys()
    assert read.module.state_dict().keys() <= net.state_dict().keys()
    torch.manual_seed(5)
    expected = net(inputs)
    torch.manual_seed(5)
    found = read.module(inputs)
    outputs = tuple(expected.values()) if isinstance(expected, dict) else (expected,)
    for one, other in zip(found if isinstance(found, tuple) else (found,), outputs, strict=True):
        assert torch.equal(one, other)
    state = net.state_dict()
    assert all(torch.equal(item, state[name]) for name, item in read.module.state_dict().items())
    with pytest.raises(NotImplementedError):
        read.module.eval()


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_a_plan_of_a_file_trains_with_the_bits_of_plain_torch(tmp_path: Path, threads: int) -> None:
    net = saved(tmp_path / "n.pt2", "pictures")
    with torch_threads(threads):
        with pytest.warns(UserWarning, match="no other mode than that in which it was exported"):
            generous = plan_module(tmp_path / "n.pt2", device="rpi4b", ram=None, optimizer=MOMENTUM)
        ram = round(0.9 * generous.plan.held_bytes)
        planned = plan_module(
            tmp_path / "n.pt2", device="rpi4b", ram=ram, optimizer=MOMENTUM,
            evaluation=False, time_limit_seconds=3.0,
        )  # fmt: skip
        assert planned.plan.trace.recomputed_runs or planned.plan.trace.written_bytes
        planned.save(tmp_path / "p.poet")
        assert_trains_alike(tmp_path / "p.poet", net, MOMENTUM, (4, 1, 8, 8))


# --- files from strangers --------------------------------------------------------------------------


def changed(path: Path, record: str, change: Callable[[Any], Any]) -> None:
    """Rewrite one JSON record, or the bytes of another, of the archive at ``path``."""
    with zipfile.ZipFile(path) as archive:
        records = {item.filename: archive.read(item) for item in archive.infolist()}
    rewritten = io.BytesIO()
    with zipfile.ZipFile(rewritten, "w") as archive:
        for name, content in records.items():
            if name.endswith(record):
                new = change(json.loads(content) if record.endswith(".json") else content)
                content = new if isinstance(new, bytes) else json.dumps(new).encode()
            archive.writestr(name, content)
    path.write_bytes(rewritten.getvalue())


def of_node(number: int, **fields: object) -> Callable[[Any], Any]:
    def change(data: Any) -> Any:
        data["graph_module"]["graph"]["nodes"][number].update(fields)
        return data

    return change


def of_config(**fields: object) -> Callable[[Any], Any]:
    def change(data: Any) -> Any:
        next(iter(data["config"].values())).update(fields)
        return data

    return change


def renamed(data: Any) -> Any:
    data["graph_module"]["signature"]["input_specs"][0]["parameter"]["parameter_name"] = "forward"
    return data


TEXT = [{"name": "filename", "arg": {"as_string": "secret"}, "kind": 1}]
SIZES = {
    "dtype": 7, "sizes": [{"as_int": 1 << 40}], "strides": [{"as_int": 1}], "storage_offset": {"as_int": 0},
    "layout": 7, "device": {"type": "cpu"},
}  # fmt: skip
OPEN = {**SIZES, "sizes": [{"as_expr": {"expr_str": "__import__('os').abort()"}}]}
UNMADE = [{"name": "self", "arg": {"as_tensor": {"name": "?"}}}]
WEIGHTS = "model_weights_config.json"
ATEN = "torch.ops.aten"
HOSTILE: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "a function": ("model.json", of_node(0, target="torch.load"), "it calls 'torch.load'"),
    "a class": ("model.json", of_node(0, target=f"{ATEN}.__class__.mro"), "torch.ops.aten alone are called"),
    "a file": ("model.json", of_node(0, target=f"{ATEN}.from_file.default", inputs=TEXT), "name a file"),
    "an unmade value": ("model.json", of_node(0, inputs=UNMADE), "is read before it is made"),
    "a version": ("model.json", lambda data: data | {"schema_version": {"major": 99}}, "this poet reads 8"),
    "no JSON": ("model.json", lambda data: b"{", "not a readable program"),
    "a pickled weight": (WEIGHTS, of_config(use_pickle=True), "which poet never loads"),
    "a path": (WEIGHTS, of_config(path_name="../../secret"), "is missing"),
    "too few bytes": (WEIGHTS, of_config(tensor_meta=SIZES), "too few for its sizes"),
    "a formula": (WEIGHTS, of_config(tensor_meta=OPEN), "export it without dynamic_shapes"),
    "a name": ("model.json", renamed, "forward"),
    "an order": ("byteorder", lambda data: b"big", "not in the order of this machine"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_a_stranger_may_write_is_refused(tmp_path: Path, case: str) -> None:
    saved(tmp_path / "n.pt2", "pictures")
    record, change, message = HOSTILE[case]
    changed(tmp_path / "n.pt2", record, change)
    with pytest.raises(ModelError, match=message) as error:
        read_program(tmp_path / "n.pt2")
    assert str(error.value).startswith(f"{tmp_path / 'n.pt2'}: ")
    assert "\n" not in str(error.value)


class Evil:
    """What unpickling would run."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (Path("ran"),)  # type: ignore[return-value]


def test_sample_inputs_are_not_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "n.pt2", "parts")
    evil = io.BytesIO()
    torch.save(Evil(), evil)
    changed(tmp_path / "n.pt2", "sample_inputs/model.pt", lambda data: evil.getvalue())
    read_program(tmp_path / "n.pt2")
    assert not (tmp_path / "ran").exists()


def test_damaged_files_are_one_line(tmp_path: Path) -> None:
    """A character of the JSON replaced, or the file cut off: read, or refused as a model is."""
    saved(tmp_path / "n.pt2", "pictures")
    whole, draw = (tmp_path / "n.pt2").read_bytes(), random.Random(0)
    said = []
    for number in range(60):
        (tmp_path / "n.pt2").write_bytes(whole)

        def damaged(data: Any) -> bytes:
            text = json.dumps(data).encode()
            place = draw.randrange(text.index(b"graph_module"), len(text))
            return text[:place] + draw.choice([b"0", b'"', b"-", b"null", b"9" * 20]) + text[place + 1 :]

        if number % 10:
            changed(tmp_path / "n.pt2", "models/model.json", damaged)
        else:
            (tmp_path / "n.pt2").write_bytes(whole[: draw.randrange(len(whole))])
        try:
            read_program(tmp_path / "n.pt2")
        except ModelError as error:
            said.append(str(error))
    assert len(said) > 20
    assert not any("\n" in line for line in said)


# --- programs as models ------------------------------------------------------------------------


class Named(nn.Module):
    """A net that is exported with an argument's name."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Scores."""
        scores: torch.Tensor = self.linear(features)
        return scores


@pytest.mark.slow
def test_a_program_trains_with_the_bits_of_its_module(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.3), nn.Flatten(), nn.Linear(8, 3))
    program = torch.export.export(copy.deepcopy(net).train(), (torch.zeros(4, 1, 4, 4),))
    with pytest.warns(UserWarning, match="no other mode than that in which it was exported"):
        planned = plan_module(program, device="x86-host", ram=None, optimizer=MOMENTUM)
    planned.save(tmp_path / "p.poet")
    assert_trains_alike(tmp_path / "p.poet", net.train(), MOMENTUM, (4, 1, 4, 4))


def test_named_arguments_are_refused() -> None:
    program = torch.export.export(Named(), (), {"features": torch.zeros(2, 3)})
    with pytest.raises(ModelError, match=r"exported with named arguments \(features\)"):
        prepare(program, device="x86-host")


def test_a_file_is_a_model(tmp_path: Path) -> None:
    """Its inputs and names are those of the program; what is for ONNX files is refused."""
    torch.export.save(torch.export.export(Named().train(), (torch.zeros(2, 3),)), tmp_path / "net.pt2")
    prepared = prepare(tmp_path / "net.pt2", device="x86-host")
    assert prepared.step.graph.name == "net"
    assert [parameter.name for parameter in prepared.step.graph.parameters] == [
        "linear.weight",
        "linear.bias",
    ]
    assert prepared.step.graph.inputs[0] == "features"
    with pytest.raises(ModelError, match="no dimensions to bind; export it for these sizes"):
        prepare(tmp_path / "net.pt2", device="x86-host", bind={"N": 4})
    with pytest.raises(ModelError, match="names are for an ONNX file"):
        prepare(tmp_path / "net.pt2", device="x86-host", names=Named())
    assert "`poet solve` takes it" in other_kind(tmp_path / "net.pt2", FileKind.ONNX)


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(ModelError, match="an exported program, not dict"):
        prepare({}, torch.zeros(2, 3), device="x86-host")  # type: ignore[arg-type]
