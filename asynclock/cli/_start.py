"""Starts a command: `run` and `inspect` directly, all others through typer, a slow import."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence

from ._ending import guarded, raise_on_ctrl_c


def start(arguments: Sequence[str]) -> int:
    """Run the command in the arguments, and return the exit status."""
    if "_ASYNCLOCK_COMPLETE" not in os.environ:
        if arguments[:1] == ["run"] and (status := _run(arguments[1:])) is not None:
            return status
        if arguments[:1] == ["inspect"] and (status := _inspect(arguments[1:])) is not None:
            return status
    from ._app import run as run_app

    return run_app(arguments)


def _run(arguments: Sequence[str]) -> int | None:
    from .run.arguments import parse

    wanted = parse(arguments)
    if wanted is None:
        return None
    from .run.job import run

    return guarded(lambda: run(wanted))


def _inspect(arguments: Sequence[str]) -> int | None:
    from .look.held import parse, show

    wanted = parse(arguments)
    if wanted is None:
        return None
    raise_on_ctrl_c()
    # A list of thousands of locks makes many objects and drops none before this process ends:
    # looking for garbage among them would take a sixth of the time.
    gc.disable()
    return guarded(lambda: show(wanted))
