"""The command line: one typer command per file, a few lines each."""
