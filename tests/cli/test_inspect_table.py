"""What `inspect`, `release` and `top --once` say of what nodes in memory keep."""

import asyncio
import contextlib
import itertools
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import asynclock
from asynclock.testing import memory_node
from asynclock.testing.memory.commands import ReplyError
from tests.engine.virtual_nodes import instead

from .conftest import NODES, Here, Prepare, Scene

FENCE = 1_700_000_000_000_000
"""A fence that began at a moment of 2023."""
QUICK: dict[str, Any] = {"restart_guard": False, "ttl": 60.0, "max_ttl": 60.0}
Locks = asynclock.LockManager


def nodes(count: int = 3) -> list[str]:
    return [f"memory://{name}" for name in "abcde"[:count]]


def asked(*words: str, count: int = 3) -> list[str]:
    return [*words, *(word for url in nodes(count) for word in ("--node", url))]


def scene(play: Callable[[Locks], Any], **settings: Any) -> Scene:
    """What `play` makes of the nodes, with a manager that stays open."""

    @contextlib.asynccontextmanager
    async def made() -> AsyncIterator[None]:
        async with asynclock.connect(
            *NODES, **{**QUICK, "label": "web-1:77:job", **settings}
        ) as locks:
            await play(locks)
            yield

    return made


def kept(*commands: Sequence[Any], count: int = 3) -> Prepare:
    """Nodes that each executed these commands."""

    async def made() -> None:
        for url in nodes(count):
            for words in commands:
                await memory_node(url).command(*words)

    return made


def say(owners: str, label: str | None = None, left: int | None = 4000) -> Prepare:
    """Nodes that keep these owners of `x`, a letter each; "." is free, "?" is silent."""

    async def made() -> None:
        for url, one in zip(nodes(len(owners)), owners, strict=True):
            if one == "?":
                memory_node(url).freeze()
            elif one != ".":
                ttl = () if left is None else ("PX", left)
                owner = f"{one * 32}:{label or f'web-{one}:7'}"
                await memory_node(url).command("SET", "asynclock:x", owner, *ttl)
                await memory_node(url).command("SET", "asynclock:x:#fence", FENCE + ord(one))

    return made


def table(out: str) -> list[list[str]]:
    """Return the cells of the rows of a table."""
    return [re.split("  +", line) for line in out.splitlines()]


