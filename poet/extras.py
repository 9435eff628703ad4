"""How to install an optional part. Poet is installed from a clone: ``poet`` on the public index is another
project's package, so no message may send anybody there.
"""

from __future__ import annotations


def how_to_install(*extras: str) -> str:
    """The command that adds the named extras of ``pyproject.toml``, and where to run it."""
    return f"pip install '.[{','.join(extras)}]' in a clone of poet"
