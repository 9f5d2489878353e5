"""When a call that nobody made wait knows that somebody has the name."""

from itertools import product

import pytest

from asynclock._rules.quorum import majority
from asynclock._rules.seeking import SETTLING, STEADY, Owners

TIMEOUT = 0.4


@pytest.mark.parametrize("size", range(1, 8))
def test_whom_a_quorum_names_has_it(size: int) -> None:
    """Every refusal of up to seven nodes by up to three owners."""
    quorum = majority(size)
    for named in product("xyz", repeat=size):
        for answers in range(size + 1):
            some = named[:answers]
            most = max(map(some.count, some), default=0)
            assert Owners(quorum, TIMEOUT).has_one(some, 0.0, 0.1) is (most >= quorum)


def test_an_owner_that_no_attempt_could_be_has_it() -> None:
    """What rivals get and lose in the meantime counts for nothing."""
    owners = Owners(2, TIMEOUT)
    late = 1.0 + STEADY * TIMEOUT
    assert not owners.has_one(["x", "y", "z"], 0.9, 1.0)
    assert not owners.has_one(["x", "y"], late - 0.01, late + 0.3), "asked too early to tell"
    assert not owners.has_one(["u", "v"], late, late + 0.3)
    assert owners.has_one(["u", "x"], late, late + 0.3)
    owners.forget()
    assert not owners.has_one(["u", "x"], late + 9, late + 9)


@pytest.mark.parametrize(("asked", "has_it"), [(1.25, False), (1.6, True)])
def test_it_takes_one_node_timeout_and_the_release_to_tell(asked: float, has_it: bool) -> None:
    """In node timeouts: with latencies of a quarter, a release takes less than half of one."""
    owners = Owners(2, 1.0)
    assert not owners.has_one(["x"], 0.0, 0.0)
    assert owners.has_one(["x"], asked, asked + 0.5) is has_it


def test_an_attempt_and_its_release_are_over_by_then_and_the_patience_is_not() -> None:
    assert 1 + 0.25 < STEADY < SETTLING
