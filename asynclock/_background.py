"""The only module that creates tasks: each task has an owner, whose `aclose` waits for its end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context
from typing import Any


async def wait_out(task: asyncio.Task[Any]) -> None:
    """Wait until `task` has ended, even when cancelled; raise the cancellation afterwards."""
    cancelled: asyncio.CancelledError | None = None
    with _shield():
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        raise cancelled


def _shield() -> AbstractContextManager[object]:
    """Keep out anyio's cancellation, which repeats in every round of the loop.

    A task can only be in a scope of anyio if anyio has been imported. A program that did not import
    it need not do so when it ends: that takes a fifth of the time of `asynclock run x -- true`.
    """
    if "anyio" not in sys.modules:
        return nullcontext()
    import anyio

    return anyio.CancelScope(shield=True)


class Background:
    """The tasks of one manager; none outlives `aclose`."""

    def __init__(self) -> None:
        # In order of creation, so that a simulation ends them in the same order every time.
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def spawn(self, work: Coroutine[Any, Any, object], name: str) -> asyncio.Task[Any]:
        """Start `work` in a task. Its exceptions go to the loop's exception handler.

        The task gets an empty context. Otherwise it would keep the context variables of the caller
        that happened to start it, and use them in its work for other callers.
        """
        create = asyncio.get_running_loop().create_task
        task = Context().run(create, work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            task.get_loop().call_exception_handler(
                {"message": f"asynclock: {task.get_name()} failed", "exception": error}
            )

    async def aclose(self) -> None:
        """Cancel what still runs and wait until it has ended."""
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