# ---- how far nodes agree -------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("owners", "support", "note", "agreed"),
    [
        ("a", "1/1", "", True),
        (".", "", "", True),
        ("?", "", "unknown: 0 of 1 nodes answered", True),
        ("aaa", "3/3", "", True),
        ("aa.", "2/3", "not on 1 of 3 nodes", False),
        ("aa?", "2/3", "", True),
        ("...", "", "", True),
        ("..?", "", "", True),
        ("a..", "0/3", "no quorum, not on 2 of 3 nodes", False),
        ("a.?", "0/3", "unknown: 2 of 3 nodes answered, not on 1 of 3 nodes", False),
        (".??", "", "unknown: 1 of 3 nodes answered", True),
        ("a??", "0/3", "unknown: 1 of 3 nodes answered", True),
        ("baa", "2/3", "nodes disagree", False),
        ("ab.", "0/3", "no quorum, nodes disagree, not on 1 of 3 nodes", False),
        ("abc", "0/3", "no quorum, nodes disagree", False),
        ("ab?", "0/3", "unknown: 2 of 3 nodes answered, nodes disagree", False),
        ("baaa.", "3/5", "nodes disagree, not on 1 of 5 nodes", False),
        ("bcaa.", "0/5", "no quorum, nodes disagree, not on 1 of 5 nodes", False),
        ("bcaa?", "0/5", "unknown: 4 of 5 nodes answered, nodes disagree", False),
    ],
)
def test_how_far_nodes_agree(
    owners: str, support: str, note: str, agreed: bool, here: Here
) -> None:
    """Programs see an owner only if a quorum names it; a silent node does not say "free"."""
    count, silent = len(owners), owners.count("?")
    answers = 2 * silent < count
    held = bool(support) and support[0] != "0"
    ended = here(*asked("inspect", "--all", count=count), scene=say(owners))
    _, *rows = table(ended.out)
    assert ended.status == (0 if answers else 69)
    few = "" if answers else f", but only {count - silent} of {count} nodes answered"
    assert rows[-1] == [f"{int(bool(support))} held{few}"]
    assert [line.split(": ")[1] for line in ended.err.splitlines()] == [
        url for url, one in zip(nodes(count), owners, strict=True) if one == "?"
    ]
    if support:
        assert [one for one in rows[0] if "/" in one] == [support]
        assert (rows[0][-1] if note else "") == note
        assert ("web-a:7" in rows[0]) == ("a" in owners), "the holder that most nodes name"
    ended = here(*asked("inspect", "x", "--json", count=count), scene=say(owners))
    assert ended.status == (0 if answers else 69)
    shown = json.loads(ended.out)
    assert (shown["held"], shown["agreed"]) == (held, agreed)
    assert shown["conflict"] == (len(set(owners) - {*".?"}) > 1)
    assert shown["owner"] == (f"{'a' * 32}:web-a:7" if held else None)
    wanted = ("web-a:7", "web-a", 7) if held else (None, None, None)
    assert (shown["holder"], shown["host"], shown["pid"]) == wanted
    moment: Any = (pytest.approx(1_700_000_000, abs=1), pytest.approx(4.0 - bool(silent)))
    assert (shown["since"], shown["remaining"]) == (moment if held else (None, None))
    named = sum(map(str.isalpha, owners))
    if held or named <= count // 2:
        assert shown["fence"] == (FENCE + ord("a") if held else None)
    assert (shown["silent"], shown["quorum"]) == (silent, count // 2 + 1)
    assert shown["missing"] == (owners.count(".") if named else 0)
    assert [view["fence"] for view in shown["nodes"]] == [
        FENCE + ord(one) if one.isalpha() else None for one in owners
    ]
    assert [view["error"] is None for view in shown["nodes"]] == [one != "?" for one in owners]


SINCE = r"\d+d \d+h"
"""Of a fence of 2023."""
HELD = f"held {SINCE} by process 77 on web-1, job\\\\x1b; fence"


@pytest.mark.parametrize(
    ("given", "begin", "end"),
    [
        (say("aaa", "web-1:77:job\x1b"), HELD, f"; fence {FENCE + 97}; 4.0 s left without renewal"),
        (say("aa.", "web-1:77:job\x1b"), HELD, "renewal; not on 1 of 3 nodes"),
        (say("aaa", "web"), f"held {SINCE} by web; fence", "renewal"),
        (say("aaa", "web:1"), f"held {SINCE} by process 1 on web; fence", "renewal"),
        (
            say("aaa", left=None),
            f"held {SINCE} by process 7",
            f"fence {FENCE + 97}; a key without ttl",
        ),
        (say("..."), "free$", "free"),
        (say(".??"), "unknown: 1 of 3", "nodes answered"),
        (say("..a"), "nobody has a quorum: no quorum,", " not on 2 of 3 nodes"),
        (kept(("SET", "asynclock:x", "", "PX", 4000)), "held by a holder without a label;", "l"),
        (kept(("SET", "asynclock:x", f"#rests:{'a' * 32}:web:7")), "rests; last held by", " web:7"),
    ],
)
def test_a_verdict_in_one_sentence(given: Scene, begin: str, end: str, here: Here) -> None:
    line = here(*asked("inspect", "x"), scene=given).out.splitlines()[0]
    assert re.match(f"x: {begin}", line)
    assert line.endswith(end)


async def young(_: Locks) -> None:
    for url in NODES[1:]:
        memory_node(url).born_ago(1.0)


@pytest.mark.parametrize("name", ["x", "--all"])
def test_nodes_that_answer_and_have_no_vote_are_named(name: str, here: Here) -> None:
    """They restarted, and may have forgotten what they granted."""
    ended = here(*asked("inspect", name), scene=scene(young))
    assert ended.status == 0
    assert ended.err.count("answers, but has no vote: ") == 2
    if name == "x":
        assert "x: no owner is known, but 2 of 3 nodes have no vote" in ended.out
        assert ended.out.count("free, no vote: ") == 2
        shown = json.loads(here(*asked("inspect", name, "--json"), scene=scene(young)).out)
        assert list(shown["without_vote"]) == list(NODES[1:])


def test_a_table_of_what_each_node_says(here: Here) -> None:
    """Of an owner its id alone, which `release --owner` takes; of a free node no seconds."""
    lines = here(*asked("inspect", "x", count=4), scene=say("a.?a", "web\x1b")).out.splitlines()
    owner = ["a" * 32, "web\\x1b", "3.0 s", str(FENCE + 97)]
    assert lines[0].startswith("x: unknown: 3 of 4 nodes answered, not on 1")
    assert table("\n".join(lines[1:])) == [
        ["node", "owner", "holder", "remaining", "fence", "note"],
        ["memory://a", *owner],
        ["memory://b", "free"],
        ["memory://c", "no answer to the login within node_timeout=1 s"],
        ["memory://d", *owner],
    ]


@pytest.mark.parametrize(
    "words",
    [
        *(("inspect", "x"), ("inspect", "--all"), ("top", "--once")),
        ("release", "x", "--force", "--yes"),
    ],
)
def test_it_waits_as_long_for_a_node_as_it_was_asked_to(words: tuple[str, ...], here: Here) -> None:
    """People can wait longer than locks, and not for ever."""
    here(*asked(*words), scene=say("aa?"))
    usual = here.seconds
    assert usual <= 4.5
    here(*asked(*words, "--node-timeout", "2"), scene=say("aa?"))
    assert here.seconds - usual >= 0.9


# ---- names, labels and kinds ---------------------------------------------------------------------
LABELS: dict[str, tuple[str | None, int | None, str | None]] = {
    "web-1:77": ("web-1", 77, None),
    "web-1:77:nightly": ("web-1", 77, "nightly"),
    "web-1:77:job:9:late": ("web-1", 77, "job:9:late"),
    "web-1:77:two\nlines": ("web-1", 77, "two\nlines"),
    "fe80::1:77": ("fe80:", 1, "77"),
    "web-1": (None, None, None),
    "web-1:job": (None, None, None),
    "web-1:77th": (None, None, None),
    ":77": (None, None, None),
}


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "x"),
        ("top", "--once"),
        ("top", "--once", "--max-ttl", "2s", "--restart-guard", "disk", "--acks", "0"),
        ("release", "x", "--force", "--yes"),
        ("nodes", "show"),
    ],
)
def test_the_services_own_file_is_taken_whatever_its_max_ttl(
    words: tuple[str, ...], here: Here, tmp_path: Path
) -> None:
    """These commands wait for a second for each node, but not for more than the rules allow."""
    file = tmp_path / "services.toml"
    file.write_text(f"nodes = {nodes()}\nttl = 2.0\nmax_ttl = 3.0\n")
    ended = here(*words, "--config", str(file))
    assert (ended.status, ended.err.replace("asynclock: 'x' is free\n", "")) == (0, "")


