"""What is done to nodes, network, processes and clocks while clients work.

Faults stay within what docs/guarantees.md asks for: clocks jump by more than a round trip can
hide, on a minority of nodes; flushes are seen by all clients; a single node restarts after all have
met it. Everything else goes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from asynclock._nodes.server import ServerNode
from asynclock.testing.memory import MemoryNode, Stream
from tests.simulation.world import ACQUIRE, TTL, Process, Trap, Weather

if TYPE_CHECKING:
    from tests.simulation.scenario import Run

Fault = Callable[["Run"], None]
FAULTS: dict[str, Fault] = {}
AMNESIA = ("kill_node", "flush_node", "come_back_durable", "flap_node", "restart_in_turn")
"""Where fences rest on counters alone, these must not be lost."""
ALONE = (
    *("restart_in_turn", "stand_still", "forget_one_node", "jump_any_clock"),
    *("freeze_after_a_body", "step_clock_again_and_again"),
)
"""Only where a plan asks for them."""
LATCH, EVENT = b"asynclock:latch:#latch", b"asynclock:event:#event"


def _fault(function: Fault) -> Fault:
    FAULTS[function.__name__] = function
    return function


def heal(run: Run) -> None:
    """Undo all that can be undone."""
    run.healed = True
    for node in run.world.nodes:
        if not node.alive:
            node.restart()
        node.thaw()
    for process in run.world.processes:
        process.traps.clear()
        process.on_left = None
        if process not in run.paused:  # otherwise its clock would go on, and then be set back
            process.thaw()
        for route in process.routes:
            route.heal()


def knows(node: MemoryNode, key: bytes) -> bool:
    """Return whether the node has a value of this state."""
    state = node.keys.get(key)
    return isinstance(state, dict) and b"value" in state


# ---- nodes -------------------------------------------------------------------------------------
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
    if len(run.world.nodes) == 1 and not all_met(run, number):
        return
    run.world.say(f"kill {node.name}")
    run.records.forgetful = True
    node.kill()
    run.later(0.5, lambda: None if node.alive else node.restart())


@_fault
def kill_durable_node(run: Run) -> None:
    """Restart a node with its data, as with an append-only file."""
    node = run.random.choice(run.world.nodes)
    run.world.say(f"restart {node.name} with its data")
    node.restart(keep_data=True)


@_fault
def come_back_durable(run: Run) -> None:
    """A node without a file is restarted with one: empty, and it says that it forgets nothing."""
    number = run.random.randrange(len(run.world.nodes))
    node = run.world.nodes[number]
    if len(run.world.nodes) == 1 and not all_met(run, number):
        return
    run.world.say(f"{node.name} comes back {'forgetful' if node.durable else 'durable'}")
    run.records.forgetful = True
    node.restart(keep_data=False)
    node.durable = not node.durable


@_fault
def flap_node(run: Run) -> None:
    """One node goes down and comes back, again and again."""
    node = run.random.choice(run.world.nodes)
    if len(run.world.nodes) == 1 or run.flapping:
        return
    run.flapping = True
    run.records.forgetful = True
    run.world.say(f"{node.name} flaps")

    def down(left: int) -> None:
        node.kill()
        run.world.loop.call_later(run.random.uniform(0.1, 0.8), up, left)

    def up(left: int) -> None:
        if not node.alive:
            node.restart()
        if left:
            run.world.loop.call_later(run.random.uniform(0.05, 0.5), down, left - 1)
        else:
            run.flapping = False

    down(run.random.randint(2, 6))


@_fault
def forget_one_node(run: Run) -> None:
    """kill -9 without the data, in one run only of a minority; all or none know each state."""
    minority = (len(run.world.nodes) - 1) // 2
    number = run.random.randrange(len(run.world.nodes))
    # A young deployment may lose a value that not all have (docs/decisions/0014, "What remains").
    partly = any(len({knows(one, key) for one in run.world.nodes}) > 1 for key in (LATCH, EVENT))
    if partly or len(run.forgot | {number}) > minority or not all_met(run, number):
        return
    run.forgot.add(number)
    node = run.world.nodes[number]
    run.world.say(f"{node.name} restarts without its data")
    run.records.forgetful = True
    node.restart()


@_fault
def restart_in_turn(run: Run) -> None:
    """A rolling restart of nodes without data: the next once the last votes and keeps its part."""
    now = run.world.loop.now
    if now < run.next_restart or not all(all_met(run, n) for n in range(len(run.world.nodes))):
        return
    node = run.world.nodes[run.restarts % len(run.world.nodes)]
    run.restarts += 1
    run.next_restart = now + run.world.nature.settings["max_ttl"] * 2.2
    run.world.say(f"restart {node.name} in its turn")
    run.records.forgetful = True
    node.restart()


@_fault
def cut_connections(run: Run) -> None:
    node = run.random.choice(run.world.nodes)
    run.world.say(f"cut {node.name}")
    node.cut()


@_fault
def flush_scripts(run: Run) -> None:
    node = run.random.choice(run.world.nodes)
    run.world.say(f"forget the scripts of {node.name}")
    node.forget_scripts()


@_fault
def flush_node(run: Run) -> None:
    """FLUSHALL, where every client is connected: who is not can't know (docs/threats.md)."""
    number = run.random.randrange(len(run.world.nodes))
    node = run.world.nodes[number]
    views = [(process, view) for process in run.world.processes for view in _views(process, number)]
    if node.alive and not node.frozen and all(view.link and view.tracking for _, view in views):
        run.world.say(f"flush {node.name}")
        run.records.forgetful = True
        for process, view in views:
            _see_that_it_hears(process, view)
        node.flush()


