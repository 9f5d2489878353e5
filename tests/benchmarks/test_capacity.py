"""The tables of docs/capacity.md can be measured again."""

import re

import pytest

from benchmarks.capacity import DEPLOYMENTS, costs, memory, ratio
from tests.docs.blocks import ROOT

pytestmark = pytest.mark.timeout(180)  # servers on a busy machine start slowly


@pytest.mark.parametrize(
    ("deployment", "connections"), list(zip(DEPLOYMENTS, (1, 3, 5, 1, 4, 6), strict=True))
)
async def test_what_a_deployment_costs(deployment: str, connections: int) -> None:
    found = await costs(deployment, 200)
    assert found.connections == connections
    for each in (found.client, found.servers):
        assert set(each) == {1, 100}
        assert all(figure > 0 for figure in each.values())
    page = (ROOT / "docs" / "capacity.md").read_text("utf-8")
    assert re.search(rf"^\| {re.escape(deployment)} \| {connections} \|", page, re.MULTILINE)


async def test_what_names_and_waiters_take() -> None:
    # A server counts the buffers of its connections as well: some 40 KB that come and go.
    found = await memory(2000, 200)
    assert 0 < found.counter < found.held < 2000
    assert 0 < found.later_waiter < 3000
    assert 0 < found.first_waiter < 3000


async def test_what_a_lock_costs_a_node() -> None:
    assert await ratio(blocks=2, cycles=200) > 1  # scripts do more than one plain command
