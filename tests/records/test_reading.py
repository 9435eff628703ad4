"""Files and JSON from strangers: what is no file, endless, too deep or too large ends in one line at once."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import hand_net, strange
from poet.cli.main import app

from poet.devices.costs import estimate
from poet.devices.load import MAX_DOTS, load_profile
from poet.errors import GraphError, InputError, PlanError, PoetError, ProblemError, ProfileError
from poet.files.tensorfile import TensorFile
from poet.frontend.onnx.importer import load_onnx_structure
from poet.frontend.onnx.reader import read_onnx
from poet.ir.graph import Argument, Blank, Call, TensorType
from poet.plans.plan_file import PlanFile, read_plan
from poet.problem import Problem
from poet.runtime.runs.fit import load_samples
from poet.runtime.storage.state import Saved
from poet.util.reading import MOST_ITEMS, open_regular, parse_json, read_own, read_regular
from poet.whatif.models import _digest
from poet.whatif.usage import measure_data

INSTANCE = Path(__file__).parents[1] / "instances" / "linear.m4.json"


# --- what is no file --------------------------------------------------------------------------


def _resumed(path: Path, plan: Path) -> None:
    with PlanFile(plan) as file, Saved(path, file):
        pass


READERS: dict[str, Callable[[Path, Path], object]] = {
    "problem.json": lambda path, plan: Problem.load(path),
    "plan.poet": lambda path, plan: PlanFile(path),
    "state.safetensors": lambda path, plan: _resumed(path, plan),
    "device.toml": lambda path, plan: load_profile(path),
    "model.onnx": lambda path, plan: read_onnx(path),
    "model of a sweep.onnx": lambda path, plan: _digest(path),
    "data.npz": lambda path, plan: load_samples(path, read_plan(plan)),
    "data.safetensors": lambda path, plan: load_samples(path, read_plan(plan)),
    "measured.npz": lambda path, plan: measure_data(path.parent),
}


@pytest.mark.timeout(60)  # a reader that waits for a writer waits for ever
@pytest.mark.parametrize("name", READERS)
def test_a_pipe_is_refused_at_once(name: str, tmp_path: Path) -> None:
    hand_net.write(tmp_path / "net.poet")
    path = tmp_path / "folder" / name
    path.parent.mkdir()
    os.mkfifo(path)
    with pytest.raises(InputError, match="it is a pipe, not a file"):
        READERS[name](path, tmp_path / "net.poet")


@pytest.mark.parametrize(("path", "kind"), [("/dev/zero", "a device"), (".", "a folder"), ("a\0b", "null")])
def test_only_files_are_opened(path: str, kind: str) -> None:
    with pytest.raises(OSError, match=kind):
        open_regular(path)


def test_a_file_is_read_up_to_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_regular(path, most_bytes=5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_regular(path, most_bytes=4)
    path.chmod(0o620)
    with pytest.raises(OSError, match="others may write"):
        read_own(path, most_bytes=5)


# --- JSON -------------------------------------------------------------------------------------

DEEP = "[" * 100_000
LARGE = "9" * 400


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (DEEP, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("9" * 5000, "digits"),
        ("1e400", "too large"),
        ("NaN", "NaN is not a number"),
        ("[Infinity]", "Infinity is not a number"),
        ('"\\ud800"', "not valid Unicode"),
        ('{"\\udfff": 1}', "not valid Unicode"),
        ("[" + "[]," * MOST_ITEMS + "[]]", "items"),
        ('{"a": 1, "a": 2}', "stands twice"),
        (b"\xff", "utf-8"),
    ],
)
def test_strange_json_is_a_value_error(text: str | bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_json(text, unique=True)


def test_pairs_of_surrogates_are_text() -> None:
    assert parse_json('"\\ud83d\\ude00"') == "\U0001f600"


# --- planning problems and profiles -----------------------------------------------------------


def _problem(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    data = json.loads(INSTANCE.read_text())
    change(data)
    path.write_text(json.dumps(data))
    return path


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda data: data["tensors"][0].update(bytes=10**400), "64 bits"),
        (lambda data: data["ops"][0].update(seconds=10**400), "finite number"),
        (lambda data: data["ops"][0].update(joules=1e308), "at most 1e\\+30"),
        (lambda data: data.update(idle_watts=1e308), "at most 1e\\+30"),
        (lambda data: data.update(ops=[]), "it has no ops, so there is nothing to plan"),
        (lambda data: data.update(name="a\ud800"), "not valid Unicode"),
        (lambda data: data["ops"][0].update(name="\udfff"), "not valid Unicode"),
        (lambda data: data.update(version=[[[10**300]]]), "version"),
    ],
)
@pytest.mark.parametrize("command", [["solve"], ["solve", "--ram", "64KiB"], ["what-if", "--jobs", "1"]])
def test_a_hostile_problem_is_one_line(
    change: Callable[[dict[str, Any]], object],
    why: str,
    command: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = _problem(tmp_path / "problem.json", change)
    code = app([*command, str(path)], standalone_mode=False)
    error = capsys.readouterr().err
    assert code == 2
    assert re.search(why, error)
    assert "internal error" not in error
    assert error.count("\n") == 1


def test_a_problem_with_the_largest_costs_gives_finite_sums() -> None:
    data = json.loads(INSTANCE.read_text())
    data["idle_watts"] = 1e30
    for op in data["ops"]:
        op.update(seconds=1e30, joules=1e30)
    problem = Problem.from_json(data)
    assert problem.compute_joules < float("inf")
    data["ops"][0]["seconds"] = 1.1e30
    with pytest.raises(ProblemError, match="finite"):
        Problem.from_json(data)


@pytest.mark.parametrize(
    ("figure", "value"), [("idle_watts", "1e308"), ("ram_bytes", "9" * 400), ("ram_bytes", "9" * 5000)]
)
def test_a_profile_with_endless_numbers_is_one_line(figure: str, value: str, tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "hardware_profiles" / "rpi4b-xnnpack.toml"
    text = source.read_text().replace('name = "rpi4b-xnnpack"', 'name = "mine"')
    here = rf"(\[[a-z.]*{figure}\]\s*\nvalue = )[0-9._e]+"
    text, count = re.subn(here, rf"\g<1>{value}", text)
    assert count == 1
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(ProfileError, match=f"{figure}|not a TOML file") as raised:
        load_profile(tmp_path / "mine.toml")
    assert "\n" not in str(raised.value)


# --- options ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["--ram", "9" * 400],
        ["--ram", "1e400"],
        ["--ram", "1e30"],
        ["--ram", "64KiB", "--threads", "9" * 30],
        ["--ram", "64KiB", "--time-limit", "1e400s"],
        ["--ram", "64KiB", "--energy-budget", "9" * 400 + "J"],
        ["--ram", "64KiB", "--deadline", "9" * 400 + "x"],
        ["--ram", "64KiB", "--storage", "9" * 400],
        ["--trade-off", "ram,energy", "--points", "9" * 30],
    ],
)
def test_options_of_any_size_are_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert app(["solve", str(INSTANCE), *arguments], standalone_mode=False) == 2
    assert "internal error" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--batch", "9" * 400],
        ["--batch", "9" * 5000],
        ["--bind", f"N={LARGE}"],
        ["--ram", f"min..keep:{'9' * 5000}"],
        ["--samples", LARGE],
        ["--steps-per-session", LARGE],
        ["--jobs", "9" * 30],
        ["--battery", f"{LARGE}Wh"],
    ],
)
def test_options_of_a_sweep_of_any_size_are_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert app(["what-if", str(INSTANCE), *arguments], standalone_mode=False) == 2
    assert "internal error" not in capsys.readouterr().err


# --- profiles ---------------------------------------------------------------------------------


@pytest.mark.timeout(20)  # with the bounds lifted each takes minutes
@pytest.mark.parametrize(
    "line",
    ["{} = 1", "[{}]", "x = {{ {} = 1 }}", "x = [{{ y = {{ {} = 1 }} }}]"],
    ids=["key", "table", "inline", "deep"],
)
def test_the_parts_of_a_profiles_key_are_counted_before_it_is_read(line: str, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(line.format(".".join(["a"] * 100_000)))
    with pytest.raises(PoetError, match="more than 32 dots"):
        load_profile(tmp_path / "x.toml")


def test_a_profile_of_many_long_keys_is_read_in_time(tmp_path: Path) -> None:
    keys = (".".join(["a"] * MAX_DOTS + [f"k{number}"]) for number in range(3000))
    (tmp_path / "x.toml").write_text("".join(f"{key} = 1\n" for key in keys))
    with pytest.raises(PoetError, match="'a' is not a field of a profile"):
        load_profile(tmp_path / "x.toml")


# --- safetensors ------------------------------------------------------------------------------


def _tensors(path: Path, header: str, data: bytes = b"") -> Path:
    path.write_bytes(len(header.encode()).to_bytes(8, "little") + header.encode() + data)
    return path


@pytest.mark.timeout(60)  # the product of 100,000 such numbers takes minutes
@pytest.mark.parametrize(
    ("shape", "why"),
    [
        (f"[{','.join(['9' * 19] * 100_000)}]", "not a list of whole numbers"),
        (f"[{','.join([str(2**63 - 1)] * 100_000)}]", "100000 dimensions"),
        (f"[{','.join([str(2**63 - 1)] * 64)}]", "another size than its shape says"),
        (f"[{'9' * 4000}]", "not a list of whole numbers"),
        (DEEP, "nested too deeply"),
    ],
)
def test_a_shape_is_bounded_before_it_is_multiplied(shape: str, why: str, tmp_path: Path) -> None:
    header = f'{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":[0,4]}}}}'
    with pytest.raises(InputError, match=why):
        TensorFile(_tensors(tmp_path / "x.safetensors", header, bytes(4)))


def test_a_header_is_bounded(tmp_path: Path) -> None:
    path = _tensors(tmp_path / "x.safetensors", "{" + " " * (1 << 26) + "}")
    with pytest.raises(InputError, match="at most 67108864 are read"):
        TensorFile(path)


def test_a_header_of_empty_lists_takes_no_memory_to_refuse(tmp_path: Path) -> None:
    """One of 60 MiB took 2 GiB; the process that refuses it may have 300 MiB more than it begins with."""
    path = _tensors(tmp_path / "x.safetensors", '{"a":[' + "[]," * 20_000_000 + "[]]}")
    code = f"""
