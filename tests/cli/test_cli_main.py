"""The command line as such: help, exit codes, one line per error, whole files."""

from __future__ import annotations

import importlib.abc
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from helpers.command import invoke
from poet.cli import output
from poet.cli.main import _outcome, app

from poet.__main__ import main
from poet.errors import INTERRUPTED, PoetError

COMMANDS = ("check", "fit", "solve", "explain", "diff", "run", "verify", "devices", "export")


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
    assert invoke("--version") == (0, "poet 0.2.0\n", "")


def test_ctrl_c_while_it_loads_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupting(importlib.abc.MetaPathFinder):
        def find_spec(self, fullname: str, path: object, target: object = None) -> None:
            if fullname == "poet.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "poet.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, capsys.readouterr().err) == (INTERRUPTED, "poet: interrupted\n")


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
        (("solve", "p.json", "--ram", "2MiB,1MiB"),
         "poet: several budgets in --ram are for a model; p.json is a planning problem"),
        (("solve", "m.onnx", "--device", "rpi4b", "--ram", "2MiB,1MiB", "--trade-off", "energy,ram"),
         "poet: --trade-off shows a curve and makes no plan; give one budget in --ram"),
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


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("plan", "x"), "No such command 'plan'. Did you mean 'solve'?"),
        (("train",), "No such command 'train'. Did you mean 'run'?"),
        (("What_If",), "No such command 'What_If'. Did you mean 'what-if'?"),
        (("devices", "shwo"), "No such command 'shwo'. Did you mean 'show'?"),
        (("devices", "foo"), "No such command 'foo'. The commands are "
                             "calibrate, compare, fit, list, parts, profile, ranges, schema, show, "
                             "validate."),
        (("net.onnx",), "No such command 'net.onnx'. A command comes before a file, for example: "
                        "poet solve net.onnx --device rpi4b"),
        (("net.poet",), "No such command 'net.poet'. A command comes before a file, for example: "
                        "poet explain net.poet"),
        (("solve", "m", "--loss", "hinge"),
         "loss 'hinge' is not one of cross-entropy, nll, focal, mse, l1, huber, smooth-l1, bce, "
         "bce-with-logits, kl-div, distillation, ctc, output"),
        (("solve", "m", "--optimizer", "adamm"),
         "optimizer 'adamm' is not one of sgd, momentum, adam, adamw, rmsprop, adagrad, lion, adadelta, "
         "adamax, nadam, radam; did you mean 'adam'?"),
        (("what-if", "m", "--home", "stroage"),
         "--home 'stroage' is not one of ram, storage, auto; did you mean 'storage'?"),
        (("solve", "m", "--threads", "0"), "--threads '0' is too small; expected 1 or more"),
        (("solve", "m", "--threads", "x"), "--threads 'x' is not a whole number"),
        (("solve", "m", "--lr", "x"), "--lr 'x' is not a number"),
    ],
)  # fmt: skip
def test_what_was_meant_is_said_in_our_words(arguments: tuple[str, ...], line: str) -> None:
    assert invoke(*arguments) == (2, "", f"poet: {line}\n")


@pytest.mark.parametrize("command", ["devices", "export"])
def test_a_group_without_a_command_helps(command: str) -> None:
    assert invoke(command) == invoke(command, "--help")


def test_no_option_of_any_command_leaks_the_parsers_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # some options are files that are written
    tried = 0
    groups: list[tuple[tuple[str, ...], Any]] = [((), typer.main.get_command(app))]
    while groups:
        names, command = groups.pop()
        groups += [((*names, name), below) for name, below in getattr(command, "commands", {}).items()]
        for option in command.params:
            name = option.opts[0]
            if not names or not name.startswith("--") or getattr(option, "is_flag", False):
                continue
            tried += 1
            _, _, err = invoke(*names, "x", *(["y"] if names == ("diff",) else []), name, "\u00a0")
            assert not re.search(r"Value error|Input should|valid (integer|number)|pydantic", err), err
    assert tried > 60


def test_it_runs_as_a_module_and_completes() -> None:
    words = {"_POET_COMPLETE": "complete_bash", "COMP_CWORD": "4", "COMP_WORDS": "poet solve m --device rpi4"}
    python = [sys.executable, "-m", "poet"]
    done = subprocess.run([*python, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == "poet 0.2.0\n"
    done = subprocess.run(python, capture_output=True, text=True, check=True, env={**os.environ, **words})
    assert done.stdout.split() == ["rpi4b", "rpi4b-torch", "rpi4b-xnnpack"]
    assert "--install-completion" in invoke("--help")[1]


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


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out.json"
    output.write_json(target, {"a": 1})
    assert target.read_text() == '{\n "a": 1\n}\n'

    def fails(file: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", fails)
        with pytest.raises(PoetError, match=r"out\.json: cannot be written \(No space left on device\)"):
            output.write_json(target, {"b": 2})
    assert target.read_text() == '{\n "a": 1\n}\n'
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]
    with pytest.raises(PoetError, match="cannot be written"):
        output.write_json(tmp_path / "absent" / "out.json", {})
