"""What one link sends, who gets which answer, when a server counts as silent, and the end."""

import asyncio
import contextvars
from typing import Any

import pytest

from asynclock._nodes import link
from asynclock._nodes.wire import Command, Failure
from asynclock._primitives.lock import spec
from tests.tables.nodes.links import Dialogue, cases, command
from tests.waiting import in_virtual_time

MANY = link.WRITE_AT
CLOCK_1, CLOCK_2 = (f"*2, :1, :170000000{n}000000" for n in (1, 2))
NO_ANSWER = "! no answer within 1 s"

OOM, DEMOTED, MOVED = (
    Failure(text, code=text.partition(" ")[0]) for text in ("OOM", "READONLY no", "MOVED 1 b:7")
)

SENT = cases(f"""
    what a tick asks for is one write
      ask a
      ask b
      tick -> writes a, b
    the server can begin with the first of many
      ask {MANY} times a -> writes {MANY} × a
      ask b
      tick -> writes b
    what is sent now goes behind what waits
      ask a
      now b -> writes a, b
      tick
    a peer that is behind is sent nothing until it has caught up
      behind
      ask a
      tick
      now b
      caught up
      tick -> writes a, b
      ask c
      tick -> writes c
    all that was queued for it is written, though nothing more is asked
      behind
      ask {MANY + 1} times a
      wait 0.1
      caught up
      tick -> writes {MANY + 1} × a
    a change of our own wakes who watches the key
      watches k
      ask release me
      tick -> writes release me
""")
ANSWERS = cases(f"""
    each command has its own timeout
      ask a
      wait 0.25 -> writes a
      ask b
      tick -> writes b
      wait 0.74
      wait 0.02 -> a: {NO_ANSWER}
      stalled? -> since 1.00
      wait 0.23
      wait 0.02 -> b: {NO_ANSWER}
      stalled? -> since 1.00
    late replies go to nobody, and the next one to its own command
      ask 2 times late
      tick -> writes 2 × late
      wait 1.01 -> 2 × late: {NO_ANSWER}
      ask own
      tick -> writes own
      reads +late
      stalled? -> since 1.00
      reads +late
      stalled? -> no
      reads +own -> own: own
    pushes are nobody's reply
      ask a
      tick -> writes a
      reads >2, +invalidate, *1, +k, +PONG -> push [b'invalidate', [b'k']]; a: PONG
    the reply to a task that no longer waits goes to nobody
      future a
      ask b
      cancel a
      tick -> writes a, b
      reads +1, +2 -> b: 2
    the time for a handshake is not given to what follows
      ask a
      greet 0.2
      tick -> writes a
      wait 0.19
      wait 0.02 -> a: ! no answer within 0.2 s
""")
STANDSTILLS = cases(f"""
    a reply that lies unread while our loop stands still is waited for
      ask a
      tick -> writes a
      stand 1.5
      tick
      reads +PONG -> a: PONG
    after a short standstill a silent server has as much time more
      ask a
      tick -> writes a
      stand 1.4
      wait 0.39
      wait 0.02 -> a: {NO_ANSWER}
    after a long one it has one timeout
      ask a
      tick -> writes a
      stand 5
      wait 0.99
      wait 0.02 -> a: {NO_ANSWER}
    replies may lie unread while each read fills the buffer, and no longer
      ask a
      tick -> writes a
      wait 0.9
      fills
      wait 0.115
      fills
      wait 0.02
      wait 0.02 -> a: {NO_ANSWER}
    replies may lie unread for any time while reads fill the buffer
      ask a
      tick -> writes a
      stand 9
      fills
      tick
      wait 0.99
      wait 0.02 -> a: {NO_ANSWER}
    a loop that is always late gives a silent server eight timeouts
      ask a
      tick -> writes a
      stand 1.5
      tick
      stand 1.5
      tick
      stand 1.5
      tick
      stand 1.5
      tick
      stand 1.5
      tick
      stand 1.5
      tick -> a: {NO_ANSWER}
""")
UNASKED = "! it sent a reply without a request"
GARBAGE = "! it does not speak the Redis protocol"
ENDS = cases(f"""
    more replies than requests are all worth nothing
      ask a
      tick -> writes a
      reads +1, +2
      tick -> end of a; a: {UNASKED}
      ask b -> b: {UNASKED}
    an error that nobody asked for needs no person once the server is known
      reads -NOAUTH Authentication required.
      tick -> end
      ask a -> a: {UNASKED}
    a sink that can't read its reply gets a failure
      ask strict
      ask a
      tick -> writes strict, a
      reads +odd -> raises what is this?
      lose odd -> end of strict, a; strict: ! connection lost: odd; a: ! connection lost: odd
    what was queued is written before a close
      ask release me
      close enough -> writes release me
      tick -> end of release me; release me: ! enough
    what was queued is written before a finish
      ask release me
      finish -> writes release me; end of release me; release me: ! closed
    a peer that is stuck delays the end by one timeout
      stuck
      finish -> end
      time? -> 1.00
    the node learns of all without a reply before its sinks do, each of which has one answer
      ask release late
      tick -> writes release late
      wait 1.1 -> release late: {NO_ANSWER}
      ask release new
      releasing? -> True
      lose reset -> end of release late, release new; release new: ! connection lost: reset
      releasing? -> False
      wait 3
    what was queued when the connection was lost is written nowhere
      ask a
      lose -> end of a; a: ! the server closed the connection
      tick
    a release is under way until its reply
      ask a
      releasing? -> False
      ask release me
      tick -> writes a, release me
      reads +PONG -> a: PONG
      releasing? -> True
      reads *1, :1 -> release me: [1]
      releasing? -> False
    so is a release inside a batch
      ask batch acquire:a
      releasing? -> False
      ask batch acquire:a release:b
      releasing? -> True
      tick -> writes batch acquire:a, batch acquire:a release:b
      reads *1, :0, *1, :0 -> batch acquire:a: [0]; batch acquire:a release:b: [0]
      releasing? -> False
    an odd reply to a batch ends no connection
      ask 3 times batch acquire:a
      tick -> writes 3 × batch acquire:a
      reads *1, :1, *3, :1, :7, :7, :5 ->
        batch acquire:a: [1]; batch acquire:a: [1, 7, 7]; batch acquire:a: 5
    a server that knew us may refuse our certificate for a while
      ask a
      lose TLSV1_ALERT_UNKNOWN_CA -> end of a; a: ! connection lost: alert
    the link to a demoted primary ends
      ask a
      tick -> writes a
      reads -READONLY You can't -> a: ! READONLY You can't (READONLY)
      tick -> end; READONLY
    so it does if one name of a batch was refused
      ask batch acquire:a acquire:b
      tick -> writes batch acquire:a acquire:b
      reads *3, :1, *2, -OOM., -READONLY no, :7 ->
        batch acquire:a acquire:b: [1, [{OOM}, {DEMOTED}], 7]
      tick -> end; READONLY
    its owner is told of errors, and of all other answers while it shows one
      ask acquire a
      ask acquire b
      ask batch release:a acquire:b
      tick -> writes acquire a, acquire b, batch release:a acquire:b
      reads *1, :5, -OOM, *3, :1, *2, :1, -OOM, :7 ->
        acquire a: [5]; acquire b: ! OOM (OOM); batch release:a acquire:b: [1, [1, {OOM}], 7]
      told? -> acquire OOM, batch
      lacks OOM
      ask acquire a
      tick -> writes acquire a
      reads *1, :5 -> acquire a: [5]
      told? -> acquire
    but not of a forgotten script, nor of silence and what comes too late, nor of the end
      lacks OOM
      ask acquire a
      tick -> writes acquire a
      reads NOSCRIPT
      wait 1.1 -> writes with source acquire a; acquire a: ! no answer within 1 s
      reads -OOM
      ask a
      lose -> end of a; a: ! the server closed the connection
      told?  ->
    garbage ends the connection
      ask a
      tick -> writes a
      reads HTTP/1.1 400 Bad Request
      tick -> end of a; NOTREDIS; a: {GARBAGE} (NOTREDIS)
    so does a map with a list as a key
      ask a
      tick -> writes a
      reads %1, *0, :1
      tick -> end of a; NOTREDIS; a: {GARBAGE} (NOTREDIS)
""")
STRANGERS = cases(f"""
    an error before the login is the server's refusal
      reads -NOPERM this host may not connect
      tick -> end; NOPERM
      ask a -> a: ! NOPERM this host may not connect (permanent NOPERM)
    a refused certificate needs a person
      ask a
      lose TLSV1_ALERT_UNKNOWN_CA -> end of a; NOTRUST;
        a: ! connection lost: alert (permanent NOTRUST)
    so does garbage
      ask a
      tick -> writes a
      reads HTTP/1.1 400 Bad Request
      tick -> end of a; NOTREDIS; a: {GARBAGE} (permanent NOTREDIS)
""")
FORGOTTEN = cases("""
    a rejected command goes again with the script, and what undoes it behind it
      ask acquire me
      ask release me
      ask release other
      tick -> writes acquire me, release me, release other
      reads NOSCRIPT
      tick -> writes with source acquire me
      reads *1, :0, *1, :1 -> release me: [0]; release other: [1]
      tick -> writes with source release me
      ask release me
      tick -> writes release me
      reads *1, :5 -> acquire me: [5]
      reads *1, :1, *1, :2 -> release me: [2]
      tick
    leaves and releases go again in their order, by the owner and by the ticket
      ask acquire me 1 ticket
      ask leave ticket 1
      ask release me
      ask acquire other
      ask leave ticket 2
      tick -> writes acquire me 1 ticket, leave ticket 1, release me, acquire other, leave ticket 2
      reads NOSCRIPT, *1, :0, *1, :0, *1, :5, *1, :0
        -> leave ticket 1: [0]; release me: [0]; acquire other: [5]; leave ticket 2: [0]
      tick -> writes with source acquire me 1 ticket, with source leave ticket 1,
        with source release me, with source leave ticket 2
    a release that is the ticket of an acquire behind it goes again only behind its own
      ask acquire me
      ask release me
      ask acquire other 1 me
      tick -> writes acquire me, release me, acquire other 1 me
      reads NOSCRIPT, NOSCRIPT, NOSCRIPT
      tick ->
        writes with source acquire me, 2 × with source release me, with source acquire other 1 me
    a batch is looked at name by name
      ask batch acquire:a acquire:b
      ask batch release:a release:b release:c
      tick -> writes batch acquire:a acquire:b, batch release:a release:b release:c
      reads NOSCRIPT, *1, :0 -> batch release:a release:b release:c: [0]
      tick ->
        writes with source batch acquire:a acquire:b, with source release a, with source release b
    a script is sent with its source once
      ask pass me
      tick -> writes pass me
      reads NOSCRIPT
      tick -> writes with source pass me
      reads NOSCRIPT -> pass me: ! NOSCRIPT No matching script (NOSCRIPT)
      tick
    what must go right before it goes right before it again
      tracks
      arm read
      ask acquire me
      arm read me
      tick -> writes CLIENT CACHING YES, read, acquire me, CLIENT CACHING YES, read me
      reads +OK, +value, NOSCRIPT, +OK, NOSCRIPT -> read: value
      tick -> writes with source acquire me, CLIENT CACHING YES, with source read me
    no push is asked for where the server has none
      arm read
      tick -> writes read
    a server's own command has no script
      ask a
      tick -> writes a
      reads NOSCRIPT -> a: ! NOSCRIPT No matching script (NOSCRIPT)
      tick
""")
BATCH = "batch release:a acquire:b release:c"
LATE = cases(f"""
    a batch that was denied late is repeated name by name, as far as it releases
      ask {BATCH}
      wait 1.01 -> writes {BATCH}; {BATCH}: {NO_ANSWER}
      reads -NOPERM no permissions to access one of the keys
      tick -> writes release a, release c
      reads -NOPERM no permissions to access one of the keys, *1, :1
      tick
    of what another late error refused, the node keeps the releases
      ask {BATCH}
      wait 1.01 -> writes {BATCH}; {BATCH}: {NO_ANSWER}
      reads -OOM command not allowed -> keep release a; keep release c
      tick
    errors inside a late reply count like those of single names
      ask {BATCH}
      wait 1.01 -> writes {BATCH}; {BATCH}: {NO_ANSWER}
      reads *3, :1, *3, :1, -ERR script: -READONLY no, -OOM no, :7 -> keep release c
      tick -> end; READONLY
    of what a forgetful server rejected late, releases go again with the script
      ask batch acquire:a release:b
      ask release c
      ask acquire d
      wait 1.01 -> writes batch acquire:a release:b, release c, acquire d;
        batch acquire:a release:b: {NO_ANSWER}; release c: {NO_ANSWER}; acquire d: {NO_ANSWER}
      reads NOSCRIPT, NOSCRIPT, NOSCRIPT -> keep release b; keep release c
      tick -> writes with source release b, with source release c
    a release that is denied alone is told to what keeps it
      ask release a
      wait 1.01 -> writes release a; release a: {NO_ANSWER}
      reads -NOPERM no permissions -> keep release a
      tick
""")
KNOWN = {**SENT, **ANSWERS, **STANDSTILLS, **ENDS, **FORGOTTEN, **LATE}


