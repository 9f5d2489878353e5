"""Makes a forked child close its copies of the parent's sockets without sending anything.

A child shares its parent's sockets and epoll set. A byte, a TLS close_notify or a `shutdown` from
the child would reach the parent's connection, and unregistering a socket that is still open would
remove it from the parent's epoll set. So the child replaces each copy by a dead socket. The
parent's connection goes on, and whatever the child's event loop later does with that file
descriptor doesn't affect the parent.
"""

from __future__ import annotations

import os
import socket
import weakref
from typing import Any, NoReturn, Protocol, TypeVar


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


C = TypeVar("C", bound=type[Any])


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
