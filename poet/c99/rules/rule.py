"""What a rule is: from a run of an op to its calls."""

from __future__ import annotations

from collections.abc import Callable

from poet.c99.calls import CCall, OpRun

Rule = Callable[[OpRun], list[CCall]]
