"""What a link to a primary sends around its grants, and which of them count."""

from typing import Any

import pytest

from asynclock._nodes.replicated.acks import UNSUPPORTED, Acks, KnownReplicas, Primacy
from asynclock._nodes.wire import Failure
from tests.tables.nodes.links import CLOCK, Dialogue, cases
from tests.waiting import in_virtual_time

GRANTED = f"[1, 5, {CLOCK}000000]"
HEARD = "clock 0, asked at 0.0"
WRITES = "tick -> writes acquire me, WAIT 1 500"
"""For half of the node timeout: a write may have to wait for the WAIT before its own."""
BATCH = "batch release:a acquire:b acquire:c"
LACK = (
    "Failure(cause='0 of 1 replicas acknowledged the grant within 0.5 s', permanent=False, "
    "code='NOACKS', votes_from=0.0)"
)
OOM = Failure("OOM", code="OOM")
ONE = cases(f"""
    a grant is held back until it is acknowledged
      lacks OOM
      ask acquire me
      {WRITES}
      reads GRANT -> {HEARD}
      told?  ->
      reads :1 -> acquire me: {GRANTED}
      told? -> WAIT, acquire
      tick
    a refusal passes at once
      lacks OOM
      ask acquire me
      {WRITES}
      reads REFUSAL -> {HEARD}; acquire me: [0, 100, b'you', {CLOCK}000000]
      told? -> acquire
      reads :0
    writes during a WAIT share the next one
      ask acquire a
      tick -> writes acquire a, WAIT 1 500
      ask acquire b
      ask acquire c
      tick -> writes acquire b, acquire c
      reads GRANT, :1 -> {HEARD}; acquire a: {GRANTED}
      tick -> writes WAIT 1 500
      reads GRANT, GRANT -> {HEARD}
      reads :1 -> acquire b: {GRANTED}; acquire c: {GRANTED}
      tick
    what is written at once has its WAIT behind it
      now acquire me -> writes acquire me, WAIT 1 500
    what writes nothing is not waited for
      lacks OOM
      ask read 1
      ask release me
      tick -> writes read 1, release me
      releasing? -> True
      reads *1, :1, *1, :1 -> read 1: [1]; release me: [1]
      releasing? -> False
      told? -> read, release
    a grant that came after its WAIT, with the script, gets another one
      ask acquire me
      {WRITES}
      reads NOSCRIPT, :1
      tick -> writes with source acquire me
      reads GRANT -> {HEARD}
      tick -> writes WAIT 1 500
      reads :1 -> acquire me: {GRANTED}
    a grant that no WAIT covers fails with its connection
      ask acquire me
      {WRITES}
      reads NOSCRIPT, :2
      tick -> writes with source acquire me
      behind
      ask a
      tick
      ask acquire you
      reads GRANT -> {HEARD}
      lose -> end of a, acquire you; a: ! the server closed the connection;
        acquire you: ! the server closed the connection
      tick -> acquire me: ! the connection was lost before the grant was acknowledged
      told?  ->
    each grant is answered once when its connection is lost
      ask acquire a
      tick -> writes acquire a, WAIT 1 500
      ask acquire b
      tick -> writes acquire b
      reads GRANT -> {HEARD}
      lose -> end of WAIT 1 500, acquire b; acquire a: ! the server closed the connection;
        acquire b: ! the server closed the connection
      told?  ->
      tick
      releasing? -> False
      closed? -> True
    a connection can be ended while it waits
      ask acquire me
      {WRITES}
      reads GRANT -> {HEARD}
      close another primary was named
      tick -> end of WAIT 1 500; acquire me: ! another primary was named
    it tells of its connection what the connection is
      ask a
      wait 1.1 -> writes a; a: ! no answer within 1 s
      stalled? -> since 1.00
      reads +x
      stalled? -> no
      stuck
      closed? -> False
      finish -> end
      closed? -> True
    a batch that granted nothing passes at once
      ask {BATCH}
      tick -> writes {BATCH}, WAIT 1 500
      reads *3, :1, *3, :1, *2, :-1, :7, -OOM, :7 ->
        {BATCH}: [1, [1, [-1, 7], {OOM}], 7]
    a batch of releases is not waited for
      ask batch release:a release:b
      tick -> writes batch release:a release:b
      reads *3, :0, *2, :1, :1, :7 -> batch release:a release:b: [0, [1, 1], 7]
    a batch that is acknowledged counts
      ask {BATCH}
      tick -> writes {BATCH}, WAIT 1 500
      reads *3, :0, *3, :1, :5, :6, :7
      reads :1 -> {BATCH}: [0, [1, 5, 6], 7]
    a batch that is not acknowledged only released
      ask {BATCH}
      tick -> writes {BATCH}, WAIT 1 500
      reads *3, :0, *3, :1, :5, :6, :7
      reads :0 -> {BATCH}: [1, [1, {LACK}, {LACK}], 7]
      told? -> batch
    its errors and refusals stay what they are
      ask {BATCH}
      tick -> writes {BATCH}, WAIT 1 500
      reads *3, :1, *3, -OOM, :5, *4, :0, :9, +you, :7, :7
      reads :0 -> {BATCH}: [1, [{OOM}, {LACK}, [0, 9, b'you', 7]], 7]
""")
for op in ("extend me", "raise me", "prepare 1", "accept 1", "rest me"):
    ONE[f"{op} is held back like an acquire"] = (
        f"ask {op}",
        f"tick -> writes {op}, WAIT 1 500",
        f"reads GRANT -> {HEARD}",
        f"reads :0 -> {op}: ! 0 of 1 replicas acknowledged the grant within 0.5 s (NOACKS)",
        f"told? -> {op.partition(' ')[0]} NOACKS",
    )
