"""`asynclock release` on nodes in memory: from whom a lock is taken, and what is said about it."""

import contextlib
import io
import json
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

import asynclock
from asynclock.fleet import Fleet
from asynclock.testing import memory_node

from .conftest import NODES, Here, Outcome

QUICK: dict[str, Any] = {"restart_guard": False, "ttl": 60.0, "max_ttl": 60.0}
ONE, TWO = f"{1:032x}:web-1:77:job", f"{2:032x}:web-2:88"
NAMED = [word for url in NODES for word in ("--node", url)]


class Nodes:
    """Nodes that keep these owners of `x`, and what they keep at the end."""

    def __init__(self, *owners: str | None, silent: str = "", young: str = "") -> None:
        self.owners, self.silent, self.young = owners, silent, young
        self.left: list[str | None] = []

    @contextlib.asynccontextmanager
    async def __call__(self) -> AsyncIterator[None]:
        for url, owner in zip(NODES, self.owners or (None,) * 3, strict=True):
            if owner is not None:
                await memory_node(url).command("SET", "asynclock:x", owner, "PX", 60_000)
        for name in self.silent:
            memory_node(name).freeze()
        for name in self.young:
            memory_node(name).born_ago(1.0)
        try:
            yield
        finally:
            self.left = [await memory_node(url).command("GET", "asynclock:x") for url in NODES]


def release(here: Here, scene: Any, *words: str) -> Outcome:
    return here("release", "x", *words, *NAMED, scene=scene)


# ---- from whom it is taken -----------------------------------------------------------------------
@pytest.mark.parametrize(
    ("owners", "words", "status", "left"),
    [
        ((ONE,) * 3, ("--force",), 0, (None,) * 3),
        ((ONE,) * 3, ("--owner", ONE), 0, (None,) * 3),
        ((ONE,) * 3, ("--owner", ONE.partition(":")[0]), 0, (None,) * 3),
        # A part of an id, or a label, might be another owner's as well.
        *(
            ((ONE,) * 3, ("--owner", part), 75, (ONE,) * 3)
            for part in (ONE[:31], ONE[:31] + "2", ONE[:-1], "web-1:77:job", "")
        ),
        ((ONE, TWO, ONE), ("--owner", ONE), 0, (None, TWO, None)),
        ((ONE, TWO, ONE), ("--force",), 0, (None,) * 3),
        ((ONE, None, None), ("--force",), 0, (None,) * 3),
        ((None, None, ONE), ("--force",), 0, (None,) * 3),
        ((ONE, None, None), ("--owner", TWO), 75, (ONE, None, None)),
    ],
)
def test_only_the_named_owner_loses_the_lock_or_all(
    owners: tuple[str | None, ...],
    words: tuple[str, ...],
    status: int,
    left: tuple[str | None, ...],
    here: Here,
) -> None:
    nodes = Nodes(*owners)
    ended = release(here, nodes, *words, "--yes")
    assert (ended.status, tuple(nodes.left)) == (status, left)
    assert ("not by that owner" in ended.err) == (status == 75)


def test_each_node_says_what_it_did(here: Here) -> None:
    """An owner that it doesn't keep was not released there."""
    rows = release(here, Nodes(ONE, TWO, ONE), "--owner", ONE, "--yes").out.splitlines()[1:]
    assert ["was not held" in row for row in rows] == [False, True, False]
    assert [row.split()[1] for row in rows] == [f"{1:032x}"] * 3


@pytest.mark.parametrize(
    ("words", "silent", "said", "free"),
    [
        (("--force",), "", (9, 0), 3),
        # A quorum is enough for each slot, however many a silent node leaves unknown.
        (("--force",), "c", (6, 3), 3),
        (("--owner", ONE), "", (3, 0), 1),
    ],
)
def test_every_slot_is_released_or_that_of_one_owner(
    words: tuple[str, ...], silent: str, said: tuple[int, int], free: int, here: Here
) -> None:
    @contextlib.asynccontextmanager
    async def pool() -> AsyncIterator[None]:
        for url in NODES:
            for slot, owner in enumerate((TWO, ONE, TWO.replace("2", "3"))):
                key = f"asynclock:x:#{slot}"
                await memory_node(url).command("SET", key, owner, "PX", 60_000)
        for name in silent:
            memory_node(name).freeze()
        yield
        async with asynclock.connect(*NODES, **QUICK) as others:
            found = [await others.semaphore("x", 3).try_acquire() for _ in range(4)]
            assert [one is not None for one in found] == [True] * free + [False] * (4 - free)

    ended = release(here, pool, *words, "--yes")
    assert ended.status == 0
    assert (ended.out.count("  released"), ended.out.count("unknown: ")) == said