def test_where_a_holder_is_by_its_label(here: Here) -> None:
    commands = [
        ("SET", f"asynclock:{at}", f"{'a' * 32}:{label}", "PX", 60_000)
        for at, label in enumerate(LABELS)
    ]
    shown = json.loads(here(*asked("inspect", "--all", "--json"), scene=kept(*commands)).out)
    found = {one["holder"]: (one["host"], one["pid"], one["task"]) for one in shown["locks"]}
    assert found == LABELS


@pytest.mark.parametrize(
    ("key", "title"),
    [
        (b"p:a", "a"),
        (b"p:a:b", "a:b"),
        (b"p:pool:#12", "pool [semaphore 12]"),
        (b"p:book:#write", "book [rwlock write]"),
        (b"q:a", None),
        (b"p:", None),
        (b"p:\xff", None),
        (b"p:a:#fence", None),
        (b"p:a:#unknown", None),
        (b"p:a:#readers:#fence", None),
        ("p:a:#٣".encode(), None),
        ("p:a:#²".encode(), None),
    ],
)
def test_what_a_key_stands_for(key: bytes, title: str | None, here: Here) -> None:
    given = kept(("SET", key, f"{1:032x}:h:1", "PX", 60_000))
    ended = here(*asked("inspect", "--all", "--prefix", "p:"), scene=given)
    assert (ended.status, [row[0] for row in table(ended.out)[1:-1]]) == (
        0,
        [title] if title else [],
    )