import resource
from pathlib import Path
from poet.files.tensorfile import TensorFile
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + (300 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    TensorFile(Path({str(path)!r}))
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("InputError")
    assert "items" in done.stdout


# --- ONNX structures --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", [DEEP, "1e400", '{"N": Infinity}', '{"N": 1e300}', "[1]", f'{{"N": {LARGE}}}']
)
@pytest.mark.parametrize("key", ["poet.bind", "poet.training", "poet.trainable"])
def test_a_structures_notes_are_refused(key: str, text: str, tmp_path: Path) -> None:
    import onnx
    from helpers.onnx_tools import zoo_export

    from poet.frontend.onnx.importer import strip_weights

    structure = onnx.ModelProto.FromString(strip_weights(zoo_export("lstm", "legacy", True), bind={"N": 2}))
    entry = next(entry for entry in structure.metadata_props if entry.key == key)
    entry.value = text
    with pytest.raises(PoetError, match="damaged"):
        load_onnx_structure(structure.SerializeToString())


# --- npz --------------------------------------------------------------------------------------


def _npz(path: Path, header: bytes, *, version: int = 1) -> Path:
    import zipfile

    with zipfile.ZipFile(path, "w") as archive:
        size = len(header).to_bytes(2 if version == 1 else 4, "little")
        archive.writestr("x.npy", b"\x93NUMPY" + bytes([version, 0]) + size + header + bytes(64))
    return path


