"""Tests that share servers run on one worker; all others go where there is room."""

import pytest

from tests.scheduling import shared

DEPLOYMENTS = "tests/primitives/test_deployments.py::test_event"
"""What names below begin with."""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("[cluster-tcp-up]", "[cluster-tcp-up-lock]"),
        ("[acks1-tcp-up]", "[acksall-tcp-up]"),
        ("[lock-sentinel-tcp-dead]", "[sentinel-tcp-dead]"),
    ],
)
def test_what_shares_servers_goes_together(one: str, other: str) -> None:
    assert shared(DEPLOYMENTS + one) == shared(DEPLOYMENTS + other) != DEPLOYMENTS + one


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("[cluster-tcp-up]", "[cluster-tcp-frozen]"),
        ("[cluster-tcp-up]", "[sentinel-tcp-up]"),
        ("[cluster-tcp-up]", "[cluster-tls-up]"),
        ("[acks1-tcp-frozen]", "[acks1-tcp-all-frozen]"),
        ("[3-up]", "[3-dead]"),
        ("[3-up-lock]", "[3-up-semaphore]"),
    ],
)
def test_what_shares_none_is_apart(one: str, other: str) -> None:
    assert shared(DEPLOYMENTS + one) != shared(DEPLOYMENTS + other)


def test_a_file_of_topologies_stays_together() -> None:
    file = "tests/replicated/test_sentinel.py"
    assert shared(f"{file}::test_a") == shared(f"{file}::test_b[3-up]") == file
