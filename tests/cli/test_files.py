"""What is written never takes the place of what is read, nor of other output: every command, every pair."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from helpers import hand_net
from poet.cli.main import app
from typer.main import get_command
from typer.testing import CliRunner

from poet.errors import InputError
from poet.files import tensorfile
from poet.frontend.onnx.reader import data_files
from poet.runtime import Trainer
from poet.util.reading import check_apart, is_same_file

POET = Path(sys.executable).with_name("poet")
PRECIOUS = b"precious"


@dataclass(frozen=True)
class Row:
    """A command: its arguments with ``{name}`` for a path, and which of the paths it reads and writes."""

    arguments: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    may_be_one: tuple[tuple[str, str], ...] = ()


ROWS = {
    "check": Row("check {model} --json {json_file}", ("model",), ("json_file",)),
    "contributions": Row(
        "contributions {model} --data {data} --device {device} --names {names} -o {output}",
        ("model", "data", "device", "names"), ("output",),
    ),
    "devices calibrate": Row(
        "devices calibrate -o {output} --no-storage --phase 0.1s --time-limit 0.1s", (), ("output",)
    ),
    "devices fit": Row(
        "devices fit {measurements} --meter {meter} -o {output}", ("measurements", "meter"), ("output",)
    ),
    "devices profile": Row(
        "devices profile {model} --threads 1 -o {output}", ("model",), ("output",)
    ),
    "devices list": Row("devices list --json {json_file}", (), ("json_file",)),
    "devices parts": Row("devices parts --json {json_file}", (), ("json_file",)),
    "devices show": Row("devices show {device} --json {json_file}", ("device",), ("json_file",)),
    "devices schema": Row("devices schema --json {json_file}", (), ("json_file",)),
    "devices compare": Row(
        "devices compare {device} {other_device} --json {json_file}",
        ("device", "other_device"), ("json_file",),
    ),
    "devices ranges": Row(
        "devices ranges {plan_file} --device {device} --json {json_file}",
        ("plan_file", "device"), ("json_file",),
    ),
    "devices validate": Row("devices validate {file} --json {json_file}", ("file",), ("json_file",)),
    "diff": Row(
        "diff {before} {after} --html {html_file} --json {json_file}",
        ("before", "after"), ("html_file", "json_file"),
    ),
    "explain": Row(
        "explain {plan_file} --device {device} --html {html_file} --json {json_file}",
        ("plan_file", "device"), ("html_file", "json_file"),
    ),
    "export c": Row("export c {plan_file} -o {plan_file}.c", ("plan_file",), ()),
    "export graph": Row("export graph {plan_file} -o {output}", ("plan_file",), ("output",)),
    "export trace": Row("export trace {plan_file} -o {output}", ("plan_file",), ("output",)),
    "export onnx": Row(
        "export onnx {plan_file} --state {state} -o {output}", ("plan_file", "state"), ("output",)
    ),
    "export pt2": Row(
        "export pt2 {plan_file} --state {state} -o {output}", ("plan_file", "state"), ("output",)
    ),
    "export pte": Row(
        "export pte {plan_file} --state {state} -o {output}", ("plan_file", "state"), ("output",)
    ),
    "export state": Row(
        "export state {plan_file} --state {state} -o {output}", ("plan_file", "state"), ("output",)
    ),
    "fit": Row("fit {model} --device {device}", ("model", "device"), ()),
    "run": Row(
        "run {plan_file} --data {data} --page-file {page_file} --resume {resume} -o {output} "
        "--validate {validate} --best {best} --add-to {add_to} --c-library {c_library} --json {json_file}",
        ("plan_file", "data", "resume", "validate", "c_library"),
        ("page_file", "output", "best", "add_to", "json_file"),
        (("resume", "output"), ("resume", "best")),
    ),
    "solve": Row(
        "solve {model} --device {device} --names {names} --weights {weights} --choose {choose} --most "
        "--ram 1MiB -o {file} --json {json_file} --log {log}",
        ("model", "device", "names", "weights", "choose"), ("file", "json_file", "log"),
    ),
    "verify": Row(
        "verify {plan_file} --c-library {c_library} --data {data} --page-file {page_file} --json {json_file}",
        ("plan_file", "c_library", "data"), ("page_file", "json_file"),
    ),
    "what-if": Row(
        "what-if {model} --device rpi4b,{device} --measure-data {measure_data} --choose {choose} -o {output} "
        "--json {json_file} --log {log}",
        ("model", "device", "measure_data", "choose"), ("output", "json_file", "log"),
    ),
}  # fmt: skip
FOLDERS = {"cache", "folder", "storage"}
"""Of answers, each under a name of its own; one that must not be there; one on measured storage."""


def commands() -> Iterator[tuple[str, Any]]:
    """Every command's function by the words that call it."""
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        for word, item in inner.items() if inner else [("", command)]:
            yield f"{name} {word}".strip(), item.callback


