"""The one matrix of deployments: a fixture that plays each test on the faces with these names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import pytest
import pytest_asyncio

from asynclock.testing.plugin import StartServers
from tests.contract.faces import FACES, Face
from tests.contract.topology_faces import STANDING, TOPOLOGY_FACES

ALL = {**FACES, **TOPOLOGY_FACES}
"""Every deployment in every state, by its name."""

DEPLOYMENTS = (
    *("1-up", "3-up", "3-dead", "3-frozen", "3-memory"),
    *(
        f"{kind}-tcp-{state}"
        for kind in ("acks1", "sentinel", "cluster")
        for state in ("up", "dead", "frozen")
    ),
)
"""What each primitive is tried on: every deployment up, with a server dead and with one frozen."""


def faces(names: Iterable[str] | Mapping[str, str]) -> Any:
    """Make a fixture `face` with these deployments; the rare ones run at night.

    A mapping gives them other names, under which one of them may be there several times.
    """
    chosen = dict(names) if isinstance(names, Mapping) else {name: name for name in names}
    rare = TOPOLOGY_FACES.keys() - STANDING
    params = [
        pytest.param(name, marks=[pytest.mark.nightly] if real in rare else [])
        for name, real in chosen.items()
    ]

    @pytest_asyncio.fixture(params=params)
    async def face(
        request: pytest.FixtureRequest, asynclock_servers: StartServers, topologies_end: None
    ) -> AsyncIterator[Face]:
        async with ALL[chosen[request.param]](asynclock_servers) as made:
            yield made

    return face
