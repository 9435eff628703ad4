"""How to install an optional part. Poet is installed from a clone: ``poet`` on the public index is another
project's package, so no message may send anybody there.
"""

from __future__ import annotations

from importlib.util import find_spec

from poet.errors import MissingPackage

PLAN_PACKAGES = ("highspy", "joblib", "numba", "onnx", "pulp", "pydantic", "rich", "scipy", "typer")
"""What planning and the commands import beyond torch and numpy: the extra ``plan``."""


def how_to_install(*extras: str) -> str:
    """The command that adds the named extras of ``pyproject.toml``, and where to run it."""
    return f"pip install '.[{','.join(extras)}]' in a clone of poet"


def check_installed(package: str) -> None:
    """For a room that cannot do without ``package``, one of `PLAN_PACKAGES`.

    Raises:
        MissingPackage: it is not installed.
    """
    if find_spec(package) is None:
        raise _missing(package)


def explained(error: ModuleNotFoundError) -> MissingPackage | None:
    """The line for a user where what could not be imported belongs to the extra ``plan``."""
    package = (error.name or "").partition(".")[0]
    if isinstance(error, MissingPackage) or package not in PLAN_PACKAGES:
        return None
    return _missing(package)


def _missing(package: str) -> MissingPackage:
    """Names all that are missing, so that nobody installs them one by one."""
    absent = sorted({package, *(name for name in PLAN_PACKAGES if find_spec(name) is None)})
    verb = "are" if len(absent) > 1 else "is"
    return MissingPackage(
        f"planning and the commands need {', '.join(absent)}, which {verb} not installed: "
        + how_to_install("plan")
    )
