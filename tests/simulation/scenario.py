"""One random schedule: clients at work, faults, and what must be true in spite of them.

Faults stay within what docs/guarantees.md asks for: clocks jump by more than a round trip can
hide, on a minority of nodes; flushes are seen by all clients; a single node restarts after all have
met it. Everything else goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import asynclock
from asynclock._nodes.node import Node
from asynclock.testing import Event, check
from tests.simulation.world import NODE_TIMEOUT, TTL, Process, World, clocks_of

NAMES = ("a", "b")
HORIZON = 3.0
"""Virtual seconds of faults."""
AFTERWARDS = 1.5
"""After all has healed, no key may be left for longer: far less than a ttl."""
LATE = 0.05


@dataclass
class Findings:
    """What one run showed."""

    seed: int
    violations: list[str] = field(default_factory=list)
    leases: int = 0
    lost: int = 0
    trace: int = 0
    log: list[str] = field(default_factory=list)


@dataclass(eq=False)
class Body:
    """A critical section that is open."""

    process: Process
    lease: asynclock.Lease
    number: int
    began: float


class Run:
    """Plays one seed."""

    def __init__(self, seed: int, faults: tuple[str, ...] = (), **options: Any) -> None:
        self.kinds = faults or tuple(FAULTS)
        self.world = World(seed, **{**_shape(seed), **options})
        self.random = self.world.random
        self.found = Findings(seed)
        self.open: dict[str, list[Body]] = {name: [] for name in NAMES}
        self.history: list[Event] = []
        self.jumped: set[int] = set()
        self.numbers = 0

    def play(self) -> Findings:
        world = self.world
        with clocks_of(world), _quiet():
            try:
                world.loop.run_until_complete(self._main())
            except Exception as error:
                self.accuse(f"{type(error).__name__}: {error}")
            finally:
                with contextlib.suppress(RuntimeError):
                    world.loop.close()
        self.found.violations += [str(one) for one in check(self.history)]
        self.found.trace, self.found.log = world.trace, world.log
        return self.found

    def accuse(self, text: str) -> None:
        self.world.say(f"VIOLATION {text}")
        self.found.violations.append(text)

    async def _main(self) -> None:
        world, loop = self.world, self.world.loop
        loop.set_exception_handler(lambda _, context: self.accuse(f"unhandled: {context}"))
        world.start()
        workers = [
            process.spawn(self._work(process), f"w{number}")
            for process in world.processes
            for number in range(2)
        ]
        faults = loop.create_task(self._faults())
        watch = loop.create_task(self._watch())
        await faults
        self._heal()
        done, late = await asyncio.wait(workers, timeout=60)
        if late:
            self.accuse(f"{len(late)} workers never end")
            return
        for task in done:
            task.result()
        await asyncio.sleep(AFTERWARDS)
        if self.jumped and world.lock_keys():
            # A request that was held up is too late by the node's clock, one bound for all nodes;
            # on a node whose clock was set back it may still be executed, and its ttl ends it.
            await asyncio.sleep(2 * TTL)
        if left := world.lock_keys():
            self.accuse(f"keys are left: {left}")
        watch.cancel()
        for process in world.processes:
            await process.spawn(process.locks.aclose(), "aclose")
        await asyncio.sleep(0)
        left_tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if left_tasks:
            self.accuse(f"tasks are left: {sorted(task.get_name() for task in left_tasks)}")

    # ---- clients -----------------------------------------------------------------------------

    async def _work(self, process: Process) -> None:
        loop = self.world.loop
        until = loop.now + HORIZON
        while loop.now < until:
            await asyncio.sleep(self.random.expovariate(3.0))
            patience = self.random.uniform(0.2, 2 * TTL)
            task = process.spawn(self._use(process, patience), "use")
            if self.random.random() < 0.15:
                loop.call_later(self.random.expovariate(1.0), task.cancel)
            await asyncio.wait([task])
            self._judge_end(task)

    def _judge_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.accuse(f"{task.get_name()}: {type(error).__name__}: {error}")

    async def _use(self, process: Process, patience: float) -> None:
        name = self.random.choice(NAMES)
        lock = process.locks.lock(name, handoff=self.random.choice((True, "strict", False)))
        began = self.world.loop.now
        try:
            if self.random.random() < 0.2:
                lease = await lock.try_acquire()
                if lease is None:
                    return
            else:
                lease = await lock.acquire(timeout=patience)
        except (asynclock.NotAcquiredError, asynclock.QuorumUnavailableError):
            self._check_patience(process, began, patience)
            return
        await self._hold(process, lease, began)

    def _check_patience(self, process: Process, began: float, patience: float) -> None:
        took = self.world.loop.now - max(began, process.frozen_until)
        # The first attempt is always made whole: a request, its healing where the node has
        # forgotten the script, and a write-back, with a node timeout for each.
        if took > patience + 3 * NODE_TIMEOUT + LATE:
            self.accuse(f"{process.name}: an acquire took {took:.3f} s of {patience:.3f} s")

    async def _hold(self, process: Process, lease: asynclock.Lease, began: float) -> None:
        completed = held_at_end = reported = False
        body = self._entered(process, lease, began)
        try:
            async with lease:
                try:
                    await self._inside(lease)
                    completed, held_at_end = True, lease.held
                finally:
                    self._leaves(body)
        except asynclock.LeaseLostError:
            reported = True
            self.found.lost += 1
        finally:
            self._leaves(body)
        if completed and not held_at_end and not reported:
            self.accuse(f"{process.name}: a loss of fence {lease.fence} was not reported")

    async def _inside(self, lease: asynclock.Lease) -> None:
        await asyncio.sleep(self.random.expovariate(4.0))
        if self.random.random() < 0.1:
            with contextlib.suppress(asynclock.QuorumUnavailableError):
                await lease.extend()
        if self.random.random() < 0.1:
            await asyncio.sleep(self.random.uniform(0, 2 * TTL))

    # ---- what is recorded --------------------------------------------------------------------

    def _entered(self, process: Process, lease: asynclock.Lease, began: float) -> Body:
        self.numbers += 1
        self.found.leases += 1
        body = Body(process, lease, self.numbers, began)
        self.world.say(f"{process.name} got {lease.name} fence {lease.fence}")
        self._record(body, "acquired")
        self.open[lease.name].append(body)
        self._check_overlap(lease.name)
        return body

    def _leaves(self, body: Body) -> None:
        bodies = self.open[body.lease.name]
        if body in bodies:
            kind = "left" if body.lease.held else "lost"
            self._check_overlap(body.lease.name)
            bodies.remove(body)
            self.world.say(f"{body.process.name} {kind} {body.lease.name} {body.lease.fence}")
            self._record(body, kind)

    def _record(self, body: Body, kind: Any) -> None:
        lease, now = body.lease, self.world.loop.now
        # Of a lost one nobody knows here when it ended, only that it had by then.
        until = now + lease.remaining() if lease.held else None
        self.history.append(
            Event(
                kind=kind,
                body=str(body.number),
                name=lease.name,
                owner=lease.owner,
                fence=lease.fence,
                at=now,
                began=body.began,
                until=until,
            )
        )

    def _check_overlap(self, name: str) -> None:
        holders = [body for body in self.open[name] if body.process.looks(body.lease)]
        if len(holders) > 1:
            who = ", ".join(f"{body.process.name} {body.lease.fence}" for body in holders)
            self.accuse(f"{name} is held by {who} at once")

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            for name in NAMES:
                self._check_overlap(name)
            for node in self.world.nodes:
                for key in node.keys.values:
                    expiry = node.keys.expiries.get(key)
                    if expiry is None:
                        self.accuse(f"{key!r} on {node.name} lives for ever")

    # ---- faults ------------------------------------------------------------------------------

    async def _faults(self) -> None:
        until = self.world.loop.now + HORIZON
        kinds = [kind for kind in self.kinds if self.world.floors or kind not in AMNESIA]
        self.random.shuffle(kinds)
        kinds = kinds[: self.random.randint(1, len(kinds))]
        pace = self.random.uniform(0.7, 5.0)
        while self.world.loop.now < until:
            await asyncio.sleep(self.random.expovariate(pace))
            FAULTS[self.random.choice(kinds)](self)

    def later(self, mean: float, undo: Callable[[], None]) -> None:
        self.world.loop.call_later(self.random.expovariate(1 / mean), undo)

    def _heal(self) -> None:
        for node in self.world.nodes:
            if not node.alive:
                node.restart()
            node.thaw()
        for process in self.world.processes:
            process.thaw()
            for route in process.routes:
                route.heal()


Fault = Callable[[Run], None]
FAULTS: dict[str, Fault] = {}


def _fault(function: Fault) -> Fault:
    FAULTS[function.__name__] = function
    return function


@_fault
def freeze_node(run: Run) -> None:
    node = run.random.choice(run.world.nodes)
    run.world.say(f"freeze {node.name}")
    node.freeze()
    run.later(1.0, node.thaw)


@_fault
def kill_node(run: Run) -> None:
    """kill -9, and a new process without the data, at once or later."""
    number = run.random.randrange(len(run.world.nodes))
    node = run.world.nodes[number]
    # On a single node the first contact is free, so a restart before it goes unnoticed.
    if len(run.world.nodes) == 1 and not _all_met(run, number):
        return
    run.world.say(f"kill {node.name}")
    node.kill()
    run.later(0.5, lambda: None if node.alive else node.restart())


@_fault
def kill_durable_node(run: Run) -> None:
    """The same with the data: an append-only file."""
    node = run.random.choice(run.world.nodes)
    run.world.say(f"restart {node.name} with its data")
    node.restart(keep_data=True)


@_fault
def cut_connections(run: Run) -> None:
    node = run.random.choice(run.world.nodes)
    run.world.say(f"cut {node.name}")
    node.cut()


@_fault
def partition(run: Run) -> None:
    process = run.random.choice(run.world.processes)
    number = run.random.randrange(len(process.routes))
    run.world.say(f"{process.name} can't reach n{number}")
    process.routes[number].cut_off()
    run.later(2.0, process.routes[number].heal)


@_fault
def ring(run: Run) -> None:
    """Each process misses another node: no two use the same majority."""
    run.world.say("each process misses another node")
    for number, process in enumerate(run.world.processes):
        route = process.routes[number % len(process.routes)]
        route.cut_off()
        run.later(2.0, route.heal)


@_fault
def slow(run: Run) -> None:
    process = run.random.choice(run.world.processes)
    route = run.random.choice(process.routes)
    run.world.say(f"a route of {process.name} is slow")
    route.slow = run.random.uniform(0.05, 0.6)
    run.later(2.0, route.heal)


@_fault
def freeze_process(run: Run) -> None:
    process = run.random.choice(run.world.processes)
    run.world.say(f"freeze {process.name}")
    process.freeze()
    run.later(run.random.choice((0.5, TTL)), process.thaw)


@_fault
def freeze_process_in_an_attempt(run: Run) -> None:
    """Just when its next request has arrived at a node: the replies will be old when it reads."""
    process = run.random.choice(run.world.processes)
    process.trap = run.random.choice((0.1, TTL + run.random.random()))


@_fault
def jump_clock(run: Run) -> None:
    minority = (len(run.world.nodes) - 1) // 2
    number = run.random.randrange(len(run.world.nodes))
    # Who has not met a node before it jumps can't know: only when all have.
    if len(run.jumped | {number}) > minority or not _all_met(run, number):
        return
    run.jumped.add(number)
    by = run.random.choice((-1, 1)) * run.random.choice((1.0, 5.0, 120.0))
    run.world.say(f"the clock of n{number} jumps by {by:+} s")
    run.world.nodes[number].jump_clock(by)


@_fault
def flush_node(run: Run) -> None:
    """FLUSHALL, where every client is connected: who is not can't know (docs/threats.md)."""
    number = run.random.randrange(len(run.world.nodes))
    node = run.world.nodes[number]
    views = [process.locks._engine.multiplexer.nodes[number] for process in run.world.processes]
    if node.alive and not node.frozen and all(view.link and view.tracking for view in views):
        run.world.say(f"flush {node.name}")
        for process, view in zip(run.world.processes, views, strict=True):
            _see_that_it_hears(process, view)
        node.flush()