def _see_that_it_hears(process: Process, view: ServerNode) -> None:
    """If the connection ends before the news of the flush is in, it comes with the end."""
    before = view.trust.votes_from

    def tell(_: object) -> None:
        if view.trust.votes_from == before:
            view.on_push([b"invalidate", None])

    if view.link is not None:
        view.link.closed.add_done_callback(tell, context=process.context)


def _views(process: Process, number: int) -> list[ServerNode]:
    found = [locks._engine.multiplexer.nodes[number] for locks in process.managers]
    return [node for node in found if isinstance(node, ServerNode)]


def all_met(run: Run, number: int) -> bool:
    views = [view for process in run.world.processes for view in _views(process, number)]
    return all(view.trust.facts is not None for view in views)


# ---- network -----------------------------------------------------------------------------------
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
def lose_replies(run: Run) -> None:
    """The nodes do what a process asks, and most of their answers don't come back."""
    process = run.random.choice(run.world.processes)
    run.world.say(f"replies to {process.name} don't arrive")
    for route in run.random.sample(process.routes, k=run.random.randint(1, len(process.routes))):
        route.keep_replies()
        run.later(0.7, route.heal)


# ---- processes and clocks ----------------------------------------------------------------------
@_fault
def freeze_process(run: Run) -> None:
    process = run.random.choice(run.world.processes)
    run.world.say(f"freeze {process.name}")
    process.freeze()
    run.later(run.random.choice((0.5, TTL)), process.thaw)


def freezes(run: Run, process: Process, when: str) -> Trap:
    seconds = run.random.choice((0.1, TTL + run.random.random()))

    def spring(_way: Weather, _stream: Stream) -> None:
        run.world.say(f"freeze {process.name} {when}")
        process.freeze()
        run.world.loop.call_later(seconds, process.thaw)

    return spring


@_fault
def freeze_process_in_an_attempt(run: Run) -> None:
    """Just when its next request has arrived at a node: the replies will be old when it reads."""
    process = run.random.choice(run.world.processes)
    process.traps[ACQUIRE] = freezes(run, process, "in an attempt")


