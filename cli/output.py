"""Where commands write: the report to stdout, progress and the log to stderr, files whole or not at all.

``-v`` and ``--log FILE`` show what a search or a sweep does, from the loggers below ``poet``.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from poet.errors import InputError, spelled_out
from poet.files import tensorfile
from poet.problem.progress import ended
from poet.util.reading import Paths, check_apart, check_is_file
from poet.util.streams import say

REPORT_COLUMNS = 110
"""Width of a report that goes to a file or a pipe."""
LOGGER = "poet"


class PlainConsole(Console):
    """Prints text as it is: names out of files are no markup, steer no terminal and begin no line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Of a table's cell, or of what is printed."""
        return super().render_str(spelled_out(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Of everything, and of all its parts."""
        if isinstance(renderable, Text) and not renderable.plain.isprintable():
            renderable = Text(spelled_out(renderable.plain), style=renderable.style)
        return super().render(renderable, options)


def show(report: RenderableType) -> None:
    """Print a report to stdout; to a file or a pipe as plain lines without trailing blanks."""
    ended()
    if sys.stdout.isatty():
        PlainConsole().print(report)
        return
    console = PlainConsole(file=io.StringIO(), width=REPORT_COLUMNS)
    with console.capture() as captured:
        console.print(report)
    sys.stdout.writelines(line.rstrip() + "\n" for line in captured.get().splitlines())


def answer(report: RenderableType, data: Callable[[], Any], *, json_file: Path | None) -> None:
    """Write ``data()`` to ``json_file`` if one is wanted, and show the report unless that was stdout."""
    if json_file is not None:
        write_json(json_file, data())
    if str(json_file) != "-":
        show(report)


def check_writable(path: Path) -> None:
    """Refuse a file that `write_text` could not write, before the work whose result it is to hold.

    Raises:
        InputError: it is not a file, or its folder does not exist or may not be written to.
    """
    folder = path.parent
    check_is_file(path)
    if not folder.is_dir():
        problem = "its folder does not exist"
    elif not os.access(folder, os.W_OK | os.X_OK):
        problem = "its folder may not be written to"
    else:
        return
    raise InputError(f"{path}: cannot be written ({problem})")


def check_files(
    writes: Mapping[str, Path | None],
    *,
    reads: Mapping[str, Paths] | None = None,
    page_file: Path | None = None,
    model: Path | None = None,
) -> None:
    """Refuse, before the work begins, what could not be written or would destroy something.

    Every command names all its files here: nothing that it writes, what its stdout and stderr are
    led to included, may be a file that it reads or another that it writes.

    Args:
        writes: by option; ``-`` is stdout.
        reads: by argument or option.
        page_file: is written too; whether it can be is for the trainer to say.
        model: is read, and the files that hold its weights.

    Raises:
        InputError: one line that names the file and the options.
    """
    files = {option: path for option, path in writes.items() if path is not None and str(path) != "-"}
    for path in files.values():
        check_writable(path)
    written = {**files, "--page-file": page_file}
    read: dict[str, Paths] = {**(reads or {}), "MODEL": model}
    if model is not None:
        read["the weights of MODEL"] = _weight_files(model, files.values())
    check_apart(written, reads=read)
    for stream, path in _led_to_files():  # each alone: both may go to one log
        check_apart({**written, stream: path}, reads=read)


def _weight_files(model: Path, written: Iterable[Path]) -> list[Path]:
    """Those of the ``written`` files that are there and hold weights of an ONNX model."""
    there = [path for path in written if path.exists()]
    if model.suffix == ".json" or not there:
        return []
    from poet.frontend.onnx.reader import data_files

    return data_files(model, there)


def _led_to_files() -> Iterator[tuple[str, Path]]:
    """Stdout and stderr where they are files."""
    for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
        with contextlib.suppress(OSError, ValueError):  # streams of tests are no files of the system
            number = stream.fileno()
            if stat.S_ISREG(os.fstat(number).st_mode):
                yield name, Path(os.readlink(f"/proc/self/fd/{number}"))


def write_json(path: Path, data: Any) -> None:
    """Write ``data`` as JSON, with escapes for what does not print; ``-`` is stdout."""
    ended()
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    if not text.replace("\n", "").isprintable():
        text = "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
    if str(path) == "-":
        sys.stdout.write(text)
    else:
        write_text(path, text)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to the file at ``path``, whole or not at all.

    Raises:
        PoetError: the folder does not exist, cannot be written or is full.
    """
    with tensorfile.replaced(path) as file:
        file.write(text.encode("utf-8", errors="backslashreplace"))  # of file names


class _Lines(logging.Formatter):
    """Seconds since the command began to listen, the room that speaks, and what it says."""

    def __init__(self) -> None:
        super().__init__()
        self._began = time.time()

    def format(self, record: logging.LogRecord) -> str:
        room = record.name.removeprefix(f"{LOGGER}.").removeprefix("solvers.").partition(".")[0]
        level = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        return f"{record.created - self._began:9.3f} s  {room:<11} {level}{spelled_out(record.getMessage())}"


class _LogFile(logging.FileHandler):
    """Written line by line, so that it can be followed; a full disk ends the log, not the search."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is logging's
        error = sys.exc_info()[1]
        say(f"poet: {self.baseFilename}: the log ends here ({error})", err=True)
        self.setLevel(logging.CRITICAL + 1)


def check_log(file: Path | None) -> None:
    """Refuse stdout, which is for the report.

    Raises:
        InputError: ``file`` is ``-``.
    """
    if str(file) == "-":
        raise InputError("--log - is not a file; -v shows what the search does on stderr")


@contextlib.contextmanager
def listening(*, verbose: bool, file: Path | None) -> Iterator[None]:
    """While the block runs, show the log on stderr where ``verbose``, and write all of it to ``file``."""
    handlers: list[logging.Handler] = []
    if verbose:
        handlers.append(logging.StreamHandler(sys.stderr))
        handlers[-1].setLevel(logging.INFO)
    if file is not None:
        handlers.append(_LogFile(file, mode="w", encoding="utf-8", errors="backslashreplace"))
        handlers[-1].setLevel(logging.DEBUG)
    lines, logger = _Lines(), logging.getLogger(LOGGER)
    before = logger.level
    for handler in handlers:
        handler.setFormatter(lines)
        logger.addHandler(handler)
    if handlers:
        logger.setLevel(min(handler.level for handler in handlers))
    try:
        yield
    finally:
        logger.setLevel(before)
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()
