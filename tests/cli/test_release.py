"""`asynclock release` on nodes in memory: from whom a lock is taken, and what is said about it."""

from __future__ import annotations

import asyncio
import functools
import io
import json
import sys
from collections.abc import Sequence
from typing import Any

import pytest

import asynclock
from asynclock.cli._sources import Settings
from asynclock.cli._start import start
from asynclock.cli._status import Status
from asynclock.cli.look import release
from asynclock.errors import ConfigurationError
from asynclock.fleet import Fleet
from asynclock.testing import memory_node
from tests.waiting import in_virtual_time

NODES = ("memory://a", "memory://b", "memory://c")
QUICK: dict[str, Any] = {"restart_guard": False, "ttl": 60.0, "max_ttl": 60.0}
ONE, TWO = f"{1:032x}:web-1:77:job", f"{2:032x}:web-2:88"


async def released(
    name: str = "x",
    owner: str | None = None,
    *,
    ask: bool = False,
    json: bool = False,
    **settings: Any,
) -> int:
    """Run the command's work on the three nodes, and return its exit status."""
    found = Settings(NODES, {**QUICK, **settings})
    return await release._release(found, name, owner, ask_first=ask, json=json)


async def keep(*owners: str | None, key: str = "asynclock:x") -> None:
    """Let each node keep this owner of a lock; None leaves it free."""
    for node, owner in zip(map(memory_node, NODES), owners, strict=True):
        if owner is not None:
            await node.command("SET", key, owner, "PX", 60_000)


async def kept(key: str = "asynclock:x") -> list[str | None]:
    """Return the owner that each node keeps."""
    found = [await memory_node(node).command("GET", key) for node in NODES]
    return [one.decode() if isinstance(one, bytes) else one for one in found]


# ---- from whom it is taken -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("owner", "status", "left"),
    [
        (None, Status.OK, None),
        (ONE, Status.OK, None),
        (ONE.partition(":")[0], Status.OK, None),
        # A part of an id, or a label, might be another owner's as well.
        (ONE[:31], Status.NOT_ACQUIRED, ONE),
        (ONE[:31] + "2", Status.NOT_ACQUIRED, ONE),
        (ONE[:-1], Status.NOT_ACQUIRED, ONE),
        ("web-1:77:job", Status.NOT_ACQUIRED, ONE),
        ("", Status.NOT_ACQUIRED, ONE),
    ],
)
@in_virtual_time
async def test_only_the_named_owner_loses_the_lock(
    owner: str | None, status: int, left: str | None
) -> None:
    await keep(ONE, ONE, ONE)
    assert await released(owner=owner) == status
    assert await kept() == [left] * 3


@in_virtual_time
async def test_of_several_owners_the_named_one_loses_it_or_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each node says what it did: an owner that it doesn't keep was not released there."""
    await keep(ONE, TWO, ONE)
    assert await released(owner=ONE) == Status.OK
    assert await kept() == [None, TWO, None]
    rows = capsys.readouterr().out.splitlines()[1:]
    assert ["was not held" in row for row in rows] == [False, True, False]
    assert [row.split()[1] for row in rows] == [f"{1:032x}"] * 3
    await keep(ONE, None, ONE)
    assert await released() == Status.OK
    assert await kept() == [None] * 3


@pytest.mark.parametrize("at", [0, 2])
@in_virtual_time
async def test_what_a_single_node_keeps_is_released(at: int) -> None:
    await keep(*(ONE if number == at else None for number in range(3)))
    assert await released() == Status.OK
    assert await kept() == [None] * 3


@in_virtual_time
async def test_an_owner_without_a_quorum_is_named_to_anyone_who_names_another(
    capsys: pytest.CaptureFixture[str],
) -> None:
    await keep(ONE, None, None)
    assert await released(owner=TWO) == Status.NOT_ACQUIRED
    assert "not by that owner" in capsys.readouterr().err
    assert await kept() == [ONE, None, None]


@in_virtual_time
async def test_every_slot_is_released_or_that_of_one_owner() -> None:
    manager = functools.partial(asynclock.connect, *NODES, **QUICK)
    async with manager() as locks, manager() as others:
        leases = [await locks.semaphore("pool", 3).acquire() for _ in range(3)]
        assert await released("pool", leases[1].owner) == Status.OK
        assert await others.semaphore("pool", 3).try_acquire()
        assert await others.semaphore("pool", 3).try_acquire() is None
    async with manager() as locks, manager() as others:
        for _ in range(3):
            assert await locks.semaphore("pool", 3).try_acquire()
        assert await released("pool") == Status.OK
        for _ in range(3):
            assert await others.semaphore("pool", 3).try_acquire()


# ---- nodes that don't answer ---------------------------------------------------------------------


@in_virtual_time
async def test_a_quorum_is_enough_for_each_slot(capsys: pytest.CaptureFixture[str]) -> None:
    """One silent node of three does not matter, however many slots it leaves unknown."""
    manager = functools.partial(asynclock.connect, *NODES, **QUICK)
    async with manager() as locks, manager() as others:
        for _ in range(2):
            assert await locks.semaphore("pool", 2).acquire()
        memory_node("c").freeze()
        assert await released("pool") == Status.OK
        out = capsys.readouterr().out
        assert (out.count("  released"), out.count("unknown: ")) == (4, 2)
        assert await others.semaphore("pool", 2).try_acquire()