HEADERS = {
    "never closed": b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,",
    "nested": b"(" * 5000,
    "of objects": b"{'descr': '|O', 'fortran_order': False, 'shape': (2,), }",
    "endless": b"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 8), }",
    "of a size of 400 digits": b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"9" * 400 + b",), }",
    "of 5000 dimensions": b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"1," * 5000 + b"), }",
    "of nothing": b"{'descr': '|V0', 'fortran_order': False, 'shape': (9,), }",
    "of code": b"__import__('os').system('true')",
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_damaged_npz_header_is_one_line(name: str, tmp_path: Path) -> None:
    hand_net.write(tmp_path / "net.poet")
    path = _npz(tmp_path / "d.npz", HEADERS[name], version=2)
    for use in (lambda: load_samples(path, read_plan(tmp_path / "net.poet")), lambda: measure_data(path)):
        with pytest.raises(InputError, match=r"not a readable \.npz file") as raised:
            use()
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("offset", "value", "why"),
    [(8, 1, "is encrypted"), (10, 93, "packed by method 93"), (10, 12, "packed by method 12"),
     (24, 1000, "takes 16000 bytes, it has 1000|CRC"), (16, 1, "CRC")],
)  # fmt: skip
def test_zips_that_numpy_cannot_unpack_are_refused(offset: int, value: int, why: str, tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    np.savez(path, x=np.zeros(4000, np.float32))
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\x01\x02") + offset
    size = 4 if offset >= 16 else 2
    data[at : at + size] = value.to_bytes(size, "little")
    path.write_bytes(data)
    with pytest.raises(InputError, match=why):
        measure_data(path)


def test_what_unpacks_to_more_than_the_machine_holds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "d.npz", x=np.zeros(4000, np.float32))
    monkeypatch.setattr("poet.files.arrays.MEMORY_SHARE", 1e-9)
    with pytest.raises(InputError, match=r"it unpacks to 15\.75 KiB, this machine has room for"):
        measure_data(tmp_path / "d.npz")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f8", "<i8", "?", "<f2"])