def test_what_is_no_lock_of_ours_is_passed_over(here: Here) -> None:
    """Other kinds of values under our prefix are no failure of a node."""
    given = kept(
        ("ZADD", "asynclock:list", 1, "x"),
        ("SET", "another:lock", "x"),
        ("ZADD", "asynclock:x:#event", 1, "x"),
        ("HSET", "asynclock:mine:#event", "accepted", 1, "value", 1),
    )
    shown = json.loads(here(*asked("inspect", "--all", "--json"), scene=given).out)
    assert [one["name"] for one in shown["states"]] == ["mine"]
    assert (shown["locks"], shown["errors"], shown["waiting"]) == ([], {}, {})


@pytest.mark.parametrize("name", ["a*", "a?", "[ab]c", "back\\slash", "^[a-z]$", "a"])
def test_a_name_of_marks_is_only_itself(name: str, here: Here) -> None:
    """SCAN would read them as a pattern; and names that begin with it are others."""

    async def held(locks: Locks) -> None:
        assert await locks.semaphore(name, 1).acquire()
        for other in ("ac", f"{name}b"):
            assert await locks.lock(other).acquire()

    words = asked("inspect", "--json", "--prefix", "p[1]*:")
    shown = json.loads(here(*words, "--", name, scene=scene(held, prefix="p[1]*:")).out)
    assert [(one["name"], one["kind"]) for one in shown["parts"]] == [(name, "semaphore")]


TIME = re.compile(r"\b(\d+\.\d s|\d+(m \d+s|h \d+m|d \d+h))(?!\w)")
"""A time as all commands show it, such as 9.0 s or 4m 10s."""


async def of_all_lengths(locks: Locks) -> None:
    """A lock and a reader that are held, one that rests, waiters, and state that ends."""
    await locks.lock("x", ttl=5000.0).acquire()
    await locks.rwlock("book").read().acquire()
    await (await locks.lock("rested", at_least=4000.0).acquire()).release()
    await locks.latch("latch", 2).count_down()
    now = int((await memory_node(NODES[0]).command("TIME"))[0])
    for at, since in enumerate((1.2, 75.0, 4000.0, 200_000.0)):
        ticket, number = f"{at:032x}:web:{at}", int((now - since) * 1e6)
        for url in NODES:
            node = memory_node(url)
            await node.command("ZADD", "asynclock:x:#queue", number, ticket)
            await node.command("SET", f"asynclock:x:#queue:#{ticket}", 1, "PX", 60_000)


@pytest.mark.parametrize(
    "words",
    [*(("inspect", name) for name in ("x", "book", "rested", "latch", "--all")), ("top", "--once")],
)
def test_times_have_one_form(words: tuple[str, ...], here: Here) -> None:
    given = scene(of_all_lengths, ttl=5000.0, max_ttl=6000.0)
    shown = here(*asked(*words), scene=given).out
    assert TIME.search(shown) or "latch" in words, shown
    assert ("\n2 held" in shown) is (words[-1] in ("--all", "--once"))  # nobody has what rests
    rest = TIME.sub("", shown).replace("0.0 ms", "")  # a node's round trip
    assert not re.search(r"\b[\d.]+ ?(ms|s|m|h|d|seconds|min)\b|\d:\d\d:\d\d|\d{4}-\d\d", rest), (
        rest
    )


# ---- who waits -----------------------------------------------------------------------------------
def waiting(count: int, key: str = "asynclock:x:#queue", woken: int = 0) -> list[tuple[Any, ...]]:
    """Commands that put this many into a queue, of whom the first ones were told to go."""
    found: list[tuple[Any, ...]] = []
    for at in range(count):
        ticket = f"{at:032x}:web-{at}:1"
        found.append(("ZADD", key, at, ticket))
        found.append(("SET", f"{key}:#{ticket}", "go" if at < woken else "1", "PX", 600_000))
    return found


OWNER = ("SET", "asynclock:x", f"{'a' * 32}:web-1:77:job", "PX", 60_000)


@pytest.mark.parametrize("owner", [[OWNER], []], ids=["held", "left"])
def test_who_waits_and_who_is_told_already(owner: list[Any], here: Here) -> None:
    given = kept(*owner, *waiting(2, woken=1))
    out = here(*asked("inspect", "x"), scene=given).out
    assert out.startswith("x: held by process 77" if owner else "x: free")
    assert table(out.partition("2 waiting; the first goes next\n")[2]) == [
        ["place", "waiter", "waiting for", "note"],
        ["1", "web-0:1", "woken"],
        ["2", "web-1:1"],
    ]
    shown = json.loads(here(*asked("inspect", "x", "--json"), scene=given).out)["waiting"]
    assert shown == [
        {
            "ticket": f"{at:032x}:web-{at}:1",
            "label": f"web-{at}:1",
            "host": f"web-{at}",
            "pid": 1,
            "task": None,
            "since": None,
            "woken": not at,
        }
        for at in range(2)
    ]
    listed = json.loads(here(*asked("inspect", "--all", "--json"), scene=given).out)["waiting"]
    assert listed == {"x": shown}


