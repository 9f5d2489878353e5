"""For how long a process keeps a name that it has freed."""

from types import SimpleNamespace

from asynclock._engine.grant import LocalQueue

TURN, NOW = 0.5, 100.0


def test_a_freed_name_is_kept_only_for_the_rest_of_a_turn_that_others_wait_for() -> None:
    queue: LocalQueue = LocalQueue("a", "a", 1, TURN)
    mine, others = (SimpleNamespace(since=NOW, contended=wanted) for wanted in (False, True))
    assert not queue.keep(mine, NOW), "nobody else would get it"
    assert not queue.keep(others, NOW + TURN), "the turn is over"
    assert queue.take_kept(NOW) is None
    assert queue.keep(others, NOW + TURN / 2)
    assert queue.take_kept(NOW + TURN / 2) == NOW
    assert queue.take_kept(NOW + TURN / 2) is None, "it is taken once"
    assert queue.keep(others, NOW)
    assert queue.take_kept(NOW + 1.1 * TURN) is None, "the turn is over"
    permits: LocalQueue = LocalQueue("a", "a", 2, TURN)
    assert not permits.keep(others, NOW), "another process may wait for any permit"