BUNDLES = cases(f"""
    the replies to a bundle are one, as that to a batch, however they come
      cluster
      ask bundle release:a acquire:b
      ask c
      tick -> writes release a, acquire b, c
      reads *3, :1, $0, , :7
      reads *4, :1, :9
      reads $0, , :8, +x -> bundle release:a acquire:b: [0, [1, 9], 8]; c: x
    each odd reply is that of its name
      cluster
      ask bundle release:a acquire:b acquire:c
      tick -> writes release a, acquire b, acquire c
      reads *3, :1, *1, +you, :7, *3, :0, :5, :8, -MOVED 1 b:7
        -> bundle release:a acquire:b acquire:c:
        [1, [[1, [b'you'], 7], [0, 5, 8], {MOVED}], 8]
    a reply too much ends the connection
      cluster
      ask bundle release:a acquire:b
      tick -> writes release a, acquire b
      reads +1, +2, +3
      tick -> end of batch release:a acquire:b; bundle release:a acquire:b:
        ! it sent a reply without a request
    a connection that breaks in its midst has answered no name
      cluster
      ask bundle release:a acquire:b
      tick -> writes release a, acquire b
      reads *3, :1, $0, , :7
      lose -> end of batch release:a acquire:b; bundle release:a acquire:b:
        ! the server closed the connection
    a release that came too late to a script that is forgotten is sent again
      cluster
      ask bundle release:a acquire:b
      tick -> writes release a, acquire b
      wait 1.01 -> bundle release:a acquire:b: {NO_ANSWER}
      reads -NOSCRIPT No matching script, *3, :0, :5, :8 -> keep release a
      tick -> writes with source release a
""")


