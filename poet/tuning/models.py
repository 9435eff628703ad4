"""How programs are written down and run (`poet.solvers.event_model`, `poet.solvers.engines`)."""

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


@dataclass(frozen=True, slots=True)
class EnginesTuning(Checked):
    """How engines are run (`poet.solvers.engines`).

    Attributes:
        listen_seconds: between checks of Ctrl-C and the watcher while CP-SAT runs: a person does not notice
            the wait.
        cpsat_grace_seconds: beyond its time limit, after which CP-SAT is killed: presolve looks at its clock
            rarely.
        highs_grace_seconds: beyond its time limit, after which HiGHS in a child is not listened to any more:
            time limits are kept within half a second.
        tell_seconds: between two bounds that HiGHS in a child tells, and looks of a child at what it holds:
            fresh enough for whoever watches, rare enough to cost nothing.
        counted_seconds: of the wall clock, between two checks of a child whose work is counted: it is heard
            only when it has ended.
        silent_seconds: of the wall clock, without a word of such a child, after which it counts as hung:
            programs whose work is counted speak several times a second.
        held_bytes: of RAM, that a search and its engine in a child may hold together; beyond it the child
            ends its program with what it has found. Off: it takes what it takes.
        column_bytes: by each column of a program, where that is more: large ones begin with more.
        begin_bytes: of what this process holds as a search begins, that counts as the search's, about what it
            takes to solve a problem's file: the rest is the app's, torch's for example.
        child_bytes: that the child may hold in any case, however much this process does.
        proof_factors: of a program at most that is proven empty in exact fractions: summing up larger ones
            takes more than the second that a proof has. Off: nothing is.
    """

    listen_seconds: float = 0.05
    cpsat_grace_seconds: float = 5.0
    highs_grace_seconds: float = 0.5
    tell_seconds: float = 0.2
    counted_seconds: float = 1.0
    silent_seconds: float = 120.0
    held_bytes: int = tuned(440_000_000, off=0)
    column_bytes: int = 10_000
    begin_bytes: int = 50_000_000
    child_bytes: int = 120_000_000
    proof_factors: int = tuned(400_000, off=0)
