"""A training step that is a shared library, called through ctypes with numpy arrays; torch is not needed.

`poet export c` puts this file into the folder as ``poet_library.py``, where it needs nothing else of poet:

    step = Step("build/libpoet_step.so")
    step.set_input(0, image)
    step.set_classes([7])
    loss = step.train()
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

STATUS = (
    "ok",
    "bad argument",
    "what was trained is not finite: it holds NaN or an infinity",
    "the storage failed",
    "nothing whole was saved",
    "what is there was saved by an older build of this plan; use another file",
)
"""What the functions of the library give, by number."""
OK, NOT_FINITE, NO_STATE = 0, 2, 4
VERSION = 6
_PAGES, _TO_SAVE, _TO_LOAD = range(3)
"""``poet_file_use`` of ``poet_file_storage.h``."""
_ALIGNMENT_BYTES, _WORD_BYTES = 64, 4

Floats = np.ndarray[Any, np.dtype[np.float32]]


class LibraryError(Exception):
    """A library is none of poet's, or one of its functions failed; ``str`` says which and why."""


class _Facts(ctypes.Structure):
    """``poet_library_facts`` of ``poet_library.h``."""

    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("version", "net_bytes", "file_bytes", "arena_bytes")),
        *((name, ctypes.c_uint32) for name in ("page_bytes", "storage_bytes", "inputs", "outputs", "kept")),
        *((name, ctypes.c_uint32) for name in ("target_floats", "rows", "classes", "has_homes")),
        ("can_predict", ctypes.c_uint32),
        ("input_floats", ctypes.POINTER(ctypes.c_uint32)),
        ("output_floats", ctypes.POINTER(ctypes.c_uint32)),
        ("input_numbers", ctypes.POINTER(ctypes.c_uint32)),
        ("plan", ctypes.c_char_p),
    )