@pytest.mark.parametrize("lines", (KNOWN | BUNDLES).values(), ids=KNOWN | BUNDLES)
@in_virtual_time
async def test_a_link_to_a_known_server(lines: tuple[str, ...]) -> None:
    await Dialogue().play(lines)


@pytest.mark.parametrize("lines", STRANGERS.values(), ids=STRANGERS)
@in_virtual_time
async def test_a_link_before_the_login(lines: tuple[str, ...]) -> None:
    await Dialogue(greeted=False).play(lines)


@pytest.mark.parametrize(
    ("replies", "clock"),
    [
        (f"{CLOCK_1}, {CLOCK_2}", "clock 2, asked at 0.2; a: [1, {1}]; b: [1, {2}]"),
        (f"{CLOCK_1}, +OK", "clock 1, asked at 0.0; a: [1, {1}]; b: OK"),
        (f"*2, :1, :7, {CLOCK_2}", "clock 2, asked at 0.2; a: [1, 7]; b: [1, {2}]"),
        (f"{CLOCK_1}, *2, :1, :7", "clock 1, asked at 0.0; a: [1, {1}]; b: [1, 7]"),
        (f"{CLOCK_1}, *2, :0, :100000000000000", "clock 1, asked at 0.0; a: [1, {1}]; b: [0, {0}]"),
        (f"{CLOCK_1}, *0", "clock 1, asked at 0.0; a: [1, {1}]; b: []"),
    ],
)
@in_virtual_time
async def test_a_clock_is_that_of_the_last_reply_with_one(replies: str, clock: str) -> None:
    """With the moment at which its request was sent, and known before a reply counts."""
    heard = clock.format(10**14, 1700000001000000, 1700000002000000)
    lines = ("ask a", "wait 0.2 -> writes a", "ask b", "wait 0.2 -> writes b")
    await Dialogue().play((*lines, f"reads {replies} -> {heard}"))


