"""Every contract test runs on every face."""

from __future__ import annotations

from typing import Any

import pytest

import asynclock
from tests.conftest import Connect
from tests.contract.faces import Face
from tests.contract.kinds import CASES, MUTEX, Kind
from tests.contract.matrix import faces

face = faces({name: face for name, (face, _) in CASES.items()})


@pytest.fixture
def of(request: pytest.FixtureRequest, face: Face) -> Kind:
    """The kind of lock that the test is about."""
    _, kind = CASES.get(request.node.callspec.params["face"], ("", MUTEX))
    return kind


@pytest.fixture
def connect(face: Face, connecting: Connect) -> Connect:
    """Managers on the face's addresses."""

    def make(**options: Any) -> asynclock.LockManager:
        return connecting(*face.addresses, **{"restart_guard": False, **face.options, **options})

    return make


@pytest.fixture
def locks(connect: Connect) -> asynclock.LockManager:
    return connect()
