"""What is made of replies: errors, redirects, views of a Cluster, opinions of Sentinels, INFO."""

import asyncio
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from asynclock import _clock
from asynclock._nodes.cluster import ClusterTrust
from asynclock._nodes.cluster.shards import (
    SLOTS,
    View,
    confirmations,
    read_redirect,
    read_view,
    read_views,
    why_none,
)
from asynclock._nodes.handshake import HandshakeError
from asynclock._nodes.link import NEEDED_CHECKS, Patience
from asynclock._nodes.multiplexer import barred, quarantined
from asynclock._nodes.replicated import SILENT, SentinelView, agreed_primary, poll
from asynclock._nodes.replicated.acks import leave_mark
from asynclock._nodes.wire import (
    _MISTAKES,
    FAILED,
    Command,
    Failure,
    ServerError,
    failure,
    parse_info,
    read_facts,
)
from asynclock._primitives.lock import SCRIPT, spec
from asynclock._rules.validity import Facts
from asynclock.testing.memory.commands import ReplyError
from tests.waiting import in_virtual_time

# ---- errors
FULL = "OOM command not allowed"
WRONG_TYPE = "WRONGTYPE Operation against a key"
NO_CLUSTER = _MISTAKES["cluster support disabled"]
KEY = "another program has a key of this name: choose another name or prefix"
BEFORE_7 = f"ERR Error running script (call to f_{'0' * 40}): @user_script:62: "
CAUGHT = "@user_script: 62: "
AROUND = [
    (f"{BEFORE_7}-", "."),
    (f"{BEFORE_7}{CAUGHT}-", "."),
    (f"{CAUGHT}-", "."),
    ("", f". script: {'0' * 40}, on @user_script:62."),
    ("", ". script: on @user_script:62."),
]
"""What servers write around an error in a script: before 7.0, since then, and Valkey 9."""


@pytest.mark.parametrize(
    ("text", "cause", "permanent"),
    [
        *((f"{before}{FULL}{behind}", FULL, False) for before, behind in AROUND),
        *(
            (f"{one.rstrip('-')}{WRONG_TYPE}{two}", f"{WRONG_TYPE} ({KEY})", True)
            for one, two in AROUND
        ),
        ("WRONGPASS invalid", "WRONGPASS invalid", True),
        ("NOAUTH Authentication required.", "NOAUTH Authentication required", True),
        ("NOPROTO unsupported", "NOPROTO unsupported", True),
        ("ERR unknown command 'EVALSHA', with args 'a'", "ERR unknown command 'EVALSHA'", True),
        (
            "ERR unknown command `CLUSTER`, with args beginning with: `x`",
            f"ERR unknown command `CLUSTER` ({NO_CLUSTER})",
            True,
        ),
        ("ERR The user executing the script can't access a key", "", True),
        ("ERR ACL failure in script: no permission", "", True),
        ("BUSY a script is running", "", False),
        ("LOADING the dataset", "", False),
    ],
)
def test_an_error_is_told_as_the_servers_own_and_may_need_a_person(
    text: str, cause: str, *, permanent: bool
) -> None:
    found, cause = failure(ServerError(text)), cause or text
    assert found.cause.rstrip(".") == cause
    assert (found.code, found.permanent) == (cause.split()[0], permanent)


# ---- what a command says of itself
ME = ("asynclock:a",)


def release(*more: Any) -> Command:
    return Command(SCRIPT, ME, ("release", "me", *more)).resent(3.0, 60.0)


@pytest.mark.parametrize(
    ("command", "puts", "claims"),
    [
        (spec("", "a").acquire("me", 9.0, 0, 0, 9), {"me"}, ("me",)),
        (spec("", "a").acquire("me", 9.0, 0, 0, 9, (2000, "t", 1)), {"me", "t"}, ("me",)),
        (release(0, "t", 1), {"t"}, ()),
        (release(), set(), ()),
    ],
)
def test_what_a_late_command_leaves_on_a_server(
    command: Command, puts: set[str], claims: tuple[str, ...]
) -> None:
    assert (set(command.puts), command.claims) == (puts, claims)


