"""``python -m poet.solvers.engines``: an engine in a process of its own, which `EngineProcess` starts."""

from poet.solvers.engines.process import main

main()
