"""Who serves which slot, as the servers themselves tell it.

https://redis.io/docs/latest/commands/cluster-slots/
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import Any

from redis.crc import key_slot

from ..link import Failure
from ..script import Command

SLOTS = 16_384
SILENT = Failure("no answer yet")
QUESTIONS = (Command.plain("CLUSTER", "SLOTS"), Command.plain("CLUSTER", "INFO"))

Address = tuple[str, int]


@dataclass(slots=True)
class Shard:
    """A primary of the view, the replicas that are alive, and one slot that it serves."""

    replicas: int
    slot: int


@dataclass(slots=True)
class View:
    """What one server says of the cluster; the highest epoch is the newest."""

    epoch: int
    owners: list[Address | None] = field(default_factory=lambda: [None] * SLOTS)
    """Slot → its primary."""
    shards: dict[Address, Shard] = field(default_factory=dict)
    others: set[Address] = field(default_factory=set)
    """The replicas: they know the cluster, too."""


def read_view(asked: Address, slots: Any, info: Any) -> View | None:
    """The view in the answers to QUESTIONS of the server `asked`; None if there is none."""
    if isinstance(slots, Failure) or isinstance(info, Failure) or not slots:
        return None
    text = info if isinstance(info, str) else info.decode("utf-8", "replace")
    said = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    view = View(int(said.get("cluster_current_epoch") or 0))
    for first, last, primary, *replicas in slots:
        owner = _address(primary, asked)
        view.owners[first : last + 1] = [owner] * (last + 1 - first)
        view.shards.setdefault(owner, Shard(len(replicas), first))
        view.others.update(_address(replica, asked) for replica in replicas)
    view.others -= view.shards.keys()
    return view


def _address(server: Sequence[Any], asked: Address) -> Address:
    # Where its own name is unknown to a server, it means: the one that you have asked.
    host = (server[0] or b"").decode()
    return (host if host not in ("", "?") else asked[0], int(server[1]))


def read_redirect(cause: str, asked: Address) -> Address | None:
    """The address in `MOVED 3999 host:port` or `ASK 3999 host:port`."""
    words = cause.split()
    if len(words) < 3:
        return None
    host, _, port = words[2].rpartition(":")
    return (host.strip("[]") or asked[0], int(port)) if port.isdigit() else None


def slot_of(command: Command) -> int | None:
    """The slot of all its keys; None if they lie in several."""
    slots = {key_slot(key.encode("utf-8", "surrogateescape")) for key in command.keys}
    return slots.pop() if len(slots) == 1 else None


@lru_cache(maxsize=64)
def mark_key(prefix: str, slot: int) -> str:
    """The key of the mark (see primary.py) of whoever serves this slot.

    Lock keys go on with "{" after the prefix: none can look like this.
    """
    for number in count():
        if key_slot(str(number).encode()) == slot:
            return f"{prefix}:{{{number}}}:fence"
    raise AssertionError


class Views:
    """The sink for what several servers say: slots under 2i, info under 2i + 1."""

    def __init__(self, asked: Sequence[Address], patience: float) -> None:
        self._loop = asyncio.get_running_loop()
        self.complete: asyncio.Future[None] = self._loop.create_future()
        self._asked = asked
        self._patience = patience
        """Seconds for the others once somebody has answered: one may be frozen."""
        self._said: dict[int, Any] = {}
        self._hurried = False

    def cast(self, index: int, reply: Any) -> None:
        """Keep one answer."""
        self._said[index] = reply
        if len(self._said) == 2 * len(self._asked):
            self._finish()
        elif not self._hurried and not isinstance(reply, Failure):
            self._hurried = True
            self._loop.call_later(self._patience, self._finish)

    def _finish(self) -> None:
        if not self.complete.done():
            self.complete.set_result(None)

    def newest(self) -> View | Failure:
        """The newest view, or why there is none."""
        views = []
        said = [self._said.get(index, SILENT) for index in range(2 * len(self._asked))]
        for address, slots, info in zip(self._asked, said[::2], said[1::2], strict=True):
            view = read_view(address, slots, info)
            if view is not None:
                views.append(view)
        if views:
            return max(views, key=lambda view: view.epoch)
        failures = [reply for reply in self._said.values() if isinstance(reply, Failure)]
        causes = "; ".join(sorted({failure.cause for failure in failures}))
        hopeless = bool(failures) and all(failure.permanent for failure in failures)
        cause = f"no server told the slots ({causes or 'none are assigned'})"
        return Failure(cause, permanent=hopeless)