ONE["a reply to several owners, of which none was granted, passes at once"] = (
    "ask extend me",
    "tick -> writes extend me, WAIT 1 500",
    f"reads *2, $2, 00, :{CLOCK}000000 -> {HEARD}; extend me: [b'00', {CLOCK}000000]",
)
ONE["so is a reply to several owners, of which one was granted"] = (
    "ask extend me",
    "tick -> writes extend me, WAIT 1 500",
    f"reads *3, $2, 10, *1, :5, :{CLOCK}000000 -> {HEARD}",
    f"reads :1 -> extend me: [b'10', [5], {CLOCK}000000]",
)


async def play(
    *lines: str, acks: Acks, replicas: int = 1, recount: bool = False, timeout: float = 1.0
) -> Dialogue:
    dialogue = Dialogue()
    dialogue.acknowledged(acks, replicas, recount=recount, timeout=timeout)
    await dialogue.play(lines)
    return dialogue


@pytest.mark.parametrize("lines", ONE.values(), ids=ONE)
@in_virtual_time
async def test_one_replica_must_acknowledge(lines: tuple[str, ...]) -> None:
    await play(*lines, acks=Acks(1))


@pytest.mark.parametrize(
    ("acks", "replicas", "timeout", "sent"),
    [
        (Acks("all"), 0, 1.0, "WAIT 1 500"),
        (Acks("majority"), 4, 1.0, "WAIT 2 500"),
        (Acks(2, durable=True), 2, 1.0, "WAIT 2 125, WAITAOF 1 2 375"),
        (Acks(1), 1, 0.5, "WAIT 1 250"),
        (Acks(1), 1, 0.001, "WAIT 1 1"),  # 0 would mean for ever to the server
    ],
)
@in_virtual_time
async def test_what_is_waited_for(acks: Acks, replicas: int, timeout: float, sent: str) -> None:
    lines = ("ask acquire me", f"tick -> writes acquire me, {sent}")
    await play(*lines, acks=acks, replicas=replicas, timeout=timeout)


SOME = "replicas acknowledged the grant within 0.5 s (NOACKS)"
ON_DISK = Acks("all", durable=True)
SAVED = Acks(0, durable=True)
SENT = {Acks("all"): "WAIT 2 500", ON_DISK: "WAIT 2 125, WAITAOF 1 2 375", SAVED: "WAITAOF 1 0 500"}
NO_FILE = "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled."


@pytest.mark.parametrize(
    ("acks", "replies", "verdict"),
    [
        (Acks("all"), ":2", GRANTED),
        (Acks("all"), ":1", f"! 1 of 2 {SOME}"),
        (Acks("all"), "+x", "! its reply has an unexpected form (UNREADABLE)"),
        (ON_DISK, ":2, *2, :1, :2", GRANTED),
        (ON_DISK, ":2, *2, :1, :1", "! 1 of 2 replicas saved the grant within 0.5 s (NOACKS)"),
        (ON_DISK, ":2, *2, :0, :2", "! it had not saved the grant to disk within 0.5 s (NOACKS)"),
        (SAVED, "*2, :1, :0", GRANTED),
        (SAVED, "*2, :0, :0", "! it had not saved the grant to disk within 0.5 s (NOACKS)"),
        (
            SAVED,
            "-ERR unknown command 'WAITAOF'",
            f"! durable=True: ERR unknown command 'WAITAOF' (permanent {UNSUPPORTED})",
        ),
        (SAVED, f"-{NO_FILE}", f"! durable=True: {NO_FILE} (permanent {UNSUPPORTED})"),
        (SAVED, "-ERR something else", "! ERR something else (ERR)"),
        (SAVED, "-LOADING the data", "! LOADING the data (LOADING)"),
        (SAVED, "-NOPERM no right to WAITAOF", "! NOPERM no right to WAITAOF (permanent NOPERM)"),
    ],
)
@in_virtual_time
async def test_the_replies_to_a_wait_decide(acks: Acks, replies: str, verdict: str) -> None:
    lines = (
        "ask acquire me",
        f"tick -> writes acquire me, {SENT[acks]}",
        f"reads GRANT, {replies} -> {HEARD}; acquire me: {verdict}",
    )
    await play(*lines, acks=acks, replicas=2)


@pytest.mark.parametrize(
    ("acks", "recount", "asked"),
    [(Acks("all"), True, True), (Acks("all"), False, False), (Acks(1), True, False)],
)
@in_virtual_time
async def test_who_counts_the_replicas(acks: Acks, recount: bool, asked: bool) -> None:
    """Only a client that needs their number, and that nobody else tells it; once a second."""
    dialogue = await play(acks=acks, recount=recount)
    for moment in range(30):
        counts = asked and moment % 10 == 0
        said = "INFO replication, " if counts else ""
        came = "$18, connected_slaves:1, " if counts else ""
        now = f"clock 0, asked at {moment / 10:.1f}"
        await dialogue.play(
            (
                "ask acquire me",
                f"tick -> writes acquire me, {said}WAIT 1 500",
                f"reads GRANT, {came}:1 -> {now}; acquire me: {GRANTED}",
                "wait 0.1001",
            )
        )


@pytest.mark.parametrize(
    ("reply", "needed"),
    [
        ("$18, connected_slaves:2", 2),
        ("$18, connected_slaves:0", 1),
        ("$10, role:slave", 1),
        ("-NOPERM no right to INFO", 1),
    ],
)
@in_virtual_time
async def test_a_replica_that_joins_must_acknowledge_and_one_that_left_may_come_back(
    reply: str, needed: int
) -> None:
    lines = (
        "ask acquire me",
        "tick -> writes acquire me, INFO replication, WAIT 1 500",
        f"reads GRANT, {reply}, :2 -> {HEARD}; acquire me: {GRANTED}",
        "ask acquire me",
        f"tick -> writes acquire me, WAIT {needed} 500",
    )
    await play(*lines, acks=Acks("all"), recount=True)


def info(written: int, acknowledged: int) -> str:
    replica = f"slave0:ip=10.0.0.2,port=7,state=online,offset={acknowledged},lag=0"
    text = f"{replica}\r\nmaster_repl_offset:{written}"
    return f"${len(text)}\r\n{text}"


@pytest.mark.parametrize(
    ("after", "verdict"),
    [(100, GRANTED), (99, "! 10.0.0.2:7 did not acknowledge the grant (NOACKS)")],
)
@in_virtual_time
async def test_the_replicas_of_the_roster_must_have_the_grant(after: int, verdict: str) -> None:
    """What the primary had written before the WAIT, they must have after it."""
    dialogue = await play(acks=Acks("all"))
    dialogue.link.term = Primacy("m", "one.4", 4, keeps=True)
    mark = "one.4 1700000000000000 - 3;10;10.0.0.2:7"
    around = "INFO replication, WAIT 1 500, INFO replication"
    await dialogue.play(
        (
            "ask acquire me",
            f"tick -> writes acquire me, GET m, {around}",
            f"reads GRANT, +{mark}, {info(100, 0)}, :1 -> {HEARD}",
            f"reads {info(130, after)} -> acquire me: {verdict}",
        )
    )


@pytest.mark.parametrize(
    ("acks", "counts", "cause"),
    [
        (Acks(1), (), ""),
        (Acks("all"), (None,), ""),
        (Acks("all"), (0,), "acks='all' needs 1 replica, and it has none"),
        (Acks(2), (2, 1), ""),
        (Acks(3), (2, 1), "acks=3 needs 3 replicas, and it has only 2"),
    ],
)
def test_a_primary_that_never_had_enough_replicas_needs_a_person(
    acks: Acks, counts: tuple[Any, ...], cause: str
) -> None:
    """One that is away may come back; nobody may have told their number."""
    known = KnownReplicas()
    for count in counts:
        known.counted(count)
    wanted = Failure(cause, permanent=True, code=UNSUPPORTED) if cause else None
    assert known.lack(acks) == wanted


@pytest.mark.parametrize(
    ("wanted", "needed"), [("majority", [1, 1, 1, 2, 2, 3, 3]), ("all", [1, 1, 2, 3, 4, 5, 6])]
)
def test_how_many_replicas_are_needed(wanted: str, needed: list[int]) -> None:
    """A majority of all members; the primary is one of them."""
    acks = Acks.of(wanted, durable=False)
    assert [acks.needed(replicas) for replicas in range(7)] == needed