@pytest.mark.parametrize(
    ("more", "kept"), [((), ()), ((FAILED,), (FAILED,)), ((5,), ()), ((5, "ticket"), (FAILED,))]
)
def test_a_late_release_has_its_owner_alone(more: tuple[Any, ...], kept: tuple[Any, ...]) -> None:
    """By then its ticket has left; that its attempt had failed is still true."""
    again = release(*more).again()
    assert again.args == ("release", "me", *kept)
    assert (again.asked_since, again.retry_until, again.unlimited) == (3.0, 60.0, True)


def test_a_bound_on_a_command_keeps_its_source() -> None:
    """A Cluster's importing server must get both: NOSCRIPT would use up the ASKING before it."""
    acquire = Command(SCRIPT, ME, ("acquire", "me", 1000, 1, 0, 0))
    for command, sourced in ((acquire, False), (acquire.with_source(), True)):
        bounded = command.not_after(7)
        assert bounded.args[4] == 7
        assert (SCRIPT.source.encode() in bounded.packed) is sourced
    ping = Command.plain("PING")
    assert ping.not_after(5) is ping


# ---- redirects and views of a Cluster
@pytest.mark.parametrize(
    ("cause", "address"),
    [
        ("MOVED 3999 10.0.0.2:7001", ("10.0.0.2", 7001)),
        ("ASK 3999 redis.example:7001", ("redis.example", 7001)),
        ("MOVED 3999 [fd00::2]:7001", ("fd00::2", 7001)),
        ("MOVED 3999 fd00::2:7001", ("fd00::2", 7001)),
        ("MOVED 3999 :7001", ("asked", 7001)),
        ("MOVED 3999 10.0.0.2", None),
        ("MOVED 3999 10.0.0.2:", None),
        ("MOVED 3999 10.0.0.2:port", None),
        ("MOVED 3999", None),
        ("MOVED", None),
    ],
)
def test_a_redirect_names_a_server_or_nothing(cause: str, address: tuple[str, int] | None) -> None:
    assert read_redirect(cause, "asked:7000") == address


FIRST, SECOND, REPLICA = ("a", 1), ("b", 1), ("c", 1)
A, B, C = [b"a", 1], [b"b", 1], [b"c", 1]
LAST = SLOTS - 1


def view(*slots: list[Any], epoch: int = 4) -> View:
    found = read_view(FIRST, list(slots), b"cluster_current_epoch:%d\r\n" % epoch)
    assert found is not None
    return found


def test_a_view_names_owners_replicas_and_the_slot_of_each_mark() -> None:
    """It lies in a server's first slot, so that slots that it gets later change nothing."""
    found = view([0, 99, A, C], [100, 199, B], [200, LAST, A])
    assert found.epoch == 4
    assert (found.owners[0], found.owners[99], found.owners[100]) == (FIRST, FIRST, SECOND)
    assert found.owners[-1] == FIRST
    assert {one: shard.slot for one, shard in found.shards.items()} == {FIRST: 0, SECOND: 100}
    assert [shard.replicas for shard in found.shards.values()] == [1, 0]
    assert found.others == {REPLICA}
    assert view([0, 99, A, B], [100, LAST, B, C]).others == {REPLICA}, "one with slots is none"


def test_only_primaries_confirm_a_primary() -> None:
    """Its replicas may be cut off together with it."""
    found, other = view([0, 5000, A, C], [5001, LAST, B]), view([0, LAST, B], epoch=5)
    assert confirmations(found, {FIRST: found, REPLICA: found}) == {FIRST: 1, SECOND: 1}
    assert confirmations(found, {FIRST: found, SECOND: found}) == {FIRST: 2, SECOND: 2}
    assert confirmations(found, {FIRST: found, SECOND: other}) == {FIRST: 1, SECOND: 2}


@pytest.mark.parametrize("host", [None, b"", b"?"])
def test_a_server_that_does_not_know_its_host_is_the_one_that_was_asked(host: bytes | None) -> None:
    found = read_view(("asked", 7), [[0, LAST, [host, 7]]], b"")
    assert found is not None
    assert (list(found.shards), found.epoch) == ([("asked", 7)], 0)