def test_a_queue_that_a_minority_tells_is_no_order(here: Here) -> None:
    async def outage() -> None:
        await kept(OWNER, *waiting(2))()
        for url in NODES[1:]:
            memory_node(url).freeze()

    ended = here(*asked("inspect", "x"), scene=outage)
    assert ended.status == 69
    assert "\n2 waiting, but only 1 of 3 nodes answered\n" in ended.out


@pytest.mark.parametrize(
    ("count", "first", "last"),
    [
        (1, "1 waiting; the first goes next", ["1", "web-0:1"]),
        (20, "20 waiting; the first goes next", ["20", "web-19:1"]),
        (21, "21 waiting; the first goes next", ["and 1 more, which --json lists"]),
        (499, "499 waiting; the first goes next", ["and 479 more, which --json lists"]),
        # Half of those that a node tells may have died.
        (500, "500 or more waiting; the first goes next", ["and 480 more, which --json lists"]),
    ],
)
def test_a_long_queue_is_cut_and_says_so(
    count: int, first: str, last: list[str], here: Here
) -> None:
    given = kept(OWNER, *waiting(count), count=1)
    out = here(*asked("inspect", "x", count=1), scene=given).out
    lines = out[out.index(first) :]
    assert table(lines)[-1] == last
    assert len(lines.splitlines()) <= 23
    top = here(*asked("top", "--once", count=1), scene=given).out
    assert f"{first.partition(' waiting')[0]}, first web-0:1" in top


@pytest.mark.parametrize("name", ["n" * 3000, "é" * 3000], ids=["ascii", "others"])
def test_a_long_name_is_whole_in_a_pipe_and_pads_no_other_row(name: str, here: Here) -> None:
    given = kept(OWNER, ("SET", f"asynclock:{name}", OWNER[2], "PX", 60_000), count=1)
    for words in (("inspect", "--all"), ("top", "--once")):
        lines = here(*asked(*words, count=1), scene=given).out.splitlines()
        assert any(line.startswith(f"{name}  ") for line in lines)
        assert max(len(line) for line in lines if name not in line) <= 160


def test_the_queues_of_a_kind_come_in_the_order_of_its_declaration(here: Here) -> None:
    given = kept(
        *waiting(1, "asynclock:m:#collectors"),
        *waiting(2, "asynclock:m:#slots"),
        *waiting(2, "asynclock:b:#upgraders"),
        *waiting(1, "asynclock:b:#phases"),
        *waiting(1, "asynclock:x:#queue"),
        *waiting(1, "asynclock:x:#phases"),
    )
    shown = json.loads(here(*asked("inspect", "--all", "--json"), scene=given).out)["waiting"]
    assert {name: len(queue) for name, queue in shown.items()} == {"m": 3, "b": 3, "x": 2}
    assert [one["ticket"][31] for one in shown["m"]] == ["0", "1", "0"]
    assert [one["ticket"][31] for one in shown["b"]] == ["0", "0", "1"]


@pytest.mark.parametrize(
    ("naming", "silent", "found"), [(2, 0, 1), (1, 0, 0), (1, 1, 0), (2, 1, 1)]
)
def test_a_ticket_that_most_nodes_lack_is_left_out(
    naming: int, silent: int, found: int, here: Here
) -> None:
    async def given() -> None:
        for url in NODES[:naming]:
            for words in waiting(1):
                await memory_node(url).command(*words)
        for url in NODES[3 - silent :]:
            memory_node(url).freeze()

    shown = json.loads(here(*asked("inspect", "--all", "--json"), scene=given).out)
    assert len(shown["waiting"].get("x", ())) == found


# ---- several kinds and shared state --------------------------------------------------------------
async def many_kinds(locks: Locks) -> None:
    assert await locks.lock("a").acquire()
    for _ in range(2):
        assert await locks.semaphore("pool", 2).acquire()
        assert await locks.rwlock("book").read().acquire()
    await locks.event("bell\x1b").set()
    await memory_node("b").command("DEL", "asynclock:bell\x1b:#event")
    await locks.latch("done", 3).count_down()


