"""How the replies of three nodes about a register count, in the order in which they come."""

import re
from typing import Any

import pytest

import asynclock
from asynclock import _clock
from asynclock._nodes.wire import Failure
from asynclock._primitives.shared.register import FORGETFUL, Tally, _Patience
from tests.engine.virtual_nodes import Nodes, virtual

US = 1_000_000
FAILURES = {
    "down": Failure("down"),
    "busy": Failure("busy"),
    "no-right": Failure("no-right", code="NOPERM"),
    "mistake": Failure("mistake", permanent=True, code="WRONGTYPE"),
}

# Each line is a reply and what is known then. `set@9` was accepted 9 s ago; a node that remembers
# 50 s has lost all that was stored before; `old` says that no node can have lost anything since.
TABLE = """
    a majority decides
      a set@9 -> open
      b set@9 -> set, agreed
      c set@9 -> set, agreed everywhere

    the newest value counts and must be on a majority
      a old@9 -> open
      b new@1 -> new
      c old@9 -> new

    the newest value counts in any order
      b new@1 -> open
      a old@9 -> new
      c new@1 -> new, agreed

    a text that is none is read all the same
      a \ufffd@9 -> open
      b \ufffd@9 -> \ufffd, agreed

    a value that was taken back is none
      a @9 -> open
      b @9 -> None, agreed

    no majority can answer
      a down -> open
      b busy -> failed: a down, b busy

    of several promises to others the highest counts
      a promised=7 -> open
      b promised=9 -> promised 9
      c promised=3 -> promised 9

    a node that found the request too late has failed
      a late -> open
      b late -> failed: a late, b late

    a node that has restarted since the request has no vote
      a votes in 5
      a set@9 -> open
      b set@9 -> open
      c set@9 -> set, agreed

    nothing of a node that may have forgotten is no answer
      a remembers 50
      a nothing -> open
      b down -> open
      c set@60 -> failed: b down, a forgetful

    nor if the value is about as old as its memory
      a remembers 50
      c set@49.5 -> open
      a nothing -> open
      b down -> failed: b down, a forgetful

    it is one once a value is known that was written after its memory begins
      a remembers 50
      a nothing -> open
      b down -> open
      c set@48 -> set

    in any order
      a remembers 50
      c set@48 -> open
      a nothing -> set

    an empty answer counts once
      a remembers 50
      a nothing -> open
      b set@60 -> open
      c set@5 -> set

    nodes that were all started just now hold nothing, but only all three know
      a remembers 50
      b remembers 50
      c remembers 50
      a nothing -> open
      b nothing -> open
      c nothing -> None, agreed everywhere

    nothing of a node that cannot have forgotten is an answer
      old 40
      a remembers 50
      b remembers 50
      a nothing -> open
      b nothing -> None, agreed

    a value of a node that may have forgotten a newer one counts
      a remembers 50
      a set@60 -> open
      b set@60 -> set, agreed

    a node that forgot a value before the decision is given it by the call itself
      c remembers 50
      c nothing -> open
      a set@900 -> open
      b set@900 -> set

    and after the decision the call is told
      c remembers 50
      a set@900 -> open
      b set@900 -> set, agreed
      c nothing -> set, told

    what is missing when the time is over
      a remembers 50
      a nothing -> open
      over b=busy -> failed: a forgetful, b busy, c answer; cut short

    an answer is no failure when the time is over
      a set@9 -> open
      over a=busy -> failed: b answer, c answer; cut short

    one more answer would have been too few
      a remembers 50
      a nothing -> open
      b down -> open
      over b=busy -> failed: b down, a forgetful, c answer

    what a node lacks is why it has not answered
      a lacks no-right
      c lacks mistake
      b set@9 -> open
      over b=busy -> failed: a no-right, c answer; cut short
"""


def rows() -> list[tuple[str, list[str]]]:
    blocks = re.split(r"\n\s*\n", TABLE.strip())
    lines = ([line.strip() for line in block.splitlines()] for block in blocks)
    return [(re.sub(r"\W+", "_", name), steps) for name, *steps in lines]