def test_arrays_are_read_as_numpy_reads_them(dtype: str, order: Any, tmp_path: Path) -> None:
    from poet.files.arrays import read_npy, read_npz

    array = np.asarray(np.arange(24).reshape(2, 3, 4), dtype=dtype, order=order)
    for save, name in ((np.savez, "a.npz"), (np.savez_compressed, "b.npz")):
        save(tmp_path / name, x=array, none=np.zeros((0, 3)), one=np.float32(7))
        found = read_npz(tmp_path / name)
        assert found.keys() == {"x", "none", "one"}
        assert found["x"].dtype == array.dtype
        assert np.array_equal(found["x"], array)
        assert found["none"].shape == (0, 3)
        assert found["one"] == 7
    np.save(tmp_path / "c.npy", array)
    assert np.array_equal(read_npy(tmp_path / "c.npy"), array)


# --- plans ------------------------------------------------------------------------------------


def test_a_loss_of_many_elements_is_refused_when_the_plan_is_opened(tmp_path: Path) -> None:
    hand_net.write(tmp_path / "net.poet")
    plan = read_plan(tmp_path / "net.poet")
    with pytest.raises(PlanError, match="a step minimises a single number"):
        replace(plan, graph=replace(plan.graph, loss=plan.graph.predictions[0]))


def test_a_bound_above_the_plans_own_joules_is_refused(tmp_path: Path) -> None:
    hand_net.write(tmp_path / "net.poet")
    plan = read_plan(tmp_path / "net.poet")
    with pytest.raises(PlanError, match=r"is above the .* J of its own schedule"):
        replace(plan, outcome=replace(plan.outcome, bound_joules=1e20, status="optimal"))


# --- the mutators reach what they are for -----------------------------------------------------


def test_strange_text_is_deterministic_and_of_many_kinds() -> None:
    text = INSTANCE.read_text()
    made = [strange.strange_text(text, random.Random(number)) for number in range(200)]
    assert made == [strange.strange_text(text, random.Random(number)) for number in range(200)]
    assert any("[" * 1000 in each for each in made)
    assert any("9" * 400 in each for each in made)
    assert any("\\ud800" in each for each in made)


def test_a_file_name_that_is_no_text_becomes_a_name(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its bytes come as half pairs of surrogates, which neither JSON nor a terminal takes."""
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/probl\xffem.json"))
    path.write_text(INSTANCE.read_text())
    output = tmp_path / "points.json"
    arguments = ["what-if", str(path), "--ram", "keep", "--no-marginal", "--jobs", "1"]
    arguments += ["--cache", str(tmp_path / "cache"), "-o", str(output)]
    assert app(arguments, standalone_mode=False) in (0, None), capfd.readouterr().err
    assert json.loads(output.read_text())["question"]["model"] == "probl?em"


STRANGE_CALLS: dict[str, tuple[str, tuple[Argument, ...]]] = {
    "no dimensions": ("aten.mm.default", (Blank(TensorType("float32", (), ())),) * 2),
    "windows of any size": (
        "aten.max_pool2d_with_indices.default",
        (Blank(TensorType("float32", (1,) * 64, (1,) * 64)), (2**62,)),
    ),
}


@pytest.mark.parametrize("what", STRANGE_CALLS)
def test_arguments_that_no_exporter_writes_have_no_cost(what: str) -> None:
    """The cost rules read arguments as exporters write them; those of a stranger's plan may be others."""
    graph = hand_net.graph()
    call = Call(*STRANGE_CALLS[what])
    graph = replace(graph, ops=(replace(graph.ops[0], call=call, repeat_call=None), *graph.ops[1:]))
    with pytest.raises(GraphError, match=f"its arguments are not those of {call.target}"):
        estimate(graph, load_profile("rpi4b"))
