"""The large-neighbourhood search."""

from __future__ import annotations

from dataclasses import dataclass

from poet.tuning.fields import Checked, tuned


@dataclass(frozen=True, slots=True)
class RoundsTuning(Checked):
    """Rounds of the large-neighbourhood search (`poet.solvers.portfolio.neighbourhoods`).

    Attributes:
        gap_share: of its joules, at which a part counts as solved: less would not be seen in the sum of a
            step.
        first_decisions: that the first round leaves free: small enough to be solved at once; later rounds
            adapt.
        least_decisions: that any round leaves free: smaller parts have little to trade.
        listen_seconds: between looks at a child, as of the large search.
        stretch_counts: of the step that a round frees, of which one is drawn: one stretch mostly, several at
            times, because RAM freed in one can be spent in another. Off: one stretch in every round.
        disputed_share: of a tensor version, from which on they disagree: above an engine's tolerance, below
            anything a plan means.
        least_weight: of a decision that is not in dispute, when the middle of a stretch is drawn; a whole
            version in dispute weighs 1 more. Not 0, because relaxations are wrong at places.
        easy_share: of a round's time, less than which it was easy, so that more can be freed without running
            out of it. Off: none was.
        growth_factor: of the decisions after an easy round: slowly, as the time of a program grows faster
            than its size. Off: no growth.
        shrink_factor: of the decisions after a round that ran out of time: about what two easy rounds before
            it added. Off: no shrinking.
        begin_share: of the time left, for each program that looks for a first plan: two get a turn and leave
            time to improve what they find.
    """

    gap_share: float = 1e-5
    first_decisions: int = 100
    least_decisions: int = 40
    listen_seconds: float = 0.05
    stretch_counts: tuple[int, ...] = tuned((1, 1, 2, 3), off=(1,))
    disputed_share: float = 0.01
    least_weight: float = 0.02
    easy_share: float = tuned(0.3, off=0.0)
    growth_factor: float = tuned(1.3, off=1.0)
    shrink_factor: float = tuned(0.7, off=1.0)
    begin_share: float = 0.4
