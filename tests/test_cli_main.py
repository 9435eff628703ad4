"""The command line as such: help, exit codes, one line per error, whole files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from poet.cli import output
from poet.cli.main import _outcome, app
from typer.testing import CliRunner

from poet.errors import InputError, PoetError

COMMANDS = ("check", "solve", "explain", "diff", "run", "verify", "devices", "export")


def invoke(*arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command line."""
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def test_without_arguments_it_helps() -> None:
    assert invoke() == invoke("--help")
    code, out, err = invoke("--help")
    assert (code, err) == (0, "")
    for command in COMMANDS:
        assert re.search(rf"^  {command} ", out, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_examples_that_parse(command: str) -> None:
    code, out, _ = invoke(command, "--help")
    assert code == 0
    shown = [line.strip() for line in out.partition("Examples:")[2].splitlines() if line.strip()]
    assert shown
    for line in shown:
        options = set(re.findall(r"(?<= )(-[a-z]|--[a-z-]+)(?= |$)", line))
        words = line.split()
        assert words[:2] == ["poet", command]
        helped = invoke(command, *([words[2]] if command in ("devices", "export") else []), "--help")[1]
        for option in options:
            assert re.search(rf"{option}\b", helped), f"{line}: {option}"


def test_the_version() -> None:
    assert invoke("--version") == (0, "poet 0.1.0\n", "")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("sovle",), "poet: No such command 'sovle'. Did you mean 'solve'?"),
        (("solve",), "poet: Missing argument 'MODEL'."),
        (("solve", "m.onnx", "--rma", "1"),
         "poet: No such option: --rma (Possible options: --lr, --ram, --train)"),
        (("solve", "m.onnx"), "poet: a model needs --device; `poet devices list` shows the names, "
                              "e.g. --device rpi4b"),
        (("solve", "p.json", "--device", "rpi4b"),
         "poet: --device is for a model; p.json is a planning problem"),
        (("solve", "m.onnx", "--device", "rpi4b", "-o", "p.poet"),
         "poet: a plan (-o) needs --ram; without it poet only surveys budgets"),
        (("solve", "m.onnx", "--device", "rpi4b", "--bind", "N"),
         "poet: --bind 'N' is not NAME=SIZE; write for example --bind N=8"),
        (("solve", "m.onnx", "--device", "rpi4b", "--momentum", "0.5"),
         "poet: --momentum is of --optimizer momentum, not of sgd"),
        (("solve", "p.json", "--time-limit", "0s"),
         "poet: --time-limit '0s' leaves no time; write for example 60s, or none"),
        (("solve", "m.onnx", "--device", "rpi4b", "--ram", "1MiB", "-o", "no-folder/p.poet"),
         "poet: no-folder/p.poet: cannot be written (its folder does not exist)"),
        (("solve", "p.json", "--ram", "1MiB", "--json", "."), "poet: .: cannot be written (it is a folder)"),
        (("solve", "absent.json"),
         "poet: absent.json: not a readable JSON file (No such file or directory)"),
    ],
)  # fmt: skip
def test_bad_usage_is_one_line_and_exit_code_2(
    arguments: tuple[str, ...], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke(*arguments) == (2, "", line + "\n")


def test_every_error_has_its_exit_code_and_one_line() -> None:
    def tree(kind: type[PoetError]) -> list[type[PoetError]]:
        return [kind, *(item for child in kind.__subclasses__() for item in tree(child))]

    for kind in tree(PoetError):
        error = kind.__new__(kind)
        Exception.__init__(error, "two\nlines")
        assert _outcome(error) == (kind.exit_code, "two lines")
    assert _outcome(FileNotFoundError(2, "No such file", "x"))[0] == 2
    assert _outcome(typer.Abort()) == (1, "aborted")
    code, line = _outcome(ZeroDivisionError("division by zero"))
    assert code == 1
    assert "internal error" in line
    assert line.endswith("ZeroDivisionError: division by zero")


def test_a_reader_that_leaves_is_no_error() -> None:
    poet = [sys.executable, "-c", "from poet.cli.main import app; app()", "devices", "list"]
    with subprocess.Popen(poet, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 1


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    output.write_json(target, {"a": 1})
    assert target.read_text() == '{\n "a": 1\n}\n'

    def fails(path: Path) -> None:
        path.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match=r"out\.json: cannot be written \(No space left on device\)"):
        output.write_atomically(target, fails)
    assert target.read_text() == '{\n "a": 1\n}\n'
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]
    with pytest.raises(InputError, match="cannot be written"):
        output.write_json(tmp_path / "absent" / "out.json", {})
