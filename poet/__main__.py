"""``poet`` and ``python -m poet``: the command line, or one line where what it needs is not installed."""

from __future__ import annotations

import sys

from poet.calibration.command import COMMAND
from poet.calibration.command import main as calibrate
from poet.errors import explained
from poet.util import interrupts
from poet.util.streams import drop_unread, say


def main() -> None:
    """Run the command line; exits with its code."""
    drop_unread()
    with interrupts.listening():
        try:
            from poet.cli.main import app

            app()
        except KeyboardInterrupt:  # torch and what searches take seconds to load
            drop_unread()
            say("poet: interrupted", err=True)
            sys.exit(interrupts.exit_code())
        except ModuleNotFoundError as error:
            if tuple(sys.argv[1:3]) == COMMAND:  # a board has torch alone
                sys.exit(calibrate(sys.argv[3:]))
            missing = explained(error)
            if missing is None:
                raise
            say(f"poet: {missing}", err=True)
            sys.exit(missing.exit_code)


if __name__ == "__main__":
    main()
