"""What belongs to one process: its managers' tasks, and objects that no other process can use.

This is the only module that creates tasks: each task has an owner, whose `aclose` waits for its
end.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import weakref
from collections.abc import Coroutine
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context
from typing import Any, NoReturn, Protocol, TypeVar

C = TypeVar("C", bound=type[Any])


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
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            task.get_loop().call_exception_handler(
                {"message": f"{task.get_name()} failed", "exception": error}
            )

    async def aclose(self) -> None:
        """Cancel what still runs and wait until it has ended."""
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


# ---- A forked child closes its copies of the parent's sockets without sending anything -----------
# A child shares its parent's sockets and epoll set. A byte, a TLS close_notify or a `shutdown` from
# the child would reach the parent's connection, and unregistering a socket that is still open would
# remove it from the parent's epoll set. So the child replaces each copy by a dead socket. The
# parent's connection goes on, and whatever the child's event loop later does with that file
# descriptor doesn't affect the parent.


class Inherited(Protocol):
    """An object that a forked child must not use like its parent."""

    def forked(self) -> None:
        """Stop using inherited resources, without sending anything; called in a forked child."""


_inherited: weakref.WeakSet[Inherited] = weakref.WeakSet()


def tell_child(what: Inherited) -> None:
    """Call `what.forked` in every child that is forked from now on; keeps only a weak reference."""
    _inherited.add(what)


def close_copy(fd: int) -> None:
    """Close this process's copy of a socket; its number stays in use until its owner closes it."""
    dead, peer = socket.socketpair()
    with dead, peer:
        peer.shutdown(socket.SHUT_RDWR)
        os.dup2(dead.fileno(), fd, inheritable=False)


def _in_child() -> None:
    for what in list(_inherited):
        what.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def of_one_process(cls: C) -> C:
    """Decorate a class whose objects can't be copied or pickled, nor what refers to them."""
    cls.__reduce__ = _refuse  # type: ignore[assignment]  # its self is typed as the class
    return cls


def _refuse(one: object) -> NoReturn:
    raise TypeError(
        f"{type(one).__name__} can't be copied or pickled, nor can an object that refers to it: "
        "managers, locks and leases belong to one process and loop. Pass on names, and call "
        "connect() there"
    )
