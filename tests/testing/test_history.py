"""The checker finds what is planted, finds nothing in clean histories, and is never told wrong."""

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asynclock.testing import Event, History, check

# No deadline per example and no folder of examples: neither fits a shared, busy machine.
QUIETLY = settings(deadline=None, database=None)


def acquired(fence: int, at: float, **changes) -> Event:
    defaults = {"kind": "acquired", "body": f"b{fence}", "name": "a", "owner": f"o{fence}"}
    return Event(**{**defaults, "fence": fence, "at": at, "began": at, **changes})


def body(fence: int, start: float, end: float, *, last: str = "left", **changes) -> list[Event]:
    first = acquired(fence, start, **changes)
    return [first, replace(first, kind=last, at=end)]  # type: ignore[arg-type] # any str


def rules(history, **options) -> list[str]:
    return sorted({violation.rule for violation in check(history, **options)})


# ---- each rule, planted --------------------------------------------------------------------------
FROZEN = body(1, 0, 9, until=3.0)
"""A frozen client's body goes on; its lease does not."""
KILLED = [acquired(1, 0, until=3.0), acquired(1, 2, kind="extended", until=6.0)]
LOST = [acquired(1, 0, until=10.0), acquired(1, 4, kind="lost")]
LATE = body(1, 0, 9, last="lost", until=3.0)
SHORTENED = [acquired(1, 0, until=9.0), acquired(1, 1, kind="extended", until=3.0)]
THREE = [*body(1, 0, 9), *body(2, 1, 9), *body(3, 2, 9)]
READERS = [*body(1, 0, 9, shared=True), *body(2, 1, 9, shared=True)]
SAME_FENCE = [*body(1, 0, 1, shared=True), *body(1, 2, 3, shared=True, body="x")]
FALLING = [*body(5, 0, 1), *body(4, 2, 3)]
OVER = acquired(1, 5, until=3.0)


@pytest.mark.parametrize(
    ("history", "options", "found"),
    [
        pytest.param([*body(1, 0, 1), *body(2, 1, 2), *body(7, 5, 6)], {}, [], id="in turn"),
        pytest.param([*body(1, 0, 2), *body(1, 1, 3, name="b", body="x")], {}, [], id="names"),
        pytest.param([*body(1, 0, 9), *body(2, 3, 4)], {}, ["overlap"], id="one inside another"),
        # a lease is valid until its deadline only
        pytest.param([*FROZEN, *body(2, 4, 5)], {}, [], id="frozen, after the deadline"),
        pytest.param([*FROZEN, *body(2, 2, 5)], {}, ["overlap"], id="frozen, before it"),
        pytest.param([*KILLED, *body(2, 6, 7)], {}, [], id="killed, after the last deadline"),
        pytest.param([*KILLED, *body(2, 5, 7)], {}, ["overlap"], id="killed, before it"),
        pytest.param([acquired(1, 0), *body(2, 5, 7)], {}, [], id="killed without a deadline"),
        pytest.param([*LOST, *body(2, 5, 7)], {}, [], id="after a loss"),
        pytest.param([*LOST, *body(2, 3, 7)], {}, ["overlap"], id="before a loss"),
        pytest.param([*SHORTENED, *body(2, 4, 5)], {}, [], id="after an earlier deadline"),
        pytest.param([*SHORTENED, *body(2, 2, 5)], {}, ["overlap"], id="before an earlier one"),
        pytest.param(
            [*body(1, 0, 1, until=9.0), *body(2, 1, 2, until=9.0)], {}, [], id="in the same moment"
        ),
        pytest.param([acquired(1, 0, until=1.0), *body(2, 1, 2)], {}, [], id="at the deadline"),
        pytest.param([OVER, *body(2, 5.5, 7)], {}, [], id="over when it came"),
        pytest.param([*body(9, 0, 9), OVER], {}, ["fence falls", "overlap"], id="over, inside"),
        # permits, and the largest one of the bodies counts
        pytest.param(THREE, {"permits": 2}, ["overlap"], id="three on two permits"),
        pytest.param(THREE, {"permits": 3}, [], id="three on three permits"),
        pytest.param([replace(event, permits=3) for event in THREE], {}, [], id="own permits"),
        pytest.param(
            *([replace(event, permits=3) for event in THREE], {"permits": 2}, ["overlap"]),
            id="what is asked for wins",
        ),
        pytest.param(
            [*body(1, 0, 9, permits=1), *body(2, 1, 9, permits=2)], {}, [], id="while a limit rises"
        ),
        pytest.param(
            [*body(1, 0, 9, permits=2), *body(2, 1, 9, permits=1), *body(3, 2, 9)],
            *({}, ["overlap"]),
            id="one too many",
        ),
        pytest.param(READERS, {}, [], id="readers share"),
        pytest.param([*READERS, *body(3, 2, 3)], {}, ["overlap"], id="a writer among readers"),
        pytest.param(
            [*READERS, *body(3, 2, 3)], {"permits": 5}, ["overlap"], id="whatever the permits"
        ),
        pytest.param(
            [*body(1, 0, 3), *body(2, 2, 9, shared=True)], {}, ["overlap"], id="a reader in a write"
        ),
        # fences
        pytest.param(
            [*body(1, 0, 1), *body(1, 2, 3, body="x")],
            *({}, ["fence falls", "fence repeats"]),
            id="a repeated fence",
        ),
        pytest.param(SAME_FENCE, {}, [], id="readers with one fence"),
        pytest.param(
            [*SAME_FENCE, *body(1, 4, 5, body="y")],
            *({}, ["fence falls", "fence repeats"]),
            id="readers and a writer with one fence",
        ),
        pytest.param(
            [*body(1, 0, 1, shared=True), *body(1, 2, 3, body="x")],
            *({}, ["fence falls", "fence repeats"]),
            id="a reader and a writer with one fence",
        ),
        pytest.param(FALLING, {}, ["fence falls"], id="a falling fence"),
        pytest.param(FALLING, {"fences": False}, [], id="no fences are asked for"),
        pytest.param(
            [*body(5, 0, 1, shared=True), *body(4, 2, 3)], {}, ["fence falls"], id="behind a reader"
        ),
        pytest.param(
            [*body(5, 0, 1), *body(4, 2, 3, shared=True)], {}, ["fence falls"], id="of a reader"
        ),
        pytest.param(
            [*body(5, 0, 1, shared=True), *body(4, 2, 3, shared=True)], {}, [], id="among readers"
        ),
        # an acquire that began before another body was acquired may get the smaller fence
        pytest.param([*body(5, 0, 1, began=-2), *body(4, 2, 3, began=-1)], {}, [], id="by time"),
        # the rest
        pytest.param(LATE, {}, [], id="late without a grace"),
        pytest.param(LATE, {"grace": 5}, ["overrun"], id="an overrun"),
        pytest.param(LATE, {"grace": 6}, [], id="late within the grace"),
    ],
)
def test_each_rule(history, options, found):
    assert rules(history, **options) == found


