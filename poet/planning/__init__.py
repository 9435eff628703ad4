"""The way from a model to a plan, stage by stage (see `poet.api`), and its auxiliary schedules."""