class _Span(ctypes.Structure):
    """``poet_span`` of ``poet_step.h``."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("word", "words", "first")),
        ("fill", ctypes.c_uint32),
        *((name, ctypes.c_int32) for name in ("home", "second", "sum", "is_checked")),
    )


_File = ctypes.Array[ctypes.c_uint64]
"""The memory of an open ``poet_file_storage``, which begins with a ``poet_storage``."""


class Step:
    """The step of one library, with an arena of its own; calls of several threads at once are not safe.

    Attributes:
        facts: what the library says of itself.
        plan: SHA-256 of the plan that it was made from.
        inputs: of the next step, flat views of the arena; to be filled again before each step. One of whole
            numbers is an empty one here: fill it by `set_input`.
        arena: all floats.
    """

    def __init__(
        self,
        library: str | os.PathLike[str],
        *,
        seed: int = 1,
        pages: str | os.PathLike[str] | None = None,
        recover: bool = False,
    ) -> None:
        """Load ``library`` and begin with the plan's weights.

        To load a library runs its code, with all that this process may do: load none but your own. A process
        loads a path once: what was rebuilt at the same path needs a new process.

        Args:
            library: path of the shared object that ``make lib`` builds.
            seed: of dropout.
            pages: path of a file for what the step pages, or keeps in storage; needed where it does.
            recover: go on with the step that was committed last in ``pages``, where there is one whole; see
                `commit`.

        Raises:
            LibraryError: it cannot be loaded, is no such library, needs ``pages``, or has no commits.
        """
        self._files: list[_File] = []
        self._library = _loaded(Path(library))
        self.facts = _facts(self._library, Path(library))
        self.plan = self.facts.plan.decode("ascii")
        self._net = (ctypes.c_uint64 * (self.facts.net_bytes // 8 + 1))()
        self.arena = _aligned_floats(-(-self.facts.arena_bytes // _WORD_BYTES))
        place = self.arena.ctypes.data_as(ctypes.c_void_p)
        self._call("poet_init", self._net, place, ctypes.c_uint32(seed))
        if self.facts.page_bytes:
            if pages is None:
                raise LibraryError(
                    f"the step pages: it needs a file of {self.facts.page_bytes} bytes, `pages`"
                )
            self._pages = self._opened(pages, self.facts.page_bytes, _PAGES)
        if recover:
            self.recover()
        elif self.facts.page_bytes:
            self._call("poet_set_storage", self._net, self._pages)
        sizes = self.facts.input_floats[: self.facts.inputs]
        self._numbers = self.facts.input_numbers[: self.facts.inputs]
        self.inputs = [
            self.arena[:0] if self._numbers[index] else self._view("poet_input", index, size)
            for index, size in enumerate(sizes)
        ]

    def set_input(self, index: int, contents: Any) -> None:
        """Fill ``inputs[index]`` for the next step; unlike an assignment to the view, with no fewer floats.

        Raises:
            LibraryError: these are more or fewer floats or whole numbers than the step takes, or a number is
                none of a row of the table that it looks up.
        """
        if self._numbers[index]:
            given = _as_many(contents, self._numbers[index], f"input {index} of {{}} numbers was")
            for at, number in enumerate(given.tolist()):
                whole = _whole(number, f"number {number} of input {index}")
                self._call("poet_set_number", self._net, *map(ctypes.c_int32, (index, at, whole)))
            return
        view = self.inputs[index]
        view[:] = _as_many(contents, len(view), f"input {index} of {{}} floats was")

    def set_target(self, target: Floats) -> None:
        """What the loss compares with, for the next step.

        Raises:
            LibraryError: these are more or fewer floats than the step takes.
        """
        view = self._pointer("poet_target", (self._net,), self._needed("target_floats", "floats as target"))
        view[:] = _as_many(target, len(view), "a target of {} floats was")

    def set_classes(self, classes: Any) -> None:
        """The class of each row of the batch, for the next step.

        Raises:
            LibraryError: there are more or fewer rows, what is no whole number, or no such class.
        """
        given = _as_many(classes, self._needed("rows", "classes as target"), "{} classes were")
        for row, number in enumerate(given.tolist()):
            whole = _whole(number, f"class {number} of row {row}")
            self._call("poet_set_class", self._net, *map(ctypes.c_int32, (row, whole)))

    def train(self) -> float:
        """One training step; its loss, which may be NaN or infinite.

        Raises:
            LibraryError: the storage failed; no step is made until `recover` or `load` found one.
        """
        loss = ctypes.c_float()
        self._call("poet_train_step", self._net, ctypes.byref(loss), also=NOT_FINITE)
        return loss.value

    def outputs(self) -> list[Floats]:
        """The model's outputs of the last step, flat, copied."""
        return self._outputs("poet_output")

    def predict(self) -> list[Floats]:
        """The model's outputs in evaluation mode for the inputs, flat, copied.

        Raises:
            LibraryError: the library has no such function; ``poet_step.h`` says why.
        """
        self._needed("can_predict", "predictions: poet_step.h says why")
        self._call("poet_predict", self._net)
        return self._outputs("poet_predicted")

    def set_learning_rate(self, learning_rate: float) -> None:
        """From the next step on.

        Raises:
            LibraryError: it is not finite.
        """
        self._call("poet_set_learning_rate", self._net, ctypes.c_float(learning_rate))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save what was trained in a file that keeps two generations: a power cut at any time leaves one.

        Raises:
            LibraryError: the file failed, is in use, or holds something else. Or what was trained holds NaN
                or an infinity: then the file is as it was.
        """
        with self._file(path, _TO_SAVE) as file:
            self._call("poet_save", self._net, file)

    def load(self, path: str | os.PathLike[str]) -> bool:
        """Go on with what was saved; where there is nothing whole of this plan, start over and say ``False``.

        The file is only read; one that is not there, is empty or too short holds nothing.

        Raises:
            LibraryError: the file failed, is in use, or holds something else.
        """
        with self._file(path, _TO_LOAD) as file:
            return self._call("poet_load", self._net, file, also=NO_STATE) == OK

    def commit(self) -> None:
        """Make the last step the one that `recover` finds, where parameters live in storage.

        Raises:
            LibraryError: the storage failed, what was trained holds NaN or an infinity, or nothing that
                changes lives there: use `save`.
        """
        self._call(self._committing("poet_commit"), self._net)

    def recover(self) -> bool:
        """Go on with the step that was committed last, as after a step that failed.

        ``False``: there is none, and training starts over with the plan's weights.

        Raises:
            LibraryError: as for `commit`.
        """
        name = self._committing("poet_recover")
        is_found = self._call(name, self._net, self._pages, also=NO_STATE) == OK
        if not is_found:
            self._call("poet_set_storage", self._net, self._pages)
        return is_found

    def _committing(self, name: str) -> str:
        if not hasattr(self._library, name):
            raise LibraryError("nothing that this step changes lives in storage: use save and load")
        return name

    def state_crc(self) -> int:
        """CRC-32 of all that lives across steps: equal on two machines that trained alike."""
        self._library.poet_state_crc.restype = ctypes.c_uint32
        found: int = self._library.poet_state_crc(self._net)
        return found

    def kept(self, index: int) -> Floats | None:
        """What lives across steps, the tensor of number ``index``, copied; ``None``: a constant."""
        span = self._spans()[index]
        if span.word >= 0:
            return self.arena[span.word : span.word + span.words].copy()
        if span.home < 0:
            return None
        found = np.zeros(span.words, dtype=np.float32)
        self._homes("poet_kept_read", index, found)
        return found

    def put(self, index: int, contents: Floats) -> None:
        """Replace what `kept` gives; a constant stays as it is."""
        span = self._spans()[index]
        contents = np.ascontiguousarray(contents, dtype=np.float32).ravel()
        if len(contents) != span.words:
            raise LibraryError(f"{len(contents)} words were given for {span.words}")
        if span.word >= 0:
            self.arena[span.word : span.word + span.words] = contents
        elif span.home >= 0:
            self._homes("poet_kept_write", index, contents)

    def close(self) -> None:
        """Close the file of pages; a step that pages cannot be made after that."""
        while self._files:
            self._close(self._files[-1])

    def __enter__(self) -> Step:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the library -----------------------------------------------------------------------------

    def _call(self, name: str, *arguments: Any, also: int = OK) -> int:
        code = int(self._library[name](*arguments))
        if code not in (OK, also):
            raise LibraryError(f"{name}: {STATUS[code] if 0 <= code < len(STATUS) else f'status {code}'}")
        return code

    def _needed(self, fact: str, what: str) -> int:
        found = int(getattr(self.facts, fact))
        if not found:
            raise LibraryError(f"this step has no {what}")
        return found

    def _spans(self) -> ctypes.Array[_Span]:
        found: ctypes.Array[_Span] = (_Span * self.facts.kept).in_dll(self._library, "poet_kept")
        return found

    def _homes(self, name: str, index: int, contents: Floats) -> None:
        place = contents.ctypes.data_as(ctypes.c_void_p)
        sizes = (ctypes.c_uint32(0), place, ctypes.c_uint32(contents.nbytes))
        self._call(name, self._net, ctypes.c_int32(index), *sizes)

    def _outputs(self, name: str) -> list[Floats]:
        sizes = self.facts.output_floats[: self.facts.outputs]
        return [self._view(name, index, size).copy() for index, size in enumerate(sizes)]

    def _view(self, name: str, index: int, size: int) -> Floats:
        return self._pointer(name, (self._net, ctypes.c_int32(index)), size)

    def _pointer(self, name: str, arguments: tuple[Any, ...], size: int) -> Floats:
        """What a pointer that a function gives points to, ``size`` floats of the arena."""
        function = self._library[name]
        function.restype = ctypes.c_void_p
        address = function(*arguments)
        if address is None:
            raise LibraryError(f"{name}: there is none")
        word = (int(address) - self.arena.ctypes.data) // _WORD_BYTES
        return self.arena[word : word + size]

    @contextlib.contextmanager
    def _file(self, path: str | os.PathLike[str], use: int) -> Iterator[_File]:
        """A file of saved states, open inside the block."""
        opened = self._opened(path, self.facts.storage_bytes, use)
        try:
            yield opened
        finally:
            self._close(opened)

    def _opened(self, path: str | os.PathLike[str], size_bytes: int, use: int) -> _File:
        opened: _File = (ctypes.c_uint64 * (self.facts.file_bytes // 8 + 1))()
        size, what = ctypes.c_uint32(size_bytes), "pages" if use == _PAGES else "a saved state"
        try:
            self._call("poet_file_open", opened, os.fsencode(path), size, ctypes.c_int(use))
        except LibraryError:
            raise LibraryError(
                f"{os.fspath(path)}: cannot be opened, is in use, or holds something else than {what}, "
                "or one of an older poet"
            ) from None
        self._files.append(opened)
        return opened

    def _close(self, opened: _File) -> None:
        self._files.remove(opened)
        self._call("poet_file_close", opened)


def _loaded(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path.absolute()))
    except OSError as error:
        raise LibraryError(f"{path}: is not a shared library for this machine ({error})") from None


def _facts(library: ctypes.CDLL, path: Path) -> _Facts:
    try:
        facts = _Facts.in_dll(library, "poet_library")
    except ValueError:
        raise LibraryError(f"{path}: is none that `make lib` built in a folder of `poet export c`") from None
    if facts.version != VERSION:
        raise LibraryError(f"{path}: its interface is version {facts.version}, and this is {VERSION}")
    return facts


def _aligned_floats(count: int) -> Floats:
    """Zeros that begin at a multiple of `_ALIGNMENT_BYTES`."""
    spare = _ALIGNMENT_BYTES // _WORD_BYTES
    whole = np.zeros(count + spare, dtype=np.float32)
    first = -whole.ctypes.data % _ALIGNMENT_BYTES // _WORD_BYTES
    found: Floats = whole[first : first + count]
    return found


def _as_many(given: Any, count: int, called: str) -> Any:
    """``given`` as a flat array of ``count``."""
    flat = np.asarray(given).ravel()
    if len(flat) != count:
        raise LibraryError(f"{called.format(len(flat))} given, and the step takes {count}")
    return flat


def _whole(number: Any, called: str) -> int:
    """``number`` as a whole one of 32 bits; C would cut off the rest."""
    if not isinstance(number, int | float) or number != number // 1 or abs(number) >= 2**31:
        raise LibraryError(f"{called} is no whole number of 32 bits")
    return int(number)