def _see_that_it_hears(process: Process, view: Node) -> None:
    """If the connection ends before the news of the flush is in, it comes with the end."""
    before = view.trust.votes_from

    def tell(_: object) -> None:
        if view.trust.votes_from == before:
            view.pushed([b"invalidate", None])

    if view.link is not None:
        view.link.closed.add_done_callback(tell, context=process.context)


@_fault
def flush_scripts(run: Run) -> None:
    node = run.random.choice(run.world.nodes)
    run.world.say(f"forget the scripts of {node.name}")
    node.forget_scripts()


@_fault
def set_wall_clock(run: Run) -> None:
    """A client's wall clock is set: once it knows the nodes' clocks, nothing depends on its own."""
    process = run.random.choice(run.world.processes)
    if any(node.trust.facts is None for node in process.locks._engine.multiplexer.nodes):
        return
    process.wall_step += run.random.choice((-20.0, 20.0))
    run.world.say(f"the wall clock of {process.name} is set {process.wall_step:+}")


def _all_met(run: Run, number: int) -> bool:
    nodes = [process.locks._engine.multiplexer.nodes[number] for process in run.world.processes]
    return all(node.trust.facts is not None for node in nodes)


AMNESIA = ("kill_node", "flush_node")
"""Where fences rest on counters alone, these must not be lost."""


def _shape(seed: int) -> dict[str, Any]:
    return {
        "nodes": (1, 3, 3, 5, 3)[seed % 5],
        "processes": 2 + seed // 5 % 2,
        "floors": bool(seed // 10 % 4),
    }


@contextlib.contextmanager
def _quiet() -> Any:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def play(seed: int, **options: Any) -> Findings:
    """Play one seed. A failing one is played again by `play(seed)`, step for step."""
    return Run(seed, **options).play()
