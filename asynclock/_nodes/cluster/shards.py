"""The shards of a cluster, as the views of its servers show them.

https://redis.io/docs/latest/commands/cluster-slots/
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import count
from typing import Any

from ..._keys import HASH_TAG, PRIMARY, derived, lock_key
from ..replicated import SILENT, understood
from ..wire import Command, Failure, number, parse_info

SLOTS = 16_384
MAX_SOURCES = 7
"""Number of servers that are asked for their view; with more primaries, all primaries are asked."""
QUESTIONS = (Command.plain("CLUSTER", "SLOTS"), Command.plain("CLUSTER", "INFO"))

Address = tuple[str, int]


@dataclass(slots=True)
class Shard:
    """A primary in the view: its number of replicas and one slot that it serves."""

    replicas: int
    slot: int


@dataclass(slots=True)
class View:
    """The cluster as one server sees it; the view with the highest epoch is the newest."""

    epoch: int
    owners: list[Address | None] = field(default_factory=lambda: [None] * SLOTS)
    """The primary of each slot."""
    shards: dict[Address, Shard] = field(default_factory=dict)
    others: set[Address] = field(default_factory=set)
    """The replicas, which also have a view of the cluster."""

    @property
    def sources(self) -> Sequence[Address]:
        """The servers to ask for the next view."""
        replicas = list(self.others)[: max(1, MAX_SOURCES - len(self.shards))]
        return (*self.shards, *replicas)


def read_view(asked: Address, slots: Any, info: Any) -> View | None:
    """Return the view in the answers of server `asked` to QUESTIONS; None if it has none."""
    if not slots:
        return None
    view = View(number(parse_info(info), "cluster_current_epoch") or 0)
    for first, last, primary, *replicas in slots:
        owner = _address(primary, asked)
        view.owners[first : last + 1] = [owner] * (last + 1 - first)
        view.shards.setdefault(owner, Shard(len(replicas), first))
        view.others.update(_address(replica, asked) for replica in replicas)
    view.others -= view.shards.keys()
    return view


def _address(server: Sequence[Any], asked: Address) -> Address:
    # A server that doesn't know its own host name leaves it out: then it is the one we asked.
    host = (server[0] or b"").decode()
    return (host if host not in ("", "?") else asked[0], int(server[1]))


def read_redirect(cause: str, asked: str) -> Address | None:
    """Return the address in `MOVED 3999 host:port` or `ASK 3999 host:port`; None without one.

    Without a host, the redirect is to another port of the server at `asked`.
    """
    words = cause.split()
    if len(words) < 3:
        return None
    host, _, port = words[2].rpartition(":")
    host = host or asked.rpartition(":")[0]
    return (host.strip("[]"), int(port)) if port.isdigit() else None


def key_slot(key: bytes) -> int:
    """Return the hash slot of a key, as redis-py does, whose import takes a fifth of a second."""
    _, _, rest = key.partition(b"{")
    tag, brace, _ = rest.partition(b"}")
    return crc_hqx(tag if brace and tag else key, 0) % SLOTS


@lru_cache(maxsize=1024)
def slot_of(key: str) -> int:
    """Return the slot of a key. All keys of a command are of one name, so they have one slot."""
    return key_slot(key.encode("utf-8", "surrogateescape"))


@lru_cache(maxsize=64)
def mark_key(prefix: str, slot: int) -> str:
    """Return the key of the mark of the primary that serves this slot."""
    for tag in map(str, count()):
        if key_slot(tag.encode()) == slot:
            return derived(lock_key(prefix + HASH_TAG, tag), PRIMARY)
    raise AssertionError


def read_views(
    asked: Sequence[Address], answers: Sequence[Sequence[Any]]
) -> tuple[dict[Address, View], list[Failure]]:
    """Return the view of each server that has one, and why others have none."""
    found = {
        address: understood(partial(read_view, address), answer)
        for address, answer in zip(asked, answers, strict=True)
    }
    views = {address: view for address, view in found.items() if isinstance(view, View)}
    return views, [view for view in found.values() if isinstance(view, Failure)]


def why_none(failures: Sequence[Failure]) -> Failure:
    """Return why no server has a view."""
    known = [failure for failure in failures if failure is not SILENT]
    causes = "; ".join(sorted({failure.cause for failure in known}))
    hopeless = bool(known) and all(failure.permanent for failure in known)
    cause = f"no server reported the slots ({causes or 'none are assigned'})"
    return Failure(cause, permanent=hopeless)


def confirmations(view: View, views: Mapping[Address, View]) -> dict[Address, int]:
    """Return for each primary of `view` how many primaries name it as the owner of its slots."""
    voters = [views[address] for address in view.shards if address in views]
    return {
        address: sum(voter.owners[shard.slot] == address for voter in voters)
        for address, shard in view.shards.items()
    }