@pytest.mark.parametrize(
    ("op", "counts"),
    [
        *((op, False) for op in ("acquire", "batch", "raise", "extend", "prepare", "accept")),
        *((op, True) for op in ("release", "leave", "inspect")),
    ],
)
@in_virtual_time
async def test_a_write_counts_only_if_the_server_is_the_primary_when_the_reply_comes(
    op: str, *, counts: bool
) -> None:
    """When the request was sent, it was. A paused process finds such a reply in its socket."""
    words = "batch acquire:a" if op == "batch" else f"{op} me"
    heard = "[1, []]" if counts else "! who knows"
    told = f"told? -> {op}" if counts else "told?  ->"
    asked = ("lacks OOM", f"ask {words}", f"wait 0.9 -> writes {words}")
    await Dialogue(doubt_after=0.5).play((*asked, f"reads *2, :1, *0 -> {words}: {heard}", told))


@in_virtual_time
async def test_a_full_link_takes_only_what_must_not_be_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link, "MAX_IN_FLIGHT", 2)
    await Dialogue().play(
        ("ask a", "ask b", "ask c -> c: ! backlog", "ask release me", "ask record")
    )


@in_virtual_time
async def test_one_timer_without_a_tasks_context_serves_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Log records and traces of one task would name the request of another one."""
    dialogue, loop = Dialogue(), asyncio.get_running_loop()
    timers, seen = list[float](), list[str]()
    call_later, request = loop.call_later, contextvars.ContextVar("request", default="")

    def counted(seconds: float, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        timers.append(seconds)
        return call_later(seconds, *args, **kwargs)

    class Looking:
        def on_reply(self, _index: int, _reply: Any) -> None:
            seen.append(request.get())

    async def ask() -> None:
        request.set("mine")
        dialogue.link.send(command("a"), Looking(), 0)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "call_later", counted)
        for _ in range(2):
            await asyncio.create_task(ask())
    await asyncio.sleep(1.1)
    assert (timers, seen) == ([1.0], ["", ""])


@in_virtual_time
async def test_each_of_thousands_of_rejected_commands_is_looked_at_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If each reply made the link look at all others, the loop would stand still for seconds."""
    looks, names = list[Any](), [str(number) for number in range(1000)]

    def owner(command: Command) -> Any:
        looks.append(command.args[1])
        return command.args[1]

    monkeypatch.setattr(Command, "owner", property(owner))
    dialogue = Dialogue()
    for name in names:
        dialogue.link.send(spec("", name).acquire(name, 9.0, 0, 0, 9), dialogue.sink(), 0)
    for name in names:
        dialogue.link.send(spec("", name).release(name, 0.0, 0.0), dialogue.sink(), 0)
    dialogue.link.data_received(b"-NOSCRIPT No matching script\r\n" * 2000)
    assert set(looks) == set(names)
    assert len(looks) <= 10 * len(names)


@pytest.mark.parametrize("now", [False, True])
@in_virtual_time
async def test_what_a_collection_sends_meanwhile_gets_its_own_reply(*, now: bool) -> None:
    """Python may collect garbage in the middle of `send`, and what that closes releases a lock."""
    dialogue = Dialogue()

    class Collecting(list[bytes]):
        def append(self, packed: bytes) -> None:
            super().append(packed)
            if len(self) == 1:
                dialogue.link.send(command("nested"), dialogue.sink("nested"), 0)

    dialogue.link._out = Collecting()
    first = ("now outer -> writes outer", "tick -> writes nested")
    lines = first if now else ("ask outer", "tick -> writes outer; writes nested")
    await dialogue.play((*lines, "reads +1, +2 -> outer: 1; nested: 2"))
