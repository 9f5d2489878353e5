"""Every contract test runs on every face."""

from __future__ import annotations

from typing import Any

import pytest

import asynclock
from tests.conftest import Connect
from tests.contract.faces import Face
from tests.contract.matrix import ALL, faces

face = faces(ALL)


@pytest.fixture
def connect(face: Face, connecting: Connect) -> Connect:
    """Managers on the face's addresses."""

    def make(**options: Any) -> asynclock.LockManager:
        return connecting(*face.addresses, **{"restart_guard": False, **face.options, **options})

    return make


@pytest.fixture
def locks(connect: Connect) -> asynclock.LockManager:
    return connect()
