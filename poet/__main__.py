"""``python -m poet``: the command line, where the script ``poet`` is not in the path."""

from __future__ import annotations

from poet.cli.main import app

if __name__ == "__main__":
    app()
