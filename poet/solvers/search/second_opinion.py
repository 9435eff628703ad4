"""Second opinions on what one engine says of a search's problem: that a plan is optimal, or that none is."""

from __future__ import annotations

from poet.solvers.engines.proof import Confidence, Confirmation, confirm
from poet.solvers.portfolio.best_bound import refutes
from poet.solvers.portfolio.finders import REFUTED, model_by
from poet.solvers.portfolio.model_runs import ModelRuns
from poet.solvers.portfolio.state import Claim


class SecondOpinion:
    """Asks for them.

    Attributes:
        refuted_by: in words, who refuted the bound after it had closed the gap; empty where nobody did.
    """

    def __init__(self, runs: ModelRuns) -> None:
        self.runs, self.state = runs, runs.state
        self.refuted_by = ""

    def on_no_plan(self) -> Confirmation:
        """On the model that has no solution by an engine's word."""
        empty = self.state.empty
        if empty is None:  # it follows from duals of a linear program, summed by our own code
            return Confirmation(Confidence.EXACT)
        with self.state.recorder.phase("second opinion that there is no plan"):
            return self._confirm(empty, None)

    def on_the_bound(self) -> str:
        """What proves the bound of an optimal plan, in words; empty if it is not proven optimal."""
        state, bound = self.state, self.state.bound
        if state.best.trace is None or not state.closed(bound.joules):
            return ""
        joules, known = state.best.trace.joules, state.known
        if known is not None and bound.joules <= known.joules and not refutes(joules, known.joules):
            return known.words
        if bound.alone:
            return Confirmation(Confidence.ALONE, ("highs",)).words
        claim = bound.claim
        if claim is None:
            return Confirmation(Confidence.EXACT).words
        if not state.options.confirm:
            return Confirmation(Confidence.ALONE, (claim.engine,)).words
        allowed = joules - state.options.allowed_gap_joules(joules, state.baseline_joules)
        with state.recorder.phase("second opinion on the bound"):
            confirmation = self._confirm(claim, allowed - state.baseline_joules)
        if confirmation.confidence is Confidence.REFUTED:
            self.refuted_by = confirmation.words
        refuted_before = self.refuted_by and confirmation.confidence is Confidence.ALONE
        if confirmation.confidence is Confidence.REFUTED or refuted_before:
            bound.forget()
            state.recorder.bound(bound.joules, REFUTED)
        return confirmation.words

    def _confirm(self, claim: Claim, below: float | None) -> Confirmation:
        """A second opinion, in about the time that the search took; plans that contradict it are judged."""
        state, tuning = self.state, self.state.tuning
        spent_seconds, left_seconds = state.clock.now() - state.started, state.seconds_left()
        if left_seconds <= 0.0:
            return Confirmation(Confidence.ALONE, (claim.engine,))
        proof_seconds = max(tuning.proof_share * spent_seconds, tuning.proof_least_seconds)
        proof_seconds = min(proof_seconds, tuning.proof_most_seconds, tuning.proof_left_share * left_seconds)
        second_seconds = max(spent_seconds, tuning.confirm_least_seconds)
        second_seconds = min(second_seconds, left_seconds - proof_seconds)
        confirmation = confirm(
            claim.program(),
            claim.engine,
            self.runs.effort(second_seconds, left_seconds - proof_seconds),
            proof_seconds=proof_seconds,
            below_joules=None if below is None else below - claim.fixed_joules,
        )
        if confirmation.values is not None and claim.plan is not None:
            found_by = model_by(confirmation.engines[-1])
            state.consider(claim.plan(confirmation.values), found_by, is_ours=False)
        return confirmation