@pytest.mark.parametrize(("name", "steps"), rows(), ids=[name for name, _ in rows()])
@virtual
async def test_a_round(on: Nodes, name: str, steps: list[str]) -> None:
    old = next((float(step.split()[1]) for step in steps if step.startswith("old")), 10_000)
    tally = Tally(on.locks._engine, name, "key", _clock.now(), _clock.now() - old)
    told: list[str] = []
    tally.on_forgotten = lambda: told.append("told")
    for step in steps:
        said, _, wanted = step.partition(" -> ")
        happens(on, tally, said)
        if wanted:
            assert known(on, tally, told) == wanted, step


def happens(on: Nodes, tally: Tally, said: str) -> None:
    who, what, *number = said.split()
    if who == "over":
        name, _, cause = what.partition("=")
        tally.expire({"abc".index(name): FAILURES[cause]})
    elif who != "old":
        node = on.locks._engine.multiplexer.nodes["abc".index(who)]
        if what == "remembers":
            node.trust.remembers_from = _clock.now() - float(number[0])
        elif what == "votes":
            node.trust.votes_from = _clock.now() + float(number[1])
        elif what == "lacks":
            vars(node)["lack"] = FAILURES[number[0]]
        else:
            tally.on_reply("abc".index(who), reply(int(on.nodes[0].wall() * US), what))


def reply(now: int, what: str) -> Any:
    value, accepted, ago = what.partition("@")
    if accepted:
        text = value.encode() if value != "\ufffd" else b"\xff"
        return [1, int(now - float(ago) * US), text, 5000, now]
    if what.startswith("promised"):
        return [0, int(what.partition("=")[2]), now]
    return {"late": [-1, now], "nothing": [1, 0, None, -2, now], **FAILURES}[what]


def known(on: Nodes, tally: Tally, told: list[str]) -> str:
    """What the round says, in words."""
    if len(tally.granted) >= 2 and tally.decided.done():
        found = tally.found()
        agreed = "agreed" + " everywhere" * found.everywhere
        return ", ".join([str(found.value), *([agreed] if found.agreed else []), *told])
    if not tally.decided.done() and not tally.cut_short and len(tally.failures) < 3:
        return "open"
    if tally.promised and not tally.failures:
        return f"promised {tally.promised}"
    failed = ", ".join(f"{'abc'[i]} {cause(said)}" for i, said in tally.failures.items())
    return f"failed: {failed}" + "; cut short" * tally.cut_short


def cause(said: Failure) -> str:
    if said is FORGETFUL:
        return "forgetful"
    return next(word for word in ("late", "answer", *FAILURES) if word in said.cause)


# ---- how long a call asks ------------------------------------------------------------------------
@virtual
async def test_a_call_that_can_never_succeed_says_so_at_once(on: Nodes) -> None:
    patience = _Patience(on.locks._engine, "e", None)
    tally, began = Tally(on.locks._engine, "e", "key", _clock.now(), 0.0), _clock.now()
    for index in (0, 1):
        tally.on_reply(index, Failure("no right", permanent=True))
    with pytest.raises(asynclock.ConfigurationError, match=r"'e' can't be known here: .*no right"):
        await patience.pause(tally)
    assert _clock.now() == began


@virtual
async def test_rivals_step_aside_by_chance_for_longer_each_time_up_to_a_bound(on: Nodes) -> None:
    pauses: list[float] = []
    step_aside = _Patience.step_aside

    async def overtaken(self: _Patience, seconds: float) -> None:
        """Let all nodes promise a number of another client, which is higher than ours."""
        pauses.append(seconds)
        number = int((on.nodes[0].wall() + 100 + len(pauses)) * US)
        await on.command("HSET", "asynclock:e:#event", "promised", number, "by", "another")
        await step_aside(self, seconds)

    await on.locks.event("e").set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Patience, "step_aside", overtaken)
        patch.setattr(on.locks._engine, "random", lambda: 0.5)
        number = int((on.nodes[0].wall() + 99) * US)
        await on.command("HSET", "asynclock:e:#event", "promised", number, "by", "another")
        with pytest.raises(asynclock.QuorumUnavailableError, match="other changes of 'e'") as error:
            await on.locks.event("e").clear(timeout=5)
    assert error.value.name == "e"
    assert pauses[:4] == pytest.approx([0.001, 0.002, 0.004, 0.008])
    assert max(pauses) == pytest.approx(0.1)
