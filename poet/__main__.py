"""``poet`` and ``python -m poet``: the command line, or one line where what it needs is not installed."""

from __future__ import annotations

import sys

from poet.calibration.command import COMMAND
from poet.calibration.command import main as calibrate
from poet.errors import INTERRUPTED
from poet.extras import explained


def main() -> None:
    """Run the command line; exits with its code."""
    try:
        from poet.cli.main import app
    except KeyboardInterrupt:  # torch and what searches take seconds to load
        print("poet: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except ModuleNotFoundError as error:
        if tuple(sys.argv[1:3]) == COMMAND:  # a board has torch alone
            sys.exit(calibrate(sys.argv[3:]))
        missing = explained(error)
        if missing is None:
            raise
        print(f"poet: {missing}", file=sys.stderr)
        sys.exit(missing.exit_code)
    app()


if __name__ == "__main__":
    main()
