"""The way from a model to a plan, stage by stage (see `poet.api`), and what is planned beside it."""
