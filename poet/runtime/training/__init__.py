"""The trainer and what it is made of: open plans, evaluation, learning rates, budgets, shapes."""
