"""HiGHS here and CP-SAT in a child, on a core each: what one finds or proves serves both."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from poet.solvers.engines.cpsat import CpSatProcess
from poet.solvers.engines.highs import run_highs
from poet.solvers.engines.outcome import Job, Outcome


def run_portfolio(job: Job) -> Outcome:
    """Both engines at once; the first to finish ends the other.

    Raises:
        InputError: the child process does not come up.
    """
    alone = dataclasses.replace(job, effort=dataclasses.replace(job.effort, threads=1))
    with CpSatProcess(alone) as child:

        def watch(values: Sequence[float] | None, bound_joules: float) -> bool:
            stop = False
            if job.watcher is not None:
                for found in child.listen(0.0):
                    job.watcher(found, max(bound_joules, child.bound_joules))
                stop = job.watcher(values, max(bound_joules, child.bound_joules))
            else:
                child.listen(0.0)
            return stop or child.ended

        here = run_highs(
            dataclasses.replace(alone, watcher=watch), found_elsewhere=lambda: child.answer.values
        )
        child.listen(0.0)
        there = child.outcome(interrupted=False)
    return _together(job, here, there)


def _together(job: Job, here: Outcome, there: Outcome) -> Outcome:
    found = [outcome.values for outcome in (here, there) if outcome.values is not None]
    values = min(found, key=job.matrix.joules, default=None)
    return Outcome(
        values=values,
        bound_joules=max(here.bound_joules, there.bound_joules),
        done=here.done or there.done,
        infeasible=here.infeasible or there.infeasible,
        interrupted=here.interrupted,
    )