def test_an_old_fence_is_remembered():
    assert [
        violation.rule for violation in check([*body(9, 0, 1), *body(1, 2, 3), *body(2, 4, 5)])
    ] == ["fence falls"] * 2


def test_steps_of_one_moment_are_in_the_order_of_a_life():
    """A clock may give the same time twice."""
    first = acquired(1, 0, until=5.0)
    steps = [replace(first, kind=kind) for kind in ("left", "entered", "acquired")]
    assert check([*steps, *body(2, 1, 2)]) == []


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="never acquired"):
        check([acquired(1, 0, kind="left")])


def test_a_violation_says_whose_bodies_they_were_and_when():
    one = body(1, 0, 2, pid=11, task="web", until=9.0)
    other = body(2, 1, 3, pid=12, task="cron")
    (violation,) = check([*one, *other])
    assert (violation.rule, [event.fence for event in violation.events]) == ("overlap", [1, 2])
    assert str(violation) == (
        "overlap: 'a': fence 1 of process 11 'web' [0.000000 to 2.000000] "
        "with fence 2 of process 12 'cron' [1.000000 to 3.000000]"
    )
    (late,) = check(body(1, 0, 9, until=3.0), grace=5)
    assert str(late).endswith("went on for 6.000000 s after its deadline")
    (falling,) = check([*body(5, 0, 1), *body(4, 3, 4, began=2)])
    assert "begun at 2.000000, after fence 5" in str(falling)
    assert [event.fence for event in falling.events] == [5, 4]


# ---- any history ---------------------------------------------------------------------------------
times = st.integers(0, 30).map(float)


@st.composite
def histories(draw):
    events = []
    for number in range(draw(st.integers(0, 8))):
        start, length = draw(times), draw(st.integers(0, 6))
        events += body(
            draw(st.integers(1, 9)),
            start,
            start + length,
            body=f"b{number}",
            began=start - draw(st.integers(0, 4)),
            shared=draw(st.booleans()),
        )
    return draw(st.permutations(events))


