"""One random schedule: clients at work, faults, and what must be true in spite of them."""

import asyncio
import contextlib
import logging
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from asynclock._rules.seeking import SETTLING
from asynclock.testing.memory import MemoryNode
from tests.engine.virtual_nodes import PATIENCE
from tests.simulation import faults, shapes, tasks  # noqa: F401  # they fill OPERATIONS
from tests.simulation.clients import OPERATIONS
from tests.simulation.coincidences import COINCIDENCES
from tests.simulation.order import Order
from tests.simulation.plans import Plan, plan_of
from tests.simulation.records import Findings, Records
from tests.simulation.shapes import States
from tests.simulation.world import NODE_TIMEOUT, TTL, Process, World, played_in

FAULTS = {**faults.FAULTS, **COINCIDENCES}
AFTERWARDS = 1.5
"""Seconds after all has healed after which no key may be left: far less than a ttl."""
TOO_LATE = 8 * NODE_TIMEOUT + 0.05 + 1.0
"""Seconds after which no request is executed any more: eight node timeouts, a grace, and half of
the longest handshake, by which an estimate of a node's clock may be wrong. Besides, what the
clocks of the nodes differ by: a request carries one bound for all of them."""
WELL = ("up", "quarantined")
"""States of a node that nothing is wrong with any more."""
SOON = 0.5
"""Seconds after which nothing is left where nothing fails but the odd late piece."""
RELEASES = 6
"""How many times a release may be sent to one node."""
LATE = 0.05
"""Seconds that a loop may be busy before it looks at a clock."""