def test_a_list_of_all(here: Here) -> None:
    _, *rows, last = table(here(*asked("inspect", "--all"), scene=scene(many_kinds)).out)
    assert last == ["5 held, 2 shared"]
    assert [row[0] for row in rows] == [
        *("a", "book [rwlock read]", "book [rwlock read]", "pool [semaphore 0]"),
        *("pool [semaphore 1]", "bell\\x1b [event]", "done [latch]"),
    ]
    for row in (rows[0], *rows[3:5]):
        assert row[1] == "web-1:77:job"
        assert re.fullmatch(SINCE, row[2]), "of the nodes' clocks in virtual time"
        assert row[3] in ("1m 0s", "59.9 s")
    assert rows[5][-2:] == ["2/3", "set"]


def test_each_part_of_a_name_and_nothing_else(here: Here) -> None:
    out = here(*asked("inspect", "pool"), scene=scene(many_kinds)).out
    held = re.findall(rf"^(.*): held {SINCE} by process 77 on web-1, job", out, re.MULTILINE)
    assert held == ["pool [semaphore 0]", "pool [semaphore 1]"]
    assert "free" not in out
    shown = json.loads(here(*asked("inspect", "pool", "--json"), scene=scene(many_kinds)).out)
    assert (shown["name"], [one["part"] for one in shown["parts"]]) == ("pool", ["0", "1"])


def test_a_state_and_the_nodes_that_are_behind_or_silent(here: Here) -> None:
    async def silent(locks: Locks) -> None:
        await many_kinds(locks)
        memory_node("c").freeze()

    lines = here(*asked("inspect", "bell\x1b"), scene=scene(silent)).out.splitlines()
    assert lines[0] == "bell\\x1b [event]: set, no quorum"
    assert table("\n".join(lines[2:])) == [
        ["memory://a", "set", "23h 59m"],
        ["memory://b", "behind"],
        ["memory://c", "no answer to the login within node_timeout=1 s"],
    ]


@pytest.mark.parametrize(
    ("numbers", "support", "agreed"),
    [((3, 3, 3), "3/3", True), ((2, 3, 3), "2/3", True), ((3, 2, 2), "1/3", False)],
)
def test_the_last_change_of_a_state_counts_once_a_quorum_knows_it(
    numbers: tuple[int, ...], support: str, agreed: bool, here: Here
) -> None:
    """Nodes may have the same value and not know the last change."""

    async def given() -> None:
        for url, n in zip(NODES, numbers, strict=True):
            key = "asynclock:bell:#event"
            await memory_node(url).command("HSET", key, "accepted", n, "value", "set")
            await memory_node(url).command("PEXPIRE", key, 5000 + 1000 * n)

    row = table(here(*asked("inspect", "--all"), scene=given).out)[1]
    assert row[-3:] == ["8.0 s", support, "set" if agreed else "set, no quorum"]
    (state,) = json.loads(here(*asked("inspect", "bell", "--json"), scene=given).out)["states"]
    assert (state["kind"], state["state"], state["agreed"]) == ("event", {"set": True}, agreed)
    assert state["remaining"] == pytest.approx(8.0), "of the last change"
    assert [one["remaining"] for one in state["nodes"]] == pytest.approx([5.0 + n for n in numbers])
    assert {(one["value"], one["error"]) for one in state["nodes"]} == {("set", None)}


def test_a_value_of_something_else_is_no_state(here: Here) -> None:
    given = kept(("HSET", "asynclock:bell:#event", "accepted", 1, "value", "?"))
    assert "written by something else" in here(*asked("inspect", "bell"), scene=given).out
    (state,) = json.loads(here(*asked("inspect", "bell", "--json"), scene=given).out)["states"]
    assert state["state"] is None


# ---- nodes that refuse ---------------------------------------------------------------------------
def refusing(url: str, begin: tuple[bytes, ...], said: str, times: int = 1000) -> None:
    errors = itertools.repeat(ReplyError(said), times)
    instead(
        memory_node(url), lambda words: next(errors, None) if words[: len(begin)] == begin else None
    )


