"""What files call their parts steers no terminal, begins no line and turns no words around."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.mutators import joined_plan
from onnx import TensorProto, helper, numpy_helper
from poet.cli import output
from poet.cli.main import app
from poet.cli.output import PlainConsole
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

import poet
from poet.errors import InputError, spelled_out
from poet.problem.solution import SAYS_FILE
from poet.report.html import _chart_library

ROOT = Path(poet.__file__).parents[1]
STRANGE = "\n\x1b[2Kproven optimal\u202e\u2028\x9b1m\u200f\t[bold]</script>*/'\"\\:smile:\x7f"
STEERS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
FORGED = re.compile(r"^\W*proven optimal", re.MULTILINE)

Holder = tuple[Any, Any]
"""An object or list of JSON, and a key or an index."""


def check(text: str) -> None:
    """Nothing in it is what a name made of it."""
    found = STEERS.search(text) or FORGED.search(text)
    assert found is None, text[max(0, found.start() - 200) : found.end() + 50]


def ran(*arguments: str | Path, ends: tuple[int, ...] = (0,)) -> str:
    """What a command writes to both streams; it ends with one of these codes."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code in ends, result.output
    check(result.stdout)
    check(result.stderr)
    if result.exit_code:
        assert result.stderr.count("\n") == 1, result.stderr
    return result.stdout


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long names are folded in narrow reports, where a line may begin anywhere in them."""
    monkeypatch.setattr(output, "REPORT_COLUMNS", 20_000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, a device, a problem, data, and the model's plan for the device, all full of strange names."""
    folder = tmp_path_factory.mktemp("strange")
    onnx.save(_model(), folder / "net.onnx")
    (folder / "board.toml").write_text(_profile())
    (folder / "problem.json").write_text(json.dumps(_problem()))
    rng = np.random.default_rng(0)
    np.savez(
        folder / "data.npz",
        inputs=rng.standard_normal((8, 6), dtype=np.float32),
        targets=rng.integers(0, 3, 8),
    )
    ran("solve", folder / "net.onnx", *_asked(folder), "--ram", "10KiB", "-o", folder / "made.poet")
    content = (folder / "made.poet").read_bytes()
    plan = _plan(content)
    for holder, key in _told_of(plan):
        holder[key] += STRANGE
    (folder / "plan.poet").write_bytes(joined_plan(content, plan))
    return folder


def _asked(folder: Path) -> tuple[str | Path, ...]:
    return "--device", folder / "board.toml", "--time-limit", "1s", "--no-kept-plans"


def _model() -> onnx.ModelProto:
    rng = np.random.default_rng(0)

    def named(name: str) -> str:
        return f"{name}{STRANGE}"

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        tensor = numpy_helper.from_array(rng.standard_normal(shape, dtype=np.float32), named(name))
        tensor.doc_string = STRANGE
        return tensor

    x, h, r, y = map(named, "xhry")
    nodes = [
        helper.make_node("Gemm", [x, named("v")], [h], name=named("first"), transB=1, doc_string=STRANGE),
        helper.make_node("Relu", [h], [r], name=named("relu")),
        helper.make_node("Gemm", [r, named("w")], [y], name=named("last"), transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        named("net"),
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, [4, 6], doc_string=STRANGE)],
        [helper.make_tensor_value_info(y, TensorProto.FLOAT, [4, 3])],
        [weight("v", 8, 6), weight("w", 3, 8)],
        doc_string=STRANGE,
    )
    model = helper.make_model(
        graph, producer_name=STRANGE, producer_version=STRANGE, domain=STRANGE, doc_string=STRANGE,
        opset_imports=[helper.make_opsetid("", 17)], ir_version=8,
    )  # fmt: skip
    model.metadata_props.add(key=named("key"), value=STRANGE)
    return model


def _profile() -> str:
    """A board's profile; each text of a line that may be any text ends strangely."""
    told = re.compile(r'^((?:title|rail|speeds_of|source|locator|note|notes) = )"([^"\n]*)"$', re.MULTILINE)
    strange = json.dumps(STRANGE)[1:-1].replace("\x7f", "\\u007f")
    text = (ROOT / "hardware_profiles" / "stm32h743.toml").read_text()
    return told.sub(lambda found: f'{found[1]}"{found[2]}{strange}"', text)


