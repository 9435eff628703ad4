"""Pages of reports for tests: of what plan, and what each page must be."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import vl_convert

from helpers import hand_net
from helpers.schedules import random_schedule
from poet.plans.training_plan import Plan
from poet.problem.search_record import Advance, Phase, Rejected, SearchRecord
from poet.problem.simulator import simulate

HOSTILE = '</script><img src=x onerror="window.owned=1"><!--{{7*7}}${1}\''


INSTANCE = Path(__file__).parents[1] / "instances" / "linear.m4.json"


class Page(HTMLParser):
    """The elements of a page: what it would load, its scripts, its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.handlers: list[str] = []
        self.scripts: list[str] = []
        self.data = ""
        self.policy = ""
        self.words: list[str] = []
        self._inside: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.loads += [value for key in ("src", "href", "data", "action") if (value := given.get(key))]
        self.handlers += [key for key in given if key.startswith("on")]
        if tag == "meta" and given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"] or ""
        if tag in ("script", "style"):
            self._inside = "data" if given.get("type") == "application/json" else tag
            if tag == "script" and self._inside == "script":
                self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside == "data":
            self.data += data
        elif self._inside is None:
            self.words.append(data)


def mixed_plan(name: str = "hand net") -> Plan:
    """A plan that recomputes and pages, of a model of any name."""
    graph = dataclasses.replace(hand_net.graph(), name=name)
    problem = hand_net.problem(graph)
    schedule = next(
        schedule
        for schedule in (random_schedule(problem, seed) for seed in range(100))
        if simulate(problem, schedule).recomputed_runs and simulate(problem, schedule).read_bytes
    )
    return hand_net.plan(problem, graph, schedule)


def searched(plan: Plan, by: str = "an engine") -> Plan:
    """``plan`` with a record of its search."""
    joules, once = plan.trace.joules, plan.problem.compute_joules
    spent = joules - once
    record = SearchRecord(
        (Phase("greedy plans", 0.02, 0.5, 1), Phase("round 1", 0.5, 30.0, 1, 99 * spent, spent / 2)),
        (Advance(0.4, once + 100 * spent, "greedy"), Advance(12.0, joules, by)),
        (Advance(0.0, once * (1 + 1e-12), "running every op once"), Advance(2.0, once + spent / 2, by)),
        (Rejected("memory", 3, 1),),
    )
    return dataclasses.replace(plan, outcome=dataclasses.replace(plan.outcome, record=record))


def check_page(text: str) -> dict[str, Any]:
    """A page loads nothing, runs the scripts that it vouches for, and holds its data; the data."""
    page = Page(text)
    assert page.loads == ["data:,"]
    assert page.handlers == []
    assert "connect-src" not in page.policy
    assert page.policy.startswith("default-src 'none'")
    digests = {base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in page.scripts}
    assert len(page.scripts) == 3
    assert set(re.findall(r"'sha256-([^']+)'", page.policy)) == digests
    data: dict[str, Any] = json.loads(page.data)
    for chart in data["charts"].values():
        vl_convert.vegalite_to_vega(chart)  # raises where the specification is not one
    for table in data["tables"].values():
        assert all(len(row) == len(table["columns"]) for row in table["rows"])
    return data