def test_the_table_has_every_path_of_every_command() -> None:
    """`device` and `other_device` are text that may name a file."""
    found = {}
    for name, function in commands():
        kinds = get_type_hints(inspect.unwrap(function))
        paths = {
            name
            for name, kind in kinds.items()
            if Path in (kind, *get_args(kind)) or name in ("device", "other_device")
        }
        found[name] = paths - FOLDERS
    assert found == {name: {*row.reads, *row.writes} for name, row in ROWS.items()}


PAIRS = [
    (command, one, other)
    for command, row in ROWS.items()
    for one, other in [
        *((read, write) for read in row.reads for write in row.writes),
        *combinations(row.writes, 2),
    ]
    if (one, other) not in row.may_be_one
]
HOW = ("one path", "a link", "a hard link")


def paths_of(command: str, folder: Path) -> dict[str, Path]:
    """A path for each; those that are read are there."""
    row = ROWS[command]
    paths = {name: folder / f"{name}.json" for name in (*row.reads, *row.writes)}
    for name in row.reads:
        paths[name].write_bytes(PRECIOUS)
    return paths


def result_of(command: str, paths: dict[str, Path]) -> tuple[int, str]:
    result = CliRunner().invoke(app, ROWS[command].arguments.format(**paths).split())
    return result.exit_code, result.stderr


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(("command", "one", "other"), PAIRS)
def test_a_file_that_is_read_or_written_twice_is_refused(
    command: str, one: str, other: str, how: str, tmp_path: Path
) -> None:
    paths = paths_of(command, tmp_path)
    if how == "one path":
        paths[other] = paths[one]
    elif how == "a link":  # to a file that may not be there yet
        paths[other].symlink_to(paths[one])
    else:
        paths[one].write_bytes(PRECIOUS)
        paths[other].hardlink_to(paths[one])
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.exists()}
    code, said = result_of(command, paths)
    assert code == 2
    assert said.count("\n") == 1
    assert "would overwrite" in said or "name the same file" in said
    assert paths[other].name in said
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.exists()} == before


@pytest.mark.parametrize("command", ROWS)
def test_files_of_their_own_are_let_through(command: str, tmp_path: Path) -> None:
    paths = paths_of(command, tmp_path)
    said = result_of(command, paths)[1]
    assert "would overwrite" not in said
    assert "name the same file" not in said


def test_a_run_may_go_on_into_the_state_that_it_resumes(tmp_path: Path) -> None:
    paths = paths_of("run", tmp_path)
    paths["output"] = paths["resume"]
    assert "would overwrite" not in result_of("run", paths)[1]
    assert paths["resume"].read_bytes() == PRECIOUS


@pytest.mark.parametrize("command", ROWS)
def test_a_file_never_takes_the_place_of_a_device_or_a_pipe(command: str, tmp_path: Path) -> None:
    for write in ROWS[command].writes:
        if write == "page_file":
            continue  # the trainer's to say; see test_page_file.py
        folder = tmp_path / write
        folder.mkdir()
        paths = paths_of(command, folder)
        os.mkfifo(paths[write])
        code, said = result_of(command, paths)
        assert (code, said.count("\n")) == (2, 1)
        assert "cannot be written" in said
        assert paths[write].is_fifo()


