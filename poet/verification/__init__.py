"""Proof by trial that a plan is exact, or off by no more than its rounded pages allow."""

from poet.verification.check import verify
from poet.verification.reports import BitComparison, RoundingReport, VerifyReport

__all__ = ["BitComparison", "RoundingReport", "VerifyReport", "verify"]
