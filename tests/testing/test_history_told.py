"""What a violation tells of the bodies, and what a body tells when it is left."""

from __future__ import annotations

import pytest

from asynclock.testing import History, check
from tests.testing.test_history import FakeLease, body


def test_a_violation_says_whose_bodies_they_were_and_when() -> None:
    one = body(1, 0, 2, pid=11, task="web", until=9.0)
    other = body(2, 1, 3, pid=12, task="cron")
    (violation,) = check([*one, *other])
    assert str(violation) == (
        "overlap: 'a': fence 1 of process 11 'web' [0.000000 to 2.000000] "
        "with fence 2 of process 12 'cron' [1.000000 to 3.000000]"
    )
    (late,) = check(body(1, 0, 9, until=3.0), grace=5)
    assert str(late).endswith("went on for 6.000000 s after its deadline")
    (falling,) = check([*body(5, 0, 1), *body(4, 3, 4, began=2)])
    assert "begun at 2.000000, after fence 5" in str(falling)
    assert [event.fence for event in falling.events] == [5, 4]


def test_a_body_that_is_left_tells_the_deadline_of_that_moment() -> None:
    """A renewal has moved it."""
    history, lease = History(), FakeLease()
    with history.body(lease, began=history.now()) as recorded:
        recorded.extended(until=0.0)
    *_, extended, left = history
    assert (extended.kind, extended.until) == ("extended", 0.0)
    assert left.until == pytest.approx(history.now() + 5, abs=1)