def _problem() -> dict[str, Any]:
    names = [f"{name}{STRANGE}" for name in "abcd"]
    moved = {"seconds": 0.5, "joules": 0.25}
    ops = [
        {"name": f"f{at}{STRANGE}", "inputs": [x], "outputs": [y], "seconds": 1, "joules": 1}
        for at, (x, y) in enumerate(itertools.pairwise(names))
    ]  # fmt: skip
    tensors = [
        {"name": name, "bytes": 64, "page_in": moved, "page_out": moved, "role": STRANGE} for name in names
    ]
    return {
        "format": "poet-problem", "version": 1, "name": STRANGE, "source": STRANGE, "kernels": STRANGE,
        "tensors": tensors, "ops": ops,
    }  # fmt: skip


def _plan(content: bytes) -> Any:
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return json.loads(header["__metadata__"]["poet.plan"])


def _told_of(plan: Any) -> list[Holder]:
    """Texts of a plan that are for people alone."""
    places = [(plan["model"], "name"), (plan["problem"], "name"), (plan["graph"], "name")]
    places += [(plan["device"], "name"), (plan["device"], "title")]
    places += [(plan["outcome"], key) for key in ("solver", "bound_scope", "proof")] + [
        (plan, "poet_version")
    ]
    record = plan["outcome"]["record"]
    return places + [(item, "by") for item in record["plans"]] + [(item, "name") for item in record["phases"]]


def _texts(tree: Any, path: str = "") -> Iterator[tuple[str, Holder]]:
    """Every text in JSON, and the kind of its place."""
    for key, item in tree.items() if isinstance(tree, dict) else enumerate(tree):
        here = f"{path}.{key}" if isinstance(tree, dict) else f"{path}[]"
        if isinstance(item, str):
            yield here, (tree, key)
        elif isinstance(item, dict | list):
            yield from _texts(item, here)


