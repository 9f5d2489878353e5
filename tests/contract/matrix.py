"""The one matrix of deployments: a fixture that plays each test on the faces with these names."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any

import pytest
import pytest_asyncio

from asynclock.testing.plugin import StartServers
from tests.contract.faces import FACES, Face
from tests.contract.topology_faces import STANDING, TOPOLOGY_FACES

ALL = {**FACES, **TOPOLOGY_FACES}
"""Every deployment in every state, by its name."""

DEPLOYMENTS = (
    *("1-up", "1-resp2", "3-up", "3-dead", "3-frozen", "3-memory"),
    *(
        f"{kind}-tcp-{state}"
        for kind in ("acks1", "sentinel", "cluster")
        for state in ("up", "dead", "frozen")
    ),
)
"""What each primitive is tried on: every deployment up, with a server dead and with one frozen."""


RARE = TOPOLOGY_FACES.keys() - STANDING
"""What runs at night only."""
SELDOM = ("acks1-tcp-dead", "sentinel-tcp-frozen", "cluster-tcp-frozen")
"""What only the mutex runs on by day."""


def case(name: str, *marks: str) -> Any:
    """Return a parameter of the fixture `face`."""
    return pytest.param(name, marks=[getattr(pytest.mark, mark) for mark in marks])


def faces(names: Collection[str]) -> Any:
    """Make a fixture `face` with these deployments."""
    cases = [case(name, *(["nightly"] if name in {*RARE, *SELDOM} else [])) for name in names]
    return played({name: name for name in names}, cases)


def played(deployments: Mapping[str, str], cases: Sequence[Any] | None = None) -> Any:
    """Make a fixture `face` that plays the deployment behind each name of a case.

    Without `cases`, tests that use it name them by themselves (`indirect=True`).
    """

    @pytest_asyncio.fixture(params=cases)
    async def face(
        request: pytest.FixtureRequest, asynclock_servers: StartServers, topologies_end: None
    ) -> AsyncIterator[Face]:
        async with ALL[deployments[request.param]](asynclock_servers) as made:
            yield made

    return face