class Run:
    """Plays one seed."""

    def __init__(self, seed: int, plan: Plan) -> None:
        self.plan = plan
        self.world = World(seed, plan.nature)
        self.random: random.Random = self.world.random
        self.found = Findings(seed, plan.name)
        self.records = Records(self.world, self.found, timely=plan.timely)
        self.accuse = self.records.accuse
        self.states = States()
        self.order = Order(self)
        # What faults remember:
        self.healed = False
        """Whether faults have had their time."""
        self.jumped: set[int] = set()
        self.to_see: dict[int, tuple[int, Sequence[Callable[[], bool]]]] = {}
        """For each node whose clock jumped: in which direction, and which clients have seen it."""
        self.set_back: defaultdict[int, float] = defaultdict(float)
        """Seconds by which each node's clock was set back, all in all."""
        self.forgot: set[int] = set()
        self.paused: list[Process] = []
        self.flapping = False
        self.restarts = 0
        self.next_restart = 0.0
        # What operations remember:
        self.numbers = 0
        self.waiting = 0
        self.last_waiter = 0.0
        self.closed: dict[bytes, float] = {}
        """When each short-lived manager was closed, by its label."""

    def play(self) -> Findings:
        world = self.world
        with played_in(world), _quiet():
            try:
                world.loop.run_until_complete(self._main())
            except Exception as error:
                self.accuse(f"{type(error).__name__}: {error}")
            finally:
                with contextlib.suppress(RuntimeError):
                    world.loop.close()
        self.records.close(falls=self.plan.rising)
        self.found.trace, self.found.log = world.trace, world.log
        self.found.counts += world.counts
        return self.found

    async def _main(self) -> None:
        world, loop = self.world, self.world.loop
        loop.set_exception_handler(lambda _, context: self.accuse(f"unhandled: {context}"))
        world.start()
        workers = [
            process.spawn(self._work(process), f"w{number}")
            for process in world.processes
            for number in range(self.plan.tasks)
        ]
        raging = loop.create_task(self._rage())
        watch = loop.create_task(self._watch())
        await raging
        faults.heal(self)
        if not await self._all_end():
            return
        for task in workers:
            task.result()
        await self._settle()
        self._count()
        await self._judge_the_rest()
        watch.cancel()
        await self._close()

    async def _all_end(self) -> bool:
        until = self.world.loop.now + 60
        while busy := [task for process in self.world.processes for task in process.tasks]:
            _, late = await asyncio.wait(busy, timeout=until - self.world.loop.now)
            if late:
                self.accuse(f"these never end: {sorted(task.get_name() for task in late)}")
                return False
        return True

    async def _rage(self) -> None:
        until = self.world.loop.now + self.plan.horizon
        amnesia = self.world.nature.floors
        kinds = [kind for kind in self.plan.faults if amnesia or kind not in faults.AMNESIA]
        self.random.shuffle(kinds)
        kinds = kinds[: self.random.randint(1, len(kinds))] if kinds else []
        pace = self.random.uniform(*self.plan.pace)
        while self.world.loop.now < until:
            await asyncio.sleep(self.random.expovariate(pace))
            if kinds:
                kind = self.random.choice(kinds)
                self.found.counts[f"fault {kind}"] += 1
                FAULTS[kind](self)

    def later(self, mean: float, undo: Callable[[], None]) -> None:
        self.world.loop.call_later(self.random.expovariate(1 / mean), undo)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.plan.watch)
            self.records.look()
            self.order.look()
            for node in self.world.nodes:
                self._look_at_keys(node)
                if self.world.nature.late > AFTERWARDS and not self.jumped:
                    self._look_for_ghosts(node)
            self._count_releases()

    def _look_at_keys(self, node: MemoryNode) -> None:
        keys, now = node.keys, self.world.loop.now
        calm = not self.plan.faults
        for key, value in keys.values.items():
            expiry = keys.expiries.get(key)
            if expiry is None:
                self.accuse(f"{key!r} on {node.name} lives for ever")
            elif "phases" in self.plan.strict and key.endswith(b":#phases") and keys.now() < expiry:
                if not self.waiting and now - self.last_waiter > SOON:
                    self.accuse(f"{key!r} on {node.name} is left, and nobody waits")
            elif calm and type(value) is bytes and keys.now() < expiry:
                closed = self.closed.get(value.partition(b":")[2])
                if closed is not None and now - closed > SOON:
                    self.accuse(f"{key!r} on {node.name} is left by a manager that was closed")

    def _count_releases(self) -> None:
        """However often a node comes and goes, it is not sent many more releases than acquires."""
        for process in self.world.processes:
            for number, route in enumerate(process.routes):
                if route.releases <= RELEASES * 10:
                    continue
                attempts = process.locks.statistics().attempts
                if route.releases > RELEASES * (attempts + 10):
                    self.accuse(
                        f"{process.name} sent n{number} {route.releases} releases"
                        f" after {attempts} attempts"
                    )
                    route.releases = 0

    # ---- clients -------------------------------------------------------------------------------

    async def _work(self, process: Process) -> None:
        loop = self.world.loop
        until = loop.now + self.plan.horizon
        kinds, weights = zip(*self.plan.operations.items(), strict=True)
        while loop.now < until:
            await asyncio.sleep(self.random.expovariate(self.plan.eagerness))
            (kind,) = self.random.choices(kinds, weights)
            self.found.counts[kind] += 1
            task = process.spawn(OPERATIONS[kind](self, process), kind)
            if self.random.random() < self.plan.cancels:
                loop.call_later(self.random.expovariate(1.0), task.cancel)
            await asyncio.wait([task])
            if not task.cancelled() and (error := task.exception()) is not None:
                self.accuse(f"{task.get_name()}: {type(error).__name__}: {error}")

    def check_patience(
        self, process: Process, began: float, patience: float, *, settled: bool
    ) -> None:
        """A wait that began then has ended now: too late? `settled`: it met a split vote."""
        if process.stood_still_until > began:
            return
        took = self.world.loop.now - max(began, process.frozen_until)
        # The first attempt is always made whole: a request, its healing where the node has
        # forgotten the script, and a write-back, with a node timeout for each.
        most = patience + 3 * NODE_TIMEOUT
        if settled:
            most = max(most, SETTLING * NODE_TIMEOUT)
        if took > most + LATE:
            self.accuse(f"{process.name}: an acquire took {took:.3f} s of {patience:.3f} s")

    # ---- the end -------------------------------------------------------------------------------

    async def _settle(self) -> None:
        """Check what is left behind once all faults have ended and no task wants a lock."""
        if self.world.nature.late > AFTERWARDS:
            # A release may be as late as anything; the watch sees that no acquire is.
            await asyncio.sleep(self.world.nature.late + TTL)
            return
        await asyncio.sleep(AFTERWARDS)
        if self.jumped and self.world.lock_keys():
            # On a node whose clock was set back, a late request may still be executed, and the
            # ticket of a waiter whose replies were lost stays: the node's clock ends both.
            await asyncio.sleep(max(self.set_back.values(), default=0.0) + 2 * TTL)
        elif self.world.lock_keys():
            # A waiter whose last request was lost is in the queue until its ticket has expired.
            await asyncio.sleep(PATIENCE)
        if left := self.world.lock_keys():
            self.accuse(f"keys are left: {left}")

    def _look_for_ghosts(self, node: MemoryNode) -> None:
        """No key was set for an owner that had been given up long before."""
        clocks = [one.wall() for one in self.world.nodes]
        too_late = TOO_LATE + max(clocks) - min(clocks)
        for key, value in node.keys.values.items():
            left = (node.keys.expiries.get(key, 0) - node.keys.now()) / 1000
            born = self.world.loop.now + left - TTL
            asked = self.world.given_up.get(value, inf) if type(value) is bytes else inf
            if left > 0 and born > asked + too_late:
                self.accuse(f"{key!r} on {node.name} was locked by a request of long ago")

    async def _judge_the_rest(self) -> None:
        """Nothing is held, and everything can be locked."""
        for process in self.world.processes:
            if held := process.locks.leases():
                self.accuse(f"{process.name} still holds {held}")
            await process.spawn(self._probe(process), "probe")
            await self._see_all_nodes(process)

    async def _probe(self, process: Process) -> None:
        """Everything can be locked again, once the last quarantine is over."""
        for name in self.plan.names:
            patience = 1.5 * TTL + 3 * self.world.nature.late
            try:
                async with process.locks.lock(name, timeout=patience):
                    pass
            except Exception as error:
                self.accuse(f"{process.name} can't lock {name} any more: {error}")

    async def _see_all_nodes(self, process: Process) -> None:
        for _ in range(20):
            ill = [node for node in process.locks.nodes() if node.state not in WELL]
            if not ill:
                return
            await asyncio.sleep(NODE_TIMEOUT)
        for node in ill:
            self.accuse(f"{process.name}: {node.node} is {node.state}: {node.cause}")

    def _count(self) -> None:
        """Note how often the library did what it did, before it is asked whether all is well."""
        for process in self.world.processes:
            statistics = process.locks.statistics()
            for what in ("renewed", "handovers", "write_backs", "split_votes", "attempts"):
                self.found.counts[what] += getattr(statistics, what)
            self.found.counts["acquires"] += statistics.acquired - statistics.handovers

    async def _close(self) -> None:
        for process in self.world.processes:
            for locks in process.managers:
                await process.spawn(locks.aclose(), "aclose")
        await asyncio.sleep(0)
        left_tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if left_tasks:
            self.accuse(f"tasks are left: {sorted(task.get_name() for task in left_tasks)}")


@contextlib.contextmanager
def _quiet() -> Any:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def play(seed: int, plan: str = "", **changes: Any) -> Findings:
    """Play one seed. A failing one is played again by `play(seed)`, step for step.

    plan: instead of the seed's own. changes: to the plan, or to the world's nature.
    """
    return Run(seed, plan_of(seed, plan, **changes)).play()
