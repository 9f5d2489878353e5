"""Attempts for the tests: nodes whose replies are told by hand, and what is sent to them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from asynclock._engine.attempt import Attempt
from asynclock._engine.spec import LockSpec
from asynclock._engine.ticket import Ticket
from asynclock._nodes.replies import Failure
from asynclock._nodes.script import Command
from asynclock._primitives import lock
from asynclock._rules.pace import Paces

TTL = 10.0
SPEC = lock.spec("p:", "a")
SLOT = replace(SPEC, choose_slot=lambda *_: None)
AWAY = Failure("away")
OOM = Failure("OOM command not allowed", code="OOM")
STARTED = Failure("started 1 s ago", votes_from=5000.0)


class Peer:
    """A node that is asked and never replies by itself."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.lack: Failure | None = None
        self.barrier: Failure | None = None
        self.trust = SimpleNamespace(votes_from=0.0)
        self.asked: list[Command] = []

    def obstacle(self, _now: float) -> Failure | None:
        return self.barrier

    def note(self, lack: Failure | None) -> None:
        self.lack = lack

    def ask(self, command: Command, _sink: Any, _index: int, *, arm: bool = False) -> None:
        self.asked.append(command)


class Peers:
    """Some of them, and what is delivered to them, as (what, for whom, to which nodes)."""

    def __init__(self, size: int) -> None:
        self.nodes = [Peer(name) for name in "abcde"[:size]]
        self.quorum = size // 2 + 1
        self.everyone = tuple(range(size))
        self.woken: list[tuple[str, int]] = []
        self.counted: list[tuple[str, int]] = []
        self.wakeups = SimpleNamespace(
            wake=lambda key, node: self.woken.append((key, node)),
            count=lambda key, node: self.counted.append((key, node)),
        )
        self.sinks: list[Any] = []
        self.delivered: list[tuple[Any, Any, list[int]]] = []
        self.commands: list[Command] = []
        self.steps: list[str] = []

    def deliver(self, command: Command, sink: Any, indices: Sequence[int]) -> None:
        if indices:
            self.sinks.append(sink)
            self.delivered.append((command.args[0], command.args[1], sorted(indices)))
            self.commands.append(command)

    def flush(self) -> None:
        self.steps.append(f"flush after {sum(len(node.asked) for node in self.nodes)}")

    def write(self) -> None:
        self.steps.append("write")

    def fence_floor(self, _now: float) -> int:
        return 0

    def not_after(self, _until: float) -> int:
        return 1 << 50


@dataclass
class Made:
    """An attempt that is under way, and what it has to do with."""

    peers: Peers
    context: Any
    attempt: Attempt
    deciding: asyncio.Task[bool]

    def grant(self, index: int, fence: int = 7, waiter: bytes = b"") -> None:
        self.attempt.on_reply(index, [1, fence, waiter, 1 << 50])

    def refuse(self, index: int, number: int = 5, rank: int = 0) -> None:
        self.attempt.on_reply(index, [0, 9000, b"x", number, rank, 0, 1 << 50])

    async def won(self) -> bool:
        return await asyncio.wait_for(self.deciding, 1.0)


def around(*barriers: Failure | None, size: int = 3) -> tuple[Peers, Any]:
    """The nodes, and the context that an attempt needs."""
    peers = Peers(size)
    for node, barrier in zip(peers.nodes, barriers, strict=False):
        node.barrier = barrier
    context = SimpleNamespace(
        multiplexer=peers,
        undos={},
        loops={},
        clean_up=lambda act: act(),
        paces=Paces(),
        random=lambda: 0.5,
        retention=5000,
        settings=SimpleNamespace(node_timeout=1.0),
        counts=SimpleNamespace(write_backs=0),
        no_quorum_since=0.0,
    )
    return peers, context


async def begin(
    *barriers: Failure | None,
    spec: LockSpec = SPEC,
    ticket: Ticket | None = None,
    waits: tuple[Any, ...] = SPEC.waits,
    barge: bool = False,
    limit: float | None = None,
    size: int = 3,
) -> Made:
    peers, context = around(*barriers, size=size)
    attempt = Attempt(context, spec, TTL, ticket, waits, "me")
    if barge:
        attempt.barge()
    task = asyncio.create_task(attempt.decide(armed=False, limit=limit))
    await asyncio.sleep(0)
    return Made(peers, context, attempt, task)