@pytest.mark.parametrize("command", [b"SCAN", b"EVALSHA"])
def test_a_node_whose_user_may_not_look_is_named(command: bytes, here: Here) -> None:
    async def held(locks: Locks) -> None:
        assert await locks.lock("a").acquire()
        refusing("b", (command,), "NOPERM this user has no permissions")

    ended = here(*asked("inspect", "--all"), scene=scene(held))
    assert ended.err.startswith("asynclock: memory://b: NOPERM")
    assert "asynclock: user operator on >PASSWORD ~asynclock:* " in ended.err
    assert [row[0] for row in table(ended.out)[1:]] == ["a", "1 held"]


def test_a_command_that_fails_hides_no_other_locks(here: Here) -> None:
    """The owners of many locks are asked for in several commands."""
    commands = [("SET", f"asynclock:{n}", "o:h:1", "PX", 60_000) for n in range(120)]

    async def given() -> None:
        await kept(*commands, count=1)()
        refusing("a", (b"EVALSHA",), "OOM once", times=1)

    shown = json.loads(here(*asked("inspect", "--all", "--json", count=1), scene=given).out)
    assert "OOM once" in shown["errors"]["memory://a"]
    assert len(shown["locks"]) == 120 - 50


def test_a_user_who_may_not_read_queues_sees_all_the_rest(here: Here) -> None:
    async def held(locks: Locks) -> None:
        assert await locks.lock("x").acquire()
        assert await locks.lock("y").acquire()
        for url in NODES:
            for words in waiting(1):
                await memory_node(url).command(*words)
            instead(memory_node(url), no_queues)

    def no_queues(words: Any) -> Any:
        looks = words[0] == b"EVALSHA" and b"asynclock:x:#queue" in words
        return ReplyError("NOPERM not you") if looks else None

    shown = json.loads(here(*asked("inspect", "--all", "--json"), scene=scene(held)).out)
    assert ([one["name"] for one in shown["locks"]], shown["errors"]) == (["x", "y"], {})


def test_a_node_that_stops_answering_during_a_survey_is_named(here: Here) -> None:
    async def stops(locks: Locks) -> None:
        await locks.event("mine").set()
        node = memory_node("b")

        def freezes(words: Any) -> None:
            if words[0] == b"SCAN":
                asyncio.get_running_loop().call_soon(node.freeze)

        instead(node, freezes)

    ended = here(*asked("inspect", "--all"), scene=scene(stops))
    assert (ended.status, ended.err.count("memory://b: ")) == (0, 1)
    assert table(ended.out)[1][-2:] == ["2/3", "set"]
    assert here.seconds <= 3.0


@pytest.mark.parametrize(
    ("dead", "fresh", "said"),
    [
        ("", "", None),
        ("c", "", "1 of 3 nodes without a vote (1 down): locks work; if one more fails, nothing"),
        ("bc", "", "2 of 3 nodes without a vote (2 down): nothing can be locked, and no lease can"),
        ("c", "b", "2 of 3 nodes without a vote (1 down, 1 quarantined): nothing can be locked"),
        ("abcde", "", "5 of 5 nodes without a vote (5 down): nothing can be locked"),
        ("", "e", "1 of 5 nodes without a vote (1 quarantined): locks work; 1 more may fail"),
        ("ae", "", "2 of 5 nodes without a vote (2 down): locks work; if one more fails"),
        ("d", "", "1 of 4 nodes without a vote (1 down): locks work; if one more fails"),
        ("cd", "", "2 of 4 nodes without a vote (2 down): nothing can be locked"),
    ],
)
def test_what_missing_nodes_mean(dead: str, fresh: str, said: str | None, here: Here) -> None:
    count = int(said.split()[2]) if said else 3

    async def given() -> None:
        for name in dead:
            memory_node(name).kill()
        for name in fresh:
            memory_node(name).born_ago(1.0)

    line = here(*asked("top", "--once", count=count), scene=given).out.splitlines()[0]
    assert line.startswith(said or "node  ")


# ---- arguments -----------------------------------------------------------------------------------
@pytest.mark.parametrize("words", [(), ("x", "--all"), ("x", "y"), ("--wrong",)])
def test_a_name_or_all_but_not_both(words: tuple[str, ...], here: Here) -> None:
    ended = here(*asked("inspect", *words))
    assert (ended.status, ended.out) == (64, "")
    assert ended.err
