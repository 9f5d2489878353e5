"""Starts a command: `run` directly, all others through typer, whose import takes long."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ._ending import guarded


def start(arguments: Sequence[str]) -> int:
    """Run the command in the arguments, and return the exit status."""
    if arguments[:1] == ["run"] and "_ASYNCLOCK_COMPLETE" not in os.environ:
        from .run.arguments import parse

        wanted = parse(arguments[1:])
        if wanted is not None:
            from .run.job import run

            return guarded(lambda: run(wanted))
    from ._app import run as run_app

    return run_app(arguments)
