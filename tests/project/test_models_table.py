"""The models table goes on where it was interrupted, at the bytes of before, and says what it lacks."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import models_table
import pytest
import torch
from models_page import document
from models_rows import (
    EXPORTS,
    MIB,
    MODELS,
    SHARE,
    Bound,
    Forms,
    Kept,
    Placed,
    Planned,
    Reached,
    Row,
    Trial,
    Whole,
    before,
    keep_row,
    kept_row,
)

from poet import api

AnyRow = Row | Whole | Reached | Placed
ROW = Row(
    time_limit_seconds=10.0,
    ops=3,
    buffers=4,
    import_seconds=0.5,
    parameter_bytes=MIB,
    keep_everything_bytes=9 * MIB,
    keep_packed_bytes=8 * MIB,
    lower_bound_bytes=2 * MIB,
    homes_bound=Bound(MIB, "`fc` (aten.mm)"),
    plain_homes_bound=Bound(3 * MIB, "`fc` (aten.mm)"),
    parts=1,
    forms=Forms(1, 8 * MIB, MIB, 0, 0, 0, 0, 0),
    plan=Planned(5 * MIB, "optimal", 0.0, 0.0123, 7, 0, 1.0, ("equal", "equal")),
    middle=Planned(4 * MIB, "feasible", 0.1, 0.5, 9, MIB, 9.0),
    tight=Planned(3 * MIB, "feasible", 0.1, 0.75, 9, MIB, 5.0, ("equal", "loss differs")),
    trials=(
        Trial("fc.weight", "a", MIB, 8),
        Trial("head.weight", "b", MIB, 0),
        Trial("lstm.weight", "c", MIB, None),
    ),
)
REACHED = Reached(10.0, Planned(MIB, "feasible", 0.5, 12.5, 3, 64 * MIB, 5.0, ("equal", "equal")), MIB)
PLACED = Placed(10.0, 2 * MIB, dataclasses.replace(REACHED.plan, budget_bytes=3 * MIB), 2 * MIB, 3 * MIB)
WHOLE = Whole(10.0, Planned(5 * MIB, "feasible", 0.01, 0.5, 3, 0, 5.0, once_joules=2.0))


def test_the_budgets_are_those_the_page_had_before() -> None:
    then = before()
    assert tuple(sorted(then)) == tuple(sorted(MODELS))
    for row in then.values():
        assert row.budget_bytes(SHARE) / MIB == pytest.approx(row.budget_mib, rel=5e-4)  # four digits


def test_a_row_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    keep_row(tmp_path, "vit", ROW)
    keep_row(tmp_path, "vit", REACHED)
    assert kept_row(tmp_path, "vit", 10.0, Reached) == REACHED
    assert kept_row(tmp_path, "vit", 10.0, Row) == ROW
    assert kept_row(tmp_path, "vit", 60.0, Row) is None  # of other searches
    assert kept_row(tmp_path, "bert", 10.0, Row) is None
    path = tmp_path / "vit.json"
    text = path.read_text(encoding="utf-8")
    for damaged in (text[: len(text) // 2], json.dumps({**json.loads(text), "ops": "3"}), "[]"):
        path.write_text(damaged, encoding="utf-8")
        assert kept_row(tmp_path, "vit", 10.0, Row) is None
    assert sorted(file.name for file in tmp_path.iterdir()) == ["vit-reached.json", "vit.json"]


def test_a_run_goes_on_where_it_was_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, str]] = []
    stop_at = "bert"

    def measured_apart(name: str, time_limit_seconds: float, kind: type[Kept]) -> AnyRow | str:
        if name == stop_at:
            raise KeyboardInterrupt
        made.append((kind.__name__, name))
        if (kind, name) == (Row, "vit"):
            return "MemoryError: no"
        rows: dict[str, AnyRow] = {"Row": ROW, "Whole": WHOLE, "Reached": REACHED, "Placed": PLACED}
        return rows[kind.__name__]

    monkeypatch.setattr(models_table, "measured_apart", measured_apart)
    folder, output = tmp_path / "rows", tmp_path / "models.md"
    with pytest.raises(KeyboardInterrupt):
        models_table.make(EXPORTS, folder, output, 10.0, again=False)
    smallest_first = ["lstm", "mobilenet_v2", "vit", "unet", "resnet18", "convnext"]
    assert made == [("Row", name) for name in smallest_first]
    page = output.read_text(encoding="utf-8")
    assert "| resnet18 |" in page
    assert "vit (MemoryError: no)" in page
    assert "In the least RAM" not in page

    made.clear()
    stop_at = "unet"  # its row is there: the next thing that is tried of it is its plan with every op whole
    with pytest.raises(KeyboardInterrupt):
        models_table.make(EXPORTS, folder, output, 10.0, again=False)
    assert made == [
        ("Row", "vit"), ("Row", "bert"), ("Row", "gpt"),
        ("Whole", "lstm"), ("Whole", "mobilenet_v2"), ("Whole", "vit"),
    ]  # fmt: skip
    page = output.read_text(encoding="utf-8")
    assert "| mobilenet_v2 | 5 MiB | 50 % | 1 % | 1.23 % | 3 J |" in page
    assert "In the least RAM" not in page

    made.clear()
    stop_at = ""
    models_table.make(EXPORTS, folder, output, 10.0, again=False)
    page = output.read_text(encoding="utf-8")
    assert "| vit | 1 MiB | feasible | 12.5 times | 64 MiB | 1 MiB | equal, equal |" in page
    assert "| vit | 2 MiB | 3 MiB | 50 % | 12.5 times | 64 MiB | 2 MiB | 3 MiB | equal, equal |" in page
    assert "Measured peaks inside their budgets: 8 of 8." in page
    assert "Not made: light_bvlc_alexnet" in page

    made.clear()
    models_table.make(["lstm", "bert"], folder, output, 10.0, again=True)
    assert made == [
        ("Row", "lstm"), ("Row", "bert"), ("Whole", "lstm"), ("Whole", "bert"),
        ("Reached", "lstm"), ("Reached", "bert"), ("Placed", "lstm"), ("Placed", "bert"),
    ]  # fmt: skip


def test_the_page_has_the_rows_that_exist_and_names_the_others() -> None:
    worse = dataclasses.replace(ROW, plan=dataclasses.replace(ROW.plan, overhead=0.5))
    page = document(
        {"resnet18": ROW, "vit": worse},
        10.0,
        {"gpt": "not done after 1800 s"},
        whole={"unet": WHOLE, "vit": WHOLE},
    )
    missing = next(line for line in page.splitlines() if line.startswith("**Not made"))
    assert "15 of 17" in missing
    assert "gpt (not done after 1800 s)" in missing
    assert "resnet18" not in missing
    assert "| resnet18 | 5 MiB | 53 % | 1.23 % |" in page
    assert "above before: vit of 2." in page
    assert "| unet | 5 MiB | 50 % | 1 % | not made | 3 J | not made |" in page
    assert "2 of 4 verified plans are equal" in page
    assert "Of 3 gradients that differ in calls or types, of 2 models, 2 were tried and 1 passed" in page
    assert "`head.weight` of vit (1 MiB)" in page
    assert "1 of vit (`lstm.weight`)" in page
    for table in page.split("\n\n"):
        lines = [line for line in table.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) <= 1


def test_no_row_is_made_up_where_a_search_found_no_plan() -> None:
    without = dataclasses.replace(ROW, plan=Planned(5 * MIB, "no plan: out of time"))
    page = document({"resnet18": without}, 10.0, {})
    assert "| resnet18 | 5 MiB | 53 % | no plan: out of time |" in page
    assert "median" not in page


@pytest.mark.slow
def test_weight_gradients_are_tried_once_for_each_distinct_one() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(3)), torch.nn.Linear(256, 8))
    prepared = api.prepare(net, torch.randn(4, 256), device="rpi4b", gradients="keep")
    found = list(models_table.gradient_trials(prepared.step.graph))
    assert [trial.bytes for trial in found] == [256 * 256 * 4] * len(found)
    assert found[0].parameter == "0.weight"
    assert len(found) < 3
    assert any(trial.blocks for trial in found)
    assert all(trial.blocks in (16, 8, 4, 2, 0) for trial in found)
    assert len({trial.digest for trial in found}) == len(found)
