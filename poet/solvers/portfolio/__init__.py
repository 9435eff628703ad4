"""The members of the portfolio (`poet.solvers.portfolio.turns`): one idea each, and none knows another."""
