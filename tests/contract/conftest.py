"""Every contract test runs on every face."""

from typing import Any

import pytest

import asynclock
from tests.conftest import Connect
from tests.contract.faces import Face
from tests.contract.kinds import CASES, FEW, FEWER, MUTEX, Kind
from tests.contract.matrix import RARE, case, played
from tests.patient import lasting

face = played({name: face for name, (face, _) in CASES.items()})


WAITS = {
    "test_renewal_keeps_it_beyond_its_ttl",
    "test_without_renewal_it_ends_by_itself",
    "test_max_hold_ends_it",
    "test_a_dead_holders_lock_is_free_after_its_ttl",
    "test_it_rests_after_a_release",
}
"""Tests that wait for a ttl. By day they run once for each kind of lock and each deployment."""
ONCE = {*FEW, "5-frozen", "acksall-tcp-up", "durable-tcp-up"}


def _rare(test: str, deployment: str, kind: Kind) -> bool:
    return (
        deployment in RARE
        or (kind is not MUTEX and deployment not in FEWER)
        or (test in WAITS and deployment not in ONCE)
    )


def _once(test: str, deployment: str, kind: Kind) -> bool:
    """Another Python or server can differ in a script, and in how it works with replicas."""
    if test in WAITS:
        return (deployment, kind) != ("1-up", MUTEX)
    return deployment not in (FEW if kind is MUTEX else ("1-up",))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Name the cases of each test. Those that will not run aren't even made."""
    test, wanted = metafunc.function.__name__, metafunc.config.option.markexpr
    chosen = []
    for name, of in CASES.items():
        marks = [kind for kind, true in (("nightly", _rare), ("once", _once)) if true(test, *of)]
        if not any(f"not {mark}" in wanted for mark in marks):
            chosen.append(case(name, *marks))
    metafunc.parametrize("face", chosen, indirect=True)


@pytest.fixture
def of(request: pytest.FixtureRequest, face: Face) -> Kind:
    """The kind of lock that the test is about."""
    _, kind = CASES.get(request.node.callspec.params["face"], ("", MUTEX))
    return kind


@pytest.fixture
def connect(face: Face, connecting: Connect) -> Connect:
    """Managers on the face's addresses."""

    def make(**options: Any) -> asynclock.LockManager:
        return connecting(
            *face.addresses, **{"restart_guard": False, **face.options, **lasting(options)}
        )

    return make


@pytest.fixture
def locks(connect: Connect) -> asynclock.LockManager:
    return connect()
