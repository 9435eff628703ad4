"""The example programs train on real data: the digits of scikit-learn."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def _example(name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_a_plain_loop_with_a_wrapped_module_learns(capsys: pytest.CaptureFixture[str]) -> None:
    accuracy = _example("wrapped_loop").main()
    assert accuracy > 0.9
    assert capsys.readouterr().out.count("epoch") == 6


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("pytorch_lightning") is None, reason="pytorch-lightning is not installed"
)
@pytest.mark.filterwarnings("ignore")
def test_lightning_trains_a_wrapped_module_bit_for_bit() -> None:
    example = _example("lightning_loop")
    losses, accuracy = example.main(epochs=2)
    assert accuracy > 0.8
    assert losses == example.main(None, epochs=2)[0]


@pytest.mark.slow
def test_single_samples_teach_while_they_stream(tmp_path: Path) -> None:
    before, after = _example("streamed_samples").main(str(tmp_path / "streamed.poet"), samples=600)
    assert before < 0.2
    assert after > 0.7


@pytest.mark.slow
def test_nights_of_equal_energy_end_a_training(tmp_path: Path) -> None:
    nights = _example("nightly").main(str(tmp_path / "nightly.poet"), nights=2.5)
    assert [night["steps"] for night in nights] == [96, 192, 240]
    assert nights[-1]["accuracy"] > 0.8


@pytest.mark.slow
def test_sequences_of_many_lengths_share_their_weights(tmp_path: Path) -> None:
    found = _example("many_lengths").main(str(tmp_path / "lengths.poet"))
    assert set(found) == {8, 7, 6}
    assert found[8] > 0.75
    assert found[6] > 0.6


@pytest.mark.slow
def test_a_head_on_a_frozen_net_stops_early(tmp_path: Path) -> None:
    accuracy, epochs = _example("frozen_head").main(str(tmp_path / "head.poet"))
    assert accuracy > 0.85
    assert epochs <= 40
    assert (tmp_path / "head.poet.best").exists()
