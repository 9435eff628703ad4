"""Second opinions on what one engine says of a search's problem: that a plan is optimal, or that none is."""

from __future__ import annotations

from poet.solvers.engines.confirm import Confidence, Confirmation, confirm
from poet.solvers.event_model.emit import schedule_of
from poet.solvers.event_model.model import matrix_of
from poet.solvers.search.best_bound import refutes
from poet.solvers.search.finders import EVERY_OP_ONCE, model_by
from poet.solvers.search.model_runs import ModelRuns
from poet.solvers.search.standing import Claim


class SecondOpinion:
    """Asks for them.

    Attributes:
        refuted_by: in words, who refuted the bound after it had closed the gap; empty where nobody did.
    """

    def __init__(self, runs: ModelRuns) -> None:
        self.runs, self.standing = runs, runs.standing
        self.refuted_by = ""

    def on_no_plan(self) -> Confirmation:
        """On the model that has no solution by an engine's word."""
        empty = self.standing.empty
        if empty is None:  # it follows from duals of a linear program, summed by our own code
            return Confirmation(Confidence.EXACT)
        with self.standing.recorder.phase("second opinion that there is no plan"):
            return self._confirm(empty, None)

    def on_the_bound(self) -> str:
        """What proves the bound of an optimal plan, in words; empty if it is not proven optimal."""
        standing, bound = self.standing, self.standing.bound
        if standing.best.trace is None or not standing.closed(bound.joules):
            return ""
        joules, known = standing.best.trace.joules, standing.known
        if known is not None and bound.joules <= known.joules and not refutes(joules, known.joules):
            return known.words
        if bound.alone:
            return Confirmation(Confidence.ALONE, ("highs",)).words
        claim = bound.claim
        if claim is None:
            return Confirmation(Confidence.EXACT).words
        if not standing.options.confirm:
            return Confirmation(Confidence.ALONE, (claim.engine,)).words
        allowed = joules - standing.options.allowed_gap_joules(joules, standing.baseline_joules)
        with standing.recorder.phase("second opinion on the bound"):
            confirmation = self._confirm(claim, allowed - standing.baseline_joules)
        if confirmation.confidence is Confidence.REFUTED:
            self.refuted_by = confirmation.words
        refuted_before = self.refuted_by and confirmation.confidence is Confidence.ALONE
        if confirmation.confidence is Confidence.REFUTED or refuted_before:
            bound.forget()
            standing.recorder.bound(bound.joules, EVERY_OP_ONCE)
        return confirmation.words

    def _confirm(self, claim: Claim, below: float | None) -> Confirmation:
        """A second opinion, in about the time that the search took; plans that contradict it are judged."""
        standing, tuning = self.standing, self.standing.tuning
        spent_seconds, left_seconds = standing.clock.now() - standing.started, standing.seconds_left()
        if left_seconds <= 0.0:
            return Confirmation(Confidence.ALONE, (claim.engine,))
        proof_seconds = max(tuning.proof_share * spent_seconds, tuning.proof_least_seconds)
        proof_seconds = min(proof_seconds, tuning.proof_most_seconds, tuning.proof_left_share * left_seconds)
        second_seconds = max(spent_seconds, tuning.confirm_least_seconds)
        second_seconds = min(second_seconds, left_seconds - proof_seconds)
        confirmation = confirm(
            matrix_of(claim.model),
            claim.engine,
            self.runs.effort(second_seconds, left_seconds - proof_seconds),
            proof_seconds=proof_seconds,
            below_joules=below,
        )
        if confirmation.values is not None:
            found_by = model_by(confirmation.engines[-1])
            standing.consider(schedule_of(claim.model, confirmation.values), found_by, is_ours=False)
        return confirmation