def test_a_server_without_a_view_has_none() -> None:
    slots, error = [[0, LAST, A]], Failure("no answer")
    assert read_view(FIRST, [], b"") is None
    answers = [[slots, b""], [b"?", b""], [slots, error]]
    views, (unread, without_epoch) = read_views([FIRST, SECOND, REPLICA], answers)
    assert list(views) == [FIRST]
    assert "can't be read" in unread.cause
    assert without_epoch is error


WRONG = Failure("WRONGPASS invalid", permanent=True, code="WRONGPASS")
LOST = Failure("connection lost")


@pytest.mark.parametrize(
    ("failures", "cause", "permanent"),
    [
        ([], "none are assigned", False),
        ([SILENT], "none are assigned", False),
        ([WRONG, WRONG], r"\(WRONGPASS invalid\)", True),
        ([WRONG, SILENT], r"\(WRONGPASS invalid\)", True),
        ([WRONG, LOST], r"\(WRONGPASS invalid; connection lost\)", False),
    ],
)
def test_why_no_server_has_a_view(failures: list[Failure], cause: str, permanent: bool) -> None:
    found = why_none(failures)
    assert re.search(cause, found.cause)
    assert found.permanent is permanent


def test_the_clock_of_a_cluster_is_that_of_the_server_most_ahead() -> None:
    """So no server takes a request for late that comes in time."""
    nodes: Any = {n: SimpleNamespace(trust=SimpleNamespace(offset=n / 10)) for n in range(3)}
    assert ClusterTrust(10.0, nodes).offset == 0.2
    nodes[3] = SimpleNamespace(trust=SimpleNamespace(offset=None))
    assert ClusterTrust(10.0, nodes).offset is None


# ---- Sentinels
DOWN = [Failure("no answer")] * 3
NOT_KNOWN = [Failure("ERR No such master with that name", code="ERR")] * 3


def told(
    port: int, epoch: int = 1, *replicas: tuple[str, str, str], down_after: int = 1000
) -> list[Any]:
    """What a Sentinel replies to the three questions; replicas by port, run id and flags."""
    master = {"config-epoch": epoch, "down-after-milliseconds": down_after}
    pairs = [
        {b"ip": b"h", b"port": port.encode(), b"runid": run.encode(), b"flags": flags.encode()}
        for port, run, flags in replicas
    ]
    written = {key.encode(): str(value).encode() for key, value in master.items()}
    return [[b"10.0.0.1", str(port).encode()], written, pairs]


ONE = ("7", "one", "slave")
FLAGGED = [
    (flags, flags, flags)
    for flags in ("slave", "slave,s_down", "slave,disconnected", "slave,o_down")
]
BROKEN: list[list[Any]] = [[[b"h"], {}, []], [None, {}, []], [[b"h", b"1"], {}, []]]


def odd_text() -> list[Any]:
    address, master, (replica,) = told(1, 4, ONE)
    return [address, {**master, b"runid": b"\xff"}, [{**replica, b"name": b"\xfe"}]]


@pytest.mark.parametrize(
    ("answers", "port", "epoch", "replicas", "known"),
    [
        ([told(1, 4, ONE), told(1, 7, ONE, ("8", "two", "slave")), told(1, 6)], 1, 7, 2, 2),
        ([told(1), DOWN, told(1)], 1, 1, 0, 0),
        ([told(2), told(1), told(1)], 1, 1, 0, 0),
        ([odd_text(), odd_text(), DOWN], 1, 4, 1, 1),
        ([told(1, 1, *FLAGGED)] * 3, 1, 1, 1, 4),
        *(([broken, told(1), told(1)], 1, 1, 0, 0) for broken in BROKEN),
    ],
)
def test_a_majority_of_those_configured_names_a_primary(
    answers: list[Any], port: int, epoch: int, replicas: int, known: int
) -> None:
    """The newest opinion counts, and all that any of them sees of the replicas."""
    found = agreed_primary("s", answers)
    assert found.primary[1] == port
    assert (found.epoch, found.replicas, found.known) == (epoch, replicas, known)


def test_what_any_sentinel_sees_of_the_replicas_counts() -> None:
    """A Sentinel that has just started knows less."""
    dead = ("8", "two", "slave,s_down")
    found = agreed_primary(
        "s",
        [
            told(1, 4),
            told(1, 4, ONE, dead, down_after=3000),
            told(1, 4, ("9", "three", "slave"), down_after=2000),
        ],
    )
    assert (found.replicas, found.known, found.silence) == (1, 2, 3.0)
    assert found.processes == {"h:7": "one", "h:9": "three"}
    assert not found.agrees(SentinelView(("10.0.0.1", 1), 3, 1, 2)), "a failover back to it"


@pytest.mark.parametrize(
    ("answers", "cause", "permanent"),
    [
        ([NOT_KNOWN, NOT_KNOWN, told(1)], "the Sentinels know no service 's'", True),
        ([NOT_KNOWN, DOWN, told(1)], "1 of 3 Sentinels answered", False),
        ([told(1), DOWN, DOWN], "1 of 3 Sentinels answered", False),
        ([told(1), told(2), told(3)], "disagree: 10.0.0.1:1, 10.0.0.1:2, 10.0.0.1:3", False),
        ([told(1), told(2), DOWN], "disagree: 10.0.0.1:1, 10.0.0.1:2$", False),
        ([[WRONG] * 3] * 3, r"0 of 3 Sentinels answered \(WRONGPASS invalid\)", True),
        ([[WRONG] * 3, [WRONG] * 3, DOWN], "0 of 3 Sentinels answered", False),
        ([[WRONG] * 3, [WRONG] * 3, told(1)], "1 of 3 Sentinels answered", False),
        ([[[b"h"], {}, []], [[b"h"], {}, []], told(1)], "can't be read", False),
    ],
)
def test_why_the_sentinels_name_no_primary(answers: list[Any], cause: str, permanent: bool) -> None:
    with pytest.raises(HandshakeError, match=cause) as caught:
        agreed_primary("s", answers)
    assert caught.value.failure.permanent is permanent


# ---- what a server tells of itself
INFO = (
    b"# Server\r\nredis_version:7.2.4\r\nrun_id:abc\r\nuptime_in_seconds:17\r\n"
    b"role:master\r\nmaxmemory:100\r\nmaxmemory_policy:allkeys-lru\r\n"
    b"connected_slaves:2\r\naof_enabled:1\r\nmaster_host:fe80::1\r\n"
)
ALWAYS = {b"appendfsync": b"always"}


def test_what_a_server_tells_about_itself() -> None:
    assert read_facts(INFO, ALWAYS, tracking=True) == Facts(
        run_id="abc",
        uptime=17.0,
        version="7.2.4",
        role="master",
        maxmemory_policy="allkeys-lru",
        durable=True,
        tracking=True,
        replicas=2,
    )
    valkey = read_facts(INFO + b"valkey_version:8.1.0\r\n", ALWAYS, tracking=False)
    assert (valkey.version, valkey.tracking) == ("8.1.0", False)
    assert read_facts(ReplyError("NOPERM"), None, tracking=True) == Facts(tracking=True)
    some = read_facts(b"redis_version:7.2.4\r\n", None, tracking=False)
    assert some == Facts(version="7.2.4", replicas=0)


@pytest.mark.parametrize(
    ("info", "fsync"),
    [
        (INFO, {b"appendfsync": b"everysec"}),
        (INFO, None),
        (INFO, ReplyError("NOPERM")),
        (INFO.replace(b"aof_enabled:1", b"aof_enabled:0"), ALWAYS),
        (INFO.replace(b"aof_enabled:1\r\n", b""), ALWAYS),
    ],
)
def test_a_server_is_durable_only_if_it_certainly_saves_each_write(info: bytes, fsync: Any) -> None:
    assert not read_facts(info, fsync, tracking=True).durable


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (
            b"# Server\r\n\r\nmaster_host:fe80::1\r\nname:\xff\r\nno colon\r\n",
            {"master_host": "fe80::1", "name": "\ufffd"},
        ),
        ("a:1\r\n", {"a": "1"}),
        (None, {}),
    ],
)
def test_odd_lines_of_info_are_no_obstacle(text: Any, read: dict[str, str]) -> None:
    assert parse_info(text) == read


@pytest.mark.parametrize(
    ("reply", "left"),
    [
        (Failure("NOPERM no right", permanent=True, code="NOPERM"), None),
        (Failure("OOM command not allowed", code="OOM"), None),
        ([0, 1_000_000, b"-", b"", 3_500_000], (False, 2.5, "-")),
        (Failure("no answer within 1 s"), HandshakeError),
    ],
)
async def test_a_primary_that_cannot_be_marked_is_known_as_such(reply: Any, left: Any) -> None:
    """A server without the right, or without memory, may work; one without an answer does not."""

    async def ask(_command: Command) -> Any:
        return reply

    leaving = leave_mark(SimpleNamespace(ask=ask), "#primary", "run.1")  # type: ignore[arg-type]
    if left is HandshakeError:
        with pytest.raises(HandshakeError):
            await leaving
    else:
        mark = await leaving
        assert (mark and (mark.same, mark.age, mark.before)) == left


# ---- answers of several servers
NO = Failure("no")
PING, TIME = Command.plain("PING"), Command.plain("TIME")


@pytest.mark.parametrize(
    ("seconds", "took", "silent"), [((0.3, None, 0.1), 0.55, {1}), ((0.3, 0.4, 0.1), 0.4, set())]
)
@in_virtual_time
async def test_a_poll_waits_for_a_majority_and_only_a_little_for_the_rest(
    seconds: tuple[float | None, ...], took: float, silent: set[int]
) -> None:
    def asks(after: float | None) -> Any:
        def ask(command: Command, sink: Any, index: int) -> None:
            if after is not None:
                loop = asyncio.get_running_loop()
                loop.call_later(after, sink.on_reply, index, str(command.op))

        return SimpleNamespace(ask=ask)

    began = _clock.now()
    found = await poll([asks(after) for after in seconds], (PING, TIME), 0.25)
    assert _clock.now() - began == pytest.approx(took, abs=0.001)
    assert found == [[SILENT] * 2 if n in silent else ["PING", "TIME"] for n in range(3)]


@pytest.mark.parametrize(
    ("moments", "size", "quorum", "seconds"),
    [
        ((0,), 1, 1, 0),
        ((17,), 1, 1, 7),
        ((17, 0, 0), 3, 2, 0),
        ((17, 15, 0), 3, 2, 5),
        ((12, 17, 15), 3, 2, 5),
        ((9, 3, 15), 3, 2, 0),
        ((17, 15, 0, 0, 0), 5, 3, 0),
        ((17, 12, 15, 0, 0), 5, 3, 2),
        ((17, 12, 15, 14, 0), 5, 3, 4),
        ((17, 15, 0), 3, 3, 7),
        ((), 3, 2, 0),
        ((17,), 3, 2, 0),
        ((17, 15), 3, 2, 5),
    ],
)
def test_a_quorum_votes_when_the_first_of_those_that_it_needs_may(
    moments: tuple[float, ...], size: int, quorum: int, seconds: float
) -> None:
    """Nodes that have not failed, or have no guard, count as voting."""
    assert barred(size, quorum, moments, 10.0) == seconds


def test_a_reply_that_a_guard_made_worthless_names_the_guard() -> None:
    obstacle = Failure("its clock jumped", votes_from=7.0)
    node: Any = SimpleNamespace(trust=SimpleNamespace(votes_from=7.0))
    for found, told in ((obstacle, obstacle), (None, None)):
        node.obstacle = lambda _now, found=found: found
        assert quarantined(node) is told or quarantined(node).votes_from == 7.0


# ---- patience
@pytest.mark.parametrize("seconds", [0.01, 0.25, 2.0])
@in_virtual_time
async def test_a_process_that_runs_waits_no_longer(seconds: float) -> None:
    began, over = _clock.now(), asyncio.Event()
    Patience(seconds, over.set)
    await over.wait()
    assert _clock.now() - began == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("late", "checks"),
    [(lambda number: number in {0, 3}, NEEDED_CHECKS + 2), (lambda _: True, 8 * NEEDED_CHECKS)],
    ids=["some", "all"],
)
@in_virtual_time
async def test_a_late_check_does_not_count_and_one_that_is_always_late_ends_too(
    late: Callable[[int], bool], checks: int
) -> None:
    made, over = 0, asyncio.Event()

    class Counting(Patience):
        def _check(self) -> None:
            nonlocal made
            if late(made):
                self._due -= 2 * self._pause
            made += 1
            super()._check()

    Counting(0.001 * NEEDED_CHECKS, over.set)
    await over.wait()
    assert made == checks
