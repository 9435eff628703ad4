"""The command line, run in this process."""

from __future__ import annotations

from poet.cli.main import app
from typer.testing import CliRunner


def invoke(*arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command line."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr
