"""A file of the wrong kind: the error says what the file is, and which command takes it."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import hand_net
from helpers.schedules import random_schedule
from poet.cli.main import app
from safetensors.torch import save_file
from typer.testing import CliRunner
from zoo import NETS, export

from poet.files.kinds import FileKind, kind_of, says_what_it_is
from poet.runtime import Trainer

NET = NETS["resnet18"].small


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kinds")
    of = hand_net.problem(hand_net.graph())
    hand_net.write(folder / "plan.poet", random_schedule(of, 5))
    with Trainer.open(folder / "plan.poet") as trainer:
        trainer.save(folder / "state.safetensors")
    (folder / "problem.json").write_text(json.dumps(of.to_json()))
    export(NET.build(), NET.inputs(2), folder / "model.onnx", exporter="dynamo", training=True)
    np.savez(folder / "data.npz", inputs=np.zeros((2, 2)))
    np.save(folder / "one.npy", np.zeros(2))
    save_file({"inputs": torch.zeros(2)}, folder / "data.safetensors")
    torch.save({"a": torch.zeros(2)}, folder / "weights.pt")
    (folder / "models.py").write_text("import torch\n")
    (folder / "board.toml").write_text("[compute]\n")
    (folder / "table.csv").write_text("a,b\n1,2\n")
    (folder / "other.pkl").write_bytes(pickle.dumps({"a": 1}))
    (folder / "page.html").write_text("<!doctype html>\n")
    (folder / "trace.json").write_text('{"traceEvents": []}')
    (folder / "empty.onnx").touch()
    (folder / "folder").mkdir()
    return folder


KINDS = {
    "plan.poet": FileKind.PLAN, "state.safetensors": FileKind.STATE, "problem.json": FileKind.PROBLEM,
    "model.onnx": FileKind.ONNX,
    "data.npz": FileKind.NPZ, "one.npy": FileKind.ARRAY, "data.safetensors": FileKind.TENSORS,
    "weights.pt": FileKind.TORCH, "models.py": FileKind.PYTHON, "board.toml": FileKind.PROFILE,
    "table.csv": FileKind.TABLE, "other.pkl": FileKind.PICKLE, "page.html": FileKind.PAGE,
    "trace.json": FileKind.TRACE, "empty.onnx": FileKind.EMPTY, "folder": FileKind.FOLDER,
}  # fmt: skip

COMMANDS = {
    "check {}": {FileKind.ONNX},
    "solve {} --device rpi4b": {FileKind.ONNX, FileKind.PROBLEM},
    "solve model.onnx --device {}": {FileKind.PROFILE},
    "explain {}": {FileKind.PLAN},
    "verify {}": {FileKind.PLAN},
    "diff plan.poet {}": {FileKind.PLAN},
    "export trace {}": {FileKind.PLAN},
    "run {} --data data.npz": {FileKind.PLAN},
    "run plan.poet --data {}": {FileKind.NPZ, FileKind.TENSORS, FileKind.TABLE, FileKind.FOLDER},
    "run plan.poet --data data.npz --resume {}": {FileKind.STATE},
    "devices ranges {}": {FileKind.PLAN},
    "devices validate {}": {FileKind.PROFILE},
    "devices show ./{}": {FileKind.PROFILE},
}


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_a_file_is_known_by_its_first_bytes(folder: Path, name: str, kind: FileKind) -> None:
    assert kind_of(folder / name) is kind


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_of_another_kind_is_called_what_it_is(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    for name, kind in KINDS.items():
        if kind in COMMANDS[command] or (command.startswith("solve {}") and name.endswith(".json")):
            continue
        if FileKind.PROFILE in COMMANDS[command] and kind in (FileKind.FOLDER, FileKind.EMPTY):
            continue
        result = CliRunner().invoke(app, command.format(name).split())
        assert (result.exit_code, result.stdout) == (2, ""), name
        assert f"{name}: this is {kind.title}, not a" in result.stderr
        assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["trace.json", "plan.json"])
def test_a_problem_that_is_none_is_called_what_it_is(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "plan.json").write_bytes((folder / "plan.poet").read_bytes())
    stderr = CliRunner().invoke(app, ["solve", name, "--ram", "1MiB"]).stderr
    called = "a plan" if name == "plan.json" else "a trace for Perfetto"
    assert stderr.startswith(f"poet: {name}: this is {called}, not a planning problem; ")


def test_a_model_in_place_of_a_plan_is_told_how_to_become_one(folder: Path) -> None:
    model = folder / "model.onnx"
    stderr = CliRunner().invoke(app, ["run", str(model), "--data", "x.npz"]).stderr
    assert f"make a plan of it with: poet solve {model.name} --device" in stderr


def test_what_may_be_anything_keeps_the_readers_own_words(tmp_path: Path) -> None:
    damaged = tmp_path / "model.onnx"
    damaged.write_bytes(b"\x08\x0a\x12\xff\xff")
    (tmp_path / "anything").write_bytes(b"\x01\x02\x03")
    assert kind_of(tmp_path / "anything") is None
    assert kind_of(tmp_path / "absent.py") is None
    assert "this is" not in CliRunner().invoke(app, ["check", str(damaged)]).stderr
    assert "this is" not in CliRunner().invoke(app, ["check", str(tmp_path / "anything")]).stderr


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    assert kind_of(tmp_path / "pipe.onnx") is None


@pytest.mark.parametrize(
    "content", [b"PK\x03\x04", b"PK\x03\x04" + b"\xff" * 99, b"\x08", b"\x00" * 8 + b"{"]
)
def test_a_damaged_file_does_not_end_the_look(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    kind_of(tmp_path / "file")


def test_other_errors_pass(tmp_path: Path) -> None:
    @says_what_it_is(FileKind.PLAN)
    def read(path: Path) -> None:
        raise KeyError(path)

    with pytest.raises(KeyError):
        read(tmp_path)
