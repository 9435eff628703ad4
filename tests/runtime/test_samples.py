"""Data for `poet run`: every kind gives the samples that are in it, large ones without being held."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import save_file
from torch import nn

import poet
from poet.errors import InputError
from poet.plans.training_plan import Plan
from poet.runtime import Trainer
from poet.runtime.data.samples import StoredSamples, load_samples

BATCH, COUNT = 4, 10
ROWS = np.random.default_rng(0).normal(size=(COUNT, 1, 3, 4)).astype("float32")
CLASSES = np.arange(COUNT) % 3


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    planned = poet.plan(net, torch.zeros(BATCH, 1, 3, 4), device="rpi4b", ram=None, evaluation=False)
    path = tmp_path_factory.mktemp("plan") / "net.poet"
    planned.save(path)
    return path


@pytest.fixture
def plan(file: Path) -> Plan:
    with Trainer.open(file) as trainer:
        return trainer.plan


def folder_of_npy(folder: Path) -> Path:
    (folder / "d").mkdir()
    np.save(folder / "d" / "inputs.npy", ROWS)
    np.save(folder / "d" / "y.npy", CLASSES)
    return folder / "d"


def npz(folder: Path) -> Path:
    np.savez_compressed(folder / "d.npz", x=ROWS, y=CLASSES)
    return folder / "d.npz"


def safetensors(folder: Path) -> Path:
    save_file({"x": ROWS, "targets": CLASSES}, folder / "d.safetensors")
    return folder / "d.safetensors"


def table(folder: Path) -> Path:
    lines = [
        ",".join([*(f"p{number}" for number in range(6)), "label", *(f"q{number}" for number in range(6))])
    ]
    for row, number in zip(ROWS.reshape(COUNT, -1), CLASSES, strict=True):
        cells = [repr(float(item)) for item in row]
        lines.append(",".join([*cells[:6], str(number), *cells[6:]]))
    (folder / "d.csv").write_text("\n".join(lines) + "\n\n")
    return folder / "d.csv"


def function(folder: Path) -> Path:
    (folder / "my_samples.py").write_text(
        "import numpy\n\n\ndef rows():\n    found = numpy.load('rows.npy')\n"
        "    for number, row in enumerate(found):\n        yield row, number % 3\n\n\nnothing = 5\n\n\n"
        "zeros = numpy.zeros((1, 3, 4), 'float32')\n\n\n"
        "def breaks():\n    yield zeros, 0\n    raise RuntimeError('no more')\n\n\n"
        "def uneven():\n    yield zeros, 0\n    yield zeros[0], 0\n"
    )
    np.save(folder / "rows.npy", ROWS)
    return Path("my_samples:rows")


KINDS = [folder_of_npy, npz, safetensors, table, function]


@pytest.mark.parametrize("held", [True, False], ids=["held", "stored"])
@pytest.mark.parametrize("made", KINDS, ids=[item.__name__ for item in KINDS])
def test_every_kind_gives_its_samples(
    made: Callable[[Path], Path], held: bool, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if not held:
        for room in ("poet.files.arrays", "poet.runtime.data.samples"):
            monkeypatch.setattr(f"{room}.MOST_HELD_BYTES", 0)
    samples = load_samples(made(tmp_path), plan)
    assert samples.count == COUNT
    assert isinstance(samples.tensors[0], StoredSamples) or (held and made in (npz, safetensors))
    inputs, targets = samples.batch(torch.tensor([7, 0, 9, 7]))
    assert torch.equal(inputs[0], torch.from_numpy(ROWS[[7, 0, 9, 7]]))
    assert torch.equal(targets[0], torch.from_numpy(CLASSES[[7, 0, 9, 7]]))
    assert torch.equal(samples.tensors[0][3:6], torch.from_numpy(ROWS[3:6]))


@pytest.mark.slow
def test_a_large_array_is_not_held(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    rows = np.lib.format.open_memmap(tmp_path / "d" / "x.npy", "w+", "float32", (200_000, 1, 3, 4))
    rows[-1] = 3.0
    rows.flush()
    classes = np.lib.format.open_memmap(tmp_path / "d" / "y.npy", "w+", "int64", (200_000,))
    classes.flush()
    tracemalloc.start()
    samples = load_samples(tmp_path / "d", plan)
    inputs, _ = samples.batch(torch.tensor([199_999] * BATCH))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert bool((inputs[0] == 3.0).all())
    assert peak_bytes < 4 << 20


def test_images_are_decoded_scaled_and_divided(plan: Plan, tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (COUNT, 3, 4), dtype="uint8")
    for number, picture in enumerate(pixels):
        folder = tmp_path / "d" / f"class{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(folder / f"{number}.png")
    Image.new("RGB", (8, 6), (255, 255, 255)).save(tmp_path / "d" / "class2" / "white.png")
    samples = load_samples(tmp_path / "d", plan)
    assert samples.count == COUNT + 1
    inputs, targets = samples.batch(torch.tensor([0, 1, 4, COUNT]))
    assert torch.equal(inputs[0][1, 0], torch.from_numpy(pixels[3]).float() / 255.0)
    assert bool((inputs[0][3] == 1.0).all())
    assert targets[0].tolist() == [0, 0, 1, 2]
    (tmp_path / "d" / "class0" / "0.png").write_bytes(b"not an image")
    with pytest.raises(InputError, match=r"0\.png: not a readable image"):
        samples.batch(torch.tensor([0, 1, 2, 3]))


def test_bytes_of_images_are_divided_and_turned(plan: Plan, tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (COUNT, 3, 4, 1), dtype="uint8")
    np.savez(tmp_path / "d.npz", x=pixels, y=CLASSES)
    found = load_samples(tmp_path / "d.npz", plan).tensors[0][:]
    assert torch.equal(found, torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255.0)


def _written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("d.csv", "", "this is an empty file"),
        ("d.csv", "a,b\n\n", "it has no line of numbers"),
        ("d.tsv", "a\tb\n1\ttwo\n", "'two' is no number"),
        ("d.csv", "a,b\n1,2\n1,2,3\n", "line 3 has 3 cells, the first 2"),
        ("d.csv", "a,b\n1,two\n", "line 2: 'two' is no number"),
        ("d.csv", "1\n2\n", "a column of inputs and one of targets"),
        ("d.csv", "1,2\n3,4\n", "inputs has shape [2, 1], the plan takes [samples, 1, 3, 4]"),
        ("d.csv", '"1,2\n', "line 1 is no line of a CSV file"),
    ],
)
def test_a_bad_table_is_one_line(name: str, text: str, said: str, plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        load_samples(_written(tmp_path, name, text), plan)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my_samples:breaks", "sample 2 fails (RuntimeError: no more)"),
        ("my_samples:uneven", "sample 2 has arrays of another shape"),
        ("my_samples:nothing", "my_samples has no function nothing"),
        ("no_such_module:rows", "cannot be imported"),
    ],
)
def test_a_bad_function_is_one_line(
    name: str, said: str, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    function(tmp_path)
    with pytest.raises(InputError, match=re.escape(said)):
        load_samples(name, plan)


def test_a_folder_with_nothing_in_it_is_one_line(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no folder per class with images, nor \.npy files"):
        load_samples(tmp_path, plan)


def test_a_file_that_is_cut_is_one_line(plan: Plan, tmp_path: Path) -> None:
    samples = load_samples(folder_of_npy(tmp_path), plan)
    (tmp_path / "d" / "inputs.npy").write_bytes(b"")
    with pytest.raises(InputError, match="ends too early"):
        samples.batch(torch.tensor([0, 1, 2, 3]))


def test_a_step_takes_arrays_and_mapped_files(file: Path, tmp_path: Path) -> None:
    folder = folder_of_npy(tmp_path)
    mapped = np.load(folder / "inputs.npy", mmap_mode="r")
    losses = []
    for inputs in (torch.from_numpy(ROWS[:BATCH]), ROWS[:BATCH], mapped[:BATCH], ROWS[:BATCH][::-1][::-1]):
        with Trainer.open(file) as trainer:
            losses.append(trainer.step(inputs, CLASSES[:BATCH]).loss)
    assert len(set(losses)) == 1
    with Trainer.open(file) as trainer, pytest.raises(InputError, match="not str"):
        trainer.step(["text"], CLASSES[:BATCH])  # type: ignore[list-item]
    with Trainer.open(file) as trainer, pytest.raises(InputError, match="which no tensor has"):
        trainer.step(np.array(["a"]), CLASSES[:BATCH])
