"""How programs are written down (`poet.solvers.event_model`)."""

from __future__ import annotations

from dataclasses import dataclass

from poet.tuning.fields import Checked, tuned


@dataclass(frozen=True, slots=True)
class ModelTuning(Checked):
    """How the event model is written down (`poet.solvers.event_model`).

    Attributes:
        tight_slots: up to so many, r, a and O are integer columns, which the cuts on memory rows count on;
            above, fewer integers leave the engine less to branch on. Off: never.
        dense_terms: events times memory rows, above which rows that list every gap are too dense, and sums
            are carried from row to row, by their number times a dozen bytes. Off: never.
        asked_inputs: at most, of the chain of inputs that are required at a window's last stage: as long as
            chains of recomputation usually are. Off: none.
        cut_sizes: the commonest sizes of a memory row, each tried as the unit of a knapsack cut: few sizes
            make up most of a net's tensors. Off: no knapsack cuts.
    """

    tight_slots: int = tuned(2500, off=0)
    dense_terms: int = tuned(10_000_000, off=1_000_000_000_000)
    asked_inputs: int = tuned(6, off=0)
    cut_sizes: int = tuned(3, off=0)


@dataclass(frozen=True, slots=True)
class OverlapTuning(Checked):
    """Transfers beside compute (`poet.solvers.instance.overlap`).

    Attributes:
        polished_steps: of a schedule at most whose frees and transfers are moved while that saves time: the
            places to try grow with the square of its length. Off: none is polished.
    """

    polished_steps: int = tuned(120, off=0)