def test_what_stdout_is_led_to_is_no_input(tmp_path: Path) -> None:
    plan = tmp_path / "plan.poet"
    hand_net.write(plan)
    before = plan.read_bytes()
    with plan.open("ab") as appended:
        done = subprocess.run(
            [POET, "diff", plan, plan], stdout=appended, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert "stdout would overwrite" in done.stderr
    assert plan.read_bytes() == before


def test_one_log_for_stdout_and_stderr_is_fine(tmp_path: Path) -> None:
    plan, log = tmp_path / "plan.poet", tmp_path / "log"
    hand_net.write(plan)
    with log.open("wb") as both:
        subprocess.run([POET, "diff", plan, plan], stdout=both, stderr=subprocess.STDOUT, check=True)
    assert b"Both plans take the same" in log.read_bytes()


# --- in Python --------------------------------------------------------------------------------


def test_a_trainer_never_writes_over_what_it_came_from(tmp_path: Path) -> None:
    plan, state, pages = tmp_path / "plan.poet", tmp_path / "state", tmp_path / "pages"
    hand_net.write(plan, parameters_in_storage=True)
    with Trainer.open(plan, page_file=pages) as trainer:
        trainer.save(state)
        for path, name in ((plan, "the plan"), (pages, "the page file")):
            with pytest.raises(InputError, match=f"the saved state would overwrite {name}"):
                trainer.save(path)
        before = {path: path.read_bytes() for path in (plan, state)}
        for path, name in ((plan, "the plan"), (state, "resume")):
            with pytest.raises(InputError, match=f"page_file would overwrite {name}"):
                Trainer.open(plan, page_file=path, resume=state)
        assert {path: path.read_bytes() for path in (plan, state)} == before


def test_a_page_file_that_was_replaced_is_not_removed(tmp_path: Path) -> None:
    plan, pages = tmp_path / "plan.poet", tmp_path / "pages"
    hand_net.write(plan, parameters_in_storage=True)
    with Trainer.open(plan, page_file=pages) as trainer:
        trainer.step(*hand_net.batch(0))
        (tmp_path / "other").write_bytes(PRECIOUS)
        (tmp_path / "other").replace(pages)
        trainer.step(*hand_net.batch(1))
    assert pages.read_bytes() == PRECIOUS


def test_a_saved_file_never_takes_the_place_of_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe"):
        tensorfile.write(tmp_path / "pipe", {}, {})
    assert (tmp_path / "pipe").is_fifo()


def test_weights_beside_a_model_are_part_of_it(tmp_path: Path) -> None:
    """An output that is such a file is refused by every command that takes a model."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights = numpy_helper.from_array(np.ones((64, 64), dtype=np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 64])], [weights],
    )  # fmt: skip
    model, data, other = tmp_path / "m.onnx", tmp_path / "m.json", tmp_path / "w"
    opset = [helper.make_opsetid("", 18)]
    onnx.save_model(
        helper.make_model(graph, opset_imports=opset), model,
        save_as_external_data=True, location=data.name, size_threshold=0,
    )  # fmt: skip
    other.write_bytes(b"a name that stands in the file, but not of its weights")
    before = data.read_bytes()
    assert data_files(model, [other, data]) == [data]
    for command in ("check", "solve", "what-if"):
        folder = tmp_path / command
        folder.mkdir()
        paths = {**paths_of(command, folder), "model": model, "json_file": data}
        code, said = result_of(command, paths)
        assert code == 2
        assert "--json would overwrite the weights of MODEL" in said
        assert data.read_bytes() == before


def test_folders_reached_by_links_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert is_same_file(tmp_path / "real" / "new", tmp_path / "link" / ".." / "real" / "new")
    assert not is_same_file(tmp_path / "real" / "new", tmp_path / "link" / "other")
    with pytest.raises(InputError, match=r"one and two .* name the same file"):
        check_apart({"one": tmp_path / "real" / "new", "two": tmp_path / "link" / "new"})
