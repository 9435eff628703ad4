"""The page of plans of least time: goals beside what was reached, a reason for each plan that is too slow."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from apart import found_apart
from time_page import Found, line, page, why
from time_rows import MEASURED, Measured, Planned

HALF = Planned(
    share=0.5, budget_bytes=6 << 20, always_bytes=2 << 20, kept_bytes=10 << 20, least_bytes=3 << 20,
    limit_seconds=10.0, status="feasible", slower=0.04, bound=0.03, more_energy=0.02, recomputed_runs=7,
)  # fmt: skip
SLOW = dataclasses.replace(HALF, slower=0.2)
THIRD = dataclasses.replace(HALF, share=0.3, budget_bytes=9 << 19, slower=0.08, bound=0.01)
STEP = Measured(
    share=0.5, kept_seconds=0.1, slower=0.03, busy=0.02, waited_seconds=0.001, rounds=12, is_equal=True
)
GOOD = Found(
    plans=[HALF, THIRD], steps=[STEP, dataclasses.replace(STEP, share=0.3)], long_plans=[],
    keep_seconds=2.0, later_seconds=2.0, anew_seconds=2.9,
)  # fmt: skip


def test_goals_stand_beside_what_was_reached() -> None:
    met = page(dict.fromkeys(MEASURED, GOOD), 10.0)
    assert "**missed**" not in met
    assert "is missed by" not in met
    slow = dataclasses.replace(GOOD, plans=[SLOW, THIRD])
    missed = page({**dict.fromkeys(MEASURED, slow), "resnet18": GOOD}, 10.0)
    assert "5% slower | +20.0 %, +3.0 % by the bounds; 1 of 6 plans are | **missed** |" in missed
    assert "10% slower | +8.0 %, +1.0 % by the bounds; 6 of 6 plans are | met |" in missed
    assert "In compressed forms, the goal at 50% is missed by 5 of 6 plans. 5: open.\n" in missed
    bound = dataclasses.replace(GOOD, plans=[dataclasses.replace(SLOW, bound=0.06), THIRD])
    assert "by the bound. No plans have a median within it" in page({"vit": bound}, 10.0)


def test_steps_need_equal_bits_on_all_nets() -> None:
    other = dataclasses.replace(GOOD, steps=[dataclasses.replace(STEP, is_equal=False)])
    text = page({**dict.fromkeys(MEASURED, GOOD), "vit": other}, 10.0)
    assert "+3.0 % on 6, +2.0 % on the processor alone; equal bits on 5 | **missed** |" in text
    assert "+3.0 % on 5, +2.0 % on the processor alone; equal bits on 5 | **missed** |" in text
    assert "| vit | 50% | 100 ms | +4.0 % | +3.0 % | +2.0 % | 1 ms | 12 | **no** |" in text
    waiting = dataclasses.replace(STEP, slower=0.09)
    text = page({"vit": dataclasses.replace(GOOD, steps=[waiting])}, 10.0)
    assert "1 plans are slower than the median may be: 1 by waits for storage alone." in text
    text = page({"vit": dataclasses.replace(GOOD, plans=[SLOW], steps=[waiting])}, 10.0)
    assert "1 plans are slower than the median may be: 1 as predicted above the goal." in text


def test_a_slow_plan_has_a_reason() -> None:
    assert why(HALF) == ""
    assert why(SLOW) == "open"
    assert why(dataclasses.replace(SLOW, bound=0.06)) == "no plan is within the goal, by the bound"
    assert why(dataclasses.replace(SLOW, is_from_heap=True)) == "no arena was found"
    assert (
        why(dataclasses.replace(SLOW, budget_bytes=SLOW.least_bytes)) == "open, within 10% of the least RAM"
    )
    assert why(dataclasses.replace(SLOW, slower=None, status="no plan: late")) == "no plan was found"
    moving = dataclasses.replace(SLOW, moves=9, moved=0.16)
    assert why(moving) == "moves within the arena, without them it is within the goal"
    assert why(dataclasses.replace(moving, moved=0.12)) == "open, most of it moves within the arena"
    assert "| 9: +16.0 % |" in line("vit", moving)
    assert "| 9 |" in line("vit", dataclasses.replace(moving, moved=None))


def test_a_budget_below_the_bound_is_counted_and_not_in_the_median() -> None:
    below = dataclasses.replace(HALF, budget_bytes=1 << 20, slower=None, bound=None)
    text = page({"bert": dataclasses.replace(GOOD, plans=[below]), "vit": GOOD}, 10.0)
    assert (
        "| +4.0 %, +3.0 % by the bounds; 1 of 1 plans are; 1 more budgets are below the lower bound | met |"
        in text
    )
    assert "| below the bound |" in line("bert", below)
    assert why(below) == ""


def test_imports_are_judged_by_the_slowest() -> None:
    slow = dataclasses.replace(GOOD, later_seconds=4.0, anew_seconds=None)
    text = page({"vit": GOOD, "lstm": GOOD, "bert": slow}, 10.0)
    assert "with the trials of an earlier one | 2 of 3; median 1.00, most 2.00 | **missed** |" in text
    assert "with none | 2 of 2; median 1.45, most 1.45 | met |" in text
    assert "Not made when this page was written, of imports: bert." in text


def test_rows_that_are_there_are_not_made_again(tmp_path: Path) -> None:
    script = tmp_path / "made.py"
    script.write_text("import json, sys\nprint('words')\nprint(json.dumps(sys.argv[1:]))\n")
    kept = tmp_path / "rows" / "net.json"
    command = (str(script), "once")
    assert found_apart(kept, command, timeout_seconds=60.0, is_kept_only=True) is None
    assert found_apart(kept, command, timeout_seconds=60.0) == ["once"]
    assert found_apart(kept, (str(script), "twice"), timeout_seconds=60.0) == ["once"]
    assert json.loads(kept.read_text()) == ["once"]
