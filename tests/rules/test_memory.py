"""What a register may believe of nodes that restart empty: every history of a few steps."""

from collections.abc import Iterator
from itertools import combinations
from math import inf
from typing import NamedTuple

import pytest

from asynclock._rules import quorum
from asynclock._rules.quorum import FRESH, SLACK, countable, surely_empty

QUORUM = {3: 2, 5: 3}
KEEP = 1000.0 * SLACK
STEP = 2 * SLACK
"""Microseconds from one event to the next."""
FIRST = 100 * SLACK
"""The moment of the first event."""
BEGINS = {"fresh": FIRST - SLACK / 2, "young": FIRST - 2.0 * FRESH, "old": -inf}
"""Since when the nodes of a deployment remember."""


class Node(NamedTuple):
    """What one node holds (0: nothing), and since when it remembers."""

    number: float
    since: float


class World(NamedTuple):
    """All nodes, the newest change that was completed, and the clock."""

    nodes: tuple[Node, ...]
    newest: float
    now: float


def believed(world: World, told: tuple[int, ...], left: int) -> float | None:
    """The newest number by the answers of `told`, with `left` still to come; None: not decided."""
    nodes = [world.nodes[i] for i in told]
    newest = max(node.number for node in nodes)
    sure = [
        node
        for node in nodes
        if node.number or node.since <= world.now - KEEP or surely_empty(node.since, newest)
    ]
    unsure = [node.since for node in nodes if node not in sure]
    size, begins = len(world.nodes), [node.since for node in sure]
    count = countable(size, sure=begins, unsure=unsure, newest=newest, left=left)
    return newest if count >= QUORUM[size] else None


def readings(world: World, up: tuple[int, ...]) -> set[float]:
    """What a reader may be told: it decides as soon as the first answers allow it."""
    found = set()
    for number in range(1, len(up) + 1):
        left = 0 if number == len(up) else len(world.nodes) - number
        for told in combinations(up, number):
            found.add(believed(world, told, left))
    return {number for number in found if number is not None}


def hurt(world: World, reached: tuple[int, ...]) -> int:
    """How many nodes are away, or have forgotten a change and were not told again."""
    ill = set(range(len(world.nodes))) - set(reached)
    ill |= {i for i, node in enumerate(world.nodes) if not node.number and node.since >= FIRST}
    return len(ill)


def majorities(size: int) -> Iterator[tuple[int, ...]]:
    for number in range(QUORUM[size], size + 1):
        yield from combinations(range(size), number)


def steps(world: World) -> Iterator[World]:
    """Each change that a majority promises and a part of it accepts, and each restart."""
    size, now = len(world.nodes), world.now + STEP
    later = max(now, *(node.since + 2 * FRESH for node in world.nodes))
    accepting = {
        told
        for up in majorities(size)
        if readings(world, up)
        for number in range(1, len(up) + 1)
        for told in combinations(up, number)
    }
    for told in accepting:
        nodes = (Node(now, n.since) if i in told else n for i, n in enumerate(world.nodes))
        newest = now if len(told) >= QUORUM[size] else world.newest
        yield World(tuple(sorted(nodes)), newest, now)
    for i in range(size):
        nodes = (Node(0, later) if i == j else n for j, n in enumerate(world.nodes))
        yield World(tuple(sorted(nodes)), world.newest, later)


def explore(size: int, depth: int, since: float) -> tuple[int, int]:
    """How many readings were wrong, and with at most a minority hurt, how many impossible.

    Two cases of docs/decisions/0014 are left out: if more are hurt, a deployment that is not old
    may lose its first value; and no node restarts within seconds of the start of another.
    """
    few = size - QUORUM[size]
    worlds = {World((Node(0, since),) * size, 0, FIRST - STEP)}
    wrong = silent = 0
    for _ in range(depth):
        everyone = tuple(range(size))
        after = {one for world in worlds for one in steps(world)}
        worlds = {world for world in after if hurt(world, everyone) <= few}
        for world in worlds:
            for up in majorities(size):
                found, safe = readings(world, up), hurt(world, up) <= few
                silent += safe and not found
                known = {number for number in found if number or safe or since == -inf}
                wrong += any(number < world.newest for number in known)
    return wrong, silent


@pytest.mark.parametrize("since", BEGINS.values(), ids=BEGINS)
@pytest.mark.parametrize(("size", "depth"), [(3, 6), (5, 3)])
def test_a_completed_change_is_never_missed(size: int, depth: int, since: float) -> None:
    assert explore(size, depth, since) == (0, 0)


@pytest.mark.parametrize("bound", [("FRESH", inf), ("SLACK", -inf)], ids=str)
@pytest.mark.parametrize("deployment", ["fresh", "old"])
def test_without_a_bound_a_change_is_missed(
    monkeypatch: pytest.MonkeyPatch, bound: tuple[str, float], deployment: str
) -> None:
    """Each deployment counts as new, or each node as one that has not forgotten."""
    monkeypatch.setattr(quorum, *bound)
    wrong, _ = explore(3, 3, BEGINS[deployment])
    assert wrong > 0


def test_clocks_that_differ_make_nobody_sure() -> None:
    assert SLACK == 1_000_000, "microseconds: clocks may be a second apart"
    since = 10.0 * SLACK
    assert surely_empty(since, 11 * SLACK)
    assert not surely_empty(since, 11 * SLACK - 1)