# ---- nodes that don't answer ---------------------------------------------------------------------
@pytest.mark.parametrize(
    ("nodes", "status", "said"),
    [
        (Nodes(ONE, ONE, ONE, silent="bc"), 69, "unknown: "),
        (Nodes(silent="c"), 0, "'x' is free"),
        (Nodes(silent="bc"), 69, "too few nodes answered\nasynclock: memory://b: no answer"),
    ],
)
def test_less_than_a_quorum_is_no_success(nodes: Nodes, status: int, said: str, here: Here) -> None:
    ended = release(here, nodes, "--force", "--yes")
    assert (ended.status, said in ended.out + ended.err) == (status, True)


def test_nodes_that_have_no_vote_release_all_the_same(here: Here) -> None:
    """A node that restarted, whose clock jumped or whose record names others can still free."""
    nodes = Nodes(ONE, ONE, ONE, young="ab")

    @contextlib.asynccontextmanager
    async def recorded() -> AsyncIterator[None]:
        async with Fleet(*NODES, "memory://d", **QUICK) as fleet:
            await fleet.record(force=True)
        async with nodes():
            yield

    ended = release(here, recorded, "--force", "--yes")
    assert (ended.status, ended.err, nodes.left) == (0, "", [None] * 3)


# ---- the question --------------------------------------------------------------------------------
class Keys(io.StringIO):
    """A person at a terminal who types this."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stdin", "status", "left"),
    [
        (Keys("y\n"), 0, None),
        (Keys("n\n"), 1, ONE),
        (Keys("\n"), 1, ONE),
        (Keys(""), 130, ONE),
        (io.StringIO("y\n"), 64, ONE),
    ],
    ids=["yes", "no", "nothing", "the end", "no terminal"],
)
def test_it_asks_and_only_a_yes_at_a_terminal_counts(
    stdin: io.StringIO, status: int, left: str | None, here: Here
) -> None:
    """A program that reads the output finds no question in it."""
    stdin.seek(0)
    here.patch.setattr(sys, "stdin", stdin)
    nodes = Nodes(ONE, ONE, ONE)
    ended = release(here, nodes, "--force")
    assert (ended.status, nodes.left) == (status, [left] * 3)
    assert ("Release it?" in ended.err, "Release it?" in ended.out) == (status != 64, False)
    if status != 64:
        head, row, *_ = ended.out.splitlines()
        assert head.split() == ["part", "owner", "holder", "host", "pid", "remaining"]
        assert row.split()[:4] == [f"{1:032x}", "web-1:77:job", "web-1", "77"]
        assert row.endswith("1m 0s")
    else:
        assert "--yes" in ended.err


# ---- options and output --------------------------------------------------------------------------
def test_what_was_done_as_json(here: Here) -> None:
    ended = release(here, Nodes(ONE, ONE, ONE, silent="c"), "--force", "--yes", "--json")
    outcomes = json.loads(ended.out)["outcomes"]
    assert [(one["node"], one["owner"]) for one in outcomes] == [(url, ONE) for url in NODES]
    assert [one["result"] for one in outcomes[:2]] == ["released", "released"]
    assert outcomes[2]["result"].startswith("unknown: ")
    ended = release(here, Nodes(), "--force", "--yes", "--json")
    assert (ended.status, json.loads(ended.out)["outcomes"]) == (0, [])


@pytest.mark.parametrize(
    "words", [(), ("--owner", "a", "--force"), ("--ask", "--force"), ("--ask", "--owner", "a")]
)
def test_an_owner_or_any_owner_but_not_both(words: Sequence[str], here: Here) -> None:
    ended = release(here, Nodes(), "--yes", *words)
    assert (ended.status, "--force" in ended.err) == (64, True)
