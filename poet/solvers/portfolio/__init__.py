"""The members of the portfolio: one idea each, and none knows another."""
