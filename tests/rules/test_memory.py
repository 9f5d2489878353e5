"""What a register may believe of nodes that restart empty: every history of a few steps."""

from collections.abc import Callable, Iterator
from itertools import combinations
from math import inf
from typing import NamedTuple

import pytest

from asynclock._rules.quorum import SLACK, countable, surely_empty

QUORUM = {3: 2, 5: 3}
Rule = Callable[[int, int, int, int], int]
KEEP = 1000.0 * SLACK


class Node(NamedTuple):
    """What one node holds (0: nothing), and since when it remembers."""

    number: int
    since: float


class World(NamedTuple):
    """All nodes, the newest change that was completed, and the clock."""

    nodes: tuple[Node, ...]
    newest: int
    now: int


def believed(world: World, told: tuple[int, ...], left: int, rule: Rule) -> int | None:
    """The newest number by the answers of `told`, with `left` still to come; None: not decided."""
    nodes = [world.nodes[i] for i in told]
    newest = max(node.number for node in nodes)
    sure = [
        node
        for node in nodes
        if node.number or node.since <= world.now - KEEP or surely_empty(node.since, newest)
    ]
    count = rule(len(world.nodes), len(sure), len(nodes) - len(sure), left)
    return newest if count >= QUORUM[len(world.nodes)] else None


def readings(world: World, up: tuple[int, ...], rule: Rule) -> set[int]:
    """What a reader may be told: it decides as soon as the first answers allow it."""
    found = set()
    for number in range(1, len(up) + 1):
        left = 0 if number == len(up) else len(world.nodes) - number
        for told in combinations(up, number):
            found.add(believed(world, told, left, rule))
    return {number for number in found if number is not None}


def ours(size: int, sure: int, unsure: int, left: int) -> int:
    return countable(size, sure=sure, unsure=unsure, missing=left)


def naive(size: int, sure: int, unsure: int, left: int) -> int:
    """What the code once did: every answer counts."""
    return sure + unsure


def hurt(world: World, reached: tuple[int, ...]) -> int:
    """How many nodes are away, or have forgotten a change and were not told again."""
    ill = set(range(len(world.nodes))) - set(reached)
    ill |= {i for i, node in enumerate(world.nodes) if not node.number and node.since > 0}
    return len(ill)


def majorities(size: int) -> Iterator[tuple[int, ...]]:
    for number in range(QUORUM[size], size + 1):
        yield from combinations(range(size), number)


def steps(world: World, rule: Rule) -> Iterator[World]:
    """Each change that some majority completes, and each restart that loses all."""
    now = world.now + 3 * SLACK
    for up in majorities(len(world.nodes)):
        if readings(world, up, rule):
            told = (Node(now, n.since) if i in up else n for i, n in enumerate(world.nodes))
            yield World(tuple(told), now, now)
    for i in range(len(world.nodes)):
        nodes = list(world.nodes)
        nodes[i] = Node(0, now)
        yield World(tuple(nodes), world.newest, now)


def explore(size: int, depth: int, since: float, rule: Rule) -> tuple[int, int]:
    """Readings with at most a minority hurt: how many were wrong, how many impossible."""
    few = size - QUORUM[size]
    worlds = {World((Node(0, since),) * size, 0, 0)}
    wrong = silent = 0
    for _ in range(depth):
        everyone = tuple(range(size))
        after = {one for world in worlds for one in steps(world, rule)}
        worlds = {world for world in after if hurt(world, everyone) <= few}
        for world in worlds:
            for up in majorities(size):
                if hurt(world, up) <= few:
                    found = readings(world, up, rule)
                    silent += not found
                    wrong += any(number < world.newest for number in found)
    return wrong, silent


@pytest.mark.parametrize("since", [0.0, -inf], ids=["young", "old"])
@pytest.mark.parametrize(("size", "depth"), [(3, 6), (5, 3)])
def test_a_completed_change_is_never_missed(size: int, depth: int, since: float) -> None:
    assert explore(size, depth, since, ours) == (0, 0)


def test_clocks_that_differ_make_nobody_sure() -> None:
    assert SLACK == 1_000_000, "microseconds: clocks may be a second apart"
    since = 10.0 * SLACK
    assert surely_empty(since, 11 * SLACK)
    assert not surely_empty(since, 11 * SLACK - 1)


def test_answers_that_are_not_sure_count_once_every_node_has_answered() -> None:
    assert ours(3, 1, 2, 0) == 3
    assert ours(3, 1, 1, 0) == 1, "the third node is silent, and may know of a change"


def test_a_client_that_believes_everybody_misses_a_change() -> None:
    """One node missed the change, another one forgot it, and all three are up."""
    wrong, _ = explore(3, 2, -inf, naive)
    assert wrong > 0
    missed = World((Node(6 * SLACK, -inf), Node(0, 9 * SLACK), Node(0, -inf)), 6 * SLACK, 9 * SLACK)
    assert 0 in readings(missed, (0, 1, 2), naive)
    assert readings(missed, (0, 1, 2), ours) == {missed.newest}
    assert readings(missed, (1, 2), ours) == set()