@QUIETLY
@given(histories())
def test_it_agrees_with_the_definition(history):
    """Each rule in its plainest form, pair by pair, against the sweeps."""
    starts = [event for event in history if event.kind == "acquired"]
    ends = {event.body: event.at for event in history if event.kind == "left"}
    want = set()
    for one, two in combinations(starts, 2):
        if one.shared and two.shared:
            continue
        first, second = sorted((one, two), key=lambda event: event.at)
        if second.at < ends[first.body]:
            want.add("overlap")
        if one.fence == two.fence:
            want.add("fence repeats")
        for earlier, later in ((one, two), (two, one)):
            if earlier.at < later.began and earlier.fence >= later.fence:
                want.add("fence falls")
    # Two that begin at one moment, one of no length, overlap or not by their order: no matter.
    moments = [event.at for event in starts]
    if len(set(moments)) == len(moments):
        assert set(rules(history)) == want
    else:
        assert set(rules(history)) - {"overlap"} == want - {"overlap"}


# ---- the recorder --------------------------------------------------------------------------------
class FakeLease:
    name, owner, fence, held = "a", "me", 7, True

    def remaining(self) -> float:
        return 5.0 if self.held else 0.0


async def test_recording_a_body():
    history, lease = History(), FakeLease()
    began = history.now()
    with history.body(lease, began=began) as recorded:
        await asyncio.sleep(0)
        recorded.extended(until=0.0)
    assert [event.kind for event in history] == ["acquired", "entered", "extended", "left"]
    first, entered, extended, last = history
    assert first.began == began <= first.at <= last.at
    assert (first.name, first.owner, first.fence) == ("a", "me", 7)
    assert extended.until == 0.0
    for event in (first, entered, last):  # the deadline of that moment: a renewal has moved it
        assert event.until == pytest.approx(history.now() + 5, abs=1)
    assert last.pid == os.getpid()
    assert (task := asyncio.current_task())
    assert last.task == task.get_name()
    assert check(history) == []


def test_each_step_tells_what_is_known_then():
    history = History()
    before = history.now()
    body = history.acquired("a", "me", 7, until=before + 5, shared=True, permits=3)
    body.entered()
    body.extended(before + 9)
    body.left()
    history.acquired("b", "me", 8, began=before - 1).lost()
    known = [(event.kind, event.until and event.until - before) for event in history]
    assert known == [
        *(("acquired", 5), ("entered", 5), ("extended", 9), ("left", 9)),
        *(("acquired", None), ("lost", None)),
    ]
    first, *_, other, last = history
    assert (first.shared, first.permits, first.task) == (True, 3, "MainThread")
    assert before <= first.began == first.at, "without another word it began just now"
    assert (last.began, last.body) == (before - 1, other.body)
    assert first.body != last.body


def test_a_file_is_private_is_added_to_and_can_be_read_when_it_is_closed(tmp_path):
    file = tmp_path / "history.jsonl"
    for fence, earlier in ((2, 0), (1, 10)):
        history = History(file)
        history.append(acquired(fence, fence - earlier))
        history.close()
        history.close()
    with file.open("ab") as other:
        other.write(b'{"kind": "acq')  # what a read sees of a write that is under way
    assert file.stat().st_mode & 0o777 == 0o600
    assert [event.fence for event in history] == [1, 2], "by time"


def test_a_body_that_lost_its_lease_and_one_that_failed():
    history, lease = History(), FakeLease()
    with pytest.raises(ZeroDivisionError), history.body(lease, began=history.now()):
        raise ZeroDivisionError
    with history.body(lease, began=history.now(), shared=True):
        lease.held = False
    assert [event.kind for event in history][2::3] == ["left", "lost"]
    assert [event.shared for event in history] == [False] * 3 + [True] * 3


WRITER = """
import sys
from asynclock.testing import History

history = History(sys.argv[1])
print("ready", flush=True)
for fence in range(int(sys.argv[2])):
    body = history.acquired(sys.argv[3], "owner", fence, began=history.now(), until=1e12)
    body.entered()
    body.left()
    print(fence, flush=True)
"""


def test_many_processes_write_one_file_and_one_is_killed(tmp_path):
    file = tmp_path / "history.jsonl"
    root = Path(__file__).parents[2]
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(file), count, name],
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
        )
        for name, count in (("x", "300"), ("y", "300"), ("killed", "10000000"))
    ]
    killed = writers[-1]
    assert killed.stdout
    for line in killed.stdout:
        if line.strip() == "50":
            killed.send_signal(signal.SIGKILL)
            break
    for writer in writers:
        writer.communicate(timeout=50)
    history = list(History(file))
    assert history == sorted(history, key=lambda event: event.at)
    for name in "xy":
        own = [event for event in history if event.name == name]
        assert len(own) == 900
        assert len({event.pid for event in own}) == 1
    assert sum(event.name == "killed" for event in history) >= 150
    assert check(history) == []
