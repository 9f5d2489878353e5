"""The checker finds what is planted, finds nothing in clean histories, and is never told wrong."""

from __future__ import annotations

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


def test_one_after_the_other_is_clean():
    assert check([*body(1, 0, 1), *body(2, 1, 2), *body(7, 5, 6)]) == []


def test_an_overlap_is_found_and_described():
    (violation,) = check([*body(1, 0, 2, pid=11), *body(2, 1, 3, pid=12)])
    assert violation.rule == "overlap"
    assert [event.fence for event in violation.events] == [1, 2]
    for part in ("'a'", "fence 1 of process 11", "fence 2 of process 12"):
        assert part in str(violation)


def test_names_have_nothing_to_do_with_each_other():
    assert check([*body(1, 0, 2), *body(1, 1, 3, name="other", body="x")]) == []


def test_a_body_inside_another_is_an_overlap():
    assert rules([*body(1, 0, 9), *body(2, 3, 4)]) == ["overlap"]


def test_a_lease_is_valid_until_its_deadline_only():
    """A frozen client's body goes on; its lease does not."""
    frozen = body(1, 0, 9, until=3.0)
    assert check([*frozen, *body(2, 4, 5)]) == []
    assert rules([*frozen, *body(2, 2, 5)]) == ["overlap"]


def test_a_killed_process_holds_until_its_last_deadline():
    killed = [acquired(1, 0, until=3.0), acquired(1, 2, kind="extended", until=6.0)]
    assert check([*killed, *body(2, 6, 7)]) == []
    assert rules([*killed, *body(2, 5, 7)]) == ["overlap"]


def test_of_a_killed_process_without_a_deadline_nothing_is_assumed():
    assert check([acquired(1, 0), *body(2, 5, 7)]) == []


def test_a_lost_lease_ends_with_its_loss():
    lost = [acquired(1, 0, until=10.0), acquired(1, 4, kind="lost")]
    assert check([*lost, *body(2, 5, 7)]) == []
    assert rules([*lost, *body(2, 3, 7)]) == ["overlap"]


def test_permits():
    three = [*body(1, 0, 9), *body(2, 1, 9), *body(3, 2, 9)]
    assert rules(three, permits=2) == ["overlap"]
    assert check(three, permits=3) == []
    own = [replace(event, permits=3) for event in three]
    assert check(own) == []
    assert rules(own, permits=2) == ["overlap"], "what is asked for wins"


def test_readers_share_and_writers_do_not():
    readers = [*body(1, 0, 9, shared=True), *body(2, 1, 9, shared=True)]
    assert check(readers) == []
    assert rules([*readers, *body(3, 2, 3)]) == ["overlap"]
    assert rules([*body(1, 0, 3), *body(2, 2, 9, shared=True)]) == ["overlap"]
    assert rules([*readers, *body(3, 2, 3)], permits=5) == ["overlap"]


def test_a_repeated_fence():
    assert rules([*body(1, 0, 1), *body(1, 2, 3, body="x")]) == ["fence falls", "fence repeats"]
    sharing = [*body(1, 0, 1, shared=True), *body(1, 2, 3, shared=True, body="x")]
    assert check(sharing) == []
    assert "fence repeats" in rules([*sharing, *body(1, 4, 5, body="y")])


def test_a_falling_fence():
    falling = [*body(5, 0, 1), *body(4, 2, 3)]
    assert rules(falling) == ["fence falls"]
    assert check(falling, fences=False) == []
    assert rules([*body(5, 0, 1, shared=True), *body(4, 2, 3)]) == ["fence falls"]
    assert rules([*body(5, 0, 1), *body(4, 2, 3, shared=True)]) == ["fence falls"]
    assert check([*body(5, 0, 1, shared=True), *body(4, 2, 3, shared=True)]) == []


def test_fences_follow_real_time_only():
    """An acquire that began before another body was acquired may get the smaller fence."""
    assert check([*body(5, 0, 1, began=-2), *body(4, 2, 3, began=-1)]) == []


def test_an_old_fence_is_remembered():
    assert rules([*body(9, 0, 1), *body(1, 2, 3), *body(2, 4, 5)]) == ["fence falls"]
    assert len(check([*body(9, 0, 1), *body(1, 2, 3), *body(2, 4, 5)])) == 2


def test_an_overrun():
    late = body(1, 0, 9, last="lost", until=3.0)
    assert check(late) == []
    assert rules(late, grace=5) == ["overrun"]
    assert check(late, grace=6) == []


def test_a_lease_that_passes_on_in_the_same_moment_is_no_overlap():
    """Also between bodies that know a deadline: the first one has ended."""
    assert check([*body(1, 0, 1, until=9.0), *body(2, 1, 2, until=9.0)]) == []
    assert check([acquired(1, 0, until=1.0), *body(2, 1, 2)]) == []


