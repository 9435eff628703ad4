"""A folder of images as samples: a folder per class, the classes in the order of their names.

Images are decoded by Pillow when they are asked for, scaled (bilinear) to the size that the plan takes, and
given as bytes with the channels first: 1 channel in grey, 3 in red, green and blue.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from poet.errors import InputError
from poet.files.columns import Array, ArrayColumn, Column
from poet.files.reading import open_regular

_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".pgm", ".ppm")
_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF", "TIFF", "PPM")
_MODES = {1: "L", 3: "RGB"}


def image_columns(folder: Path, sample_shape: Sequence[int]) -> dict[str, Column]:
    """``inputs`` and ``targets`` of a folder of images, for a plan that takes ``[C,H,W]``.

    Raises:
        InputError: there are no images, Pillow is missing, or the plan takes none.
    """
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise InputError(f"{folder}: images are read by Pillow; python -m pip install pillow") from None
    if len(sample_shape) != 3 or sample_shape[0] not in _MODES:
        raise InputError(
            f"{folder}: the plan takes samples of shape {list(sample_shape)}; images are [1,H,W] or [3,H,W]"
        )
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    paths, targets = [], []
    for number, name in enumerate(classes):
        for file in sorted((folder / name).iterdir()):
            if file.suffix.lower() in _SUFFIXES:
                paths.append(file)
                targets.append(number)
    if not paths:
        raise InputError(f"{folder}: it has no folder per class with images, nor .npy files")
    inputs = _ImageColumn(paths, (sample_shape[0], sample_shape[1], sample_shape[2]))
    return {"inputs": inputs, "targets": ArrayColumn(np.asarray(targets, dtype=np.int64))}


class _ImageColumn:
    """Decodes images when they are asked for."""

    def __init__(self, paths: Sequence[Path], sample_shape: tuple[int, int, int]) -> None:
        self._paths = paths
        self.shape: tuple[int, ...] = (len(paths), *sample_shape)
        self.dtype: np.dtype[Any] = np.dtype(np.uint8)

    def rows(self, numbers: Sequence[int]) -> Array:
        """See `poet.files.columns.Column`."""
        found = np.empty((len(numbers), *self.shape[1:]), dtype=np.uint8)
        for place, number in enumerate(numbers):
            found[place] = self._decoded(self._paths[int(number)])
        return found

    def _decoded(self, path: Path) -> Array:
        from PIL import Image

        channels, height, width = self.shape[1:]
        try:
            with warnings.catch_warnings(), open_regular(path) as file:
                warnings.simplefilter("error")  # Pillow warns of images that unpack to too much
                with Image.open(file, formats=_FORMATS) as image:
                    made = image.convert(_MODES[channels])
                    if made.size != (width, height):
                        made = made.resize((width, height), Image.Resampling.BILINEAR)
        except Exception as error:  # Pillow raises a dozen kinds; each means the same here
            raise InputError(f"{path}: not a readable image ({' '.join(str(error).split())[:120]})") from None
        pixels = np.asarray(made)
        return pixels[np.newaxis] if channels == 1 else pixels.transpose(2, 0, 1)