@in_virtual_time
async def test_less_than_a_quorum_is_no_success() -> None:
    await keep(ONE, ONE, ONE)
    memory_node("b").freeze()
    memory_node("c").freeze()
    assert await released() == Status.UNREACHABLE


@in_virtual_time
async def test_a_lock_is_free_only_if_a_quorum_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    memory_node("c").freeze()
    assert await released() == Status.OK
    assert "'x' is free" in capsys.readouterr().err
    memory_node("b").freeze()
    assert await released() == Status.UNREACHABLE
    assert "too few nodes answered; silent: memory://b, memory://c" in capsys.readouterr().err


@in_virtual_time
async def test_nodes_that_have_no_vote_release_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A node that restarted, whose clock jumped or whose record names other nodes can still free.

    The settings of the services have these guards on.
    """
    await keep(ONE, ONE, ONE)
    memory_node("a").born_ago(1.0)
    memory_node("b").born_ago(1.0)
    guards = {"restart_guard": True, "clock_guard": True, "set_guard": True}
    assert await released(**guards) == Status.OK
    assert await kept() == [None] * 3
    assert not caplog.records, "a warning that does not matter here"
    async with Fleet(*NODES, "memory://d", **QUICK) as fleet:
        await fleet.record(force=True)
    await keep(ONE, ONE, ONE)
    assert await released(**guards) == Status.OK
    assert await kept() == [None] * 3


@in_virtual_time
async def test_it_waits_for_nodes_as_long_as_asked() -> None:
    for node in NODES:
        memory_node(node).freeze()
    loop = asyncio.get_running_loop()
    took = []
    for timeout in ({}, {"node_timeout": 2.0}):
        began = loop.time()
        assert await released(**timeout) == Status.UNREACHABLE
        took.append(loop.time() - began)
    assert took == pytest.approx([1.0, 2.0])


# ---- the question --------------------------------------------------------------------------------


class Keys(io.StringIO):
    """A person at a terminal who types this."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("typed", "status", "left"),
    [("y\n", Status.OK, None), ("n\n", 1, ONE), ("\n", 1, ONE)],
)
@in_virtual_time
async def test_it_asks_and_only_a_yes_counts(
    typed: str,
    status: int,
    left: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", Keys(typed))
    await keep(ONE, ONE, ONE)
    assert await released(ask=True) == status
    assert await kept() == [left] * 3
    shown = capsys.readouterr()
    assert shown.out.splitlines()[1].split()[:4] == [f"{1:032x}", "web-1:77:job", "web-1", "77"]
    assert shown.out.splitlines()[1].endswith("60.0 s")
    # A program that reads the output finds no question in it.
    assert "Release it?" in shown.err
    assert "Release it?" not in shown.out


@in_virtual_time
async def test_without_a_terminal_it_releases_nothing_unasked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    await keep(ONE, ONE, ONE)
    with pytest.raises(ConfigurationError, match="--yes"):
        await released(ask=True)
    assert await kept() == [ONE] * 3


# ---- options and output --------------------------------------------------------------------------


@in_virtual_time
async def test_what_was_done_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    await keep(ONE, ONE, ONE)
    memory_node("c").freeze()
    assert await released(json=True) == Status.OK
    outcomes = json.loads(capsys.readouterr().out)["outcomes"]
    assert [(one["node"], one["owner"]) for one in outcomes] == [(node, ONE) for node in NODES]
    assert [one["result"] for one in outcomes[:2]] == ["released", "released"]
    assert outcomes[2]["result"].startswith("unknown: ")
    memory_node("c").thaw()
    await keep(None, None, None)
    for node in NODES:
        await memory_node(node).command("DEL", "asynclock:x")
    assert await released(json=True) == Status.OK
    assert json.loads(capsys.readouterr().out)["outcomes"] == []


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (("--force", "--yes"), (None, False, False)),
        (("--force",), (None, True, False)),
        (("--owner", "a:b", "--yes", "--json"), ("a:b", False, True)),
    ],
)
def test_what_the_options_mean(
    words: Sequence[str], given: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the library's warnings about nodes are shown."""
    seen: list[Any] = []

    async def noted(settings: Settings, name: str, owner: Any, *, ask_first: Any, json: Any) -> int:
        seen.append((settings.nodes, name, owner, ask_first, json))
        return Status.OK

    monkeypatch.setattr(release, "_release", noted)
    monkeypatch.setattr(release, "log_to_stderr", lambda: seen.append("warnings"))
    assert start(["release", "x", "--node", "memory://", *words]) == Status.OK
    assert seen == ["warnings", (("memory://",), "x", *given)]


@pytest.mark.parametrize("words", [(), ("--owner", "a", "--force")])
def test_an_owner_or_any_owner_but_not_both(
    words: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert start(["release", "x", "--node", "memory://", "--yes", *words]) == Status.USAGE
    assert "--force" in capsys.readouterr().err