def test_the_last_known_deadline_counts_also_if_it_is_earlier():
    shorter = [acquired(1, 0, until=9.0), acquired(1, 1, kind="extended", until=3.0)]
    assert check([*shorter, *body(2, 4, 5)]) == []
    assert rules([*shorter, *body(2, 2, 5)]) == ["overlap"]


def test_steps_of_one_moment_are_in_the_order_of_a_life():
    """A clock may give the same time twice."""
    first = acquired(1, 0, until=5.0)
    steps = [replace(first, kind=kind) for kind in ("left", "entered", "acquired")]
    assert check([*steps, *body(2, 1, 2)]) == []


def test_readers_among_writers_of_a_fence():
    reader, writer = body(1, 0, 1, shared=True), body(1, 2, 3, body="x")
    assert "fence repeats" in rules([*reader, *writer])


def test_permits_may_differ_from_body_to_body():
    """While a limit is being changed, the largest one counts."""
    assert check([*body(1, 0, 9, permits=1), *body(2, 1, 9, permits=2)]) == []
    one_too_many = [*body(1, 0, 9, permits=2), *body(2, 1, 9, permits=1), *body(3, 2, 9)]
    assert rules(one_too_many) == ["overlap"]


def test_a_lease_that_was_over_when_it_came_counts_for_its_moment_only():
    assert check([acquired(1, 5, until=3.0), *body(2, 5.5, 7)]) == []
    assert rules([*body(1, 0, 9), acquired(2, 5, until=3.0)]) == ["overlap"]


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="never acquired"):
        check([acquired(1, 0, kind="left")])


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


@QUIETLY
@given(st.integers(1, 4), st.lists(st.integers(1, 5), min_size=2, max_size=30), st.data())
def test_planted_in_a_clean_history(permits, lengths, data):
    """`permits` lanes of bodies, fences by time: clean. One more body, or a swapped fence: not."""
    lanes = [float(lane) / 10 for lane in range(permits)]
    spans = []
    for number, length in enumerate(lengths):
        lane = number % permits
        spans.append((lanes[lane], lanes[lane] + length))
        lanes[lane] += length + 1
    spans.sort()
    clean = [event for n, (start, end) in enumerate(spans) for event in body(n + 1, start, end)]
    assert check(clean, permits=permits) == []

    start, end = data.draw(st.sampled_from(spans))
    middle = (start + end) / 2
    crowd = [
        event
        for n in range(permits)
        for event in body(1000 + n, middle + n / 1000, end, body=f"planted {n}")
    ]
    assert "overlap" in rules([*clean, *crowd], permits=permits)

    victim = data.draw(st.sampled_from(clean[2:]))
    forged = [
        replace(event, fence=event.fence - 2) if event.body == victim.body else event
        for event in clean
    ]
    assert "fence falls" in rules(forged, permits=permits)


# ---- the recorder --------------------------------------------------------------------------------


class FakeLease:
    name, owner, fence, held = "a", "me", 7, True

    def remaining(self) -> float:
        return 5.0 if self.held else 0.0


async def test_recording_a_body():
    history, lease = History(), FakeLease()
    began = history.now()
    with history.body(lease, began=began):
        await asyncio.sleep(0)
    first, second, last = history
    assert [first.kind, second.kind, last.kind] == ["acquired", "entered", "left"]
    assert first.began == began <= first.at <= last.at
    assert (first.name, first.owner, first.fence) == ("a", "me", 7)
    assert last.until == pytest.approx(last.at + 5, abs=1)
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
    lost = history.acquired("b", "me", 8, began=before - 1)
    lost.lost()
    known = [(event.kind, event.until and event.until - before) for event in history]
    assert known == [
        *(("acquired", 5), ("entered", 5), ("extended", 9), ("left", 9)),
        *(("acquired", None), ("lost", None)),
    ]
    first, *_, last = history
    assert (first.shared, first.permits, first.task) == (True, 3, "MainThread")
    assert before <= first.began == first.at, "without another word it began just now"
    assert (last.began, last.body) == (before - 1, lost._last.body)
    assert first.body != last.body


def test_a_deadline_is_a_moment_of_the_history():
    history = History()
    with history.body(FakeLease(), began=history.now()):
        pass
    for event in history:
        assert event.until == pytest.approx(history.now() + 5, abs=1)


def test_a_file_is_private_is_added_to_and_can_be_read_when_it_is_closed(tmp_path):
    file = tmp_path / "history.jsonl"
    for fence, earlier in ((2, 0), (1, 10)):
        history = History(file)
        history.append(acquired(fence, fence - earlier))
        history.close()
        history.close()
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


def test_a_sabotaged_lock_is_caught():
    """What the recorder writes about two tasks that both believe they hold, the checker finds."""
    history = History()
    one, two = FakeLease(), FakeLease()
    with history.body(one, began=history.now()), history.body(two, began=history.now()):
        pass
    assert rules(history) == ["fence falls", "fence repeats", "overlap"]


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
