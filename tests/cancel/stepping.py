"""Cancels a coroutine at one await point, chosen by number: no luck, no sleeps."""

import asyncio
import functools
from collections.abc import Coroutine, Generator
from typing import Any, Literal

Moment = Literal["waiting", "resuming"]
"""When: while it waits there, or in the moment between the wake-up and its next step."""


class CancelledAt:
    """`await` it as the whole work of a task: `coroutine`, cancelled at await point `point`.

    `reached` tells whether there was such a point; without one the coroutine runs to its end.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any], point: int, moment: Moment) -> None:
        self._coroutine = coroutine
        self._left = point
        self._moment = moment
        self.reached = False

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._coroutine.__await__()
        advance: Any = steps.__next__
        while True:
            try:
                awaited = advance()
            except StopIteration as end:
                return end.value
            if self._left == 0:
                self._strike(awaited)
            self._left -= 1
            try:
                yield awaited
                advance = steps.__next__
            except BaseException as error:
                advance = functools.partial(steps.throw, error)

    def _strike(self, awaited: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.reached = True
        if self._moment == "waiting" or not isinstance(awaited, asyncio.Future):
            task.cancel()
        else:
            # Called before the task's own wake-up, which is registered after it.
            awaited.add_done_callback(lambda _: task.cancel())


async def cancelled_at(coroutine: Coroutine[Any, Any, Any], point: int, moment: Moment) -> bool:
    """Run `coroutine` in a task of its own, cancelled at `point`. Return whether it got that far.

    What it raises besides the cancellation is raised here.
    """
    work = CancelledAt(coroutine, point, moment)

    async def run() -> Any:
        return await work

    task = asyncio.ensure_future(run())
    await asyncio.wait([task], timeout=20)
    assert task.done(), f"hangs after a cancellation at await point {point} ({moment})"
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error
    return work.reached