@_fault
def stand_still(run: Run) -> None:
    """A process stops several times, and its clock with it, as in a paused virtual machine."""
    process = run.random.choice(run.world.processes)
    if process.stopped or process in run.paused:
        return
    run.paused.append(process)
    run.records.clock_stood_still()

    def stop(left: int) -> None:
        seconds = run.random.uniform(0.1, 0.4)
        run.world.say(f"{process.name} stands still for {seconds:.3f} s")
        process.freeze()
        process.stood_still_until = float("inf")  # it can notice nothing before it goes on
        run.world.loop.call_later(seconds, resume, seconds, left)

    def resume(seconds: float, left: int) -> None:
        process.lose_time(seconds)
        process.thaw()
        if left:
            run.world.loop.call_later(run.random.uniform(0.02, 0.3), stop, left - 1)
        else:
            run.paused.remove(process)

    stop(run.random.randint(0, 4))


@_fault
def freeze_after_a_body(run: Run) -> None:
    """A process stops when a task has left and another was handed its lease, until that is over."""
    process = run.random.choice(run.world.processes)
    seconds = run.random.uniform(1.0, 2.5)

    def spring() -> None:
        run.world.say(f"freeze {process.name} after a body")
        process.freeze()
        run.world.loop.call_later(seconds, process.thaw)

    if not process.stopped:
        process.on_left = spring


@_fault
def jump_clock(run: Run) -> None:
    number = run.random.randrange(len(run.world.nodes))
    if may_jump(run, number):
        jump(run, number, _any_step(run))


@_fault
def step_clock_again_and_again(run: Run) -> None:
    """A clock is set many times in a row, always in the same direction."""
    number = run.random.randrange(len(run.world.nodes))
    direction = run.random.choice((-1, 1))
    by = direction * run.random.choice((1.0, 5.0))

    def step(left: int) -> None:
        if run.healed or not may_jump(run, number, direction):
            return
        jump(run, number, by)
        if left:
            run.world.loop.call_later(run.random.uniform(0.01, 0.04), step, left - 1)

    step(run.random.randint(10, 70))


def may_jump(run: Run, number: int, direction: int = 0) -> bool:
    """Whether the clock of this node may jump where one holder at a time is promised.

    direction: 1 for forward, -1 for back, 0 for either.
    """
    minority = (len(run.world.nodes) - 1) // 2
    # A client that never met the node before can't see its jump: only once all have met it. Nor can
    # one that saw nothing of an earlier jump, if the clock now jumps the other way
    # (docs/threats.md).
    if len(run.jumped | {number}) > minority or not all_met(run, number):
        return False
    last, seen = run.to_see.get(number, (0, ()))
    return (last == direction != 0) or all(has_seen() for has_seen in seen)


@_fault
def jump_any_clock(run: Run) -> None:
    """Where only fences are promised: on any node, at any time."""
    number = run.random.randrange(len(run.world.nodes))
    jump(run, number, _any_step(run))


def _any_step(run: Run) -> float:
    return run.random.choice((-1, 1)) * run.random.choice((1.0, 5.0, 120.0))


def _sees(view: ServerNode, offset: float) -> bool:
    """Whether this client knows that the node's clock is ahead of its own by so much."""
    known = view.trust.offset
    return known is not None and abs(known - offset) < 0.5


def jump(run: Run, number: int, by: float) -> None:
    """Set the clock of a node forward, or back."""
    run.jumped.add(number)
    run.found.counts["jumps"] += 1
    run.records.forgetful = True
    run.set_back[number] += max(0.0, -by)
    node = run.world.nodes[number]
    run.world.say(f"the clock of n{number} jumps by {by:+} s")
    node.jump_clock(by)
    seen = [
        partial(_sees, view, node.wall() - process.now())
        for process in run.world.processes
        for view in _views(process, number)
    ]
    run.to_see[number] = (1 if by > 0 else -1, seen)


@_fault
def set_wall_clock(run: Run) -> None:
    """A client's wall clock is set: once it knows the nodes' clocks, nothing depends on its own."""
    process = run.random.choice(run.world.processes)
    if any(node.trust.facts is None for node in process.locks._engine.multiplexer.nodes):
        return
    process.wall_step += run.random.choice((-20.0, 20.0))
    run.world.say(f"the wall clock of {process.name} is set {process.wall_step:+}")
