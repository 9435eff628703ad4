"""HiGHS in this process, ended by Ctrl-C at its next callback, after a simplex iteration or a node.

Python runs signal handlers between two of its own instructions, so none runs while HiGHS works. Its
callbacks are such instructions: a flag that the handler sets is passed on by them.
"""

from __future__ import annotations

from typing import Any

import highspy

from poet.interrupts import pass_on
from poet.solvers.engines.interrupt import sigint_flag


def run(highs: highspy.Highs) -> None:
    """As ``highs.run()``; a Ctrl-C meanwhile ends it, and is then answered as it would have been before."""
    kinds = highspy.cb.HighsCallbackType
    with sigint_flag() as pressed:

        def look(kind: Any, message: str, out: Any, into: Any, data: Any) -> None:
            if pressed:
                into.user_interrupt = True

        highs.setCallback(look, None)
        for kind in (kinds.kCallbackSimplexInterrupt, kinds.kCallbackMipInterrupt):
            highs.startCallback(kind)
        highs.run()
        highs.setCallback(None, None)
    if pressed:
        pass_on()