# --- commands ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        "explain plan.poet --tensors --ops",
        "explain plan.poet --json -",
        "diff plan.poet made.poet --tensors",
        "diff made.poet plan.poet --json -",
        "export graph plan.poet",
        "export trace plan.poet",
        "check net.onnx",
        "check net.onnx --json -",
        "devices show board.toml",
        "devices show board.toml --json -",
        "devices validate board.toml",
        "solve problem.json --ram 128B --no-kept-plans",
        "solve problem.json --ram 128B --no-kept-plans -v --compare",
        "solve problem.json --no-kept-plans --json -",
        "verify plan.poet --steps 1 --threads 1",
        "run plan.poet --data data.npz --epochs 1",
    ],
)
def test_no_stream_is_steered(folder: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    monkeypatch.chdir(folder)
    assert "proven optimal" in ran(*words.split()) or words.startswith(("verify", "run", "devices validate"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "explain plan.poet --html {}/page.html",
        "explain made.poet --device board.toml --html {}/page.html",
        "diff plan.poet made.poet --html {}/page.html",
        "export graph plan.poet -o {}/graph.txt",
        "export trace plan.poet -o {}/trace.json",
        "export c plan.poet -o {}/step",
        "solve problem.json --ram 128B --no-kept-plans --log {}/log --json {}/answer.json",
        "solve net.onnx --device board.toml --time-limit 1s --no-kept-plans --log {}/log",
        "what-if problem.json --ram 128B,256B --engine auto -o {}/page.html",
        "what-if problem.json --ram 128B,256B --engine auto -o {}/page.csv",
        "what-if net.onnx --device board.toml --ram 1KiB,10KiB --log {}/log -o {}/page.html",
        "what-if net.onnx --device board.toml --ram 1KiB,10KiB --json {}/answer.json -o {}/page.csv",
    ],
)
def test_no_file_of_text_is_steered(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ran(*words.format(tmp_path, tmp_path).split())
    written = [path for path in tmp_path.rglob("*") if path.is_file() and "cache" not in path.parts]
    assert written
    for path in written:
        check(path.read_text().replace(_chart_library(), "").replace("\n\t", "\n"))  # of a Makefile


def test_no_text_of_a_plan_is_steered(folder: Path, tmp_path: Path) -> None:
    """One kind of place after the other; most are refused, as another place names the same thing."""
    content = (folder / "made.poet").read_bytes()
    kinds = sorted({kind for kind, _ in _texts(_plan(content))})
    used = []
    for kind in random.Random(0).sample(kinds, 12):
        plan = _plan(content)
        holder, key = next(place for found, place in _texts(plan) if found == kind)
        holder[key] += STRANGE
        (tmp_path / "plan.poet").write_bytes(joined_plan(content, plan))
        used.append(bool(ran("explain", tmp_path / "plan.poet", "--tensors", ends=(0, 2))))
    assert len(kinds) > 40
    assert {*used} == {True, False}


# --- whose word it is -------------------------------------------------------------------------


def test_what_a_plan_says_of_its_search_is_the_files_word(folder: Path, tmp_path: Path) -> None:
    content = (folder / "made.poet").read_bytes()
    plan = _plan(content)
    plan["outcome"] |= {
        "status": "optimal", "proof": "proven in exact arithmetic", "solver": "nobody", "solve_seconds": 1.0,
        "gap": 0.0, "overhead_gap": 0.0, "bound_joules": plan["prediction"]["joules"],
    }  # fmt: skip
    forged, page = tmp_path / "forged.poet", tmp_path / "page.html"
    forged.write_bytes(joined_plan(content, plan))
    claims = re.compile(r"\b(optimal|proven|nobody|bound|no valid plan|gap)\b", re.IGNORECASE)
    told = ran("explain", forged).splitlines()
    claimed = [line for line in told if claims.search(line.replace(spelled_out(STRANGE), ""))]
    assert len(claimed) >= 4
    assert [line for line in claimed if SAYS_FILE not in line.lower()] == []
    assert json.loads(ran("explain", forged, "--json", "-"))["says"] == SAYS_FILE.partition(":")[0]
    told = ran("diff", forged, folder / "plan.poet").splitlines()
    claimed = [line for line in told if re.match("proof|solver|.*bound", line)]
    assert len(claimed) >= 3
    assert all(SAYS_FILE in line for line in claimed)
    ran("explain", forged, "--html", page)
    text = page.read_text().replace(_chart_library(), "")
    for words in ("optimal</span>", "The plan is optimal", "none: proven in exact", "nobody", "The best"):
        found = [match.start() for match in re.finditer(re.escape(words), text)]
        assert found
        assert all(text[at - len(SAYS_FILE) : at].lower().endswith(SAYS_FILE) for at in found), words


# --- the one place ----------------------------------------------------------------------------


def test_text_goes_out_in_one_place() -> None:
    """Names are spelled out by ``say``, ``show`` and ``write_json``; children's protocols are JSON."""
    writes = re.compile(r"(?<![\w.])print\(|\becho\(|\bstd(out|err)\.write")
    files = [*(ROOT / "poet").rglob("*.py"), *(ROOT / "cli").glob("*.py")]
    found = {path.relative_to(ROOT).as_posix() for path in files if writes.search(path.read_text())}
    assert found == {
        "poet/util/streams.py", "cli/output.py", "poet/runtime/runs/confined.py",
        "cli/options.py",  # the help
        "poet/whatif/run.py",  # in a docstring
        "poet/calibration/command.py",  # a question
    }  # fmt: skip


def test_what_prints_stays_and_the_rest_is_spelled_out() -> None:
    assert spelled_out("µs │ 日本 é") == "µs │ 日本 é"
    assert spelled_out("a\tb\n", keep="\n") == "a\\tb\n"
    assert not STEERS.search(spelled_out("".join(map(chr, range(0x3000)))))
    assert str(InputError("two\nlines\x1b")) == "two lines\\x1b"


def test_a_terminal_gets_no_markup_out_of_names(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(box=None)
    table.add_column(f"head{STRANGE}")
    table.add_row(f"cell{STRANGE}")
    table.add_row(Text(f"text{STRANGE}"))
    PlainConsole(force_terminal=True, width=200, no_color=True).print(table)
    text = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    check(text)
    assert text.count("[bold]</script>*/") == text.count(":smile:") == 3
