"""What training a batch in micro-batches buys: per number of them the least energy and RAM found."""

from __future__ import annotations

from collections.abc import Iterator

from poet.units import format_bytes, format_joules
from poet.whatif.result import Answer, Basis, Setting, WhatIf, micro_words
from poet.whatif.wording import per_sample, planned_points, proof_text, there, within_budget


def micro_batches(result: WhatIf) -> Iterator[Answer]:
    """Per device, sizes and optimizer a sentence, where batches were planned in several numbers of pieces."""
    for numbers in _compared(result):
        parts: list[str] = []
        points: list[int] = []
        figures: list[tuple[str, float]] = []
        for number in numbers:
            setting = result.settings[number]
            mine = [
                (per_sample(result, index), plan.peak_ram_bytes, index)
                for index, point, plan in planned_points(result)
                if point.setting == number
                and within_budget(plan, result.question.duty)
                and there(result, point, plan)
            ]
            if not mine:
                parts.append(f"{_called(setting)}: no plan was found")
                continue
            joules, _, best = min(mine)
            ram = min(peak for _, peak, _ in mine)
            plan = result.plan_of(result.points[best])
            assert plan is not None
            parts.append(
                f"{_called(setting)}: {format_joules(joules)} in {format_bytes(plan.peak_ram_bytes)} "
                f"({proof_text(result.points[best])}), {format_bytes(ram)} at least"
            )
            points.append(best)
            pieces = setting.micro_text or "1"
            figures += [(f"joules_{pieces}", joules), (f"peak_ram_bytes_{pieces}", float(ram))]
        where = ", ".join(filter(None, (setting.device, *_sizes(setting), setting.optimizer)))
        unit = "per sample" if setting.batch else "per step"
        yield Answer(
            "micro-batches",
            f"On {where}, least energy {unit} and least RAM of the plans found: {'; '.join(parts)}.",
            Basis.SOLVED,
            tuple(points),
            tuple(figures),
        )


def _compared(result: WhatIf) -> Iterator[list[int]]:
    """The settings that differ in their number of pieces alone, where there is more than one of them.

    A number that comes again is of other devices or optimizers of the same name, which are compared apart.
    """
    groups: dict[tuple[object, ...], list[dict[str | None, int]]] = {}
    for number, setting in enumerate(result.settings):
        mine = groups.setdefault((setting.device, setting.binding, setting.optimizer), [{}])
        if setting.micro_text in mine[-1]:
            mine.append({})
        mine[-1][setting.micro_text] = number
    return (list(group.values()) for mine in groups.values() for group in mine if len(group) > 1)


def _called(setting: Setting) -> str:
    return "whole batches" if setting.micro is None else micro_words(setting.micro)


def _sizes(setting: Setting) -> Iterator[str]:
    return (f"{name}={size}" for name, size in setting.binding)
