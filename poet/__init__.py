"""Plans and replays neural-network training on devices that are too small for it.

The names below are imported when they are first used, so that `import poet.runtime` on a device
needs nothing but torch, numpy and safetensors.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from poet.problem import Limits as Limits
    from poet.problem import Problem as Problem
    from poet.simulator import simulate as simulate

__version__ = "0.1.0"

_HOMES = {
    "Limits": "poet.problem",
    "Problem": "poet.problem",
    "simulate": "poet.simulator",
}
__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'poet' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
