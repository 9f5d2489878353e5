"""Faults that strike at the one moment at which a rule of the protocol is needed.

By chance alone such moments are rare. Each of these waits for a request of a process and does
several things at once; like the other faults, they stay within what docs/guarantees.md asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from asynclock.testing.memory import Stream
from tests.simulation.faults import LATCH, Fault, freezes, jump, knows, may_jump, ring
from tests.simulation.world import ACQUIRE, EXTEND, NODE_TIMEOUT, RAISE, TTL, Process, Trap, Weather

if TYPE_CHECKING:
    from tests.simulation.scenario import Run

COINCIDENCES: dict[str, Fault] = {}


def _coincidence(function: Fault) -> Fault:
    COINCIDENCES[function.__name__] = function
    return function


def _arm(run: Run, process: Process, request: bytes, spring: Trap) -> None:
    """Have `spring` called when the next such request has arrived, while faults rage."""

    def act(way: Weather, stream: Stream) -> None:
        if not run.healed:
            spring(way, stream)

    process.traps[request] = act


def _soon(run: Run, seconds: float, act: Callable[[], None]) -> None:
    """Have `act` called then, if faults still rage."""

    def unless_healed() -> None:
        if not run.healed:
            act()

    run.world.loop.call_later(seconds, unless_healed)


@_coincidence
def freeze_process_in_a_hand_over(run: Run) -> None:
    """When it has asked for the next holder's fence: the answer is there after the lease's end."""
    process = run.random.choice(run.world.processes)
    _arm(run, process, RAISE, freezes(run, process, "in a hand-over"))


@_coincidence
def freeze_process_at_mute_nodes(run: Run) -> None:
    """In an attempt that no node answers: what it waits for is overdue when it goes on."""
    process = run.random.choice(run.world.processes)
    seconds = run.random.uniform(1.2, 1.9)

    def spring(_way: Weather, _stream: Stream) -> None:
        run.world.say(f"no node answers {process.name}, which freezes")
        process.freeze()
        run.world.loop.call_later(seconds, process.thaw)
        for route in process.routes:
            route.keep_replies()
            run.world.loop.call_later(seconds + 2.0, route.heal)

    _arm(run, process, ACQUIRE, spring)


@_coincidence
def strand_an_acquire(run: Run) -> None:
    """It travels on long after its connection was given up, and so do those behind it."""
    process = run.random.choice(run.world.processes)
    seconds = run.random.uniform(4.0, 6.0)

    def spring(way: Weather, stream: Stream) -> None:
        run.world.say(f"an acquire of {process.name} is stranded")
        way.hold(stream, seconds)

    _arm(run, process, ACQUIRE, spring)


@_coincidence
def be_cut_off_after_an_extension(run: Run) -> None:
    """The answers to an extension come after the next renewal was sent, and then nothing more."""
    process = run.random.choice(run.world.processes)
    seconds = run.random.uniform(0.03, 0.8 * NODE_TIMEOUT)

    def heal() -> None:
        for route in process.routes:
            route.heal()
        _soon(run, 0.01, cut_off)

    def cut_off() -> None:
        run.world.say(f"{process.name} is cut off")
        for route in process.routes:
            route.cut_off()
            run.later(1.5, route.heal)

    def spring(_way: Weather, _stream: Stream) -> None:
        run.world.say(f"answers to an extension of {process.name} are held up")
        for route in process.routes:
            route.keep_replies()
        _soon(run, seconds, heal)

    _arm(run, process, EXTEND, spring)


@_coincidence
def jump_under_a_holder(run: Run) -> None:
    """No two processes use the same majority; a holder's node jumps past the end of its lease."""
    ring(run)

    def spring(way: Weather, _stream: Stream) -> None:
        _soon(run, 0.01, partial(_jump_if_seen, run, way.number))

    _arm(run, run.random.choice(run.world.processes), EXTEND, spring)


def _jump_if_seen(run: Run, number: int) -> None:
    if may_jump(run, number):
        jump(run, number, 2.5 * TTL)


@_coincidence
def lose_a_witness(run: Run) -> None:
    """One node misses changes, one of those who had them forgets them, and another is away."""
    if run.forgot or not all(knows(node, LATCH) for node in run.world.nodes):
        return
    absent, forgetful, away = run.random.sample(range(len(run.world.nodes)), k=3)
    node = run.world.nodes[forgetful]
    run.forgot.add(forgetful)
    run.world.say(f"n{absent} can't be reached")
    for process in run.world.processes:
        process.routes[absent].cut_off()

    def turn() -> None:
        run.world.say(f"{node.name} restarts without its data; n{away} for n{absent}")
        run.records.forgetful = True
        node.restart()
        for process in run.world.processes:
            process.routes[away].cut_off()
            process.routes[absent].heal()
            run.later(3.0, process.routes[away].heal)

    _soon(run, run.random.uniform(0.4, 1.0), turn)


# ---- fences ------------------------------------------------------------------------------------
@_coincidence
def raise_at_one_node_only(run: Run) -> None:
    """A holder's reservation reaches only one node, which then is unreachable for all others."""
    process = run.random.choice(run.world.processes)

    def spring(way: Weather, _stream: Stream) -> None:
        run.world.say(f"a raise of {process.name} reaches n{way.number} only, which freezes")
        for route in process.routes:
            if route is not way:
                route.cut_off()
                run.later(2.0, route.heal)
        node = run.world.nodes[way.number]
        _soon(run, 0.01, node.freeze)
        run.later(2.0, node.thaw)

    _arm(run, process, RAISE, spring)


@_coincidence
def pass_a_node_on(run: Run) -> None:
    """An acquire is late at one node, and its grant by another has ended when a raise comes."""
    process = run.world.processes[0]
    seconds = run.random.uniform(0.02, 0.4 * NODE_TIMEOUT)

    def be_late(way: Weather, stream: Stream) -> None:
        run.world.say(f"an acquire of {process.name} is late at n{way.number}")
        way.hold(stream, seconds)
        _arm(run, process, RAISE, expire)

    def expire(way: Weather, _stream: Stream) -> None:
        _leap(run, way.number)

    _arm(run, process, ACQUIRE, be_late)


@_coincidence
def hold_up_a_write_back(run: Run) -> None:
    """No two processes use the same majority; a raise arrives when the grant has ended."""
    run.world.say("each process misses another node")
    for number, process in enumerate(run.world.processes):
        route = process.routes[number % len(process.routes)]
        route.cut_off()
        run.later(2.0, route.heal)
        _arm(run, process, RAISE, _expiring(run))


def _expiring(run: Run) -> Trap:
    seconds = run.random.uniform(0.02, 0.9 * NODE_TIMEOUT)

    def spring(way: Weather, stream: Stream) -> None:
        way.hold(stream, seconds)
        _leap(run, way.number)

    return spring


def _leap(run: Run, number: int) -> None:
    run.jumped.add(number)
    run.found.counts["jumps"] += 1
    run.records.forgetful = True
    run.world.say(f"the clock of n{number} jumps past the end of every lease")
    run.world.nodes[number].jump_clock(2 * TTL)
