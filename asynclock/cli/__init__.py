"""The command line: `asynclock …` or `python -m asynclock …` (extra `[cli]`).

One module per command; what they share has an underscore. They are imported when a command runs,
so that `import asynclock` never costs a terminal library.
"""

from __future__ import annotations

import sys

_EXTRA = ("typer", "rich")


def main() -> None:
    """Run the program with the arguments of this process, and exit with its status."""
    try:
        from ._app import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        print(
            "asynclock: the command line needs an extra; install it with\n"
            "  pip install 'asynclock[cli]'",
            file=sys.stderr,
        )
        sys.exit(69)
    sys.exit(run(sys.argv[1:]))
